/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Names that are, or could be taken for, ".git" on some filesystem: git refuses them in trees, and
 * so do we, whoever made them. Shared by the daemon's half of env/ and libplyfs, hence inline.
 */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Code points that HFS+ leaves out when it compares names, in UTF-8. */
static inline size_t dotgit_hfs_ignored(const unsigned char *p, size_t len)
{
	if (len < 3)
		return 0;
	if (p[0] == 0xe2 && p[1] == 0x80 &&
	    ((p[2] >= 0x8c && p[2] <= 0x8f) || (p[2] >= 0xaa && p[2] <= 0xae)))
		return 3; /* U+200C..200F, U+202A..202E */
	if (p[0] == 0xe2 && p[1] == 0x81 && p[2] >= 0xaa && p[2] <= 0xaf)
		return 3; /* U+206A..206F */
	if (p[0] == 0xef && p[1] == 0xbb && p[2] == 0xbf)
		return 3; /* U+FEFF */
	return 0;
}

static inline bool dotgit_is_hfs(const char *name, size_t len)
{
	char folded[5];
	size_t n = 0;

	for (size_t i = 0; i < len;) {
		size_t skip = dotgit_hfs_ignored((const unsigned char *)name + i, len - i);

		if (skip > 0) {
			i += skip;
			continue;
		}
		if (n == 4)
			return false;
		folded[n++] = name[i++];
	}
	return n == 4 && strncasecmp(folded, ".git", 4) == 0;
}

/* NTFS drops dots and spaces at the end, cuts at ':' (streams), and knows .git as git~1, too. */
static inline bool dotgit_is_ntfs(const char *name, size_t len)
{
	size_t n = 0;

	if (len >= 4 && strncasecmp(name, ".git", 4) == 0)
		n = 4;
	else if (len >= 5 && strncasecmp(name, "git~1", 5) == 0)
		n = 5;
	else
		return false;
	for (; n < len && name[n] != ':'; n++)
		if (name[n] != '.' && name[n] != ' ')
			return false;
	return true;
}

/* On Windows a backslash separates: each part must be harmless there as well. */
static inline bool dotgit_in(const char *name)
{
	for (;;) {
		size_t n = strcspn(name, "\\");

		if (dotgit_is_hfs(name, n) || dotgit_is_ntfs(name, n))
			return true;
		if (name[n] == '\0')
			return false;
		name += n + 1;
	}
}
