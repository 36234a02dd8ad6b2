/* SPDX-License-Identifier: Apache-2.0 */

#include "tools/salvage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "store/base/err.h"
#include "store/base/note.h"
#include "store/base/os.h"
#include "store/base/util.h"
#include "store/base/words.h"
#include "store/store.h"
#include "tools/cmd.h"
#include "tools/cmd_util.h"
#include "tools/owner.h"

/* The last note is held back: when it is why we fail, it is told once, with the store's name. */
struct talk {
	const char *verb; /* that was called */
	char held[1024];  /* "": none */
};

static void let_go(struct talk *t)
{
	if (*t->held)
		fprintf(stderr, "plyfs %s: %s\n", t->verb, line_clean(t->held));
	*t->held = 0;
}

static void on_note(void *arg, const char *line)
{
	struct talk *t = arg;

	let_go(t);
	snprintf(t->held, sizeof(t->held), "%s", line);
}

static int fail(struct talk *t, const char *path, int r)
{
	_cleanup_free_ char *top = realpath(path, NULL);
	const char *file = top ? os_failed_file(top, r) : NULL;
	const char *why = r == -ERR_STORE_BUSY ? "a daemon has it open; unmount its views, and end "
						 "what else uses it"
					       : err_str(r);
	size_t held = strlen(t->held), n = strlen(why);

	if (held > n && strcmp(t->held + held - n, why) == 0) {
		why = line_clean(t->held);
		file = NULL; /* it names one */
	} else {
		let_go(t);
	}
	fprintf(stderr, "plyfs %s: '", t->verb);
	print_clean(stderr, path);
	fprintf(stderr, "': %s%s%s%s\n", file ? file : "", file ? ": " : "", why,
		r == -EROFS ? "; copy it to another disk first" : "");
	return CMD_FAILED;
}

static void print_text(FILE *out, const struct salvage_stats *s)
{
	char size[SIZE_TEXT_SIZE];

	fprintf(out,
		"salvaged: %" PRIu64 " chunk%s, %" PRIu64 " snapshot%s, %" PRIu64
		" branch%s out of %" PRIu64 " pack%s (%s)\n",
		s->chunks, plural(s->chunks), s->snapshots, plural(s->snapshots), s->branches,
		s->branches == 1 ? "" : "es", s->packs, plural(s->packs),
		size_to_text(s->bytes, size));
	if (s->format)
		fprintf(out, "the format file was written anew\n");
	if (s->damaged)
		fprintf(out, "%" PRIu64 " record%s in the packs %s damaged\n", s->damaged,
			plural(s->damaged), s->damaged == 1 ? "is" : "are");
	if (s->gaps)
		fprintf(out,
			"the packs' list of snapshots is not complete: %" PRIu64
			" gap%s; some may be missing, or be as they were earlier\n",
			s->gaps, plural(s->gaps));
	if (*s->old)
		fprintf(out, "the old index is '%s' in the store now; delete it when all is well\n",
			s->old);
	fprintf(out, "next: plyfs check --read-data\n");
}

static int print_json(const struct salvage_stats *s)
{
	json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s}", "packs",
			      (json_int_t)s->packs, "bytes", (json_int_t)s->bytes, "chunks",
			      (json_int_t)s->chunks, "damaged_records", (json_int_t)s->damaged,
			      "snapshots", (json_int_t)s->snapshots, "branches",
			      (json_int_t)s->branches, "gaps", (json_int_t)s->gaps,
			      "format_written", s->format, "old_index", s->old);
	int r = o ? json_dumpf(o, stdout, JSON_COMPACT) : -1;

	json_decref(o);
	return r < 0 || putchar('\n') < 0 ? -1 : 0;
}

/* One that nobody needs ends after a second (idle in daemon.c); as much again for what it saves. */
#define IDLE_WAIT_MS 2000

static int attempt(int fd, bool if_broken, const struct noter *noter, bool *ret_sound,
		   struct salvage_stats *stats)
{
	int r = 0;

	if (if_broken) {
		r = store_give_up_journal(fd, noter);
		if (r == 0)
			r = store_is_broken(fd, noter);
		*ret_sound = r == 0;
		if (r <= 0)
			return r;
	}
	return store_salvage(fd, noter, NULL, stats);
}

int salvage_main(const char *path, bool if_broken, bool json)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct talk talk = { .verb = if_broken ? "check" : "salvage" };
	const struct noter noter = { .fn = on_note, .arg = &talk };
	struct salvage_stats stats = { 0 };
	bool sound = false;
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fail(&talk, path, -errno);
	r = become_owner(&st);
	if (r < 0)
		return fail(&talk, path, r);
	for (int ms = 0;; ms += BUSY_STEP_MS) {
		r = attempt(fd, if_broken, &noter, &sound, &stats);
		/* Not by connecting, for which it would stay. One that ends has no socket. */
		if (r != -ERR_STORE_BUSY ||
		    ms >= (faccessat(fd, "sock", F_OK, 0) == 0 ? IDLE_WAIT_MS : BUSY_WAIT_MS))
			break;
		(void)nanosleep(&(struct timespec){ .tv_nsec = BUSY_STEP_MS * 1000000L }, NULL);
	}
	if (r < 0)
		return fail(&talk, path, r);
	let_go(&talk);
	if (sound)
		return CMD_DONE;

	if (if_broken)
		print_text(stderr, &stats);
	else if (!json)
		print_text(stdout, &stats);
	else if (print_json(&stats) < 0)
		return CMD_FAILED;
	if (fflush(stdout)) {
		fprintf(stderr, "plyfs %s: the output could not be written\n", talk.verb);
		return CMD_FAILED;
	}
	return CMD_DONE;
}
