/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* SHA-256, as images name things: "sha256:" and 64 hex digits; SHA-1, as git names contents. */

#include <stdbool.h>
#include <stddef.h>

#define DIGEST_SIZE 72 /* "sha256:", 64 hex digits, NUL */

struct digest;

int digest_new(struct digest **ret);
void digest_free(struct digest *d);
static inline void digest_freep(struct digest **d)
{
	if (*d)
		digest_free(*d);
}
void digest_add(struct digest *d, const void *data, size_t len);
/* What was added so far; the digest is at its end. */
void digest_text(struct digest *d, char ret[static DIGEST_SIZE]);
/* Well-formed, lower case? */
bool digest_ok(const char *text);

#define BLOB_ID_SIZE 41 /* 40 hex digits, NUL */

/* What git calls a file of this content. */
void digest_blob(const void *data, size_t len, char ret[static BLOB_ID_SIZE]);
