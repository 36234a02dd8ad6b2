/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Buffers of decoded chunks, and the cache of those that were read last. A buffer is freed with its
 * last reference; the cache has one of each that it keeps.
 */

#include "store/chunk_internal.h"

#include "store/base/os.h"

struct cached {
	struct cached *chain;         /* in its bucket */
	struct cached *newer, *older; /* by last use */
	struct chunkbuf buf;          /* last: its bytes follow */
};

static struct cached *cached_of(struct chunkbuf *b)
{
	return container_of(b, struct cached, buf);
}

struct chunkbuf *chunkbuf_new(const struct name *name, uint32_t len)
{
	struct cached *entry;

	entry = os_malloc(sizeof(*entry) + len);
	if (!entry)
		return NULL;
	*entry = (struct cached){ .buf = { .name = *name, .len = len, .refs = 1 } };
	return &entry->buf;
}

static void chunkbuf_ref(struct chunkbuf *b)
{
	(void)__atomic_fetch_add(&b->refs, 1, __ATOMIC_RELAXED); /* the caller has a reference */
}

void chunkbuf_unref(struct chunkbuf *b)
{
	if (b && __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL) == 0)
		free(cached_of(b));
}

static struct cached **cache_slot(struct cache *cache, const struct name *name)
{
	struct cached **at = &cache->buckets[(name_spread(name) >> 32) % CACHE_BUCKETS];

	while (*at && !name_eq(&(*at)->buf.name, name))
		at = &(*at)->chain;
	return at;
}

static uint64_t cache_charge(const struct cached *entry)
{
	return MAX(sizeof(*entry) + entry->buf.len, CACHE_CHARGE_MIN);
}

static void cache_list_remove(struct cache *cache, struct cached *entry)
{
	*(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
	*(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void cache_list_push(struct cache *cache, struct cached *entry)
{
	entry->newer = NULL;
	entry->older = cache->newest;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
	cache->newest = entry;
}

/* Under the cache's lock: takes the entry in this slot out and drops the cache's reference. */
static void cache_remove(struct cache *cache, struct cached **at)
{
	struct cached *entry = *at;

	*at = entry->chain;
	cache_list_remove(cache, entry);
	cache->bytes -= cache_charge(entry);
	chunkbuf_unref(&entry->buf);
}

void cache_init(struct cache *cache)
{
	pthread_mutex_init(&cache->lock, NULL);
	cache->limit = CACHE_BYTES;
}

void cache_release(struct cache *cache)
{
	while (cache->oldest)
		cache_remove(cache, cache_slot(cache, &cache->oldest->buf.name));
	pthread_mutex_destroy(&cache->lock);
}

struct chunkbuf *cache_get(struct cache *cache, const struct name *name)
{
	struct cached *entry;

	LOCK_GUARD(&cache->lock);
	entry = *cache_slot(cache, name);
	if (!entry)
		return NULL;
	if (entry != cache->newest) {
		cache_list_remove(cache, entry);
		cache_list_push(cache, entry);
	}
	chunkbuf_ref(&entry->buf);
	return &entry->buf;
}

void cache_add(struct cache *cache, struct chunkbuf *b)
{
	struct cached *entry = cached_of(b);
	struct cached **at;

	LOCK_GUARD(&cache->lock);
	at = cache_slot(cache, &b->name);
	if (*at)
		return;
	chunkbuf_ref(b);
	*at = entry;
	cache_list_push(cache, entry);
	cache->bytes += cache_charge(entry);
	while (cache->bytes > cache->limit && cache->oldest != entry)
		cache_remove(cache, cache_slot(cache, &cache->oldest->buf.name));
}

void chunk_uncache(struct chunks *c, const struct name *name)
{
	struct cached **at;

	chunk_blocks_forget(c, name);

	LOCK_GUARD(&c->cache.lock);
	at = cache_slot(&c->cache, name);
	if (*at)
		cache_remove(&c->cache, at);
}
