/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A slab has slots of one size; the sizes are 64 bytes apart, so that at most so much is lost with
 * each object. A slot begins with its slab. Slabs with a free slot are in a list; one in which
 * nothing is used goes back to malloc.
 */

#include "store/slab.h"

#include <assert.h>
#include <pthread.h>
#include <stdint.h>

#include "store/base/os.h"
#include "store/base/util.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, len) (void)0
#define ASAN_UNPOISON_MEMORY_REGION(p, len) (void)0
#endif

#define STEP 64
#define SIZES (1024 / STEP)

/* A hundred snapshots or so: what is lost with a slab of which little is used is little. */
#define SLAB_BYTES (32 * 1024)

struct slot {
	union {
		struct slab *slab;  /* while it is used */
		struct slot *next;  /* the next free one */
	};
	uint8_t object[] __attribute__((aligned(16)));
};

struct slab {
	struct slabs *set;
	struct slab **list;         /* of its size, in the set */
	struct slab *prev, *next;   /* in the list while there is a free slot */
	struct slot *free;
	size_t size; /* of a slot */
	unsigned used;
	uint8_t bytes[] __attribute__((aligned(16)));
};

struct slabs {
	pthread_mutex_t lock;
	struct slab *lists[SIZES]; /* under lock, like what is in them */
};

struct slabs *slabs_new(void)
{
	struct slabs *s = os_calloc(1, sizeof(*s));

	if (s)
		pthread_mutex_init(&s->lock, NULL);
	return s;
}

void slabs_free(struct slabs *s)
{
	if (!s)
		return;
	for (unsigned i = 0; i < SIZES; i++)
		assert(!s->lists[i]);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void list_add(struct slab *slab)
{
	slab->prev = NULL;
	slab->next = *slab->list;
	if (slab->next)
		slab->next->prev = slab;
	*slab->list = slab;
}

static void list_remove(struct slab *slab)
{
	*(slab->prev ? &slab->prev->next : slab->list) = slab->next;
	if (slab->next)
		slab->next->prev = slab->prev;
}

static struct slab *slab_new(struct slabs *s, struct slab **list, size_t size)
{
	struct slab *slab = os_malloc(SLAB_BYTES);

	if (!slab)
		return NULL;
	*slab = (struct slab){ .set = s, .list = list, .size = size };
	for (size_t i = (SLAB_BYTES - sizeof(*slab)) / size; i-- > 0;) {
		struct slot *slot = (struct slot *)(slab->bytes + i * size);

		slot->next = slab->free;
		slab->free = slot;
		ASAN_POISON_MEMORY_REGION(slot->object, size - sizeof(*slot));
	}
	list_add(slab);
	return slab;
}

void *slab_alloc(struct slabs *s, size_t len)
{
	const size_t n = (sizeof(struct slot) + len + STEP - 1) / STEP;
	struct slab *slab;
	struct slot *slot;

	assert(len <= SLAB_OBJECT_MAX);
	LOCK_GUARD(&s->lock);
	slab = s->lists[n - 1];
	if (!slab)
		slab = slab_new(s, &s->lists[n - 1], n * STEP);
	if (!slab)
		return NULL;
	slot = slab->free;
	slab->free = slot->next;
	slab->used++;
	if (!slab->free)
		list_remove(slab);
	slot->slab = slab;
	ASAN_UNPOISON_MEMORY_REGION(slot->object, len);
	return memset(slot->object, 0, len);
}

void slab_free(void *object)
{
	struct slot *slot = container_of(object, struct slot, object);
	struct slab *slab = slot->slab;

	LOCK_GUARD(&slab->set->lock);
	if (!slab->free)
		list_add(slab);
	slot->next = slab->free;
	slab->free = slot;
	ASAN_POISON_MEMORY_REGION(slot->object, slab->size - sizeof(*slot));
	if (--slab->used > 0)
		return;
	list_remove(slab);
	ASAN_UNPOISON_MEMORY_REGION(slab, SLAB_BYTES);
	free(slab);
}
