/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the shell is made to do.
 *
 * It is an ordinary interactive bash (job control, bashrc, notices about jobs; no line editing, no
 * history), which reads from its terminal. But only two fixed lines are ever typed there. The
 * *trigger* makes it take a command from a memfd and eval it, at its top level: no length matters,
 * no control character, and `local`, `return` or `break` mean what they always mean. What it has to
 * tell comes through a pipe. Both are descriptors 114 and 115 of the shell, closed on exec, so that
 * no program inherits them. While a command is parsed and runs there is a 37 as well, for us to see
 * (SHELL_MARK): also when a fork that parses it sleeps, and the shell waits for it in front.
 *
 * The trigger, in order:
 *   B  reports that it has begun: $?, its prompt (when that is not hidden), the trigger's number,
 *      the prompt as it would be with PS1 shown;
 *   C  lets the command be parsed. Nothing of it must run when its last line is wrong, but `set -n`
 *      does nothing in an interactive shell, and a `bash -n` takes a millisecond. So a fork of the
 *      shell makes it the body of a function, which is parsed whole and not run; enclosed by a
 *      pair ({ }, ( ) or while/done) whose closing half is nowhere in it, so it cannot get out.
 *      What does not parse like that (which a here-document without end does not, either), or
 *      holds all three, or a backslash before a newline, gets its `bash -n`, of the program
 *      that the shell itself is (PATH is the user's). Plain words get neither;
 *   -  evals it, after a prefix on the same line, which makes $?, PS1, -x and -v what they were;
 *   S  reports its exit code, then switches -x and -v off and empties PS1: no prompt, no trace of
 *      ours is ever in the output.
 * The second line is typed when S has come: E tells that the shell is at its prompt, so what it has
 * to say about jobs that are done has been said.
 *
 * When a command is aborted (Ctrl-C, or a program that dies of SIGINT), bash drops the rest of the
 * line and prints its prompt, now a visible one. A trigger with an empty command, a *probe*, brings
 * us back then: its B has the exit code, and the prompt that is to be taken out of the output.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "env/own_fd.h"
#include "env/session_internal.h"
#include "env/status.h"
#include "store/base/util.h"

/*
 * Bash has no word for closed on exec. But what it keeps of a descriptor that a redirection hides
 * is, and so are copies of that: it takes the lowest from 10 that is free. (`builtin exec` would
 * not keep what it redirects.)
 */
#define MOVE(from, to)                                                                             \
	"for __ply in {10..43}; do [[ -e /proc/$$/fd/$__ply ]] || break; done;"                    \
	" builtin eval \"{ \\\\exec " to "<&$__ply; } " from "<&-; \\\\exec " from "<&-\"; "
/* Typed in front of the first trigger, in its line. */
static const char start_of_line[] = MOVE("44", "114") MOVE("45", "115");

/*
 * Numbers that nobody uses: {fd}> takes the lowest from 10, as bash does for itself, <( ) the
 * highest below 64; a limit of 128 is enough. The array holds $?, then what shell_type
 * sends (1: until the prefix has been run); 8: set as soon as the command is to be run; 9: its exit
 * code, if it is not 0; 10: sets what there was of -x and -v behind an aborted command, off until
 * then. A trigger that is read twice finds an empty one.
 *
 * What can be sent is not typed: a Ctrl-C that finds the shell reading leaves the rest of the line
 * to be taken for one, mostly between two reads, of which bash from 5.1 on needs one for a line.
 */
static const char trigger[] =
	/*
	 * A command may have made our variable another kind of one, or (R) one that is for ever its
	 * own, if it is that, and not `unset`, that is in the way. Twice: to the first command
	 * after an interrupt bash may give the status of a program that it was starting then.
	 */
	"{ builtin eval \"builtin unset -v __ply || ! builtin unset -v __o"
	" || builtin unset -v __ply || builtin printf '\\0\\0\\0\\0R\\0' >&115;"
	" __ply=($?)\";"
	" builtin mapfile -d '' -t -O 1 -u 114 __ply;"
	/* The NULs end a message that an interrupt has cut off. */
	" builtin printf '\\0\\0\\0\\0B%s\\0%s\\0%s\\0%s\\0' \"${__ply[0]}\" \"${PS1:+${PS1@P}}\""
	" \"${__ply[1]-}\" \"${__ply[6]:+${__ply[6]@P}}\" >&115; } >/dev/null 2>&1;"
	/*
	 * 3: the opening half, or nothing when it is not to be checked; 4: the other. In a process
	 * of its own: what a bash could not parse leaves its parser in odd moods, 5.0 even exits.
	 * 7 (second_check) takes 3 away if it may be run.
	 */
	" { __ply[10]=${-//[!xv]}; __ply[10]=${__ply[10]:+\"builtin set -${__ply[10]};\"};"
	" builtin set +xv; [[ -z ${__ply[3]-} ]] ||"
	" ( builtin eval \"${__ply[3]}${__ply[5]}${__ply[4]}\" ) 2>/dev/null"
	" || { builtin eval \"${__ply[7]}\"; [[ -z ${__ply[3]} ]]; }; }"
	" >/dev/null 2>&1 37<&115" /* a DEBUG trap's, too */
	" && { builtin eval \"${__ply[10]-}${__ply[2]-}${__ply[5]-}${__ply[8]=}\"; } 37<&115"
	/*
	 * To set -e and an ERR trap the eval itself is no command that fails, in front of a ||;
	 * what it runs is all the same, since `builtin eval` (not `eval`) does not hand that on.
	 */
	" || { __ply[9]=$?; } >/dev/null 2>&1;"
	" { builtin printf 'S%s\\0%s\\0%s\\0%s\\0%s\\0' \"${__ply[9]-0}\" \"$-\" \"${PS1-}\""
	" \"${PS1+${PS1@a}}\" \"${__ply[1]+${__ply[8]-x}}\" >&115;"
	/* After a command's own eval of half a quotation 5.2 knows no reserved word for a line. */
	" builtin eval builtin :; builtin set +xv; PS1=; } >/dev/null 2>&1\n";
static const char second_line[] =
	"{ builtin printf 'E%s\\0' \"${PS1:+${PS1@P}}\" >&115; } >/dev/null 2>&1\n";
/* So many bytes at a time, in getc_with_restart. From 5.1 on 1024, which is all of a trigger. */
#define SHELL_READS 128
_Static_assert(sizeof(trigger) <= 1024, "a trigger is read whole");

/*
 * `bash -n` for what the pair could not prove right. -p: without BASH_ENV, which may be readonly.
 * Nothing in it fails in the eyes of set -e or an ERR trap.
 */
#define UNCHECKED "126" /* and above: there was no bash to check it with, or it was killed */
static const char second_check[] =
	"( builtin printf C >&115; __o=;"
	" [[ $BASHOPTS${__ply[5]} == *extglob* ]] && __o=x; builtin exec -a bash /proc/$$/exe -pn"
	" ${__o:+\"-O\"} ${__o:+\"extglob\"} <<<\"${__ply[5]}\" >&115 2>&1 )"
	" && builtin printf '\\0000\\0' >&115 && __ply[3]="
	" || { __ply[0]=$?; builtin printf '\\0%s\\0' \"${__ply[0]}\" >&115 || builtin :;"
	" [[ ${__ply[0]} -lt " UNCHECKED " ]] || __ply[3]=; }";

/*
 * In posix mode `unset` is found before any function of that name. What the lines use may be
 * disabled, or another word's alias.
 */
static const char repair[] = "POSIXLY_CORRECT=y\n"
			     "\\enable builtin eval mapfile printf set unalias unset 2>/dev/null\n"
			     "\\unset -f builtin unset\n"
			     "\\unalias builtin 2>/dev/null\n"
			     "\\unset POSIXLY_CORRECT\n";

/* ---- its start ---- */

#define REPORTS 115 /* where the lines above write, the highest descriptor of ours in the shell */

/* -p: without BASH_ENV. V: it is not for us. */
static const char hop[] =
	"case ${BASH_VERSION-} in ''|[123].*|4.[0-3].*) printf 'V%s\\0' \"${BASH_VERSION-}\" >&2;"
	" exit 1;; esac; exec 44<&1 45>&2 1>&0 2>&0; exec -a bash \"$0\" --noediting -i";

extern char **environ;

/* A K=V in v replaces one of the same K. */
static int put(struct ply_list *v, const char *kv)
{
	size_t len = strcspn(kv, "=") + 1;

	for (size_t i = 0; i < v->n; i++) {
		if (strncmp(v->items[i], kv, len) == 0) {
			char *copy = strdup(kv);

			if (!copy)
				return fail_memory();
			free(v->items[i]);
			v->items[i] = copy;
			return 0;
		}
	}
	return list_append(v, kv, strlen(kv));
}

/* inherit: the caller's variables first. */
static int make_env(bool inherit, const char *const *more, struct ply_list *ret)
{
	/*
	 * dumb: bash and others send nothing that moves a cursor. HISTFILE (the first command takes
	 * it out of what commands get): one that is hung up before that is to write no history.
	 */
	static const char *const ours[] = { "TERM=dumb", "PS1=" SHELL_PROMPT, "PS2=", "PS0=",
					    "HISTFILE=/dev/null", NULL };
	int r = 0;

	for (char **e = inherit ? environ : NULL; e && *e && r == 0; e++)
		r = list_append(ret, *e, strlen(*e));
	for (const char *const *e = ours; *e && r == 0; e++)
		r = put(ret, *e);
	for (const char *const *e = more; e && *e && r == 0; e++) {
		if (**e == '=' || !strchr(*e, '='))
			return fail(PLY_INVALID, "env: '%s' is not NAME=VALUE", *e);
		r = put(ret, *e);
	}
	return r;
}

int shell_spawn(struct shell *s, const struct shell_options *o)
{
	const char *const argv[] = { s->path, "-p", "-c", hop, s->path, NULL };
	_cleanup_(ply_list_free) struct ply_list env = { 0 };
	_cleanup_own_fd_ struct own_fd theirs = OWN_FD_NONE;
	char **wrapped = NULL;
	struct proc_options p;
	const uint64_t files = keeper_files(o->keeper);
	int r;

	/* Else the shell lives, and reports nothing. */
	if (files <= REPORTS)
		return fail(PLY_FAILED,
			    "a session's shell wants descriptor %d; 'ulimit -n' allows %" PRIu64,
			    REPORTS, files);
	r = make_env(!o->wrap, o->env, &env);
	if (r < 0)
		return r;
	r = pty_open(s);
	if (r < 0)
		return r;
	s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->text = memfd_create("plyfs-session", MFD_CLOEXEC);
	if (s->wake < 0 || s->text < 0)
		return fail_errno(errno, "starting a session");
	r = own_fd_pipe(&s->reports, &theirs);
	if (r < 0)
		return fail_errno(-r, "starting a session");
	if (fcntl(s->reports, F_SETFL, O_NONBLOCK) < 0)
		return fail_errno(errno, "starting a session");

	if (o->wrap) {
		r = o->wrap(o->wrap_arg, argv, (const char *const *)env.items, &wrapped);
		if (r < 0)
			return r;
	}
	p = (struct proc_options){
		.argv = wrapped ? (const char *const *)wrapped : argv,
		.env = wrapped ? NULL : (const char *const *)env.items,
		.cwd = o->cwd,
		.fds = { s->slave, s->text, theirs.fd },
		.terminal = true,
		.limits = o->limits,
	};
	r = proc_spawn(o->keeper, &p, &s->proc);
	for (char **w = wrapped; w && *w; w++)
		free(*w);
	free(wrapped);
	return r < 0 ? r : pty_type(s, start_of_line, sizeof(start_of_line) - 1, now_seconds() + 1);
}

/* Word in single quotes, for the shell. */
static int quote(struct ply_text *text, const char *word)
{
	int r = text_append(text, "'", 1);

	for (const char *p = word; r == 0 && *p;) {
		size_t plain = strcspn(p, "'");

		r = text_append(text, p, plain);
		p += plain;
		if (r == 0 && *p == '\'') {
			r = text_append(text, "'\\''", 4);
			p++;
		}
	}
	return r < 0 ? r : text_append(text, "'", 1);
}

static int add(struct ply_text *text, const char *words)
{
	return text_append(text, words, strlen(words));
}

/*
 * As if it were typed: ~, variables and patterns are expanded. A file of just that name is meant
 * for sure, whatever its characters.
 */
static int add_source(struct ply_text *text, const char *path)
{
	int r = add(text, "if [[ -e ");

	if (r == 0)
		r = quote(text, path);
	if (r == 0)
		r = add(text, " ]]; then builtin source ");
	if (r == 0)
		r = quote(text, path);
	if (r == 0)
		r = add(text, "; else builtin eval \"builtin source \"");
	if (r == 0)
		r = quote(text, path);
	/* As behind a command: half a quotation spoils the next line's first word. */
	return r < 0 ? r : add(text, "; fi\nbuiltin eval builtin :\n");
}

int shell_first_command(const struct shell_options *o, struct ply_text *ret)
{
	_cleanup_(ply_text_free) struct ply_text text = { 0 };
	int r = 0;

	for (const char *const *p = o->sources; p && *p && r == 0; p++)
		r = add_source(&text, *p);
	if (r == 0)
		/* Nobody is to see mail, nor to be logged out for being silent. */
		r = add(&text, "builtin set +o history +H; builtin history -c; HISTFILE=/dev/null\n"
			       "builtin export -n HISTFILE\n"
			       "builtin unset -v MAILCHECK TMOUT 2>/dev/null\n"
			       "builtin export PS1=" SHELL_PROMPT " PS2= PS0=\n");
	if (r < 0)
		return r;
	*ret = text;
	text = (struct ply_text){ 0 };
	return 0;
}

/* ---- commands ---- */

/* Words only, none of which the grammar knows: there is no way for it to be wrong. */
static bool is_plain(const char *text, size_t len)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789_-+./,:=@%^ ";
	static const char reserved[] = " if then else elif fi case esac for select while until do "
				       "done in function time coproc ";
	char word[12] = " "; /* longer ones are none of those */
	size_t n = 1;

	for (size_t i = 0; i <= len; i++) {
		char c = i < len ? text[i] : ' ';

		if (!c || !strchr(letters, c))
			return false;
		if (n < sizeof(word) - 1)
			word[n++] = c;
		if (c == ' ') {
			word[n] = '\0';
			if (n > 2 && strstr(reserved, word))
				return false;
			n = 1;
		}
	}
	return true;
}

/* The pair that encloses text; a closing half alone makes it a syntax error, for `bash -n`. */
static void choose_pair(const char *text, size_t len, const char **ret_open, const char **ret_close)
{
	static const struct {
		const char *end, *open, *close;
	} pairs[] = { { "}", "__ply()\n{ :\n", "\n}" },
		      { ")", "__ply()\n( :\n", "\n)" },
		      { "done", "__ply()\nwhile :; do :\n", "\ndone" } };

	*ret_open = ")";
	*ret_close = "";
	if (memmem(text, len, "\\\n", 2)) /* could put a closing half together */
		return;
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		if (!memmem(text, len, pairs[i].end, strlen(pairs[i].end))) {
			*ret_open = pairs[i].open;
			*ret_close = pairs[i].close;
			return;
		}
	}
}

/* Is the shell's directory a removed one? (A name that ends so is looked up in vain.) */
static bool cwd_is_gone(const struct shell *s)
{
	static const char gone[] = " (deleted)";
	char link[40], path[PATH_MAX];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/%d/cwd", (int)s->group);
	n = readlink(link, path, sizeof(path));
	return n >= (ssize_t)sizeof(gone) - 1 &&
	       memcmp(path + n - (sizeof(gone) - 1), gone, sizeof(gone) - 1) == 0;
}

/* What stands before the command. Its output goes nowhere, also that of a DEBUG trap. */
static int make_prefix(struct shell *s, struct ply_text *prefix)
{
	char status[192];
	int r;

	/* || and && keep set -e and an ERR trap out of it: one of a command's may be readonly. */
	r = add(prefix, "{ builtin unset -v __ply;builtin unset -f __ply||builtin :;");
	/* A restore brought another one back (to the kernel), which it goes to. */
	if (r == 0 && cwd_is_gone(s))
		r = add(prefix, "builtin cd -- \"${PWD-.}\"&&builtin :;");
	if (r == 0 && s->ps1.len) {
		r = add(prefix, "PS1=${PS1:-");
		if (r == 0)
			r = quote(prefix, s->ps1.data);
		if (r == 0)
			r = add(prefix, "};");
	}
	if (r == 0 && s->flags[0]) {
		(void)snprintf(status, sizeof(status), "builtin set -%s;", s->flags);
		r = add(prefix, status);
	}
	if (r == 0 && s->status) {
		(void)snprintf(status, sizeof(status),
			       "if __ply(){ builtin unset -f __ply;builtin return %d; };then "
			       "__ply&&builtin :;else (builtin exit %d)&&builtin :;fi;",
			       s->status, s->status);
		r = add(prefix, status);
	}
	return r < 0 ? r : add(prefix, "} >/dev/null 2>&1;");
}

int shell_descriptor(const struct shell *s, const char *number)
{
	char path[40], link;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)s->group, number);
	if (readlink(path, &link, 1) >= 0)
		return 1;
	if (errno != ENOENT)
		return -errno;
	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)s->group);
	return access(path, F_OK) == 0 ? 0 : -errno;
}

static int write_parts(int fd, struct iovec *v, int n)
{
	while (n) {
		ssize_t w = writev(fd, v, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return fail_errno(errno, "handing a command to the shell");
		for (; n && (size_t)w >= v->iov_len; v++, n--)
			w -= (ssize_t)v->iov_len;
		if (n) {
			v->iov_base = (char *)v->iov_base + w;
			v->iov_len -= (size_t)w;
		}
	}
	return 0;
}

static struct iovec item(const char *text)
{
	return (struct iovec){ .iov_base = (void *)text, .iov_len = strlen(text) };
}

/* A report's, but for what bash says of a text that it cannot parse: a word and a line of it. */
#define REPORT_MAX ((size_t)1 << 20)

static int shell_type(struct shell *s, const char *text, size_t len, enum shell_check check)
{
	_cleanup_(ply_text_free) struct ply_text prefix = { 0 };
	const char *open = "", *close = "", *ps1 = "";
	struct iovec items[7], v[ARRAY_SIZE(items) * 2];
	char number[24];
	int r;

	if (check == CHECK_SYNTAX && !is_plain(text, len))
		choose_pair(text, len, &open, &close);
	r = make_prefix(s, &prefix);
	if (r < 0)
		return r;
	/* Without these there is nothing to expand in it. */
	if (s->ps1.len && strpbrk(s->ps1.data, "\\$`"))
		ps1 = s->ps1.data;
	(void)snprintf(number, sizeof(number), "%" PRIu64, s->typed + 1);
	items[0] = item(number);
	items[1] = item(prefix.data);
	items[2] = item(open);
	items[3] = item(close);
	items[4] = (struct iovec){ .iov_base = (void *)text, .iov_len = len };
	items[5] = item(ps1);
	items[6] = item(second_check);
	for (size_t i = 0; i < ARRAY_SIZE(items); i++) {
		v[2 * i] = items[i];
		v[2 * i + 1] = (struct iovec){ .iov_base = (void *)"", .iov_len = 1 };
	}
	/* The descriptor, and with it the place in the file, is the shell's as well. */
	if (ftruncate(s->text, 0) < 0 || lseek(s->text, 0, SEEK_SET) < 0)
		return fail_errno(errno, "handing a command to the shell");
	r = write_parts(s->text, v, ARRAY_SIZE(v));
	if (r < 0)
		return r;
	if (lseek(s->text, 0, SEEK_SET) < 0)
		return fail_errno(errno, "handing a command to the shell");
	s->typed++;
	s->idle = false;
	s->longest = REPORT_MAX + 2 * len;
	pty_reset(s);
	return pty_type(s, trigger, sizeof(trigger) - 1, now_seconds() + 1);
}

int shell_type_command(struct shell *s, const char *text, size_t len, enum shell_check check)
{
	shell_note_children(s);
	s->command = s->typed + 1;
	s->over = s->refused = s->repaired = s->lost = false;
	s->lost_at = 0;
	s->cut = SIZE_MAX; /* what was kept is for this one */
	return shell_type(s, text, len, check);
}

/*
 * Not while lines of ours are there, of which a flush might leave half: bash may read a trigger in
 * pieces, and what is left of one leaves it in the middle of a quotation, for ever. A Ctrl-C may
 * have cost it some: so there are none, either, where less is to be read than the rest of one.
 */
void shell_drop_key(struct shell *s)
{
	int unread;

	if (s->behind && ioctl(s->slave, FIONREAD, &unread) == 0 &&
	    (size_t)unread >= (sizeof(trigger) - 1) % SHELL_READS)
		return;
	if (s->pressed && s->begun == s->typed)
		pty_flush(s);
}

/*
 * What the terminal holds of whole lines that nobody reads. A Ctrl-C behind more than that would
 * not come before they are read, and then in the middle of ours.
 */
#define TERMINAL_HOLDS 4095

static bool has_room(const struct shell *s, size_t len)
{
	int unread;

	return s->begun == s->typed || ioctl(s->slave, FIONREAD, &unread) < 0 ||
	       (size_t)unread + len + sizeof(second_line) < TERMINAL_HOLDS;
}

int shell_type_probe(struct shell *s, bool hard)
{
	int r;

	/* There are some before it, then. Not one: each Ctrl-C may cost the shell a line. */
	if (!has_room(s, sizeof(trigger) + (hard ? sizeof(repair) : 0)))
		return 0;
	shell_drop_key(s);
	if (hard) {
		r = pty_type(s, repair, sizeof(repair) - 1, now_seconds() + 1);
		if (r < 0)
			return r;
		s->repaired = true;
		s->prompts += 5; /* its lines */
	}
	return shell_type(s, "", 0, NO_CHECK);
}

/*
 * ---- reports ----
 *
 * Programs do not inherit the pipe, but one that looks for it can write into it. That harms its own
 * session and nobody else: each line that was typed is answered once, what else comes is dropped.
 */

void shell_drop(struct shell *s, size_t at, size_t len)
{
	s->out.len -= len;
	memmove(s->out.data + at, s->out.data + at + len, s->out.len - at);
	if (s->cut != SIZE_MAX && s->cut > at)
		s->cut -= MIN(len, s->cut - at);
	s->changed_at = 0; /* what is on both sides may match now */
}

static bool is_at(const struct shell *s, size_t at, const char *prompt, size_t len)
{
	return s->out.len - at >= len && memcmp(s->out.data + at, prompt, len) == 0;
}

/* Takes the prompt away from the end of the output, up to twice. Returns how often. */
static size_t drop_end(struct shell *s, const char *prompt)
{
	size_t len = strlen(prompt), n = 0;

	for (; len && n < 2 && s->out.len >= len && is_at(s, s->out.len - len, prompt, len); n++)
		shell_drop(s, s->out.len - len, len);
	return n;
}

/*
 * The last `times` behind `from`: those after a newline, which bash prints when it aborts
 * something, and that at the end. A program may have printed the same anywhere else.
 */
static void drop_lines(struct shell *s, const char *prompt, size_t from, size_t times)
{
	size_t len = strlen(prompt);

	for (size_t at = s->out.len; len && times && at-- > from;) {
		if (is_at(s, at, prompt, len) &&
		    (at == from || s->out.data[at - 1] == '\n' || at + len == s->out.len)) {
			shell_drop(s, at, len);
			times--;
		}
	}
}

/* The one that was there before a command, which may have printed some by now. */
static void drop_first(struct shell *s, const char *prompt)
{
	size_t len = strlen(prompt);
	char *found = len && s->out.len ? memmem(s->out.data, s->out.len, prompt, len) : NULL;

	if (found)
		shell_drop(s, (size_t)(found - s->out.data), len);
}

/*
 * With -v a line is printed as it is read. A program may print millions: what is kept moves once,
 * as far as all that was dropped before it.
 */
static void drop_trigger(struct shell *s)
{
	const size_t len = sizeof(trigger) - 1;
	size_t from = s->mark, to = s->mark;
	char *found = NULL;

	while (from < s->out.len) {
		size_t left = s->out.len - from, keep;

		found = memmem(s->out.data + from, left, trigger, len);
		keep = found ? (size_t)(found - s->out.data) - from : left;
		memmove(s->out.data + to, s->out.data + from, keep);
		from += keep;
		to += keep;
		if (!found)
			break;
		from += len;
		if (s->cut != SIZE_MAX && s->cut > to)
			s->cut -= MIN(len, s->cut - to);
		s->changed_at = 0; /* as in shell_drop */
	}
	if (s->mark < s->out.len)
		s->out.len = to;
}

/* Nothing can be run in it any more, or nothing be told of that. */
static int mute(struct shell *s, const char *why)
{
	s->gone = true;
	s->mute = why;
	return shell_gone(s);
}

static const char no_descriptors[] = "has closed the descriptors that it needs, or may open none";

/* Where none as high as these may be opened bash redirects nothing: it cannot tell that itself. */
int shell_check_files(struct shell *s)
{
	struct rlimit files;

	if (prlimit(s->group, RLIMIT_NOFILE, NULL, &files) < 0 ||
	    files.rlim_cur > strtoul(SHELL_MARK, NULL, 10))
		return 0;
	return mute(s, no_descriptors);
}

static int no_variable(struct shell *s, char *const *field)
{
	return mute(s, "needs the variable __ply, which a command has made readonly");
}

static int begun(struct shell *s, char *const *field)
{
	uint64_t number = strtoull(field[2], NULL, 10);
	const char *prompt;
	bool aborted;
	int r;

	if (number > s->typed || (number && number <= s->begun))
		return 0; /* nobody asked */
	s->stale = number == 0;
	/* Of some that a busy shell has left unread the first takes the text. */
	s->behind = !s->stale ? number - s->begun - 1 : s->behind ? s->behind - 1 : 0;
	if (s->stale && shell_descriptor(s, "114") == 0)
		return mute(s, no_descriptors);
	/*
	 * It was typed, and not read until another took its text's place. It has nothing to tell of
	 * its own, but that the command before it is over, and how: the next finds $? spoilt.
	 */
	if (s->stale && (s->over || s->begun != s->command))
		return 0;
	s->lost = false;
	s->lost_at = 0;
	if (!s->group)
		s->group = MAX(pty_foreground(s), 0);
	aborted = !s->over && number != s->command;
	if (*field[1] || aborted) {
		/* It was printed before the report was written. */
		r = pty_drain(s, PTY_ALL);
		if (r < 0)
			return r;
	}
	if (aborted) {
		drop_trigger(s);
		drop_lines(s, field[1], s->mark, s->prompts);
	} else if (s->owed) {
		drop_first(s, field[1]);
	}
	if (aborted) {
		s->over = true;
		s->code = s->status = atoi(field[0]);
	}
	prompt = *field[1] ? field[1] : *field[3] ? field[3] : s->ps1.len ? s->ps1.data : "";
	ply_text_free(&s->prompt);
	r = text_set(&s->prompt, prompt, strlen(prompt));
	if (r == 0 && !s->stale)
		s->begun = number;
	return r;
}

/* What the next prefix restores. A readonly PS1 cannot be hidden, so it is not. */
static int remember(struct shell *s, const char *flags, const char *ps1, bool readonly)
{
	char *to = s->flags;

	if (strchr(flags, 'x'))
		*to++ = 'x';
	if (strchr(flags, 'v'))
		*to++ = 'v';
	*to = '\0';
	ply_text_free(&s->ps1);
	return readonly ? 0 : text_set(&s->ps1, ps1, strlen(ps1));
}

static int ended(struct shell *s, char *const *field)
{
	int r;

	if (s->stale || s->told == s->begun)
		return 0;
	if (*field[4] && !s->refused) /* 37 could not be opened: a limit is lower than that */
		return mute(s, no_descriptors);
	if (s->begun == s->command && !s->over) {
		s->over = true;
		s->repaired = false; /* it tells its exit code itself */
		s->code = atoi(field[0]);
		if (!s->refused)
			s->status = s->code;
	}
	/* Of a refused command not even the prefix was run: what it restores is still hidden. */
	if (!s->refused) {
		r = remember(s, field[1], field[2], strchr(field[3], 'r'));
		if (r < 0)
			return r;
	}
	shell_drop_key(s);
	pty_reset(s); /* or it would be echoed, if that is what the command has set */
	r = pty_type(s, second_line, sizeof(second_line) - 1, now_seconds() + 1);
	if (r < 0)
		return r;
	s->told = s->begun;
	s->second++;
	return 0;
}

/* Does the output end with the prompt, and then some whole lines of another? */
static bool is_cut(const struct shell *s, const char *prompt)
{
	size_t len = strlen(prompt);

	for (const char *p = prompt; (p = strchr(p, '\n')) && *++p;) {
		size_t part = (size_t)(p - prompt);

		if (s->out.len >= len + part && is_at(s, s->out.len - part, prompt, part) &&
		    memcmp(s->out.data + s->out.len - part - len, prompt, len) == 0)
			return true;
	}
	return false;
}

/*
 * With a prompt of several lines that can be seen (PROMPT_COMMAND sets PS1 again and again), which
 * bash writes line by line, we may have come in the middle of the second: a moment, or more on a
 * busy machine.
 */
#define PROMPT_SECONDS 0.1

static int drain_prompt(struct shell *s, const char *prompt)
{
	double end = now_seconds() + PROMPT_SECONDS;
	int r = pty_drain(s, PTY_ALL);

	while (r == 0 && is_cut(s, prompt) && now_seconds() < end) {
		struct pollfd p = { .fd = s->master, .events = POLLIN };

		(void)poll(&p, 1, (int)(PROMPT_SECONDS * 1000));
		r = pty_drain(s, PTY_ALL);
	}
	return r;
}

static int at_prompt(struct shell *s, char *const *field)
{
	int r;

	if (!s->second)
		return 0;
	r = drain_prompt(s, field[0]);
	if (r < 0)
		return r;
	s->second--;
	/* If one can be seen: that in front of the second line; the next may be still to come. */
	s->owed = drop_end(s, field[0]) < 2;
	if (s->begun != s->typed)
		return 0;
	s->idle = true;
	return shell_drain_aside(s);
}

static int checked(struct shell *s, char *const *field)
{
	int code = atoi(field[1]);

	s->refused = code && code < atoi(UNCHECKED);
	ply_text_free(&s->complaint);
	return text_set(&s->complaint, field[0], strlen(field[0]));
}

static int no_bash(struct shell *s, char *const *field)
{
	return fail(PLY_UNSUPPORTED,
		    *field[0] ? "'%s' is bash %s; a session needs 4.4 or newer"
			      : "'%s' is not bash%s; a session needs bash 4.4 or newer",
		    s->path, field[0]);
}

static const struct {
	char letter;
	int fields;
	int (*take)(struct shell *s, char *const *field);
} messages[] = { { 'B', 4, begun },	{ 'C', 2, checked }, { 'S', 5, ended },
		 { 'E', 1, at_prompt }, { 'V', 1, no_bash }, { 'R', 1, no_variable } };

/* The message at a place of those reported, if it is there as a whole: its length, or 0. */
static int take_message(struct shell *s, size_t at, size_t *ret_len)
{
	char *data = s->reported.data + at, *end = s->reported.data + s->reported.len;
	char *field[5], *p = data + 1;
	size_t kind = 0;

	*ret_len = 0;
	if (data == end)
		return 0;
	while (kind < ARRAY_SIZE(messages) && messages[kind].letter != *data)
		kind++;
	if (kind == ARRAY_SIZE(messages)) {
		/* One of those NULs, or somebody else wrote into the pipe: look for the next. */
		*ret_len = 1;
		return 0;
	}
	for (int i = 0; i < messages[kind].fields; i++) {
		char *nul = memchr(p, '\0', (size_t)(end - p));

		if (!nul)
			return 0;
		field[i] = p;
		p = nul + 1;
	}
	*ret_len = (size_t)(p - data);
	return messages[kind].take(s, field);
}

/* All whole ones. One that there was no memory for stays: it may be the last. */
static int take_messages(struct shell *s)
{
	size_t at = 0, len;
	int r;

	do {
		r = take_message(s, at, &len);
		at += r < 0 ? 0 : len;
	} while (r == 0 && len);
	buffer_cut(&s->reported, at);
	return r;
}

/*
 * What a pipe holds. Any program of the session may find the pipe and write into it without end:
 * we look at other things in between.
 */
#define REPORTS_SHARE ((size_t)65536)

int shell_take_reports(struct shell *s)
{
	for (size_t taken = 0;;) {
		ssize_t n;
		int r;

		r = take_messages(s);
		if (r < 0 || s->reports < 0 || taken >= REPORTS_SHARE)
			return r;
		if (s->reported.len > s->longest)
			s->reported.len = 0; /* no end of it will be the shell's */
		r = buffer_room(&s->reported, 4096);
		if (r < 0)
			return r;
		n = read(s->reports, s->reported.data + s->reported.len,
			 MIN(s->reported.room - s->reported.len, REPORTS_SHARE));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0) {
			/* It has ended, or is another program now (exec), or has closed it. */
			closep(&s->reports);
			s->reports = -1;
			return shell_descriptor(s, "114") > 0 ? mute(s, no_descriptors) : 0;
		}
		s->reported.len += (size_t)n;
		taken += (size_t)n;
	}
}
