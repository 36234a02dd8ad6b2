/* SPDX-License-Identifier: Apache-2.0 */
/*
 * treedigest: one number that says whether two directory trees are the same.
 *
 * The digest covers, for each path in byte order of the paths: the path, type, mode, owner,
 * mtime in ns, link count and hard link group of everything but directories, extended attributes
 * (ACLs are among them), symlink targets, device numbers, sizes, contents and holes. What differs
 * between two good copies is left out: ctime, atime, inode numbers, sizes of directories.
 *
 * Nothing of plyfs is used here: this program is the judge of import, mount, restore and export,
 * so it must not share their mistakes.
 *
 * Invariants:
 *  1. Content is hashed as the list of its 4 KiB blocks that are not all zero. Where the holes lie
 *     does not change it, and a hole of 16 TiB costs nothing.
 *  2. The hole map is rounded outwards to 4 KiB blocks of data, so filesystems that track holes by
 *     the byte and by the block agree.
 *  3. Threads take whole directories. Results are sorted by path at the end: the digest does not
 *     depend on the number of threads, nor on the order in which a filesystem lists its names.
 *  4. No path longer than PATH_MAX reaches the kernel: long ones are opened in pieces.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define BLOCK 4096u
#define READ_BYTES (256u * 1024) /* fits the L2 cache, so the hash reads what read(2) just wrote */
#define XATTR_BYTES (64u * 1024) /* XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux */
#define OPEN_PIECE 2048u /* bytes of path per openat: half of PATH_MAX leaves room for a name */
#define THREADS_MAX 64

struct entry {
	char *path; /* owned; "." is the root */
	struct stat st;
	char *target; /* owned; symlinks */
	XXH128_hash_t content;
	XXH128_hash_t holes;
	XXH128_hash_t xattrs;
	uint32_t n_xattrs;
	uint32_t n_runs;   /* of data, in the hole map */
	const char *group; /* lent: first path of the same inode */
};

struct entries {
	struct entry *e;
	size_t n, cap;
};

struct dirs { /* paths of directories that are still to be read */
	char **path;
	size_t n, cap;
};

static struct {
	int root_fd;
	bool list, no_holes, no_owner, no_xattrs, no_times;
	const char **exclude;
	size_t n_exclude;

	pthread_mutex_t lock;
	pthread_cond_t more;
	struct dirs dirs; /* under lock */
	unsigned busy;	  /* under lock: threads inside a directory */
	bool failed;	  /* under lock */
} g = {
	.root_fd = -1,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
};

struct worker {
	pthread_t thread;
	struct entries found;
	uint8_t *buf;	/* READ_BYTES */
	char *names;	/* XATTR_BYTES */
	uint8_t *value; /* XATTR_BYTES */
	XXH3_state_t *data, *map;
};

static void *must(void *p)
{
	if (!p) {
		fprintf(stderr, "treedigest: out of memory\n");
		exit(1);
	}
	return p;
}

static bool fail(const char *what, const char *path)
{
	fprintf(stderr, "treedigest: %s '%s': %s\n", what, path, strerror(errno));
	return false;
}

static bool excluded(const char *path)
{
	for (size_t i = 0; i < g.n_exclude; i++)
		if (fnmatch(g.exclude[i], path, 0) == 0)
			return true;
	return false;
}

static char *join(const char *dir, const char *name)
{
	char *path;
	size_t n, m = strlen(name);

	if (strcmp(dir, ".") == 0)
		return must(strdup(name));
	n = strlen(dir);
	path = must(malloc(n + m + 2));
	memcpy(path, dir, n);
	path[n] = '/';
	memcpy(path + n + 1, name, m + 1);
	return path;
}

/* Invariant 4. */
static int open_dir(const char *path)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	char piece[OPEN_PIECE + 257];
	int at = g.root_fd;

	for (;;) {
		size_t len = strlen(path), cut = len;
		int fd;

		if (len > OPEN_PIECE)
			for (cut = OPEN_PIECE; path[cut] != '/'; cut--)
				if (cut == 0)
					return errno = ENAMETOOLONG, -1;
		memcpy(piece, path, cut);
		piece[cut] = '\0';
		fd = openat(at, piece, flags | O_NOATIME);
		if (fd < 0 && errno == EPERM)
			fd = openat(at, piece, flags);
		if (at != g.root_fd)
			close(at);
		if (fd < 0 || cut == len)
			return fd;
		at = fd;
		path += cut + 1;
	}
}

static int name_cmp(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* at: the object itself: a descriptor, or a path below /proc/self/fd for what cannot be opened. */
static bool digest_xattrs(struct worker *w, int fd, const char *at, struct entry *e)
{
	const char *names[XATTR_BYTES / 2];
	ssize_t len = fd >= 0 ? flistxattr(fd, w->names, XATTR_BYTES)
			      : listxattr(at, w->names, XATTR_BYTES);
	size_t n = 0;

	if (len < 0 && (errno == ENOTSUP || errno == ENOENT || errno == EPERM))
		len = 0;
	if (len < 0)
		return fail("listing attributes of", e->path);
	if (len == 0)
		return true;

	for (ssize_t i = 0; i < len; i += (ssize_t)strlen(w->names + i) + 1)
		if (strncmp(w->names + i, "trusted.SGI_ACL_", 16) != 0) /* XFS: ACLs, again */
			names[n++] = w->names + i;
	if (n == 0)
		return true;
	qsort(names, n, sizeof(*names), name_cmp);

	XXH3_128bits_reset(w->data);
	for (size_t i = 0; i < n; i++) {
		uint64_t sizes[2];
		ssize_t v = fd >= 0 ? fgetxattr(fd, names[i], w->value, XATTR_BYTES)
				    : getxattr(at, names[i], w->value, XATTR_BYTES);

		if (v < 0)
			return fail("reading an attribute of", e->path);
		sizes[0] = strlen(names[i]);
		sizes[1] = (uint64_t)v;
		XXH3_128bits_update(w->data, sizes, sizeof(sizes));
		XXH3_128bits_update(w->data, names[i], sizes[0]);
		XXH3_128bits_update(w->data, w->value, sizes[1]);
	}
	e->xattrs = XXH3_128bits_digest(w->data);
	e->n_xattrs = (uint32_t)n;
	return true;
}

static bool is_zero(const uint8_t *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* Invariant 1: blocks of buf, which lies at off in the file (a multiple of BLOCK). */
static void digest_blocks(struct worker *w, const uint8_t *buf, size_t len, uint64_t off,
			  uint64_t *run_end)
{
	size_t i = 0;

	while (i < len) {
		size_t n = len - i < BLOCK ? len - i : BLOCK, from = i;

		if (is_zero(buf + i, n)) {
			i += n;
			continue;
		}
		while (i < len && !is_zero(buf + i, n)) {
			i += n;
			n = len - i < BLOCK ? len - i : BLOCK;
		}
		if (*run_end != off + from) {
			uint64_t start = off + from;

			XXH3_128bits_update(w->map, &start, sizeof(start));
		}
		XXH3_128bits_update(w->data, buf + from, i - from);
		*run_end = off + i;
	}
}

static bool digest_content(struct worker *w, int fd, struct entry *e)
{
	uint64_t size = (uint64_t)e->st.st_size, off = 0;
	uint64_t run_end = UINT64_MAX, data_from = 0, data_to = 0;
	uint64_t *runs = NULL;
	size_t n_runs = 0, cap = 0;
	bool ok = false;
	XXH128_hash_t h[2];

	XXH3_128bits_reset(w->data);
	XXH3_128bits_reset(w->map);
	while (off < size) {
		off_t from = lseek(fd, (off_t)off, SEEK_DATA), to;

		if (from < 0 && errno == ENXIO)
			break;
		if (from < 0) { /* no such seek here: all is data */
			from = (off_t)off;
			to = (off_t)size;
		} else {
			to = lseek(fd, from, SEEK_HOLE);
			if (to < 0)
				to = (off_t)size;
		}
		if ((uint64_t)to > size)
			to = (off_t)size;
		if (to <= from)
			break;

		/* Invariant 2; a block that two runs share is read once. */
		data_from = (uint64_t)from / BLOCK * BLOCK;
		if (n_runs > 0 && data_from < runs[2 * n_runs - 1])
			data_from = runs[2 * n_runs - 1];
		data_to = ((uint64_t)to + BLOCK - 1) / BLOCK * BLOCK;
		if (n_runs > 0 && data_from == runs[2 * n_runs - 1]) {
			runs[2 * n_runs - 1] = data_to > data_from ? data_to : data_from;
		} else {
			if (n_runs == cap) {
				cap = cap ? 2 * cap : 8;
				runs = must(realloc(runs, cap * 2 * sizeof(*runs)));
			}
			runs[2 * n_runs] = data_from;
			runs[2 * n_runs + 1] = data_to;
			n_runs++;
		}
		if (data_to > size)
			data_to = size;

		while (data_from < data_to) {
			uint64_t want = data_to - data_from;
			size_t got = 0;

			if (want > READ_BYTES)
				want = READ_BYTES;
			while (got < want) {
				ssize_t n = pread(fd, w->buf + got, want - got,
						  (off_t)(data_from + got));

				if (n < 0 && errno == EINTR)
					continue;
				if (n < 0) {
					(void)fail("reading", e->path);
					goto out;
				}
				if (n == 0) {
					errno = ESTALE;
					(void)fail("file became shorter", e->path);
					goto out;
				}
				got += (size_t)n;
			}
			digest_blocks(w, w->buf, got, data_from, &run_end);
			data_from += got;
		}
		off = (uint64_t)to;
	}
	h[0] = XXH3_128bits_digest(w->data);
	h[1] = XXH3_128bits_digest(w->map);
	e->content = XXH3_128bits(h, sizeof(h));
	e->holes = XXH3_128bits(runs, n_runs * 2 * sizeof(*runs));
	e->n_runs = (uint32_t)n_runs;
	ok = true;
out:
	free(runs);
	return ok;
}

/* Opens the object whatever it is, without side effects, and fills e. False: failed, said so. */
static bool digest_object(struct worker *w, int dir_fd, const char *name, unsigned hint,
			  struct entry *e)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	char at[64];
	int fd = -1;
	bool ok = false;

	if (hint == DT_UNKNOWN) {
		if (fstatat(dir_fd, name, &e->st, AT_SYMLINK_NOFOLLOW) < 0)
			return fail("looking at", e->path);
		hint = IFTODT(e->st.st_mode);
	}
	if (hint == DT_REG || hint == DT_DIR) {
		fd = openat(dir_fd, name, flags | O_NOATIME);
		if (fd < 0 && errno == EPERM)
			fd = openat(dir_fd, name, flags);
	} else {
		fd = openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	}
	if (fd < 0)
		return fail("opening", e->path);
	if (fstat(fd, &e->st) < 0) {
		(void)fail("looking at", e->path);
		goto out;
	}
	if (IFTODT(e->st.st_mode) != hint) {
		errno = ESTALE;
		(void)fail("changed while it was read", e->path);
		goto out;
	}

	if (S_ISLNK(e->st.st_mode)) {
		e->target = must(malloc(4097));
		ssize_t n = readlinkat(fd, "", e->target, 4096);

		if (n < 0) {
			(void)fail("reading the link", e->path);
			goto out;
		}
		e->target[n] = '\0';
	}
	if (S_ISREG(e->st.st_mode) && e->st.st_size > 0 && !digest_content(w, fd, e))
		goto out;
	if (!g.no_xattrs) {
		snprintf(at, sizeof(at), "/proc/self/fd/%d", fd);
		if (!digest_xattrs(w, hint == DT_REG || hint == DT_DIR ? fd : -1, at, e))
			goto out;
	}
	ok = true;
out:
	close(fd);
	return ok;
}

static struct entry *entry_new(struct entries *es, char *path)
{
	if (es->n == es->cap) {
		es->cap = es->cap ? 2 * es->cap : 1024;
		es->e = must(realloc(es->e, es->cap * sizeof(*es->e)));
	}
	es->e[es->n] = (struct entry){ .path = path };
	return &es->e[es->n++];
}

static void push_dirs(struct dirs *new_dirs)
{
	pthread_mutex_lock(&g.lock);
	for (size_t i = 0; i < new_dirs->n; i++) {
		if (g.dirs.n == g.dirs.cap) {
			g.dirs.cap = g.dirs.cap ? 2 * g.dirs.cap : 256;
			g.dirs.path = must(realloc(g.dirs.path, g.dirs.cap * sizeof(char *)));
		}
		g.dirs.path[g.dirs.n++] = new_dirs->path[i];
	}
	if (new_dirs->n > 0)
		pthread_cond_broadcast(&g.more);
	pthread_mutex_unlock(&g.lock);
	new_dirs->n = 0;
}

static bool digest_dir(struct worker *w, const char *dir, struct dirs *sub)
{
	int fd = open_dir(dir);
	struct dirent *d;
	bool ok = true;
	DIR *stream;

	if (fd < 0)
		return fail("opening", dir);
	stream = fdopendir(fd);
	if (!stream) {
		close(fd);
		return fail("reading", dir);
	}
	while (ok && (errno = 0, d = readdir(stream))) {
		struct entry *e;
		char *path;

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		path = join(dir, d->d_name);
		if (excluded(path)) {
			free(path);
			continue;
		}
		e = entry_new(&w->found, path);
		ok = digest_object(w, fd, d->d_name, d->d_type, e);
		if (ok && S_ISDIR(e->st.st_mode)) {
			if (sub->n == sub->cap) {
				sub->cap = sub->cap ? 2 * sub->cap : 64;
				sub->path = must(realloc(sub->path, sub->cap * sizeof(char *)));
			}
			sub->path[sub->n++] = must(strdup(path));
		}
	}
	if (ok && errno != 0)
		ok = fail("reading", dir);
	closedir(stream);
	return ok;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct dirs sub = { 0 };

	for (;;) {
		char *dir;
		bool ok;

		pthread_mutex_lock(&g.lock);
		while (g.dirs.n == 0 && g.busy > 0 && !g.failed)
			pthread_cond_wait(&g.more, &g.lock);
		if (g.dirs.n == 0 || g.failed) {
			pthread_cond_broadcast(&g.more);
			pthread_mutex_unlock(&g.lock);
			break;
		}
		dir = g.dirs.path[--g.dirs.n];
		g.busy++;
		pthread_mutex_unlock(&g.lock);

		ok = digest_dir(w, dir, &sub);
		push_dirs(&sub);
		free(dir);

		pthread_mutex_lock(&g.lock);
		g.busy--;
		if (!ok)
			g.failed = true;
		if (g.busy == 0 || !ok)
			pthread_cond_broadcast(&g.more);
		pthread_mutex_unlock(&g.lock);
	}
	free(sub.path);
	return NULL;
}

static int entry_cmp(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static int inode_cmp(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;

	if (x->st.st_dev != y->st.st_dev)
		return x->st.st_dev < y->st.st_dev ? -1 : 1;
	if (x->st.st_ino != y->st.st_ino)
		return x->st.st_ino < y->st.st_ino ? -1 : 1;
	return strcmp(x->path, y->path);
}

/* Hard link groups are named by their first path. */
static void group(struct entries *all)
{
	struct entry **linked = must(malloc((all->n + 1) * sizeof(*linked)));
	size_t n = 0;

	for (size_t i = 0; i < all->n; i++)
		if (!S_ISDIR(all->e[i].st.st_mode) && all->e[i].st.st_nlink > 1)
			linked[n++] = &all->e[i];
	qsort(linked, n, sizeof(*linked), inode_cmp);
	for (size_t i = 0; i < n; i++)
		linked[i]->group = i > 0 && linked[i]->st.st_dev == linked[i - 1]->st.st_dev &&
						   linked[i]->st.st_ino == linked[i - 1]->st.st_ino
					   ? linked[i - 1]->group
					   : linked[i]->path;
	free(linked);
}

static void print_quoted(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 0x7f || *s == '\\')
			printf("\\%03o", (unsigned char)*s);
		else
			putchar(*s);
}

static void digest_entry(const struct entry *e, XXH3_state_t *sum)
{
	const struct stat *st = &e->st;
	bool dir = S_ISDIR(st->st_mode), reg = S_ISREG(st->st_mode);
	const char *texts[] = { e->path, e->target, e->group };
	uint64_t f[16] = {
		st->st_mode,
		g.no_owner ? 0 : st->st_uid,
		g.no_owner ? 0 : st->st_gid,
		g.no_times ? 0 : (uint64_t)st->st_mtim.tv_sec,
		g.no_times ? 0 : (uint64_t)st->st_mtim.tv_nsec,
		dir ? 0 : st->st_nlink,
		S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode) ? st->st_rdev : 0,
		reg ? (uint64_t)st->st_size : 0,
		e->content.high64,
		e->content.low64,
		g.no_holes ? 0 : e->holes.high64,
		g.no_holes ? 0 : e->holes.low64,
		e->xattrs.high64,
		e->xattrs.low64,
		e->n_xattrs,
	};

	XXH3_128bits_update(sum, f, sizeof(f));
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		uint64_t len = texts[i] ? strlen(texts[i]) : UINT64_MAX;

		XXH3_128bits_update(sum, &len, sizeof(len));
		if (texts[i])
			XXH3_128bits_update(sum, texts[i], len);
	}
	if (!g.list)
		return;

	print_quoted(e->path);
	printf(" mode=%06o", st->st_mode);
	if (!g.no_owner)
		printf(" owner=%u:%u", st->st_uid, st->st_gid);
	if (!g.no_times)
		printf(" mtime=%lld.%09ld", (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
	if (!dir)
		printf(" nlink=%llu", (unsigned long long)st->st_nlink);
	if (e->group) {
		printf(" group=");
		print_quoted(e->group);
	}
	if (f[6])
		printf(" dev=%u:%u", major(st->st_rdev), minor(st->st_rdev));
	if (reg) {
		printf(" size=%lld content=%016" PRIx64, (long long)st->st_size,
		       (uint64_t)e->content.high64);
		if (!g.no_holes)
			printf(" runs=%u holes=%016" PRIx64, e->n_runs, (uint64_t)e->holes.high64);
	}
	if (e->target) {
		printf(" target=");
		print_quoted(e->target);
	}
	if (e->n_xattrs)
		printf(" xattrs=%u:%016" PRIx64, e->n_xattrs, (uint64_t)e->xattrs.high64);
	putchar('\n');
}

static void usage(FILE *out)
{
	fprintf(out,
		"usage: treedigest [OPTIONS] DIR\n"
		"Prints a digest of everything that is below DIR, and of DIR itself.\n"
		"  --list             a line for each path first, to compare with diff(1)\n"
		"  --no-holes         wherever the holes lie\n"
		"  --no-owner         whoever owns it\n"
		"  --no-times         whenever it was modified\n"
		"  --no-xattrs        whatever its extended attributes and ACLs\n"
		"  --exclude PATTERN  without paths that match the shell pattern (and below)\n"
		"  -j N               with N threads\n");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "list", no_argument, NULL, 'l' },
		{ "no-holes", no_argument, NULL, 'H' },
		{ "no-owner", no_argument, NULL, 'O' },
		{ "no-times", no_argument, NULL, 'T' },
		{ "no-xattrs", no_argument, NULL, 'X' },
		{ "exclude", required_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct worker workers[THREADS_MAX] = { 0 };
	struct entries all = { 0 };
	XXH3_state_t *sum;
	XXH128_canonical_t canonical;
	unsigned threads = 1;
	struct dirs first = { 0 };
	int c;

	while ((c = getopt_long(argc, argv, "hj:", options, NULL)) != -1)
		switch (c) {
		case 'l':
			g.list = true;
			break;
		case 'H':
			g.no_holes = true;
			break;
		case 'O':
			g.no_owner = true;
			break;
		case 'T':
			g.no_times = true;
			break;
		case 'X':
			g.no_xattrs = true;
			break;
		case 'e':
			g.exclude = must(realloc(g.exclude, (g.n_exclude + 1) * sizeof(char *)));
			g.exclude[g.n_exclude++] = optarg;
			break;
		case 'j': {
			unsigned long n = strtoul(optarg, NULL, 10);

			if (n < 1 || n > THREADS_MAX) {
				fprintf(stderr, "treedigest: -j takes 1 to %d\n", THREADS_MAX);
				return 2;
			}
			threads = (unsigned)n;
			break;
		}
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	if (optind + 1 != argc) {
		usage(stderr);
		return 2;
	}

	g.root_fd = open(argv[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (g.root_fd < 0) {
		(void)fail("opening", argv[optind]);
		return 1;
	}
	for (unsigned i = 0; i < threads; i++) {
		workers[i].buf = must(aligned_alloc(4096, READ_BYTES));
		workers[i].names = must(malloc(XATTR_BYTES));
		workers[i].value = must(malloc(XATTR_BYTES));
		workers[i].data = must(XXH3_createState());
		workers[i].map = must(XXH3_createState());
	}
	if (!digest_object(&workers[0], g.root_fd, ".", DT_DIR,
			   entry_new(&workers[0].found, must(strdup(".")))))
		return 1;
	first.path = must(malloc(sizeof(char *)));
	first.path[first.n++] = must(strdup("."));
	push_dirs(&first);
	free(first.path);

	for (unsigned i = 1; i < threads; i++)
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
			fprintf(stderr, "treedigest: no thread to be had\n");
			return 1;
		}
	work(&workers[0]);
	for (unsigned i = 1; i < threads; i++)
		pthread_join(workers[i].thread, NULL);
	if (g.failed)
		return 1;

	for (unsigned i = 0; i < threads; i++) {
		struct entries *f = &workers[i].found;

		all.e = must(realloc(all.e, (all.n + f->n + 1) * sizeof(*all.e)));
		if (f->n > 0)
			memcpy(all.e + all.n, f->e, f->n * sizeof(*f->e));
		all.n += f->n;
		free(f->e);
		free(workers[i].buf);
		free(workers[i].names);
		free(workers[i].value);
		XXH3_freeState(workers[i].data);
		XXH3_freeState(workers[i].map);
	}
	qsort(all.e, all.n, sizeof(*all.e), entry_cmp);
	group(&all);

	sum = must(XXH3_createState());
	XXH3_128bits_reset(sum);
	for (size_t i = 0; i < all.n; i++)
		digest_entry(&all.e[i], sum);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(sum));
	for (size_t i = 0; i < sizeof(canonical.digest); i++)
		printf("%02x", canonical.digest[i]);
	putchar('\n');

	for (size_t i = 0; i < all.n; i++) {
		free(all.e[i].path);
		free(all.e[i].target);
	}
	free(all.e);
	free(g.dirs.path);
	free(g.exclude);
	XXH3_freeState(sum);
	close(g.root_fd);
	return fflush(stdout) == 0 ? 0 : 1;
}
