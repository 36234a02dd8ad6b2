/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who is in a mounted view: for the sentence that says why it cannot be unmounted. As far as we may
 * look: the processes of other users are hidden from an ordinary one.
 */

#include <stdbool.h>
#include <stdint.h>

#define MOUNT_USERS_BYTES 1024 /* some names, a path: the rest is cut off */

/*
 * What keeps the mount point at an absolute path busy: "1234 (sleep), the mount on /a/b, loop0";
 * "" when nothing is found. Never opens the mount point.
 */
void mount_users(const char *top, char ret[MOUNT_USERS_BYTES]);

/* The device of the mount at an absolute path; 0 when there is none. */
uint64_t mount_users_dev(const char *path);
/*
 * Has our mount namespace the device besides on `except`? Asked while the view is there: its number
 * is given to the next one that is mounted as soon as it has gone.
 */
bool mount_users_here(uint64_t dev, const char *except);
/*
 * What holds a view besides the mount on `except`: other mounts of this device, here ("the mount on
 * /a/b"; returns true) and in other mount namespaces ("1234 (sleep) in another mount namespace"),
 * which go with their processes.
 */
bool mount_users_elsewhere(uint64_t dev, const char *except, char ret[MOUNT_USERS_BYTES]);
/*
 * The same, and who has something of it open or mapped, or is in it, wherever it was detached. This
 * looks at all that any process has open.
 */
void mount_users_of_dev(uint64_t dev, char ret[MOUNT_USERS_BYTES]);
