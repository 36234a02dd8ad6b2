/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A shell within ours (`sh`, `bash --norc`, `su`): for our shell it is a program that does not end.
 * Or one in our shell's place (`exec sh`), whose end is that of the session. It has PS1 from its
 * environment, as the reference's has, and is used as that uses it: what was run is over when the
 * prompt is seen, and the next command is typed.
 *
 * The prompt alone proves nothing, a program may print it. So it has to be the last thing in the
 * output, for a moment, of another program in front than our shell; and then we ask: an empty line
 * makes a shell print another prompt. What does not answer has not read that line, which is taken
 * back, and is asked again later, ever less often.
 */

#include <stdlib.h>
#include <string.h>

#include "env/pytext.h"
#include "env/session_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/* Silence behind the prompt; a shell's answer takes less than a millisecond. */
#define ASK_AFTER 0.02
#define ANSWER_WITHIN 0.1
/* Between two questions; a program that reads nothing is not to be bothered for ever. */
#define ASK_GAP_MAX 2.0

/* Up to `most`: a program may print millions. */
static size_t prompts_at_end(const struct shell *s, size_t most)
{
	const size_t len = strlen(SHELL_PROMPT);
	size_t n = 0;

	while (n < most && s->out.len >= (n + 1) * len &&
	       memcmp(s->out.data + s->out.len - (n + 1) * len, SHELL_PROMPT, len) == 0)
		n++;
	return n;
}

bool shell_is_replaced(const struct shell *s)
{
	return s->group > 0 && (s->reports < 0 || shell_descriptor(s, "115") == 0);
}

/* Its command runs, and nothing of ours waits to be read. */
static bool runs_command(const struct shell *s)
{
	return !s->idle && !s->over && s->begun == s->command && s->begun == s->typed;
}

/* ... and somebody else is in front: who, or 0. */
static pid_t other_in_front(struct shell *s)
{
	pid_t front = runs_command(s) ? pty_foreground(s) : 0;

	return front > 0 && (front != s->group || shell_is_replaced(s)) ? front : 0;
}

/* What nobody has read yet, another program would take for an answer to its own question. */
void inner_take_back(struct shell *s)
{
	if (s->inner_asked && runs_command(s))
		pty_flush(s);
	s->inner_asked = 0;
}

void inner_forget(struct shell *s)
{
	inner_take_back(s);
	s->inner = 0;
	s->inner_at = 0;
	s->inner_gap = ANSWER_WITHIN;
}

static int ask(struct shell *s, double *ret_next)
{
	double now = now_seconds();
	int r;

	if (now >= s->inner_at && s->inner_asked) {
		inner_take_back(s);
		s->inner_gap = MIN(s->inner_gap * 2, ASK_GAP_MAX);
		s->inner_at = now + s->inner_gap;
	} else if (now >= s->inner_at) {
		r = pty_type(s, "\n", 1, now + ANSWER_WITHIN);
		if (r < 0)
			return r == PLY_TIMEOUT ? 0 : r;
		s->inner_asked = prompts_at_end(s, SIZE_MAX);
		s->inner_at = now + ANSWER_WITHIN;
	}
	if (*ret_next < 0 || s->inner_at < *ret_next)
		*ret_next = s->inner_at;
	return 0;
}

int inner_tick(struct shell *s, bool news, double *ret_next)
{
	size_t n = prompts_at_end(s, s->inner_asked + 1);
	pid_t front = n ? other_in_front(s) : 0;

	if (!front) {
		inner_forget(s);
		return 0;
	}
	if (s->inner_asked && n > s->inner_asked) {
		n = prompts_at_end(s, SIZE_MAX) * strlen(SHELL_PROMPT);
		shell_drop(s, s->out.len - n, n);
		s->inner_asked = 0; /* it was read */
		inner_forget(s);
		s->inner = front;
		return INNER;
	}
	if (s->inner_at == 0 || (news && !s->inner_asked))
		s->inner_at = now_seconds() + ASK_AFTER;
	return ask(s, ret_next);
}

bool inner_waits(struct shell *s)
{
	return s->inner && other_in_front(s) == s->inner;
}

/* As one line, whatever it is: each line of it would get a prompt. */
int inner_type(struct shell *s, struct goal *g, const char *text, size_t len)
{
	_cleanup_(ply_text_free) struct ply_text word = { 0 }, line = { 0 };
	int r = text_set(&word, text, len);

	if (r == 0)
		r = text_append_str(&line, "eval ");
	if (r == 0)
		r = text_append_quoted(&line, word.data);
	if (r == 0)
		r = text_append_str(&line, "\n");
	return r < 0 ? r : shell_type_input(s, g, line.data, line.len);
}

/* As long as the reference waits for it. */
#define CODE_WITHIN 1.0

int inner_exit_code(struct shell *s)
{
	static const char question[] = "echo $?\n";
	_cleanup_(ply_text_free) struct ply_text answer = { 0 };
	struct goal g = { .end = now_seconds() + CODE_WITHIN, .cancel = -1 };
	char *end;
	long code;
	int r = pty_type(s, question, sizeof(question) - 1, g.end);

	if (r == 0)
		r = shell_wait(s, &g);
	if (r != INNER)
		return r < 0 && r != PLY_TIMEOUT ? r : PLY_NO_EXIT_CODE;
	r = buffer_take(&s->out, s->out.len, s->out.len, &answer);
	if (r < 0)
		return r;
	code = strtol(answer.data, &end, 10);
	return end > answer.data && *end == '\n' && code >= 0 && code <= 255 ? (int)code
									     : PLY_NO_EXIT_CODE;
}
