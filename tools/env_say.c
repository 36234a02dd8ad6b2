/* SPDX-License-Identifier: Apache-2.0 */

/* How plyfs-env and plyfs-session find what was asked, and talk; see env.h. */

#include "tools/env.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/json_memory.h"
#include "store/base/util.h"
#include "store/base/words.h"

static void say(const struct cmd *c, const char *fmt, va_list ap)
{
	char line[8192];

	(void)vsnprintf(line, sizeof(line), fmt, ap); /* cut is fine */
	(void)fprintf(stderr, "plyfs %s: %s\n", c->verb, line_clean(line));
}

int cmd_fail(const struct cmd *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(c, fmt, ap);
	va_end(ap);
	return FAILED;
}

int cmd_misuse(const struct cmd *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(c, fmt, ap);
	va_end(ap);
	return MISUSE;
}

int cmd_parse(struct cmd *c, const struct option_def *defs, size_t n_defs, unsigned flags, int min,
	      int max)
{
	char why[300];

	if (options_parse(c->argc, c->argv, defs, n_defs, flags, &c->args, why, sizeof(why)) < 0)
		return cmd_misuse(c, "%s (try 'plyfs %.*s --help')", why,
				  (int)strcspn(c->verb, " "), c->verb);
	if (arguments_count(&c->args, min, max, c->verb, c->synopsis, why, sizeof(why)) < 0)
		return cmd_misuse(c, "%s", why);
	return DONE;
}

char *words_quote(char *const *words)
{
	size_t len = 1;
	char *line, *to;

	for (char *const *w = words; *w; w++)
		len += QUOTED_SIZE(strlen(*w));
	line = to = malloc(len);
	for (; line && *words; words++) {
		to = shell_quote(to, *words);
		if (words[1])
			*to++ = ' ';
	}
	if (line)
		*to = 0;
	return line;
}

int name_check(const struct cmd *c, const char *name)
{
	size_t n = strlen(name);

	/* They become branches, files and words in scripts; 63 as branches have it. */
	if (n < 1 || n > 63 || name[0] == '.' || name[0] == '-' ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") < n)
		return cmd_misuse(c,
				  "a name is up to 63 letters, digits, '.', '_', '-', and begins "
				  "with neither '.' nor '-': not '%.80s'",
				  name);
	return DONE;
}

int cmd_flush(const struct cmd *c)
{
	if (fflush(stdout) || ferror(stdout))
		return cmd_fail(c, "the output could not be written");
	return DONE;
}

int cmd_json(const struct cmd *c, json_t *object)
{
	int r = -1;

	if (object && !json_memory_was_short())
		r = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	json_decref(object);
	if (r < 0)
		return cmd_fail(c, "JSON: %s", strerror(ENOMEM));
	putchar('\n');
	return cmd_flush(c);
}

int dispatch(const struct sub *subs, size_t n, int argc, char **argv)
{
	struct cmd c = { .verb = argc > 1 ? argv[1] : "", .argc = argc - 1, .argv = argv + 1 };
	char name[64], known[128] = "";

	json_memory_watch();
	for (size_t i = 0; i < n; i++) {
		const struct sub *s = &subs[i];

		if (strcmp(s->verb, c.verb))
			continue;
		if (s->sub && (argc < 3 || strcmp(s->sub, argv[2]))) {
			(void)snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
				       *known ? ", " : "", s->sub);
			continue;
		}
		if (s->sub) {
			c.argc--;
			c.argv++;
			(void)snprintf(name, sizeof(name), "%s %s", s->verb, s->sub);
			c.verb = name;
		}
		c.synopsis = s->synopsis;
		return s->fn ? s->fn(&c) : cmd_misuse(&c, "is another program's");
	}
	if (!*known)
		return cmd_misuse(&c, "not for calling by hand: plyfs starts it");
	if (argc < 3)
		return cmd_misuse(&c, "what? one of: %s", known);
	return cmd_misuse(&c, "there is no '%s %s'; there is: %s", c.verb, argv[2], known);
}
