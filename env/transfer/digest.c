// SPDX-License-Identifier: Apache-2.0

/* SHA-256 is OpenSSL's. */

#include "env/transfer/digest.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define PREFIX "sha256:"
#define BYTES 32

int digest_new(struct digest **ret)
{
	EVP_MD_CTX *md = EVP_MD_CTX_new();

	if (!md)
		return -ENOMEM;
	if (EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
		EVP_MD_CTX_free(md);
		return -ENOMEM;
	}
	*ret = (struct digest *)md;
	return 0;
}

void digest_free(struct digest *d)
{
	EVP_MD_CTX_free((EVP_MD_CTX *)d);
}

int digest_add(struct digest *d, const void *data, size_t len)
{
	return EVP_DigestUpdate((EVP_MD_CTX *)d, data, len) == 1 ? 0 : -ENOMEM;
}

int digest_text(struct digest *d, char ret[static DIGEST_SIZE])
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	char *p = stpcpy(ret, PREFIX);

	if (EVP_DigestFinal_ex((EVP_MD_CTX *)d, bytes, NULL) != 1)
		return -ENOMEM;
	for (size_t i = 0; i < BYTES; i++)
		p += sprintf(p, "%02x", bytes[i]);
	return 0;
}

bool digest_ok(const char *text)
{
	size_t prefix = strlen(PREFIX);

	return strncmp(text, PREFIX, prefix) == 0 && strlen(text + prefix) == 2 * (size_t)BYTES &&
	       strspn(text + prefix, "0123456789abcdef") == 2 * (size_t)BYTES;
}
