/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Waiting for a shell, and ending what it runs.
 *
 * A shell is *idle* (at its prompt, and every trigger that was typed has been answered) or not. Not
 * idle, it runs our command, or is about to tell that it has; or it runs a command whose shell_run
 * gave up on it (timeout) or was content with a pattern (an interactive program). What ends the
 * waiting is the E of the last trigger (session_shell.c).
 *
 * An interrupt is a ladder. Each step has `window` seconds; in it we look, ever less often, whether
 * the shell's own process group is the terminal's foreground again, and waits for nobody in it; if
 * so we type a probe, whose E ends the whole.
 *   steps 0 to tries-1   the terminal's Ctrl-C: SIGINT to the foreground, or, in a program that
 *                        takes its keys raw, just a key
 *   then, if gentle      SIGTERM to the foreground
 *   then, three times    SIGKILL to it; before both SIGINT to the shell, which then drops the rest
 *                        of the line instead of going on with it
 * When it is the shell that is in the foreground, there is nothing to kill, and the first of these
 * is a probe that works also if somebody has hidden `builtin`. The shell is killed by
 * none of them; when it does not listen (a loop with SIGINT ignored), that is the outcome.
 */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>

#include "env/session_internal.h"
#include "env/status.h"
#include "store/base/pidstate.h"
#include "store/base/util.h"

/* ---- the end of the shell ---- */

int shell_gone(struct shell *s)
{
	int status = s->proc.status;

	if (s->mute)
		return fail(PLY_SESSION_GONE, "the session's shell %s: end the session", s->mute);
	if (WIFEXITED(status))
		return fail(PLY_SESSION_GONE, "the session's shell has ended (exit code %d)",
			    WEXITSTATUS(status));
	return fail(PLY_SESSION_GONE, "the session's shell was killed (signal %d, %s)",
		    WTERMSIG(status), strsignal(WTERMSIG(status)));
}

static int notice_end(struct shell *s)
{
	int r;

	(void)proc_wait(&s->proc, 0); /* PLY_TIMEOUT: it lives */
	if (!s->proc.ended)
		return 0;
	s->gone = true;
	r = shell_take_reports(s); /* its last words may say why */
	if (r == 0)
		r = pty_drain(s, PTY_ALL);
	return r < 0 ? r : shell_gone(s);
}

/* ---- interrupting ---- */

/* A look at the foreground costs a system call. */
#define FIRST_LOOK 0.003
#define LAST_GAP 0.05
#define KILLS 3
/* A killed process has to be reaped before the shell is back, on a busy machine not at once. */
#define KILL_WINDOW 0.5

void stop_begin(struct stop *stop, const struct shell_interrupt *how)
{
	*stop = (struct stop){ .how = how, .step = -1 };
}

static void stop_done(struct shell *s, struct stop *stop, int result, const char *why)
{
	LOCK_GUARD(&s->lock);
	if (result < 0)
		s->cut = SIZE_MAX; /* what it killed goes on: there is one output */
	stop->result = result;
	(void)snprintf(stop->why, sizeof(stop->why), "%s", why);
	stop->done = true;
	if (s->asked == stop)
		s->asked = NULL;
	pthread_cond_broadcast(&s->changed);
}

/*
 * The process group to end, 0: there is none but the shell. A pipeline whose first program has died
 * of a Ctrl-C that came while bash was still starting the others goes on behind a shell that is in
 * front again and waits for it: so the last group seen in front counts as long as it lives.
 */
static pid_t victim(struct shell *s, struct stop *stop)
{
	pid_t group = pty_foreground(s);

	if (group > 0 && group != s->group)
		stop->front = group;
	if (stop->front > 0 && pty_signal(s, -stop->front, 0) < 0)
		stop->front = 0;
	return stop->front;
}

static int force(struct shell *s, struct stop *stop, int signal)
{
	pid_t group;
	bool own;

	if (s->group <= 0)
		return 0;
	group = victim(s, stop);
	own = !group && shell_waits_for_own(s);
	if (!group && shell_is_replaced(s))
		return 0; /* Ctrl-C was all that there is for it */
	if (!group && !own) {
		/* The shell itself is busy; or it is not, and the probes did not get through. */
		stop->probed = true;
		if (!s->repaired)
			return shell_type_probe(s, true);
		/* Busy, perhaps with programs so short that each Ctrl-C missed them. */
		(void)pty_signal(s, s->group, SIGINT);
		return 0;
	}
	if (signal == SIGKILL && s->cut == SIZE_MAX) {
		int r = pty_drain(s, PTY_ALL);

		if (r < 0)
			return r;
		s->cut = s->out.len;
	}
	/* They fail when it has just ended, which the next look sees. */
	(void)pty_signal(s, s->group, SIGINT);
	if (own)
		shell_signal_own(s, signal);
	else
		(void)pty_signal(s, -group, signal);
	return 0;
}

/* So long may it wait for room in the terminal: what it comes behind nobody reads. */
#define KEY_WITHIN 1.0

/*
 * In the terminal's modes as they are at first its SIGINT is ours as well. Ours has no other
 * addressee: a program that ends before a key arrives leaves that to the shell, which then may be
 * starting the next one (may_be_starting).
 */
static int press_ctrl_c(struct shell *s, struct stop *stop, double window)
{
	struct termios now;
	char key = '\003';
	int r;

	if (tcgetattr(s->slave, &now) == 0 && now.c_cc[VINTR]) {
		key = (char)now.c_cc[VINTR];
		if (stop->front > 0 && (now.c_lflag & (ISIG | NOFLSH | ECHO)) == (ISIG | NOFLSH) &&
		    (pty_signal(s, -stop->front, SIGINT) == 0 || errno == ESRCH))
			return 0;
	}
	r = pty_type(s, &key, 1, now_seconds() + MIN(window, KEY_WITHIN));
	s->pressed = true;
	if (victim(s, stop) && pty_foreground(s) == s->group)
		(void)pty_signal(s, -stop->front, SIGINT); /* fails when it has just ended */
	return r;
}

static int next_step(struct shell *s, struct stop *stop)
{
	const struct shell_interrupt *how = stop->how;
	int step = ++stop->step;
	double window = how->window;
	int r = 0;

	stop->probed = false;
	if (step == 0) {
		r = pty_drain(s, PTY_ALL);
		if (r < 0)
			return r;
		s->mark = s->out.len;
		s->prompts = 0;
	}
	s->prompts++;
	if (pty_foreground(s) != s->group) { /* else a line of ours may be there as well */
		/* The key would come behind it, and the shell be the next to read. */
		s->pressed |= s->input;
		shell_drop_key(s); /* that of the step before */
	}
	if (step < how->tries) {
		r = press_ctrl_c(s, stop, window);
	} else if (how->gentle && step == how->tries) {
		r = force(s, stop, SIGTERM);
	} else if (step < how->tries + how->gentle + KILLS) {
		r = force(s, stop, SIGKILL);
		window = MAX(window, KILL_WINDOW);
	} else {
		stop_done(s, stop, PLY_TIMEOUT,
			  "the session's shell itself does not react to Ctrl-C: end the session");
		return 0;
	}
	stop->next = now_seconds() + window;
	stop->look = now_seconds() + FIRST_LOOK;
	stop->gap = FIRST_LOOK;
	return r == PLY_TIMEOUT ? 0 : r; /* a program that reads nothing is what is to be ended */
}

/* ---- a shell that is starting a program ---- */

/* Nanoseconds that it has had of a processor; 0: it is gone. */
static uint64_t time_run(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
		return 0;
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* It runs, or waits for nothing but a processor, or the disk. */
static bool is_runnable(pid_t pid)
{
	char state = pid_state(pid);

	return state == 'R' || state == 'D';
}

/* A fork of bash is in front, or another program, long before: it takes less than a tenth. */
#define NEWBORN_NS 5000000

/*
 * Has the shell just forked this one, which is yet to put itself in front or to become the program
 * that it is for? Up to there it has bash's own handler of SIGINT, which only takes a note.
 */
static bool is_newborn(struct shell *s, pid_t pid)
{
	struct stat a, b;
	char path[40];

	if (time_run(pid) >= NEWBORN_NS || !is_runnable(pid))
		return false;
	(void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	if (stat(path, &a) < 0)
		return false;
	(void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)s->group);
	return stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/*
 * With the shell in front, is there somebody who may be about to take the terminal, had he a
 * processor: the shell, which has not run since our last look, or one just forked?
 */
static bool held_up(struct shell *s, struct stop *stop)
{
	_cleanup_fclose_ FILE *f = NULL;
	uint64_t before = stop->ran;
	char path[64];
	int child;

	if (s->group <= 0)
		return false;
	stop->ran = time_run(s->group);
	if (stop->ran == before && is_runnable(s->group))
		return true;
	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)s->group,
		       (int)s->group);
	f = fopen(path, "re"); /* a kernel may have none of these files */
	while (f && fscanf(f, "%d", &child) == 1)
		if (is_newborn(s, child))
			return true;
	return false;
}

/*
 * Ctrl-C is for the program in front. In a shell that is just starting one, bash (to 5.3, as one
 * sees at any terminal) would go back to its prompt while that program takes the terminal for
 * itself; its next read fails then, and it exits. So when the shell is in front, we look some times
 * more before we take it for a shell that runs none. On a busy machine all looks may be over before
 * such a program has had its turn: those do not count, for STARTS_WITHIN.
 */
#define SAMPLES 20
#define SAMPLE_GAP 0.001
#define STARTS_WITHIN 1.0

static bool may_be_starting(struct shell *s, struct stop *stop)
{
	bool late = stop->starts && now_seconds() >= stop->starts;
	/* force() gives SIGINT to the shell too: it is to be waiting for the program, not busy. */
	bool forced = stop->step + 1 >= stop->how->tries;
	pid_t group = victim(s, stop);
	bool ready = group && !is_newborn(s, group) && !(forced && is_runnable(s->group));

	/*
	 * A command of its own did that; what still runs of it may do it again. Not right before
	 * the Ctrl-C: it may go on with a program.
	 */
	if (s->group > 0 && pid_state(s->group) == 'T')
		(void)pty_signal(s, s->group, SIGCONT);
	if (group ? late || ready : stop->samples >= SAMPLES)
		return false;
	if (!group && (late || !held_up(s, stop)))
		stop->samples++;
	if (!stop->starts)
		stop->starts = now_seconds() + STARTS_WITHIN;
	stop->next = now_seconds() + SAMPLE_GAP;
	return true;
}

/*
 * A Ctrl-C while the shell reads what was typed cuts that in two: it cannot parse the rest, or
 * ends, or runs the rest, which tells of another command's end. It tells when it has read the whole
 * (B), usually at once; if it does not, something else holds it up, which is what is to be ended.
 * But on a busy machine that may be the want of a processor: then it has more time, up to a limit
 * at which nothing else seems to get any, either.
 */
#define READS_WITHIN 0.5
#define READS_STARVED 5.0
/* A line takes less than a tenth. */
#define READS_NS 50000000
#define READS_GAP 0.01

static void note_typed(struct shell *s, struct stop *stop)
{
	if (stop->typed == s->typed)
		return;
	stop->typed = s->typed;
	stop->typed_at = now_seconds();
	stop->typed_ran = s->group > 0 ? time_run(s->group) : 0;
}

static bool is_reading(struct shell *s, struct stop *stop)
{
	double since;

	note_typed(s, stop);
	since = now_seconds() - stop->typed_at;
	if (s->begun == s->typed || s->hung_up)
		return false;
	/* A probe has had a window's time already. */
	if (stop->step < 0 && since < READS_WITHIN)
		return true;
	return s->group > 0 && since < READS_STARVED && is_runnable(s->group) &&
	       time_run(s->group) - stop->typed_ran < READS_NS;
}

/* Does what is due; *ret_next: when to come again. */
static int stop_tick(struct shell *s, struct stop *stop, double *ret_next)
{
	int r = 0;

	if (now_seconds() >= stop->next && is_reading(s, stop)) {
		*ret_next = now_seconds() + READS_GAP;
		return 0;
	}
	if (now_seconds() >= stop->next && !may_be_starting(s, stop)) {
		stop->samples = 0;
		stop->starts = 0;
		r = next_step(s, stop);
	}
	if (r == 0 && !stop->done && !stop->probed && stop->step >= 0 &&
	    now_seconds() >= stop->look) {
		if (pty_foreground(s) == s->group && !shell_waits_for_own(s) &&
		    !shell_is_replaced(s)) {
			stop->probed = true;
			r = shell_type_probe(s, false);
		} else {
			stop->gap = MIN(stop->gap * 2, LAST_GAP);
			stop->look = now_seconds() + stop->gap;
		}
	}
	note_typed(s, stop);
	*ret_next = stop->probed || stop->step < 0 ? stop->next : MIN(stop->next, stop->look);
	return r;
}

/* ---- a shell that came back without a word ---- */

/*
 * Something aborted the command: the shell sleeps in front, and SHELL_MARK, which is open as long
 * as a command is parsed or runs (so whatever else it may sleep for then), is closed. We look when
 * nothing was printed for so long, then ever less often; at the same pace while the last that was
 * printed is the prompt.
 */
#define LOST_AFTER 0.02
#define LOST_GAP_MAX 2.0
/* What bash has printed then is a newline and its prompt: in so many bytes. */
#define LOST_PROMPT ((size_t)4096)

static bool may_be_lost(const struct shell *s)
{
	return !s->idle && !s->over && !s->lost && s->begun == s->command;
}

static bool ends_with_prompt(const struct shell *s)
{
	return s->prompt.len && s->out.len >= s->prompt.len &&
	       memcmp(s->out.data + s->out.len - s->prompt.len, s->prompt.data, s->prompt.len) == 0;
}

/* *ret_next: brought forward to when to come again. */
static int lost_tick(struct shell *s, bool news, double *ret_next)
{
	double now = now_seconds();

	if (!may_be_lost(s)) {
		s->lost_at = 0;
		return 0;
	}
	if (news || s->lost_at == 0) {
		s->lost_gap = LOST_AFTER;
		s->lost_at = now + s->lost_gap;
	}
	if (now >= s->lost_at) {
		if (!ends_with_prompt(s))
			s->lost_gap = MIN(s->lost_gap * 2, LOST_GAP_MAX);
		s->lost_at = now + s->lost_gap;
		if (pty_foreground(s) == s->group && pid_state(s->group) == 'S' &&
		    shell_descriptor(s, SHELL_MARK) == 0 && !shell_is_replaced(s)) {
			int r = shell_check_files(s);

			if (r < 0)
				return r;
			s->lost = true;
			s->mark = s->out.len - MIN(s->out.len, LOST_PROMPT);
			s->prompts = 1;
			return shell_type_probe(s, false);
		}
	}
	if (*ret_next < 0 || s->lost_at < *ret_next)
		*ret_next = s->lost_at;
	return 0;
}

/*
 * A Ctrl-C that finds the shell busy with its prompt (`PS1='$(git ...)'`) is heard when it has read
 * the next line, which it forgets then: the line is neither to be read nor begun, or not answered,
 * and the shell sleeps in front of the terminal. An interrupt types again; who waits for a shell
 * that none got back does it here. One too many does no harm.
 */
#define LINE_AFTER 0.2 /* a line is read within a hundredth of that */

static bool line_is_missing(const struct shell *s)
{
	return s->group > 0 && !s->idle && (s->begun != s->typed || s->told == s->begun);
}

static int line_tick(struct shell *s, double *ret_next)
{
	double now = now_seconds();
	int unread, r = 0;

	if (!line_is_missing(s)) {
		s->line_at = 0;
		return 0;
	}
	if (s->line_at == 0 || now >= s->line_at) {
		if (s->line_at && ioctl(s->slave, FIONREAD, &unread) == 0 && !unread &&
		    pid_state(s->group) == 'S' && pty_foreground(s) == s->group &&
		    !shell_is_replaced(s))
			r = shell_type_probe(s, false);
		s->line_at = now + LINE_AFTER;
	}
	if (*ret_next < 0 || s->line_at < *ret_next)
		*ret_next = s->line_at;
	return r;
}

/* ---- waiting ---- */

/* What other threads want. */
static int look_at_wishes(struct shell *s, struct goal *g)
{
	uint64_t count;

	(void)!read(s->wake, &count, sizeof(count)); /* it only wakes */
	LOCK_GUARD(&s->lock);
	if (s->ending)
		return fail(PLY_SESSION_GONE, "the session was ended");
	if (!g->stop)
		g->stop = s->asked;
	return 0;
}

struct news {
	bool output, end;
};

/* poll until `next` (< 0: for ever). types: for room in the terminal, and for no report. */
static int wait_news(struct shell *s, struct goal *g, double next, bool types, struct news *ret)
{
	struct pollfd p[] = {
		{ .fd = s->hung_up ? -1 : s->master, .events = types ? POLLIN | POLLOUT : POLLIN },
		{ .fd = types ? -1 : s->reports, .events = POLLIN },
		{ .fd = s->proc.fd, .events = POLLIN },
		{ .fd = s->wake, .events = POLLIN },
		{ .fd = g->cancel, .events = POLLIN },
	};
	double left = next < 0 ? 0 : MAX(next - now_seconds(), 0);
	struct timespec t = { .tv_sec = (time_t)MIN(left, 1e9) };

	t.tv_nsec = (long)((MIN(left, 1e9) - (double)t.tv_sec) * 1e9);
	if (ppoll(p, ARRAY_SIZE(p), next < 0 ? NULL : &t, NULL) < 0)
		return errno == EINTR ? 0 : fail_errno(errno, "waiting for a session");
	*ret = (struct news){ .output = p[0].revents, .end = p[2].revents };
	if (p[3].revents) {
		int r = look_at_wishes(s, g);

		if (r < 0)
			return r;
	}
	return p[4].revents ? fail(PLY_CANCELLED, "the command was cancelled") : 0;
}

/* Output between two looks at everything else. */
#define SHARE ((size_t)1 << 20)

static int wait_end(struct shell *s, struct goal *g)
{
	struct news news = { .output = true, .end = true };

	for (;;) {
		double next = g->end;
		int r;

		r = shell_take_reports(s);
		if (r < 0)
			return r;
		/* Idle: everything was taken with the report of it; what follows is for later. */
		if (news.output && !s->idle) {
			r = pty_drain(s, SHARE);
			if (r < 0)
				return r;
		}
		expect_rewind(g->expect, s->changed_at);
		s->changed_at = SIZE_MAX;
		r = expect_scan(g->expect, s->out.data, s->out.len, &g->match);
		if (r < 0)
			return r;
		if (r > 0)
			return MATCHED;
		if (s->idle)
			return 0;
		if (news.end) {
			r = notice_end(s);
			if (r < 0)
				return r;
		}
		if (g->stop) {
			/* Once begun it is carried through: no other end counts. */
			r = stop_tick(s, g->stop, &next);
			if (r < 0)
				return r;
			if (g->stop->done) {
				struct stop *stop = TAKE_PTR(g->stop);

				if (g->mine)
					return fail(stop->result, "%s", stop->why);
				continue;
			}
		} else {
			r = lost_tick(s, news.output, &next);
			if (r == 0)
				r = line_tick(s, &next);
			if (r < 0)
				return r;
			if (g->end >= 0 && now_seconds() >= g->end)
				return PLY_TIMEOUT;
		}
		r = inner_tick(s, news.output, &next);
		if (r != 0)
			return r;
		r = wait_news(s, g, next, false, &news);
		if (r < 0)
			return r;
	}
}

int shell_type_input(struct shell *s, struct goal *g, const char *data, size_t len)
{
	s->input = true;
	while (!pty_write(s, &data, &len)) {
		double look = now_seconds() + PTY_LOOK_MS / 1e3;
		struct news news = { .end = false };
		int r;

		if (g->end >= 0 && now_seconds() >= g->end)
			return pty_unread();
		r = wait_news(s, g, g->end >= 0 ? MIN(look, g->end) : look, true, &news);
		if (r == 0 && news.output)
			r = pty_drain(s, SHARE);
		if (r == 0 && news.end)
			r = notice_end(s);
		if (r < 0 || g->stop)
			return r;
	}
	return 0;
}

int shell_wait(struct shell *s, struct goal *g)
{
	int r;

	inner_forget(s);
	s->line_at = 0;
	r = wait_end(s, g);
	inner_take_back(s);
	if (g->stop)
		stop_done(s, g->stop, MIN(r, 0), r < 0 ? ply_error() : "");
	g->stop = NULL;
	return r;
}
