/* SPDX-License-Identifier: Apache-2.0 */

/* See transfer_talk.h. */

#include "tools/transfer_talk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/err.h"

static void keep_note(void *arg, const char *line)
{
	struct transfer_talk *t = arg;

	if (!t->note)
		t->note = strdup(line); /* without memory the failure itself is told */
}

void transfer_talk_init(struct transfer_talk *t, struct cmd *c)
{
	*t = (struct transfer_talk){
		.cmd = c,
		.noter = { .fn = keep_note, .arg = t },
		.ops = {
			.warn = cmd_warn_line,
			.arg = c,
			.progress = &c->progress,
			.noter = &t->noter,
		},
	};
}

void transfer_talk_release(struct transfer_talk *t)
{
	free(t->note);
}

int transfer_talk_fail(struct transfer_talk *t, int r, const char *what)
{
	if (t->note) /* what the general one says is in it then */
		return cmd_fail(t->cmd, r == -ERR_SOURCE || r == -ERR_TARGET ? 0 : r, "'%s': %s",
				what, t->note);
	return cmd_fail(t->cmd, r, "'%s'", what);
}

bool transfer_split(struct cmd *c, const char *text, char **ret_path, const char **ret_word)
{
	const char *hash = strrchr(text, '#');
	struct stat st;

	if (!hash || hash == text || !hash[1] || c->cwd_fd < 0 ||
	    fstatat(c->cwd_fd, text, &st, 0) == 0)
		return false;
	*ret_path = strndup(text, (size_t)(hash - text));
	*ret_word = hash + 1;
	return *ret_path != NULL;
}
