/* SPDX-License-Identifier: Apache-2.0 */

/* The sentence of a thread's last failure, and the plain values of plyfs.h. */

#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/status.h"

static _Thread_local char sentence[SENTENCE_MAX];
static _Thread_local int cancel_on = -1;

const char *ply_error(void)
{
	return sentence;
}

static int keep(int status, const char *fmt, va_list ap)
{
	int saved = errno;
	char text[SENTENCE_MAX];

	(void)vsnprintf(text, sizeof(text), fmt, ap); /* cut is fine */
	memcpy(sentence, text, sizeof(text)); /* fmt's arguments may be the sentence itself */
	errno = saved;
	return status;
}

int fail(int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	status = keep(status, fmt, ap);
	va_end(ap);
	return status;
}

int fail_in(int status, const char *fmt, ...)
{
	char rest[SENTENCE_MAX];
	va_list ap;
	size_t len;

	memcpy(rest, sentence, sizeof(rest));
	va_start(ap, fmt);
	(void)keep(status, fmt, ap);
	va_end(ap);
	len = strlen(sentence);
	(void)snprintf(sentence + len, sizeof(sentence) - len, ": %s", rest); /* cut is fine */
	return status;
}

void sentence_get(struct sentence *ret)
{
	memcpy(ret->text, sentence, sizeof(sentence));
}

void sentence_put(const struct sentence *s)
{
	memcpy(sentence, s->text, sizeof(sentence));
}

static int status_of(int err)
{
	switch (err) {
	case ENOENT:
	case ENOTDIR:
		return PLY_NOT_FOUND;
	case EISDIR:
		return PLY_IS_DIRECTORY;
	case EACCES:
	case EPERM:
		return PLY_DENIED;
	case ENOMEM:
		return PLY_NO_MEMORY;
	case EEXIST:
		return PLY_EXISTS;
	case EINVAL:
	case ENAMETOOLONG:
	case ELOOP:
		return PLY_INVALID;
	default:
		return PLY_FAILED;
	}
}

int fail_errno(int err, const char *fmt, ...)
{
	char text[SENTENCE_MAX];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap); /* cut is fine */
	va_end(ap);
	return fail(status_of(err), "%s: %s", text, strerror(err));
}

int fail_memory(void)
{
	return fail(PLY_NO_MEMORY, "out of memory");
}

const char *ply_status_name(int status)
{
	static const char *const names[] = {
		"PLY_OK",	    "PLY_FAILED",      "PLY_NO_MEMORY",	   "PLY_NOT_FOUND",
		"PLY_IS_DIRECTORY", "PLY_DENIED",      "PLY_INVALID",	   "PLY_UNKNOWN_ID",
		"PLY_STATE",	    "PLY_TIMEOUT",     "PLY_SYNTAX",	   "PLY_SESSION_GONE",
		"PLY_NO_EXIT_CODE", "PLY_UNSUPPORTED", "PLY_COMMAND_FAILED", "PLY_ENCODING",
		"PLY_REMOTE",	    "PLY_EXISTS",      "PLY_NOT_HERE",	   "PLY_CANCELLED",
	};

	if (status > 0 || status <= -(int)(sizeof(names) / sizeof(names[0])))
		return "PLY_?";
	return names[-status];
}

const char *ply_version(void)
{
	return PLYFS_VERSION;
}

void ply_cancel_on(int fd)
{
	cancel_on = fd;
}

int cancel_fd(void)
{
	return cancel_on;
}

int text_append(struct ply_text *text, const void *data, size_t len)
{
	char *p = realloc(text->data, text->len + len + 1);

	if (!p)
		return fail_memory();
	if (len)
		memcpy(p + text->len, data, len);
	text->data = p;
	text->len += len;
	p[text->len] = '\0';
	return 0;
}

int text_set(struct ply_text *text, const void *data, size_t len)
{
	*text = (struct ply_text){ 0 };
	return text_append(text, data, len);
}

bool text_is_number(const char *text, double *ret)
{
	locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
	char *end;
	double d;

	if (!c)
		return false;
	d = strtod_l(text, &end, c);
	freelocale(c);
	if (end == text || *end)
		return false;
	*ret = d;
	return true;
}

int list_append(struct ply_list *list, const char *item, size_t len)
{
	/* Room is doubled at powers of two, so that no capacity has to be kept. */
	if ((list->n & (list->n + 1)) == 0) {
		char **items = realloc(list->items, (list->n * 2 + 2) * sizeof(*items));

		if (!items)
			return fail_memory();
		list->items = items;
	}
	list->items[list->n] = strndup(item, len);
	if (!list->items[list->n])
		return fail_memory();
	list->items[++list->n] = NULL;
	return 0;
}

int list_end(struct ply_list *list)
{
	if (!list->items)
		list->items = calloc(1, sizeof(*list->items));
	return list->items ? 0 : fail_memory();
}

void ply_text_free(struct ply_text *text)
{
	free(text->data);
	*text = (struct ply_text){ 0 };
}

void ply_list_free(struct ply_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		free(list->items[i]);
	free(list->items);
	*list = (struct ply_list){ 0 };
}

void ply_result_free(struct ply_result *result)
{
	ply_text_free(&result->out);
	ply_text_free(&result->err);
	*result = (struct ply_result){ 0 };
}

void ply_tests_free(struct ply_tests *tests)
{
	ply_text_free(&tests->output);
	*tests = (struct ply_tests){ 0 };
}

double ply_tests_pass_rate(const struct ply_tests *tests)
{
	uint64_t total = tests->passed + tests->failed + tests->errors;

	return total ? (double)tests->passed / (double)total : 0;
}

bool ply_tests_all_passed(const struct ply_tests *tests)
{
	return tests->failed == 0 && tests->errors == 0;
}

void ply_observation_free(struct ply_observation *o)
{
	ply_text_free(&o->output);
	*o = (struct ply_observation){ 0 };
}
