/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-git patch: compares what the daemon sends, as git does. */

#include "env/formats/git.h"
#include "store/base/err.h"

/* What is to be compared: both contents in one piece, the new one behind the old one. */
struct pair {
	struct sides sides;
	char *data; /* owned */
};

static void pair_release(struct pair *p)
{
	free(p->data);
}

/* The text on its way: lines are short, a record is not. One thread, one answer at a time. */
static struct {
	size_t len;
	char bytes[RECORD_DATA_MAX];
} text;

static void text_send(struct chan *c)
{
	if (text.len > 0)
		program_must(c, chan_put(c, REC_TEXT, text.bytes, text.len, NULL, 0));
	text.len = 0;
}

static void text_put(struct chan *c, const char *data, size_t len)
{
	while (len > 0) {
		size_t n = MIN(len, sizeof(text.bytes) - text.len);

		memcpy(text.bytes + text.len, data, n);
		text.len += n;
		data += n;
		len -= n;
		if (text.len == sizeof(text.bytes))
			text_send(c);
	}
}

static int put_line(const git_diff_delta *delta, const git_diff_hunk *hunk,
		    const git_diff_line *line, void *arg)
{
	if (line->origin == GIT_DIFF_LINE_FILE_HDR)
		return 0; /* the daemon, which knows the paths, has printed its own */
	if (line->origin == GIT_DIFF_LINE_CONTEXT || line->origin == GIT_DIFF_LINE_ADDITION ||
	    line->origin == GIT_DIFF_LINE_DELETION)
		text_put(arg, &line->origin, 1);
	text_put(arg, line->content, line->content_len);
	return 0;
}

/* Ends the process when the daemon has gone, which is how this program ends. */
static void get_record(struct chan *c, enum record_kind kind, struct record *ret)
{
	int r = chan_get(c, ret);

	if (r == END)
		_exit(EXIT_SUCCESS);
	if (r < 0)
		program_fail(c, r, "a message of plyfsd");
	if (ret->kind != kind)
		program_fail(c, -EPROTO, "a message of plyfsd in the wrong place");
}

static void get_pair(struct chan *c, struct pair *ret)
{
	struct sides *s = &ret->sides;
	struct record rec;
	const void *data;
	uint64_t off, all;
	size_t n;

	get_record(c, REC_SIDES, &rec);
	if (!record_sides(&rec, s) || s->old_len > PATCH_FILE_MAX || s->new_len > PATCH_FILE_MAX ||
	    (!s->old_there && s->old_len > 0) || (!s->new_there && s->new_len > 0))
		program_fail(c, -EPROTO, "plyfsd wants what makes no sense compared");
	all = s->old_len + s->new_len;
	ret->data = malloc(MAX(all, (uint64_t)1));
	if (!ret->data)
		program_fail(c, -ENOMEM, "comparing two contents");

	for (uint64_t got = 0; got < all; got += n) {
		get_record(c, REC_DATA, &rec);
		if (!record_data(&rec, &off, &data, &n) || off != got || n > all - got)
			program_fail(c, -EPROTO, "content of plyfsd in the wrong place");
		memcpy(ret->data + got, data, n);
	}
}

static void git_patch_freep(git_patch **p)
{
	git_patch_free(*p);
}

static void answer(struct chan *c, const struct pair *p)
{
	_cleanup_(git_patch_freep) git_patch *patch = NULL;
	git_diff_options options = GIT_DIFF_OPTIONS_INIT;
	const char *old_data = p->data, *new_data = p->data + p->sides.old_len;
	size_t old_len = p->sides.old_len, new_len = p->sides.new_len, added, removed;

	options.flags = GIT_DIFF_SHOW_BINARY | GIT_DIFF_INDENT_HEURISTIC |
			(p->sides.binary ? GIT_DIFF_FORCE_BINARY : GIT_DIFF_FORCE_TEXT);
	options.max_size = (int64_t)PATCH_FILE_MAX + 1; /* get_pair knows the limit */
	if (git_patch_from_buffers(&patch, p->sides.old_there ? old_data : NULL, old_len,
				   p->sides.old_there ? "file" : NULL,
				   p->sides.new_there ? new_data : NULL, new_len,
				   p->sides.new_there ? "file" : NULL, &options) < 0)
		program_fail(c, -ENOMEM, "comparing two contents: %s", git_why());

	/* libgit2 1.5 does not look whether its diff had memory: then nothing differs. */
	if (!p->sides.binary && git_patch_num_hunks(patch) == 0 &&
	    (old_len != new_len || memcmp(old_data, new_data, old_len) != 0))
		program_fail(c, -ENOMEM, "comparing two contents");

	if (!p->sides.count && git_patch_print(patch, put_line, c) < 0)
		program_fail(c, -ENOMEM, "comparing two contents: %s", git_why());
	text_send(c);
	if (git_patch_line_stats(NULL, &added, &removed, patch) < 0)
		program_fail(c, -ENOMEM, "comparing two contents: %s", git_why());
	program_must(c, chan_put_run(c, REC_COUNT, added, removed));
	program_must(c, chan_flush(c));
}

void git_hunks(struct chan *c)
{
	for (;;) {
		_cleanup_(pair_release) struct pair p = { 0 };

		get_pair(c, &p);
		answer(c, &p);
	}
}
