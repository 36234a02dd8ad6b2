// SPDX-License-Identifier: Apache-2.0

/*
 * SHA-256 is OpenSSL's, by the functions that need no memory: what sets up all the others reads
 * configuration, and when it fails once it fails for as long as the process lives.
 */

#define OPENSSL_SUPPRESS_DEPRECATED /* as which 3.0 has them */

#include "env/transfer/digest.h"

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
	(void)SHA256_Init(&d->sha); /* none of the three can fail */
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

void digest_text(struct digest *d, char ret[static DIGEST_SIZE])
{
	unsigned char bytes[SHA256_DIGEST_LENGTH];
	char *p = stpcpy(ret, PREFIX);

	(void)SHA256_Final(bytes, &d->sha);
	for (size_t i = 0; i < sizeof(bytes); i++)
		p += sprintf(p, "%02x", bytes[i]);
}

bool digest_ok(const char *text)
{
	size_t prefix = strlen(PREFIX);

	return strncmp(text, PREFIX, prefix) == 0 && strlen(text + prefix) == DIGITS &&
	       strspn(text + prefix, "0123456789abcdef") == DIGITS;
}
