/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* For the targets that make a state of something: a store, and a look at what came of it. */

#include <fcntl.h>
#include <string.h>

#include "env/transfer/transfer.h"
#include "tests/fuzz/fuzz.h"

static struct store *fuzz_store;

/* A store in memory; its directory. Once. */
static inline int fuzz_store_open(void)
{
	int dir_fd = open(fuzz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	MUST(dir_fd >= 0 && store_init(dir_fd) == 0 && store_open(dir_fd, NULL, &fuzz_store) == 0);
	return dir_fd;
}

static inline int fuzz_look(void *arg, const char *name, size_t len, uint64_t ino, unsigned type,
			    uint64_t next_cookie)
{
	struct fs *fs = arg;
	struct inode i;

	MUST(len > 0 && !memchr(name, '/', len) && !memchr(name, '\0', len));
	if ((len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.'))
		return 0;
	MUST(fs_stat(fs, ino, &i) == 0);
	if (inode_is_dir(&i))
		MUST(fs_readdir(fs, ino, 0, fuzz_look, fs) >= 0);
	return 0;
}

/* Its names are walked to the end, and none of them leads out. */
static inline void fuzz_walk(struct root *root)
{
	struct fs fs = { .store = fuzz_store };

	MUST(tree_new(store_nodes(fuzz_store), root, &fs.tree) == 0);
	MUST(fs_readdir(&fs, ROOT_INO, 0, fuzz_look, &fs) >= 0);
	tree_free(fs.tree);
}
