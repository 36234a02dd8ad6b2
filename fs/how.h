/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How a mount is served, in one number: it is asked for by the client, kept by the supervisor so
 * that another daemon serves the mount alike, and shown by status. Needs nothing, for the client's
 * sake.
 *
 * A lever is what makes a view fast; each can be switched off for diagnosis. Its bit in the number
 * is set when it is. The table is all that knows their names:
 *
 * X(LEVER, name, what it does, in at most 59 columns)
 */

#include <stdbool.h>
#include <stdio.h>
#define LEVER_LIST(X) \
	X(CACHE, "cache", "names, attributes and pages stay cached; no-open needs it") \
	X(NO_OPEN, "no-open", "opening and closing is not told to the daemon") \
	X(READDIRPLUS, "readdirplus", "listings bring the attributes along") \
	X(EPOCH, "epoch", "large restores in constant time; the view outlives plyfsd") \
	X(AWAKE, "awake", "idle CPUs of a virtual machine stay awake for requests") \
	X(READ_AHEAD, "read-ahead", "1 MiB is read ahead of who reads in order, as root") \
	X(WRITE_AROUND, "write-around", "what makes a file writes past the kernel's cache") \
	X(EAGER, "eager", "the daemon looks for the next request before it sleeps")

#define LEVER_ENUM(lever, name, help) LEVER_##lever,
enum lever { LEVER_LIST(LEVER_ENUM) LEVERS };
#undef LEVER_ENUM

#define WITHOUT(lever) (1U << (lever))

/*
 * Does the kernel of this release (uname) forget the pages that somebody read in the midst of a
 * write past its cache? Else they would stay as they were before it. Since 6.19; two long-term
 * kernels have it as well ("fuse: Invalidate the page cache after FOPEN_DIRECT_IO write"). What a
 * distribution added under a number of its own is not known here: such a one does without.
 */
static inline bool kernel_writes_around(const char *release)
{
	unsigned major = 0, minor = 0, patch = 0;

	(void)sscanf(release, "%u.%u.%u", &major, &minor, &patch);
	if (major != 6)
		return major > 6;
	return minor >= 19 || (minor == 18 && patch >= 3) || (minor == 12 && patch >= 64);
}

/* Levers have the lower half. */
#define MOUNT_IO_URING (1U << 17)    /* requests through io_uring; ends with its daemon */
#define MOUNT_PASSTHROUGH (1U << 18) /* a snapshot's large files are read by the kernel */
#define MOUNT_INOTIFY (1U << 19)     /* a restore tells who watches (watchers.c) */
