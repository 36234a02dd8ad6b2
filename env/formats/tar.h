/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parts of plyfs-tar: two directions, and what they share: character set, times, ACLs. */

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>

#include "env/formats/program.h"

/*
 * The archive's members: REC_MEMBER, its REC_DATA (offsets ascend, within its size, nothing for
 * holes), its REC_XATTR, and so on; then REC_END. layer: it is the layer of an image, gzip, zstd or
 * neither of them around a tar whose digest comes with REC_END. (tar_read.c)
 */
_Noreturn void tar_read(struct chan *c, bool layer);
/*
 * Takes REC_MEMBER, its REC_XATTR, its REC_RUN (all of them, or none when there is no hole), its
 * REC_DATA, and so on, then REC_END; answers so when the archive is written. (tar_write.c)
 */
_Noreturn void tar_write(struct chan *c);

/*
 * libarchive translates names between UTF-8 and the thread's character set, and normalises them on
 * the way in. Our names are bytes. In the C locale it cannot translate what is not ASCII, and then
 * hands over the bytes as they are: reading is done in it. On the way out UTF-8 is left alone in a
 * UTF-8 locale, and other bytes are marked as such in either.
 *
 * The named one until the program ends, or C where there is none of that name.
 */
int tar_locale_enter(const char *name);

/*
 * libarchive takes the fraction of a time for positive whatever the sign of the seconds: a header
 * says "-1.5", and it hands over -1 s and +0.5 s (and writes it so). Exact in both directions but
 * for the second before 1970, whose "-0.5" it cannot express.
 */
struct timens tar_time_in(int64_t sec, long nsec);
void tar_time_out(struct timens t, int64_t *ret_sec, long *ret_nsec);

/*
 * '=' ends a keyword of a PAX header, so in the names of attributes writers put "%3D" for it and
 * "%25" for '%' (GNU tar) or escape everything odd so (libarchive). libarchive does not undo it
 * when it reads: this does. Malloced, given.
 */
int tar_xattr_name(const char *keyword, char **ret);

/* An ACL as the system's attribute has it; type: ARCHIVE_ENTRY_ACL_TYPE_ACCESS or _DEFAULT. */
int tar_acl_out(struct archive_entry *entry, int type, const void *value, size_t len);
/*
 * The attribute's bytes for the entry's ACL, malloced, given. ABSENT: none beyond the mode.
 * *ret_unknown: entries of users and groups that this machine does not know, left out.
 */
int tar_acl_in(struct archive_entry *entry, int type, void **ret, size_t *ret_len,
	       unsigned *ret_unknown);
