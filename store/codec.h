/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How payloads of records are packed (CODEC_*, pack.h), and the contexts that packing needs. Any
 * number of threads may use one struct codecs.
 */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* Idle zstd contexts kept (about 1 MB for each direction): as many as threads that work at once. */
#define CODECS_MAX 4

struct codecs {
	pthread_mutex_t lock; /* a leaf */
	struct ZSTD_CCtx_s *cctx[CODECS_MAX]; /* under lock, owned */
	struct ZSTD_DCtx_s *dctx[CODECS_MAX];
	unsigned n_cctx, n_dctx;
};

void codecs_init(struct codecs *c);
void codecs_release(struct codecs *c);

/* Compresses into `to` when that takes at most len - 1 bytes; 0 when it does not (or cannot). */
uint32_t codec_compress(struct codecs *c, const void *data, size_t len, void *to);
/* Gives exactly raw_len bytes. -ERR_CHUNK_DAMAGED, -ENOMEM. */
int codec_decode(struct codecs *c, uint8_t codec, const void *stored, uint32_t stored_len,
		 void *raw, uint32_t raw_len);
