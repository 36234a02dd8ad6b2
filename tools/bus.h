/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A file that is mapped and was cut, or that its disk cannot read, is a SIGBUS for whoever touches
 * it. From this call on such a process says which file it is, in one line on stderr (the daemon's
 * log), and ends with EX_IOERR. A bus error of any other kind ends it as before.
 */
void bus_install(void);
