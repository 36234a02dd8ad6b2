/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the files of the session engine share (session.h): the struct, and who does what. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <termios.h>

#include "env/expect.h"
#include "env/session.h"

struct buffer {
	char *data;
	size_t len, room;
};

/* An interrupt under way: see session_wait.c. */
struct stop {
	const struct shell_interrupt *how;
	int step;      /* of the ladder */
	int samples;   /* looks at a shell in front, before this step, that count */
	double starts; /* until when others do not count; 0: not looked yet */
	uint64_t ran;  /* CPU time of the shell at the last look */
	pid_t front;   /* the process group last seen in front of the shell; 0: none */
	uint64_t typed;	 /* the last trigger we know of */
	double typed_at; /* since when */
	uint64_t typed_ran; /* CPU time of the shell then */
	double next;   /* when the next step is due */
	double look;   /* when to look whether the shell is back */
	double gap;    /* until the look after that */
	bool probed;   /* in this step */
	bool done;     /* under shell.lock */
	int result;    /* when done */
	char why[128]; /* the sentence of it */
};

struct shell {
	struct proc proc;
	int master;  /* our end of the terminal; does not block */
	int slave;   /* the shell's end, to flush what it has not read */
	int text;    /* memfd: what is to be run */
	int reports; /* pipe from the shell; does not block; -1 when the shell closed it */
	int wake;    /* eventfd: look at asked and ending */
	pid_t group; /* the shell's process group, as the terminal tells it; 0 before it is known */
	int children, siblings; /* /proc's lists: the shell's, its parent's; -1 before its prompt */
#define CHILDREN_NOTED 1024
	char before[CHILDREN_NOTED], beside[CHILDREN_NOTED]; /* these when it was given a command */
	char *path;  /* immutable */
	struct termios modes; /* immutable: of the terminal when a command begins */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool owned;	     /* under lock: a thread drives it; all that follows is that thread's */
	bool ending;	     /* under lock: shell_hang_up waits for it */
	double patience;     /* under lock: hung up, it has time until then; 0: not, or it ends */
	struct stop *asked;  /* under lock: another thread's interrupt */

	atomic_bool gone;    /* the shell has ended */
	const char *mute;    /* why it is gone for us though it lives; NULL: it is not */
	bool hung_up;	     /* the terminal is of no use any more */
	bool idle;	     /* at its prompt, all that was typed is answered */
	uint64_t typed;	     /* number of the last trigger typed */
	uint64_t begun;	     /* of the last that the shell has begun */
	uint64_t behind;     /* typed before that one, and to be read behind it */
	uint64_t told;	     /* of the last whose end it has told */
	uint64_t second;     /* second lines typed that are not answered */
	bool stale;	     /* since then it read one again whose command was gone */
	uint64_t command;    /* of the one that runs what the user wants */
	bool over;	     /* that command has ended */
	bool refused;	     /* it was not run: bash could not parse it */
	bool repaired;	     /* its exit code was lost */
	bool lost;	     /* was found at its prompt though the command is not over */
	double lost_at;	     /* when to look whether it is; 0: there is no need */
	double lost_gap;     /* until the look after that */
	double line_at;	     /* when to look for a line that is not answered; 0: all are */
	size_t cut;	     /* what came after a SIGKILL begins here in out; SIZE_MAX: none */
	size_t mark;	     /* an aborted command's prompts lie behind this place in out, */
	size_t prompts;	     /* so many at most */
	bool pressed;	     /* Ctrl-C was typed: where it is just a key, it may lie unread, */
	bool input;	     /* as may what was typed for a program */
	bool owed;	     /* a prompt that can be seen was still to come when it got idle */
	size_t changed_at;   /* since the last scan something was taken out of out here; SIZE_MAX */
	uint64_t limit;	     /* immutable: of out; 0: none */
	pid_t inner;	     /* group of a shell within ours that waits for a command; 0: none */
	double inner_at;     /* when to look after what may be one; 0: nothing may */
	double inner_gap;    /* until it is asked again */
	size_t inner_asked;  /* prompts seen when an empty line was typed for another; 0: none */
	size_t partial;	     /* immutable: told of each end of an output that goes on; 0: all */
	bool truncated;	     /* out was longer: after `limit` bytes some are missing */
	int code;	     /* exit code of the command, when over */
	int status;	     /* $? for the next */
	char flags[8];	     /* those of x and v that are to be set for the next */
	struct ply_text ps1; /* the user's PS1, which is hidden at the prompt; empty: it is not */
	struct ply_text prompt;	   /* as it would be printed */
	struct ply_text complaint; /* what bash said when it refused */
	struct buffer out;	   /* output not yet handed out */
	struct buffer reported;	   /* from reports, not a whole message yet */
	size_t longest;		   /* that one can be */
};

/* ---- session_pty.c ---- */

int pty_open(struct shell *s);
void pty_close(struct shell *s);
void pty_reset(struct shell *s); /* modes as at the start */
void pty_flush(struct shell *s); /* forgets what was typed and not read */
/* Process group in the foreground; -1: none. */
pid_t pty_foreground(struct shell *s);
/*
 * kill, for what is of this terminal's session: what was has perhaps ended, and its number may be a
 * stranger's. (A group whose first process has ended keeps its number to itself.)
 */
int pty_signal(struct shell *s, pid_t whom, int signal);
/*
 * Types what fits, and leaves the rest in *data and *len. True: nothing is left to be typed, or it
 * is hung up, and the end of the shell is what will be told.
 */
bool pty_write(struct shell *s, const char **data, size_t *len);
/* A terminal whose reader is slow does not always wake its writer, who looks again then. */
#define PTY_LOOK_MS 50
/*
 * Types what is ours; what does not fit waits until `end` while output is taken, and for nothing
 * else: a moment. PLY_TIMEOUT, with pty_unread's sentence.
 */
int pty_type(struct shell *s, const char *data, size_t len, double end);
int pty_unread(void);
/* Appends what can be read now to s->out, at most `most` bytes. */
int pty_drain(struct shell *s, size_t most);
/* All that was written before now: the kernel's buffers (640 KiB a terminal) hold no more. */
#define PTY_ALL (1024 * 1024)

int buffer_room(struct buffer *b, size_t len); /* makes room for len more */
void buffer_cut(struct buffer *b, size_t len); /* takes away the first len bytes */
/* The first len bytes, of which `keep` are wanted, as a text; they are gone from b: not full. */
int buffer_take(struct buffer *b, size_t keep, size_t len, struct ply_text *ret);

/* ---- session_shell.c ---- */

#define SHELL_PROMPT "SHELLPS1PREFIX" /* PS1, as the reference sets it */
int shell_spawn(struct shell *s, const struct shell_options *o);
/* What the first command of a shell is. */
int shell_first_command(const struct shell_options *o, struct ply_text *ret);
enum shell_check { CHECK_SYNTAX, NO_CHECK };
/* Makes the shell run text. */
int shell_type_command(struct shell *s, const char *text, size_t len, enum shell_check check);
/* Makes it tell whether it is at its prompt; hard: also if `builtin` is a function now. */
int shell_type_probe(struct shell *s, bool hard);
/*
 * A Ctrl-C that nobody has read as a key would be the first character of what is typed next, or
 * what the shell reads the moment it is back. Where a line of ours is unread it stays: the shell
 * may be in the middle of that.
 */
void shell_drop_key(struct shell *s);
/* Takes what it reported. PLY_UNSUPPORTED: it is no bash; PLY_SESSION_GONE: it cannot any more. */
int shell_take_reports(struct shell *s);
/* Takes len bytes out of the output. */
void shell_drop(struct shell *s, size_t at, size_t len);
/* Is this descriptor open in it? 1 or 0; < 0: /proc does not tell. */
int shell_descriptor(const struct shell *s, const char *number);
/* PLY_SESSION_GONE: of a shell that came back without a word its limit of descriptors says why. */
int shell_check_files(struct shell *s);
#define SHELL_MARK "37" /* open as long as a command is parsed or runs */

/* ---- session_wait.c ---- */

#define MATCHED 1 /* outcomes of shell_wait */
#define INNER 2

struct goal {
	double end;	       /* < 0: none */
	struct expect *expect; /* NULL: none */
	int cancel;
	struct stop *stop;     /* NULL: none yet */
	bool mine;	       /* its failure ends the waiting */
	struct expect_match match; /* set with MATCHED */
};
/*
 * Until the shell is idle (0), a pattern was seen (MATCHED), a shell within it waits for a command
 * (INNER, and s->inner), PLY_TIMEOUT, PLY_CANCELLED, PLY_SESSION_GONE. All output up to there is in
 * s->out. Serves interrupts. By the owner.
 */
int shell_wait(struct shell *s, struct goal *g);
/*
 * Types for a program, which may read nothing for ever: what ends a shell_wait ends this as well,
 * with its status; an interrupt too, which the next shell_wait carries out (0). What was not typed
 * by then never is.
 */
int shell_type_input(struct shell *s, struct goal *g, const char *data, size_t len);
void stop_begin(struct stop *stop, const struct shell_interrupt *how);
int shell_gone(struct shell *s); /* PLY_SESSION_GONE and its sentence */

/* ---- session_procs.c ---- */

void shell_note_children(struct shell *s); /* those that the command to come has not started */
/*
 * With the shell in front, does its command wait for programs in the shell's own group? Those that
 * it has started itself, not what an earlier one left there.
 */
bool shell_waits_for_own(struct shell *s);
void shell_signal_own(struct shell *s, int signal);
/* Takes what process substitutions of a command that is over are about to print. */
int shell_drain_aside(struct shell *s);

/* ---- session_inner.c ---- */

/* Is another program in its place, by exec? */
bool shell_is_replaced(const struct shell *s);
void inner_forget(struct shell *s);
void inner_take_back(struct shell *s); /* at the end of a wait */
/* Looks for one; INNER, when it waits. *ret_next: brought forward to when to come again. */
int inner_tick(struct shell *s, bool news, double *ret_next);
bool inner_waits(struct shell *s); /* still */
int inner_type(struct shell *s, struct goal *g, const char *text, size_t len);
/* Of its last command. PLY_NO_EXIT_CODE; PLY_SESSION_GONE and its kin. */
int inner_exit_code(struct shell *s);
