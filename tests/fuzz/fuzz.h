/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What stands in each fuzz target: libFuzzer's own names. Without libFuzzer, driver.c calls them
 * for every file of a corpus, which is how they run as ordinary tests.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unlike assert, there in every build. */
#define MUST(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			abort(); \
		} \
	} while (0)
