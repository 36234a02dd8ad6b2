/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* HTTP/1.1 from the client's side, down to the bytes: for a client that misbehaves on purpose. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text { /* grows; a NUL follows */
	char *data;
	size_t len, room;
};

void text_add(struct text *t, const void *data, size_t len);
void text_format(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_clear(struct text *t);

struct conn {
	int fd; /* -1: closed */
	unsigned port;
	struct text in; /* what came and was not taken */
	size_t taken;
	bool fresh; /* nothing has come on it yet */
	bool ended; /* the server has said that it closes it */
};

/* False: nobody listens there. Whoever is silent for a minute is taken for dead. */
bool conn_open(struct conn *c, unsigned port);
enum how_to_close { GENTLY, BY_RESET };
void conn_close(struct conn *c, enum how_to_close how);
bool conn_send(struct conn *c, const void *data, size_t len); /* false: the server closed it */
/* Waits for some more bytes. False: the end, or a minute without any. */
bool conn_more(struct conn *c);

struct answer {
	unsigned status;
	const char *body; /* len bytes and a NUL, until the next one is received */
	size_t len;
};
/* One answer. False: the server closed the connection before its end, or is silent. */
bool conn_receive(struct conn *c, struct answer *ret);

/* Appends a request. headers: lines with their ends, or "". pieces: > 0: chunked, in so many. */
void request_add(struct text *t, const char *method, const char *path, const char *headers,
		 const char *body, size_t len, unsigned pieces);
