/* SPDX-License-Identifier: Apache-2.0 */

/* Clients with bad manners: they leave in the middle, say what is no HTTP, do not wait. */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/lib/soak_client.h"

/* Some request, whole, into c->request. */
static void some_request(struct client *c)
{
	text_clear(&c->request);
	switch (rnd(c, 6)) {
	case 0:
		path(c, "/execute");
		text_format(&c->body, "{\"command\":\"sleep 0.0%u; echo\",\"shell\":true}",
			    rnd(c, 9));
		break;
	case 1:
		path(c, "/write_file");
		text_format(&c->body, "{\"path\":\"%s/c%u/lost\",\"content\":\"", soak.dir,
			    c->index);
		letters(c, &c->body, length(c));
		text_format(&c->body, "\"}");
		break;
	case 2:
		path(c, "/upload");
		text_format(&c->headers, "Content-Type: multipart/form-data; boundary=b\r\n");
		text_format(&c->body, "--b\r\nContent-Disposition: form-data; name=\"file\"; "
				      "filename=\"f\"\r\n\r\n");
		letters(c, &c->body, length(c));
		text_format(&c->body, "\r\n--b--\r\n");
		break;
	case 3:
		path(c, "/read_file");
		text_format(&c->body, "{\"path\":\"/etc/passwd\"}");
		break;
	default:
		path(c, "/is_alive");
		build(c, &c->request, "GET", 0);
		return;
	}
	build(c, &c->request, "POST", rnd(c, 2));
}

/* Is sent up to some byte, and then the client is gone; or does not wait for the answer. */
static void gone(struct client *c)
{
	size_t len;

	some_request(c);
	len = rnd(c, 3) ? rnd(c, (unsigned)c->request.len) : c->request.len;
	conn_close(&c->conn, GENTLY);
	if (!conn_open(&c->conn, c->port)) {
		wrong(c, "cannot connect");
		return;
	}
	(void)conn_send(&c->conn, c->request.data, len);
	if (rnd(c, 2))
		pause_ms(rnd(c, 5));
	count(c, 0);
	conn_close(&c->conn, rnd(c, 2) ? BY_RESET : GENTLY);
}

static void garbage(struct client *c)
{
	static const char *const lines[] = {
		"GET /is_alive HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
		"GET  HTTP/9.9\r\n\r\n",
		"POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"\r\n\r\n\r\n",
		"GET /%zz%00%2e%2e/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x02",
		"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data\r\n\r\n"
	};

	text_clear(&c->request);
	switch (rnd(c, 4)) {
	case 0:
		for (unsigned n = rnd(c, 2000); n > 0; n--)
			text_add(&c->request, &(char){ (char)rnd(c, 256) }, 1);
		break;
	case 1: /* more headers, or longer ones, than there is room for */
		text_format(&c->request, "GET /is_alive HTTP/1.1\r\nHost: x\r\n");
		for (unsigned n = rnd(c, 2000); n > 0; n--)
			text_format(&c->request, "X-%u: %0*u\r\n", n, (int)rnd(c, 60) + 1, n);
		text_format(&c->request, "\r\n");
		break;
	case 2: /* a request with a byte that is not what it was (and writes to no other path) */
		do
			some_request(c);
		while (strcmp(c->path, "/write_file") == 0);
		c->request.data[rnd(c, (unsigned)c->request.len)] = (char)rnd(c, 256);
		break;
	default:
		text_format(&c->request, "%s", lines[rnd(c, sizeof(lines) / sizeof(*lines))]);
	}
	conn_close(&c->conn, GENTLY);
	if (!conn_open(&c->conn, c->port)) {
		wrong(c, "cannot connect");
		return;
	}
	(void)conn_send(&c->conn, c->request.data, c->request.len);
	(void)shutdown(c->conn.fd, SHUT_WR);
	/* What it says does not matter, but that it comes to an end does. */
	while (conn_more(&c->conn))
		;
	if (c->conn.in.len == 0 && errno == EAGAIN)
		wrong(c, "nothing, and not closed");
	count(c, 0);
	conn_close(&c->conn, GENTLY);
}

/* Several at once; the answers come in their order. */
static void pipelined(struct client *c)
{
	unsigned n = 2 + rnd(c, 8), kinds = c->random % 65536;

	conn_close(&c->conn, GENTLY);
	if (!conn_open(&c->conn, c->port)) {
		wrong(c, "cannot connect");
		return;
	}
	text_clear(&c->request);
	for (unsigned i = 0; i < n; i++) {
		path(c, kinds >> i & 1 ? "/is_alive" : "/nope");
		if (kinds >> (i + 1) & 1)
			letters(c, &c->body, rnd(c, 500));
		build(c, &c->request, kinds >> i & 1 ? "GET" : "POST", 0);
	}
	if (!deliver(c, rnd(c, 20)))
		wrong(c, "cannot be sent");
	for (unsigned i = 0; i < n; i++) {
		if (!conn_receive(&c->conn, &c->a)) {
			wrong(c, "answer %u of %u did not come", i + 1, n);
			break;
		}
		count(c, c->a.status);
		want(c, kinds >> i & 1 ? 200 : 404, NULL);
	}
}

const struct scenario rude_scenarios[] = {
	{ "gone", 60, gone },
	{ "garbage", 30, garbage },
	{ "pipelined", 60, pipelined },
	{ NULL, 0, NULL },
};
