/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Opens (and when it grew long: begins anew) the log in the store; stdout and stderr go there, too. */
int log_open(int dir_fd);
