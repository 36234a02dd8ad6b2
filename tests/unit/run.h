/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How every Check program ends: its tests are run, each in a child of its own. */

#include <check.h>

/* What main is to return. Takes the case. */
static inline int run_case(const char *suite_name, TCase *tcase)
{
	Suite *suite = suite_create(suite_name);
	SRunner *runner;
	int failed;

	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
