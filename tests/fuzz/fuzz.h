/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What stands in each fuzz target: libFuzzer's own names. Without libFuzzer, driver.c calls them
 * for every file of a corpus, which is how they run as ordinary tests.
 */

#include <ftw.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char fuzz_dir_path[] = "/dev/shm/plyfs-fuzz-XXXXXX";

static inline int fuzz_dir_remove_one(const char *path, const struct stat *st, int type,
				      struct FTW *f)
{
	return remove(path);
}

static inline void fuzz_dir_remove(void)
{
	(void)nftw(fuzz_dir_path, fuzz_dir_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a new directory in memory that goes at exit; NULL. Once. */
static inline const char *fuzz_dir(void)
{
	if (!mkdtemp(fuzz_dir_path) || atexit(fuzz_dir_remove) != 0)
		return NULL;
	return fuzz_dir_path;
}

/* Unlike assert, there in every build. */
#define MUST(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			abort(); \
		} \
	} while (0)

/* What is left of an input that is taken byte by byte: then zeros. */
struct input {
	const uint8_t *p;
	size_t left;
};

static inline uint8_t byte(struct input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->p++;
}
