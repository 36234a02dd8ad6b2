/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Control ioctls of a view, one after the other, as the kernel passes them on: a number, bytes, and
 * how many bytes the answer may have. Verbs that they start are read to the end. What is answered
 * fits, and its texts end.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/format.h"
#include "fs/fs.h"
#include "fs/mount_internal.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"
#include "tools/daemon.h"

/* What loop.c has. */
void daemon_wake(struct daemon *d)
{
}

bool daemon_may(const struct daemon *d, uid_t uid)
{
	return uid == d->owner;
}

static struct daemon d = { .lock = PTHREAD_MUTEX_INITIALIZER,
			   .changed = PTHREAD_COND_INITIALIZER };
static struct mount m;
static struct view_entry *entry;
static uint64_t first; /* the snapshot that stays */

/* An object with a name. The last one of a directory is that of its record, a file's is not. */
static void put(const struct fs *fs, uint64_t ino, uint32_t mode, uint64_t dir, const char *name)
{
	uint64_t pos = dirent_base(name, strlen(name));
	const struct inode i = { .ino = ino,
				 .mode = mode,
				 .nlink = 2,
				 .size = 8,
				 .parent = dir,
				 .parent_off = S_ISDIR(mode) ? pos : 0 };
	const struct dirent_item e = {
		.ino = ino, .type = IFTODT(mode), .name = name, .len = strlen(name)
	};
	uint8_t record[INODE_RECORD_BYTES], named[DIRENT_BYTES_MAX];
	const uint32_t len = (uint32_t)dirent_encode(&e, named);
	struct key k = item_key(ino, ITEM_INODE, 0);

	inode_encode(&i, record);
	MUST(tree_put(fs->tree, &k, &(struct val){ .data = record, .len = sizeof(record) }) == 0);
	k = item_key(dir, ITEM_DIRENT, pos);
	MUST(tree_put(fs->tree, &k, &(struct val){ .data = named, .len = len }) == 0);
}

/*
 * A state of somebody else's making: a directory that lies twice in itself, and a file without its
 * bytes, whose path its record does not know. What is damaged there has to be found by a walk.
 */
static void make_odd(struct store *s)
{
	struct fs fs = { .store = s };
	struct key k = item_key(3, ITEM_EXTENT, 0);
	struct val nowhere = { .data = "\10\0\0", .len = EXTENT_BYTES, .ref.kind = REF_CHUNK };
	struct branch *b;
	struct root *root;

	MUST(root_empty(store_nodes(s), &root) == 0);
	MUST(tree_new(store_nodes(s), root, &fs.tree) == 0);
	root_unref(root);
	MUST(fs_make_root(&fs, 0755, 0, 0, (struct timens){ .sec = 1 }) == 0);
	put(&fs, 2, S_IFDIR | 0755, 2, "a");
	put(&fs, 2, S_IFDIR | 0755, 2, "b");
	put(&fs, 2, S_IFDIR | 0755, ROOT_INO, "a");
	put(&fs, 3, S_IFREG | 0644, 2, "c");
	MUST(tree_put(fs.tree, &k, &nowhere) == 0 && tree_freeze(fs.tree, &root) == 0);
	MUST(branch_create(s, "odd", root, 0, 0, &b) == 0);
	root_unref(root);
	tree_free(fs.tree);
	branch_close(b);
	MUST(store_sync(s) == 0);
}

static void make_branch(struct store *s)
{
	struct fs fs = { .store = s };
	struct timens now = { .sec = 1 };
	struct branch *b;
	struct root *root;

	MUST(root_empty(store_nodes(s), &root) == 0);
	MUST(tree_new(store_nodes(s), root, &fs.tree) == 0);
	root_unref(root);
	MUST(fs_make_root(&fs, 0755, 0, 0, now) == 0 && tree_freeze(fs.tree, &root) == 0);
	MUST(branch_create(s, "main", root, 0, 0, &b) == 0);
	root_unref(root);
	tree_free(fs.tree);
	MUST(branch_checkpoint(b, "first", 0, &first) == 0);
	branch_close(b);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static char at[] = "/mnt";

	d.store_path = (char *)fuzz_dir();
	d.dir_fd = open(d.store_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(d.dir_fd >= 0 && store_init(d.dir_fd) == 0 &&
	     store_open(d.dir_fd, NULL, &d.store) == 0);
	make_branch(d.store);
	make_odd(d.store);
	d.supervisor = supervisor_new();
	entry = calloc(1, sizeof(*entry) + sizeof(at));
	MUST(d.supervisor && entry && view_open(d.store, "main", NULL, &m.view) == 0);
	entry->daemon = &d;
	entry->mount = &m;
	strcpy(entry->branch, "main");
	memcpy(entry->mountpoint, at, sizeof(at));
	d.views = entry;
	return 0;
}

static int control(uint32_t cmd, const void *in, size_t in_len, void *out, size_t out_cap)
{
	const struct cred cred = { .pid = getpid() };
	size_t len = 0;
	int r = control_ioctl(entry, &m, &cred, ROOT_INO, cmd, in, in_len, out, out_cap, &len);

	MUST(r <= 0 && len <= out_cap);
	return r;
}

/* All that a verb says. */
static void read_call(uint64_t handle)
{
	struct plyfs_read q;

	do {
		const struct plyfs_read want = { .handle = handle };

		MUST(control(PLYFS_IOC_READ, &want, sizeof(want), &q, sizeof(q)) == 0);
		MUST(q.out_len <= sizeof(q.data) && q.err_len <= sizeof(q.data) - q.out_len);
	} while (q.more);
	MUST(q.status >= 0 && q.status < 256);
	(void)calls_expire(&d, false);
}

/* in, out: of exactly their lengths, so that sanitizers see what lies beyond. */
static void one(uint32_t cmd, const uint8_t *in, size_t in_len, size_t out_cap)
{
	uint8_t *from = malloc(in_len + 1), *out = malloc(out_cap + 1);
	int r;

	MUST(from && out);
	memcpy(from, in, in_len);
	r = control(cmd, from, in_len, out, out_cap);
	if (r == 0 && cmd == PLYFS_IOC_CALL)
		read_call(((struct plyfs_call *)out)->handle);
	if (r == 0 && cmd == PLYFS_IOC_CHECKPOINT)
		MUST(memchr(((struct plyfs_checkpoint *)out)->id, 0, PLYFS_ID_SIZE));
	if (r == 0 && cmd == PLYFS_IOC_INFO)
		MUST(memchr(((struct plyfs_info *)out)->store, 0, 4096));
	free(from);
	free(out);
}

static const uint32_t cmds[] = { PLYFS_IOC_CHECKPOINT, PLYFS_IOC_RESTORE, PLYFS_IOC_UNDO,
				 PLYFS_IOC_FORK,       PLYFS_IOC_INFO,	  PLYFS_IOC_CALL,
				 PLYFS_IOC_READ,       PLYFS_IOC_KEEP_MOUNTS, PLYFS_IOC_MOVED };

#define AS_IT_IS 0x80 /* in the first byte: the request has these bytes only */

/* Text where each of these has its own, and zeros behind it. */
static void whole(uint32_t cmd, const uint8_t *text, size_t len)
{
	static union {
		struct plyfs_checkpoint checkpoint;
		struct plyfs_restore restore;
		struct plyfs_fork fork;
		struct plyfs_call call;
		struct plyfs_read read;
		struct plyfs_info info;
		struct plyfs_moved moved;
	} q;
	size_t size = _IOC_SIZE(cmd);

	memset(&q, 0, sizeof(q));
	if (cmd == PLYFS_IOC_CALL) {
		q.call.args_len = (uint32_t)MIN(len, sizeof(q.call.args));
		memcpy(q.call.args, text, q.call.args_len);
	} else {
		size_t at = cmd == PLYFS_IOC_CHECKPOINT ? 8 : 0; /* behind its flags */

		memcpy((uint8_t *)&q + at, text, MIN(len, size > at ? size - at : 0));
	}
	one(cmd, (const uint8_t *)&q, size, size);
}

static int drop_branch(void *arg, const struct branch_info *info)
{
	if (strcmp(info->name, "main") == 0 || strcmp(info->name, "odd") == 0)
		return 0;
	return branch_drop(d.store, info->name) == 0 ? 1 : 0; /* the list has changed: again */
}

static int drop_snap(void *arg, const struct snap_info *info)
{
	return info->id != first && snap_drop(d.store, info->id) == 0;
}

/* Which, the length of what follows, the bytes; and so on. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	while (size >= 3) {
		uint32_t cmd = cmds[data[0] % (sizeof(cmds) / sizeof(cmds[0]))];
		size_t len = MIN(get_le16(data + 1), size - 3);

		if (data[0] & AS_IT_IS)
			one(cmd, data + 3, len, len);
		else
			whole(cmd, data + 3, len);
		data += 3 + len;
		size -= 3 + len;
	}
	while (branch_each(d.store, drop_branch, NULL) > 0)
		;
	while (snap_each(d.store, drop_snap, NULL) > 0)
		;
	return 0;
}
