/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ply_env_run_tests of the kinds on a view: runs test_command and reads what it says about itself,
 * in the JUnit XML that test_report names when the run wrote any, else in its output (report.h).
 */

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "env/env_internal.h"
#include "env/report.h"
#include "env/status.h"
#include "store/base/util.h"

/* A report is read whole; the largest seen in the wild are some 10 MiB. */
#define REPORT_BYTES (256 << 20)

struct reports {
	struct counts cases;
	bool any, broken;
};

static bool is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* A fraction of a tick, which is 1 to 10 ms; and some ticks, as a clock may be set back. */
#define LOOK_NS 500000
#define LOOKS_MAX 100

/*
 * The time from which on files are new. Filesystems take their times of the exact clock (a view) or
 * of the coarse one, which moves with each tick and is late. So that one is waited for until it is
 * past the present: what was written before is older than that by either clock.
 */
static void wait_for_new_times(struct timespec *ret)
{
	const struct timespec moment = { .tv_nsec = LOOK_NS };
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now); /* these cannot fail */
	for (unsigned look = 0; look < LOOKS_MAX; look++) {
		(void)clock_gettime(CLOCK_REALTIME_COARSE, ret);
		if (is_before(&now, ret))
			return;
		(void)nanosleep(&moment, NULL);
	}
}

static int read_report(struct ply_env *e, const char *path, const struct timespec *start,
		       struct reports *reports)
{
	_cleanup_(ply_text_free) struct ply_text xml = { 0 };
	_cleanup_free_ char *full = NULL;
	struct stat st;
	int r;

	if (asprintf(&full, "%s/%s", e->workdir, path) < 0) {
		full = NULL;
		return fail_memory();
	}
	if (stat(full, &st) < 0)
		return errno == ENOENT || errno == ENOTDIR
			       ? 0
			       : fail_errno(errno, "the report '%s'", path);
	if (is_before(&st.st_mtim, start))
		return 0; /* left over from an earlier run */
	reports->any = true;
	r = st.st_size > REPORT_BYTES ? PLY_INVALID : ply_env_read_file(e, path, &xml);
	if (r == 0)
		r = junit_read(xml.data, xml.len, &reports->cases);
	if (r == PLY_NO_MEMORY)
		return r;
	reports->broken |= r < 0;
	return 0;
}

static int read_reports(struct ply_env *e, const struct timespec *start, struct reports *reports)
{
	_cleanup_(ply_list_free) struct ply_list files = { 0 };
	const char *pattern = env_option(e, "test_report");
	int r;

	if (!*pattern)
		return 0;
	r = ply_env_list_files(e, pattern, &files);
	if (r < 0)
		return fail_in(r, "test_report '%s'", pattern);
	for (size_t i = 0; i < files.n && r == 0; i++)
		r = read_report(e, files.items[i], start, reports);
	return r;
}

int env_run_tests(struct ply_env *e, struct ply_tests *ret)
{
	_cleanup_(ply_result_free) struct ply_result result = { 0 };
	const char *rule = env_option(e, "test_rule");
	struct ply_tests tests = { 0 };
	struct reports reports = { 0 };
	struct timespec start = { 0 };
	int r;

	if (*env_option(e, "test_report"))
		wait_for_new_times(&start);
	r = ply_env_run(e, env_option(e, "test_command"), 0, NULL, &result);
	if (r < 0)
		return r;
	r = text_append(&result.out, result.err.data, result.err.len);
	if (r < 0)
		return r;
	r = read_reports(e, &start, &reports);
	if (r < 0)
		return r;
	r = report_read(result.out.data, result.out.len, reports.any ? &reports.cases : NULL,
			reports.broken, *rule ? rule : NULL, &tests);
	if (r < 0)
		return r;
	tests.exit_code = result.exit_code;
	tests.timed_out = result.timed_out;
	tests.output = result.out;
	result.out = (struct ply_text){ 0 };
	*ret = tests;
	return 0;
}
