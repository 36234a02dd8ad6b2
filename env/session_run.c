/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The verbs of the session engine (session.h). One thread at a time owns a shell: who runs a
 * command, or interrupts one that nobody waits for any more. Others leave a word and wake it.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "env/session_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- output ---- */

/* How much of the first len bytes is handed out, and says whether that is not all. */
static size_t within_limit(struct shell *s, size_t len, struct ply_observation *ret)
{
	ret->truncated = s->truncated;
	return s->truncated ? MIN(len, s->limit) : len;
}

/* Up to three bytes from p, at most to `end`, until no character is cut there. */
static const char *whole(const char *p, const char *end)
{
	for (int i = 0; i < 3 && p != end && ((unsigned char)*p & 0xc0) == 0x80; i++)
		p += end < p ? -1 : 1;
	return p;
}

/* The two ends of what is too long to be told as a whole. */
static int copy_ends(struct shell *s, size_t each, struct ply_text *ret)
{
	const char *data = s->out.data, *end = data + s->out.len;
	const char *head = whole(data + each, data), *tail = whole(end - each, end);
	char between[80];
	int n = snprintf(between, sizeof(between), "\n[... %s%td byte%s left out ...]\n",
			 s->truncated ? "more than " : "", tail - head,
			 tail - head == 1 ? " is" : "s are");
	int r = text_set(ret, data, (size_t)(head - data));

	if (r == 0)
		r = text_append(ret, between, (size_t)n);
	return r < 0 ? r : text_append(ret, tail, (size_t)(end - tail));
}

/* A command that goes on has its output still to come: here is a copy, as far as it is told. */
static int copy_output(struct shell *s, struct ply_observation *ret)
{
	size_t len = within_limit(s, s->out.len, ret);
	size_t each = s->limit ? MIN(s->partial, s->limit / 2) : s->partial;

	if (s->partial && s->out.len / 2 > each)
		return copy_ends(s, each, &ret->output);
	return text_set(&ret->output, s->out.data ?: "", len);
}

/* Takes the first len bytes away, of which the first `keep` are the output. */
static int take(struct shell *s, size_t keep, size_t len, struct ply_observation *ret)
{
	int r = buffer_take(&s->out, within_limit(s, keep, ret), len, &ret->output);

	if (r == 0)
		s->truncated = false;
	s->cut = SIZE_MAX; /* what is left is the next one's, all of it */
	return r;
}

/* All output, but for what came after a SIGKILL. */
static int take_output(struct shell *s, struct ply_observation *ret)
{
	size_t len = MIN(s->out.len, s->cut);

	return take(s, len, len, ret);
}

/* In front of it: the status and sentence that are kept when that fails, too. */
static int with_output(struct shell *s, struct ply_observation *ret, int status)
{
	int r = copy_output(s, ret);

	return r < 0 ? r : status;
}

/* ---- life ---- */

static void freep_shell(struct shell **s)
{
	shell_free(*s);
}

static int start(struct shell *s, const struct shell_options *o, int cancel,
		 struct ply_text *ret_output)
{
	_cleanup_(ply_text_free) struct ply_text first = { 0 };
	struct goal g = { .end = o->timeout > 0 ? now_seconds() + o->timeout : -1,
			  .cancel = cancel };
	int r;

	r = shell_spawn(s, o);
	if (r < 0)
		return r;
	r = shell_first_command(o, &first);
	if (r < 0)
		return r;
	r = shell_type_command(s, first.data, first.len, NO_CHECK);
	if (r < 0)
		return r;
	r = shell_wait(s, &g);
	if (r == PLY_TIMEOUT)
		fail(r,
		     "the session's shell was not ready after %g s: its startup files (~/.bashrc) "
		     "wait for something, or want more time",
		     o->timeout);
	if (r == PLY_CANCELLED)
		fail(r, "the start of the session was cancelled");
	if (r < 0 && ret_output) {
		struct ply_observation seen = { 0 };

		r = with_output(s, &seen, r);
		*ret_output = seen.output;
	}
	if (r < 0)
		return r;
	s->status = 0;
	if (ret_output)
		return buffer_take(&s->out, s->out.len, s->out.len, ret_output);
	s->out.len = 0;
	return 0;
}

int shell_start(const struct shell_options *o, int cancel, struct shell **ret,
		struct ply_text *ret_output)
{
	_cleanup_(freep_shell) struct shell *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return fail_memory();
	s->master = s->slave = s->text = s->reports = s->wake = s->children = s->siblings = -1;
	s->cut = s->changed_at = SIZE_MAX;
	s->limit = o->output_limit;
	s->partial = o->partial;
	s->owed = true; /* bash's own prompt, before our first line */
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	s->path = strdup(o->path);
	if (!s->path)
		return fail_memory();
	r = start(s, o, cancel, ret_output);
	if (r < 0)
		return r;
	*ret = TAKE_PTR(s);
	return 0;
}

static void wake(struct shell *s)
{
	(void)eventfd_write(s->wake, 1); /* fails only when it is awake anyway */
}

/* Under s->lock. */
static int own_locked(struct shell *s)
{
	if (s->ending)
		return fail(PLY_SESSION_GONE, "the session was ended");
	if (s->owned)
		return fail(PLY_STATE, "the session is busy: another thread is running something");
	if (s->gone)
		return shell_gone(s);
	s->owned = true;
	return 0;
}

static int own(struct shell *s)
{
	LOCK_GUARD(&s->lock);
	return own_locked(s);
}

static void disown(struct shell *s)
{
	LOCK_GUARD(&s->lock);
	s->owned = false;
	if (s->asked)
		wake(s); /* who owns it next may be faster than who asked */
	pthread_cond_broadcast(&s->changed);
}

bool shell_is_alive(struct shell *s)
{
	LOCK_GUARD(&s->lock);
	if (s->ending || s->gone)
		return false;
	if (!s->owned) {
		(void)proc_wait(&s->proc, 0); /* PLY_TIMEOUT: it lives */
		s->gone = s->proc.ended;
	}
	return !s->gone;
}

/* Interactive bash ends at once when its terminal hangs up; its EXIT trap may take a moment. */
#define HANGUP_SECONDS 0.1

void shell_hang_up(struct shell *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->ending) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	s->ending = true;
	wake(s);
	while (s->owned || s->asked)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);

	pty_close(s);
	LOCK_GUARD(&s->lock);
	s->patience = now_seconds() + HANGUP_SECONDS;
}

int shell_end(struct shell *s)
{
	double until;
	int r = 0;

	shell_hang_up(s);
	pthread_mutex_lock(&s->lock);
	until = s->patience;
	s->patience = 0;
	pthread_mutex_unlock(&s->lock);
	if (until == 0)
		return 0;
	if (s->proc.pid) {
		/* What is left is killed. */
		(void)proc_wait(&s->proc, MAX(until - now_seconds(), 0));
		r = proc_kill(&s->proc);
		proc_release(&s->proc);
	}
	return r;
}

void shell_free(struct shell *s)
{
	if (!s)
		return;
	(void)shell_end(s); /* what cannot be killed now, the keeper kills with its own end */
	closep(&s->text);
	closep(&s->reports);
	closep(&s->wake);
	closep(&s->children);
	closep(&s->siblings);
	ply_text_free(&s->ps1);
	ply_text_free(&s->prompt);
	ply_text_free(&s->complaint);
	free(s->out.data);
	free(s->reported.data);
	free(s->path);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* ---- running ---- */

static int set_exit_code(struct shell *s, struct ply_observation *ret)
{
	int code = s->inner ? inner_exit_code(s) : s->repaired ? PLY_NO_EXIT_CODE : s->code;

	if (code < 0 && code != PLY_NO_EXIT_CODE)
		return code;
	ret->exit_code_known = code >= 0;
	ret->exit_code = MAX(code, -1);
	return 0;
}

static int conclude(struct shell *s, const struct ply_session_run *run, int matched,
		    const struct goal *g, struct ply_observation *ret)
{
	int r;

	ret->matched = matched ? g->match.index : -1;
	if (matched) {
		r = take(s, g->match.start, g->match.end, ret);
		if (r < 0)
			return r;
		ret->exit_code = 0;
		return 0;
	}
	if (s->refused) {
		r = text_set(&ret->output, s->complaint.data, s->complaint.len);
		if (r < 0)
			return r;
		ret->exit_code = 2;
		while (s->complaint.len && s->complaint.data[s->complaint.len - 1] == '\n')
			s->complaint.data[--s->complaint.len] = '\0';
		return fail(PLY_SYNTAX, "bash cannot parse the command, nothing of it was run: %s",
			    s->complaint.data);
	}
	r = take_output(s, ret);
	if (r < 0)
		return r;
	if (run->check == PLY_CHECK_IGNORE) {
		ret->exit_code = -1;
		return 0;
	}
	if (s->inner && (run->interactive || run->interactive_quit)) {
		ret->exit_code = 0; /* as after a pattern */
		return 0;
	}
	r = set_exit_code(s, ret);
	if (r < 0 || run->check != PLY_CHECK_RAISE)
		return r;
	if (!ret->exit_code_known)
		return fail(PLY_NO_EXIT_CODE, "the command ran, its exit code could not be told");
	if (ret->exit_code)
		return fail(PLY_COMMAND_FAILED, "the command failed with exit code %d",
			    ret->exit_code);
	return 0;
}

static int run_owned(struct shell *s, const struct ply_session_run *run, size_t len, int cancel,
		     struct ply_observation *ret)
{
	_cleanup_(expect_freep) struct expect *expect = NULL;
	struct goal g = { .end = run->timeout > 0 ? now_seconds() + run->timeout : -1,
			  .cancel = cancel };
	bool input = run->interactive || run->interactive_quit;
	int r;

	r = expect_new(run->expect, run->n_expect, &expect);
	if (r < 0)
		return r;
	/* It may have become idle, or have ended, since somebody last waited. */
	r = shell_take_reports(s);
	if (r < 0)
		return r;

	if (!s->idle && !input && !inner_waits(s)) {
		r = shell_wait(s, &g);
		if (r == PLY_TIMEOUT)
			fail(r,
			     "what was run before goes on after another %g seconds, nothing was "
			     "run: interrupt it",
			     run->timeout);
		if (r < 0)
			return with_output(s, ret, r);
	}
	if (!s->idle && input) {
		/* For the program that runs. */
		r = shell_type_input(s, &g, run->command, len);
		if (r == 0 && !g.stop)
			r = shell_type_input(s, &g, "\n", 1);
	} else if (!s->idle) {
		r = inner_type(s, &g, run->command, len);
	} else {
		pty_flush(s); /* the same terminal for every command */
		r = shell_type_command(s, run->command, len, input ? NO_CHECK : CHECK_SYNTAX);
	}
	if (r < 0)
		return r;
	g.expect = expect;
	r = shell_wait(s, &g);
	if (r == PLY_TIMEOUT)
		fail(r, "the command goes on after %g seconds: interrupt it, or wait for it",
		     run->timeout);
	if (r < 0)
		return with_output(s, ret, r);
	return conclude(s, run, r == MATCHED, &g, ret);
}

int shell_run(struct shell *s, const struct ply_session_run *run, int cancel,
	      struct ply_observation *ret)
{
	size_t len = run->len ? run->len : run->command ? strlen(run->command) : 0;
	bool input = run->interactive || run->interactive_quit;
	int r;

	*ret = (struct ply_observation){ .matched = -1, .exit_code = -1 };
	if (run->interactive && run->interactive_quit)
		return fail(PLY_INVALID, "a command cannot be interactive and interactive_quit");
	if (!input && memchr(run->command ?: "", '\0', len))
		return fail(PLY_INVALID, "a command for bash cannot hold a NUL byte");
	r = own(s);
	if (r < 0)
		return r;
	r = run_owned(s, run, len, cancel, ret);
	disown(s);
	return r;
}

static int settle_owned(struct shell *s, double seconds, struct ply_observation *ret)
{
	struct goal g = { .end = now_seconds() + seconds, .cancel = -1 };
	struct ply_observation rest = { 0 };
	int r = shell_wait(s, &g);

	if (r >= 0)
		r = take_output(s, &rest);
	if (r == 0)
		r = text_append(&ret->output, rest.output.data, rest.output.len);
	if (r == 0) {
		ret->truncated |= rest.truncated;
		r = set_exit_code(s, ret);
	}
	ply_observation_free(&rest);
	return r;
}

int shell_settle(struct shell *s, double seconds, struct ply_observation *ret)
{
	int r = own(s);

	if (r < 0)
		return r;
	r = settle_owned(s, seconds, ret);
	disown(s);
	return r;
}

/* ---- interrupting ---- */

static int interrupt_owned(struct shell *s, const struct shell_interrupt *how,
			   struct ply_observation *ret)
{
	_cleanup_(expect_freep) struct expect *expect = NULL;
	struct goal g = { .end = -1, .cancel = -1 };
	struct stop stop;
	int r;

	r = expect_new(how->expect, how->n_expect, &expect);
	if (r < 0)
		return r;
	r = shell_take_reports(s);
	if (r < 0)
		return r;
	stop_begin(&stop, how);
	g.expect = expect;
	g.stop = s->idle ? NULL : &stop;
	g.mine = true;
	r = shell_wait(s, &g);
	if (r < 0)
		return with_output(s, ret, r);
	ret->matched = r == MATCHED ? g.match.index : -1;
	return r == MATCHED ? take(s, g.match.start, g.match.end, ret) : take_output(s, ret);
}

int shell_interrupt(struct shell *s, const struct shell_interrupt *how, struct ply_observation *ret)
{
	struct stop stop;
	int r;

	*ret = (struct ply_observation){ .matched = -1, .exit_code = -1 };
	pthread_mutex_lock(&s->lock);
	while (s->asked) /* another thread's: it takes no longer than its ladder */
		pthread_cond_wait(&s->changed, &s->lock);
	stop_begin(&stop, how);
	if (s->owned && !s->ending) {
		s->asked = &stop;
		wake(s);
		/* Its thread may be done before it hears of us. */
		while (s->owned && !stop.done)
			pthread_cond_wait(&s->changed, &s->lock);
		if (s->asked == &stop) /* when done, it may be the next one's already */
			s->asked = NULL;
		pthread_cond_broadcast(&s->changed);
	}
	r = stop.done ? 0 : own_locked(s);
	pthread_mutex_unlock(&s->lock);
	if (stop.done)
		return stop.result < 0 ? fail(stop.result, "%s", stop.why) : 0;
	if (r < 0)
		return r;
	r = interrupt_owned(s, how, ret);
	disown(s);
	return r;
}
