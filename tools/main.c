/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs: one verb per call. The table is verbs.h; those marked DAEMON are passed on as they are. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/client.h"
#include "tools/standard_fds.h"
#include "tools/verbs.h"

static int pass_on(struct client *cl)
{
	return client_send(cl, true, cl->argc, cl->argv);
}

/* Turns into plyfs-env, or plyfs-session (env.h says why there are two). */
static int pass_to_env(struct client *cl)
{
	bool in_session = strcmp(cl->verb, "session") == 0 &&
			  !(cl->argc > 1 && strcmp(cl->argv[1], "start") == 0);
	_cleanup_free_ char **argv = calloc((size_t)cl->argc + 2, sizeof(*argv));
	char path[PATH_MAX];

	client_program(in_session ? "plyfs-session" : "plyfs-env", path);
	if (!argv || (cl->store_option && setenv("PLYFS_STORE", cl->store_option, 1) < 0))
		return client_fail(cl, "%s", strerror(errno));
	/* A program that they start in a view may leave it: it keeps the variable. */
	if ((strcmp(cl->verb, "env") == 0 || strcmp(cl->verb, "serve") == 0) &&
	    !client_store_name(cl))
		(void)unsetenv("PLYFS_STORE"); /* fails for no name of ours */
	argv[0] = path;
	memcpy(argv + 1, cl->argv, sizeof(*argv) * (size_t)(cl->argc + 1));
	execv(path, argv);
	return client_fail(cl, "'%s': %s", path, strerror(errno));
}

struct verb {
	const char *name;
	int (*fn)(struct client *cl);
};

#define CLIENT_LOCAL(name) client_##name
#define CLIENT_BOTH(name) client_##name
#define CLIENT_ENV(name) pass_to_env
#define CLIENT_DAEMON(name) pass_on
#define CLIENT_FILES(name) pass_on
#define CLIENT_HOST(name) client_##name
#define VERB(name, where, synopsis, summary, details) { #name, CLIENT_##where(name) },
static const struct verb verbs[] = { VERB_LIST(VERB) };

/* ---- the small verbs ---- */

int client_init(struct client *cl)
{
	const char *path = client_store_name(cl);
	_cleanup_free_ char *word = NULL;
	int r = client_parse(cl, NULL, 0, 0, path ? 0 : 1, 1);

	if (r)
		return r;
	if (cl->args.n)
		path = cl->args.v[0];
	r = client_init_store(cl, path, false);
	if (r)
		return r;
	word = isatty(STDERR_FILENO) ? shell_word(path) : NULL;
	if (word)
		client_talk(cl, "'%s' is an empty store; next: plyfs --store %s import SOURCE",
			    path, word);
	return DONE;
}

int client_status(struct client *cl)
{
	bool ops = false, json = false;
	const struct option_def defs[] = {
		{ .name = "ops", .flag = &ops },
		{ .name = "json", .flag = &json },
	};
	_cleanup_free_ char *log = NULL;
	int r = client_parse(cl, defs, 2, 0, 0, 0);

	if (r)
		return r;
	r = client_send(cl, false, cl->argc, cl->argv);
	if (r != NO_DAEMON)
		return r;
	if (faccessat(cl->store_fd, "format", F_OK, 0) < 0) /* a daemon only says why it ends */
		return client_send(cl, true, cl->argc, cl->argv);

	if (asprintf(&log, "%s/daemon.log", cl->store) < 0)
		return client_fail(cl, "%s", strerror(ENOMEM));
	if (json) { /* the keys that a daemon tells (cmd_status.c) */
		printf("{\"daemon\": null, \"store\": ");
		client_print_json(cl->store);
		printf(", \"log\": ");
		client_print_json(log);
		printf(", \"views\": [], \"sizes\": null}\n");
	} else {
		line_clean(cl->store);
		line_clean(log);
		printf("store   %s\ndaemon  none; it starts when it is needed\nlog     %s\n",
		       cl->store, log);
	}
	return client_printed(cl);
}

int client_version(struct client *cl)
{
	int r = client_parse(cl, NULL, 0, 0, 0, 0);

	if (r)
		return r;
	puts("plyfs " PLYFS_VERSION);
	return client_printed(cl);
}

int client_bench(struct client *cl)
{
	char path[PATH_MAX];

	client_program("bench/bench", path);
	cl->argv[0] = path;
	execv(path, cl->argv);
	return client_fail(cl, "'%s': %s", path, strerror(errno));
}

/* ---- words that are no verb ---- */

/* So many letters more, less, or other ones, and a word is still that word mistyped. */
#define MISTYPED_MAX 2

/* Levenshtein's; b is the name of a verb. */
static size_t distance(const char *a, const char *b)
{
	size_t row[16], n = strlen(b);

	assert(n < sizeof(row) / sizeof(row[0]));
	for (size_t k = 0; k <= n; k++)
		row[k] = k;
	for (size_t i = 0; a[i]; i++) {
		size_t diagonal = i;

		row[0] = i + 1;
		for (size_t k = 1; k <= n; k++) {
			size_t other = diagonal + (a[i] != b[k - 1]);

			diagonal = row[k];
			row[k] = MIN(MIN(row[k], row[k - 1]) + 1, other);
		}
	}
	return row[n];
}

/* Of two that are as near, who begins alike: umount is unmount. */
static int no_verb(struct client *cl, const char *word)
{
	size_t least = 2 * MIN(MISTYPED_MAX, strlen(word) / 2) + 2;
	const char *meant = NULL;

	for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
		size_t far = 2 * distance(word, verbs[v].name) + (word[0] != verbs[v].name[0]);

		if (far >= least)
			continue;
		least = far;
		meant = verbs[v].name;
	}
	if (meant)
		return client_misuse(cl, "there is no verb '%s'; is '%s' meant?", word, meant);
	return client_misuse(cl, "there is no verb '%s' (try 'plyfs --help')", word);
}

/* As git(1) and others have it: plyfs help VERB. */
static int help_by_word(struct client *cl)
{
	if (cl->argc < 2) {
		help_print();
		return client_printed(cl);
	}
	if (!verb_find(cl->argv[1]))
		return no_verb(cl, cl->argv[1]);
	help_print_verb(verb_find(cl->argv[1]), stdout);
	return client_printed(cl);
}

/* ---- dispatch ---- */

static void release(struct client *cl)
{
	closep(&cl->view_fd);
	closep(&cl->store_fd);
	free(cl->store);
}

int main(int argc, char **argv)
{
	_cleanup_(release) struct client cl = { .store_fd = -1, .view_fd = -1 };
	int i = 1, r;

	keep_standard_fds();
	/* Where it is ignored, what we wait for is gone without its exit code. */
	(void)signal(SIGCHLD, SIG_DFL);

	/* A name of its own, so that git needs no shell to call it. */
	if (argc > 0 && strcmp(basename(argv[0]), FSMONITOR_PROGRAM) == 0) {
		argv[0] = (char *)"fsmonitor";
		i = 0;
	}
	for (; i > 0 && i < argc && argv[i][0] == '-'; i++) {
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
			help_print();
			return client_printed(&cl);
		}
		if (strcmp(argv[i], "--version") == 0) {
			puts("plyfs " PLYFS_VERSION);
			return client_printed(&cl);
		}
		if (strncmp(argv[i], "--store=", 8) == 0)
			cl.store_option = argv[i] + 8;
		else if (strcmp(argv[i], "--store") == 0 && i + 1 < argc)
			cl.store_option = argv[++i];
		else if (strcmp(argv[i], "--store") == 0)
			return client_misuse(&cl, "--store wants a value");
		else
			return client_misuse(
				&cl, "there is no option %s before a verb (try 'plyfs --help')",
				argv[i]);
	}
	if (i == argc) {
		client_talk(&cl, "which verb? 'plyfs --help' lists them");
		return MISUSE;
	}

	if (argc == 5 && strcmp(argv[1], "plyfs") == 0 && strcmp(argv[3], "-o") == 0)
		return fuse_remount(&cl, argv[2], argv[4]);

	cl.argc = argc - i;
	cl.argv = argv + i;
	/* --store may stand behind the verb as well, up to "--" or the command of run. */
	for (int k = 1; k < cl.argc && strcmp(cl.argv[k], "--") != 0; k++) {
		int words = strncmp(cl.argv[k], "--store=", 8) == 0 ? 1
			    : strcmp(cl.argv[k], "--store") == 0    ? 2
								    : 0;

		if (strcmp(cl.argv[0], "run") == 0 && cl.argv[k][0] != '-')
			break;
		if (!words)
			continue;
		if (words == 2 && k + 1 >= cl.argc)
			return client_misuse(&cl, "--store wants a value");
		cl.store_option = words == 2 ? cl.argv[k + 1] : cl.argv[k] + 8;
		memmove(&cl.argv[k], &cl.argv[k + words],
			sizeof(*argv) * (size_t)(cl.argc - k - words + 1));
		cl.argc -= words;
		k--;
	}

	if (cl.store_option && !*cl.store_option) /* a variable that was not set: not the view's */
		return client_misuse(&cl, "--store wants a value");

	for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
		if (strcmp(verbs[v].name, cl.argv[0]))
			continue;
		cl.verb = verbs[v].name;
		if (help_is_asked(cl.argc, cl.argv)) {
			help_print_verb(verb_find(cl.verb), stdout);
			return client_printed(&cl);
		}
		r = verbs[v].fn(&cl);
		return cl.unread ? client_unread(&cl) : r;
	}

	return strcmp(cl.argv[0], "help") == 0 ? help_by_word(&cl) : no_verb(&cl, cl.argv[0]);
}
