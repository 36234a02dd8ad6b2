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

/* Room for a path (4 KiB) and words around it; longer sentences are cut. */
#define SENTENCE_MAX 5120

struct sentence {
	char text[SENTENCE_MAX];
};
void sentence_get(struct sentence *ret);
void sentence_put(const struct sentence *s);
/*
 * To the end of the block: the sentence stays what it is, whatever fails in between. For cleaning
 * up after a failure, whose sentence is the one that counts.
 */
#define KEEP_SENTENCE                                                            \
	__attribute__((cleanup(sentence_put))) struct sentence kept_sentence_; \
	sentence_get(&kept_sentence_)

/* What the caller gave ply_cancel_on, for poll: -1 if nothing (poll skips that). */
int cancel_fd(void);

/* Takes copies; PLY_NO_MEMORY. */
int text_set(struct ply_text *text, const void *data, size_t len);
int text_append(struct ply_text *text, const void *data, size_t len); /* no room to spare */
int list_append(struct ply_list *list, const char *item, size_t len);
/* What a caller gets: an empty one has its NULL, too. */
int list_end(struct ply_list *list);
/* Is all of it one number, as strtod has them? In the C locale, whatever the program's is. */
bool text_is_number(const char *text, double *ret);
