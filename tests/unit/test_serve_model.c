/* SPDX-License-Identifier: Apache-2.0 */

/* What the server makes of bytes: bodies, forms, encodings; and of requests that come twice. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/serve/model.h"
#include "env/serve/multipart.h"
#include "env/serve/once.h"
#include "env/serve/rex.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

/* ---- models ---- */

struct all {
	const char *s, *sn;
	size_t s_len;
	double f, fn;
	int i, word;
	bool b;
	json_t *list, *either, *map;
};
static const char *const words[] = { "silent", "raise", NULL };
static const struct model_field fields[] = {
	{ "s", MODEL_STRING, offsetof(struct all, s), offsetof(struct all, s_len), false, NULL },
	{ "sn", MODEL_STRING_OR_NULL, offsetof(struct all, sn), 0, false, NULL },
	{ "f", MODEL_FLOAT, offsetof(struct all, f), 0, false, NULL },
	{ "fn", MODEL_FLOAT_OR_NULL, offsetof(struct all, fn), 0, false, NULL },
	{ "i", MODEL_INT, offsetof(struct all, i), 0, false, NULL },
	{ "b", MODEL_BOOL, offsetof(struct all, b), 0, false, NULL },
	{ "list", MODEL_STRINGS, offsetof(struct all, list), 0, false, NULL },
	{ "either", MODEL_STRING_OR_STRINGS, offsetof(struct all, either), 0, false, NULL },
	{ "map", MODEL_MAP_OR_NULL, offsetof(struct all, map), 0, false, NULL },
	{ "word", MODEL_WORD, offsetof(struct all, word), 0, false, words },
};

/* "" when the body fits, else the first detail's type. */
static const char *verdict(const char *body, struct all *a, struct model *m)
{
	*a = (struct all){ .s = "default", .f = 1, .i = 3, .word = -1 };
	model_parse(m, body, strlen(body));
	model_read(m, fields, ARRAY_SIZE(fields), a);
	if (model_ok(m))
		return "";
	return json_string_value(json_object_get(json_array_get(m->detail, 0), "type"));
}

START_TEST(values_fit_as_leniently_as_in_pydantic)
{
	static const struct {
		const char *body, *type;
	} rows[] = {
		{ "{}", "" },
		{ "{\"unknown\": 1}", "" },
		{ "{\"s\": \"\"}", "" },
		{ "{\"s\": 5}", "string_type" },
		{ "{\"s\": null}", "string_type" },
		{ "{\"s\": true}", "string_type" },
		{ "{\"sn\": null}", "" },
		{ "{\"sn\": []}", "string_type" },
		{ "{\"f\": 1}", "" },
		{ "{\"f\": \"1.5\"}", "" },
		{ "{\"f\": \" 1.5 \"}", "" },
		{ "{\"f\": true}", "" },
		{ "{\"f\": null}", "float_type" },
		{ "{\"f\": \"x\"}", "float_parsing" },
		{ "{\"f\": \"\"}", "float_parsing" },
		{ "{\"f\": \"0x10\"}", "float_parsing" },
		{ "{\"f\": []}", "float_type" },
		{ "{\"fn\": null}", "" },
		{ "{\"fn\": Infinity, \"f\":-Infinity, \"s\": \"\\\"NaN\"}", "" },
		{ "{\"fn\": NaN}", "" },
		{ "{\"fn\": Infinityx}", "json_invalid" },
		{ "{\"fn\": infinity}", "json_invalid" },
		{ "{\"i\": Infinity}", "int_parsing" },
		{ "{\"i\": 2.0}", "" },
		{ "{\"i\": \"7\"}", "" },
		{ "{\"i\": 1.5}", "int_from_float" },
		{ "{\"i\": \"x\"}", "int_parsing" },
		{ "{\"i\": null}", "int_type" },
		{ "{\"b\": \"YES\"}", "" },
		{ "{\"b\": 0}", "" },
		{ "{\"b\": 1.0}", "" },
		{ "{\"b\": 2}", "bool_parsing" },
		{ "{\"b\": \"maybe\"}", "bool_parsing" },
		{ "{\"b\": null}", "bool_type" },
		{ "{\"list\": [\"a\"]}", "" },
		{ "{\"list\": [1]}", "string_type" },
		{ "{\"list\": \"a\"}", "list_type" },
		{ "{\"either\": \"a\"}", "" },
		{ "{\"either\": [\"a\"]}", "" },
		{ "{\"either\": {}}", "list_type" },
		{ "{\"map\": null}", "" },
		{ "{\"map\": {\"a\": \"b\"}}", "" },
		{ "{\"map\": {\"a\": 1}}", "dict_type" },
		{ "{\"map\": []}", "string_type" },
		{ "{\"word\": \"raise\"}", "" },
		{ "{\"word\": \"RAISE\"}", "literal_error" },
		/* Only where the length is asked for: C would see the beginning alone. */
		{ "{\"s\": \"a\\u0000b\"}", "" },
		{ "{\"sn\": \"a\\u0000b\"}", "value_error" },
		{ "{\"sn\": \"\\u0000\"}", "value_error" },
		{ "{\"list\": [\"a\", \"b\\u0000c\"]}", "value_error" },
		{ "{\"either\": [\"a\\u0000b\"]}", "" },
		{ "{\"map\": {\"a\": \"b\\u0000c\"}}", "" },
		{ "{\"word\": \"raise\\u0000\"}", "literal_error" },
		{ "{\"b\": \"yes\\u0000\"}", "bool_parsing" },
		{ "[]", "model_attributes_type" },
		{ "3", "model_attributes_type" },
		{ "null", "missing" },
		{ "{", "json_invalid" },
		{ "", "missing" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct model m;
		struct all a;
		const char *type = verdict(rows[i].body, &a, &m);

		/* The name of the kind is for people; that there is one, for programs. */
		ck_assert_msg(!*type == !*rows[i].type, "%s: '%s'", rows[i].body, type);
		model_release(&m);
	}
}
END_TEST

START_TEST(values_arrive_and_defaults_stay)
{
	struct model m;
	struct all a;

	ck_assert_str_eq(verdict("{\"s\": \"a\\u0000b\", \"f\": \"2.5\", \"fn\": null, \"i\": true,"
				 " \"b\": \"on\", \"word\": \"raise\", \"map\": null}",
				 &a, &m),
			 "");
	ck_assert_uint_eq(a.s_len, 3);
	ck_assert_mem_eq(a.s, "a\0b", 4);
	ck_assert(a.f == 2.5 && isnan(a.fn) && a.i == 1 && a.b && a.word == 1 && !a.map);
	model_release(&m);
	verdict("{}", &a, &m);
	ck_assert_str_eq(a.s, "default");
	ck_assert(a.f == 1 && a.i == 3);
	model_release(&m);
}
END_TEST

START_TEST(literals_of_pythons_json_are_numbers)
{
	struct model m;
	struct all a;

	ck_assert_str_eq(verdict("{\"s\": \"a NaN, \\\"Infinity\","
				 " \"f\": -Infinity, \"fn\":Infinity}",
				 &a, &m),
			 "");
	ck_assert_str_eq(a.s, "a NaN, \"Infinity");
	ck_assert(isinf(a.f) && a.f < 0 && isinf(a.fn) && a.fn > 0);
	model_release(&m);
}
END_TEST

START_TEST(numbers_have_no_end)
{
	static const char zeros[] = "000000000000000000000000000000000000000000000000000000000000"
				    "000000000000000000000000000000000000000000000000000000000000";
	char body[1024];
	struct model m;
	struct all a;

	ck_assert_str_eq(verdict("{\"f\": -100000000000000000000, \"i\": 9223372036854775808,"
				 " \"fn\":1E400, \"s\": \"1e400, 100000000000000000000\"}",
				 &a, &m),
			 "");
	ck_assert_str_eq(a.s, "1e400, 100000000000000000000");
	ck_assert(a.f == -1e20 && a.i == INT_MAX && a.fn >= 1e308);
	model_release(&m);
	ck_assert_str_eq(verdict("{\"f\": -1.5e999, \"fn\": 12345678901234567890}", &a, &m), "");
	ck_assert(a.f <= -1e308);
	ck_assert(fabs(a.fn / 12345678901234567890.0 - 1) < 1e-15);
	model_release(&m);
	snprintf(body, sizeof(body), "{\"f\": 1%s%s%s%s, \"fn\": -1%s}", zeros, zeros, zeros,
		 zeros, zeros);
	ck_assert_str_eq(verdict(body, &a, &m), "");
	ck_assert(a.f >= 1e307 && a.fn < -1e119 && a.fn > -1e121);
	model_release(&m);
	ck_assert_str_eq(verdict("{\"f\": 1e400-, \"s\": \"\"}", &a, &m), "json_invalid");
	model_release(&m);
	ck_assert_str_eq(verdict("{\"s\": 100000000000000000000}", &a, &m), "string_type");
	model_release(&m);
}
END_TEST

START_TEST(a_detail_names_the_kind_and_the_very_place)
{
	static const struct {
		const char *body, *type, *loc;
	} rows[] = {
		{ "{\"map\": {\"x\": \"y\", \"a\": 1}}", "string_type",
		  "[\"body\",\"map\",\"a\"]" },
		{ "{\"map\": []}", "dict_type", "[\"body\",\"map\"]" },
		{ "{\"map\": \"x\"}", "dict_type", "[\"body\",\"map\"]" },
		{ "{\"either\": [\"a\", 5]}", "string_type", "[\"body\",\"either\",\"str\"]" },
		{ "{\"list\": [\"a\", \"b\", null]}", "string_type", "[\"body\",\"list\",2]" },
		{ "{\"list\": {}}", "list_type", "[\"body\",\"list\"]" },
		{ "null", "missing", "[\"body\"]" },
		{ "5", "model_attributes_type", "[\"body\"]" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct model m;
		struct all a;
		char *loc;

		ck_assert_str_eq(verdict(rows[i].body, &a, &m), rows[i].type);
		loc = json_dumps(json_object_get(json_array_get(m.detail, 0), "loc"), JSON_COMPACT);
		ck_assert_str_eq(loc, rows[i].loc);
		free(loc);
		model_release(&m);
	}
}
END_TEST

START_TEST(each_item_that_is_wrong_is_told_but_not_millions_of_them)
{
	static const char *const kinds[] = { "one", "other", NULL };
	char body[4096] = "{\"kind\": \"other\", \"list\": [\"a\"";
	struct model m;
	struct all a;
	json_t *last;
	char *loc;

	for (int i = 0; i < 1000; i++)
		strcat(body, ",1");
	strcat(body, "]}");
	model_parse(&m, body, strlen(body));
	ck_assert_int_eq(model_tag(&m, "kind", kinds), 1);
	model_read(&m, fields, ARRAY_SIZE(fields), &a);
	ck_assert(!model_ok(&m));
	ck_assert_uint_eq(json_array_size(m.detail), 100);
	last = json_array_get(m.detail, 99);
	loc = json_dumps(json_object_get(last, "loc"), JSON_COMPACT);
	ck_assert_str_eq(loc, "[\"body\",\"other\",\"list\",100]");
	free(loc);
	model_release(&m);
}
END_TEST

START_TEST(a_complaint_is_a_list_of_details)
{
	struct model m;
	struct all a;
	size_t len;
	char *text;
	json_t *o;

	verdict("{\"s\": 1, \"i\": \"x\"}", &a, &m);
	text = model_complaint(&m, &len);
	o = json_loadb(text, len, 0, NULL);
	ck_assert_uint_eq(json_array_size(json_object_get(o, "detail")), 2);
	json_decref(o);
	free(text);
	model_release(&m);
}
END_TEST

/* ---- forms ---- */

struct sheet { /* what a form had: name=[filename]data; */
	char text[4096];
	size_t len;
};

static int add_part(void *arg, const char *name, const char *filename)
{
	struct sheet *s = arg;

	s->len += (size_t)snprintf(s->text + s->len, sizeof(s->text) - s->len, "|%s=%s%s%s", name,
				   filename ? "[" : "", filename ? filename : "",
				   filename ? "]" : "");
	return 0;
}

static int add_data(void *arg, const char *data, size_t len)
{
	struct sheet *s = arg;

	ck_assert_uint_gt(len, 0);
	ck_assert_uint_lt(s->len + len, sizeof(s->text));
	memcpy(s->text + s->len, data, len);
	s->len += len;
	s->text[s->len] = '\0';
	return 0;
}

static const struct multipart_sink sink = { .part = add_part, .data = add_data };

/* The sheet, or the sentence of what was wrong. */
static const char *decode(const char *type, const char *form, size_t step)
{
	static struct sheet s;
	struct multipart *m;
	size_t len = strlen(form);
	int r;

	s = (struct sheet){ 0 };
	if (multipart_new(type, &sink, &s, &m) < 0)
		return ply_error();
	r = 0;
	for (size_t at = 0; at < len && r == 0; at += step)
		r = multipart_feed(m, form + at, MIN(step, len - at));
	if (r == 0)
		r = multipart_finish(m);
	multipart_free(m);
	return r < 0 ? ply_error() : s.text;
}

#define HEAD "Content-Disposition: form-data; name=\"a\"\r\n\r\n"

START_TEST(forms_are_read_in_whatever_pieces_they_come)
{
	static const struct {
		const char *type, *form, *sheet;
	} rows[] = {
		{ "multipart/form-data; boundary=B", "--B\r\n" HEAD "x\r\n--B--\r\n", "|a=x" },
		{ "multipart/form-data; boundary=B", "--B\r\n" HEAD "\r\n--B--", "|a=" },
		{ "multipart/form-data; boundary=B", "--B--", "" },
		{ "multipart/form-data; BOUNDARY=\"b c\"; x=y",
		  "pre\r\namble\r\n--b c \t\r\n" HEAD "x\r\n--b c\r\n" HEAD "y\r\n--b c--epilogue",
		  "|a=x|a=y" },
		{ "multipart/form-data; charset=u; boundary=B",
		  "--B\r\nX: y\r\ncontent-disposition: form-data; filename=\"f\\\"\\n%22\"; name=n"
		  "\r\n\r\n--B\r--B\r\n-B\r\r\n\r\n--C\r\n--B--\r\n",
		  "|n=[f\"\\n%22]--B\r--B\r\n-B\r\r\n\r\n--C" },
		{ "multipart/form-data; boundary=B", "--B\r\n" HEAD "x\n--B--\n\r\n--B--",
		  "|a=x\n--B--\n" },
		{ "multipart/form-data; boundary=B", "--B\r\n" HEAD "x", "this form breaks off" },
		{ "multipart/form-data; boundary=B", "", "this form breaks off" },
		{ "multipart/form-data; boundary=B", "--B\r\nX: y\r\n\r\nx\r\n--B--",
		  "a part of this form has no name" },
		{ "multipart/form-data; boundary=B", "--B\r\n\r\nx\r\n--B--",
		  "a part of this form has no name" },
		{ "multipart/form-data; boundary=B", "--B\r\n" HEAD "x\r\n--Bx\r\n--B--",
		  "a boundary of this form has something behind it" },
		{ "multipart/form-data", "", "the content type of this form has no boundary" },
		{ "multipart/form-data; boundary=", "",
		  "the content type of this form has no boundary" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		for (size_t step = 1; step < 70; step++)
			ck_assert_msg(strcmp(decode(rows[i].type, rows[i].form, step),
					     rows[i].sheet) == 0,
				      "%zu by %zu: %s", i, step,
				      decode(rows[i].type, rows[i].form, step));
}
END_TEST

START_TEST(headers_of_a_part_have_an_end)
{
	static char form[40000];

	strcpy(form, "--B\r\nX: ");
	memset(form + strlen(form), 'y', 30000);
	ck_assert_str_eq(decode("multipart/form-data; boundary=B", form, 1000),
			 "a part of this form has too many headers");
}
END_TEST

/* ---- text ---- */

START_TEST(bytes_that_are_not_utf8_are_shown)
{
	static const struct {
		const char *bytes, *text;
	} rows[] = {
		{ "plain", "plain" },
		{ "\xc3\xbc", "\xc3\xbc" },
		{ "a\xff", "a\\xff" },
		{ "\xc3", "\\xc3" },
		{ "\xc3(", "\\xc3(" },
		{ "\xed\xa0\x80", "\\xed\\xa0\\x80" },
		{ "\xc0\x80", "\\xc0\\x80" },
		{ "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80" },
		{ "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		json_t *s = rex_text(rows[i].bytes, strlen(rows[i].bytes));

		ck_assert_str_eq(json_string_value(s), rows[i].text);
		json_decref(s);
	}
}
END_TEST

START_TEST(floats_are_written_as_python_does)
{
	static const struct {
		double d;
		const char *text;
	} rows[] = { { 25, "25.0" },   { 0.2, "0.2" },	 { 0.1 + 0.2, "0.30000000000000004" },
		     { 1e22, "1e+22" }, { 100000, "100000.0" }, { 1e-5, "1e-05" },
		     { 1234567, "1234567.0" } };
	char buf[32];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		ck_assert_str_eq(rex_float(rows[i].d, buf), rows[i].text);
}
END_TEST

/* read_file of bytes: the content, or "Class: message". */
static const char *read_as(const char *bytes, size_t len, const char *encoding, const char *errors)
{
	static char answer[4096], path[] = "/tmp/plyfs-test-XXXXXX";
	struct rex_place place = { 0 };
	struct http_request q = { 0 };
	struct http_response r = { .fd = -1 };
	const char *content, *class, *message;
	struct rex *rex;
	json_t *body, *o;
	int fd;

	strcpy(path + sizeof(path) - 7, "XXXXXX");
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
	close(fd);
	ck_assert_int_eq(rex_new(&place, &rex), 0);
	body = json_pack("{s:s, s:s?, s:s?}", "path", path, "encoding", encoding, "errors", errors);
	q.body = json_dumps(body, 0);
	q.body_len = strlen(q.body);
	rex_read_file(rex, &q, &r);
	o = json_loadb(r.body, r.len, JSON_ALLOW_NUL, NULL);
	if (json_unpack(o, "{s:s}", "content", &content) == 0)
		snprintf(answer, sizeof(answer), "%s", content);
	else if (json_unpack(o, "{s:{s:s, s:s}}", "swerexception", "class_path", &class, "message",
			     &message) == 0)
		snprintf(answer, sizeof(answer), "%s: %s", strchr(class, '.') + 1, message);
	else
		ck_abort_msg("%.*s", (int)r.len, r.body);
	json_decref(o);
	json_decref(body);
	free((char *)q.body);
	free(r.body);
	rex_free(rex);
	unlink(path);
	return answer;
}

START_TEST(files_are_decoded_as_python_does)
{
	static const struct {
		const char *bytes;
		size_t len;
		const char *encoding, *errors, *answer;
	} rows[] = {
		{ "a\r\nb\rc\n", 7, NULL, NULL, "a\nb\nc\n" },
		{ "\xff", 1, NULL, NULL,
		  "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid "
		  "start byte" },
		{ "ab\xe2\x82", 4, NULL, NULL,
		  "UnicodeDecodeError: 'utf-8' codec can't decode bytes in position 2-3: "
		  "unexpected end of data" },
		{ "\xe2\x28\xa1", 3, NULL, NULL,
		  "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe2 in position 0: invalid "
		  "continuation byte" },
		{ "\xe2\x82(", 3, NULL, NULL,
		  "UnicodeDecodeError: 'utf-8' codec can't decode bytes in position 0-1: invalid "
		  "continuation byte" },
		{ "\xed\xa0\x80", 3, "utf8", "replace", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
		{ "\xf0\x9f\x98", 3, "UTF_8", "replace", "\xef\xbf\xbd" },
		{ "a\xe2\x82z", 4, "utf-8", "backslashreplace", "a\\xe2\\x82z" },
		{ "a\xe2\x82z", 4, "utf-8", "ignore", "az" },
		{ "\xef\xbb\xbfx", 4, "utf-8-sig", NULL, "x" },
		{ "\xef\xbb\xbfx", 4, "utf-8", NULL, "\xef\xbb\xbfx" },
		{ "\xe9", 1, "latin-1", NULL, "\xc3\xa9" },
		{ "\xe9", 1, "ascii", NULL,
		  "UnicodeDecodeError: 'ascii' codec can't decode byte 0xe9 in position 0: ordinal "
		  "not in range(128)" },
		{ "\xe9", 1, "ascii", "replace", "\xef\xbf\xbd" },
		{ "\x80", 1, "cp1252", NULL, "\xe2\x82\xac" },
		{ "\xff\xfe" "a\0", 4, "utf-16", NULL, "a" },
		{ "a\0\r\0\n\0", 6, "utf-16-le", NULL, "a\n" },
		{ "\0a", 2, "utf-16-be", NULL, "a" },
		{ "", 0, "utf-16", NULL, "" },
		{ "x", 1, "klingon", NULL, "LookupError: unknown encoding: klingon" },
		{ "x", 1, NULL, "pray", "x" }, /* Python asks for it when it needs it */
		{ "\xff", 1, NULL, "pray", "LookupError: unknown error handler name 'pray'" },
		{ "a\0\xd8", 3, "utf-16-le", NULL,
		  "UnicodeDecodeError: 'utf-16-le' codec can't decode byte 0xd8 in position 2: "
		  "truncated data" },
		{ "\0\xd8x\0", 4, "utf-16-le", "replace", "\xef\xbf\xbdx" },
		{ "\x3d\xd8\0\xde", 4, "utf-16-le", NULL, "\xf0\x9f\x98\x80" },
		{ "a\0", 2, "utf-16", NULL, "UnicodeError: UTF-16 stream does not start with BOM" },
		{ "\0\0\x11\0", 4, "utf-32-le", NULL,
		  "UnicodeDecodeError: 'utf-32-le' codec can't decode bytes in position 0-3: code "
		  "point not in range(0x110000)" },
		{ "\x81", 1, "cp1252", NULL,
		  "UnicodeDecodeError: 'charmap' codec can't decode byte 0x81 in position 0: "
		  "character maps to <undefined>" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		ck_assert_msg(strcmp(read_as(rows[i].bytes, rows[i].len, rows[i].encoding,
					     rows[i].errors),
				     rows[i].answer) == 0,
			      "%zu: %s", i,
			      read_as(rows[i].bytes, rows[i].len, rows[i].encoding,
				      rows[i].errors));
}
END_TEST

/* ---- requests that come twice ---- */

static struct http_response answer_of(const char *text)
{
	struct http_response r = { .status = 200, .fd = -1, .body = strdup(text) };

	r.len = strlen(text);
	return r;
}

START_TEST(an_answer_is_kept_for_its_id_method_and_path)
{
	struct http_response r = answer_of("first"), again = { 0 };
	struct once *o;
	uint64_t t;

	ck_assert_int_eq(once_new(&o), 0);
	ck_assert_int_eq(once_begin(o, "id", "POST", "/a", &t, &again), ONCE_FRESH);
	once_done(o, t, &r, true);
	ck_assert_int_eq(once_begin(o, "id", "POST", "/a", &t, &again), ONCE_AGAIN);
	ck_assert_uint_eq(again.len, 5);
	ck_assert_mem_eq(again.body, "first", 5);
	free(again.body);
	ck_assert_int_eq(once_begin(o, "id", "POST", "/b", &t, &again), ONCE_FRESH);
	once_done(o, t, &r, false);
	ck_assert_int_eq(once_begin(o, "id", "POST", "/b", &t, &again), ONCE_FRESH);
	once_done(o, t, &r, true);
	ck_assert_int_eq(once_begin(o, NULL, "POST", "/a", &t, &again), ONCE_FRESH);
	ck_assert_uint_eq(t, 0);
	once_done(o, t, &r, true);
	free(r.body);
	once_free(o);
}
END_TEST

START_TEST(what_is_remembered_has_an_end)
{
	struct http_response r = answer_of("x"), again = { 0 };
	struct once *o;
	char id[16];
	uint64_t t;

	ck_assert_int_eq(once_new(&o), 0);
	for (int i = 0; i < 1000; i++) {
		snprintf(id, sizeof(id), "%d", i);
		ck_assert_int_eq(once_begin(o, id, "POST", "/", &t, &again), ONCE_FRESH);
		once_done(o, t, &r, true);
	}
	ck_assert_int_eq(once_begin(o, "999", "POST", "/", &t, &again), ONCE_AGAIN);
	free(again.body);
	ck_assert_int_eq(once_begin(o, "1", "POST", "/", &t, &again), ONCE_FRESH);
	once_done(o, t, &r, true);
	free(r.body);
	once_free(o);
}
END_TEST

struct second {
	struct once *o;
	char got[16];
};

static void *ask_again(void *arg)
{
	struct second *s = arg;
	struct http_response r = { 0 };
	uint64_t t;

	if (once_begin(s->o, "id", "POST", "/", &t, &r) == ONCE_AGAIN) {
		memcpy(s->got, r.body, r.len);
		free(r.body);
	}
	return NULL;
}

START_TEST(the_second_one_waits_for_the_first)
{
	struct http_response r = answer_of("slow"), none = { 0 };
	struct second s = { 0 };
	pthread_t thread;
	uint64_t t;

	ck_assert_int_eq(once_new(&s.o), 0);
	ck_assert_int_eq(once_begin(s.o, "id", "POST", "/", &t, &none), ONCE_FRESH);
	ck_assert_int_eq(pthread_create(&thread, NULL, ask_again, &s), 0);
	usleep(20000);
	once_done(s.o, t, &r, true);
	pthread_join(thread, NULL);
	ck_assert_str_eq(s.got, "slow");
	free(r.body);
	once_free(s.o);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, values_fit_as_leniently_as_in_pydantic);
	tcase_add_test(tc, values_arrive_and_defaults_stay);
	tcase_add_test(tc, literals_of_pythons_json_are_numbers);
	tcase_add_test(tc, numbers_have_no_end);
	tcase_add_test(tc, a_detail_names_the_kind_and_the_very_place);
	tcase_add_test(tc, each_item_that_is_wrong_is_told_but_not_millions_of_them);
	tcase_add_test(tc, a_complaint_is_a_list_of_details);
	tcase_add_test(tc, forms_are_read_in_whatever_pieces_they_come);
	tcase_add_test(tc, headers_of_a_part_have_an_end);
	tcase_add_test(tc, bytes_that_are_not_utf8_are_shown);
	tcase_add_test(tc, floats_are_written_as_python_does);
	tcase_add_test(tc, files_are_decoded_as_python_does);
	tcase_add_test(tc, an_answer_is_kept_for_its_id_method_and_path);
	tcase_add_test(tc, what_is_remembered_has_an_end);
	tcase_add_test(tc, the_second_one_waits_for_the_first);
	return run_case("serve_model", tc);
}
