/* SPDX-License-Identifier: Apache-2.0 */

/* What reading and writing tar archives share; see tar.h. */

#include "env/formats/tar.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>

#include "store/base/err.h"

int tar_locale_enter(const char *name)
{
	locale_t set = newlocale(LC_ALL_MASK, name, (locale_t)0);

	if (!set)
		set = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!set)
		return -errno;
	(void)uselocale(set); /* a whole locale: does not fail */
	return 0;
}

struct timens tar_time_in(int64_t sec, long nsec)
{
	if (nsec < 0 || nsec >= 1000000000)
		nsec = 0;
	if (sec < 0 && sec > INT64_MIN && nsec > 0)
		return (struct timens){ .sec = sec - 1, .nsec = (uint32_t)(1000000000 - nsec) };
	return (struct timens){ .sec = sec, .nsec = (uint32_t)nsec };
}

void tar_time_out(struct timens t, int64_t *ret_sec, long *ret_nsec)
{
	bool flip = t.sec < -1 && t.nsec > 0;

	*ret_sec = flip ? t.sec + 1 : t.sec;
	*ret_nsec = flip ? 1000000000 - (long)t.nsec : (long)t.nsec;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int tar_xattr_name(const char *keyword, char **ret)
{
	char *out = malloc(strlen(keyword) + 1), *p = out;

	if (!out)
		return -ENOMEM;
	while (*keyword) {
		int high = *keyword == '%' ? hex_digit(keyword[1]) : -1;
		int low = high >= 0 ? hex_digit(keyword[2]) : -1;
		bool escape = low >= 0 && (high | low) != 0;

		*p++ = escape ? (char)(high << 4 | low) : *keyword;
		keyword += escape ? 3 : 1;
	}
	*p = '\0';
	*ret = out;
	return 0;
}

/*
 * The attribute: le32 version 2, then entries of le16 tag, le16 permissions, le32 id. Linux wants
 * them in order of tag, then id.
 */
#define ACL_VERSION 2
#define ACL_HEADER 4
#define ACL_ENTRY 8
#define ACL_NO_ID UINT32_MAX

static const struct acl_tag {
	uint16_t tag;
	int archive;
	bool has_id;
} acl_tags[] = {
	{ 0x01, ARCHIVE_ENTRY_ACL_USER_OBJ, false },  { 0x02, ARCHIVE_ENTRY_ACL_USER, true },
	{ 0x04, ARCHIVE_ENTRY_ACL_GROUP_OBJ, false }, { 0x08, ARCHIVE_ENTRY_ACL_GROUP, true },
	{ 0x10, ARCHIVE_ENTRY_ACL_MASK, false },      { 0x20, ARCHIVE_ENTRY_ACL_OTHER, false },
};

int tar_acl_out(struct archive_entry *entry, int type, const void *value, size_t len)
{
	const uint8_t *p = value;

	if (len < ACL_HEADER || (len - ACL_HEADER) % ACL_ENTRY != 0 || get_le32(p) != ACL_VERSION)
		return -ERR_ITEM_DAMAGED;
	for (p += ACL_HEADER, len -= ACL_HEADER; len > 0; p += ACL_ENTRY, len -= ACL_ENTRY) {
		const struct acl_tag *t = NULL;

		for (size_t i = 0; i < ARRAY_SIZE(acl_tags); i++)
			if (acl_tags[i].tag == get_le16(p))
				t = &acl_tags[i];
		if (!t)
			return -ERR_ITEM_DAMAGED;
		if (archive_entry_acl_add_entry(entry, type, get_le16(p + 2) & 7, t->archive,
						t->has_id ? (int)get_le32(p + 4) : -1,
						NULL) != ARCHIVE_OK)
			return -ENOMEM;
	}
	return 0;
}

/* An id for a name; false when there is none. */
static bool find_id(int tag, const char *name, int *id)
{
	char buf[4096]; /* one record of the user database; larger groups need not be looked at */
	struct passwd pw, *pwp = NULL;
	struct group gr, *grp = NULL;

	if (*id >= 0)
		return true;
	if (!name || !*name)
		return false;
	if (tag == ARCHIVE_ENTRY_ACL_USER && getpwnam_r(name, &pw, buf, sizeof(buf), &pwp) == 0 &&
	    pwp)
		*id = (int)pwp->pw_uid;
	if (tag == ARCHIVE_ENTRY_ACL_GROUP && getgrnam_r(name, &gr, buf, sizeof(buf), &grp) == 0 &&
	    grp)
		*id = (int)grp->gr_gid;
	return *id >= 0;
}

static int acl_entry_cmp(const void *x, const void *y)
{
	const uint8_t *a = x, *b = y;

	if (get_le16(a) != get_le16(b))
		return get_le16(a) < get_le16(b) ? -1 : 1;
	return get_le32(a + 4) < get_le32(b + 4) ? -1 : get_le32(a + 4) > get_le32(b + 4);
}

int tar_acl_in(struct archive_entry *entry, int type, void **ret, size_t *ret_len,
	       unsigned *ret_unknown)
{
	_cleanup_free_ uint8_t *value = NULL;
	int n = archive_entry_acl_reset(entry, type), perm, tag, id, got_type;
	bool beyond_mode = type == ARCHIVE_ENTRY_ACL_TYPE_DEFAULT;
	size_t len = ACL_HEADER;
	const char *name;

	*ret_unknown = 0;
	if (n <= 0)
		return ABSENT;
	value = malloc(ACL_HEADER + ((size_t)n + 3) * ACL_ENTRY);
	if (!value)
		return -ENOMEM;
	put_le32(value, ACL_VERSION);

	/* n counts what was added; the three entries that follow from the mode may come on top. */
	for (int left = n + 3; left > 0 && archive_entry_acl_next(entry, type, &got_type, &perm,
								  &tag, &id, &name) == ARCHIVE_OK;
	     left--) {
		const struct acl_tag *t = NULL;

		for (size_t i = 0; i < ARRAY_SIZE(acl_tags); i++)
			if (acl_tags[i].archive == tag)
				t = &acl_tags[i];
		if (!t || (t->has_id && !find_id(tag, name, &id))) {
			(*ret_unknown)++;
			continue;
		}
		beyond_mode |= t->has_id || tag == ARCHIVE_ENTRY_ACL_MASK;
		put_le16(value + len, t->tag);
		put_le16(value + len + 2, (uint16_t)(perm & 7));
		put_le32(value + len + 4, t->has_id ? (uint32_t)id : ACL_NO_ID);
		len += ACL_ENTRY;
	}
	if (!beyond_mode)
		return ABSENT;
	qsort(value + ACL_HEADER, (len - ACL_HEADER) / ACL_ENTRY, ACL_ENTRY, acl_entry_cmp);
	*ret = TAKE_PTR(value);
	*ret_len = len;
	return 0;
}
