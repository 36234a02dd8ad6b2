/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's dispatch: from a verb's name to its function; see verbs.h for the table. */

#include "tools/verbs.h"

#include <inttypes.h>

#include "store/base/util.h"
#include "tools/daemon.h"

#define FN_LOCAL(name) NULL
#define FN_ENV(name) NULL
#define FN_BOTH(name) cmd_##name
#define FN_DAEMON(name) cmd_##name
#define FN_FILES(name) cmd_##name
#define FN_HOST(name) cmd_##name
#define VIEW_LOCAL false
#define VIEW_ENV false
#define VIEW_BOTH true
#define VIEW_DAEMON true
#define VIEW_FILES false
#define VIEW_HOST false

static const struct daemon_verb {
	const char *name;
	int (*fn)(struct cmd *c);
	bool through_view;
} daemon_verbs[] = {
#define VERB(name, where, synopsis, summary, details) { #name, FN_##where(name), VIEW_##where },
	VERB_LIST(VERB)
#undef VERB
};

static const struct daemon_verb *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(daemon_verbs); i++)
		if (daemon_verbs[i].fn && strcmp(daemon_verbs[i].name, name) == 0)
			return &daemon_verbs[i];
	return NULL;
}

bool verb_is_known(const char *name, bool through_view)
{
	const struct daemon_verb *v = find(name);

	return v && (v->through_view || !through_view);
}

/* The bar of verbs that report progress, at most ten times a second. */
static void draw_bar(void *arg, const char *what, uint64_t done, uint64_t total)
{
	struct cmd *c = arg;
	const uint64_t now = now_ns();
	char text[64]; /* the longest, "reading packs" and a bar, has 51 */

	if (!c->draws || now - c->bar_ns < 100000000)
		return;
	c->bar_ns = now;
	c->bar_shown = true;

	if (total) {
		unsigned width = c->columns > 70 ? 30 : 10;
		unsigned full = (unsigned)((double)MIN(done, total) / (double)total * width);

		(void)snprintf(text, sizeof(text), "%-12s [%.*s%*s] %3u%%", what, (int)full,
			       "##############################", (int)(width - full), "",
			       (unsigned)((double)MIN(done, total) * 100 / (double)total));
	} else {
		(void)snprintf(text, sizeof(text), "%-12s %" PRIu64, what, done);
	}
	/* Of a line that wraps "\r" would clear the end alone. */
	fprintf(c->err, "\r%.*s\033[K", (int)MIN(c->columns - 1, sizeof(text)), text);
	(void)fflush(c->err); /* talk: its loss changes nothing */
}

int verb_run(struct cmd *c)
{
	const struct daemon_verb *v = find(c->argv[0]);
	bool good;
	int code;

	c->progress = (struct progress){ .fn = draw_bar, .arg = c, .cancel = &c->cancel };
	if (!v) {
		code = cmd_misuse(c, "there is no such verb");
	} else if (help_is_asked(c->argc, c->argv)) { /* through a view */
		help_print_verb(verb_find(v->name), c->out);
		code = CMD_DONE;
	} else {
		code = v->fn(c);
	}
	cmd_progress_end(c);

	good = !ferror(c->out);
	if (fclose(c->out) || !good) {
		if (code == CMD_DONE && !__atomic_load_n(&c->cancel, __ATOMIC_RELAXED))
			code = cmd_fail(c, 0, "the output could not be written");
	}
	c->out = NULL;
	(void)fclose(c->err); /* talk */
	c->err = NULL;
	return c->unread ? CMD_UNREAD : code;
}
