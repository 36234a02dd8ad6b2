/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Whole copies of large files of snapshots, as files of the disk: for a kernel that reads them in
 * our stead (fs/pass.c). A cache and nothing else: the store does not need them, and any of them
 * may go at any time. W1 to W5 in copy.c.
 */

#include <stdbool.h>
#include <stdint.h>

struct store;

/*
 * The copy of a file, opened for reading; given. It counts as used as long as this descriptor, or
 * another one of the same open(2), is open anywhere. ABSENT: there is none. Does not wait.
 */
int copy_find(struct store *s, uint64_t snap, uint64_t ino, int *ret_fd);
/*
 * The same, and it is made if there is none: `fill` writes the data into a file of `size` bytes
 * that is one hole; called by one thread at a time for each copy, with no locks held. bytes: how
 * much data that is. Waits until another thread that makes the same one is done. -ENOSPC: there is
 * no room, though older copies that nobody uses went; -EAGAIN: the other thread failed.
 */
int copy_make(struct store *s, uint64_t snap, uint64_t ino, uint64_t size, uint64_t bytes,
	      int (*fill)(void *arg, int fd), void *arg, int *ret_fd);
/*
 * For each other snapshot that has a copy of a file with this inode number until `same` says (1)
 * that the file is the same there: then its copy is this snapshot's as well. Called without locks.
 */
void copy_share(struct store *s, uint64_t snap, uint64_t ino, int (*same)(void *arg, uint64_t snap),
		void *arg);
/* Gives room back that the store itself has come to need (W5). */
void copies_trim(struct store *s);
/* Removes those that nobody uses, or the others, too: who has one open goes on with it. */
void copies_remove(struct store *s, bool used_too);
/* Those that are there: how many, and what they take of the disk. */
int copies_stats(struct store *s, uint64_t *ret_count, uint64_t *ret_bytes);
