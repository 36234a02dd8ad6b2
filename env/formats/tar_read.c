/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An archive as members. Nothing of it is judged here, where a damaged one may do its worst: what
 * a member may be called and be is the daemon's affair (import_members.c).
 */

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "env/formats/digest.h"
#include "env/formats/tar.h"
#include "store/base/err.h"

#define READ_BYTES \
	(128 * 1024) /* at a time from the file: pipes give 64 KiB at most, disks like more */
#define RAW_BYTES (64 * 1024) /* between the two archives */
#define HEADER_BYTES 512 /* as tar has it: mode at 100, checksum at 148, each of 8 digits */

/* Of a device: Linux has 12 and 20 bits. */
#define MAJOR_MAX ((1U << 12) - 1)
#define MINOR_MAX ((1U << 20) - 1)

struct reader {
	struct chan *c;
	struct archive *archive;
	struct archive *blob;  /* undoes the compression */
	struct digest *digest; /* of a layer: of what came out */
	int64_t came;	       /* out of it so far */
	size_t out_len;	       /* of that, in out */
	char in[READ_BYTES];
	char out[HEADER_BYTES + RAW_BYTES]; /* what came last, behind some of what came before */
};

/* After libarchive failed. */
static _Noreturn void fail(struct reader *tr, struct archive *a, const char *what)
{
	const char *why = archive_error_string(a);

	program_fail(tr->c, archive_errno(a) == ENOMEM ? -ENOMEM : -ERR_SOURCE, "%s: %s", what,
		     why ? why : "libarchive does not say why");
}

/* ---- bytes ---- */

static la_ssize_t read_file(struct archive *a, void *arg, const void **ret)
{
	struct reader *tr = arg;
	struct pollfd p = { .fd = CHAN_ARCHIVE_FD, .events = POLLIN };
	ssize_t n;

	*ret = tr->in;
	do {
		(void)poll(&p, 1, -1); /* whoever gave it may have made it O_NONBLOCK */
		n = read(CHAN_ARCHIVE_FD, tr->in, READ_BYTES);
	} while (n < 0 && (errno == EINTR || errno == EAGAIN));
	if (n < 0)
		archive_set_error(a, errno, "%s", strerror(errno));
	return n;
}

static la_ssize_t read_blob(struct archive *a, void *arg, const void **ret)
{
	struct reader *tr = arg;
	la_ssize_t n;

	memmove(tr->out, tr->out + tr->out_len, HEADER_BYTES);
	*ret = tr->out + HEADER_BYTES;
	n = archive_read_data(tr->blob, tr->out + HEADER_BYTES, RAW_BYTES);
	tr->out_len = n < 0 ? 0 : (size_t)n;
	if (n < 0) {
		const char *why = archive_error_string(tr->blob);

		archive_set_error(a, archive_errno(tr->blob), "%s", why ? why : "damaged");
		return -1;
	}
	tr->came += n;
	if (tr->digest)
		digest_add(tr->digest, *ret, (size_t)n);
	return n;
}

static void open_blob(struct reader *tr, bool layer)
{
	const char *what = layer ? "opening the layer" : "opening the archive";
	struct archive_entry *entry;

	tr->blob = archive_read_new();
	if (!tr->blob || (layer && digest_new(&tr->digest) < 0))
		program_fail(tr->c, -ENOMEM, "%s", what);
	if (layer) {
		(void)archive_read_support_filter_gzip(tr->blob);
		(void)archive_read_support_filter_zstd(tr->blob);
	} else { /* warns of those that run a program */
		(void)archive_read_support_filter_all(tr->blob);
	}
	(void)archive_read_support_format_raw(tr->blob);
	if (archive_read_open(tr->blob, tr, NULL, read_file, NULL) != ARCHIVE_OK ||
	    archive_read_next_header(tr->blob, &entry) != ARCHIVE_OK)
		fail(tr, tr->blob, what);
}

/* Past the archive's last block to the end of the layer. */
static void end_blob(struct reader *tr, char ret[static DIGEST_SIZE])
{
	la_ssize_t n;

	do {
		n = archive_read_data(tr->blob, tr->out, RAW_BYTES);
		if (n < 0)
			fail(tr, tr->blob, "reading the layer");
		digest_add(tr->digest, tr->out, (size_t)n);
	} while (n > 0);
	digest_text(tr->digest, ret);
}

/* ---- members ---- */

/*
 * As the header has it that was read last. libarchive before 3.7.5 does so, too. Newer ones take it
 * from an ACL: its suid, sgid and sticky bit are lost, and with a default ACL alone all of it.
 * Where no header ends (some sparse files have their map there) it is what libarchive says.
 */
static unsigned perm_of(struct reader *tr, struct archive_entry *entry)
{
	int64_t back = tr->came - archive_filter_bytes(tr->archive, 0) + HEADER_BYTES;
	unsigned sum = 0, perm = archive_entry_perm(entry) & 07777;
	char mode[8 + 1] = "", checksum[8 + 1] = "", *end;
	unsigned long n;
	const char *h;

	if (back < HEADER_BYTES || back > (int64_t)tr->out_len + HEADER_BYTES)
		return perm;
	h = tr->out + HEADER_BYTES + tr->out_len - back;
	for (size_t i = 0; i < HEADER_BYTES; i++) /* itself it takes for spaces */
		sum += i >= 148 && i < 156 ? ' ' : (uint8_t)h[i];
	memcpy(mode, h + 100, 8);
	memcpy(checksum, h + 148, 8);
	if (strtoul(checksum, NULL, 8) != sum)
		return perm;
	n = strtoul(mode, &end, 8);
	return end == mode ? perm : n & 07777;
}

static void inode_of(struct reader *tr, struct archive_entry *entry, struct inode *ret)
{
	struct timens m = { 0 };

	if (archive_entry_mtime_is_set(entry))
		m = tar_time_in(archive_entry_mtime(entry), archive_entry_mtime_nsec(entry));
	*ret = (struct inode){
		.mode = archive_entry_filetype(entry) | perm_of(tr, entry),
		.uid = (uint32_t)archive_entry_uid(entry),
		.gid = (uint32_t)archive_entry_gid(entry),
		.rdev = archive_entry_rdev(entry),
		.size = (uint64_t)archive_entry_size(entry), /* < 0: more than any file */
		.atime = m,
		.mtime = m,
		.ctime = m,
		.btime = m,
	};
	if (archive_entry_atime_is_set(entry))
		ret->atime =
			tar_time_in(archive_entry_atime(entry), archive_entry_atime_nsec(entry));
	if (archive_entry_ctime_is_set(entry))
		ret->ctime =
			tar_time_in(archive_entry_ctime(entry), archive_entry_ctime_nsec(entry));
	if (archive_entry_birthtime_is_set(entry))
		ret->btime = tar_time_in(archive_entry_birthtime(entry),
					 archive_entry_birthtime_nsec(entry));
}

/*
 * Numbers that Linux has no room for would be those of others: 2^32 is root's. And the last one is
 * nobody's, since chown(2) takes it for "as it is".
 */
static void check_numbers(struct reader *tr, struct archive_entry *entry, const char *member)
{
	la_int64_t uid = archive_entry_uid(entry), gid = archive_entry_gid(entry);
	unsigned type = archive_entry_filetype(entry);

	if (uid < 0 || uid >= UINT32_MAX || gid < 0 || gid >= UINT32_MAX)
		program_fail(tr->c, -ERR_SOURCE, "member '%s': no owner is %jd:%jd", member,
			     (intmax_t)uid, (intmax_t)gid);
	if ((type == AE_IFCHR || type == AE_IFBLK) &&
	    (archive_entry_rdevmajor(entry) > MAJOR_MAX ||
	     archive_entry_rdevminor(entry) > MINOR_MAX))
		program_fail(tr->c, -ERR_SOURCE, "member '%s': no device is %ju:%ju", member,
			     (uintmax_t)archive_entry_rdevmajor(entry),
			     (uintmax_t)archive_entry_rdevminor(entry));
}

static void put_data(struct reader *tr, const char *member)
{
	for (;;) {
		const void *data;
		la_int64_t off;
		size_t len;
		int r = archive_read_data_block(tr->archive, &data, &len, &off);

		if (r == ARCHIVE_EOF)
			return;
		if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
			fail(tr, tr->archive, member);
		program_must(tr->c, chan_put_data(tr->c, (uint64_t)off, data, len));
	}
}

static void put_acl(struct reader *tr, struct archive_entry *entry, const char *member, int type,
		    const char *name)
{
	unsigned unknown;
	void *value;
	size_t len;
	int r = tar_acl_in(entry, type, &value, &len, &unknown);

	if (unknown > 0)
		program_skip(tr->c, "%u ACL entries of '%s' name users or groups unknown here",
			     unknown, member);
	program_must(tr->c, r);
	if (r == ABSENT)
		return;
	program_must(tr->c, chan_put_xattr(tr->c, name, value, len));
	free(value);
}

static void put_xattrs(struct reader *tr, struct archive_entry *entry, const char *member)
{
	const char *keyword;
	const void *value;
	size_t len;

	archive_entry_xattr_reset(entry);
	while (archive_entry_xattr_next(entry, &keyword, &value, &len) == ARCHIVE_OK) {
		char *name = NULL;
		int r;

		program_must(tr->c, keyword ? tar_xattr_name(keyword, &name) : 0);
		r = chan_put_xattr(tr->c, name ? name : "", value, len);
		if (r == -ENAMETOOLONG)
			program_skip(tr->c, "an attribute of '%s' cannot be kept", member);
		else
			program_must(tr->c, r);
		free(name);
	}
	put_acl(tr, entry, member, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, "system.posix_acl_access");
	if (archive_entry_filetype(entry) == AE_IFDIR)
		put_acl(tr, entry, member, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT,
			"system.posix_acl_default");
}

/*
 * One that is not ASCII: tar.h. What libarchive calls ARCHIVE_ERRNO_FILE_FORMAT is EFTYPE where the
 * C library has that.
 */
static bool tells_of_a_name(struct archive *a)
{
#ifdef EFTYPE /* glibc 2.43 */
	if (archive_errno(a) == EFTYPE)
		return true;
#endif
	return archive_errno(a) == EILSEQ;
}

/* warned: by libarchive, which has made what it could of a header. */
static void put_member(struct reader *tr, struct archive_entry *entry, bool warned)
{
	struct member m = {
		.path = archive_entry_pathname(entry),
		.link = archive_entry_hardlink(entry),
		.target = archive_entry_symlink(entry),
	};
	const char *why;
	int r;

	if (!m.path)
		program_fail(tr->c, -ERR_SOURCE, "a member without a name");
	if (warned && !tells_of_a_name(tr->archive)) {
		why = archive_error_string(tr->archive);
		program_skip(tr->c, "member '%s': %s", m.path,
			     why ? why : "libarchive leaves something out");
	}
	check_numbers(tr, entry, m.path);
	inode_of(tr, entry, &m.inode);
	r = chan_put_member(tr->c, &m);
	if (r == -ENAMETOOLONG)
		program_fail(tr->c, r, "member '%s'", m.path);
	program_must(tr->c, r);
	if (m.link)
		return;
	if (archive_entry_filetype(entry) == AE_IFREG && archive_entry_size(entry) > 0)
		put_data(tr, m.path);
	put_xattrs(tr, entry, m.path);
}

void tar_read(struct chan *c, bool layer)
{
	struct reader *tr = calloc(1, sizeof(*tr));
	char digest[DIGEST_SIZE] = "";
	struct archive_entry *entry;
	int r;

	if (!tr || tar_locale_enter("C") < 0)
		program_fail(c, -ENOMEM, "opening the archive");
	tr->c = c;
	tr->archive = archive_read_new();
	if (!tr->archive)
		program_fail(c, -ENOMEM, "opening the archive");
	open_blob(tr, layer);
	if (archive_read_support_format_tar(tr->archive) != ARCHIVE_OK ||
	    archive_read_open(tr->archive, tr, NULL, read_blob, NULL) != ARCHIVE_OK)
		fail(tr, tr->archive, "opening the archive");

	for (;;) {
		r = archive_read_next_header(tr->archive, &entry);
		if (r == ARCHIVE_EOF)
			break;
		if (r != ARCHIVE_OK && r != ARCHIVE_WARN) /* it would look for more behind damage */
			fail(tr, tr->archive, "reading the archive");
		put_member(tr, entry, r == ARCHIVE_WARN);
	}
	if (layer)
		end_blob(tr, digest);
	program_end(c, digest);
}
