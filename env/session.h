/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The engine of sessions: one bash on a terminal of its own, kept for many commands. It knows
 * processes (proc.h) and patterns (expect.h), but no environment and no store, so that a server
 * that stands alone uses the same. session.c makes plyfs.h's ply_session_* of it.
 *
 * How it works is told at the top of session_shell.c (what the shell is made to do) and of
 * session_wait.c (states, and how a command is ended).
 */

#include <stdbool.h>
#include <stddef.h>

#include "env/plyfs.h"
#include "env/proc.h"

struct shell;

struct shell_options {
	struct keeper *keeper;
	const char *path; /* of bash, 4.4 or newer; looked up in PATH without a '/' */
	const char *cwd;  /* NULL: the caller's */
	const char *const *env; /* "K=V", besides the caller's and ours; NULL: none */
	const char *const *sources; /* files to source, ~ and $ expanded; NULL: none */
	double timeout; /* of the start; 0: none */
	uint64_t output_limit; /* bytes kept of a command's output; 0: all */
	size_t partial; /* bytes told of each end of what a shell_run that fails has; 0: all */
	struct proc_limits limits;
	/* As env_ops.wrap. */
	int (*wrap)(void *arg, const char *const *argv, const char *const *env, char ***ret);
	void *wrap_arg;
};
/*
 * Options are borrowed for the call. ret_output (may be NULL): what bash's own startup files and
 * `sources` printed, also before they ended or hung. PLY_TIMEOUT, PLY_SESSION_GONE (it ended at
 * once), PLY_UNSUPPORTED (no bash, or too old), PLY_CANCELLED when cancel gets readable (-1: none),
 * and as proc_spawn; nothing is left running then.
 */
int shell_start(const struct shell_options *o, int cancel, struct shell **ret,
		struct ply_text *ret_output);
/*
 * ply_session_run; a shell within this one that waits for a command is as good as this one
 * (session_inner.c). cancel: PLY_CANCELLED when it gets readable, the command goes on (-1: none).
 * After a timeout or a cancel nothing is consumed: what ends the command has those bytes again, and
 * all of them (`partial`).
 */
int shell_run(struct shell *s, const struct ply_session_run *run, int cancel,
	      struct ply_observation *ret);
/*
 * After a shell_run that a pattern ended: waits up to `seconds` for the command's end; what it
 * printed since is appended to *ret, and its exit code set. PLY_TIMEOUT: it goes on, *ret is as it
 * was.
 */
int shell_settle(struct shell *s, double seconds, struct ply_observation *ret);

struct shell_interrupt {
	double window; /* seconds that each try has */
	int tries;     /* of Ctrl-C */
	/*
	 * SIGTERM before SIGKILL. What came after a SIGKILL (bash's "Killed") is kept for the next
	 * command's output.
	 */
	bool gentle;
	const char *const *expect; /* as in ply_session_run: enough, if seen */
	size_t n_expect;
};
/*
 * Until the shell itself is back. With nothing running: at once. Those of several threads are
 * served one after the other. Of *ret output, truncated and matched are set; empty and -1 when
 * another thread's shell_run has it: that ends with the output. PLY_TIMEOUT: the shell does not
 * react. PLY_SESSION_GONE: it ended the shell. Both have what was printed.
 */
int shell_interrupt(struct shell *s, const struct shell_interrupt *how,
		    struct ply_observation *ret);
bool shell_is_alive(struct shell *s);
/* Tells it to end; another thread's shell_run returns PLY_SESSION_GONE. */
void shell_hang_up(struct shell *s);
/* And ends it, a moment later, with all its processes. Of several: first shell_hang_up of all. */
int shell_end(struct shell *s);
void shell_free(struct shell *s); /* ends; NULL is fine */
