/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What comes out of an environment as text: a test run's output, the JUnit XML that it wrote, and
 * the configuration of a SWEEnv. The first byte chooses. Counts never wrap and have a runner that
 * said them; a configuration that was read is read again as the same.
 */

#include <string.h>

#include "env/plyfs.h"
#include "env/swe_config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return 0;
}

static void check_tests(const struct ply_tests *t)
{
	double rate = ply_tests_pass_rate(t);
	bool any = t->passed || t->failed || t->errors || t->skipped;

	MUST(memchr(t->runner, '\0', sizeof(t->runner)));
	MUST(t->passed <= PLY_TESTS_MAX && t->failed <= PLY_TESTS_MAX &&
	     t->errors <= PLY_TESTS_MAX && t->skipped <= PLY_TESTS_MAX);
	MUST(!any || *t->runner);
	MUST(rate >= 0 && rate <= 1);
	MUST(!ply_tests_all_passed(t) || (!t->failed && !t->errors));
}

/* With XML: it ends with a NUL, then comes the output. */
static void tests(const uint8_t *data, size_t size, bool xml, const char *rule)
{
	const uint8_t *nul = xml ? memchr(data, 0, size) : NULL;
	size_t xml_len = nul ? (size_t)(nul - data) : 0;
	struct ply_tests t = { 0 };

	if (xml && !nul)
		return;
	if (xml) {
		size -= xml_len + 1;
		if (ply_tests_parse((const char *)nul + 1, size, (const char *)data, xml_len, rule,
				    &t) == 0)
			check_tests(&t);
	} else if (ply_tests_parse((const char *)data, size, NULL, 0, rule, &t) == 0) {
		check_tests(&t);
	}
	ply_tests_free(&t);
}

/* A configuration as text, read; given. */
static json_t *again(const json_t *config)
{
	char *text = json_dumps(config, 0);
	json_t *read;

	MUST(text && swe_config_parse(text, strlen(text), &read) == 0);
	free(text);
	return read;
}

static void config(const uint8_t *data, size_t size)
{
	json_t *first, *second, *third;

	if (swe_config_parse((const char *)data, size, &first) != 0)
		return;
	second = again(first); /* a default of 500 is 500.0 there */
	third = again(second);
	MUST(json_equal(second, third));
	json_decref(first);
	json_decref(second);
	json_decref(third);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] % 4 == 3)
		config(data + 1, size - 1);
	else
		tests(data + 1, size - 1, data[0] % 4 == 1, data[0] % 4 == 2 ? "chimera" : NULL);
	return 0;
}
