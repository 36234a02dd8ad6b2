/* SPDX-License-Identifier: Apache-2.0 */

/*
 * SHA-256 and SHA-1 are OpenSSL's, by the functions that need no memory: what sets up all the
 * others reads configuration, and when it fails once it fails for as long as the process lives.
 */

#define OPENSSL_SUPPRESS_DEPRECATED /* as which 3.0 has them */

#include "env/formats/digest.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "sha256:"
#define DIGITS (2 * (size_t)SHA256_DIGEST_LENGTH)

struct digest {
	SHA256_CTX sha;
};

int digest_new(struct digest **ret)
{
	struct digest *d = malloc(sizeof(*d));

	if (!d)
		return -ENOMEM;
	(void)SHA256_Init(&d->sha); /* none here can fail */
	*ret = d;
	return 0;
}

void digest_free(struct digest *d)
{
	free(d);
}

void digest_add(struct digest *d, const void *data, size_t len)
{
	(void)SHA256_Update(&d->sha, data, len);
}

static void put_hex(char *p, const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		p += sprintf(p, "%02x", bytes[i]);
}

void digest_text(struct digest *d, char ret[static DIGEST_SIZE])
{
	unsigned char bytes[SHA256_DIGEST_LENGTH];

	(void)SHA256_Final(bytes, &d->sha);
	put_hex(stpcpy(ret, PREFIX), bytes, sizeof(bytes));
}

bool digest_ok(const char *text)
{
	size_t prefix = strlen(PREFIX);

	return strncmp(text, PREFIX, prefix) == 0 && strlen(text + prefix) == DIGITS &&
	       strspn(text + prefix, "0123456789abcdef") == DIGITS;
}

void digest_blob(const void *data, size_t len, char ret[static BLOB_ID_SIZE])
{
	unsigned char bytes[SHA_DIGEST_LENGTH];
	char head[sizeof("blob 18446744073709551615")]; /* its NUL belongs to it */
	SHA_CTX sha;

	(void)SHA1_Init(&sha);
	(void)SHA1_Update(&sha, head, (size_t)sprintf(head, "blob %zu", len) + 1);
	(void)SHA1_Update(&sha, data, len);
	(void)SHA1_Final(bytes, &sha);
	put_hex(ret, bytes, sizeof(bytes));
}
