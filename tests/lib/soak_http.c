/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/lib/soak_http.h"

#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE 60 /* seconds */

static void text_need(struct text *t, size_t more)
{
	size_t room = t->room ? t->room : 4096;

	if (t->len + more + 1 <= t->room)
		return;
	while (room < t->len + more + 1)
		room *= 2;
	t->data = realloc(t->data, room);
	if (!t->data)
		err(1, "out of memory");
	t->room = room;
}

void text_add(struct text *t, const void *data, size_t len)
{
	text_need(t, len);
	memcpy(t->data + t->len, data, len);
	t->len += len;
	t->data[t->len] = '\0';
}

void text_format(struct text *t, const char *format, ...)
{
	char *s;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vasprintf(&s, format, ap);
	va_end(ap);
	if (n < 0)
		err(1, "out of memory");
	text_add(t, s, (size_t)n);
	free(s);
}

void text_clear(struct text *t)
{
	text_need(t, 0);
	t->len = 0;
	t->data[0] = '\0';
}

/* ---- connections ---- */

bool conn_open(struct conn *c, unsigned port)
{
	const struct sockaddr_in at = { .sin_family = AF_INET,
					.sin_port = htons((uint16_t)port),
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const struct timeval patience = { .tv_sec = PATIENCE };
	const int one = 1;

	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		err(1, "a socket");
	(void)setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	(void)setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	(void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	text_clear(&c->in);
	c->taken = 0;
	c->port = port;
	c->fresh = true;
	c->ended = false;
	if (connect(c->fd, (const struct sockaddr *)&at, sizeof(at)) == 0)
		return true;
	conn_close(c, GENTLY);
	return false;
}

void conn_close(struct conn *c, enum how_to_close how)
{
	const struct linger at_once = { .l_onoff = 1 };

	if (c->fd < 0)
		return;
	if (how == BY_RESET)
		(void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	(void)close(c->fd);
	c->fd = -1;
	free(c->in.data);
	c->in = (struct text){ 0 };
	c->taken = 0;
}

bool conn_send(struct conn *c, const void *data, size_t len)
{
	const char *at = data;

	while (len > 0) {
		ssize_t n = send(c->fd, at, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		at += n;
		len -= (size_t)n;
	}
	return true;
}

bool conn_more(struct conn *c)
{
	char buf[65536];
	ssize_t n;

	do
		n = recv(c->fd, buf, sizeof(buf), 0);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return false;
	c->fresh = false;
	text_add(&c->in, buf, (size_t)n);
	return true;
}

/* The line at `at`, ended by a NUL in place; *at is behind it. NULL: the connection ended. */
static char *line(struct conn *c, size_t *at)
{
	char *end;

	while (c->in.len <= *at || !(end = memmem(c->in.data + *at, c->in.len - *at, "\r\n", 2)))
		if (!conn_more(c))
			return NULL;
	*end = '\0';
	end = c->in.data + *at;
	*at += strlen(end) + 2;
	return end;
}

static bool have(struct conn *c, size_t len)
{
	while (c->in.len < len)
		if (!conn_more(c))
			return false;
	return true;
}

/* The chunks at `at` become one run of bytes there; *ret_end is behind the last one. */
static bool join_chunks(struct conn *c, size_t at, size_t *ret_len, size_t *ret_end)
{
	size_t to = at;

	for (;;) {
		char *s = line(c, &at), *end;
		size_t n;

		if (!s)
			return false;
		n = strtoul(s, &end, 16);
		if (end == s)
			return false;
		if (!have(c, at + n + 2))
			return false;
		memmove(c->in.data + to, c->in.data + at, n);
		to += n;
		at += n + 2;
		if (n == 0)
			break;
	}
	*ret_end = at;
	*ret_len = to;
	return true;
}

bool conn_receive(struct conn *c, struct answer *ret)
{
	bool chunked = false, sized = false, closes = false;
	size_t at = 0, begin, end, len = 0;
	char *s;

	/* What was taken makes room. */
	memmove(c->in.data, c->in.data + c->taken, c->in.len - c->taken);
	c->in.len -= c->taken;
	c->taken = 0;
	do {
		s = line(c, &at);
		if (!s || strncmp(s, "HTTP/1.", 7) != 0)
			return false;
		ret->status = (unsigned)atoi(s + 9);
		while ((s = line(c, &at)) && *s) {
			if (strncasecmp(s, "Content-Length:", 15) == 0) {
				len = strtoul(s + 15, NULL, 10);
				sized = true;
			} else if (strncasecmp(s, "Transfer-Encoding:", 18) == 0) {
				chunked = strcasestr(s, "chunked");
			} else if (strncasecmp(s, "Connection:", 11) == 0) {
				closes = strcasestr(s, "close");
			}
		}
		if (!s)
			return false;
	} while (ret->status == 100);
	begin = at;
	if (chunked) {
		if (!join_chunks(c, at, &end, &c->taken))
			return false;
		len = end - begin;
	} else if (sized) {
		if (!have(c, begin + len))
			return false;
		c->taken = begin + len;
	} else if (closes) {
		while (conn_more(c))
			;
		len = c->in.len - begin;
		c->taken = c->in.len;
	}
	/* A NUL behind the body, without harm to an answer that is there already. */
	if (c->taken == begin + len && c->in.len > c->taken) {
		memmove(c->in.data + begin - 1, c->in.data + begin, len);
		begin--;
	}
	c->in.data[begin + len] = '\0';
	ret->body = c->in.data + begin;
	ret->len = len;
	c->ended = closes;
	return true;
}

/* ---- requests ---- */

void request_add(struct text *t, const char *method, const char *path, const char *headers,
		 const char *body, size_t len, unsigned pieces)
{
	text_format(t, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers);
	if (!pieces) {
		if (body)
			text_format(t, "Content-Length: %zu\r\n", len);
		text_add(t, "\r\n", 2);
		text_add(t, body ? body : "", len);
		return;
	}
	text_format(t, "Transfer-Encoding: chunked\r\n\r\n");
	for (size_t each = len / pieces + 1, n; len > 0; body += n, len -= n) {
		n = each < len ? each : len;
		text_format(t, "%zx\r\n", n);
		text_add(t, body, n);
		text_add(t, "\r\n", 2);
	}
	text_format(t, "0\r\n\r\n");
}
