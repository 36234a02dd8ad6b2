/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fuzz_X DIR|FILE...: replays inputs; then, for each, PLYFS_TEST_MUTATIONS (default 200) seeded
 * mutations of it: bytes flipped, cut, doubled, set to the values at which bounds break. No match
 * for a fuzzer that sees coverage (README.md says how to run that one), but it runs everywhere.
 */

#include <dirent.h>
#include <err.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_MAX (1 << 20) /* as -max_len of a fuzzer: more is slow and finds the same */

static unsigned long inputs;
static uint64_t state;

static uint64_t rnd(uint64_t below)
{
	/* xorshift64: the same inputs for the same corpus, everywhere */
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static size_t mutate(uint8_t *buf, size_t len)
{
	static const uint8_t edges[] = { 0, 1, 0x7f, 0x80, 0xff, 0xfe, '/', '\n' };

	for (uint64_t n = 1 + rnd(6); n > 0 && len > 0; n--) {
		size_t at = rnd(len);

		switch (rnd(5)) {
		case 0:
			buf[at] ^= 1 << rnd(8);
			break;
		case 1:
			buf[at] = edges[rnd(sizeof(edges))];
			break;
		case 2:
			len = at + 1;
			break;
		case 3:
			memmove(buf + at, buf + rnd(len), len - at > 8 ? 8 : 1);
			break;
		default:
			memset(buf + at, edges[rnd(sizeof(edges))], len - at > 4 ? 4 : 1);
		}
	}
	return len;
}

/* From memory of exactly that size, so that sanitizers see every byte read too far. */
static void one(const uint8_t *data, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		err(1, "out of memory");
	memcpy(copy, data, len);
	LLVMFuzzerTestOneInput(copy, len);
	free(copy);
	inputs++;
}

static void replay(const char *path)
{
	static uint8_t data[INPUT_MAX + 8], work[INPUT_MAX + 8];
	const char *wanted = getenv("PLYFS_TEST_MUTATIONS");
	long mutations = wanted ? atol(wanted) : 200;
	struct stat st;
	size_t len;
	FILE *f;

	if (stat(path, &st) < 0)
		err(1, "%s", path);
	if (S_ISDIR(st.st_mode)) {
		struct dirent **names;
		int n = scandir(path, &names, NULL, alphasort);

		if (n < 0)
			err(1, "%s", path);
		for (int i = 0; i < n; i++) {
			char *below;

			if (names[i]->d_name[0] != '.') {
				if (asprintf(&below, "%s/%s", path, names[i]->d_name) < 0)
					err(1, "out of memory");
				replay(below);
				free(below);
			}
			free(names[i]);
		}
		free(names);
		return;
	}

	f = fopen(path, "rb");
	if (!f)
		err(1, "%s", path);
	len = fread(data, 1, INPUT_MAX, f);
	fclose(f); /* read only */
	one(data, len);
	state = 0x9e3779b97f4a7c15 ^ len;
	for (long i = 0; i < mutations; i++) {
		memcpy(work, data, len);
		one(work, mutate(work, len));
	}
}

int main(int argc, char **argv)
{
	LLVMFuzzerInitialize(&argc, &argv);
	if (argc < 2)
		errx(2, "usage: %s FILE|DIRECTORY...", argv[0]);
	for (int i = 1; i < argc; i++)
		replay(argv[i]);
	if (inputs == 0)
		errx(1, "no inputs");
	printf("%lu inputs\n", inputs);
	return 0;
}
