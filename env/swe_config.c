/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reading configurations. Two readers make one kind of tree: jansson for JSON, libyaml for YAML,
 * whose plain scalars become what PyYAML makes of them (so 0x1f is a number, `no` is false, 1e5 a
 * string). What may stand in the tree is swe_fields.c's affair.
 */

#include <errno.h>
#include <math.h>
#include <yaml.h>

#include "env/status.h"
#include "env/swe_config.h"
#include "store/base/util.h"

/* A configuration has some dozens of values. More are aliases of aliases of aliases. */
#define VALUES_MAX 10000
#define DEPTH_MAX 32 /* it has three levels */

/* ---- YAML ---- */

struct yaml_reader {
	yaml_parser_t parser;
	yaml_document_t document;
	unsigned n_values;
};

static bool matches(const char *s, const char *const *words)
{
	for (; *words; words++)
		if (strcmp(s, *words) == 0)
			return true;
	return false;
}

/* Digits of a base, with '_' anywhere behind the first. False: some other word. */
static bool read_int(const char *s, json_int_t *ret)
{
	bool minus = *s == '-';
	char digits[32];
	size_t n = 0;
	int base = 10;
	char *end;

	if (*s == '-' || *s == '+')
		s++;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'b')) {
		base = s[1] == 'x' ? 16 : 2;
		s += 2;
	} else if (s[0] == '0' && s[1]) {
		base = 8;
		s++;
	}
	if (*s == '_' && base == 10)
		return false;
	for (; *s; s++) {
		if (*s == '_')
			continue;
		if (!strchr("0123456789abcdefABCDEF", *s) || n + 1 == sizeof(digits))
			return false;
		digits[n++] = *s;
	}
	if (n == 0)
		return false;
	digits[n] = '\0';
	errno = 0;
	*ret = strtoll(digits, &end, base);
	if (*end || errno)
		return false;
	if (minus)
		*ret = -*ret;
	return true;
}

/* A point is needed: PyYAML takes 1e5 for a word. */
static bool read_float(const char *s, double *ret)
{
	if (!strchr(s, '.') || s[strspn(s, "+-.0123456789eE")] || !strpbrk(s, "0123456789"))
		return false;
	return text_is_number(s, ret) && isfinite(*ret);
}

static json_t *plain_scalar(const char *s)
{
	static const char *const nulls[] = { "", "~", "null", "Null", "NULL", NULL };
	static const char *const yes[] = { "yes",  "Yes", "YES", "true", "True",
					   "TRUE", "on",  "On",	 "ON",	 NULL };
	static const char *const no[] = { "no",	   "No",  "NO",	 "false", "False",
					  "FALSE", "off", "Off", "OFF",	  NULL };
	json_int_t i;
	double d;

	if (matches(s, nulls))
		return json_null();
	if (matches(s, yes))
		return json_true();
	if (matches(s, no))
		return json_false();
	if (read_int(s, &i))
		return json_integer(i);
	if (read_float(s, &d))
		return json_real(d);
	return json_string(s);
}

static int yaml_fail(const yaml_node_t *node, const char *what)
{
	return fail(PLY_INVALID, "the configuration, line %zu: %s", node->start_mark.line + 1,
		    what);
}

static int yaml_convert(struct yaml_reader *y, int index, unsigned depth, json_t **ret)
{
	yaml_node_t *node = yaml_document_get_node(&y->document, index);
	json_auto_t *made = NULL;
	int r;

	if (++y->n_values > VALUES_MAX || depth > DEPTH_MAX)
		return yaml_fail(node, "too many values, or too deep");
	switch (node->type) {
	case YAML_SCALAR_NODE: {
		const char *s = (const char *)node->data.scalar.value;

		if (memchr(s, '\0', node->data.scalar.length))
			return yaml_fail(node, "a NUL in a string");
		made = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain_scalar(s)
									  : json_string(s);
		break;
	}
	case YAML_SEQUENCE_NODE:
		made = json_array();
		for (yaml_node_item_t *i = node->data.sequence.items.start;
		     made && i < node->data.sequence.items.top; i++) {
			json_t *item = NULL;

			r = yaml_convert(y, *i, depth + 1, &item);
			if (r < 0)
				return r;
			if (json_array_append_new(made, item) < 0)
				return fail_memory();
		}
		break;
	case YAML_MAPPING_NODE:
		made = json_object();
		for (yaml_node_pair_t *p = node->data.mapping.pairs.start;
		     made && p < node->data.mapping.pairs.top; p++) {
			yaml_node_t *key = yaml_document_get_node(&y->document, p->key);
			json_t *value = NULL;
			const char *name;

			if (key->type != YAML_SCALAR_NODE)
				return yaml_fail(key, "a field's name must be a word");
			name = (const char *)key->data.scalar.value;
			if (strlen(name) != key->data.scalar.length)
				return yaml_fail(key, "a NUL in a field's name");
			if (json_object_get(made, name))
				return yaml_fail(key, "this field was given before");
			r = yaml_convert(y, p->value, depth + 1, &value);
			if (r < 0)
				return r;
			if (json_object_set_new(made, name, value) < 0)
				return fail_memory();
		}
		break;
	default:
		return yaml_fail(node, "this is no value");
	}
	if (!made)
		return fail_memory();
	*ret = TAKE_PTR(made);
	return 0;
}

static int yaml_problem(const yaml_parser_t *p)
{
	if (p->error == YAML_MEMORY_ERROR)
		return fail_memory();
	if (p->error == YAML_READER_ERROR)
		return fail(PLY_INVALID, "the configuration, byte %zu: %s", p->problem_offset,
			    p->problem);
	return fail(PLY_INVALID, "the configuration, line %zu, column %zu: %s",
		    p->problem_mark.line + 1, p->problem_mark.column + 1, p->problem);
}

static int yaml_read(const char *text, size_t len, json_t **ret)
{
	struct yaml_reader y = { 0 };
	json_auto_t *made = NULL;
	int r = 0;

	if (!yaml_parser_initialize(&y.parser))
		return fail_memory();
	yaml_parser_set_input_string(&y.parser, (const unsigned char *)text, len);
	if (!yaml_parser_load(&y.parser, &y.document)) {
		r = yaml_problem(&y.parser);
		yaml_parser_delete(&y.parser);
		return r;
	}
	if (yaml_document_get_root_node(&y.document))
		r = yaml_convert(&y, 1, 0, &made); /* nodes are numbered from 1, the root */
	else
		made = json_null();
	yaml_document_delete(&y.document);
	if (r == 0) {
		if (!yaml_parser_load(&y.parser, &y.document)) {
			r = yaml_problem(&y.parser);
		} else {
			if (yaml_document_get_root_node(&y.document))
				r = fail(PLY_INVALID,
					 "the configuration holds more than one document");
			yaml_document_delete(&y.document);
		}
	}
	yaml_parser_delete(&y.parser);
	if (r == 0)
		*ret = TAKE_PTR(made);
	return r;
}

/* ---- both ---- */

int swe_config_parse(const char *text, size_t len, json_t **ret)
{
	json_auto_t *config = NULL;
	json_error_t why;
	size_t start = 0;
	int r;

	while (start < len && strchr(" \t\r\n", text[start]))
		start++;
	/* What begins like JSON's objects may be YAML's flow style, too: {name: x}. */
	if (start < len && text[start] == '{')
		config = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	if (!config) {
		r = yaml_read(text, len, &config);
		if (r < 0) {
			size_t next = start + 1;

			while (next < len && strchr(" \t\r\n", text[next]))
				next++;
			if (start < len && text[start] == '{' && next < len && text[next] == '"')
				return fail(r, "the configuration, line %d, column %d: %s",
					    why.line, why.column, why.text);
			return r;
		}
	}
	if (json_is_null(config)) {
		json_decref(config);
		config = json_object();
		if (!config)
			return fail_memory();
	}
	if (!json_is_object(config))
		return fail(PLY_INVALID, "the configuration must be a mapping of fields to values");

	r = swe_config_check(config);
	if (r < 0)
		return r;
	*ret = TAKE_PTR(config);
	return 0;
}

const char *config_string(const json_t *object, const char *field)
{
	return json_string_value(json_object_get(object, field));
}

double config_number(const json_t *object, const char *field)
{
	return json_number_value(json_object_get(object, field));
}
