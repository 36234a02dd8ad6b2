/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Git patches out. What is compared is compared by libgit2, in plyfs-git (git_hunks.c); the lines
 * above the hunks are printed here.
 *
 * Invariants:
 *  1. A printed patch applies: paths are quoted as git quotes them, a binary patch carries full
 *     object names, and what git cannot express is not printed at all.
 *  2. plyfs-git is believed nothing: it may end, or say anything, at any time. A failure ends it,
 *     so that no answer is ever taken for that to another question.
 */

#include <errno.h>
#include <sys/stat.h>

#include "env/formats/digest.h"
#include "env/transfer/helper.h"
#include "fs/diff.h"
#include "fs/format.h"
#include "store/chunk.h"

#define GIT_FILE 0100644u
#define GIT_EXECUTABLE 0100755u
#define GIT_SYMLINK 0120000u

struct patcher {
	struct talk talk;
	struct helper helper; /* started when it is first needed */
};

/* One side of a change as git sees it. mode 0: nothing there. */
struct side {
	unsigned mode;
	char *data; /* owned */
	size_t len;
	char id[BLOB_ID_SIZE];
};

static void side_release(struct side *s)
{
	free(s->data);
}

static bool is_binary(const struct side *s)
{
	/* git's rule: a NUL among the first 8000 bytes */
	return s->len > 0 && memchr(s->data, '\0', MIN(s->len, (size_t)8000));
}

/* AGAIN: git has no form for it. -EFBIG: too large to hold. */
static int load_side(const struct fs *fs, const struct inode *i, struct side *ret)
{
	_cleanup_(side_release) struct side s = { 0 };
	size_t got;
	int r;

	memset(ret->id, '0', BLOB_ID_SIZE - 1);
	ret->id[BLOB_ID_SIZE - 1] = '\0';
	if (!i || S_ISDIR(i->mode))
		return 0;
	if (!S_ISREG(i->mode) && !S_ISLNK(i->mode))
		return AGAIN;
	if (i->size > (S_ISREG(i->mode) ? PATCH_FILE_MAX : TARGET_MAX))
		return -EFBIG;

	s.data = malloc(MAX(i->size, (uint64_t)1));
	if (!s.data)
		return -ENOMEM;
	if (S_ISLNK(i->mode)) {
		s.mode = GIT_SYMLINK;
		r = fs_readlink(fs, i->ino, s.data, i->size, &s.len);
		if (r < 0)
			return r;
	} else {
		s.mode = i->mode & 0100 ? GIT_EXECUTABLE : GIT_FILE;
		for (; s.len < i->size; s.len += got) {
			r = fs_read(fs, i->ino, s.len, s.data + s.len, i->size - s.len, &got);
			if (r < 0)
				return r;
			if (got == 0)
				return -ERR_ITEM_DAMAGED;
		}
	}
	digest_blob(s.data, s.len, s.id);
	*ret = s;
	s.data = NULL;
	return 0;
}

/*
 * How alike two contents are, in percent: bytes of lines (cut at 64 bytes) that both have, of the
 * larger one. This is what git means by similarity.
 */
#define SPAN_MAX 64
#define SPAN_SLOTS (1u << 17) /* 1 MiB for both sides; a collision only flatters */

static void count_spans(const struct side *s, uint32_t *slots)
{
	size_t at = 0;

	while (at < s->len) {
		size_t most = MIN(s->len - at, (size_t)SPAN_MAX);
		const char *nl = memchr(s->data + at, '\n', most);
		size_t n = nl ? (size_t)(nl + 1 - (s->data + at)) : most;

		slots[hash64(s->data + at, n, 0) % SPAN_SLOTS] += (uint32_t)n;
		at += n;
	}
}

static int similarity(const struct side *a, const struct side *b, unsigned *ret)
{
	_cleanup_free_ uint32_t *slots = NULL;
	uint64_t both = 0, larger = MAX(a->len, b->len);

	if (strcmp(a->id, b->id) == 0) {
		*ret = 100;
		return 0;
	}
	slots = calloc(2 * SPAN_SLOTS, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	count_spans(a, slots);
	count_spans(b, slots + SPAN_SLOTS);
	for (size_t i = 0; i < SPAN_SLOTS; i++)
		both += MIN(slots[i], slots[SPAN_SLOTS + i]);
	*ret = MIN((unsigned)(both * 100 / larger), 99u); /* 100 means that nothing changed */
	return 0;
}

/* As git quotes: plain, or in double quotes with C escapes and octal digits. */
static void print_path(FILE *out, const char *prefix, const char *path)
{
	static const char escaped[] = "\a\b\t\n\v\f\r\"\\", letters[] = "abtnvfr\"\\";
	bool plain = true;

	for (const unsigned char *p = (const unsigned char *)path; *p && plain; p++)
		plain = *p >= ' ' && *p < 0x7f && *p != '"' && *p != '\\';
	if (plain) {
		fprintf(out, "%s%s", prefix, path);
		return;
	}
	fprintf(out, "\"%s", prefix);
	for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
		const char *e = strchr(escaped, *p);

		if (e)
			fprintf(out, "\\%c", letters[e - escaped]);
		else if (*p >= ' ' && *p < 0x7f)
			fputc(*p, out);
		else
			fprintf(out, "\\%03o", *p);
	}
	fputc('"', out);
}

/* "--- a/path": a tab behind a path with a space keeps other readers from taking it for a date. */
static void print_file_line(FILE *out, const char *mark, const char *prefix, const char *path)
{
	fputs(mark, out);
	print_path(out, prefix, path);
	fputs(strchr(path, ' ') ? "\t\n" : "\n", out);
}

/* Of what was printed since errno was 0. */
static int written(FILE *out)
{
	if (!ferror(out))
		return 0;
	return errno ? -errno : -EIO;
}

/* ---- what plyfs-git is for ---- */

static int ask(struct patcher *p, const struct side *a, const struct side *b, bool binary,
	       bool count)
{
	static char *const argv[] = { "plyfs-git", "patch", NULL };
	const struct sides s = {
		.old_there = a->mode,
		.new_there = b->mode,
		.binary = binary,
		.count = count,
		.old_len = a->len,
		.new_len = b->len,
	};
	struct chan *c = &p->helper.chan;
	int r;

	if (!p->helper.name) {
		r = helper_start(&p->helper, &p->talk, argv, -1);
		if (r < 0)
			return r;
	}
	r = chan_put_sides(c, &s);
	r = r ?: chan_put_data(c, 0, a->data, a->len);
	r = r ?: chan_put_data(c, a->len, b->data, b->len);
	r = r ?: chan_flush(c);
	return r < 0 ? helper_refused(&p->helper, r) : 0;
}

static int answer(struct patcher *p, const struct side *a, const struct side *b, FILE *out,
		  uint64_t *ret_added, uint64_t *ret_removed)
{
	bool said = !out;
	struct record rec;

	for (;;) {
		int r = helper_get(&p->helper, &rec);

		if (r < 0)
			return r;
		if (rec.kind == REC_COUNT)
			break;
		if (rec.kind != REC_TEXT || !out || rec.len == 0)
			return helper_confused(&p->helper);
		said = true;
		errno = 0;
		fwrite(rec.data, 1, rec.len, out);
		r = written(out);
		if (r < 0)
			return r;
	}
	/* Contents that differ differ in something, in as many lines as they have bytes at most. */
	if (!said || !record_run(&rec, ret_added, ret_removed) || *ret_added > b->len ||
	    *ret_removed > a->len)
		return helper_confused(&p->helper);
	return 0;
}

/* out: for the text; NULL: it is not wanted. The contents differ. */
static int compare(struct patcher *p, const struct side *a, const struct side *b, bool binary,
		   FILE *out, uint64_t *ret_added, uint64_t *ret_removed)
{
	int r = ask(p, a, b, binary, !out);

	if (r == 0)
		r = answer(p, a, b, out, ret_added, ret_removed);
	if (r == 0)
		return 0;
	helper_release(&p->helper);

	/* It may name any reason. Not those by which our callers know other things. */
	if (!(out && ferror(out)) && talk_cancelled(&p->talk) == 0 &&
	    (r == -EFBIG || r == -EPIPE || r == -ERR_CANCELLED))
		return -EPROTO;
	return r;
}

/* ---- printing and counting ---- */

static int print_one(struct patcher *p, FILE *out, const struct side *a, const struct side *b,
		     const char *old_path, const char *new_path)
{
	bool same = strcmp(a->id, b->id) == 0, renamed = strcmp(old_path, new_path) != 0;
	bool binary = is_binary(a) || is_binary(b);
	uint64_t added, removed;
	unsigned alike;
	int r;

	if (same && a->mode == b->mode && !renamed)
		return 0;

	errno = 0;
	fputs("diff --git ", out);
	print_path(out, "a/", old_path);
	fputc(' ', out);
	print_path(out, "b/", new_path);
	fputc('\n', out);
	if (!a->mode)
		fprintf(out, "new file mode %o\n", b->mode);
	else if (!b->mode)
		fprintf(out, "deleted file mode %o\n", a->mode);
	else if (a->mode != b->mode)
		fprintf(out, "old mode %o\nnew mode %o\n", a->mode, b->mode);
	if (renamed) {
		r = similarity(a, b, &alike);
		if (r < 0)
			return r;
		fprintf(out, "similarity index %u%%\nrename from ", alike);
		print_path(out, "", old_path);
		fputs("\nrename to ", out);
		print_path(out, "", new_path);
		fputc('\n', out);
	}
	if (same)
		return written(out);

	r = binary ? BLOB_ID_SIZE - 1 : 7;
	fprintf(out, "index %.*s..%.*s", r, a->id, r, b->id);
	if (a->mode == b->mode)
		fprintf(out, " %o", a->mode);
	fputc('\n', out);
	if (a->len == 0 && b->len == 0)
		return written(out); /* an empty file comes or goes */

	if (!binary) {
		if (a->mode)
			print_file_line(out, "--- ", "a/", old_path);
		else
			fputs("--- /dev/null\n", out);
		if (b->mode)
			print_file_line(out, "+++ ", "b/", new_path);
		else
			fputs("+++ /dev/null\n", out);
	}
	r = written(out);
	return r < 0 ? r : compare(p, a, b, binary, out, &added, &removed);
}

int patcher_new(struct store *s, const struct import_ops *ops, struct patcher **ret)
{
	struct patcher *p = malloc(sizeof(*p));

	if (!p)
		return -ENOMEM;
	*p = (struct patcher){ .talk = { .store = s, .ops = ops, .what = "comparing" } };
	*ret = p;
	return 0;
}

void patcher_free(struct patcher *p)
{
	helper_release(&p->helper);
	free(p);
}

int patch_print(struct patcher *p, FILE *out, const struct fs *old_fs, const struct fs *new_fs,
		const struct change *c)
{
	static const struct side nothing = { .id = "0000000000000000000000000000000000000000" };
	_cleanup_(side_release) struct side a = { 0 }, b = { 0 };
	const char *old_path = c->old_path ? c->old_path : c->new_path;
	const char *new_path = c->new_path ? c->new_path : c->old_path;
	bool left_out;
	int r;

	r = load_side(old_fs, c->old_path ? c->old_inode : NULL, &a);
	if (r < 0)
		return r;
	left_out = r == AGAIN;
	r = load_side(new_fs, c->new_path ? c->new_inode : NULL, &b);
	if (r < 0)
		return r;
	left_out |= r == AGAIN;

	if (a.mode && b.mode && (a.mode & S_IFMT) == (b.mode & S_IFMT)) {
		r = print_one(p, out, &a, &b, old_path, new_path);
	} else {
		/* git takes a change of type for two changes. */
		r = a.mode ? print_one(p, out, &a, &nothing, old_path, old_path) : 0;
		if (r == 0 && b.mode)
			r = print_one(p, out, &nothing, &b, new_path, new_path);
	}
	if (r < 0)
		return r;
	return left_out ? AGAIN : 0;
}

/* As git counts: one without a newline at the end of it is one. */
static uint64_t lines(const struct side *s)
{
	const char *at = s->data, *end;
	uint64_t n;

	if (s->len == 0)
		return 0;
	end = at + s->len;
	n = end[-1] != '\n';
	while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) {
		at++;
		n++;
	}
	return n;
}

int patch_count(struct patcher *p, const struct fs *old_fs, const struct fs *new_fs,
		const struct change *c, uint64_t *ret_added, uint64_t *ret_removed,
		bool *ret_binary)
{
	_cleanup_(side_release) struct side a = { 0 }, b = { 0 };
	const struct inode *old_inode = c->old_path ? c->old_inode : NULL;
	const struct inode *new_inode = c->new_path ? c->new_inode : NULL;
	int r;

	*ret_binary = false;
	*ret_added = *ret_removed = 0;

	/* Too large to look at: as binary. */
	if ((old_inode && S_ISREG(old_inode->mode) && old_inode->size > PATCH_FILE_MAX) ||
	    (new_inode && S_ISREG(new_inode->mode) && new_inode->size > PATCH_FILE_MAX)) {
		*ret_binary = true;
		*ret_added = new_inode && S_ISREG(new_inode->mode) ? new_inode->size : 0;
		*ret_removed = old_inode && S_ISREG(old_inode->mode) ? old_inode->size : 0;
		return 0;
	}
	r = load_side(old_fs, old_inode, &a);
	if (r < 0)
		return r;
	r = load_side(new_fs, new_inode, &b);
	if (r < 0)
		return r;
	if (strcmp(a.id, b.id) == 0)
		return 0;
	if (is_binary(&a) || is_binary(&b)) {
		*ret_binary = true;
		*ret_added = b.len;
		*ret_removed = a.len;
		return 0;
	}
	if (a.len == 0 || b.len == 0) { /* often: a file comes or goes */
		*ret_added = lines(&b);
		*ret_removed = lines(&a);
		return 0;
	}
	return compare(p, &a, &b, false, NULL, ret_added, ret_removed);
}
