/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An archive of arbitrary bytes into a store. Refused, or a state whose tree is whole: its names
 * are walked to the end, and none of them leads out.
 */

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "env/transfer/transfer.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

static struct store *store;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static char dir[] = "/dev/shm/plyfs-fuzz-XXXXXX";
	int fd;

	MUST(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(fd >= 0 && store_init(fd) == 0 && store_open(fd, NULL, &store) == 0);
	return 0;
}

static int look(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
		uint64_t next_cookie)
{
	struct fs *fs = arg;
	struct inode i;

	MUST(len > 0 && !memchr(name, '/', len) && !memchr(name, '\0', len));
	if ((len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.'))
		return 0;
	MUST(fs_stat(fs, ino, &i) == 0);
	if (inode_is_dir(&i))
		MUST(fs_readdir(fs, ino, 0, look, fs) >= 0);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_close_ int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct transfer_stats stats;
	struct import_ops ops = { 0 };
	struct root *root;

	MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
	MUST(store_import_begin(store) == 0);
	if (import_tar(store, fd, &ops, &root, &stats) == 0) {
		struct fs fs = { .store = store };

		MUST(tree_new(store_nodes(store), root, &fs.tree) == 0);
		MUST(fs_readdir(&fs, ROOT_INO, 0, look, &fs) >= 0);
		tree_free(fs.tree);
		root_unref(root);
	}
	store_import_end(store);
	return 0;
}
