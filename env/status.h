/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How libplyfs says what went wrong: a negative enum ply_status and one sentence, per thread
 * (plyfs.h). Everything under env/ that is part of the library ends a failure with one of these.
 */

#include "env/plyfs.h"

/* Keeps the sentence and returns status. errno is left alone. */
int fail(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "WHAT: strerror", with the status that belongs to err (an errno, positive). */
int fail_errno(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int fail_memory(void);
/* Puts "PREFIX: " before the sentence that is there; returns status. */
int fail_in(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What the caller gave ply_cancel_on, for poll: -1 if nothing (poll skips that). */
int cancel_fd(void);

/* Takes copies; PLY_NO_MEMORY. */
int text_set(struct ply_text *text, const void *data, size_t len);
int text_append(struct ply_text *text, const void *data, size_t len); /* no room to spare */
int list_append(struct ply_list *list, const char *item, size_t len);
