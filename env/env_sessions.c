/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The shells of an environment: ply_env_start_session and its kin, on sessions (session.c). The
 * list is under e->lock; who uses a shell holds a reference, so that ending the session does not
 * wait for a command: it ends that, too.
 *
 * Nothing of what is run is kept in a history, and HISTFILE is /dev/null in every shell, so
 * nobody's history file is touched: upstream's isolate_history, always on.
 */

#include "env/env_sessions.h"

#include <stdlib.h>
#include <string.h>

#include "env/env_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* After a timeout: 0.2 s for each of three Ctrl-C, as swe-rex has it, then harder. */
#define INTERRUPT_WINDOW 0.2
#define INTERRUPT_TRIES 3

#define HURRY_MS 1000 /* a shell is usually there long before */

static void session_unrefp(struct ply_session **s)
{
	session_unref(*s);
}

/* Under e->lock; borrowed. */
static struct ply_session *find(struct ply_env *e, const char *name)
{
	for (size_t i = 0; i < e->n_sessions; i++)
		if (strcmp(session_name(e->sessions[i]), name) == 0)
			return e->sessions[i];
	return NULL;
}

/* Room for one more, at powers of two: as list_append. Under e->lock. */
static int make_room(struct ply_env *e)
{
	struct ply_session **p;

	if (e->n_sessions & (e->n_sessions + 1))
		return 0;
	p = realloc(e->sessions, (e->n_sessions * 2 + 1) * sizeof(*p));
	if (!p)
		return fail_memory();
	e->sessions = p;
	return 0;
}

/* Starts one and puts it on the list. Within e, under e->lock. */
static int add_shell(struct ply_env *e, const char *name, const char *shell)
{
	_cleanup_(session_unrefp) struct ply_session *s = NULL;
	int r;

	r = make_room(e);
	if (r == 0)
		r = ply_session_new(e, name, &s);
	if (r == 0 && shell)
		r = ply_session_set(s, "shell", shell);
	if (r == 0)
		r = session_start(s, NULL);
	if (r < 0)
		return r;
	e->sessions[e->n_sessions++] = TAKE_PTR(s);
	return 0;
}

bool ply_env_has_session(struct ply_env *e)
{
	LOCK_GUARD(&e->lock);
	return e->has_session;
}

static int start_first(struct ply_env *e, const char *shell)
{
	int r;

	LOCK_GUARD(&e->lock);
	if (e->has_session)
		return fail(PLY_STATE, "Session already active");
	r = add_shell(e, "main", shell);
	if (r < 0)
		return r;
	e->has_session = true;
	return 0;
}

int ply_env_start_session(struct ply_env *e, const char *shell)
{
	int r;

	r = env_enter(e);
	if (r < 0)
		return r;
	r = start_first(e, shell);
	env_leave(e);
	return r;
}

int env_end_sessions(struct ply_env *e, void (*hurry)(struct ply_env *e))
{
	struct ply_session **list;
	struct timespec until;
	size_t n;
	int r = 0;

	/* Whoever starts one has it until the startup files are read. */
	for (until = wait_until(HURRY_MS); hurry; until = wait_until(HURRY_MS)) {
		if (pthread_mutex_timedlock(&e->lock, &until) == 0)
			break;
		hurry(e);
	}
	if (!hurry)
		pthread_mutex_lock(&e->lock);
	list = TAKE_PTR(e->sessions);
	n = e->n_sessions;
	e->n_sessions = 0;
	e->has_session = false;
	pthread_mutex_unlock(&e->lock);

	for (size_t i = 0; i < n; i++)
		session_hang_up(list[i]);
	for (size_t i = 0; i < n; i++) {
		int s = ply_session_end(list[i]);

		r = r < 0 ? r : s;
		session_unref(list[i]);
	}
	free(list);
	return r;
}

int ply_env_end_session(struct ply_env *e)
{
	return env_end_sessions(e, NULL);
}

static int start_another(struct ply_env *e, const char *name)
{
	LOCK_GUARD(&e->lock);
	if (!e->has_session)
		return fail(PLY_STATE, "No active session");
	if (find(e, name))
		return fail(PLY_EXISTS, "Shell '%s' already exists", name);
	return add_shell(e, name, NULL);
}

int ply_env_create_shell(struct ply_env *e, const char *name)
{
	int r;

	r = env_enter(e);
	if (r < 0)
		return r;
	r = start_another(e, name);
	env_leave(e);
	return r;
}

int ply_env_list_shells(struct ply_env *e, struct ply_list *ret)
{
	int r;

	*ret = (struct ply_list){ 0 };
	LOCK_GUARD(&e->lock);
	r = list_end(ret);
	for (size_t i = 0; r == 0 && i < e->n_sessions; i++) {
		const char *name = session_name(e->sessions[i]);

		r = list_append(ret, name, strlen(name));
	}
	if (r < 0)
		ply_list_free(ret);
	return r;
}

/* timeout <= 0: becomes the environment's, which stays what it is while there is a session. */
static int get(struct ply_env *e, const char *name, double *timeout, struct ply_session **ret)
{
	struct ply_session *s;

	LOCK_GUARD(&e->lock);
	if (!e->has_session)
		return fail(PLY_STATE, "No active session");
	s = find(e, name);
	if (!s)
		return fail(PLY_NOT_FOUND, "no shell is called '%s': create_shell makes one", name);
	if (!(*timeout > 0))
		*timeout = e->timeout;
	*ret = session_ref(s);
	return 0;
}

/* The output, without its last newline. */
static void take_output(struct ply_observation *o, struct ply_result *ret)
{
	ret->out = o->output;
	ret->truncated = o->truncated;
	o->output = (struct ply_text){ 0 };
	if (ret->out.len && ret->out.data[ret->out.len - 1] == '\n')
		ret->out.len--;
	if (ret->out.data)
		ret->out.data[ret->out.len] = '\0';
}

/*
 * What the command printed up to its end, in place of what it had printed when its time was up;
 * but for the newline that bash prints then. None: another thread has taken that.
 */
static void take_rest(struct ply_observation *rest, struct ply_observation *o)
{
	struct ply_text *out = &rest->output;

	if (out->len <= o->output.len)
		return;
	if (out->len > 1 && memcmp(out->data + out->len - 2, "\n\n", 2) == 0)
		out->data[--out->len] = '\0';
	ply_text_free(&o->output);
	o->output = *out;
	o->truncated = rest->truncated;
	*out = (struct ply_text){ 0 };
}

int ply_env_run_in_session(struct ply_env *e, const char *command, const char *shell,
			   double timeout, struct ply_result *ret)
{
	static const char words[] = "Command timed out";
	_cleanup_(session_unrefp) struct ply_session *s = NULL;
	_cleanup_(ply_observation_free) struct ply_observation o = { 0 }, rest = { 0 };
	struct ply_session_run run = { .command = command, .check = PLY_CHECK_SILENT };
	struct ply_result result = { 0 };
	int r, status;

	*ret = result;
	r = get(e, shell ?: "main", &timeout, &s);
	if (r < 0)
		return r;
	run.timeout = timeout;
	status = session_run(s, &run, cancel_fd(), &o);
	if (status == PLY_TIMEOUT || status == PLY_CANCELLED) {
		r = session_interrupt(s, INTERRUPT_WINDOW, INTERRUPT_TRIES, &rest);
		if (r == 0 && status == PLY_CANCELLED)
			return fail(status, "the command was cancelled");
		take_rest(&rest, &o);
		if (r == PLY_SESSION_GONE)
			take_output(&o, ret);
		if (r < 0)
			return r;
		result.timed_out = true;
		result.exit_code = 124;
	} else if (status < 0 && status != PLY_SYNTAX) { /* whose output is bash's words */
		take_output(&o, ret);
		return status;
	} else {
		result.exit_code = o.exit_code;
	}
	r = text_set(&result.err, words, result.timed_out ? sizeof(words) - 1 : 0);
	if (r < 0)
		return r;
	take_output(&o, &result);
	*ret = result;
	return 0;
}
