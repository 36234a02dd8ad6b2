/* SPDX-License-Identifier: Apache-2.0 */

/* What verbs share; see cmd.h. */

#include "tools/cmd.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "env/json_memory.h"
#include "fs/view.h"
#include "store/base/err.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "store/pack.h"
#include "store/tree.h"
#include "tools/cmd_util.h"
#include "tools/daemon.h"
#include "tools/verbs.h"

int cmd_parse(struct cmd *c, const struct option_def *defs, size_t n_defs, int min, int max)
{
	char why[300];

	if (options_parse(c->argc, c->argv, defs, n_defs, 0, &c->args, why, sizeof(why)) < 0)
		return cmd_misuse(c, "%s (try 'plyfs %s --help')", why, c->argv[0]);
	return cmd_count(c, min, max);
}

int cmd_count(struct cmd *c, int min, int max)
{
	const struct verb_text *v = verb_find(c->argv[0]);
	char why[300];

	if (arguments_count(&c->args, min, max, v->name, v->synopsis, why, sizeof(why)) < 0)
		return cmd_misuse(c, "%s", why);
	return CMD_DONE;
}

void cmd_progress_end(struct cmd *c)
{
	if (!c->bar_shown)
		return;
	c->bar_shown = false;
	fputs("\r\033[K", c->err);
	(void)fflush(c->err); /* talk */
}

/* What a check names, with the paths that it touches. */
static bool is_damage(int r)
{
	switch (-r) {
	case ERR_CHUNK_MISSING:
	case ERR_CHUNK_DAMAGED:
	case ERR_CHUNK_LOST:
	case ERR_RECORD_DAMAGED:
	case ERR_PACK_HEADER:
	case ERR_PACK_MISSING:
	case ERR_PACK_TRUNCATED:
	case ERR_INDEX_DAMAGED:
	case ERR_NODE_DAMAGED:
	case ERR_SNAP_DAMAGED:
	case ERR_BRANCH_DAMAGED:
	case ERR_ITEM_DAMAGED:
		return true;
	default:
		return false;
	}
}

static int count_one(void *arg, const struct branch_info *info)
{
	return 1; /* there is one: that is all we want to know */
}

bool cmd_store_is_empty(struct cmd *c)
{
	return !snap_count(c->store) && !branch_each(c->store, count_one, NULL);
}

/* Where it speaks of what 'plyfs tree' lists, there has to be something. */
static const char *sentence(struct cmd *c, int r)
{
	if ((r == -ERR_BRANCH_UNKNOWN || r == -ERR_SNAP_UNKNOWN) && cmd_store_is_empty(c))
		return "there is nothing in the store yet; 'plyfs import' brings something";
	return err_str(r);
}

/* Of a daemon that could not lift what it was started with. */
static bool is_limited(int which)
{
	struct rlimit l;

	return getrlimit(which, &l) == 0 && l.rlim_cur != RLIM_INFINITY;
}

/* And not another one that the verb writes to. */
static bool store_disk_is_full(const struct cmd *c)
{
	uint64_t room;

	return os_free_bytes(c->daemon->dir_fd, &room) == 0 && room < PACK_RESERVE;
}

/* What to do, as the end of a sentence. */
static const char *advice(const struct cmd *c, int r)
{
	if (r == -ENOSPC && store_disk_is_full(c))
		return "; the store's disk is full: make room there, outside of the store";
	if (r == -EDQUOT)
		return "; see quota(1)";
	if (is_damage(r))
		return "; 'plyfs check' names what it touches";
	if (r == -EFBIG && is_limited(RLIMIT_FSIZE))
		return "; see ulimit -f";
	if (r == -EMFILE)
		return "; see ulimit -n";
	return "";
}

static void say(struct cmd *c, const char *kind, const char *fmt, va_list ap, int r)
{
	char line[PATH_MAX + 1024];

	cmd_progress_end(c);
	if (__atomic_load_n(&c->cancel, __ATOMIC_RELAXED))
		return; /* the client is gone, or its output's reader: as SIGPIPE would have it */
	vsnprintf(line, sizeof(line), fmt, ap);
	fprintf(c->err, "plyfs %s: %s%s%s%s%s\n", c->called, kind,
		line_clean(line), r ? ": " : "", r ? sentence(c, r) : "",
		advice(c, r));
}

int cmd_fail(struct cmd *c, int r, const char *fmt, ...)
{
	va_list ap;

	/* r is an I/O error then, or no memory: of the disk, one would think. */
	if (r && ferror(c->out))
		return cmd_fail(c, 0, "the output could not be written");
	va_start(ap, fmt);
	say(c, "", fmt, ap, r);
	va_end(ap);
	return CMD_FAILED;
}

int cmd_misuse(struct cmd *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(c, "", fmt, ap, 0);
	va_end(ap);
	return CMD_MISUSE;
}

void cmd_warn(struct cmd *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(c, "warning: ", fmt, ap, 0);
	va_end(ap);
}

void cmd_warn_line(void *arg, const char *line)
{
	cmd_warn(arg, "%s", line);
}

/*
 * What leads through /proc/self (/dev/stdout, the /dev/fd/N of a shell's <(...)) is our own here:
 * the client's 12 may be the index. /proc/PID is what it says.
 */
static uint64_t how_to_resolve(const char *path)
{
	return strncmp(path, "/proc/", 6) == 0 && isdigit((unsigned char)path[6])
		       ? 0
		       : RESOLVE_NO_MAGICLINKS;
}

int cmd_openat(struct cmd *c, const char *path, int flags, unsigned mode, int *ret_fd)
{
	struct open_how how = { .flags = (uint64_t)flags | O_CLOEXEC,
				.mode = mode,
				.resolve = how_to_resolve(path) };
	_cleanup_close_ int there = -1;
	long fd;

	if (c->cwd_fd < 0)
		return -EPERM;
	do
		fd = syscall(SYS_openat2, c->cwd_fd, path, &how, sizeof(how));
	while (fd < 0 && errno == EINTR);
	if (fd < 0 && errno == ENOENT && strncmp(path, "/dev/fd/", 8) == 0)
		return -ERR_OWN_LINK;
	if (fd < 0 && errno != ELOOP)
		return -errno;
	if (fd < 0) {
		there = openat(c->cwd_fd, path, O_PATH | O_CLOEXEC);
		return there < 0 ? -ELOOP : -ERR_OWN_LINK;
	}
	*ret_fd = (int)fd;
	return 0;
}

int cmd_mkdirat(struct cmd *c, const char *path, unsigned mode)
{
	if (c->cwd_fd < 0)
		return -EPERM;
	return mkdirat(c->cwd_fd, path, mode) < 0 ? -errno : 0;
}

int cmd_path(struct cmd *c, const char *path, char **ret)
{
	char link[64], cwd[PATH_MAX];
	ssize_t n;

	if (c->cwd_fd < 0)
		return -EPERM;
	if (path[0] == '/') {
		*ret = strdup(path);
		return *ret ? 0 : -ENOMEM;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", c->cwd_fd);
	n = readlink(link, cwd, sizeof(cwd) - 1);
	if (n < 0)
		return -errno;
	cwd[n] = 0;
	if (asprintf(ret, "%s/%s", cwd, path) < 0)
		return -ENOMEM;
	return 0;
}

/* ---- states ---- */

const char *cmd_branch_name(struct cmd *c, const char *name)
{
	return name ? name : *c->branch ? c->branch : BRANCH_DEFAULT;
}

/* Between two looks of a verb whether it was interrupted are a file or two, or a comparison. */
#define CLAIMED_WAIT_MS 3000
#define CLAIMED_STEP_MS 5

int cmd_await_branch(struct cmd *c, const char *name)
{
	_cleanup_(branch_closep) struct branch *b = NULL;

	if (branch_open(c->store, name, &b) < 0)
		return 0; /* who wants it says why not */
	for (int ms = 0; ms < CLAIMED_WAIT_MS; ms += CLAIMED_STEP_MS) {
		_cleanup_(views_putp) struct view_entry *e = views_get_branch(c->daemon, name);

		if (e || !branch_is_mounted(b))
			return 0;
		if (__atomic_load_n(&c->cancel, __ATOMIC_RELAXED))
			return -ERR_CANCELLED;
		(void)nanosleep(&(struct timespec){ .tv_nsec = CLAIMED_STEP_MS * 1000000L }, NULL);
	}
	return -ERR_BRANCH_CLAIMED;
}

static int state_of_branch(struct cmd *c, const char *name, struct cmd_state *ret)
{
	_cleanup_(branch_closep) struct branch *b = NULL;
	int r;

	r = branch_open(c->store, name, &b);
	if (r < 0)
		return r;

	/* Pinned under the lock, so that no gc begins between the freeze and the pin. */
	WRITE_GUARD(&b->lock);
	r = tree_freeze(b->tree, &ret->root);
	if (r < 0)
		return r;
	r = store_pin_root(c->store, ret->root);
	if (r < 0) {
		root_unref(ret->root);
		ret->root = NULL;
		return r;
	}
	ret->lineage = b->lineage;
	snprintf(ret->name, sizeof(ret->name), "branch %s", name);
	return 0;
}

static int state_of_snapshot(struct cmd *c, uint64_t id, struct cmd_state *ret)
{
	_cleanup_(root_unrefp) struct root *root = NULL;
	struct snap_info info;
	int r;

	r = snap_root(c->store, id, &root);
	if (r < 0)
		return r;
	r = store_pin_root(c->store, root);
	if (r < 0)
		return r;
	r = snap_get(c->store, id, &info); /* now: dropped before the pin, gc may have taken it */
	if (r < 0) {
		store_unpin_root(c->store, root);
		return r;
	}
	ret->root = TAKE_PTR(root);
	ret->id = id;
	ret->lineage = info.lineage;
	snap_id_to_text(id, ret->name);
	return 0;
}

/* What a name finds may be dropped before it is pinned: then another snapshot has the name. */
static int state_by_name(struct cmd *c, const char *text, struct cmd_state *ret)
{
	uint64_t id, gone = 0;
	int r;

	for (;;) {
		r = snap_find(c->store, text, &id);
		if (r < 0)
			return r;
		r = state_of_snapshot(c, id, ret);
		if (r != -ERR_SNAP_UNKNOWN || id == gone)
			return r;
		gone = id;
	}
}

bool cmd_is_whole_id(struct cmd *c, const char *text)
{
	char name[SNAP_ID_SIZE];
	uint64_t id;

	return strlen(text) == SNAP_ID_SIZE - 1 && snap_find(c->store, text, &id) == 0 &&
	       strcasecmp(snap_id_to_text(id, name), text) == 0;
}

int cmd_state(struct cmd *c, const char *text, struct cmd_state *ret)
{
	struct cmd_state s = { .store = c->store };
	int r;

	if (!text && c->snapshot) {
		char name[SNAP_ID_SIZE];

		r = state_of_snapshot(c, c->snapshot, &s);
		if (r < 0)
			return cmd_fail(c, r, "%s", snap_id_to_text(c->snapshot, name));
	} else {
		text = text ? text : cmd_branch_name(c, NULL);
		r = cmd_is_whole_id(c, text) ? -ERR_BRANCH_NAME : state_of_branch(c, text, &s);
		if (r == -ERR_BRANCH_UNKNOWN || r == -ERR_BRANCH_NAME)
			r = state_by_name(c, text, &s);
		if (r < 0)
			return cmd_fail(c, r, "%s", text);
	}

	*ret = s;
	return CMD_DONE;
}

void cmd_state_release(struct cmd_state *s)
{
	if (!s->root)
		return;
	store_unpin_root(s->store, s->root);
	root_unref(s->root);
	s->root = NULL;
}

/* ---- output ---- */

int cmd_json(struct cmd *c, struct json_t *object)
{
	int r = -1;

	if (object && !json_memory_was_short())
		r = json_dumpf(object, c->out, JSON_INDENT(2) | JSON_ENCODE_ANY);
	json_decref(object);
	if (r < 0)
		return cmd_fail(c, -ENOMEM, "JSON");
	fputc('\n', c->out);
	return CMD_DONE;
}

/* In an array a level deeper. What could not be written is seen by who flushes, as all output. */
static int print_deeper(const char *text, size_t len, void *arg)
{
	FILE *out = arg;

	for (size_t i = 0; i < len; i++) {
		fputc(text[i], out);
		if (text[i] == '\n') /* of the layout: in a string it is written \n */
			fputs("  ", out);
	}
	return 0;
}

int cmd_json_next(struct cmd *c, uint64_t *n, json_t *object)
{
	int r = -1;

	if (object && !json_memory_was_short()) {
		fputs((*n)++ ? ",\n  " : "[\n  ", c->out);
		r = json_dump_callback(object, print_deeper, c->out, JSON_INDENT(2));
	}
	json_decref(object);
	return r < 0 ? -ENOMEM : 0;
}

void cmd_json_end(struct cmd *c, uint64_t n)
{
	fputs(n ? "\n]\n" : "[]\n", c->out);
}

json_t *json_id(uint64_t id)
{
	char text[SNAP_ID_SIZE];

	return id ? json_string(snap_id_to_text(id, text)) : json_null();
}

char *time_to_text(int64_t ns, char buf[static TIME_TEXT_SIZE])
{
	time_t t = (time_t)(ns / 1000000000);
	struct tm tm;

	gmtime_r(&t, &tm);
	strftime(buf, TIME_TEXT_SIZE, "%Y-%m-%dT%H:%M:%SZ", &tm);
	return buf;
}

char *size_to_text(uint64_t bytes, char buf[static SIZE_TEXT_SIZE])
{
	static const char units[] = "KMGTPE";
	double v = (double)bytes;
	int u = -1;

	while (v >= 1024 && u < 5) {
		v /= 1024;
		u++;
	}
	if (u < 0)
		snprintf(buf, SIZE_TEXT_SIZE, "%u B", (unsigned)bytes);
	else
		snprintf(buf, SIZE_TEXT_SIZE, "%.1f %ciB", v, units[u]);
	return buf;
}
