/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded: lets one call of the C library fail in a program that knows nothing of it, whoever
 * makes it: we, libfuse, LMDB, jansson, the library itself. What fails when is in a file that is
 * shared with the test (struct control; ply.py's Faults writes it). PLYFS_FAULTS names the file,
 * PLYFS_FAULTS_IN the program; other programs that inherit both are left alone. PLYFS_FAULTS_BUT
 * names a library that gets all memory it asks for.
 *
 * Calls are counted while it is armed, and those numbered first..last-1 fail before they do
 * anything. What fails in no system is not counted: a reply to the kernel, a wake-up by eventfd.
 */

#undef _FILE_OFFSET_BITS /* open and open64 are two names here */

#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ALLOCATIONS = 1, CALLS = 2, KILLED = 4 };  /* kinds; the last: SIGKILL at any call */
enum { ANYWHERE, IN_REQUESTS, OUTSIDE_REQUESTS }; /* where: the kernel's requests to a view */

struct control {
	atomic_int armed;
	int32_t kinds, where;
	int32_t first, last;
	int32_t error; /* of calls; of an allocation it is ENOMEM */
	atomic_int ticks, failed;
	char what[112]; /* failed last: "malloc plyfsd+0x1234 9", the opcode of the request or 0 */
};
static_assert(sizeof(struct control) == 144, "as ply.py has it");

static struct control *control;
static const char *but; /* PLYFS_FAULTS_BUT; NULL: nobody is left out */

#define OWN_THREAD static __thread __attribute__((tls_model("initial-exec")))
OWN_THREAD uint32_t opcode; /* of the request that this thread handles */
OWN_THREAD unsigned inside; /* so many of ours, one in the other */

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("PLYFS_FAULTS"), *in = getenv("PLYFS_FAULTS_IN");
	void *p;
	int fd;

	if (!path || !in || strcmp(in, program_invocation_short_name) != 0)
		return;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	p = (void *)syscall(SYS_mmap, NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED,
			    fd, 0L); /* on the stack: of an int half of it is set (clang) */
	(void)syscall(SYS_close, fd);
	if ((long)p > 0)
		control = p;
	but = getenv("PLYFS_FAULTS_BUT");
}

/* The file that the caller's code is in; its base is given. */
static const char *file_of(void *where, char **ret_base)
{
	const char *file = "?";
	Dl_info info = { 0 };

	if (dladdr(where, &info) && info.dli_fname)
		file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 :
						      info.dli_fname;
	*ret_base = info.dli_fbase;
	return file;
}

static bool is_left_out(void *where)
{
	bool is = false;
	char *base;

	if (but) {
		inside++;
		is = strncmp(file_of(where, &base), but, strlen(but)) == 0;
		inside--;
	}
	return is;
}

static void note_failure(struct control *c, const char *name, char *where)
{
	const char *file;
	char *base;

	inside++;
	file = file_of(where, &base);
	snprintf(c->what, sizeof(c->what), "%s %s+0x%lx %u", name, file,
		 (unsigned long)(where - base), opcode);
	inside--;
}

/* Is this call to fail? */
static bool tick(int kind, const char *name, void *where)
{
	struct control *c = control;
	int n;

	if (!c || inside || !atomic_load_explicit(&c->armed, memory_order_relaxed) ||
	    (c->where == IN_REQUESTS && !opcode) || (c->where == OUTSIDE_REQUESTS && opcode))
		return false;
	if (!(c->kinds & (kind | KILLED)) || (kind == ALLOCATIONS && is_left_out(where)))
		return false;
	n = atomic_fetch_add(&c->ticks, 1);
	if (n < c->first || n >= c->last)
		return false;
	note_failure(c, name, where);
	atomic_fetch_add(&c->failed, 1);
	if (c->kinds & KILLED)
		(void)kill(getpid(), SIGKILL); /* before the call */
	errno = kind == CALLS ? c->error : ENOMEM;
	return true;
}

#define FAILS(kind, name) tick(kind, name, __builtin_return_address(0))

/* ---- allocations: allocators export names of their own, so nothing is looked up ---- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void *__interceptor_malloc(size_t size) __attribute__((weak)); /* AddressSanitizer's */
extern void *__interceptor_calloc(size_t n, size_t size) __attribute__((weak));
extern void *__interceptor_realloc(void *p, size_t size) __attribute__((weak));
extern void *__interceptor_memalign(size_t align, size_t size) __attribute__((weak));

#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t size)
{
	if (FAILS(ALLOCATIONS, "malloc"))
		return NULL;
	return __interceptor_malloc ? __interceptor_malloc(size) : __libc_malloc(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
	if (FAILS(ALLOCATIONS, "calloc"))
		return NULL;
	return __interceptor_calloc ? __interceptor_calloc(n, size) : __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t size)
{
	if (size > 0 && FAILS(ALLOCATIONS, "realloc"))
		return NULL;
	return __interceptor_realloc ? __interceptor_realloc(p, size) : __libc_realloc(p, size);
}

EXPORT int posix_memalign(void **ret, size_t align, size_t size)
{
	void *p;

	if (FAILS(ALLOCATIONS, "posix_memalign"))
		return ENOMEM;
	p = __interceptor_memalign ? __interceptor_memalign(align, size) :
				     __libc_memalign(align, size);
	if (!p)
		return ENOMEM;
	*ret = p;
	return 0;
}

/* So that it is known who asks for the memory. */
EXPORT char *strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *p;

	if (FAILS(ALLOCATIONS, "strdup"))
		return NULL;
	p = __interceptor_malloc ? __interceptor_malloc(n) : __libc_malloc(n);
	return p ? memcpy(p, s, n) : NULL;
}

/* ---- calls of the system ---- */

#define REAL(name)                                                                                 \
	({                                                                                         \
		static __typeof__(&name) real_;                                                    \
		if (!real_) {                                                                      \
			inside++;                                                                  \
			real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                        \
			inside--;                                                                  \
		}                                                                                  \
		real_;                                                                             \
	})

/* PASS(type, name, value when it fails, (parameters), (arguments)) */
#define PASS(type, name, bad, params, args)                                                        \
	EXPORT type name params                                                                    \
	{                                                                                          \
		return FAILS(CALLS, #name) ? (type)(bad) : REAL(name) args;                        \
	}

PASS(int, mkdirat, -1, (int d, const char *p, mode_t m), (d, p, m))
PASS(int, unlinkat, -1, (int d, const char *p, int f), (d, p, f))
PASS(int, renameat, -1, (int d, const char *p, int e, const char *q), (d, p, e, q))
PASS(int, fstat64, -1, (int fd, struct stat64 *st), (fd, st))
PASS(int, fstatat64, -1, (int d, const char *p, struct stat64 *st, int f), (d, p, st, f))
PASS(int, fstatvfs64, -1, (int fd, struct statvfs64 *st), (fd, st))
PASS(int, ftruncate64, -1, (int fd, off64_t size), (fd, size))
PASS(int, ftruncate, -1, (int fd, off_t size), (fd, size))
PASS(int, fallocate64, -1, (int fd, int m, off64_t off, off64_t len), (fd, m, off, len))
PASS(int, posix_fallocate64, errno, (int fd, off64_t off, off64_t len), (fd, off, len))
PASS(struct dirent64 *, readdir64, NULL, (DIR * d), (d))
PASS(int, faccessat, -1, (int d, const char *p, int m, int f), (d, p, m, f))
PASS(int, fdatasync, -1, (int fd), (fd))
PASS(int, fsync, -1, (int fd), (fd))
PASS(int, msync, -1, (void *p, size_t len, int f), (p, len, f))
PASS(ssize_t, pread64, -1, (int fd, void *p, size_t n, off64_t off), (fd, p, n, off))
PASS(ssize_t, pread, -1, (int fd, void *p, size_t n, off_t off), (fd, p, n, off))
PASS(ssize_t, preadv64v2, -1, (int fd, const struct iovec *v, int n, off64_t off, int f),
     (fd, v, n, off, f))
PASS(ssize_t, pwrite64, -1, (int fd, const void *p, size_t n, off64_t off), (fd, p, n, off))
PASS(ssize_t, pwrite, -1, (int fd, const void *p, size_t n, off_t off), (fd, p, n, off))
PASS(void *, mmap64, MAP_FAILED, (void *p, size_t n, int prot, int f, int fd, off64_t off),
     (p, n, prot, f, fd, off))
PASS(void *, mmap, MAP_FAILED, (void *p, size_t n, int prot, int f, int fd, off_t off),
     (p, n, prot, f, fd, off))
PASS(ssize_t, getrandom, -1, (void *p, size_t n, unsigned f), (p, n, f))
PASS(int, memfd_create, -1, (const char *name, unsigned f), (name, f))
PASS(int, pipe2, -1, (int p[2], int f), (p, f))
PASS(int, socket, -1, (int a, int b, int c), (a, b, c))
PASS(int, socketpair, -1, (int a, int b, int c, int p[2]), (a, b, c, p))
PASS(int, bind, -1, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
PASS(int, listen, -1, (int fd, int n), (fd, n))
PASS(int, connect, -1, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
PASS(int, epoll_create1, -1, (int f), (f))
PASS(int, epoll_ctl, -1, (int e, int op, int fd, struct epoll_event *v), (e, op, fd, v))
PASS(int, eventfd, -1, (unsigned n, int f), (n, f))
PASS(int, signalfd, -1, (int fd, const sigset_t *s, int f), (fd, s, f))
PASS(pid_t, fork, -1, (void), ())
PASS(char *, realpath, NULL, (const char *p, char *buf), (p, buf))
PASS(FILE *, fopen64, NULL, (const char *p, const char *m), (p, m))
PASS(int, pthread_create, EAGAIN,
     (pthread_t * t, const pthread_attr_t *a, void *(*fn)(void *), void *arg), (t, a, fn, arg))
PASS(int, posix_spawn, errno,
     (pid_t * p, const char *f, const posix_spawn_file_actions_t *a, const posix_spawnattr_t *b,
      char *const argv[], char *const env[]),
     (p, f, a, b, argv, env))

/* Fails in no system, as to whoever is there; but one may die just before it. */
EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	(void)FAILS(KILLED, "sendmsg");
	return REAL(sendmsg)(fd, m, flags);
}

/* AddressSanitizer's question as a thread begins: without memory for it the program would end. */
EXPORT int pthread_getattr_np(pthread_t t, pthread_attr_t *a)
{
	int r;

	(void)REAL(pthread_getattr_np);
	inside++;
	r = REAL(pthread_getattr_np)(t, a);
	inside--;
	return r;
}

#define OPEN_MODE(flags)                                                                           \
	({                                                                                         \
		va_list ap_;                                                                       \
		mode_t m_ = 0;                                                                     \
		va_start(ap_, flags);                                                              \
		if ((flags) & (O_CREAT | __O_TMPFILE))                                             \
			m_ = va_arg(ap_, mode_t);                                                  \
		va_end(ap_);                                                                       \
		m_;                                                                                \
	})

#define PASS_OPEN(name)                                                                            \
	EXPORT int name(const char *p, int flags, ...)                                             \
	{                                                                                          \
		mode_t mode = OPEN_MODE(flags);                                                    \
		return FAILS(CALLS, #name) ? -1 : REAL(name)(p, flags, mode);                      \
	}
PASS_OPEN(open)
PASS_OPEN(open64)

EXPORT int openat64(int dir, const char *p, int flags, ...)
{
	mode_t mode = OPEN_MODE(flags);

	return FAILS(CALLS, "openat64") ? -1 : REAL(openat64)(dir, p, flags, mode);
}

/* Not a memfd, which cannot fail so. */
static bool is_file(int fd)
{
	struct stat st;

	return syscall(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 0;
}

EXPORT ssize_t write(int fd, const void *p, size_t n)
{
	if (control && is_file(fd) && FAILS(CALLS, "write"))
		return -1;
	return REAL(write)(fd, p, n);
}

EXPORT ssize_t writev(int fd, const struct iovec *v, int n)
{
	if (control && is_file(fd) && FAILS(CALLS, "writev"))
		return -1;
	return REAL(writev)(fd, v, n);
}

/* Requests are read into large buffers. What a thread does until it reads again is for this one. */
EXPORT ssize_t read(int fd, void *p, size_t n)
{
	bool request = control && n >= FUSE_MIN_READ_BUFFER && !is_file(fd);
	struct fuse_in_header in;
	ssize_t got;

	if (request)
		opcode = 0;
	if (!request && control && is_file(fd) && FAILS(CALLS, "read"))
		return -1;
	got = REAL(read)(fd, p, n);
	if (request && got >= (ssize_t)sizeof(in)) {
		memcpy(&in, p, sizeof(in));
		if (in.len == (size_t)got)
			opcode = in.opcode;
	}
	return got;
}
