/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A part's data ends at CR LF "--" BOUNDARY. CR is in it but once, at its begin, so a match that
 * fails needs no going back: what matched so far is data, and the byte at hand begins anew.
 *
 *     PREAMBLE, DATA --delimiter--> BEHIND --CR LF--> HEADERS --empty line--> DATA
 *                                      `-- "--" --> EPILOGUE
 */

#include "env/serve/multipart.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "env/status.h"
#include "store/base/util.h"

#define BOUNDARY_MAX 200 /* 70 by the RFC; clients that break it, break it by little */
#define HEADERS_MAX 16384 /* of one part: a long file name, percent-encoded */

enum state { PREAMBLE, DATA, BEHIND, HEADERS, EPILOGUE };

struct multipart {
	const struct multipart_sink *sink;
	void *arg;
	enum state state;
	char delimiter[4 + BOUNDARY_MAX + 1];
	size_t length, matched;	 /* of the delimiter */
	char behind[2];		 /* BEHIND: the last two bytes, */
	size_t n_behind;	 /* of so many */
	char headers[HEADERS_MAX]; /* HEADERS: so far */
	size_t n_headers;
};

/*
 * One parameter behind a header's value: `; name=token` or `; name="quoted"`. Only a quote and a
 * backslash are taken for quoted: some clients send Windows paths. False: there is none.
 */
static bool parameter(const char *value, const char *wanted, char *ret, size_t room)
{
	const char *p = strchr(value, ';');

	while (p) {
		size_t name, n = 0;
		const char *key;
		bool found;

		p++;
		p += strspn(p, " \t");
		key = p;
		name = strcspn(p, "=; \t");
		p += name;
		p += strspn(p, " \t");
		found = name == strlen(wanted) && strncasecmp(key, wanted, name) == 0;
		if (*p != '=') {
			p = strchr(p, ';');
			continue;
		}
		p++;
		p += strspn(p, " \t");
		if (*p == '"') {
			for (p++; *p && *p != '"'; p++) {
				if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
					p++;
				if (found && n + 1 < room)
					ret[n++] = *p;
			}
		} else {
			size_t len = strcspn(p, "; \t");

			n = MIN(len, room - 1);
			if (found)
				memcpy(ret, p, n);
			p += len;
		}
		if (found) {
			ret[n] = '\0';
			return true;
		}
		p = strchr(p, ';');
	}
	return false;
}

int multipart_new(const char *content_type, const struct multipart_sink *sink, void *arg,
		  struct multipart **ret)
{
	struct multipart *m = calloc(1, sizeof(*m));

	if (!m)
		return fail_memory();
	m->sink = sink;
	m->arg = arg;
	strcpy(m->delimiter, "\r\n--");
	if (!parameter(content_type, "boundary", m->delimiter + 4, sizeof(m->delimiter) - 4) ||
	    !m->delimiter[4]) {
		free(m);
		return fail(PLY_INVALID, "the content type of this form has no boundary");
	}
	m->length = strlen(m->delimiter);
	m->matched = 2; /* the first delimiter may be the first line */
	*ret = m;
	return 0;
}

void multipart_free(struct multipart *m)
{
	free(m);
}

static int give(const struct multipart *m, const char *data, size_t len)
{
	return m->state == DATA && len ? m->sink->data(m->arg, data, len) : 0;
}

/*
 * Data up to a delimiter, or all there is, in one piece: every 256th byte of an archive is a CR.
 * How much was used, or < 0.
 */
static ssize_t take_data(struct multipart *m, const char *data, size_t len)
{
	size_t held = m->matched; /* of the delimiter, what lies before `data` */
	size_t at = 0;
	int r;

	while (at < len && m->matched < m->length) {
		if (m->matched == 0) {
			const char *cr = memchr(data + at, '\r', len - at);

			at = cr ? (size_t)(cr - data) + 1 : len;
			m->matched = cr ? 1 : 0;
		} else if (data[at] == m->delimiter[m->matched]) {
			m->matched++;
			at++;
		} else {
			r = give(m, m->delimiter, held);
			if (r < 0)
				return r;
			m->matched = held = 0;
		}
	}
	r = give(m, data, at - (m->matched - held));
	if (r < 0)
		return r;
	if (m->matched == m->length) {
		m->matched = 0;
		m->n_behind = 0;
		m->state = BEHIND;
	}
	return (ssize_t)at;
}

/* "--", or blanks and CR LF. */
static int take_behind(struct multipart *m, char c)
{
	if (m->n_behind == 0 && (c == ' ' || c == '\t'))
		return 0;
	m->behind[m->n_behind++] = c;
	if (m->n_behind < 2)
		return 0;
	if (memcmp(m->behind, "--", 2) == 0) {
		m->state = EPILOGUE;
	} else if (memcmp(m->behind, "\r\n", 2) == 0) {
		m->state = HEADERS;
		m->n_headers = 0;
	} else {
		return fail(PLY_INVALID, "a boundary of this form has something behind it");
	}
	return 0;
}

/* Its headers are complete: which part it is. */
static int begin_part(struct multipart *m)
{
	char name[256] = "", filename[4096] = "";
	bool named = false, file = false;
	char *save = NULL;

	for (char *line = strtok_r(m->headers, "\r\n", &save); line;
	     line = strtok_r(NULL, "\r\n", &save)) {
		static const char key[] = "Content-Disposition:";

		if (strncasecmp(line, key, sizeof(key) - 1) != 0)
			continue;
		named = parameter(line, "name", name, sizeof(name));
		file = parameter(line, "filename", filename, sizeof(filename));
	}
	if (!named)
		return fail(PLY_INVALID, "a part of this form has no name");
	m->state = DATA;
	m->matched = 0;
	return m->sink->part(m->arg, name, file ? filename : NULL);
}

static int take_header(struct multipart *m, char c)
{
	if (m->n_headers + 1 >= sizeof(m->headers))
		return fail(PLY_INVALID, "a part of this form has too many headers");
	if (c == '\0')
		return fail(PLY_INVALID, "there is a NUL byte in the headers of a part");
	m->headers[m->n_headers++] = c;
	m->headers[m->n_headers] = '\0';
	if (strcmp(m->headers, "\r\n") == 0)
		return fail(PLY_INVALID, "a part of this form has no name");
	if (m->n_headers >= 4 && memcmp(m->headers + m->n_headers - 4, "\r\n\r\n", 4) == 0)
		return begin_part(m);
	return 0;
}

int multipart_feed(struct multipart *m, const char *data, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = 1;
		int r = 0;

		switch (m->state) {
		case PREAMBLE:
		case DATA:
			n = take_data(m, data + at, len - at);
			r = n < 0 ? (int)n : 0;
			break;
		case BEHIND:
			r = take_behind(m, data[at]);
			break;
		case HEADERS:
			r = take_header(m, data[at]);
			break;
		case EPILOGUE:
			return 0;
		}
		if (r < 0)
			return r;
		at += (size_t)n;
	}
	return 0;
}

int multipart_finish(const struct multipart *m)
{
	return m->state == EPILOGUE ? 0 : fail(PLY_INVALID, "this form breaks off");
}
