/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A client of the soak (soak.c): how it asks, and how it looks at what it gets. */

#include <pthread.h>
#include <stdatomic.h>

#include "tests/lib/soak_http.h"

struct soak {
	unsigned port;
	uint64_t seed;
	const char *token, *dir;
	bool rex; /* a server of that protocol alone */
	struct text archive;
	atomic_long left;
	atomic_ulong statuses[600]; /* of answers; 0: none was waited for */
	atomic_ulong failures;
	/* A restore takes everybody's files back: none is under way while somebody looks at his. */
	pthread_rwlock_t files;
};
extern struct soak soak;

struct client {
	unsigned index;
	uint64_t random;
	unsigned long serial; /* makes names and contents new */
	unsigned port;
	struct conn conn;
	const char *kind, *method; /* for what is printed */
	char path[512];
	struct text headers, body, request;
	struct answer a;
};

void client_init(struct client *c, unsigned index);
void client_release(struct client *c);
unsigned rnd(struct client *c, unsigned below);
void pause_ms(unsigned ms);
/* Prints and counts what must not be; the twentieth ends the program. */
void wrong(struct client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void count(struct client *c, unsigned status);

/* A request to this path: with the token, nothing in it yet. */
void path(struct client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends it to `to`. pieces: as request_add. */
void build(struct client *c, struct text *to, const char *method, unsigned pieces);
/* Sends c->request: how < 12: cut anywhere, how < 3: with pauses. */
bool deliver(struct client *c, unsigned how);
/* Sends it in some way; the answer is in c->a. False, and told: none came. */
bool ask(struct client *c, const char *method);
bool get(struct client *c, const char *where);
bool post(struct client *c, const char *where, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The last answer has this status, and this in its body (NULL: anything); else that is told. */
bool want(struct client *c, unsigned status, const char *part);
/* Its body is just that. */
bool want_all(struct client *c, unsigned status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void letters(struct client *c, struct text *to, size_t len);
size_t length(struct client *c); /* mostly small; some more than the server keeps in memory */

/* What is done: a scenario is a handful of requests. Tables end with one without a name. */
struct scenario {
	const char *name;
	unsigned weight;
	void (*play)(struct client *c);
};
extern const struct scenario env_scenarios[];  /* soak_env.c: the protocols on environments */
extern const struct scenario rude_scenarios[]; /* soak_rude.c */
