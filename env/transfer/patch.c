// SPDX-License-Identifier: Apache-2.0

/*
 * Git revisions in, git patches out. The only file that includes git2.h; libgit2's codes stop here.
 *
 * Invariants:
 *  1. A tree object comes from a stranger. Its names are checked as git checks them before it
 *     checks out: nothing that is or could be taken for "." or ".." or ".git" on any filesystem.
 *  2. The walk keeps its own stack, and looks at `cancel` between entries: trees may be deep, and a
 *     few small objects may describe a tree of billions of files.
 *  3. A printed patch applies: paths are quoted as git quotes them, a binary patch carries full
 *     object names, and what git cannot express is not printed at all.
 */

#include <errno.h>
#include <git2.h>
#include <pthread.h>
#include <sys/stat.h>

#include "env/dotgit.h"
#include "env/transfer/transfer_internal.h"
#include "fs/diff.h"
#include "fs/format.h"
#include "store/chunk.h"

#define GIT_FILE 0100644u
#define GIT_EXECUTABLE 0100755u
#define GIT_SYMLINK 0120000u

/* Once in the process, and for good: taking libgit2 up and down costs more than most patches. */
static void init_library(void)
{
	(void)git_libgit2_init();
}

static void use_library(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_library);
}

/* One side of a change as git sees it. mode 0: nothing there. */
struct side {
	unsigned mode;
	char *data; /* owned */
	size_t len;
	char id[GIT_OID_HEXSZ + 1];
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
	git_oid id;
	size_t got;
	int r;

	memset(ret->id, '0', GIT_OID_HEXSZ);
	ret->id[GIT_OID_HEXSZ] = '\0';
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
	if (git_odb_hash(&id, s.data, s.len, GIT_OBJECT_BLOB) < 0)
		return -ENOMEM;
	git_oid_tostr(s.id, sizeof(s.id), &id);
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

static int print_line(const git_diff_delta *delta, const git_diff_hunk *hunk,
		      const git_diff_line *line, void *arg)
{
	FILE *out = arg;

	if (line->origin == GIT_DIFF_LINE_FILE_HDR)
		return 0; /* ours is printed already */
	if (line->origin == GIT_DIFF_LINE_CONTEXT || line->origin == GIT_DIFF_LINE_ADDITION ||
	    line->origin == GIT_DIFF_LINE_DELETION)
		fputc(line->origin, out);
	fwrite(line->content, 1, line->content_len, out);
	return 0;
}

static int make_patch(const struct side *a, const struct side *b, bool binary, git_patch **ret)
{
	git_diff_options options = GIT_DIFF_OPTIONS_INIT;

	options.flags = GIT_DIFF_SHOW_BINARY | GIT_DIFF_INDENT_HEURISTIC |
			(binary ? GIT_DIFF_FORCE_BINARY : GIT_DIFF_FORCE_TEXT);
	options.max_size = (int64_t)PATCH_FILE_MAX + 1; /* load_side knows the limit */
	if (git_patch_from_buffers(ret, a->mode ? a->data : NULL, a->len, a->mode ? "file" : NULL,
				   b->mode ? b->data : NULL, b->len, b->mode ? "file" : NULL,
				   &options) < 0)
		return -ENOMEM;

	/* libgit2 1.5 does not look whether its diff had memory: then nothing differs. */
	if (!binary && a->len + b->len > 0 && strcmp(a->id, b->id) != 0 &&
	    git_patch_num_hunks(*ret) == 0)
		return -ENOMEM;
	return 0;
}

static void git_patch_freep(git_patch **p)
{
	git_patch_free(*p);
}

static int print_one(FILE *out, const struct side *a, const struct side *b, const char *old_path,
		     const char *new_path)
{
	_cleanup_(git_patch_freep) git_patch *patch = NULL;
	bool same = strcmp(a->id, b->id) == 0, renamed = strcmp(old_path, new_path) != 0;
	bool binary = is_binary(a) || is_binary(b);
	unsigned alike;
	int r;

	if (same && a->mode == b->mode && !renamed)
		return 0;

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
		return 0;

	r = binary ? GIT_OID_HEXSZ : 7;
	fprintf(out, "index %.*s..%.*s", r, a->id, r, b->id);
	if (a->mode == b->mode)
		fprintf(out, " %o", a->mode);
	fputc('\n', out);
	if (a->len == 0 && b->len == 0)
		return 0; /* an empty file comes or goes */

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
	r = make_patch(a, b, binary, &patch);
	if (r < 0)
		return r;
	return git_patch_print(patch, print_line, out) < 0 ? -ENOMEM : 0;
}

int patch_print(FILE *out, const struct fs *old_fs, const struct fs *new_fs, const struct change *c)
{
	static const struct side nothing = { .id = "0000000000000000000000000000000000000000" };
	_cleanup_(side_release) struct side a = { 0 }, b = { 0 };
	const char *old_path = c->old_path ? c->old_path : c->new_path;
	const char *new_path = c->new_path ? c->new_path : c->old_path;
	bool left_out;
	int r;

	errno = 0;
	use_library();
	r = load_side(old_fs, c->old_path ? c->old_inode : NULL, &a);
	if (r < 0)
		return r;
	left_out = r == AGAIN;
	r = load_side(new_fs, c->new_path ? c->new_inode : NULL, &b);
	if (r < 0)
		return r;
	left_out |= r == AGAIN;

	if (a.mode && b.mode && (a.mode & S_IFMT) == (b.mode & S_IFMT)) {
		r = print_one(out, &a, &b, old_path, new_path);
	} else {
		/* git takes a change of type for two changes. */
		r = a.mode ? print_one(out, &a, &nothing, old_path, old_path) : 0;
		if (r == 0 && b.mode)
			r = print_one(out, &nothing, &b, new_path, new_path);
	}
	if (r < 0)
		return r;
	if (ferror(out))
		return errno ? -errno : -EIO;
	return left_out ? AGAIN : 0;
}

int patch_count(const struct fs *old_fs, const struct fs *new_fs, const struct change *c,
		uint64_t *ret_added, uint64_t *ret_removed, bool *ret_binary)
{
	_cleanup_(side_release) struct side a = { 0 }, b = { 0 };
	_cleanup_(git_patch_freep) git_patch *patch = NULL;
	const struct inode *old_inode = c->old_path ? c->old_inode : NULL;
	const struct inode *new_inode = c->new_path ? c->new_inode : NULL;
	size_t added = 0, removed = 0;
	int r;

	use_library();
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
	if (a.len == 0 && b.len == 0)
		return 0;
	r = make_patch(&a, &b, false, &patch);
	if (r < 0)
		return r;
	if (git_patch_line_stats(NULL, &added, &removed, patch) < 0)
		return -ENOMEM;
	*ret_added = added;
	*ret_removed = removed;
	return 0;
}
