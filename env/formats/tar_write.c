/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs-tar writes a PAX archive of what the daemon sends; see tar.h. The same members give the
 * same bytes.
 *
 * Invariants:
 *  1. Names are bytes: what is not UTF-8 goes into PAX records marked hdrcharset=BINARY.
 *  2. Data runs of a sparse file are stored, holes are not; a file of one run is stored plainly.
 *  3. Exactly the data that a header announces comes after it. libarchive would make up for what is
 *     missing with zeros and drop what is too much, without a word.
 */

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "env/formats/tar.h"
#include "store/base/err.h"

/* In the order in which they come; each may be left out. */
enum stage { NO_MEMBER, XATTRS, RUNS, DATA };

struct tar_writer {
	struct chan *chan;
	struct archive *archive;
	struct archive_entry *entry;
	enum stage stage;
	char *path;	     /* owned: of the member, for notes */
	uint64_t size;	     /* of its data, holes included; 0: it has none */
	bool has_runs;	     /* some were sent: else all of it is data */
	uint64_t runs_end;   /* of the last of them */
	uint64_t runs_bytes; /* in all of them */
	uint64_t written;    /* bytes of it, holes included */
	uint64_t data_end;   /* of the run that `written` is in: data has to come up to there */
};

/* libarchive is not told of a failure: it is the end. */
static la_ssize_t write_target(struct archive *a, void *arg, const void *data, size_t len)
{
	struct pollfd p = { .fd = CHAN_ARCHIVE_FD, .events = POLLOUT };
	struct tar_writer *w = arg;

	for (;;) {
		ssize_t n = write(CHAN_ARCHIVE_FD, data, len);

		if (n >= 0)
			return n;
		if (errno == EAGAIN)
			(void)poll(&p, 1, -1); /* if it fails, the next write says why */
		else if (errno != EINTR)
			program_fail(w->chan, -errno, "writing the archive");
	}
}

static void check_archive(struct tar_writer *w, bool ok, const char *what)
{
	const char *why;

	if (ok)
		return;
	why = archive_error_string(w->archive);
	program_fail(w->chan, archive_errno(w->archive) == ENOMEM ? -ENOMEM : -EIO, "%s: %s", what,
		     why ? why : "libarchive does not say why");
}

static void begin_archive(struct tar_writer *w)
{
	w->archive = archive_write_new();
	w->entry = archive_entry_new();
	if (!w->archive || !w->entry)
		program_fail(w->chan, -ENOMEM, "starting the archive");
	check_archive(
		w,
		archive_write_set_format_pax(w->archive) == ARCHIVE_OK &&
			/* the form of attributes that GNU tar knows; of the other it complains */
			archive_write_set_format_option(w->archive, "pax", "xattrheader",
							"SCHILY") == ARCHIVE_OK &&
			archive_write_set_bytes_in_last_block(w->archive, 1) == ARCHIVE_OK &&
			archive_write_open(w->archive, w, NULL, write_target, NULL) == ARCHIVE_OK,
		"starting the archive");
}

static void end_archive(struct tar_writer *w)
{
	check_archive(w, archive_write_close(w->archive) == ARCHIVE_OK, "ending the archive");
	/* On a filesystem of the network the last of it may fail now, and only once. */
	if (close(CHAN_ARCHIVE_FD) < 0)
		program_fail(w->chan, -errno, "writing the archive");
}

/* ---- data ---- */

static void write_bytes(struct tar_writer *w, const char *data, size_t len)
{
	while (len > 0) {
		la_ssize_t n = archive_write_data(w->archive, data, len);

		check_archive(w, n > 0, w->path);
		w->written += (uint64_t)n;
		data += n;
		len -= (size_t)n;
	}
}

/* libarchive counts through holes with us; the zeros themselves go nowhere. */
static void skip_to(struct tar_writer *w, uint64_t off)
{
	static const char zeros[1024 * 1024]; /* a hole of 1 TiB in a tenth of a second */

	while (w->written < off)
		write_bytes(w, zeros, MIN(off - w->written, (uint64_t)sizeof(zeros)));
}

/* Past the holes: to where there is data to come, or the end. */
static void find_data(struct tar_writer *w)
{
	la_int64_t off, len;

	while (w->has_runs && w->written == w->data_end && w->written < w->size) {
		if (archive_entry_sparse_next(w->entry, &off, &len) != ARCHIVE_OK) {
			off = (la_int64_t)w->size;
			len = 0;
		}
		skip_to(w, (uint64_t)off);
		w->data_end = (uint64_t)(off + len);
	}
}

static void put_data(struct tar_writer *w, const struct record *rec)
{
	const void *data;
	uint64_t off;
	size_t len;

	if (!record_data(rec, &off, &data, &len) || off != w->written ||
	    len > w->data_end - w->written)
		program_confused(w->chan);
	write_bytes(w, data, len);
	find_data(w);
}

/* ---- the header ---- */

static void put_xattr(struct tar_writer *w, const struct record *rec)
{
	const char *name, *got_name;
	const void *value, *got;
	size_t len, got_len;
	int r = 0;

	if (w->stage != XATTRS || !record_xattr(rec, &name, &value, &len))
		program_confused(w->chan);
	if (strcmp(name, "system.posix_acl_access") == 0) {
		r = tar_acl_out(w->entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, value, len);
	} else if (strcmp(name, "system.posix_acl_default") == 0) {
		r = tar_acl_out(w->entry, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT, value, len);
	} else {
		archive_entry_xattr_add_entry(w->entry, name, value, len);
		/* Without memory it takes the name alone, silently. The last comes first. */
		(void)archive_entry_xattr_reset(w->entry);
		if (archive_entry_xattr_next(w->entry, &got_name, &got, &got_len) != ARCHIVE_OK ||
		    got_len != len)
			r = -ENOMEM;
	}
	if (r < 0)
		program_fail(w->chan, r, "reading '%s'", w->path);
}

static bool run_makes_sense(const struct tar_writer *w, uint64_t off, uint64_t len)
{
	bool after_empty = w->has_runs && w->runs_bytes == 0;

	if (len == 0) /* all of the file is a hole */
		return !w->has_runs && off == 0 && w->size > 0;
	return !after_empty && off >= w->runs_end && off < w->size && len <= w->size - off;
}

static void put_run(struct tar_writer *w, const struct record *rec)
{
	uint64_t off, len;

	if ((w->stage != XATTRS && w->stage != RUNS) || !record_run(rec, &off, &len) ||
	    !run_makes_sense(w, off, len))
		program_confused(w->chan);
	w->stage = RUNS;
	w->has_runs = true;
	w->runs_end = off + len;
	w->runs_bytes += len;
	archive_entry_sparse_add_entry(w->entry, (la_int64_t)off, (la_int64_t)len);
}

/* Takes them one by one; joins what touches; forgets them when there is no hole. */
static void check_runs(struct tar_writer *w)
{
	bool plain = archive_entry_sparse_reset(w->entry) == 0;
	uint64_t bytes = plain ? w->size : 0;
	la_int64_t off, len;

	/* forgotten ones must not be asked for: libarchive would look at them where they were */
	while (!plain && archive_entry_sparse_next(w->entry, &off, &len) == ARCHIVE_OK)
		bytes += (uint64_t)len;
	if (bytes != (w->has_runs ? w->runs_bytes : w->size)) /* it does not say so itself */
		program_fail(w->chan, -ENOMEM, "'%s'", w->path);
	w->has_runs = !plain;
}

/* Before anything that does not belong into it. */
static void write_header(struct tar_writer *w)
{
	if (w->stage != XATTRS && w->stage != RUNS)
		return;
	check_runs(w);
	/* a warning: invariant 1 */
	check_archive(w, archive_write_header(w->archive, w->entry) >= ARCHIVE_WARN, w->path);
	w->stage = DATA;
	w->written = 0;
	w->data_end = w->has_runs ? 0 : w->size;
	(void)archive_entry_sparse_reset(w->entry);
	find_data(w);
}

static void end_member(struct tar_writer *w)
{
	write_header(w);
	if (w->stage == DATA && w->written != w->size)
		program_confused(w->chan);
	w->stage = NO_MEMBER;
	free(w->path);
	w->path = NULL;
}

static void begin_member(struct tar_writer *w, const struct record *rec)
{
	struct archive_entry *entry = w->entry;
	_cleanup_free_ char *dir = NULL;
	struct member m;
	int64_t sec;
	long nsec;

	if (!record_member(rec, &m) || (*m.path == '\0' && !S_ISDIR(m.inode.mode)) ||
	    S_ISLNK(m.inode.mode) != !!m.target || (S_ISDIR(m.inode.mode) && m.link) ||
	    m.inode.size > INT64_MAX)
		program_confused(w->chan);
	w->path = strdup(m.path);
	if (!w->path)
		program_fail(w->chan, -ENOMEM, "a member");

	archive_entry_clear(entry);
	archive_entry_set_pathname(entry, m.path);
	if (S_ISDIR(m.inode.mode)) {
		if (asprintf(&dir, "%s/", *m.path == '\0' ? "." : m.path) < 0)
			program_fail(w->chan, -ENOMEM, "a member");
		archive_entry_set_pathname(entry, dir);
	}
	archive_entry_set_mode(entry, m.inode.mode);
	archive_entry_set_uid(entry, m.inode.uid);
	archive_entry_set_gid(entry, m.inode.gid);
	tar_time_out(m.inode.mtime, &sec, &nsec);
	archive_entry_set_mtime(entry, sec, nsec);
	tar_time_out(m.inode.atime, &sec, &nsec);
	archive_entry_set_atime(entry, sec, nsec);
	tar_time_out(m.inode.ctime, &sec, &nsec);
	archive_entry_set_ctime(entry, sec, nsec);
	if (S_ISCHR(m.inode.mode) || S_ISBLK(m.inode.mode))
		archive_entry_set_rdev(entry, m.inode.rdev);
	if (m.target)
		archive_entry_set_symlink(entry, m.target);
	if (m.link)
		archive_entry_set_hardlink(entry, m.link);

	w->size = S_ISREG(m.inode.mode) && !m.link ? m.inode.size : 0;
	archive_entry_set_size(entry, (la_int64_t)w->size); /* runs are taken only within it */
	w->stage = XATTRS;
	w->has_runs = false;
	w->runs_end = w->runs_bytes = 0;
}

void tar_write(struct chan *c)
{
	struct tar_writer w = { .chan = c };
	struct record rec;
	int r;

	/* As failures of a write: nobody reads the pipe, the file would get too large. */
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN);
	r = tar_locale_enter("C.UTF-8");
	if (r < 0)
		program_fail(c, r, "starting the archive");
	begin_archive(&w);
	for (;;) {
		program_get(c, &rec);
		switch (rec.kind) {
		case REC_MEMBER:
			end_member(&w);
			begin_member(&w, &rec);
			break;
		case REC_XATTR:
			put_xattr(&w, &rec);
			break;
		case REC_RUN:
			put_run(&w, &rec);
			break;
		case REC_DATA:
			write_header(&w);
			if (w.stage != DATA)
				program_confused(c);
			put_data(&w, &rec);
			break;
		case REC_END:
			end_member(&w);
			end_archive(&w);
			program_end(c, "");
		default:
			program_confused(c);
		}
	}
}
