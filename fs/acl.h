/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * POSIX access control lists in the form the kernel passes them as an xattr: a little-endian
 * version word (2), then entries of tag, permissions and id, 8 bytes each. All functions work on
 * these bytes in place; nothing is allocated.
 */

#include <stddef.h>
#include <stdint.h>

#define ACL_VERSION 2
#define ACL_HEADER_BYTES 4
#define ACL_ENTRY_BYTES 8

enum acl_tag {
	ACL_TAG_USER_OBJ = 0x01,
	ACL_TAG_USER = 0x02,
	ACL_TAG_GROUP_OBJ = 0x04,
	ACL_TAG_GROUP = 0x08,
	ACL_TAG_MASK = 0x10,
	ACL_TAG_OTHER = 0x20,
};

/*
 * 0: a valid list. ABSENT: a list without entries, which asks for removal. -EINVAL, or -EOPNOTSUPP
 * for another version. The other functions want a valid list.
 */
int acl_check(const uint8_t *acl, size_t len);

/* Ids of entries that have none become -1, as the kernel writes them: one list, one spelling. */
void acl_normalize(uint8_t *acl, size_t len);

/* 1: the list says more than a mode (names or a mask), 0: not. *ret_perm: its 9 mode bits. */
int acl_mode(const uint8_t *acl, size_t len, uint32_t *ret_perm);

/* chmod: owner, other, and the mask (without one: the group entry) follow the mode. */
void acl_chmod(uint8_t *acl, size_t len, uint32_t mode);

/*
 * A default list becomes a new object's access list: each side is limited by the other. *mode loses
 * what the list does not grant. Returns as acl_mode: 0 when *mode says it all.
 */
int acl_inherit(uint8_t *acl, size_t len, uint32_t *mode);
