/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * libplyfs: environments, the places where generated code lives and gets tested. An environment
 * is a directory that is a plyfs view, with command execution, persistent shells, test runs,
 * checkpoints that cost microseconds, and forks.
 *
 *     struct ply_env *env;
 *
 *     if (ply_env_new("local", &env) < 0 || ply_env_set(env, "workdir", "/src/project") < 0 ||
 *         ply_env_setup(env) < 0)
 *             errx(1, "%s", ply_error());
 *
 * Conventions. Functions return 0 (some: a documented positive outcome) or a negative enum
 * ply_status; ply_error() then has one sentence about it, for this thread. Strings are UTF-8 or
 * whatever bytes the user has; they are borrowed for the call unless said otherwise. Results are
 * malloced by us and freed with the function named beside the type; on failure they are left
 * empty. Times are seconds; a timeout of 0 or less means the environment's own. An object may be
 * used from several threads at once, except while it is being freed; different shells and
 * commands of one environment run at the same time. It belongs to the process that made it: a
 * child of fork() leaves it alone (freed there, it ends for its maker, too).
 *
 * Processes that an environment started end with it, also when the calling process is killed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLY_API __attribute__((visibility("default")))

/* ---- errors ---- */

enum ply_status {
	PLY_OK = 0,
	PLY_FAILED = -1,      /* what is none of the others: see the sentence */
	PLY_NO_MEMORY = -2,
	PLY_NOT_FOUND = -3,   /* no such file; Python: FileNotFoundError */
	PLY_IS_DIRECTORY = -4,
	PLY_DENIED = -5,      /* permission, a path that escapes; PermissionError */
	PLY_INVALID = -6,     /* an argument or option makes no sense; ValueError */
	PLY_UNKNOWN_ID = -7,  /* no such checkpoint; ValueError */
	PLY_STATE = -8,       /* not now: not set up, session already active; RuntimeError */
	PLY_TIMEOUT = -9,     /* where a timeout is not a result */
	PLY_SYNTAX = -10,     /* bash would not parse the command; nothing was run */
	PLY_SESSION_GONE = -11, /* the shell has died */
	PLY_NO_EXIT_CODE = -12, /* the command ran, its exit code could not be told */
	PLY_UNSUPPORTED = -13,  /* this kind cannot; NotImplementedError */
	PLY_COMMAND_FAILED = -14, /* a command that had to succeed did not */
	PLY_ENCODING = -15,   /* text was asked for and the bytes are not UTF-8 */
	PLY_REMOTE = -16,     /* the other machine's answer, or none */
	PLY_EXISTS = -17,     /* a name that is taken */
	PLY_NOT_HERE = -18,   /* the kernel, or our privileges, do not allow it on this machine */
	PLY_CANCELLED = -19,  /* ended because of ply_cancel_on; InterruptedError */
};

/* The sentence of the last failure in this thread, "" before the first. Valid until the next. */
PLY_API const char *ply_error(void);
/* "PLY_NOT_FOUND"; for people and bindings. */
PLY_API const char *ply_status_name(int status);
PLY_API const char *ply_version(void);
/*
 * From now on commands, test runs and starts of sessions of this thread end with PLY_CANCELLED,
 * everything that they started killed, as soon as fd is readable (an eventfd, a pipe); -1: no more.
 * Nothing is read from fd; it is borrowed until the next call. A session's commands have
 * ply_session_interrupt.
 */
PLY_API void ply_cancel_on(int fd);

/* ---- values ---- */

/* Bytes, with a NUL behind them that len does not count. */
struct ply_text {
	char *data;
	size_t len;
};
PLY_API void ply_text_free(struct ply_text *text);

struct ply_list {
	char **items; /* n of them, and NULL */
	size_t n;
};
PLY_API void ply_list_free(struct ply_list *list);

/* What a command did. */
struct ply_result {
	struct ply_text out; /* stdout; both, in order, when merged */
	struct ply_text err;
	int exit_code;	   /* -SIGNAL when a signal ended it, 124 after a timeout */
	bool timed_out;
	bool truncated;	   /* the output limit was reached; what came later is lost */
	bool out_of_memory;	   /* its memory limit ended it */
	bool too_many_processes; /* it ran into its limit of processes */
};
PLY_API void ply_result_free(struct ply_result *result);

/* Whatever a program prints, the sum of all counts fits an int64_t. */
#define PLY_TESTS_MAX (UINT64_C(1) << 60)

/* What a test run did. total is the sum of the three; all_passed: none failed, none in error. */
struct ply_tests {
	uint64_t passed, failed, errors, skipped; /* each at most PLY_TESTS_MAX */
	char runner[32]; /* whose report was understood: "pytest", "go", "junit-xml"; "" if none */
	int exit_code;
	bool timed_out;
	struct ply_text output; /* stdout, then stderr */
};
PLY_API void ply_tests_free(struct ply_tests *tests);
PLY_API double ply_tests_pass_rate(const struct ply_tests *tests); /* 0 when nothing ran */
PLY_API bool ply_tests_all_passed(const struct ply_tests *tests);

/*
 * Reads a test run's output (and, when xml is not NULL, the JUnit XML that it wrote) as run_tests
 * does. rule: NULL for "the closing lines of whatever runner it was", "chimera" for upstream's
 * three regular expressions. XML is preferred to the output, unless it breaks off and the output
 * says something; with nothing to go by, all is 0 and runner is "". Several runs in one output are
 * summed, runners joined: "pytest+jest". ret->output stays empty.
 */
PLY_API int ply_tests_parse(const char *output, size_t len, const char *xml, size_t xml_len,
			    const char *rule, struct ply_tests *ret);

/* ---- environments ---- */

struct ply_env;

/*
 * kind: "local", "git" (each checkpoint is a commit, too), "container", "remote", "cloud".
 * Nothing happens before setup.
 */
PLY_API int ply_env_new(const char *kind, struct ply_env **ret);
/*
 * Options, all before setup; PLY_INVALID for an unknown one or a value that makes no sense.
 *
 * every kind but the last two:
 *   workdir      directory of the environment. A plyfs view is used as it is, also one that
 *                several environments use; of a directory in a view checkpoints are of the whole
 *                view. An ordinary directory (made when missing) is imported and a view is mounted
 *                over it. With `from`, where to mount (default: a new directory below
 *                $XDG_RUNTIME_DIR)
 *   store, from  begin with a fork of this snapshot or branch (default main) of this store (default
 *                $PLYFS_STORE). PLY_UNKNOWN_ID: it has no such
 *   branch       the fork's name (default: a made-up one). PLY_EXISTS: it is taken
 *   at_cleanup   what becomes of it: "keep" (the view stays mounted; default where it was one),
 *                "write-back" (the differences go to the directory under the view, which is
 *                unmounted; default where we mounted over a directory), "unmount" (the branch
 *                stays in the store), "drop" (the branch goes, with the snapshots that were
 *                made on it; default with `from`). When it cannot be unmounted, since somebody is
 *                in it, cleanup fails and it stays mounted
 *   test_command default "python -m pytest"; test_report: a file (glob) of JUnit XML that it
 *                writes; test_rule: "chimera" (see ply_tests_parse)
 *   timeout      of commands, default 300
 *   session      "1": run commands in a persistent shell
 *   merge        "1": stderr goes to where stdout goes
 *   output_limit bytes kept of each stream of a command, default 1 GiB; 0: all
 *   exclude      ':'-separated names of directories, at every depth, that no restore touches
 *                (one that differs is copied back, so it takes what that takes); always among
 *                them: .chimera_checkpoints
 * git:
 *   commit       "all" (default: ignored and untracked files, too), "untracked", "tracked"
 *   ref          default refs/plyfs/BRANCH
 * container:
 *   runtime      "bwrap", "crun", "runc"; default: the first that works
 *   root         "1": workdir is the root filesystem; else it is mounted at `at` (/workspace)
 *                over the machine's own root, read-only. Sessions want runtime bwrap
 *   at           with root: where commands begin (default: the image's directory, or /). Paths
 *                are those that a command sees
 *   network      "1": the machine's network; default none
 *   memory, processes, cpu_time   limits of each command: bytes, count (of which the runtime
 *                takes two), seconds; 0: none
 * remote:  host, port (8080), api_key, tls ("0"), timeout (120), working_dir
 * cloud:   url, api_key, image, working_dir, keep_alive ("0"), init_timeout (120), sandbox_id
 */
PLY_API int ply_env_set(struct ply_env *env, const char *option, const char *value);
/*
 * The value in use; "" if there is none, or if it depends on other options. NULL for an unknown
 * option. Valid until the next set.
 */
PLY_API const char *ply_env_get(struct ply_env *env, const char *option);
PLY_API int ply_env_setup(struct ply_env *env);
/*
 * Ends its processes and does what at_cleanup says. Without setup: nothing. May be set up again (a
 * clone once it has got a workdir, or store and from).
 */
PLY_API int ply_env_cleanup(struct ply_env *env);
/* Cleans up when that was not done; then frees. NULL is fine. */
PLY_API void ply_env_free(struct ply_env *env);
PLY_API const char *ply_env_workdir(struct ply_env *env); /* absolute */

/* path: below workdir, or absolute and inside. PLY_NOT_FOUND, PLY_DENIED, PLY_IS_DIRECTORY. */
PLY_API int ply_env_read_file(struct ply_env *env, const char *path, struct ply_text *ret);
/* Makes parents, truncates, follows symlinks that stay inside. */
PLY_API int ply_env_write_file(struct ply_env *env, const char *path, const void *data, size_t len);
/*
 * Regular files that match, sorted bytewise: * ? [seq] [!seq] within a segment, ** for any number
 * of segments; names with a dot match like others. Not those in .chimera_checkpoints and
 * .chimera/checkpoints.
 */
PLY_API int ply_env_list_files(struct ply_env *env, const char *pattern, struct ply_list *ret);
/*
 * /bin/sh -c command in workdir; in the session's shell (NULL: "main") when there is one. It lasts
 * as long as something has its output open: what is to go on in the background writes elsewhere. A
 * timeout is a result: exit code 124, "Command timed out" in err, every process of it killed.
 */
PLY_API int ply_env_run(struct ply_env *env, const char *command, double timeout,
			const char *shell, struct ply_result *ret);
PLY_API int ply_env_run_tests(struct ply_env *env, struct ply_tests *ret);

/*
 * label may be NULL. *ret_id: decimal for local and container ("0", "1", ..., for each branch its
 * own, also over restarts), 40 hex digits for git. In the store a decimal checkpoint is the
 * snapshot with the label "BRANCH/7", or "BRANCH/7 LABEL".
 */
PLY_API int ply_env_checkpoint(struct ply_env *env, const char *label, struct ply_text *ret_id);
/*
 * id: of a checkpoint, "@LABEL" of one, or whatever `plyfs restore` takes; git: any commit.
 * PLY_UNKNOWN_ID. PLY_DENIED where workdir is / or HOME.
 */
PLY_API int ply_env_restore(struct ply_env *env, const char *id);
/* Back to what the last restore left. PLY_STATE when there was none. */
PLY_API int ply_env_undo(struct ply_env *env);
/*
 * A fork, set up, with the same options and no session. workdir: an empty directory, one to be
 * made, or NULL. It is dropped at its cleanup, unless at_cleanup is set to "keep" or "unmount".
 */
PLY_API int ply_env_clone(struct ply_env *env, const char *workdir, struct ply_env **ret);
/*
 * What changed from a to b (as restore takes them; NULL: the last snapshot, the present state), in
 * the whole view. form: "name-status" (NULL), "stat", "patch", "json". PLY_UNKNOWN_ID.
 */
PLY_API int ply_env_diff(struct ply_env *env, const char *a, const char *b, const char *form,
			 struct ply_text *ret);
/* Copies a file in or out; for remote kinds over the wire. Onto itself: PLY_INVALID. */
PLY_API int ply_env_upload(struct ply_env *env, const char *local, const char *path);
PLY_API int ply_env_download(struct ply_env *env, const char *path, const char *local);

/* The shells of an environment. */
PLY_API bool ply_env_has_session(struct ply_env *env);
PLY_API int ply_env_start_session(struct ply_env *env, const char *shell); /* NULL: /bin/bash */
PLY_API int ply_env_end_session(struct ply_env *env);
PLY_API int ply_env_create_shell(struct ply_env *env, const char *name);
PLY_API int ply_env_list_shells(struct ply_env *env, struct ply_list *ret);
/*
 * Output merged, without the final newline; 124 on timeout, the shell stays usable.
 * PLY_SESSION_GONE, with its last words in ret->out.
 */
PLY_API int ply_env_run_in_session(struct ply_env *env, const char *command, const char *shell,
				   double timeout, struct ply_result *ret);

/* ---- sessions: one persistent bash on a terminal of its own ---- */

struct ply_session;

/* env: where it lives; NULL: no environment, just this machine and the current directory. */
PLY_API int ply_session_new(struct ply_env *env, const char *name, struct ply_session **ret);
/* shell (/bin/bash), cwd, startup_source (again for each file), startup_timeout (20), env (K=V). */
PLY_API int ply_session_set(struct ply_session *s, const char *option, const char *value);
/*
 * ret_output (may be NULL): what the startup files printed; also with PLY_TIMEOUT and
 * PLY_SESSION_GONE. PLY_EXISTS.
 */
PLY_API int ply_session_start(struct ply_session *s, struct ply_text *ret_output);

enum ply_check {
	PLY_CHECK_SILENT, /* the exit code is told */
	PLY_CHECK_IGNORE, /* not even asked for: exit_code is -1 */
	PLY_CHECK_RAISE,  /* non-zero: PLY_COMMAND_FAILED, *ret filled all the same */
};
struct ply_session_run {
	const char *command;
	size_t len;		/* of command; 0: strlen */
	double timeout;		/* 0: none */
	enum ply_check check;
	bool interactive;	/* starts a program that will ask: until one of expect is seen */
	bool interactive_quit;	/* input that ends such a program */
	const char *const *expect; /* n_expect regular expressions (PCRE2), besides the prompt */
	size_t n_expect;
};
struct ply_observation {
	struct ply_text output; /* exact bytes */
	int exit_code;
	bool exit_code_known;
	bool truncated; /* as ply_result's; without an environment the limit is 1 GiB */
	int matched; /* index into expect of what ended it; -1: the command's end */
};
PLY_API void ply_observation_free(struct ply_observation *o);
/*
 * PLY_TIMEOUT: it goes on running (interrupt it; what it printed so far is in ret->output, and
 * comes again with what ends it: an interrupt, or the next run, which waits for it). PLY_SYNTAX:
 * nothing was run, bash's words are in the sentence and in ret->output. PLY_STATE: another thread
 * runs something. PLY_SESSION_GONE, with its last words in ret->output.
 */
PLY_API int ply_session_run(struct ply_session *s, const struct ply_session_run *run,
			    struct ply_observation *ret);
/*
 * May be called while another thread runs something. Ctrl-C up to `tries` times, then harder.
 * PLY_SESSION_GONE, when that was the shell's end (`exec program`): *ret_output has its last words.
 */
PLY_API int ply_session_interrupt(struct ply_session *s, double timeout, int tries,
				  struct ply_text *ret_output);
PLY_API bool ply_session_alive(struct ply_session *s);
PLY_API int ply_session_end(struct ply_session *s); /* its processes too */
PLY_API void ply_session_free(struct ply_session *s);

/* ---- SWEEnv: one deployment, one repository, one session ---- */

struct ply_swe;

struct ply_swe_hooks { /* NULL members are skipped; negative results end the caller with them */
	void *arg;
	int (*on_init)(void *arg, struct ply_swe *swe);
	int (*on_start_deployment)(void *arg);
	int (*on_copy_repo_started)(void *arg, const char *repo_name);
	int (*on_install_env_started)(void *arg); /* never fired; upstream has it */
	int (*on_environment_startup)(void *arg);
	int (*on_close)(void *arg);
};

/*
 * config: YAML or JSON text with the fields of SWE-agent's EnvironmentConfig; unknown keys are
 * PLY_INVALID, deployments that are not ours PLY_UNSUPPORTED. All of it but paths may be left out:
 *   deployment  type "local" (default) or "container": an environment of that kind with its options
 *               workdir (local: also called root), store, from, branch, at_cleanup, ...; without
 *               workdir and from an empty one that goes at close. "remote": auth_token, host, port
 *               of a SWE-ReX server. "dummy"
 *   repo        null, or type "local" (path), "github" (github_url), "preexisting" or
 *               "swesmith_preexisting" (repo_name); base_commit; or a string (see swe_config.h)
 *   post_startup_commands, post_startup_command_timeout, name
 *   reset       "snapshot": a restore of what start left (default where there are snapshots);
 *               "commands": SWE-agent's git commands
 * Paths of the environment begin at its root: "/repo/x" is WORKDIR/repo/x of a local deployment.
 */
PLY_API int ply_swe_from_config(const char *config, size_t len, struct ply_swe **ret);
PLY_API int ply_swe_from_file(const char *path, struct ply_swe **ret);
PLY_API void ply_swe_free(struct ply_swe *swe); /* closes */
PLY_API int ply_swe_add_hook(struct ply_swe *swe, const struct ply_swe_hooks *hooks);
PLY_API int ply_swe_start(struct ply_swe *swe);
PLY_API int ply_swe_reset(struct ply_swe *swe);
PLY_API int ply_swe_hard_reset(struct ply_swe *swe);
PLY_API int ply_swe_close(struct ply_swe *swe);

enum ply_swe_check { PLY_SWE_IGNORE, PLY_SWE_WARN, PLY_SWE_RAISE };
struct ply_swe_communicate {
	double timeout; /* 0: 25 */
	enum ply_swe_check check;
	const char *error_msg; /* NULL: "Command failed" */
	bool set_last_action;  /* exports LAST_ACTION afterwards */
	bool keep_open;	       /* check raise does not close the environment */
};
/*
 * 1: check was PLY_SWE_WARN and it failed, ply_error() says how. *ret (may be NULL) has what was
 * printed also after PLY_COMMAND_FAILED and PLY_TIMEOUT (it goes on running: interrupt it).
 */
PLY_API int ply_swe_communicate(struct ply_swe *swe, const char *input,
				const struct ply_swe_communicate *options, struct ply_text *ret);
PLY_API int ply_swe_interrupt(struct ply_swe *swe);
/* path: absolute in the environment; relative: in the repository (PLY_INVALID without one). */
PLY_API int ply_swe_read_file(struct ply_swe *swe, const char *path, struct ply_text *ret);
PLY_API int ply_swe_write_file(struct ply_swe *swe, const char *path, const void *data, size_t len);
/* n pairs: name, value, name, value. */
PLY_API int ply_swe_set_env(struct ply_swe *swe, const char *const *pairs, size_t n);
/*
 * /bin/sh -c command beside the session, without a timeout. env: n_env "K=V", or NULL: inherited.
 * check: PLY_COMMAND_FAILED on non-zero, *ret (may be NULL) filled all the same.
 */
PLY_API int ply_swe_execute(struct ply_swe *swe, const char *command, bool check,
			    const char *const *env, size_t n_env, const char *cwd,
			    struct ply_result *ret);
/* The environment beneath, for checkpoints; NULL before start and for remote deployments. */
PLY_API struct ply_env *ply_swe_env(struct ply_swe *swe);
/* A word for the shell, as Python's shlex.quote. */
PLY_API int ply_quote(const char *word, struct ply_text *ret);

#ifdef __cplusplus
}
#endif
