/* SPDX-License-Identifier: Apache-2.0 */

/* See model.h. The words of the details are pydantic's: people search for them. */

#include "env/serve/model.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "env/json_memory.h"
#include "store/base/util.h"

/*
 * More say nothing new: each item of a list may be wrong, and a list may have millions of them.
 * Every detail has its input, that of a field that is missing the whole body.
 */
#define DETAILS_MAX 100
#define NO_STRING "Input should be a valid string"

static bool is_full(const struct model *m)
{
	return json_array_size(m->detail) >= DETAILS_MAX;
}

/* loc and ctx are taken; ctx NULL: none. */
static void complain_with(struct model *m, const char *type, const char *msg, json_t *loc,
			  json_t *input, json_t *ctx)
{
	json_t *d = json_pack("{s:s, s:o, s:s}", "type", type, "loc", loc, "msg", msg);

	m->is_wrong = true;
	/* Out of memory: one detail less. */
	if (d && !is_full(m) &&
	    json_object_set(d, "input", input ? input : json_null()) == 0 &&
	    (!ctx || json_object_set(d, "ctx", ctx) == 0))
		(void)json_array_append(m->detail, d);
	json_decref(d);
	json_decref(ctx);
}

static void complain(struct model *m, const char *type, const char *msg, json_t *loc, json_t *input)
{
	complain_with(m, type, msg, loc, input, NULL);
}

/* Of all (NULL), of a field, or of that one of the kinds (branch; NULL) that a field may be. */
static json_t *loc_of(const struct model *m, const char *name, const char *branch)
{
	const char *const words[] = { "body", name ? m->tag : NULL, name, branch };
	json_t *loc = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (words[i]) /* out of memory: a shorter one */
			(void)json_array_append_new(loc, json_string(words[i]));
	return loc;
}

/* 'a', 'b' or 'c': the words, quoted, with this before the last. Malloced; NULL: no memory. */
static char *words_text(const char *const *words, const char *before_last)
{
	char *text = NULL;

	for (size_t i = 0; words[i]; i++) {
		const char *between = i == 0 ? "" : words[i + 1] ? ", " : before_last;
		char *longer;

		if (asprintf(&longer, "%s%s'%s'", text ? text : "", between, words[i]) < 0)
			longer = NULL;
		free(text);
		text = longer;
		if (!text)
			return NULL;
	}
	return text;
}

/* Length of what Python's JSON has for a float at p, and JSON has not; 0: it is none. */
static size_t literal_at(const char *p, const char *end)
{
	static const char *const words[] = { "Infinity", "-Infinity", "NaN" };

	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		size_t n = strlen(words[i]);

		if ((size_t)(end - p) >= n && memcmp(p, words[i], n) == 0)
			return n;
	}
	return 0;
}

/* How many of these bytes are at p. */
static size_t span(const char *p, const char *end, const char *of)
{
	const char *at = p;

	while (at < end && *at && strchr(of, *at))
		at++;
	return (size_t)(at - p);
}

/* So many may be too many for an int64_t; of more than 17 a double makes nothing else. */
#define DIGITS 19
#define DIGITS_KEPT 17

/* A number that may be larger than jansson can hold, as one that it can: the nearest double. */
static char *put_number(char *to, const char *p, size_t n)
{
	size_t sign = *p == '-', digits = span(p + sign, p + n, "0123456789");
	char number[64], *rest;

	if (digits >= DIGITS && sign + digits == n) {
		to = mempcpy(to, p, sign + DIGITS_KEPT);
		return to + sprintf(to, "e%zu", MIN(digits, (size_t)DBL_MAX_10_EXP) - DIGITS_KEPT);
	}
	(void)snprintf(number, sizeof(number), "%.*s", (int)MIN(n, sizeof(number) - 1), p);
	if (n < sizeof(number) && isinf(strtod(number, &rest)) && !*rest)
		return stpcpy(to, *p == '-' ? "-1e308" : "1e308");
	return mempcpy(to, p, n);
}

/*
 * With those literals as strings, which are numbers to number_of, and numbers as put_number has
 * them. NULL: no memory.
 */
static char *rewrite(const char *body, size_t len, size_t *ret_len)
{
	char *copy = malloc(len * 2 + 1), *to = copy; /* "NaN": 3 bytes become 5 */
	const char *end = body + len;
	bool quoted = false;

	for (const char *p = body; copy && p < end;) {
		size_t n = quoted ? 0 : literal_at(p, end);

		if (n) {
			*to++ = '"';
			to = mempcpy(to, p, n);
			*to++ = '"';
			p += n;
			continue;
		}
		n = quoted || !strchr("-0123456789", *p) ? 0 : span(p, end, "0123456789+-.eE");
		if (n) {
			to = put_number(to, p, n);
			p += n;
			continue;
		}
		quoted ^= *p == '"';
		if (quoted && *p == '\\' && p + 1 < end)
			*to++ = *p++;
		*to++ = *p++;
	}
	*ret_len = (size_t)(to - copy);
	return copy;
}

static int load(const char *text, size_t len, json_t **ret, json_error_t *why)
{
	json_t *v = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, why);

	if (json_memory_was_short()) {
		json_decref(v);
		return -ENOMEM;
	}
	*ret = v;
	return v ? 0 : -EINVAL;
}

int model_load(const char *body, size_t len, json_t **ret, json_error_t *why)
{
	_cleanup_free_ char *copy = NULL;
	int r = load(body, len, ret, why);

	if (r != -EINVAL || !(memmem(body, len, "Infinity", 8) || memmem(body, len, "NaN", 3) ||
			      json_error_code(why) == json_error_numeric_overflow))
		return r;
	copy = rewrite(body, len, &len);
	return copy ? load(copy, len, ret, why) : -ENOMEM;
}

struct dump {
	char *data;
	size_t len, room;
	bool no_memory; /* libjansson asks on all the same */
};

static int dump_piece(const char *data, size_t len, void *arg)
{
	struct dump *d = arg;
	char *p;

	if (d->no_memory)
		return -1;
	if (d->len + len + 1 > d->room) {
		size_t room = MAX(2 * d->room, d->len + len + 1);

		p = realloc(d->data, room);
		if (!p) {
			d->no_memory = true;
			return -1;
		}
		d->data = p;
		d->room = room;
	}
	memcpy(d->data + d->len, data, len);
	d->len += len;
	d->data[d->len] = '\0';
	return 0;
}

char *model_dump(const json_t *v, size_t *ret_len)
{
	struct dump d = { 0 };

	if (json_dump_callback(v, dump_piece, &d, JSON_COMPACT | JSON_ENCODE_ANY) < 0 ||
	    d.no_memory || json_memory_was_short()) {
		free(d.data);
		return NULL;
	}
	*ret_len = d.len;
	return d.data;
}

void model_parse(struct model *m, const char *body, size_t len)
{
	json_error_t e = { 0 };
	int r = 0;

	*m = (struct model){ .detail = json_array(), .object = json_null() };
	if (len)
		r = model_load(body, len, &m->object, &e);
	if (r == -ENOMEM) {
		m->is_wrong = m->no_memory = true;
	} else if (json_is_null(m->object)) {
		complain(m, "missing", "Field required", loc_of(m, NULL, NULL), NULL);
	} else if (!m->object) {
		json_t *none = json_object();

		complain_with(m, "json_invalid", "JSON decode error",
			      json_pack("[si]", "body", e.position), none,
			      json_pack("{s:s}", "error", e.text));
		json_decref(none);
	} else if (!json_is_object(m->object)) {
		complain(m, "model_attributes_type",
			 "Input should be a valid dictionary or object to extract fields from",
			 loc_of(m, NULL, NULL), m->object);
	}
}

bool model_ok(const struct model *m)
{
	return !m->is_wrong;
}

void model_release(struct model *m)
{
	json_decref(m->object);
	json_decref(m->detail);
	*m = (struct model){ 0 };
}

char *model_complaint(const struct model *m, size_t *ret_len)
{
	json_t *all = json_pack("{s:O}", "detail", m->detail);
	char *text = all ? model_dump(all, ret_len) : NULL;

	json_decref(all);
	return text;
}

/* C would see the beginning alone. */
static bool has_nul(const json_t *v)
{
	return json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v);
}

static int word_of(json_t *v, const char *const *words)
{
	for (int i = 0; json_is_string(v) && !has_nul(v) && words[i]; i++)
		if (strcmp(words[i], json_string_value(v)) == 0)
			return i;
	return -1;
}

/* The tag is none of the words. */
static void complain_of_tag(struct model *m, const char *name, json_t *v, const char *const *words)
{
	_cleanup_free_ char *expected = words_text(words, ", "), *msg = NULL;
	size_t len;
	_cleanup_free_ char *other = json_is_string(v) ? NULL : model_dump(v, &len);
	const char *tag = json_is_string(v) ? json_string_value(v) : other;

	if (!expected || !tag ||
	    asprintf(&msg,
		     "Input tag '%s' found using '%s' does not match any of the expected tags: %s",
		     tag, name, expected) < 0) {
		msg = NULL;
		m->is_wrong = m->no_memory = true;
		return;
	}
	complain_with(m, "union_tag_invalid", msg, loc_of(m, NULL, NULL), m->object,
		      json_pack("{s:s++, s:s, s:s}", "discriminator", "'", name, "'", "tag", tag,
				"expected_tags", expected));
}

int model_tag(struct model *m, const char *name, const char *const *words)
{
	json_t *v = json_object_get(m->object, name);
	int i = v ? word_of(v, words) : 0;

	if (!model_ok(m))
		return -1;
	if (i < 0)
		complain_of_tag(m, name, v, words);
	else
		m->tag = words[i];
	return i;
}

/* Strings with white space around the number will do; hexadecimal ones are C's alone. */
static bool number_of(json_t *v, double *ret)
{
	static const char blank[] = " \t\n\r\f\v";
	const char *s = json_string_value(v);
	char *end;

	if (json_is_number(v)) {
		*ret = json_number_value(v);
	} else if (json_is_boolean(v)) {
		*ret = json_is_true(v);
	} else if (s && s[strspn(s, blank)] && !strpbrk(s, "xX(")) {
		*ret = strtod(s, &end);
		if (end[strspn(end, blank)] || has_nul(v))
			return false;
	} else {
		return false;
	}
	return true;
}

static int truth_of(json_t *v)
{
	static const char *const words[] = { "0", "off", "f", "false", "n", "no",
					     "1", "on",	 "t", "true",  "y", "yes" };
	const char *s = json_string_value(v);

	if (json_is_boolean(v))
		return json_is_true(v);
	if (json_is_number(v) && (json_number_value(v) == 0 || json_number_value(v) == 1))
		return json_number_value(v) == 1;
	for (size_t i = 0; s && !has_nul(v) && i < ARRAY_SIZE(words); i++)
		if (strcasecmp(s, words[i]) == 0)
			return i >= ARRAY_SIZE(words) / 2;
	return -1;
}

/* Of an array or an object; true for what is neither. */
static bool has_only_strings(json_t *v)
{
	size_t i;
	json_t *item;
	const char *key;

	json_object_foreach(v, key, item)
	{
		if (!json_is_string(item))
			return false;
	}
	json_array_foreach(v, i, item)
	{
		if (!json_is_string(item))
			return false;
	}
	return true;
}

/* place: its index or key, taken. */
static void complain_of_item(struct model *m, const struct model_field *f, const char *branch,
			     json_t *place, json_t *item)
{
	json_t *loc = loc_of(m, f->name, branch);

	(void)json_array_append_new(loc, place);
	complain(m, "string_type", NO_STRING, loc, item);
}

/* What of an array or an object is no string; branch: which of several kinds it is, or NULL. */
static void complain_of_items(struct model *m, const struct model_field *f, const char *branch,
			      json_t *v)
{
	size_t i;
	json_t *item;
	const char *key;

	json_object_foreach(v, key, item)
	{
		if (!json_is_string(item) && !is_full(m))
			complain_of_item(m, f, branch, json_string(key), item);
	}
	json_array_foreach(v, i, item)
	{
		if (!json_is_string(item) && !is_full(m))
			complain_of_item(m, f, branch, json_integer((json_int_t)i), item);
	}
}

/* A field's word that is none of those it may be. */
static void complain_of_word(struct model *m, const struct model_field *f, json_t *v)
{
	_cleanup_free_ char *expected = words_text(f->words, " or "), *msg = NULL;

	if (!expected || asprintf(&msg, "Input should be %s", expected) < 0) {
		msg = NULL;
		m->is_wrong = m->no_memory = true;
		return;
	}
	complain_with(m, "literal_error", msg, loc_of(m, f->name, NULL), v,
		      json_pack("{s:s}", "expected", expected));
}

static void complain_of_nul(struct model *m, const struct model_field *f, json_t *v)
{
	complain(m, "value_error", "Value error, embedded null byte", loc_of(m, f->name, NULL), v);
}

static void read_string(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	const char *s = json_string_value(v);
	size_t len = json_string_length(v);

	if (!s && !(json_is_null(v) && f->type == MODEL_STRING_OR_NULL)) {
		complain(m, "string_type", NO_STRING, loc_of(m, f->name, NULL), v);
		return;
	}
	if (!f->offset_len && has_nul(v)) {
		complain_of_nul(m, f, v);
		return;
	}
	memcpy(to + f->offset, &s, sizeof(s));
	if (f->offset_len)
		memcpy(to + f->offset_len, &len, sizeof(len));
}

static void read_float(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	double d = NAN;

	if (json_is_null(v) && f->type == MODEL_FLOAT_OR_NULL) {
		/* NAN */
	} else if (!number_of(v, &d)) {
		bool text = json_is_string(v);

		complain(m, text ? "float_parsing" : "float_type",
			 text ? "Input should be a valid number, unable to parse string as a number"
			      : "Input should be a valid number",
			 loc_of(m, f->name, NULL), v);
		return;
	}
	memcpy(to + f->offset, &d, sizeof(d));
}

static void read_int(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	bool number, whole;
	double d = 0;
	int i;

	number = number_of(v, &d);
	whole = number && d == floor(d) && !isinf(d);
	if (!whole && json_is_string(v))
		complain(m, "int_parsing",
			 "Input should be a valid integer, unable to parse string as an integer",
			 loc_of(m, f->name, NULL), v);
	else if (!whole && number)
		complain(m, "int_from_float",
			 "Input should be a valid integer, got a number with a fractional part",
			 loc_of(m, f->name, NULL), v);
	else if (!whole)
		complain(m, "int_type", "Input should be a valid integer",
			 loc_of(m, f->name, NULL), v);
	if (!whole)
		return;
	/* Python's have no end; nobody counts further than ours. */
	i = (int)fmin(fmax(d, INT_MIN), INT_MAX);
	memcpy(to + f->offset, &i, sizeof(i));
}

static void read_bool(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	int truth = truth_of(v);
	bool b = truth == 1;
	/* It might have been one: a word, or a number without a fraction. */
	bool near = json_is_string(v) ||
		    (json_is_number(v) && json_number_value(v) == floor(json_number_value(v)));

	if (truth < 0)
		complain(m, near ? "bool_parsing" : "bool_type",
			 near ? "Input should be a valid boolean, unable to interpret input"
			      : "Input should be a valid boolean",
			 loc_of(m, f->name, NULL), v);
	else
		memcpy(to + f->offset, &b, sizeof(b));
}

static void read_json(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	bool map = f->type == MODEL_MAP_OR_NULL, either = f->type == MODEL_STRING_OR_STRINGS;
	bool fits = map ? json_is_object(v) || json_is_null(v)
			: json_is_array(v) || (either && json_is_string(v));
	/* What is neither a string nor a list of them is wrong as the one and as the other. */
	const char *branch = either ? "list[str]" : NULL;

	if (either && !(fits && has_only_strings(v)))
		complain(m, "string_type", NO_STRING, loc_of(m, f->name, "str"), v);
	if (!fits) {
		complain(m, map ? "dict_type" : "list_type",
			 map ? "Input should be a valid dictionary"
			     : "Input should be a valid list",
			 loc_of(m, f->name, branch), v);
		return;
	}
	if (!has_only_strings(v)) {
		complain_of_items(m, f, branch, v);
		return;
	}
	for (size_t i = 0; f->type == MODEL_STRINGS && i < json_array_size(v); i++) {
		if (has_nul(json_array_get(v, i))) {
			complain_of_nul(m, f, v);
			return;
		}
	}
	if (json_is_null(v))
		v = NULL;
	memcpy(to + f->offset, &v, sizeof(v));
}

void model_read(struct model *m, const struct model_field *fields, size_t n, void *to)
{
	if (!model_ok(m))
		return;
	for (const struct model_field *f = fields; f < fields + n; f++) {
		json_t *v = json_object_get(m->object, f->name);
		int word;

		if (!v) {
			if (f->required)
				complain(m, "missing", "Field required", loc_of(m, f->name, NULL),
					 m->object);
			continue;
		}
		switch (f->type) {
		case MODEL_STRING:
		case MODEL_STRING_OR_NULL:
			read_string(m, f, v, to);
			break;
		case MODEL_FLOAT:
		case MODEL_FLOAT_OR_NULL:
			read_float(m, f, v, to);
			break;
		case MODEL_INT:
			read_int(m, f, v, to);
			break;
		case MODEL_BOOL:
			read_bool(m, f, v, to);
			break;
		case MODEL_WORD:
			word = word_of(v, f->words);
			if (word < 0)
				complain_of_word(m, f, v);
			else
				memcpy((char *)to + f->offset, &word, sizeof(word));
			break;
		default:
			read_json(m, f, v, to);
		}
	}
}
