/* SPDX-License-Identifier: Apache-2.0 */

/* See once.h. A ring of entries: the oldest one that is not being served makes room. */

#include "env/serve/once.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/status.h"
#include "store/base/util.h"

/* A client tries again within seconds; this many requests in between is a busy minute. */
#define ENTRIES 256
/* Of one answer: more than commands say. What is larger (a file) is made again instead. */
#define BODY_MAX (4u << 20)
/* Of all of them. */
#define KEPT_MAX (16u << 20)

struct entry {
	uint64_t ticket; /* 0: free */
	char *key;	 /* method, path and id; owned */
	bool running;
	unsigned status;
	char *body;
	size_t len;
};

struct once {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t last;
	size_t kept; /* bytes of bodies */
	struct entry entries[ENTRIES];
};

int once_new(struct once **ret)
{
	struct once *o = calloc(1, sizeof(*o));

	if (!o)
		return fail_memory();
	pthread_mutex_init(&o->lock, NULL);
	pthread_cond_init(&o->changed, NULL);
	*ret = o;
	return 0;
}

static void entry_clear(struct once *o, struct entry *e)
{
	o->kept -= e->len;
	free(e->key);
	free(e->body);
	*e = (struct entry){ 0 };
}

void once_free(struct once *o)
{
	if (!o)
		return;
	for (size_t i = 0; i < ENTRIES; i++)
		entry_clear(o, &o->entries[i]);
	pthread_mutex_destroy(&o->lock);
	pthread_cond_destroy(&o->changed);
	free(o);
}

static struct entry *find(struct once *o, const char *key)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (o->entries[i].ticket && strcmp(o->entries[i].key, key) == 0)
			return &o->entries[i];
	return NULL;
}

/* Of those that have an answer, or are free; NULL: all are being served. */
static struct entry *oldest(struct once *o)
{
	struct entry *found = NULL;

	for (size_t i = 0; i < ENTRIES; i++) {
		struct entry *e = &o->entries[i];

		if (!e->running && (!found || e->ticket < found->ticket))
			found = e;
	}
	return found;
}

enum once_outcome once_begin(struct once *o, const char *id, const char *method, const char *path,
			     uint64_t *ret_ticket, struct http_response *r)
{
	_cleanup_free_ char *key = NULL;
	struct entry *e;

	*ret_ticket = 0;
	if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
		return ONCE_FRESH; /* they change nothing */
	if (!id || asprintf(&key, "%s %s %s", method, path, id) < 0) {
		key = NULL;
		return ONCE_FRESH;
	}

	LOCK_GUARD(&o->lock);
	while ((e = find(o, key)) && e->running)
		pthread_cond_wait(&o->changed, &o->lock);
	if (e) {
		r->status = e->status;
		r->len = e->len;
		r->body = malloc(e->len + 1);
		if (r->body) {
			memcpy(r->body, e->body, e->len);
			return ONCE_AGAIN;
		}
		return ONCE_FRESH; /* served twice rather than not at all */
	}
	e = oldest(o);
	if (!e)
		return ONCE_FRESH;
	entry_clear(o, e);
	e->key = TAKE_PTR(key);
	e->running = true;
	e->ticket = *ret_ticket = ++o->last;
	return ONCE_FRESH;
}

/* What was answered longest ago goes until `len` more bytes are within bounds. */
static void make_room(struct once *o, size_t len)
{
	while (o->kept + len > KEPT_MAX) {
		struct entry *first = NULL;

		for (size_t i = 0; i < ENTRIES; i++) {
			struct entry *e = &o->entries[i];

			if (e->len > 0 && (!first || e->ticket < first->ticket))
				first = e;
		}
		entry_clear(o, first); /* there is one: the bytes are somebody's */
	}
}

void once_done(struct once *o, uint64_t ticket, const struct http_response *r, bool keep)
{
	LOCK_GUARD(&o->lock);

	for (size_t i = 0; ticket && i < ENTRIES; i++) {
		struct entry *e = &o->entries[i];

		if (e->ticket != ticket)
			continue;
		/* With a header of its own it says where else to ask: nothing was done. */
		if (keep && !r->stream && r->fd < 0 && !r->header_name && r->len <= BODY_MAX) {
			make_room(o, r->len);
			e->body = malloc(r->len + 1);
		}
		if (e->body) {
			memcpy(e->body, r->body ? r->body : "", r->len);
			e->len = r->len;
			o->kept += r->len;
			e->status = r->status;
			e->running = false;
		} else {
			entry_clear(o, e);
		}
		pthread_cond_broadcast(&o->changed);
	}
}
