/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a session's shell reports through its pipe, and what its terminal shows in between, from
 * programs that found the pipe, or print what looks like ours. It ends, nothing leads out of the
 * output, and of that nothing is lost but what is a prompt or a line of ours.
 *
 * An input: a byte of what is under way, then pieces, each with its length and where it goes.
 */

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "env/session_internal.h"
#include "store/base/util.h"
#include "tests/fuzz/fuzz.h"

static int terminal[2], reports[2]; /* of each ours is the first */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, terminal) == 0);
	MUST(dup2(terminal[1], 114) == 114); /* the shell's end, which it has not closed */
	return 0;
}

static void shell_of(struct shell *s, uint8_t how)
{
	MUST(pipe2(reports, O_NONBLOCK | O_CLOEXEC) == 0);
	*s = (struct shell){ .master = terminal[0],
			     .slave = terminal[1],
			     .text = -1,
			     .reports = reports[0],
			     .group = getpid(),
			     .children = -1,
			     .siblings = -1,
			     .path = (char *)"bash",
			     .typed = 1 + (how & 3),
			     .begun = how >> 2 & 1,
			     .command = 1 + (how >> 3 & 1),
			     .second = how >> 4 & 1,
			     .owed = how >> 5 & 1,
			     .cut = how & 0x40 ? 10 : SIZE_MAX,
			     .prompts = 3,
			     .changed_at = SIZE_MAX,
			     .limit = how & 0x80 ? 100 : 0,
			     .longest = 4096 };
}

static void assert_shell(const struct shell *s)
{
	MUST(s->out.len <= s->out.room && s->reported.len <= s->reported.room);
	MUST(s->begun <= s->typed && s->behind <= s->typed && s->told <= s->begun);
	MUST(s->second <= 8 && strlen(s->flags) <= 2);
	MUST(strlen(s->prompt.data ? s->prompt.data : "") == s->prompt.len);
}

/* What was typed for the shell, and what it printed that nobody took. */
static void empty(int fd)
{
	char buf[4096];

	while (read(fd, buf, sizeof(buf)) > 0)
		;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shell s;
	int r = 0;

	if (size == 0)
		return 0;
	shell_of(&s, *data++);
	size--;
	while (r == 0 && size >= 2) {
		size_t len = MIN((size_t)(data[0] >> 1), size - 1);
		bool shown = data[0] & 1;

		MUST(write(shown ? terminal[1] : reports[1], data + 1, len) == (ssize_t)len);
		if (!shown)
			r = shell_take_reports(&s);
		assert_shell(&s);
		data += 1 + len;
		size -= 1 + len;
	}
	if (r == 0)
		(void)pty_drain(&s, PTY_ALL);
	assert_shell(&s);
	empty(terminal[0]);
	empty(terminal[1]);
	(void)close(reports[1]);
	if (s.reports >= 0)
		(void)close(s.reports);
	ply_text_free(&s.ps1);
	ply_text_free(&s.prompt);
	ply_text_free(&s.complaint);
	free(s.out.data);
	free(s.reported.data);
	return 0;
}
