/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A directory as a zip file: how trees travel to SWE-ReX servers. Modes go along, for servers that
 * heed them; symlinks to files are followed, since such servers would make a file of their target's
 * name; other symlinks, and what is neither file nor directory, are left out.
 */

/* ret_fd: an unnamed file that holds it, at its beginning. */
int zip_directory(const char *dir, int *ret_fd);
