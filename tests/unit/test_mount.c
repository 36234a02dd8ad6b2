/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The FUSE adapter (fs/mount.c, fuse.c, raw.c) without a mount: the test plays the kernel on a
 * socket that keeps message boundaries, as /dev/fuse does.
 */

#include <limits.h>
#include <semaphore.h>
#include <sys/socket.h>

#include "fs/format.h"
#include "fs/mount_internal.h"
#include "tests/unit/view_fixture.h"

static struct readers *readers;
static struct mount *mnt;
static int kernel; /* our end */
static sem_t ended;
static uint32_t ioctl_seen;
static uint32_t asker = 1; /* the thread that asks */

/* ---- the kernel's part ---- */

struct request {
	struct fuse_in_header header;
	uint8_t body[8192];
};
struct reply {
	struct fuse_out_header header;
	uint8_t body[70000];
};

static void ask(uint32_t opcode, uint64_t node, const void *body, size_t len, const char *name)
{
	struct request q = { .header = {
		.opcode = opcode, .unique = 42, .nodeid = node, .pid = asker,
	} };

	memcpy(q.body, body, len);
	if (name) {
		memcpy(q.body + len, name, strlen(name) + 1);
		len += strlen(name) + 1;
	}
	q.header.len = (uint32_t)(sizeof(q.header) + len);
	ck_assert_int_eq(write(kernel, &q, q.header.len), q.header.len);
}

static int hear(struct reply *a)
{
	ssize_t n = read(kernel, a, sizeof(*a));

	ck_assert_int_ge(n, (ssize_t)sizeof(a->header));
	ck_assert_int_eq(a->header.len, n);
	return a->header.error;
}

static int call(uint32_t opcode, uint64_t node, const void *body, size_t len, const char *name,
		struct reply *a)
{
	int r;

	ask(opcode, node, body, len, name);
	r = hear(a);
	ck_assert_uint_eq(a->header.unique, 42);
	return r;
}

static void hear_forget(uint64_t node)
{
	struct fuse_notify_inval_inode_out told;
	struct reply a;

	ck_assert_int_eq(hear(&a), FUSE_NOTIFY_INVAL_INODE);
	ck_assert_uint_eq(a.header.unique, 0);
	memcpy(&told, a.body, sizeof(told));
	ck_assert_uint_eq(told.ino, node);
	ck_assert_int_eq(told.off, -1);
}

/*
 * A change that the kernel does not date, of what another thread was told since the last one: the
 * kernel is told to forget the attributes before the reply.
 */
static int call_told(uint32_t opcode, uint64_t node, const void *body, size_t len, const char *name,
		     struct reply *a)
{
	asker++;
	ask(opcode, node, body, len, name);
	hear_forget(node);
	return hear(a);
}

static uint64_t create(const char *name)
{
	const struct fuse_create_in in = { .flags = O_CREAT | O_RDWR, .mode = S_IFREG | 0644 };
	struct fuse_entry_out e;
	struct reply a;

	ck_assert_int_eq(call(FUSE_CREATE, FUSE_ROOT_ID, &in, sizeof(in), name, &a), 0);
	ck_assert_uint_eq(a.header.len,
			  sizeof(a.header) + sizeof(e) + sizeof(struct fuse_open_out));
	memcpy(&e, a.body, sizeof(e));
	return e.nodeid;
}

/* ---- fixture ---- */

static int hook_ioctl(void *arg, struct mount *m, const struct cred *cred, uint64_t node,
		      uint32_t cmd, const void *in, size_t in_len, void *out, size_t out_cap,
		      size_t *ret_out_len)
{
	ioctl_seen = cmd;
	memset(out, 7, out_cap);
	*ret_out_len = out_cap;
	return 0;
}

/*
 * Between our last look at the view and the reader that frees it stands a socket, which is no order
 * that ThreadSanitizer knows; this lock is one.
 */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;

static void hook_ended(void *arg, struct mount *m)
{
	pthread_mutex_lock(&looking);
	mount_free(m);
	pthread_mutex_unlock(&looking);
	sem_post(&ended);
}

static void setup(void)
{
	view_setup();
	ck_assert_int_eq(readers_new(2, NULL, &readers), 0);
	sem_init(&ended, 0, 0);
}

static int start(const struct fuse_init_in *init, struct reply *a)
{
	static const struct mount_hooks hooks = { .ioctl = hook_ioctl, .ended = hook_ended };
	int fds[2];
	int r;

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	kernel = fds[0];
	ask(FUSE_INIT, 0, init, sizeof(*init), NULL);
	r = mount_start(readers, fds[1], view, 0, &hooks, &mnt);
	if (r == 0)
		ck_assert_int_eq(hear(a), 0);
	return r;
}

static const struct fuse_init_in modern = {
	.major = 7, .minor = 45, .max_readahead = 131072, .flags = ~0u, .flags2 = ~0u,
};

static void finish(void)
{
	ck_assert_int_eq(store_close(store), 0);
	readers_free(readers);
	scratch_remove(&scratch);
}

static void setup_mounted(void)
{
	struct reply a;

	setup();
	ck_assert_int_eq(start(&modern, &a), 0);
	hear(&a); /* the epoch that finds out whether there are epochs */
}

static void teardown_mounted(void)
{
	struct timespec until;

	pthread_mutex_lock(&looking);
	pthread_mutex_unlock(&looking);
	close(kernel);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	ck_assert_int_eq(sem_timedwait(&ended, &until), 0);
	finish();
}

/* ---- negotiation ---- */

START_TEST(the_kernel_is_asked_for_our_flags)
{
	const uint32_t must = FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_POSIX_ACL |
			      FUSE_DONT_MASK | FUSE_EXPLICIT_INVAL_DATA | FUSE_MAX_PAGES |
			      FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_INIT_EXT;
	const uint32_t never = FUSE_AUTO_INVAL_DATA | FUSE_ATOMIC_O_TRUNC | FUSE_WRITEBACK_CACHE |
			       FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
	struct fuse_init_out out;
	struct reply a;

	ck_assert_int_eq(start(&modern, &a), 0);
	memcpy(&out, a.body, sizeof(out));
	ck_assert_uint_eq(out.flags & must, must);
	ck_assert_uint_eq(out.flags & never, 0);
	ck_assert_uint_eq(out.flags2, INIT_NO_EXPORT_SUPPORT >> 32);
	ck_assert_uint_eq(out.max_write, 1 << 20);
	ck_assert_uint_eq(out.max_background, 128);

	ck_assert_int_eq(hear(&a), NOTIFY_INC_EPOCH);
	ck_assert_uint_eq(a.header.len, 16);
}
END_TEST

START_TEST(nothing_is_asked_of_a_kernel_that_does_not_offer_it)
{
	const struct fuse_init_in old = { .major = 7, .minor = 27, .max_readahead = 131072,
					  .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES };
	struct fuse_init_out out;
	struct reply a;

	ck_assert_int_eq(start(&old, &a), 0);
	memcpy(&out, a.body, sizeof(out));
	ck_assert_uint_eq(out.flags, old.flags);
	ck_assert_uint_eq(out.flags2, 0);
	ck_assert_uint_le(out.max_write, 32 * (uint32_t)getpagesize());
}
END_TEST

/* Without SETXATTR_EXT (Debian 11's Linux) the name comes 8 bytes earlier. */
START_TEST(the_shortest_attribute_of_an_old_kernel_is_set)
{
	const struct fuse_init_in old = { .major = 7, .minor = 27, .max_readahead = 131072,
					  .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES };
	const struct fuse_setxattr_in in = { .size = 0 };
	const struct fuse_getxattr_in get = { .size = 100 };
	struct reply a;

	ck_assert_int_eq(start(&old, &a), 0);
	ck_assert_int_eq(hear(&a), NOTIFY_INC_EPOCH);
	ck_assert_int_eq(call(FUSE_SETXATTR, FUSE_ROOT_ID, &in, FUSE_COMPAT_SETXATTR_IN_SIZE,
			      "user.a", &a), 0);
	ck_assert_int_eq(call(FUSE_LISTXATTR, FUSE_ROOT_ID, &get, sizeof(get), NULL, &a), 0);
	ck_assert_uint_eq(a.header.len, sizeof(a.header) + sizeof("user.a"));
	ck_assert_str_eq((char *)a.body, "user.a");

	/* Cut off in the middle of either form. */
	ck_assert_int_eq(call(FUSE_SETXATTR, FUSE_ROOT_ID, &in, 7, NULL, &a), -EIO);
	ck_assert_int_eq(call(FUSE_SETXATTR, FUSE_ROOT_ID, &in, 8, NULL, &a), -EINVAL);
}
END_TEST

START_TEST(what_is_no_fuse_descriptor_is_refused_and_closed)
{
	const struct fuse_init_in wrong = { .major = 8 };
	char c;

	ck_assert_int_eq(start(&wrong, NULL), -EPROTO);
	ck_assert_int_eq(read(kernel, &c, 1), 0);
	close(kernel);
	view_close(view); /* still ours */
	finish();
}
END_TEST

/* libfuse wants one for each mount. */
START_TEST(where_there_are_no_more_keys_that_is_said)
{
	static pthread_key_t keys[PTHREAD_KEYS_MAX];
	unsigned n = 0;

	while (n < ARRAY_SIZE(keys) && pthread_key_create(&keys[n], NULL) == 0)
		n++;
	ck_assert_int_eq(start(&modern, NULL), -ERR_VIEWS_MAX);
	while (n > 0)
		pthread_key_delete(keys[--n]);
	close(kernel);
	view_close(view);
	finish();
}
END_TEST

/* ---- requests ---- */

START_TEST(a_missing_name_is_remembered_by_the_kernel)
{
	struct fuse_entry_out e;
	struct reply a;

	ck_assert_int_eq(call(FUSE_LOOKUP, FUSE_ROOT_ID, "", 0, "nothing", &a), 0);
	memcpy(&e, a.body, sizeof(e));
	ck_assert_uint_eq(e.nodeid, 0);
	ck_assert_uint_gt(e.entry_valid, 1u << 30);
}
END_TEST

START_TEST(a_name_too_long_is_not_a_missing_one)
{
	char name[257];
	struct reply a;

	memset(name, 'n', 256);
	name[256] = '\0';
	ck_assert_int_eq(call(FUSE_LOOKUP, FUSE_ROOT_ID, "", 0, name, &a), -ENAMETOOLONG);
}
END_TEST

START_TEST(what_was_written_is_read)
{
	struct {
		struct fuse_write_in in;
		char data[5];
	} w = { .in = { .size = 5 }, .data = "hello" };
	const struct fuse_read_in r = { .size = 4096 };
	uint64_t node = create("f");
	struct reply a;

	ck_assert_int_eq(call(FUSE_WRITE, node, &w, sizeof(w.in) + 5, NULL, &a), 0);
	ck_assert_int_eq(call(FUSE_READ, node, &r, sizeof(r), NULL, &a), 0);
	ck_assert_uint_eq(a.header.len, sizeof(a.header) + 5);
	ck_assert_int_eq(memcmp(a.body, "hello", 5), 0);
}
END_TEST

START_TEST(a_write_clears_suid_when_the_kernel_says_so)
{
	struct {
		struct fuse_write_in in;
		char data[1];
	} w = { .in = { .size = 1, .write_flags = FUSE_WRITE_KILL_SUIDGID }, .data = "x" };
	const struct fuse_setattr_in s = { .valid = FATTR_MODE, .mode = 04755 };
	const struct fuse_getattr_in g = { 0 };
	struct fuse_notify_inval_inode_out told;
	uint64_t node = create("f");
	struct fuse_attr_out out;
	struct reply a;

	ck_assert_int_eq(call(FUSE_WRITE, node, &w, sizeof(w.in) + 1, NULL, &a), 0);
	ck_assert_int_eq(call(FUSE_SETATTR, node, &s, sizeof(s), NULL, &a), 0);
	memcpy(&out, a.body, sizeof(out));
	ck_assert_uint_eq(out.attr.mode, S_IFREG | 04755);

	/* It goes by the mode it knows, so it has to forget that before the reply. */
	ask(FUSE_WRITE, node, &w, sizeof(w.in) + 1, NULL);
	ck_assert_int_eq(hear(&a), FUSE_NOTIFY_INVAL_INODE);
	ck_assert_uint_eq(a.header.unique, 0);
	memcpy(&told, a.body, sizeof(told));
	ck_assert_uint_eq(told.ino, node);
	ck_assert_int_eq(told.off, -1);
	ck_assert_int_eq(hear(&a), 0);
	ck_assert_uint_eq(a.header.unique, 42);

	ck_assert_int_eq(call(FUSE_WRITE, node, &w, sizeof(w.in) + 1, NULL, &a), 0);
	ck_assert_int_eq(call(FUSE_GETATTR, node, &g, sizeof(g), NULL, &a), 0);
	memcpy(&out, a.body, sizeof(out));
	ck_assert_uint_eq(out.attr.mode, S_IFREG | 0755);
}
END_TEST

START_TEST(an_access_list_of_who_is_not_in_the_group_takes_sgid)
{
	static const char name[] = "system.posix_acl_access";
	static const char acl[] = "\2\0\0\0"
				  "\1\0\7\0\377\377\377\377"   /* user::rwx */
				  "\4\0\5\0\377\377\377\377"   /* group::r-x */
				  "\40\0\5\0\377\377\377\377"; /* other::r-x */
	struct {
		struct fuse_setxattr_in in;
		char rest[sizeof(name) + sizeof(acl) - 1];
	} x = { .in = { .size = sizeof(acl) - 1 } };
	const struct fuse_setattr_in s = { .valid = FATTR_MODE, .mode = 02755 };
	const struct fuse_getattr_in g = { 0 };
	uint64_t node = create("f");
	struct fuse_attr_out out;
	struct reply a;

	memcpy(x.rest, name, sizeof(name));
	memcpy(x.rest + sizeof(name), acl, sizeof(acl) - 1);
	ck_assert_int_eq(call(FUSE_SETATTR, node, &s, sizeof(s), NULL, &a), 0);
	for (unsigned kill = 0; kill < 2; kill++) {
		x.in.setxattr_flags = kill ? FUSE_SETXATTR_ACL_KILL_SGID : 0;
		ck_assert_int_eq(call(FUSE_SETXATTR, node, &x, sizeof(x.in) + sizeof(x.rest), NULL,
				      &a), 0);
		ck_assert_int_eq(call(FUSE_GETATTR, node, &g, sizeof(g), NULL, &a), 0);
		memcpy(&out, a.body, sizeof(out));
		ck_assert_uint_eq(out.attr.mode, S_IFREG | (kill ? 0755 : 02755));
	}
}
END_TEST

START_TEST(times_before_1970_are_kept)
{
	const struct fuse_setattr_in s = { .valid = FATTR_MTIME, .mtime = (uint64_t)-5,
					   .mtimensec = 999999999 };
	uint64_t node = create("f");
	struct fuse_attr_out out;
	struct reply a;

	ck_assert_int_eq(call(FUSE_SETATTR, node, &s, sizeof(s), NULL, &a), 0);
	memcpy(&out, a.body, sizeof(out));
	ck_assert_int_eq((int64_t)out.attr.mtime, -5);
	ck_assert_uint_eq(out.attr.mtimensec, 999999999);
}
END_TEST

START_TEST(a_listing_counts_only_what_fitted)
{
	struct fuse_read_in r = { .size = 512 };
	struct view_stats before, after;
	struct fuse_direntplus d;
	struct fuse_forget_in forget = { .nlookup = 1 };
	unsigned seen = 0, counted = 0;
	struct reply a;
	size_t len;

	for (int i = 0; i < 20; i++) {
		char name[16];

		snprintf(name, sizeof(name), "file-%d", i);
		ask(FUSE_FORGET, create(name), &forget, sizeof(forget), NULL);
	}
	call(FUSE_STATFS, FUSE_ROOT_ID, "", 0, NULL, &a); /* the forgets are through */
	ck_assert_int_eq(view_stat(view, &before), 0);
	do {
		ck_assert_int_eq(call(FUSE_READDIRPLUS, FUSE_ROOT_ID, &r, sizeof(r), NULL, &a), 0);
		len = a.header.len - sizeof(a.header);
		ck_assert_uint_le(len, 512);
		for (size_t at = 0; at < len; at += FUSE_DIRENTPLUS_SIZE(&d)) {
			memcpy(&d, a.body + at, FUSE_NAME_OFFSET_DIRENTPLUS);
			r.offset = d.dirent.off;
			seen++;
			counted += d.entry_out.nodeid != 0;
		}
		ck_assert_int_eq(view_stat(view, &after), 0);
		ck_assert_uint_eq(after.nodes, before.nodes + counted);
	} while (len > 0);
	ck_assert_uint_eq(seen, 22);
	ck_assert_uint_eq(counted, 20);
}
END_TEST

/* Where it fails midway (damage) the kernel is told what came before: it counted those. */
START_TEST(a_listing_that_fails_tells_what_it_has_counted)
{
	struct fuse_read_in r = { .size = 32768 };
	struct view_stats before, after;
	struct fuse_direntplus d;
	uint64_t cookies[5], last = 0;
	struct reply a;
	unsigned n = 0;
	size_t len;

	for (char name[2] = "a"; name[0] <= 'c'; name[0]++)
		create(name);
	call(FUSE_READDIRPLUS, FUSE_ROOT_ID, &r, sizeof(r), NULL, &a);
	len = a.header.len - sizeof(a.header);
	for (size_t at = 0; at < len; at += FUSE_DIRENTPLUS_SIZE(&d)) {
		memcpy(&d, a.body + at, FUSE_NAME_OFFSET_DIRENTPLUS);
		ck_assert_uint_lt(n, ARRAY_SIZE(cookies));
		cookies[n++] = d.dirent.off;
		last = d.dirent.ino;
	}
	ck_assert_uint_eq(n, ARRAY_SIZE(cookies));
	{
		struct branch *b = view_branch(mnt->view);
		const struct key k = item_key(last, ITEM_INODE, 0);
		BRANCH_CHANGE_GUARD(b);

		ck_ok(tree_del(b->tree, &k));
	}
	ck_ok(view_stat(mnt->view, &before));
	ck_assert_int_eq(call(FUSE_READDIRPLUS, FUSE_ROOT_ID, &r, sizeof(r), NULL, &a), 0);
	ck_assert_uint_gt(a.header.len - sizeof(a.header), 0);
	ck_assert_uint_lt(a.header.len - sizeof(a.header), len);
	r.offset = cookies[3];
	ck_assert_int_lt(call(FUSE_READDIRPLUS, FUSE_ROOT_ID, &r, sizeof(r), NULL, &a), 0);
	ck_ok(view_stat(mnt->view, &after));
	ck_assert_uint_eq(after.nodes, before.nodes);
}
END_TEST

START_TEST(descriptors_are_left_to_the_kernel)
{
	const struct fuse_open_in open_in = { .flags = O_RDONLY };
	const struct fuse_flush_in flush = { 0 };
	uint64_t node = create("f");
	struct reply a;

	ck_assert_int_eq(call(FUSE_OPEN, node, &open_in, sizeof(open_in), NULL, &a), -ENOSYS);
	ck_assert_int_eq(call(FUSE_OPENDIR, 1, &open_in, sizeof(open_in), NULL, &a), -ENOSYS);
	ck_assert_int_eq(call(FUSE_FLUSH, 1, &flush, sizeof(flush), NULL, &a), -ENOSYS);
	ck_assert_int_eq(call(FUSE_INTERRUPT, 0, "12345678", 8, NULL, &a), -ENOSYS);
}
END_TEST

START_TEST(control_ioctls_reach_the_hook_and_others_do_not)
{
	struct fuse_ioctl_in in = { .cmd = 0x5401 /* TCGETS */, .out_size = 36 };
	struct reply a;

	ck_assert_int_eq(call(FUSE_IOCTL, 1, &in, sizeof(in), NULL, &a), -ENOTTY);
	ck_assert_uint_eq(ioctl_seen, 0);

	in.cmd = (uint32_t)PLYFS_IOC_INFO;
	in.out_size = sizeof(struct plyfs_info);
	ck_assert_int_eq(call(FUSE_IOCTL, 1, &in, sizeof(in), NULL, &a), 0);
	ck_assert_uint_eq(ioctl_seen, (uint32_t)PLYFS_IOC_INFO);
	ck_assert_uint_eq(a.header.len, sizeof(a.header) + sizeof(struct fuse_ioctl_out) +
						sizeof(struct plyfs_info));
}
END_TEST

static uint32_t open_flags(uint32_t op, const char *name, uint32_t flags)
{
	const struct fuse_create_in in = { .flags = O_CREAT | flags, .mode = S_IFREG | 0644 };
	struct fuse_open_out out;
	struct reply a;

	ck_assert_int_eq(call(op, FUSE_ROOT_ID, &in, sizeof(in), name, &a), 0);
	memcpy(&out, a.body + sizeof(struct fuse_entry_out), sizeof(out));
	return out.open_flags;
}

START_TEST(who_makes_a_file_and_cannot_read_it_writes_around_the_cache)
{
	mnt->writes_around = true; /* whatever this kernel is */
	ck_assert_uint_eq(open_flags(FUSE_CREATE, "a", O_WRONLY),
			  FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO);
	ck_assert_uint_eq(open_flags(FUSE_TMPFILE, "/", O_WRONLY | O_APPEND),
			  FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO);
	ck_assert_uint_eq(open_flags(FUSE_CREATE, "b", O_RDWR), FOPEN_KEEP_CACHE);
	ck_assert_uint_eq(open_flags(FUSE_CREATE, "c", O_RDONLY), FOPEN_KEEP_CACHE);
	ck_assert_uint_eq(open_flags(FUSE_CREATE, "d", O_WRONLY | O_DIRECT), FOPEN_KEEP_CACHE);
	mnt->writes_around = false;
	ck_assert_uint_eq(open_flags(FUSE_CREATE, "e", O_WRONLY), FOPEN_KEEP_CACHE);
}
END_TEST

START_TEST(kernels_that_can_write_around_are_known_by_their_release)
{
	static const char *const can[] = { "6.19.0", "6.19-rc1", "7.0", "6.18.3", "6.18.44-cloud",
					   "6.12.64+deb13-amd64", "10.2.1" };
	static const char *const cannot[] = { "6.18.2", "6.18", "6.12.63", "6.17.13", "6.13.1",
					      "6.1.170", "5.19.64", "", "six" };

	for (size_t i = 0; i < ARRAY_SIZE(can); i++)
		ck_assert_msg(kernel_writes_around(can[i]), "%s", can[i]);
	for (size_t i = 0; i < ARRAY_SIZE(cannot); i++)
		ck_assert_msg(!kernel_writes_around(cannot[i]), "%s", cannot[i]);
}
END_TEST

START_TEST(what_libfuse_cannot_decode_is_answered)
{
	const struct fuse_create_in tmp = { .flags = O_RDWR, .mode = S_IFREG | 0600 };
	const uint8_t statx[24] = { 0 };
	const struct {
		struct fuse_setxattr_in in;
		char rest[9];
	} x = { .in = { .size = 2 }, .rest = "user.a\0v1" };
	const struct fuse_getxattr_in g = { .size = 100 };
	struct fuse_entry_out e;
	struct reply a;

	ck_assert_int_eq(call(FUSE_TMPFILE, 1, &tmp, sizeof(tmp), "/", &a), 0);
	memcpy(&e, a.body, sizeof(e));
	ck_assert_uint_eq(e.attr.nlink, 0);
	ck_assert_int_eq(call(OP_STATX, e.nodeid, statx, sizeof(statx), NULL, &a), 0);
	ck_assert_uint_eq(a.header.len, sizeof(a.header) + 288);
	ck_assert_int_eq(call_told(FUSE_SETXATTR, e.nodeid, &x, sizeof(x.in) + 9, NULL, &a), 0);
	ck_assert_int_eq(call(FUSE_GETXATTR, e.nodeid, &g, sizeof(g), "user.a", &a), 0);
	ck_assert_int_eq(memcmp(a.body, "v1", 2), 0);

	/* a value that claims to be longer than the request */
	ck_assert_int_eq(call(FUSE_SETXATTR, e.nodeid, &x, sizeof(x.in) + 8, NULL, &a), -EINVAL);
	/* an opcode from the future */
	ck_assert_int_eq(call(63, 1, "", 0, NULL, &a), -ENOSYS);
}
END_TEST

static void count_op(void *arg, const char *op, uint64_t count)
{
	uint64_t *lookups = arg;

	if (strcmp(op, "LOOKUP") == 0)
		*lookups = count;
}

/* Somebody asks for its attributes, by whatever request. */
static void look_by(uint32_t opcode, uint64_t node, const char *name)
{
	const struct fuse_getattr_in getattr = { 0 };
	const struct fuse_read_in read = { .size = 4096 };
	const uint8_t statx[24] = { 0 };
	struct fuse_attr_out out;
	struct reply a;

	if (opcode == FUSE_GETATTR) {
		ck_assert_int_eq(call(opcode, node, &getattr, sizeof(getattr), NULL, &a), 0);
		memcpy(&out, a.body, sizeof(out));
		ck_assert_uint_eq(out.attr_valid, UINT32_MAX);
	} else if (opcode == OP_STATX) {
		ck_assert_int_eq(call(opcode, node, statx, sizeof(statx), NULL, &a), 0);
	} else if (opcode == FUSE_READDIRPLUS) {
		ck_assert_int_eq(call(opcode, node, &read, sizeof(read), NULL, &a), 0);
	} else {
		ck_assert_int_eq(call(opcode, node, "", 0, name, &a), 0);
	}
}

static uint64_t make_dir(const char *name)
{
	const struct fuse_mkdir_in in = { .mode = 0755 };
	struct fuse_entry_out e;
	struct reply a;

	ck_assert_int_eq(call(FUSE_MKDIR, FUSE_ROOT_ID, &in, sizeof(in), name, &a), 0);
	memcpy(&e, a.body, sizeof(e));
	return e.nodeid;
}

START_TEST(an_answer_that_a_change_overtook_is_not_taken)
{
	const struct fuse_mknod_in mknod = { .mode = S_IFREG | 0644 };
	struct reply a;
	uint64_t d;

	d = make_dir("d"); /* nobody else knows it */
	ck_assert_int_eq(call(FUSE_MKNOD, d, &mknod, sizeof(mknod), "f", &a), 0);
	look_by(FUSE_GETATTR, d, NULL);
	ck_assert_int_eq(call_told(FUSE_MKNOD, d, &mknod, sizeof(mknod), "g", &a), 0);
	ck_assert_int_eq(call(FUSE_MKNOD, d, &mknod, sizeof(mknod), "h", &a), 0);
	look_by(OP_STATX, d, NULL);
	ck_assert_int_eq(call_told(FUSE_UNLINK, d, "", 0, "g", &a), 0);
	look_by(FUSE_LOOKUP, FUSE_ROOT_ID, "d");
	ck_assert_int_eq(call_told(FUSE_UNLINK, d, "", 0, "h", &a), 0);
	look_by(FUSE_READDIRPLUS, FUSE_ROOT_ID, NULL);
	ck_assert_int_eq(call_told(FUSE_UNLINK, d, "", 0, "f", &a), 0);
	look_by(FUSE_GETATTR, FUSE_ROOT_ID, NULL);
	look_by(FUSE_GETATTR, d, NULL);
	ck_assert_int_eq(call_told(FUSE_RMDIR, FUSE_ROOT_ID, "", 0, "d", &a), 0);
}
END_TEST

START_TEST(who_makes_a_change_has_taken_his_own_answer)
{
	const struct fuse_mknod_in mknod = { .mode = S_IFREG | 0644 };
	uint64_t d = make_dir("d");
	struct reply a;

	for (asker = 2; asker < 4; asker++) {
		look_by(FUSE_GETATTR, d, NULL);
		look_by(FUSE_LOOKUP, FUSE_ROOT_ID, "d");
		ck_assert_int_eq(call(FUSE_MKNOD, d, &mknod, sizeof(mknod), "f", &a), 0);
		ck_assert_int_eq(call(FUSE_UNLINK, d, "", 0, "f", &a), 0);
	}
	look_by(FUSE_GETATTR, d, NULL); /* by the last one again, and then by others */
	asker = 2;
	look_by(FUSE_GETATTR, d, NULL);
	ck_assert_int_eq(call_told(FUSE_MKNOD, d, &mknod, sizeof(mknod), "f", &a), 0);
	asker = 0; /* one whose name is not known here */
	look_by(FUSE_GETATTR, d, NULL);
	ask(FUSE_UNLINK, d, "", 0, "f");
	hear_forget(d);
	ck_assert_int_eq(hear(&a), 0);
}
END_TEST

START_TEST(so_is_none_about_what_is_renamed_or_gets_an_attribute)
{
	const struct fuse_fallocate_in allocate = { .length = 4096 };
	struct {
		struct fuse_rename2_in in;
		char names[4];
	} rename = { .in = { .flags = RENAME_EXCHANGE }, .names = "f\0g" };
	const struct {
		struct fuse_setxattr_in in;
		char rest[9];
	} x = { .in = { .size = 2 }, .rest = "user.a\0v1" };
	const struct fuse_setattr_in chmod = { .valid = FATTR_MODE, .mode = S_IFDIR | 0700 };
	uint64_t d = make_dir("d"), f = create("f"), g = make_dir("g");
	struct reply a;

	rename.in.newdir = FUSE_ROOT_ID;
	look_by(FUSE_GETATTR, f, NULL);
	look_by(FUSE_GETATTR, g, NULL);
	asker++;
	ask(FUSE_RENAME2, FUSE_ROOT_ID, &rename, sizeof(rename.in) + sizeof(rename.names), NULL);
	hear_forget(f);
	hear_forget(g);
	ck_assert_int_eq(hear(&a), 0);

	/* The new name is "g" now; both directories know of it. */
	look_by(FUSE_GETATTR, FUSE_ROOT_ID, NULL);
	look_by(FUSE_GETATTR, d, NULL);
	look_by(FUSE_GETATTR, g, NULL);
	asker++;
	rename.in = (struct fuse_rename2_in){ .newdir = d };
	ask(FUSE_RENAME2, FUSE_ROOT_ID, &rename, sizeof(rename.in) + sizeof(rename.names), NULL);
	hear_forget(FUSE_ROOT_ID);
	hear_forget(d);
	hear_forget(g);
	ck_assert_int_eq(hear(&a), 0);

	/* Who renames a directory within its parent does not wait for who sets its mode. */
	ck_assert_int_eq(call(FUSE_SETATTR, g, &chmod, sizeof(chmod), NULL, &a), 0);
	asker++;
	memcpy(rename.names, "g\0h", sizeof(rename.names));
	ask(FUSE_RENAME2, d, &rename, sizeof(rename.in) + sizeof(rename.names), NULL);
	hear_forget(g);
	ck_assert_int_eq(hear(&a), 0);

	look_by(FUSE_GETATTR, f, NULL);
	ck_assert_int_eq(call_told(FUSE_SETXATTR, f, &x, sizeof(x.in) + 9, NULL, &a), 0);
	look_by(FUSE_GETATTR, f, NULL);
	ck_assert_int_eq(call_told(FUSE_REMOVEXATTR, f, "", 0, "user.a", &a), 0);
	look_by(FUSE_GETATTR, f, NULL);
	ck_assert_int_eq(call_told(FUSE_FALLOCATE, f, &allocate, sizeof(allocate), NULL, &a), 0);
	ck_assert_int_eq(call(FUSE_FALLOCATE, f, &allocate, sizeof(allocate), NULL, &a), 0);
}
END_TEST

START_TEST(no_size_is_taken_while_somebody_writes_past_the_cache)
{
	struct {
		struct fuse_write_in in;
		char data[1];
	} w = { .in = { .size = 1 }, .data = "x" };
	const struct fuse_getattr_in getattr = { 0 };
	uint64_t f = create("f");
	struct reply a;

	asker = 2;
	ck_assert_int_eq(call(FUSE_WRITE, f, &w, sizeof(w.in) + 1, NULL, &a), 0);
	asker = 3;
	look_by(FUSE_GETATTR, f, NULL);
	asker = 2;
	w.in.flags = O_DIRECT;
	ck_assert_int_eq(call(FUSE_WRITE, f, &w, sizeof(w.in) + 1, NULL, &a), 0);
	asker = 3;
	ask(FUSE_GETATTR, f, &getattr, sizeof(getattr), NULL);
	hear_forget(f);
	ck_assert_int_eq(hear(&a), 0);
	for (asker = 2; asker < 4; asker++) /* who wrote has his answer */
		look_by(FUSE_GETATTR, f, NULL);
}
END_TEST

START_TEST(so_is_none_overtaken_by_what_was_stored_through_a_mapping)
{
	struct {
		struct fuse_write_in in;
		char data[1];
	} w = { .in = { .size = 1, .write_flags = FUSE_WRITE_CACHE }, .data = "x" };
	const struct fuse_setattr_in chmod = { .valid = FATTR_MODE, .mode = S_IFREG | 0600 };
	uint64_t f = create("f");
	struct reply a;

	ck_assert_int_eq(call(FUSE_SETATTR, f, &chmod, sizeof(chmod), NULL, &a), 0);
	ck_assert_int_eq(call_told(FUSE_WRITE, f, &w, sizeof(w.in) + 1, NULL, &a), 0);
	look_by(FUSE_GETATTR, f, NULL);
	w.in.write_flags = 0; /* write(2), which the kernel dates */
	ck_assert_int_eq(call(FUSE_WRITE, f, &w, sizeof(w.in) + 1, NULL, &a), 0);
}
END_TEST

START_TEST(requests_are_counted)
{
	uint64_t lookups = 0;
	struct reply a;

	for (int i = 0; i < 3; i++)
		call(FUSE_LOOKUP, 1, "", 0, "nothing", &a);
	mount_ops(mnt, count_op, &lookups);
	ck_assert_uint_eq(lookups, 3);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("mount");
	TCase *init = tcase_create("init"), *refused = tcase_create("refused");
	TCase *requests = tcase_create("requests");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(init, setup, teardown_mounted);
	tcase_add_test(init, the_kernel_is_asked_for_our_flags);
	tcase_add_test(init, nothing_is_asked_of_a_kernel_that_does_not_offer_it);
	tcase_add_test(init, the_shortest_attribute_of_an_old_kernel_is_set);
	suite_add_tcase(suite, init);

	tcase_add_checked_fixture(refused, setup, NULL);
	tcase_add_test(refused, what_is_no_fuse_descriptor_is_refused_and_closed);
	tcase_add_test(refused, where_there_are_no_more_keys_that_is_said);
	suite_add_tcase(suite, refused);

	tcase_add_checked_fixture(requests, setup_mounted, teardown_mounted);
	tcase_add_test(requests, a_missing_name_is_remembered_by_the_kernel);
	tcase_add_test(requests, a_name_too_long_is_not_a_missing_one);
	tcase_add_test(requests, what_was_written_is_read);
	tcase_add_test(requests, a_write_clears_suid_when_the_kernel_says_so);
	tcase_add_test(requests, an_access_list_of_who_is_not_in_the_group_takes_sgid);
	tcase_add_test(requests, times_before_1970_are_kept);
	tcase_add_test(requests, a_listing_counts_only_what_fitted);
	tcase_add_test(requests, a_listing_that_fails_tells_what_it_has_counted);
	tcase_add_test(requests, descriptors_are_left_to_the_kernel);
	tcase_add_test(requests, control_ioctls_reach_the_hook_and_others_do_not);
	tcase_add_test(requests, who_makes_a_file_and_cannot_read_it_writes_around_the_cache);
	tcase_add_test(requests, kernels_that_can_write_around_are_known_by_their_release);
	tcase_add_test(requests, what_libfuse_cannot_decode_is_answered);
	tcase_add_test(requests, an_answer_that_a_change_overtook_is_not_taken);
	tcase_add_test(requests, who_makes_a_change_has_taken_his_own_answer);
	tcase_add_test(requests, so_is_none_about_what_is_renamed_or_gets_an_attribute);
	tcase_add_test(requests, no_size_is_taken_while_somebody_writes_past_the_cache);
	tcase_add_test(requests, so_is_none_overtaken_by_what_was_stored_through_a_mapping);
	tcase_add_test(requests, requests_are_counted);
	suite_add_tcase(suite, requests);

	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
