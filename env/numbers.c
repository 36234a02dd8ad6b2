/* SPDX-License-Identifier: Apache-2.0 */

/* The decimal ids of checkpoints; see numbers.h. */

#include "env/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "env/status.h"
#include "fs/ioctl.h"
#include "store/base/util.h"

/* A run of digits as long as a snapshot's id is one. */
#define DIGITS_MAX 11

/*
 * So many digits, of a number that nobody gave, are the beginning of a snapshot's id: git's length
 * of an abbreviation. Shorter ones are a caller's mistake, and must not find one by accident.
 */
#define SNAP_BEGINNING 7

struct number {
	uint64_t number;
	char snap[SNAP_TEXT];
	char *text; /* owned; the caller's label, "" if none */
};

struct numbers {
	struct workspace *ws; /* borrowed, kept until close */
	pthread_mutex_t lock; /* everything below */
	struct number *items; /* in order of creation, as far as we have seen */
	size_t n;
	uint64_t next; /* when there is no file */
	int fd;	       /* STORE/numbers/BRANCH; -1: not opened yet, or out of our reach */
};

/* "BRANCH/7" or "BRANCH/7 TEXT"; *ret_text points into label. */
static bool parse_label(const char *branch, const char *label, uint64_t *ret_number,
			const char **ret_text)
{
	size_t n = strlen(branch), digits;

	if (strncmp(label, branch, n) != 0 || label[n] != '/')
		return false;
	label += n + 1;
	digits = strspn(label, "0123456789");
	if (digits == 0 || digits > DIGITS_MAX || (label[digits] && label[digits] != ' '))
		return false;
	*ret_number = strtoull(label, NULL, 10);
	*ret_text = label + digits + (label[digits] == ' ');
	return true;
}

static void clear(struct numbers *n)
{
	for (size_t i = 0; i < n->n; i++)
		free(n->items[i].text);
	free(n->items);
	n->items = NULL;
	n->n = 0;
}

static int add(struct numbers *n, uint64_t number, const char *snap, const char *text)
{
	/* Room is doubled at powers of two, so that no capacity has to be kept. */
	if ((n->n & (n->n - 1)) == 0) {
		struct number *grown = reallocarray(n->items, n->n ? 2 * n->n : 1, sizeof(*grown));

		if (!grown)
			return fail_memory();
		n->items = grown;
	}
	n->items[n->n].text = strdup(text);
	if (!n->items[n->n].text)
		return fail_memory();
	n->items[n->n].number = number;
	(void)snprintf(n->items[n->n].snap, SNAP_TEXT, "%s", snap);
	n->n++;
	return 0;
}

/* Reads what there is: other processes' checkpoints, too. */
static int load(struct numbers *n)
{
	const char *branch = workspace_branch(n->ws);
	const char *const args[] = { "log", "--json", "--branch", branch, NULL };
	struct ply_text out = { 0 };
	json_t *log;
	int r;

	r = workspace_verb(n->ws, args, &out);
	if (r < 0)
		return r;
	log = json_loadb(out.data, out.len, 0, NULL);
	ply_text_free(&out);
	if (!json_is_array(log)) {
		json_decref(log);
		return fail(PLY_FAILED, "what 'plyfs log --json' printed is no list");
	}
	clear(n);
	for (size_t i = json_array_size(log); i-- > 0 && r == 0;) { /* newest first there */
		const json_t *item = json_array_get(log, i);
		const char *label = json_string_value(json_object_get(item, "label"));
		const char *snap = json_string_value(json_object_get(item, "id")), *text;
		uint64_t number;

		if (!label || !snap || !parse_label(branch, label, &number, &text))
			continue;
		n->next = MAX(n->next, number + 1);
		r = add(n, number, snap, text);
	}
	json_decref(log);
	return r;
}

/* ---- the file ---- */

/* From inside a sandbox the store may be out of sight, or not ours to write to. */
static bool is_kept_from_us(int error)
{
	return error == EACCES || error == EPERM || error == EROFS;
}

/* 0 without a file as well: then the labels alone count. */
static int open_file(struct numbers *n)
{
	const char *path = workspace_store(n->ws), *branch = workspace_branch(n->ws);
	_cleanup_close_ int store = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_close_ int dir = -1;
	struct stat st;

	if (n->fd >= 0)
		return 0;
	if (store < 0 && (errno == ENOENT || errno == ENOTDIR || is_kept_from_us(errno)))
		return 0;
	if (store < 0 || fstat(store, &st) < 0)
		return fail_errno(errno, "'%s'", path);
	if (mkdirat(store, "numbers", 0700) < 0 && errno != EEXIST)
		return is_kept_from_us(errno) ? 0 : fail_errno(errno, "making '%s/numbers'", path);
	dir = openat(store, "numbers", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return is_kept_from_us(errno) ? 0 : fail_errno(errno, "'%s/numbers'", path);
	n->fd = openat(dir, branch, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (n->fd < 0)
		return is_kept_from_us(errno) ? 0 :
						fail_errno(errno, "'%s/numbers/%s'", path, branch);
	/* Root's for another user's store: that user goes on with it. */
	if (geteuid() == 0 && st.st_uid != 0) {
		(void)!fchown(dir, st.st_uid, st.st_gid);
		(void)!fchown(n->fd, st.st_uid, st.st_gid);
	}
	return 0;
}

static int read_next(const struct numbers *n, uint64_t *ret)
{
	char text[DIGITS_MAX + 2] = "";

	if (n->fd >= 0 && pread(n->fd, text, sizeof(text) - 1, 0) < 0)
		return fail_errno(errno, "reading the next checkpoint's number");
	*ret = MAX(n->next, strtoull(text, NULL, 10));
	return 0;
}

/* What follows the newline, of a longer number, is not looked at. */
static int write_next(const struct numbers *n, uint64_t next)
{
	char text[32];
	int len = snprintf(text, sizeof(text), "%" PRIu64 "\n", next);
	ssize_t done = n->fd < 0 ? len : pwrite(n->fd, text, (size_t)len, 0);

	if (done == len)
		return 0;
	return fail_errno(done < 0 ? errno : ENOSPC, "writing the next checkpoint's number");
}

static int lock_file(const struct numbers *n)
{
	int r;

	do
		r = flock(n->fd, LOCK_EX);
	while (r < 0 && errno == EINTR);
	return r < 0 ? fail_errno(errno, "locking the next checkpoint's number") : 0;
}

static void unlockp(int *fd)
{
	if (*fd >= 0)
		(void)flock(*fd, LOCK_UN);
}

/* ---- life ---- */

int numbers_open(struct workspace *ws, struct numbers **ret)
{
	struct numbers *n = calloc(1, sizeof(*n));
	int r;

	if (!n)
		return fail_memory();
	n->ws = ws;
	n->fd = -1;
	pthread_mutex_init(&n->lock, NULL);
	r = workspace_is_new(ws) ? 0 : load(n);
	if (r < 0) {
		numbers_close(n);
		return r;
	}
	*ret = n;
	return 0;
}

void numbers_close(struct numbers *n)
{
	if (!n)
		return;
	clear(n);
	closep(&n->fd);
	pthread_mutex_destroy(&n->lock);
	free(n);
}

/* ---- verbs ---- */

int numbers_checkpoint(struct numbers *n, const char *label, struct ply_text *ret_id)
{
	_cleanup_free_ char *full = NULL;
	char snap[SNAP_TEXT], id[24];
	uint64_t number = 0;
	size_t room;
	int len, r;

	label = label ? label : "";
	LOCK_GUARD(&n->lock);
	_cleanup_(unlockp) int locked = -1;
	/* Not before: an environment can be looked at, and ended, where none can be made. */
	r = open_file(n);
	if (r < 0)
		return r;
	if (n->fd >= 0) {
		r = lock_file(n);
		if (r < 0)
			return r;
		locked = n->fd;
	}
	r = read_next(n, &number);
	if (r < 0)
		return r;
	len = snprintf(id, sizeof(id), "%" PRIu64, number);
	room = PLYFS_LABEL_SIZE - 1 - strlen(workspace_branch(n->ws)) - strlen("/ ") - (size_t)len;
	if (strlen(label) > room)
		return fail(PLY_INVALID, "the label is too long: %zu bytes, %zu fit",
			    strlen(label), room);
	if (asprintf(&full, "%s/%s%s%s", workspace_branch(n->ws), id, *label ? " " : "", label) <
	    0) {
		full = NULL;
		return fail_memory();
	}
	/* Before it is given: once it is, nobody else may give it, whatever fails. */
	r = write_next(n, number + 1);
	if (r < 0)
		return r;
	r = workspace_checkpoint(n->ws, full, false, snap);
	if (r < 0) {
		KEEP_SENTENCE;
		(void)write_next(n, number); /* at worst a number is left out */
		return r;
	}
	n->next = number + 1;
	r = add(n, number, snap, label);
	return r < 0 ? r : text_set(ret_id, id, (size_t)len);
}

static bool is_number(const char *id, uint64_t *ret)
{
	size_t n = strspn(id, "0123456789");

	if (n == 0 || n > DIGITS_MAX || id[n] || (n > 1 && *id == '0'))
		return false;
	*ret = strtoull(id, NULL, 10);
	return true;
}

/* The newest that is meant: a number, or a label of the caller's. NULL: not seen. */
static const char *look_up(const struct numbers *n, const char *id)
{
	uint64_t number = 0;
	bool by_number = is_number(id, &number);

	for (size_t i = n->n; i-- > 0;)
		if (by_number ? n->items[i].number == number
			      : *n->items[i].text && strcmp(n->items[i].text, id + 1) == 0)
			return n->items[i].snap;
	return NULL;
}

int numbers_find(struct numbers *n, const char *id, char **ret)
{
	const char *snap = NULL;
	uint64_t number;
	int r;

	LOCK_GUARD(&n->lock);
	if (is_number(id, &number) || *id == '@') {
		snap = look_up(n, id);
		if (!snap) {
			r = load(n); /* another process may have made it */
			if (r < 0)
				return r;
			snap = look_up(n, id);
		}
	}
	/* "07" is no number of ours, and is meant as one all the same. */
	if (!snap && strlen(id) < SNAP_BEGINNING && strspn(id, "0123456789") == strlen(id))
		return fail(PLY_UNKNOWN_ID, "Checkpoint %s not found", id);
	*ret = strdup(snap ? snap : id);
	return *ret ? 0 : fail_memory();
}
