/* SPDX-License-Identifier: Apache-2.0 */

/* Bytes that are text as a rule as a string of JSON, which holds text only. */

#include <stdlib.h>
#include <string.h>

#include "tools/cmd_util.h"

json_t *json_text(const char *s)
{
	json_t *j = json_string(s);
	char *made;
	size_t n = 0;

	if (j)
		return j;

	/*
	 * Not UTF-8: bytes beyond ASCII become U+0080..U+00FF. A name that is UTF-8 may hold those
	 * itself: none that JSON has is free for bytes, as names may be any text (plyfs.1).
	 */
	made = malloc(2 * strlen(s) + 1);
	if (!made)
		return NULL;
	for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
		if (*p < 0x80) {
			made[n++] = (char)*p;
		} else {
			made[n++] = (char)(0xc0 | *p >> 6);
			made[n++] = (char)(0x80 | (*p & 0x3f));
		}
	}
	made[n] = 0;
	j = json_string(made);
	free(made);
	return j;
}
