/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A session without an environment, in a directory of its own, and what is asked of it. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/plyfs.h"
#include "tests/unit/run.h"

static char dir[64]; /* scratch: HOME (so that no bashrc but ours is read) and cwd */
static struct ply_session *session;

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())

/* What all tests give a shell to start: more than a busy machine with sanitizers needs. */
#define PATIENCE "60"
/* A command that ends by itself. */
#define LONG 60.0

static inline struct ply_session *make(void)
{
	struct ply_session *s;
	char home[128];

	snprintf(home, sizeof(home), "HOME=%s", dir);
	ok(ply_session_new(NULL, "test", &s));
	ok(ply_session_set(s, "startup_timeout", PATIENCE));
	ok(ply_session_set(s, "cwd", dir));
	ok(ply_session_set(s, "env", home));
	return s;
}

static inline void setup(void)
{
	strcpy(dir, "/tmp/plyfs-session-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	session = make();
	ok(ply_session_start(session, NULL));
}

static inline void teardown(void)
{
	char command[128];

	ply_session_free(session);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

static inline int try(const char *command, double timeout, struct ply_observation *ret)
{
	const struct ply_session_run run = { .command = command, .timeout = timeout };

	return ply_session_run(session, &run, ret);
}

/* Its output and code; the output is valid until the next. */
static inline const char *out(const char *command, int code)
{
	static char *kept;
	struct ply_observation o;
	int r = try(command, LONG, &o);

	ck_assert_msg(r == 0, "%s: %s", command, ply_error());
	ck_assert(o.exit_code_known);
	ck_assert_msg(o.exit_code == code, "%s: %d, output '%s'", command, o.exit_code,
		      o.output.data);
	free(kept);
	kept = o.output.data;
	return kept;
}

#define gives(command, expected) ck_assert_str_eq(out(command, 0), expected)

/* A command that is still running after a moment. */
static inline void hangs(const char *command, const char *ready)
{
	const char *expect[] = { ready };
	const struct ply_session_run start = { .command = command,
					       .timeout = LONG,
					       .interactive = true,
					       .expect = expect,
					       .n_expect = 1 };
	struct ply_observation o;

	ok(ply_session_run(session, &start, &o));
	ck_assert_int_eq(o.matched, 0);
	ply_observation_free(&o);
}

/* A command that goes on: what it has printed by then, however long a busy machine takes. */
static inline void goes_on(const char *command, const char *seen)
{
	bool all = false;

	for (int i = 0; i < 200 && !all; i++) { /* a minute */
		struct ply_observation o;

		ck_assert_int_eq(try(i ? "echo not run" : command, 0.3, &o), PLY_TIMEOUT);
		all = strcmp(o.output.data, seen) == 0;
		ck_assert_msg(strncmp(seen, o.output.data, strlen(o.output.data)) == 0,
			      "%s: '%s', wanted '%s'", command, o.output.data, seen);
		ply_observation_free(&o);
	}
	ck_assert_msg(all, "%s: there is no '%s'", command, seen);
}

/* For another thread: until the command has made this file. */
static inline void wait_for_file(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (int i = 0; i < 60000 && access(path, F_OK) < 0; i++) /* a minute */
		usleep(1000);
}

static inline void interrupt(void)
{
	ok(ply_session_interrupt(session, 0.2, 3, NULL));
}
