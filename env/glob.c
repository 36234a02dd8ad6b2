/* SPDX-License-Identifier: Apache-2.0 */

/*
 * list_files' patterns; see glob.h.
 *
 * The tree is walked once. With each directory goes the set of segments that its entries may match
 * next (the states of a nondeterministic automaton): a segment that an entry matches hands on the
 * one behind it, ** hands on itself as well. So a directory is read at most once per way in, no
 * file is found twice, and the time is entries times segments, however many ** there are.
 */

#include "env/glob.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "env/files.h"
#include "env/status.h"
#include "store/base/util.h"

/* States are the bits of a word. Nobody writes a pattern of more segments. */
#define SEGMENTS_MAX 64

/* ---- one segment ---- */

/* Bytes of the character at s, which is not at its end: one that is not UTF-8 is a byte. */
static size_t char_bytes(const char *s)
{
	unsigned char c = (unsigned char)*s;
	size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;

	for (size_t i = 1; i < n; i++)
		if (((unsigned char)s[i] & 0xc0) != 0x80)
			return 1;
	return n;
}

/* A number that orders characters as their code points do; bytes that are none come last. */
static uint32_t char_value(const char *s, size_t n)
{
	unsigned char c = (unsigned char)*s;
	uint32_t v;

	if (n == 1)
		return c < 0x80 ? c : 0x110000u + c;
	v = c & (0xffu >> (n + 1));
	for (size_t i = 1; i < n; i++)
		v = v << 6 | ((unsigned char)s[i] & 0x3f);
	return v;
}

static bool is_end(char c)
{
	return c == '\0' || c == '/';
}

/* p is behind a '['. The ']' that closes it, or NULL: then '[' is itself. */
static const char *set_end(const char *p)
{
	if (*p == '!')
		p++;
	if (*p == ']')
		p++;
	while (!is_end(*p) && *p != ']')
		p++;
	return *p == ']' ? p : NULL;
}

static bool set_has(const char *p, const char *end, uint32_t c)
{
	bool negated = *p == '!', found = false;

	for (p += negated; p < end;) {
		size_t n = char_bytes(p);
		uint32_t low = char_value(p, n), high = low;

		p += n;
		if (end - p >= 2 && *p == '-') {
			n = char_bytes(p + 1);
			high = char_value(p + 1, n);
			p += 1 + n;
		}
		if (low <= c && c <= high)
			found = true;
	}
	return found != negated;
}

/* One character of the pattern (not *) against one of the name; moves *p when they match. */
static bool match_one(const char **p, const char *name, size_t n)
{
	const char *end;

	if (**p == '?') {
		(*p)++;
		return true;
	}
	if (**p == '[') {
		end = set_end(*p + 1);
		if (end) {
			if (!set_has(*p + 1, end, char_value(name, n)))
				return false;
			*p = end + 1;
			return true;
		}
	}
	if (char_bytes(*p) != n || memcmp(*p, name, n) != 0)
		return false;
	*p += n;
	return true;
}

bool glob_match(const char *p, const char *name)
{
	const char *star = NULL, *star_name = NULL;

	/* The last * takes one character more each time that what is behind it did not match. */
	for (;;) {
		size_t n = *name ? char_bytes(name) : 0;

		if (*p == '*') {
			star = ++p;
			star_name = name;
			continue;
		}
		if (!*name && is_end(*p))
			return true;
		if (*name && !is_end(*p) && match_one(&p, name, n)) {
			name += n;
			continue;
		}
		if (!star || !*star_name)
			return false;
		star_name += char_bytes(star_name);
		name = star_name;
		p = star;
	}
}

/* ---- a pattern ---- */

struct pattern {
	char *text; /* owned: '/' between segments, no empty or "." ones */
	const char *segments[SEGMENTS_MAX];
	unsigned n;
};

static bool is_deep(const char *segment)
{
	return segment[0] == '*' && segment[1] == '*' && is_end(segment[2]);
}

static int add_segment(struct pattern *p, const char *s, size_t len)
{
	if (len == 2 && memcmp(s, "..", 2) == 0)
		return fail(PLY_DENIED, "Path escapes workdir: %s", p->text);
	for (size_t i = 0; len > 2 && i + 1 < len; i++)
		if (s[i] == '*' && s[i + 1] == '*')
			return fail(PLY_INVALID,
				    "Invalid pattern: '**' can only be an entire path component, "
				    "as in '**/*.py': %s",
				    p->text);
	if (p->n && is_deep(s) && is_deep(p->segments[p->n - 1]))
		return 0; /* any number, and any number */
	if (p->n == SEGMENTS_MAX)
		return fail(PLY_INVALID, "a pattern has at most %d segments: %s", SEGMENTS_MAX,
			    p->text);
	p->segments[p->n++] = s;
	return 0;
}

static int parse(struct pattern *p, const char *text)
{
	int r;

	if (!*text)
		return fail(PLY_INVALID, "Unacceptable pattern: ''");
	if (*text == '/')
		return fail(PLY_UNSUPPORTED, "Non-relative patterns are unsupported: %s", text);
	p->text = strdup(text);
	if (!p->text)
		return fail_memory();
	for (const char *s = p->text; *s; s += strspn(s, "/")) {
		size_t len = strcspn(s, "/");

		if (len != 1 || *s != '.') {
			r = add_segment(p, s, len);
			if (r < 0)
				return r;
		}
		s += len;
	}
	return 0;
}

/* ---- the walk ---- */

struct walk {
	const struct pattern *pattern;
	const char *root, *const *hidden;
	struct ply_list *list;
	char path[PATH_MAX]; /* relative to root */
};

static void closedirp(DIR **d)
{
	if (*d)
		(void)closedir(*d); /* read only */
}

/* ** may stand for nothing: then what is behind it is next as well. */
static uint64_t with_skips(const struct pattern *p, uint64_t states)
{
	for (unsigned i = 0; i + 1 < p->n; i++)
		if ((states & 1ull << i) && is_deep(p->segments[i]))
			states |= 1ull << (i + 1);
	return states;
}

/*
 * What an entry called name does to the states: those for its own entries if it is a directory
 * (reached by ** alone, or named by a segment), and whether it is wanted if it is a file.
 */
static void step(const struct pattern *p, uint64_t states, const char *name, uint64_t *ret_deep,
		 uint64_t *ret_named, bool *ret_wanted)
{
	uint64_t deep = 0, named = 0;
	bool wanted = false;

	for (unsigned i = 0; i < p->n; i++) {
		bool last = i + 1 == p->n;

		if (!(states & 1ull << i))
			continue;
		if (is_deep(p->segments[i])) {
			deep |= 1ull << i;
			wanted |= last;
		} else if (glob_match(p->segments[i], name)) {
			wanted |= last;
			if (!last)
				named |= 1ull << (i + 1);
		}
	}
	*ret_deep = deep;
	*ret_named = named;
	*ret_wanted = wanted;
}

static bool is_hidden(const struct walk *w)
{
	for (const char *const *h = w->hidden; h && *h; h++)
		if (strcmp(w->path, *h) == 0)
			return true;
	return false;
}

/* w->path, by its own name or through a symlink that stays below root. A descriptor, or -errno. */
static int open_directory(struct walk *w, int dir_fd, const char *name, bool is_link)
{
	_cleanup_free_ char *to = NULL;
	int fd, r;

	if (is_link) {
		r = files_resolve(w->root, w->path, &to);
		if (r < 0)
			return r == PLY_NO_MEMORY ? -ENOMEM : -ENOENT;
		return files_open(w->root, to, O_RDONLY | O_DIRECTORY);
	}
	fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int walk(struct walk *w, int fd, size_t len, uint64_t states);

/* Not of what is there, which may be gone, lead nowhere, be somebody else's, but of the moment. */
static bool is_trouble(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
}

/* What cannot be looked at is left out if that is how things are. */
static int look_failed(const char *name)
{
	return is_trouble(errno) ? fail_errno(errno, "'%s'", name) : 0;
}

static int visit(struct walk *w, int dir_fd, const struct dirent *e, size_t len, uint64_t states)
{
	size_t name_len = strlen(e->d_name), at = len ? len + 1 : 0;
	bool wanted, is_link = false;
	uint64_t deep, named;
	unsigned char type = e->d_type;
	struct stat st;
	int fd;

	step(w->pattern, states, e->d_name, &deep, &named, &wanted);
	if ((!deep && !named && !wanted) || at + name_len >= sizeof(w->path))
		return 0;
	if (type == DT_UNKNOWN || type == DT_LNK) {
		if (fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return look_failed(e->d_name); /* gone meanwhile */
		is_link = S_ISLNK(st.st_mode);
		if (is_link && fstatat(dir_fd, e->d_name, &st, 0) < 0)
			return look_failed(e->d_name); /* leads nowhere */
		type = S_ISREG(st.st_mode) ? DT_REG : S_ISDIR(st.st_mode) ? DT_DIR : DT_UNKNOWN;
	}
	if (type != DT_DIR && !(type == DT_REG && wanted))
		return 0;
	if (len)
		w->path[len] = '/';
	memcpy(w->path + at, e->d_name, name_len + 1);
	if (type == DT_REG)
		return list_append(w->list, w->path, at + name_len);

	states = with_skips(w->pattern, is_link ? named : deep | named);
	if (!states || is_hidden(w))
		return 0;
	fd = open_directory(w, dir_fd, e->d_name, is_link);
	if (is_trouble(-fd))
		return fail_errno(-fd, "'%s'", w->path);
	return fd < 0 ? 0 : walk(w, fd, at + name_len, states);
}

/* Takes fd. */
static int walk(struct walk *w, int fd, size_t len, uint64_t states)
{
	_cleanup_(closedirp) DIR *d = fdopendir(fd);
	struct dirent *e;
	int r;

	if (!d) {
		(void)close(fd);
		return fail_memory(); /* nothing else can be: it is a directory, opened to read */
	}
	while (errno = 0, (e = readdir(d))) {
		if (e->d_name[0] == '.' && (!e->d_name[1] || strcmp(e->d_name, "..") == 0))
			continue;
		r = visit(w, fd, e, len, states);
		if (r < 0)
			return r;
		w->path[len] = '\0';
	}
	/* ENOENT: it was removed meanwhile. */
	return errno == 0 || errno == ENOENT ? 0 : fail_errno(errno, "reading '%s'", w->path);
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int glob_list(const char *root, const char *text, const char *const *hidden, struct ply_list *ret)
{
	_cleanup_(ply_list_free) struct ply_list list = { 0 };
	struct pattern pattern = { 0 };
	_cleanup_free_ struct walk *w = calloc(1, sizeof(*w));
	int fd, r;

	if (!w)
		return fail_memory();
	r = parse(&pattern, text);
	if (r == 0 && pattern.n && text[strlen(text) - 1] != '/') {
		*w = (struct walk){
			.pattern = &pattern, .root = root, .hidden = hidden, .list = &list
		};
		fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = fd < 0 ? fail_errno(errno, "'%s'", root)
			   : walk(w, fd, 0, with_skips(&pattern, 1));
	}
	free(pattern.text);
	if (r < 0)
		return r;
	if (list.n)
		qsort(list.items, list.n, sizeof(*list.items), compare);
	*ret = list;
	list = (struct ply_list){ 0 };
	return 0;
}
