/* SPDX-License-Identifier: Apache-2.0 */
#include "store/codec.h"

#include <errno.h>
#include <string.h>
#include <zstd.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/pack.h"

/*
 * Contexts are costly to make, so a few rest between uses: who needs one takes it, alone, and gives
 * it back. Stored bytes are nobody's word: what does not decode to just the length that the header
 * told is damaged.
 */

/* Level 1: nodes are written at each checkpoint; more gains little on inputs of 4 KiB. */
#define ZSTD_LEVEL 1

void codecs_init(struct codecs *c)
{
	*c = (struct codecs){ .n_cctx = 0 };
	pthread_mutex_init(&c->lock, NULL);
}

void codecs_release(struct codecs *c)
{
	while (c->n_cctx > 0)
		(void)ZSTD_freeCCtx(c->cctx[--c->n_cctx]); /* as in cctx_give */
	while (c->n_dctx > 0)
		(void)ZSTD_freeDCtx(c->dctx[--c->n_dctx]);
	pthread_mutex_destroy(&c->lock);
}

static ZSTD_CCtx *cctx_take(struct codecs *c)
{
	{
		LOCK_GUARD(&c->lock);
		if (c->n_cctx > 0)
			return c->cctx[--c->n_cctx];
	}
	return ZSTD_createCCtx();
}

static void cctx_give(struct codecs *c, ZSTD_CCtx *ctx)
{
	{
		LOCK_GUARD(&c->lock);
		if (c->n_cctx < CODECS_MAX) {
			c->cctx[c->n_cctx++] = ctx;
			return;
		}
	}
	(void)ZSTD_freeCCtx(ctx); /* always 0 for a context of ours */
}

static ZSTD_DCtx *dctx_take(struct codecs *c)
{
	{
		LOCK_GUARD(&c->lock);
		if (c->n_dctx > 0)
			return c->dctx[--c->n_dctx];
	}
	return ZSTD_createDCtx();
}

static void dctx_give(struct codecs *c, ZSTD_DCtx *ctx)
{
	{
		LOCK_GUARD(&c->lock);
		if (c->n_dctx < CODECS_MAX) {
			c->dctx[c->n_dctx++] = ctx;
			return;
		}
	}
	(void)ZSTD_freeDCtx(ctx); /* always 0 for a context of ours */
}

uint32_t codec_compress(struct codecs *c, const void *data, size_t len, void *to)
{
	ZSTD_CCtx *ctx;
	size_t n;

	if (len < 2)
		return 0;
	ctx = cctx_take(c);
	if (!ctx)
		return 0;
	n = ZSTD_compressCCtx(ctx, to, len - 1, data, len, ZSTD_LEVEL);
	cctx_give(c, ctx);
	return ZSTD_isError(n) ? 0 : (uint32_t)n;
}

int codec_decode(struct codecs *c, uint8_t codec, const void *stored, uint32_t stored_len,
		 void *raw, uint32_t raw_len)
{
	ZSTD_DCtx *ctx;
	size_t n;

	if (codec == CODEC_PLAIN) {
		if (stored_len != raw_len)
			return -ERR_CHUNK_DAMAGED;
		memcpy(raw, stored, raw_len);
		return 0;
	}
	if (codec != CODEC_ZSTD)
		return -ERR_CHUNK_DAMAGED;

	ctx = dctx_take(c);
	if (!ctx)
		return -ENOMEM;
	n = ZSTD_decompressDCtx(ctx, raw, raw_len, stored, stored_len);
	dctx_give(c, ctx);
	return ZSTD_isError(n) || n != raw_len ? -ERR_CHUNK_DAMAGED : 0;
}
