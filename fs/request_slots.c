/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the reader pool has from the store's stage: a WRITE's bytes are copied there once it is
 * answered (store/behind.h).
 */

#include "fs/mount.h"
#include "fs/readers.h"
#include "store/stage.h"

_Static_assert(STAGE_SLOT_BYTES == 4096 + DATA_BYTES, "a request and its page of headers");
_Static_assert(STAGE_SLOT_HEAD <= 4096 - HEADER_BYTES, "the stage's part ends before them");

static uint8_t *take(void *arg)
{
	return stage_slot_take(arg);
}

static void give(void *arg, uint8_t *slot)
{
	stage_slot_give(arg, slot);
}

static void serve(void *arg, uint8_t *slot)
{
	stage_slot_serve(arg, slot);
}

static void serve_beside(void *arg, uint8_t *slot)
{
	stage_slot_serve_beside(arg, slot);
}

static int served(void *arg)
{
	return stage_slot_served(arg);
}

static void give_up(void *arg, uint8_t *slot)
{
	stage_slot_give_up(arg, slot);
}

int readers_new_for(unsigned max_spare, struct stage *stage, struct readers **ret)
{
	const struct reader_memory memory = {
		.arg = stage,
		.take = take,
		.give = give,
		.serve = serve,
		.serve_beside = serve_beside,
		.served = served,
		.give_up = give_up,
	};

	return readers_new(max_spare, &memory, ret);
}
