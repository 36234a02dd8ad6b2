/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What env_sessions.c needs of session.c beyond plyfs.h: sessions that several threads may hold. */

#include "env/plyfs.h"

/*
 * ply_env_end_session, which waits for a session that another thread is starting: hurry, called
 * each second meanwhile, may end that.
 */
int env_end_sessions(struct ply_env *e, void (*hurry)(struct ply_env *e));

struct ply_session *session_ref(struct ply_session *s);
void session_unref(struct ply_session *s); /* the last one ends it; NULL is fine */
const char *session_name(const struct ply_session *s);
/* ply_session_start, for who is within the environment (env_enter) already. */
int session_start(struct ply_session *s, struct ply_text *ret_output);
/* As shell_hang_up; nothing before the start. */
void session_hang_up(struct ply_session *s);
/* ply_session_run; cancel as in session.h. */
int session_run(struct ply_session *s, const struct ply_session_run *run, int cancel,
		struct ply_observation *ret);
/* ply_session_interrupt, with all that is known of the output. */
int session_interrupt(struct ply_session *s, double timeout, int tries,
		      struct ply_observation *ret);
