/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Request bodies of the SWE-ReX protocol: JSON objects with typed fields, read as leniently as its
 * server (pydantic) does: numbers may be strings or booleans, booleans may be words. What does not
 * fit is answered with 422 and the same list of details.
 */

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

enum model_type {
	MODEL_STRING, /* const char * and, at offset_len, size_t; without it no NUL fits */
	MODEL_STRING_OR_NULL,
	MODEL_FLOAT,		 /* double */
	MODEL_FLOAT_OR_NULL,	 /* double; null is NAN */
	MODEL_INT,		 /* int */
	MODEL_BOOL,		 /* bool */
	MODEL_STRINGS,		 /* json_t *, an array of strings without NULs */
	MODEL_STRING_OR_STRINGS, /* json_t * */
	MODEL_MAP_OR_NULL,	 /* json_t *, an object of strings, or NULL */
	MODEL_WORD,		 /* int: index into words */
};

struct model_field {
	const char *name;
	enum model_type type;
	size_t offset, offset_len; /* in the struct to fill; it holds the defaults already */
	bool required;
	const char *const *words; /* MODEL_WORD: what it may be, NULL at the end */
};

/* A body under way: the object and what is wrong with it. */
struct model {
	json_t *object; /* owned; strings and arrays of the filled struct live as long as it does */
	json_t *detail; /* owned: an array, empty when all is well; short of one without memory */
	/* Of model_tag: it stands in the place of each field; borrowed; NULL: there is none. */
	const char *tag;
	bool is_wrong;	/* whatever the details say */
	bool no_memory; /* it may be right: nobody knows */
};

/*
 * Any JSON, and Infinity and NaN besides, which Python's clients write. *ret is given. -EINVAL: it
 * is none, at why->position; -ENOMEM.
 */
int model_load(const char *body, size_t len, json_t **ret, json_error_t *why);
/* JSON as text, compact: malloced, given. NULL: no memory. */
char *model_dump(const json_t *v, size_t *ret_len);
/* The object, or a detail for what is none. Release in any case. */
void model_parse(struct model *m, const char *body, size_t len);
/*
 * The value of the field that tells the kinds of body apart: index into words, or -1 and a detail.
 * A missing one counts as the first word.
 */
int model_tag(struct model *m, const char *name, const char *const *words);
/* Fills *to; each field that does not fit adds a detail, or one for each of its items. */
void model_read(struct model *m, const struct model_field *fields, size_t n, void *to);
bool model_ok(const struct model *m);
/* {"detail": [...]}: malloced, given; NULL: no memory. */
char *model_complaint(const struct model *m, size_t *ret_len);
void model_release(struct model *m);
