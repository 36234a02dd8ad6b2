/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writing tar archives by a program of its own: what plyfs-tar does not believe, and what an export
 * does about a plyfs-tar that dies, lies or is of another version.
 */

#include "env/transfer/helper.h"
#include "tests/unit/transfer_fixture.h"

/* ---- helpers ---- */

static void cancel_after_some(void *arg, const char *line)
{
	__atomic_store_n(&cancel, ++warnings >= 1000, __ATOMIC_RELAXED);
}

static const struct import_ops impatient = {
	.warn = cancel_after_some,
	.noter = &noter,
	.progress = &progress,
};

/* ---- what plyfs-tar is told ---- */

#define RUN(a, b)                                       \
	{                                               \
		.kind = REC_RUN, .off = (a), .len = (b) \
	}
#define BYTES(a, b)                                      \
	{                                                \
		.kind = REC_DATA, .off = (a), .len = (b) \
	}
#define FILE_OF(n)                                                      \
	{                                                               \
		.kind = REC_MEMBER, .mode = S_IFREG | 0644, .size = (n) \
	}
#define XATTR(n)                               \
	{                                      \
		.kind = REC_XATTR, .name = (n) \
	}
#define END_HERE                \
	{                       \
		.kind = REC_END \
	}

static const struct told {
	int r;
	struct {
		enum record_kind kind; /* 0: the end of the list */
		uint32_t mode;
		uint64_t size, off, len;
		const char *name; /* of an attribute; of a member: a hard link to that */
	} records[6];
} told[] = {
	/* fine */
	{ 0, { END_HERE } },
	{ 0, { FILE_OF(10), BYTES(0, 4), BYTES(4, 6), FILE_OF(0), END_HERE } },
	{ 0, { FILE_OF(10), XATTR("user.x"), RUN(2, 3), RUN(7, 1), BYTES(2, 3), BYTES(7, 1) } },
	{ 0, { FILE_OF(10), RUN(0, 10), BYTES(0, 10), END_HERE } },
	{ 0, { FILE_OF(10), RUN(0, 4), RUN(4, 6), BYTES(0, 10), END_HERE } },
	{ 0, { FILE_OF(UINT64_C(1) << 34), RUN(0, 0), END_HERE } },
	{ 0, { { .kind = REC_MEMBER, .mode = S_IFREG, .size = 10, .name = "x" }, END_HERE } },
	/* out of order */
	{ -EPROTO, { BYTES(0, 1), END_HERE } },
	{ -EPROTO, { XATTR("user.x"), END_HERE } },
	{ -EPROTO, { RUN(0, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(2), BYTES(0, 1), XATTR("user.x"), END_HERE } },
	{ -EPROTO, { FILE_OF(2), RUN(0, 1), XATTR("user.x"), END_HERE } },
	{ -EPROTO, { FILE_OF(2), BYTES(0, 1), RUN(1, 1), END_HERE } },
	{ -EPROTO, { { .kind = REC_COUNT }, END_HERE } },
	/* too much, too little, elsewhere */
	{ -EPROTO, { FILE_OF(2), BYTES(0, 3), END_HERE } },
	{ -EPROTO, { FILE_OF(2), BYTES(0, 2), BYTES(2, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(2), BYTES(0, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(2), END_HERE } },
	{ -EPROTO, { FILE_OF(2), BYTES(0, 1), FILE_OF(0), END_HERE } },
	{ -EPROTO, { FILE_OF(9), BYTES(1, 8), END_HERE } },
	{ -EPROTO, { FILE_OF(9), BYTES(0, 5), BYTES(4, 4), END_HERE } },
	{ -EPROTO, { FILE_OF(9), BYTES(UINT64_MAX, 2), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(2, 3), BYTES(2, 4), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(2, 3), BYTES(0, 5), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(2, 3), BYTES(2, 2), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(0, 0), BYTES(0, 1), END_HERE } },
	{ -EPROTO, { { .kind = REC_MEMBER, .mode = S_IFIFO, .size = 9 }, BYTES(0, 1), END_HERE } },
	{ -EPROTO,
	  { { .kind = REC_MEMBER, .mode = S_IFREG, .size = 9, .name = "x" }, BYTES(0, 9) } },
	/* runs that cannot be */
	{ -EPROTO, { FILE_OF(9), RUN(0, 10), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(9, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(5, UINT64_MAX), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(UINT64_MAX, 2), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(4, 2), RUN(5, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(4, 2), RUN(0, 1), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(4, 0), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(0, 0), RUN(4, 2), END_HERE } },
	{ -EPROTO, { FILE_OF(9), RUN(4, 2), RUN(0, 0), END_HERE } },
	{ -EPROTO, { FILE_OF(0), RUN(0, 0), END_HERE } },
	/* members */
	{ -EPROTO, { FILE_OF(UINT64_C(1) << 63), END_HERE } },
	{ -EPROTO, { { .kind = REC_MEMBER, .mode = S_IFLNK | 0777 }, END_HERE } },
	{ -EPROTO, { { .kind = REC_MEMBER, .mode = S_IFDIR, .name = "x" }, END_HERE } },
	{ -ERR_ITEM_DAMAGED, { FILE_OF(0), XATTR("system.posix_acl_access"), END_HERE } },
};

static int tell(struct chan *c, size_t n)
{
	static const char bytes[16];
	int r = 0;

	for (size_t k = 0; k < ARRAY_SIZE(told[n].records) && r == 0; k++) {
		struct member m = { .path = "m",
				    .link = told[n].records[k].name,
				    .inode = { .mode = told[n].records[k].mode,
					       .size = told[n].records[k].size } };
		uint64_t off = told[n].records[k].off, len = told[n].records[k].len;

		switch (told[n].records[k].kind) {
		case REC_MEMBER:
			r = chan_put_member(c, &m);
			break;
		case REC_XATTR:
			r = chan_put_xattr(c, m.link, "value", 5);
			break;
		case REC_RUN:
		case REC_COUNT:
			r = chan_put_run(c, told[n].records[k].kind, off, len);
			break;
		case REC_DATA:
			r = chan_put_data(c, off, bytes, (size_t)len);
			break;
		default: /* also where a list has no room for it */
			break;
		}
	}
	r = r ?: chan_put(c, REC_END, NULL, 0, NULL, 0);
	return r ?: chan_flush(c);
}

START_TEST(what_makes_no_sense_is_refused)
{
	static char *const program[] = { "plyfs-tar", "write", NULL };

	for (size_t n = 0; n < ARRAY_SIZE(told); n++) {
		_cleanup_close_ int fd = memfd_create("tar", MFD_CLOEXEC);
		struct talk talk = { .store = fx_store, .ops = &impatient };
		struct helper h;
		struct record rec;
		int r;

		*fx.last_note = '\0';
		ck_ok(helper_start(&h, &talk, program, fd));
		r = tell(&h.chan, n);
		r = r < 0 ? helper_refused(&h, r) : helper_get(&h, &rec);
		ck_assert_msg(r == told[n].r, "%zu: %s, %s", n, err_name(r), fx.last_note);
		if (r == 0)
			ck_assert_int_eq(rec.kind, REC_END);
		helper_release(&h);
	}
	no_children();
}
END_TEST

/* ---- what an export does ---- */

/* More than fits into the sockets. */
static struct root *some_state(void)
{
	static uint8_t data[1 << 20];
	struct root *root;

	fx_fill(data, sizeof(data), 1);
	for (unsigned n = 0; n < 3; n++) {
		char name[] = { (char)('a' + n), '\0' };

		fx_write(fx_file(name), 0, data, sizeof(data));
	}
	ck_ok(tree_freeze(fs.tree, &root));
	return root;
}

static const struct {
	const char *text; /* behind "#!" */
	int r;
	const char *note;
} programs[] = {
	{ SHELL "exit 3", -EIO, "plyfs-tar ended with exit code 3" },
	{ SHELL "kill -SEGV $$", -EIO, "signal 11" },
	{ HELLO "exit 4", -EIO, "exit code 4" },
	{ HELLO "dd bs=1000 count=1 <&3 >/dev/null 2>&1; kill -ABRT $$", -EIO, "signal 6" },
	{ SHELL "echo it is not what it used to be >&3", -EPROTO, "makes no sense" },
	{ HELLO "echo it is not what it used to be >&3; cat <&3 >/dev/null", -EPROTO,
	  "makes no sense" },
	{ HELLO SAYS("001", "005", PLYFS_VERSION) "cat <&3 >/dev/null", -EPROTO, "makes no sense" },
	{ SHELL SAYS("001", "003", "0.0") "cat <&3 >/dev/null", -EPROTO, "of version 0.0" },
	{ SHELL "printf '\\006" NULS "\\001" NULS "x%.0s' $(seq 3000) >&3; cat <&3", -ERR_CANCELLED,
	  "" }, /* REC_SKIP */
};

START_TEST(a_program_that_fails_fails_the_export)
{
	_cleanup_(root_unrefp) struct root *root = some_state();
	_cleanup_close_ int not_for_writing = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (size_t n = 0; n < ARRAY_SIZE(programs); n++) {
		_cleanup_close_ int fd = memfd_create("tar", MFD_CLOEXEC);
		int r;

		*fx.last_note = '\0';
		warnings = 0;
		cancel = false;
		use_program("plyfs-tar", programs[n].text);
		r = export_tar(fx_store, root, fd, &impatient, NULL);
		ck_assert_msg(r == programs[n].r, "%zu: %s, %s", n, err_name(r), fx.last_note);
		ck_assert_msg(strstr(fx.last_note, programs[n].note), "%zu: %s", n, fx.last_note);
		no_children();
	}
	ck_assert_uint_eq(warnings, 1000); /* of the last: not one more than it took to cancel */
	cancel = false;
	ck_assert_int_eq(unlinkat(fx.dir_fd, "plyfs-tar", 0), 0); /* the true one is found */
	ck_assert_int_eq(export_tar(fx_store, root, not_for_writing, &impatient, NULL), -EBADF);
	ck_assert_str_eq(fx.last_note, "writing the archive");
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("tar_write");

	tcase_set_timeout(t, 240); /* fifty programs are started; sanitizers */
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_makes_no_sense_is_refused);
	tcase_add_test(t, a_program_that_fails_fails_the_export);
	return run_case("tar_write", t);
}
