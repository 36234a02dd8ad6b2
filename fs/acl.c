/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The rules are those of POSIX 1003.1e draft 17 as Linux applies them: the group bits of a mode
 * show the mask when there is one, so that programs that know only modes never grant more than the
 * list.
 */

#include "fs/acl.h"

#include <errno.h>
#include <stdbool.h>

#include "store/base/err.h"
#include "store/base/util.h"

static unsigned get_tag(const uint8_t *e)
{
	return get_le16(e);
}

static unsigned get_perm(const uint8_t *e)
{
	return get_le16(e + 2);
}

static void put_perm(uint8_t *e, unsigned perm)
{
	put_le16(e + 2, (uint16_t)(perm & 7));
}

#define EACH_ENTRY(e, acl, len) \
	for (__typeof__(acl) e = (acl) + ACL_HEADER_BYTES; e < (acl) + (len); e += ACL_ENTRY_BYTES)

int acl_check(const uint8_t *acl, size_t len)
{
	unsigned expect = ACL_TAG_USER_OBJ;
	bool wants_mask = false;

	if (len == 0)
		return ABSENT;
	if (len < ACL_HEADER_BYTES)
		return -EINVAL;
	if (get_le32(acl) != ACL_VERSION)
		return -EOPNOTSUPP;
	if ((len - ACL_HEADER_BYTES) % ACL_ENTRY_BYTES != 0)
		return -EINVAL;
	if (len == ACL_HEADER_BYTES)
		return ABSENT;

	/* `expect`: the class of entries that may come. Owner, users, groups, other, none. */
	EACH_ENTRY(e, acl, len)
	{
		if (get_perm(e) > 7)
			return -EINVAL;

		switch (get_tag(e)) {
		case ACL_TAG_USER_OBJ:
			if (expect != ACL_TAG_USER_OBJ)
				return -EINVAL;
			expect = ACL_TAG_USER;
			break;
		case ACL_TAG_USER:
			if (expect != ACL_TAG_USER || get_le32(e + 4) == UINT32_MAX)
				return -EINVAL;
			wants_mask = true;
			break;
		case ACL_TAG_GROUP_OBJ:
			if (expect != ACL_TAG_USER)
				return -EINVAL;
			expect = ACL_TAG_GROUP;
			break;
		case ACL_TAG_GROUP:
			if (expect != ACL_TAG_GROUP || get_le32(e + 4) == UINT32_MAX)
				return -EINVAL;
			wants_mask = true;
			break;
		case ACL_TAG_MASK:
			if (expect != ACL_TAG_GROUP)
				return -EINVAL;
			expect = ACL_TAG_OTHER;
			break;
		case ACL_TAG_OTHER:
			if (expect != ACL_TAG_OTHER && (expect != ACL_TAG_GROUP || wants_mask))
				return -EINVAL;
			expect = 0;
			break;
		default:
			return -EINVAL;
		}
	}
	return expect == 0 ? 0 : -EINVAL;
}

void acl_normalize(uint8_t *acl, size_t len)
{
	EACH_ENTRY(e, acl, len)
	{
		if (get_tag(e) != ACL_TAG_USER && get_tag(e) != ACL_TAG_GROUP)
			put_le32(e + 4, UINT32_MAX);
	}
}

int acl_mode(const uint8_t *acl, size_t len, uint32_t *ret_perm)
{
	unsigned owner = 0, group = 0, other = 0, mask = 0;
	bool extended = false, has_mask = false;

	EACH_ENTRY(e, acl, len)
	{
		switch (get_tag(e)) {
		case ACL_TAG_USER_OBJ:
			owner = get_perm(e);
			break;
		case ACL_TAG_GROUP_OBJ:
			group = get_perm(e);
			break;
		case ACL_TAG_OTHER:
			other = get_perm(e);
			break;
		case ACL_TAG_MASK:
			mask = get_perm(e);
			has_mask = true;
			extended = true;
			break;
		default:
			extended = true;
		}
	}

	*ret_perm = owner << 6 | (has_mask ? mask : group) << 3 | other;
	return extended;
}

/* The entry that the group bits of a mode stand for. */
static uint8_t *group_class(uint8_t *acl, size_t len)
{
	uint8_t *group = NULL;

	EACH_ENTRY(e, acl, len)
	{
		if (get_tag(e) == ACL_TAG_MASK)
			return e;
		if (get_tag(e) == ACL_TAG_GROUP_OBJ)
			group = e;
	}
	return group;
}

void acl_chmod(uint8_t *acl, size_t len, uint32_t mode)
{
	uint8_t *group = group_class(acl, len);

	EACH_ENTRY(e, acl, len)
	{
		if (get_tag(e) == ACL_TAG_USER_OBJ)
			put_perm(e, mode >> 6);
		else if (get_tag(e) == ACL_TAG_OTHER)
			put_perm(e, mode);
	}
	if (group)
		put_perm(group, mode >> 3);
}

int acl_inherit(uint8_t *acl, size_t len, uint32_t *mode)
{
	uint32_t perm;
	int extended;

	extended = acl_mode(acl, len, &perm);
	perm &= *mode;
	acl_chmod(acl, len, perm);
	*mode = (*mode & ~(uint32_t)0777) | perm;
	return extended;
}
