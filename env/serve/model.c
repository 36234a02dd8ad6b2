/* SPDX-License-Identifier: Apache-2.0 */

/* See model.h. The words of the details are pydantic's: people search for them. */

#include "env/serve/model.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "env/json_memory.h"
#include "store/base/util.h"

static void complain(struct model *m, const char *type, const char *msg, json_t *loc, json_t *input)
{
	json_t *d = json_pack("{s:s, s:o, s:s}", "type", type, "loc", loc, "msg", msg);

	m->is_wrong = true;
	if (d && json_object_set(d, "input", input ? input : json_null()) == 0)
		(void)json_array_append_new(m->detail, d); /* out of memory: one detail less */
	else
		json_decref(d);
}

static json_t *loc_of(const char *name)
{
	return name ? json_pack("[ss]", "body", name) : json_pack("[s]", "body");
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

/* With those literals as strings, which are numbers to number_of. NULL: no memory. */
static char *quote_literals(const char *body, size_t len, size_t *ret_len)
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

	if (r != -EINVAL || !(memmem(body, len, "Infinity", 8) || memmem(body, len, "NaN", 3)))
		return r;
	copy = quote_literals(body, len, &len);
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
		complain(m, "missing", "Field required", loc_of(NULL), NULL);
	} else if (!m->object) {
		complain(m, "json_invalid", "JSON decode error",
			 json_pack("[si]", "body", e.position), NULL);
	} else if (!json_is_object(m->object)) {
		complain(m, "model_attributes_type",
			 "Input should be a valid dictionary or object to extract fields from",
			 loc_of(NULL), m->object);
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

int model_tag(struct model *m, const char *name, const char *const *words, bool lenient)
{
	json_t *v = json_object_get(m->object, name);
	int i = word_of(v, words);

	if (!model_ok(m))
		return -1;
	if (!v && lenient)
		return 0;
	if (!v)
		complain(m, "union_tag_not_found", "Unable to extract tag using discriminator",
			 loc_of(NULL), m->object);
	else if (i < 0)
		complain(m, "union_tag_invalid",
			 "Input tag does not match any of the expected tags", loc_of(NULL),
			 m->object);
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

/* Where in an array or an object the first item that is no string is: its index or key, given. */
static json_t *find_no_string(json_t *v, json_t **ret_item)
{
	size_t i;
	json_t *item;
	const char *key;

	json_object_foreach(v, key, item)
	{
		*ret_item = item;
		if (!json_is_string(item))
			return json_string(key);
	}
	json_array_foreach(v, i, item)
	{
		*ret_item = item;
		if (!json_is_string(item))
			return json_integer((json_int_t)i);
	}
	return NULL;
}

static void complain_of_nul(struct model *m, const struct model_field *f, json_t *v)
{
	complain(m, "value_error", "Value error, embedded null byte", loc_of(f->name), v);
}

static void read_string(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	const char *s = json_string_value(v);
	size_t len = json_string_length(v);

	if (!s && !(json_is_null(v) && f->type == MODEL_STRING_OR_NULL)) {
		complain(m, "string_type", "Input should be a valid string", loc_of(f->name), v);
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

	if (!(json_is_null(v) && f->type == MODEL_FLOAT_OR_NULL) && !number_of(v, &d)) {
		complain(m, json_is_string(v) ? "float_parsing" : "float_type",
			 "Input should be a valid number", loc_of(f->name), v);
		return;
	}
	memcpy(to + f->offset, &d, sizeof(d));
}

static void read_int(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	double d;
	int i;

	if (!number_of(v, &d) || d != floor(d) || fabs(d) > INT_MAX) {
		complain(m, json_is_string(v) ? "int_parsing" : "int_type",
			 "Input should be a valid integer", loc_of(f->name), v);
		return;
	}
	i = (int)d;
	memcpy(to + f->offset, &i, sizeof(i));
}

static void read_bool(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	int truth = truth_of(v);
	bool b = truth == 1;

	if (truth < 0)
		complain(m, json_is_string(v) || json_is_number(v) ? "bool_parsing" : "bool_type",
			 "Input should be a valid boolean", loc_of(f->name), v);
	else
		memcpy(to + f->offset, &b, sizeof(b));
}

static void read_json(struct model *m, const struct model_field *f, json_t *v, char *to)
{
	bool map = f->type == MODEL_MAP_OR_NULL;
	bool fits = map ? json_is_object(v) || json_is_null(v)
			: json_is_array(v) ||
				  (f->type == MODEL_STRING_OR_STRINGS && json_is_string(v));
	json_t *item, *place;

	if (!fits) {
		complain(m, map ? "dict_type" : "list_type",
			 map ? "Input should be a valid dictionary"
			     : "Input should be a valid list",
			 loc_of(f->name), v);
		return;
	}
	place = find_no_string(v, &item);
	if (place) {
		complain(m, "string_type", "Input should be a valid string",
			 json_pack("[sso]", "body", f->name, place), item);
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
				complain(m, "missing", "Field required", loc_of(f->name),
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
				complain(m, "literal_error",
					 "Input should be one of the words "
					 "that this field knows",
					 loc_of(f->name), v);
			else
				memcpy((char *)to + f->offset, &word, sizeof(word));
			break;
		default:
			read_json(m, f, v, to);
		}
	}
}
