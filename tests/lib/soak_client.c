/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/lib/soak_client.h"

#include <err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAILURES_MAX 20

void client_init(struct client *c, unsigned index)
{
	*c = (struct client){ .index = index, .port = soak.port, .conn.fd = -1, .kind = "" };
	c->random = (soak.seed * 1000 + index + 1) * 0x9e3779b97f4a7c15;
}

void client_release(struct client *c)
{
	conn_close(&c->conn, GENTLY);
	free(c->headers.data);
	free(c->body.data);
	free(c->request.data);
}

unsigned rnd(struct client *c, unsigned below)
{
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	return (unsigned)((c->random >> 16) % below);
}

void pause_ms(unsigned ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	(void)nanosleep(&t, NULL);
}

void wrong(struct client *c, const char *format, ...)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	va_list ap;

	pthread_mutex_lock(&lock);
	printf("WRONG %s: %s %.200s: ", c->kind, c->method, c->path);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n  sent: %.300s\n", c->body.data ? c->body.data : "");
	if (atomic_fetch_add(&soak.failures, 1) + 1 == FAILURES_MAX) {
		printf("too many failures\n");
		exit(1);
	}
	(void)fflush(stdout);
	pthread_mutex_unlock(&lock);
}

/* ---- requests and answers ---- */

void count(struct client *c, unsigned status)
{
	atomic_fetch_sub(&soak.left, 1);
	if (status < 600)
		atomic_fetch_add(&soak.statuses[status], 1);
}

void build(struct client *c, struct text *to, const char *method, unsigned pieces)
{
	c->method = method;
	request_add(to, method, c->path, c->headers.data,
		    c->body.len || *method == 'P' ? c->body.data : NULL, c->body.len, pieces);
}

bool deliver(struct client *c, unsigned how)
{
	unsigned cuts = how < 12 ? 1 + rnd(c, 6) : 0;
	size_t at = 0;

	for (; cuts > 0; cuts--) {
		size_t n = rnd(c, (unsigned)(c->request.len - at) + 1);

		if (!conn_send(&c->conn, c->request.data + at, n))
			return false;
		at += n;
		if (how < 3)
			pause_ms(1 + rnd(c, 20));
	}
	return conn_send(&c->conn, c->request.data + at, c->request.len - at);
}

bool ask(struct client *c, const char *method)
{
	unsigned how = rnd(c, 100);

	if (how >= 94)
		conn_close(&c->conn, how >= 98 ? BY_RESET : GENTLY);
	if (how >= 90 && how < 94)
		text_format(&c->headers, "Connection: close\r\n");
	text_clear(&c->request);
	build(c, &c->request, method, how >= 80 && how < 90 && c->body.len ? 1 + rnd(c, 5) : 0);
	for (;;) {
		bool used;

		if (c->conn.fd >= 0 && c->conn.ended)
			conn_close(&c->conn, GENTLY);
		used = c->conn.fd >= 0;
		if (!used && !conn_open(&c->conn, c->port))
			break;
		c->conn.fresh = true;
		if (deliver(c, how) && conn_receive(&c->conn, &c->a)) {
			count(c, c->a.status);
			return true;
		}
		/* The server may end a connection that is not new; then nothing has come. */
		if (!used || !c->conn.fresh)
			break;
		conn_close(&c->conn, GENTLY);
	}
	conn_close(&c->conn, GENTLY);
	c->a = (struct answer){ .body = "" };
	count(c, 0);
	wrong(c, "no answer");
	return false;
}

void path(struct client *c, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(c->path, sizeof(c->path), format, ap);
	va_end(ap);
	text_clear(&c->body);
	text_clear(&c->headers);
	text_format(&c->headers, "X-API-Key: %s\r\n", soak.token);
}

bool get(struct client *c, const char *where)
{
	path(c, "%s", where);
	return ask(c, "GET");
}

bool post(struct client *c, const char *where, const char *format, ...)
{
	char *s;
	va_list ap;

	path(c, "%s", where);
	va_start(ap, format);
	if (vasprintf(&s, format, ap) < 0)
		err(1, "out of memory");
	va_end(ap);
	text_add(&c->body, s, strlen(s));
	free(s);
	return ask(c, "POST");
}

bool want(struct client *c, unsigned status, const char *part)
{
	if (c->a.status == 0)
		return false; /* told */
	if (c->a.status == status && (!part || strstr(c->a.body, part)))
		return true;
	wrong(c, "wanted %u and '%.200s', got %u and '%.400s'", status, part ? part : "",
	      c->a.status, c->a.body);
	return false;
}

bool want_all(struct client *c, unsigned status, const char *format, ...)
{
	char *s;
	va_list ap;
	bool same;

	va_start(ap, format);
	if (vasprintf(&s, format, ap) < 0)
		err(1, "out of memory");
	va_end(ap);
	same = c->a.status == 0 || (want(c, status, s) && c->a.len == strlen(s));
	if (!same && c->a.status == status)
		wrong(c, "wanted '%.200s', got '%.400s'", s, c->a.body);
	free(s);
	return same;
}

void letters(struct client *c, struct text *to, size_t len)
{
	char s[64];

	text_add(to, "", 0); /* none of them is a text, too */
	for (; len > 0; len -= len < sizeof(s) ? len : sizeof(s)) {
		for (size_t i = 0; i < sizeof(s); i++)
			s[i] = (char)('a' + rnd(c, 26));
		text_add(to, s, len < sizeof(s) ? len : sizeof(s));
	}
}

size_t length(struct client *c)
{
	unsigned r = rnd(c, 1000);

	return r < 900 ? rnd(c, 2000) : r < 995 ? rnd(c, 60000) : 262000 + rnd(c, 300000);
}
