/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An archive that a client uploads, extracted into a directory that holds a symlink out of it and a
 * file: there is an answer, and nothing changes outside.
 */

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/serve/rex.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

static struct rex *rex;
/* Holds "in", which is the target, and "beside", which nobody is to touch. */
static char path[] = "/dev/shm/plyfs-fuzz-XXXXXX";
static char in[sizeof(path) + 3];
static int dir;

static void make(const char *name, const char *text)
{
	_cleanup_close_ int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

static void remove_path(void)
{
	(void)unlinkat(dir, "beside", 0);
	(void)rmdir(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const struct rex_place place = { 0 };

	MUST(mkdtemp(path) && atexit(remove_path) == 0);
	snprintf(in, sizeof(in), "%s/in", path);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(dir >= 0 && rex_new(&place, &rex) == 0);
	make("beside", "untouched");
	return 0;
}

/* A small archive can be a large file: what does not fit is told like a full disk. */
static void limit_files(rlim_t most)
{
	const struct rlimit limit = { .rlim_cur = most, .rlim_max = RLIM_INFINITY };

	MUST(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static int remove_one(const char *name, const struct stat *st, int type, struct FTW *at)
{
	return remove(name);
}

static int look(const char *name, const struct stat *st, int type, struct FTW *at)
{
	/* No bits that change whose rights a program has; no link but the one that was there. */
	MUST(!(st->st_mode & (S_ISUID | S_ISGID | S_ISVTX)));
	MUST(S_ISDIR(st->st_mode) || S_ISREG(st->st_mode) ||
	     strcmp(name + sizeof(path), "in/link") == 0);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_part parts[] = {
		{ .name = "file",
		  .filename = "f.zip",
		  .data = (const char *)data,
		  .len = size,
		  .fd = -1 },
		{ .name = "target_path", .data = in, .len = strlen(in), .fd = -1 },
		{ .name = "unzip", .data = "true", .len = 4, .fd = -1 },
	};
	const struct http_request q = { .method = "POST",
					.path = "/upload",
					.is_form = true,
					.parts = parts,
					.n_parts = ARRAY_SIZE(parts) };
	struct http_response r = { .status = 200, .fd = -1 };
	char text[16] = "";
	struct stat st;
	int fd;

	MUST(mkdirat(dir, "in", 0755) == 0 && symlinkat("..", dir, "in/link") == 0);
	make("in/a", "old");
	limit_files(1 << 20);
	rex_upload(rex, &q, &r);
	limit_files(RLIM_INFINITY); /* the fuzzer's own files are none of this */
	MUST((r.status == 200 || r.status == 511) && r.body);
	free(r.body);

	fd = openat(dir, "beside", O_RDONLY | O_CLOEXEC);
	MUST(fd >= 0 && read(fd, text, sizeof(text) - 1) == 9 && strcmp(text, "untouched") == 0);
	close(fd);
	MUST(nftw(in, look, 16, FTW_PHYS) == 0);
	MUST(nftw(in, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
	/* No directory was made in it. */
	MUST(fstat(dir, &st) == 0 && st.st_nlink == 2);
	return 0;
}
