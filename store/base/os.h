/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The one seam between plyfs and the operating system: everything that store/ does to files goes
 * through here, so that a test can fail the n-th call (fault.h) or watch the order of writes and
 * syncs. All return 0 or -errno unless said otherwise; EINTR is retried inside.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/*
 * What an error number cannot carry: the file below the directory `top` (an absolute path) that
 * this thread's last failing call here was about, when that failed with r and since
 * os_failed_forget(); NULL: nobody knows. Lent until the next failure. ENOENT is not remembered.
 * os_failed_at() is for who failed elsewhere (LMDB): at `path` in dir_fd, or dir_fd itself (NULL);
 * returns r.
 */
const char *os_failed_file(const char *top, int r);
void os_failed_forget(void);
int os_failed_at(int dir_fd, const char *path, int r);

/* Never waits: a fifo that somebody put in a file's place fails when it is read. */
int os_openat(int dir_fd, const char *path, int flags, unsigned mode, int *ret_fd);
int os_mkdirat(int dir_fd, const char *path, unsigned mode);
int os_unlinkat(int dir_fd, const char *path, int flags);
int os_renameat(int dir_fd, const char *from, const char *to);
int os_linkat(int dir_fd, const char *from, const char *to);
int os_symlinkat(const char *target, int dir_fd, const char *path);
int os_fstat(int fd, struct stat *ret);
int os_statat(int dir_fd, const char *path, struct stat *ret); /* links are not followed */

/*
 * Each name in a directory but . and .., in no order; fn's non-zero return stops and is returned.
 * fn may unlink the name it was given.
 */
int os_each_name(int dir_fd, const char *path, int (*fn)(void *arg, const char *name), void *arg);

/* Reads exactly len bytes; END when the file ends before that. */
int os_pread_full(int fd, void *buf, size_t len, uint64_t off);
/* The same without waiting for the disk: AGAIN unless all of it is in the page cache. */
int os_pread_cached(int fd, void *buf, size_t len, uint64_t off);
int os_pwrite_full(int fd, const void *buf, size_t len, uint64_t off);
int os_ftruncate(int fd, uint64_t size);
int os_punch_hole(int fd, uint64_t off, uint64_t len);
/* Blocks for the first `size` bytes, now: a later write to them cannot meet a full disk. */
int os_allocate(int fd, uint64_t size);
/* Maps the first len bytes of a file, shared, for reading and writing. os_unmap takes NULL. */
int os_map(int fd, size_t len, void **ret);
/*
 * Bytes of such a mapping are wanted here and there: what is asked for is read from the disk, and
 * not what lies around it.
 */
void os_map_here_and_there(void *p, size_t len);
void os_unmap(void *p, size_t len);
/* A file without a name, in memory. */
int os_memory_file(const char *what, int *ret_fd);
/*
 * Does a write to blocks that a file of fd's filesystem has go to just these? Where it does not, or
 * nobody knows, a full disk is met by a mapped page that was allocated, too: as SIGBUS.
 */
enum os_overwrites {
	OS_ELSEWHERE,           /* each time, perhaps */
	OS_ELSEWHERE_IF_SHARED, /* the next time, once somebody has cloned the file (cp does) */
	OS_IN_PLACE,
};
enum os_overwrites os_overwrites(int fd);
/* Is a program asked for what is in that file? */
bool os_is_fuse(int fd);
/*
 * Bytes of a mapping are in memory, and mapped. -EFAULT: they cannot be read, and who touches them
 * gets a SIGBUS; -EINVAL: before Linux 5.14.
 */
int os_make_readable(const void *p, size_t len);
/* Makes len bytes of such a page, or some, ready to be written. -ENOSPC instead of that SIGBUS. */
int os_make_writable(void *p, size_t len);
int os_fdatasync(int fd);
int os_fsync(int fd);
int os_syncfs(int fd);

/* Takes an exclusive flock without waiting; -EWOULDBLOCK when another process has it. */
int os_lock(int fd);
/* The same, shared with others that take it so. */
int os_lock_shared(int fd);
/* Its times are now. */
int os_touch(int fd);

/* Bytes that an unprivileged writer may still use on the filesystem of fd; quotas count. */
int os_free_bytes(int fd, uint64_t *ret_bytes);

/* Wall clock in ns since 1970 (CLOCK_REALTIME). */
int64_t os_now_ns(void);

/* len random bytes from the kernel. */
int os_random(void *buf, size_t len);

/* malloc, calloc, realloc through the fault counter; NULL when out of memory. Freed with free(). */
void *os_malloc(size_t size);
void *os_calloc(size_t n, size_t size);
void *os_realloc(void *p, size_t size);
/* os_grow, where there is no room. */
int os_grow_to(void *array, size_t *cap, size_t want, size_t size);
/*
 * Makes room for `want` elements of `size` bytes in the array that `array` points to, doubling from
 * 16 on; *cap is the room. 0 or -ENOMEM: as it was.
 */
static inline int os_grow(void *array, size_t *cap, size_t want, size_t size)
{
	return want <= *cap ? 0 : os_grow_to(array, cap, want, size);
}
/* Gives free pages of the heap back to the system. */
void os_trim(void);
