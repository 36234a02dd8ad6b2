/* SPDX-License-Identifier: Apache-2.0 */

/* A string of JSON, as json_text makes it, which wants a library. */

#include "tools/client.h"

#include <stdio.h>

static bool is_utf8(const unsigned char *s)
{
	while (*s) {
		/* overlong forms, surrogates, what is beyond U+10FFFF */
		unsigned low = *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80;
		unsigned high = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf;
		int more = *s < 0x80 ? 0 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : 3;

		if ((*s >= 0x80 && *s < 0xc2) || *s > 0xf4)
			return false;
		for (s++; more > 0; more--, s++, low = 0x80, high = 0xbf)
			if (*s < low || *s > high)
				return false;
	}
	return true;
}

void client_print_json(const char *text)
{
	bool whole = is_utf8((const unsigned char *)text);

	putchar('"');
	for (const unsigned char *p = (const unsigned char *)text; *p; p++)
		if (*p == '"' || *p == '\\')
			printf("\\%c", *p);
		else if (*p < 32 || (*p >= 0x80 && !whole))
			printf("\\u%04x", *p);
		else
			putchar(*p);
	putchar('"');
}
