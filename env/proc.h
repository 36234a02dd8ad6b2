/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Processes of an environment. None is started by the caller itself: a *keeper*, a small program
 * of its own beside the caller (one per environment), starts them, and is there to end them and to
 * clean up when the caller is gone, however that happened.
 *
 * Each command gets a *reaper* (a fork of the keeper, PR_SET_CHILD_SUBREAPER) above it, so nothing
 * that it starts can leave its tree: not by setsid, not by a double fork. Killing a command kills
 * the tree. What a command leaves running in the background stays until its environment ends.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "env/plyfs.h"

struct keeper;

/*
 * Starts the keeper program, which is no child of the caller (of its init, or subreaper), so no
 * handler of SIGCHLD and no wait for any child meets it. Fine with many threads. The keeper ends
 * with the process that called this: a program that turns into a daemon does so first.
 * PLY_NOT_HERE when the kernel does not show processes their children.
 */
int keeper_start(struct keeper **ret);
/*
 * What the keeper runs (each a NULL-terminated argv of words that are not empty, in order, after
 * every process is dead) when the caller goes away without keeper_end: unmounting, dropping.
 * Replaces what was set before.
 */
int keeper_on_death(struct keeper *k, const char *const *const *argvs, size_t n);
/*
 * Kills every process that is left, and waits for them; the keeper stays, with its on_death: for
 * taking down what they were in. PLY_FAILED: some cannot be killed, or the keeper is gone.
 */
int keeper_kill(struct keeper *k);
/*
 * What is set with keeper_on_death is not run before fd, a pipe's read end, is hung up: the caller
 * dies in the middle of something that its helpers finish, and it is that which has to be undone.
 * fd is borrowed for the call; replaces the one before; -1: nothing to wait for.
 */
int keeper_hold(struct keeper *k, int fd);
/* Kills every process that is left, waits for them and for the keeper. on_death is not run. */
void keeper_end(struct keeper *k);
/*
 * From now on keeper_start starts this program (borrowed for ever) with the name "plyfs-keeper":
 * for programs that stand alone and are their own keeper (keeper.h). Before any thread.
 */
void keeper_is(const char *path);
/*
 * From now on this process may have as many descriptors open as its hard limit allows. Keepers, and
 * so commands, get the limit that it had: what uses select, or closes every number up to the limit,
 * would suffer. Before any thread.
 */
void keeper_raise_files(void);
/* How many descriptors a program that it starts may have open; UINT64_MAX: nobody can tell. */
uint64_t keeper_files(const struct keeper *k);

struct proc_limits { /* 0: none. By a cgroup where permitted, else by rlimits: see group.h */
	uint64_t memory;    /* bytes, of all processes together */
	uint64_t processes; /* of the tree */
	uint64_t cpu_time;  /* seconds, per process */
};

struct proc_options {
	const char *const *argv;
	const char *const *env; /* NULL: the caller's */
	const char *cwd;	/* NULL: the caller's */
	int fds[3];		/* stdin, stdout, stderr: borrowed; -1: /dev/null */
	bool terminal;		/* fds[0] becomes its controlling terminal */
	struct proc_limits limits;
	int *ret_exec_error;	/* set when exec fails, to its errno; NULL: it is not asked for */
};

/*
 * A command leads a session and a process group of its own, with default signals and no
 * descriptors but 0 to 2. One thread at a time waits for it; others may signal, kill and count
 * meanwhile.
 */
struct proc {
	int fd;	   /* readable when there is news; poll it */
	pid_t pid; /* of the command itself */
	bool ended;
	int status; /* as of waitpid */
	bool out_of_memory, too_many_processes;
};

/*
 * argv[0] is looked up in the PATH of env. PLY_NOT_FOUND, PLY_DENIED as exec says (the program; or
 * the directory, the sentence tells which); PLY_FAILED when the keeper is gone.
 */
int proc_spawn(struct keeper *k, const struct proc_options *o, struct proc *ret);
/* Until the command itself has ended (p->ended), or PLY_TIMEOUT. < 0: for ever; 0: polls. */
int proc_wait(struct proc *p, double seconds);
/* SIGKILL to the tree until nothing of it is left; then p->ended. PLY_FAILED: some cannot be. */
int proc_kill(struct proc *p);
/*
 * Takes a pipe of the command's output that nobody reads any more (its read end, non-blocking,
 * given; -1: none): what still runs may print on, to nowhere. Two at most.
 */
void proc_discard(struct proc *p, int fd);
/*
 * Forgets the command. What still runs of it goes on as a background process of the environment.
 * A zeroed or released struct is fine.
 */
void proc_release(struct proc *p);

/*
 * The usual way: a command whose output is collected. Ends when the command itself has ended and
 * what its pipes held was read (a background process that keeps them open does not hold us up), or,
 * with all_output, when nobody has them open any more, as Python's subprocess.run does; or at the
 * timeout (<= 0: none), when the tree is killed: then timed_out, exit code 124, and what it printed
 * so far. limit: bytes kept per stream, 0: no limit.
 */
struct proc_capture {
	bool merge;	/* stderr into stdout */
	bool all_output; /* of what it leaves in the background, too */
	uint64_t limit;
	double timeout;
	const void *input; /* for stdin; NULL: /dev/null */
	size_t input_len;
};
int proc_run(struct keeper *k, const struct proc_options *o, const struct proc_capture *c,
	     struct ply_result *ret);
/* A descriptor, given, that reads these bytes: for proc_options.fds[0]. */
int proc_input(const void *data, size_t len, int *ret);
