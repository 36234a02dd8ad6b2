/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/note.h"

#include <stdarg.h>
#include <stdio.h>

int note(const struct noter *n, int r, const char *fmt, ...)
{
	char line[512]; /* a sentence, two names and a path component; longer is cut */
	va_list ap;

	if (!n || !n->fn)
		return r;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap); /* a line that is cut still tells most */
	va_end(ap);

	n->fn(n->arg, line);
	return r;
}
