/* SPDX-License-Identifier: Apache-2.0 */

/* Commands below a keeper: nothing leaves the tree, nothing survives, output is exact. */

#include "env/proc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "store/base/util.h"
#include "tests/unit/run.h"

static struct keeper *keeper;
static char dir[64]; /* scratch; the commands' working directory */

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())

static void setup(void)
{
	strcpy(dir, "/tmp/plyfs-proc-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ok(keeper_start(&keeper));
}

static void teardown(void)
{
	char command[128];

	keeper_end(keeper);
	keeper = NULL;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

static const struct proc_capture plain = { 0 };

/* sh -c script in the scratch directory. */
static struct ply_result sh(const char *script, const struct proc_capture *c)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	struct proc_options o = { .argv = argv, .cwd = dir };
	struct ply_result result = { 0 };

	ok(proc_run(keeper, &o, c, &result));
	return result;
}

static void spawn(const char *script, struct proc *p)
{
	const char *argv[] = { "sh", "-c", script, NULL };
	struct proc_options o = { .argv = argv, .cwd = dir, .fds = { -1, -1, -1 } };

	ok(proc_spawn(keeper, &o, p));
}

/*
 * Processes, zombies aside, whose command line holds a word. What is about to become another
 * program has its parent's line at first and then, for a moment, none: only of what has ended, or
 * after a wait (eventually), is the number certain.
 */
static int running(const char *word)
{
	DIR *proc = opendir("/proc");
	struct dirent *e;
	int found = 0;

	ck_assert_ptr_nonnull(proc);
	while ((e = readdir(proc))) {
		char path[300], line[4096];
		_cleanup_close_ int fd = -1;
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%s/cmdline", e->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd >= 0 ? read(fd, line, sizeof(line)) : 0;
		if (n > 0 && memmem(line, (size_t)n, word, strlen(word)) &&
		    atoi(e->d_name) != getpid())
			found++;
	}
	closedir(proc);
	return found;
}

/*
 * What has to become true soon; the limit is for a broken program, not a measure. It is asked once
 * more only after it was false: a count that still moves would be another one then.
 */
#define eventually(condition)                                                                  \
	do {                                                                                   \
		bool is_ = (condition);                                                        \
		for (int tries_ = 0; !is_ && tries_ < 3000; tries_++) {                        \
			usleep(10000);                                                         \
			is_ = (condition);                                                     \
		}                                                                              \
		ck_assert_msg(is_, "in 30 s still not: %s", #condition);                       \
	} while (0)

static int open_fds(void)
{
	DIR *fds = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(fds))
		n++;
	closedir(fds);
	return n;
}

/* A word that no other process has, nor as a part of its own: sleeps of it are ours. */
static const char *mark(void)
{
	static char word[32];

	if (!*word) /* a fork of ours means the same */
		snprintf(word, sizeof(word), "6%07d.25", getpid());
	return word;
}

static char *marked(const char *format)
{
	static char script[1024];
	const char *m = mark();

	snprintf(script, sizeof(script), format, m, m, m, m);
	return script;
}

/* ---- output, input, exit codes ---- */

START_TEST(output_and_exit_code_are_exact)
{
	struct ply_result r = sh("printf 'a\\0b\\n'; echo bad >&2; exit 7", &plain);

	ck_assert_uint_eq(r.out.len, 4);
	ck_assert_mem_eq(r.out.data, "a\0b\n", 5);
	ck_assert_str_eq(r.err.data, "bad\n");
	ck_assert_int_eq(r.exit_code, 7);
	ck_assert(!r.timed_out && !r.truncated && !r.out_of_memory && !r.too_many_processes);
	ply_result_free(&r);
}
END_TEST

START_TEST(a_signal_is_a_negative_exit_code)
{
	struct ply_result r = sh("kill -KILL $$", &plain);

	ck_assert_int_eq(r.exit_code, -SIGKILL);
	ck_assert_str_eq(r.out.data, "");
	ply_result_free(&r);
}
END_TEST

START_TEST(merged_output_is_in_order)
{
	const struct proc_capture c = { .merge = true };
	struct ply_result r = sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done", &c);

	ck_assert_str_eq(r.out.data, "o1\ne1\no2\ne2\no3\ne3\n");
	ck_assert_uint_eq(r.err.len, 0);
	ply_result_free(&r);
}
END_TEST

START_TEST(a_hundred_megabytes_come_whole)
{
	struct ply_result r = sh("head -c 104857600 /dev/zero | tr '\\0' x", &plain);

	ck_assert_uint_eq(r.out.len, 104857600);
	for (size_t i = 0; i < r.out.len; i += 4093)
		ck_assert_int_eq(r.out.data[i], 'x');
	ply_result_free(&r);
}
END_TEST

START_TEST(both_streams_at_once_do_not_block)
{
	struct ply_result r =
		sh("head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait", &plain);

	ck_assert_uint_eq(r.out.len, 3000000);
	ck_assert_uint_eq(r.err.len, 3000000);
	ply_result_free(&r);
}
END_TEST

START_TEST(the_limit_cuts_and_says_so)
{
	struct proc_capture c = { .limit = 1000000 };
	struct ply_result r = sh("head -c 5000000 /dev/zero; echo ok >&2", &c);

	ck_assert_uint_eq(r.out.len, 1000000);
	ck_assert_int_eq(r.exit_code, 0);
	ck_assert(r.truncated);
	ck_assert_str_eq(r.err.data, "ok\n");
	ply_result_free(&r);

	r = sh("head -c 1000000 /dev/zero", &c);
	ck_assert_uint_eq(r.out.len, 1000000);
	ck_assert(!r.truncated);
	ply_result_free(&r);
}
END_TEST

START_TEST(input_reaches_the_command)
{
	_cleanup_free_ char *input = malloc(5000000);
	struct proc_capture c = { .input = input, .input_len = 5000000 };
	struct ply_result r;

	for (int i = 0; i < 5000000; i++)
		input[i] = (char)(i % 251);
	r = sh("cat", &c);
	ck_assert_uint_eq(r.out.len, 5000000);
	ck_assert_mem_eq(r.out.data, input, 5000000);
	ply_result_free(&r);

	r = sh("read -r nothing; exit 3", &c); /* what does not read it all harms nobody */
	ck_assert_int_eq(r.exit_code, 3);
	ply_result_free(&r);
	r = sh("cat; readlink /proc/self/fd/0", &plain);
	ck_assert_str_eq(r.out.data, "/dev/null\n");
	ply_result_free(&r);
}
END_TEST

/* ---- starting ---- */

START_TEST(what_cannot_be_started_is_told)
{
	const char *absent[] = { "no-such-program-here", NULL }, *nothing[] = { NULL };
	const char *file[] = { "./file", NULL }, *true_argv[] = { "true", NULL };
	struct proc_options o = { .argv = absent, .cwd = dir };
	struct ply_result r = { 0 };
	int fds = open_fds();

	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(ply_error(), "no-such-program-here"));
	r = sh("echo x >file", &plain);
	ply_result_free(&r);
	o.argv = file;
	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_DENIED);
	o.argv = true_argv;
	o.cwd = "/no/such/place";
	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(ply_error(), "/no/such/place"));
	o.cwd = "/etc/passwd";
	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_NOT_FOUND);
	o.cwd = dir;
	o.argv = nothing;
	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_INVALID);
	ck_assert_ptr_null(r.out.data);
	ck_assert_int_eq(open_fds(), fds);
}
END_TEST

START_TEST(environment_and_path_are_those_given)
{
	const char *argv[] = { "tool", "a b", "", NULL };
	const char *env[] = { "A=1", NULL, NULL };
	struct proc_options o = { .argv = argv, .env = env, .cwd = dir };
	struct ply_result r = sh("printf '#!/bin/sh\\necho \"$A|$#|$1|$HOME|$(pwd)\"' >tool; "
				 "chmod +x tool",
				 &plain);
	char path[128], said[128];

	ply_result_free(&r);
	snprintf(path, sizeof(path), "PATH=%s:/usr/bin:/bin", dir);
	snprintf(said, sizeof(said), "1|2|a b||%s\n", dir);
	env[1] = path;
	ok(proc_run(keeper, &o, &plain, &r));
	ck_assert_str_eq(r.out.data, said);
	ply_result_free(&r);
}
END_TEST

START_TEST(an_environment_of_a_megabyte_passes)
{
	enum { N = 20 };
	const char *argv[] = { "sh", "-c", "env | wc -c", NULL };
	const char *env[N + 2] = { "PATH=/usr/bin:/bin" };
	struct proc_options o = { .argv = argv, .env = env };
	struct ply_result r;

	for (int i = 0; i < N; i++) {
		char *word = malloc(60000);

		memset(word, 'x', 59999);
		word[59999] = 0;
		word[snprintf(word, 8, "V%d", i)] = '=';
		env[i + 1] = word;
	}
	ok(proc_run(keeper, &o, &plain, &r));
	ck_assert_int_gt(atoi(r.out.data), N * 60000);
	ply_result_free(&r);
	for (int i = 0; i < N; i++)
		free((char *)env[i + 1]);
}
END_TEST

START_TEST(commands_start_with_default_signals_and_no_descriptors)
{
	struct ply_result r, other;
	sigset_t set;
	int leaked[3];

	/* The caller's are anything but that, before its keeper starts as well. */
	keeper_end(keeper);
	for (int i = 0; i < 3; i++)
		leaked[i] = open("/dev/zero", O_RDONLY); /* no O_CLOEXEC */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	ok(keeper_start(&keeper));
	r = sh("ls /proc/self/fd | wc -l; ls -l /proc/self/fd | grep -c zero", &plain);
	other = sh("grep -E 'Sig(Ign|Blk)' /proc/self/status; ps -o sid=,pid= $$ | xargs", &plain);
	signal(SIGCHLD, SIG_DFL);
	ck_assert_str_eq(r.out.data, "4\n0\n"); /* 0 to 2, and the one that ls reads */
	ck_assert_ptr_nonnull(strstr(other.out.data, "SigBlk:\t0000000000000000"));
	ck_assert_ptr_nonnull(strstr(other.out.data, "SigIgn:\t0000000000000000"));
	ply_result_free(&r);
	ply_result_free(&other);
	for (int i = 0; i < 3; i++)
		close(leaked[i]);
}
END_TEST

START_TEST(the_callers_children_are_its_own)
{
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(5);
	for (int i = 0; i < 3; i++) {
		struct keeper *k;

		ok(keeper_start(&k));
		keeper_end(k);
	}
	ck_assert_int_eq(waitpid(-1, &status, 0), child);
	ck_assert_int_eq(WEXITSTATUS(status), 5);
	ck_assert_int_eq(waitpid(-1, &status, 0), -1);
	ck_assert_int_eq(errno, ECHILD);
}
END_TEST

START_TEST(closed_standard_descriptors_are_no_trouble)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		const char *argv[] = { "sh", "-c", "cat; echo out; echo err >&2", NULL };
		const struct proc_capture c = { .input = "in\n", .input_len = 3 };
		const struct proc_capture none = { 0 };
		struct proc_options o = { .argv = argv };
		struct ply_result r, s;
		struct keeper *k;

		(void)close_range(0, ~0u, 0);
		if (keeper_start(&k) < 0 || proc_run(k, &o, &c, &r) < 0 ||
		    proc_run(k, &o, &none, &s) < 0)
			_exit(1);
		if (strcmp(r.out.data, "in\nout\n") || strcmp(r.err.data, "err\n"))
			_exit(2);
		_exit(strcmp(s.out.data, "out\n") || strcmp(s.err.data, "err\n") ? 3 : 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
}
END_TEST

/* ---- the tree ---- */

START_TEST(a_timeout_kills_the_tree_and_keeps_the_output)
{
	/* Enough for what it prints, on a busy machine, too. */
	const struct proc_capture c = { .timeout = 2 };
	struct ply_result r =
		sh(marked("echo before; trap '' TERM; sleep %s & (setsid sleep %s &); "
			  "setsid sh -c 'trap \"\" TERM HUP; sleep %s & sleep %s' & wait"),
		   &c);

	ck_assert(r.timed_out);
	ck_assert_int_eq(r.exit_code, 124);
	ck_assert_str_eq(r.out.data, "before\n");
	ck_assert_int_eq(running(mark()), 0);
	ply_result_free(&r);
}
END_TEST

START_TEST(stopped_processes_are_killed)
{
	const struct proc_capture c = { .timeout = 0.3 };
	struct ply_result r =
		sh(marked("sleep %s & kill -STOP $!; kill -STOP $PPID; kill -STOP $$"), &c);

	ck_assert_int_eq(r.exit_code, 124);
	ck_assert_int_eq(running(mark()), 0);
	ply_result_free(&r);
}
END_TEST

START_TEST(a_background_process_does_not_hold_up)
{
	struct ply_result r = sh(marked("echo now; (while :; do echo more; sleep 0.01; done) & "
					"sleep %s &"),
				 &plain);

	ck_assert_int_eq(strncmp(r.out.data, "now\n", 4), 0);
	ck_assert_int_eq(r.exit_code, 0);
	ck_assert(!r.timed_out);
	eventually(running(mark()) == 2); /* both go on, until their environment ends */
	keeper_end(keeper);
	ck_assert_int_eq(running(mark()), 0);
	ok(keeper_start(&keeper));
	ply_result_free(&r);
}
END_TEST

START_TEST(a_background_process_may_print_to_nobody)
{
	/* Nobody reads any more when it begins. */
	const char *const script = "(until [ -e go ]; do sleep 0.01; done; "
				   "head -c 300000 /dev/zero; echo late >&2; >done) &";
	const struct proc_capture merged = { .merge = true };
	char go[80], path[80];

	snprintf(go, sizeof(go), "%s/go", dir);
	snprintf(path, sizeof(path), "%s/done", dir);
	for (int i = 0; i < 2; i++) {
		struct ply_result r = sh(script, i ? &merged : &plain);

		ck_assert_int_eq((int)r.out.len, 0);
		ck_assert_int_eq(mkdir(go, 0700), 0);
		eventually(access(path, F_OK) == 0);
		ck_assert_int_eq(unlink(path), 0);
		ck_assert_int_eq(rmdir(go), 0);
		ply_result_free(&r);
	}
}
END_TEST

START_TEST(killing_one_command_leaves_the_others)
{
	struct proc a = { 0 }, b = { 0 };
	char others[32], script[80];

	snprintf(others, sizeof(others), "7%s", mark() + 1); /* not in a's words */
	snprintf(script, sizeof(script), "sleep %s & wait", others);
	spawn(marked("sleep %s & (setsid sleep %s &); wait"), &a);
	spawn(script, &b);
	eventually(running(mark()) == 3);
	eventually(running(others) == 2);
	ok(proc_kill(&a));
	ck_assert(a.ended);
	ck_assert_int_eq(running(mark()), 0);
	eventually(running(others) == 2); /* its sleep may have been about to start */
	ck_assert_int_eq(proc_wait(&b, 0), PLY_TIMEOUT);
	ok(proc_kill(&b));
	ck_assert_int_eq(b.status, SIGKILL);
	ok(proc_kill(&b)); /* once more: nothing is left */
	proc_release(&a);
	proc_release(&b);
	proc_release(&b);
}
END_TEST

START_TEST(a_fork_bomb_is_killed)
{
	/* Not an endless one: the machine is everybody's. It does fork faster than we look. */
	const struct proc_capture c = { .timeout = 0.3 };
	struct ply_result r = sh(marked("bomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & "
					"bomb $(($1 - 1)) & fi; exec sleep %s; }; bomb 8"),
				 &c);

	ck_assert_int_eq(r.exit_code, 124);
	ck_assert_int_eq(running(mark()), 0);
	ply_result_free(&r);
}
END_TEST

START_TEST(a_killed_reaper_takes_its_tree_along)
{
	struct proc p = { 0 };
	struct ply_result r;

	spawn(marked("setsid sleep %s & (sleep %s &); kill -KILL $PPID; sleep %s"), &p);
	ok(proc_wait(&p, 30));
	ck_assert_int_eq(p.status, SIGKILL);
	eventually(running(mark()) == 0);
	ok(proc_kill(&p));
	proc_release(&p);
	r = sh("echo fine", &plain); /* the keeper lives */
	ck_assert_str_eq(r.out.data, "fine\n");
	ply_result_free(&r);
}
END_TEST

/* It may be quicker than the reaper, who has still to tell that it was started. */
START_TEST(a_command_that_kills_its_reaper_at_once_was_started)
{
	for (int i = 0; i < 200; i++) {
		struct proc p = { 0 };

		spawn("kill -KILL $PPID", &p);
		ck_assert_int_gt(p.pid, 0);
		ok(proc_wait(&p, 30));
		ck_assert_int_eq(p.status, SIGKILL);
		proc_release(&p);
	}
}
END_TEST

START_TEST(a_killed_keeper_is_told_and_leaves_nothing)
{
	const char *argv[] = { "true", NULL };
	struct proc_options o = { .argv = argv };
	struct proc p = { 0 };
	struct ply_result r;

	/* The reaper's parent is the keeper. */
	spawn(marked("kill -KILL $(ps -o ppid= $PPID); sleep %s"), &p);
	ok(proc_wait(&p, 30));
	eventually(running(mark()) == 0);
	ck_assert_int_eq(proc_run(keeper, &o, &plain, &r), PLY_FAILED);
	ck_assert_ptr_nonnull(strstr(ply_error(), "keeper"));
	proc_release(&p);
	keeper_end(keeper);
	ok(keeper_start(&keeper));
}
END_TEST

/* In a process of its own: an environment with everything that tries to survive it. */
static void caller(int ready, const char *script)
{
	char touch[256], sleepy[64];
	const char *first[] = { "sh", "-c", touch, NULL }, *second[] = { "sh", "-c", sleepy, NULL };
	const char *const *on_death[] = { second, first };
	struct proc p;

	snprintf(touch, sizeof(touch), "pgrep -f '[s]leep %s' >%s/left; echo done >%s/dead", mark(),
		 dir, dir);
	snprintf(sleepy, sizeof(sleepy), "exit 1");
	if (keeper_start(&keeper) < 0 || keeper_on_death(keeper, on_death, 2) < 0)
		_exit(1);
	spawn(script, &p);
	if (write(ready, "x", 1) != 1)
		_exit(2);
	pause();
}

static bool exists(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static void caller_dies(const char *script, bool forked)
{
	struct stat st;
	char path[128], byte;
	pid_t child;
	int p[2], living[2], status;

	ck_assert_int_eq(pipe(p), 0);
	ck_assert_int_eq(pipe2(living, O_CLOEXEC), 0);
	child = fork();
	if (child == 0) {
		/* A fork of the caller holds its descriptors, and lives on until we let go. */
		if (forked && fork() == 0) {
			close(living[1]);
			_exit((int)read(living[0], &byte, 1));
		}
		caller(p[1], script);
	}
	ck_assert_int_eq(read(p[0], &byte, 1), 1);
	eventually(running(mark()) > 0);
	kill(child, SIGKILL);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	eventually(exists("dead"));
	snprintf(path, sizeof(path), "%s/left", dir);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_size, 0); /* nothing lived when on_death ran */
	close(p[0]);
	close(p[1]);
	close(living[0]);
	close(living[1]);
}

START_TEST(a_killed_caller_leaves_nothing)
{
	caller_dies(marked("trap '' TERM HUP; setsid sleep %s & (sleep %s &); sleep %s & "
			   "kill -STOP $!; sleep %s"),
		    false);
	eventually(running(mark()) == 0); /* what on_death ran is about to end */
}
END_TEST

START_TEST(a_fork_of_the_caller_does_not_keep_it_alive)
{
	caller_dies(marked("sleep %s & wait"), true);
	eventually(running(mark()) == 0); /* what on_death ran is about to end */
}
END_TEST

static bool forks_at_send;
static pid_t forked;

/* Ours comes before the C library's. What is sent to a keeper are a command's descriptors. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	static ssize_t (*real)(int, const struct msghdr *, int);

	if (!real)
		real = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
	if (forks_at_send) {
		forks_at_send = false;
		forked = fork();
		if (forked == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			pause();
			_exit(0);
		}
	}
	return real(fd, m, flags);
}

START_TEST(a_fork_of_the_caller_keeps_no_output_open)
{
	const struct proc_capture all = { .all_output = true, .timeout = 10 };
	char path[64], target[PATH_MAX];
	struct ply_result r;
	ssize_t n;

	forks_at_send = true;
	r = sh("echo out; echo err >&2", &all);
	ck_assert(!r.timed_out);
	ck_assert_str_eq(r.out.data, "out\n");
	ck_assert_str_eq(r.err.data, "err\n");
	ply_result_free(&r);
	/* Nor the directory, which could not be unmounted. */
	for (int fd = 3; fd < 64; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)forked, fd);
		n = readlink(path, target, sizeof(target) - 1);
		target[MAX(n, (ssize_t)0)] = '\0';
		ck_assert_str_ne(target, dir);
	}
	kill(forked, SIGKILL);
	ck_assert_int_eq(waitpid(forked, NULL, 0), forked);
}
END_TEST

START_TEST(all_can_be_killed_and_the_keeper_stays)
{
	struct proc p = { 0 };
	struct ply_result r;

	spawn(marked("setsid sleep %s & (sleep %s &); sleep %s"), &p);
	eventually(running(mark()) == 4); /* sh as well */
	ok(keeper_kill(keeper));
	ck_assert_int_eq(running(mark()), 0);
	ok(proc_wait(&p, 30));
	ck_assert_int_eq(p.status, SIGKILL);
	proc_release(&p);
	ok(keeper_kill(keeper)); /* nobody is there */
	r = sh("echo fine", &plain);
	ck_assert_str_eq(r.out.data, "fine\n");
	ply_result_free(&r);
}
END_TEST

START_TEST(an_orderly_end_does_not_run_on_death)
{
	char touch[160];
	const char *argv[] = { "sh", "-c", touch, NULL };
	const char *const *on_death[] = { argv };

	snprintf(touch, sizeof(touch), "echo done >%s/dead", dir);
	ok(keeper_on_death(keeper, on_death, 1));
	keeper_end(keeper);
	usleep(50000);
	ck_assert(!exists("dead"));
	ok(keeper_start(&keeper));
}
END_TEST

/* ---- limits ---- */

START_TEST(a_memory_limit_holds)
{
	const char *argv[] = { "sh", "-c",
			       "head -c 400000000 /dev/zero | tail -c 390000000 | wc -c", NULL };
	struct proc_options o = { .argv = argv, .limits = { .memory = 64 << 20 } };
	struct ply_result r;

	ok(proc_run(keeper, &o, &plain, &r));
	ck_assert_str_ne(r.out.data, "390000000\n");
	/* Told where a group could be made; a process that meets an rlimit says so itself. */
	ck_assert(r.out_of_memory || strlen(r.err.data));
	ply_result_free(&r);
	o.limits = (struct proc_limits){ 0 };
	ok(proc_run(keeper, &o, &plain, &r));
	ck_assert_str_eq(r.out.data, "390000000\n");
	ck_assert(!r.out_of_memory);
	ply_result_free(&r);
}
END_TEST

/* Whether a group can be made here: without one, root has no limit of processes. */
static bool processes_can_be_limited(void)
{
	const char *argv[] = { "sh", "-c", "grep -q plyfs- /proc/self/cgroup", NULL };
	struct proc_options o = { .argv = argv, .limits = { .processes = 10 } };
	struct ply_result r;
	bool can;

	ok(proc_run(keeper, &o, &plain, &r));
	can = r.exit_code == 0 || geteuid() != 0;
	ply_result_free(&r);
	return can;
}

START_TEST(a_limit_of_processes_holds)
{
	const char *argv[] = { "sh", "-c", ":; for i in $(seq 100); do sleep 600 & done; wait",
			       NULL };
	struct proc_options o = { .argv = argv, .limits = { .processes = 20 } };
	const struct proc_capture c = { .timeout = 20 };
	struct ply_result r;

	if (!processes_can_be_limited())
		return;
	ok(proc_run(keeper, &o, &c, &r));
	ck_assert_ptr_nonnull(strstr(r.err.data, "fork"));
	ck_assert(r.too_many_processes || geteuid() != 0);
	ply_result_free(&r);
}
END_TEST

START_TEST(a_limit_of_cpu_time_holds)
{
	const char *argv[] = { "sh", "-c", "while :; do :; done", NULL };
	struct proc_options o = { .argv = argv, .limits = { .cpu_time = 1 } };
	struct ply_result r;

	ok(proc_run(keeper, &o, &plain, &r));
	ck_assert_int_eq(r.exit_code, -SIGXCPU);
	ply_result_free(&r);
}
END_TEST

START_TEST(the_largest_limits_limit_nothing)
{
	const char *script = "ulimit -t; ulimit -Ht; grep processes /proc/self/limits";
	const char *argv[] = { "sh", "-c", script, NULL };
	struct proc_options o = { .argv = argv,
				  .limits = { .processes = UINT64_MAX, .cpu_time = UINT64_MAX } };
	struct ply_result with, without = sh(script, &plain);

	ok(proc_run(keeper, &o, &plain, &with));
	ck_assert_str_eq(with.out.data, without.out.data);
	ply_result_free(&with);
	ply_result_free(&without);
}
END_TEST

/* What a script prints. */
static int number(const char *script)
{
	struct ply_result r = sh(script, &plain);
	int n = atoi(r.out.data);

	ply_result_free(&r);
	return n;
}

/* The keeper's number: the reaper's parent is the keeper. */
static int keeper_pid(void)
{
	return number("ps -o ppid= $PPID");
}

static bool has_groups(int pid)
{
	char command[128];

	snprintf(command, sizeof(command),
		 "find /sys/fs/cgroup -maxdepth 6 -name 'plyfs-%d-*' 2>/dev/null | grep -q .", pid);
	return system(command) == 0;
}

START_TEST(groups_are_removed)
{
	const struct proc_limits limits = { .memory = 1 << 30, .processes = 100 };
	/* Makes groups of its own in its group, as container runtimes do. */
	const char *quick[] = { "sh", "-c",
				"find /sys/fs/cgroup -maxdepth 6 -name plyfs-$(echo $(ps -o ppid= "
				"$PPID))-0 | while read d; do mkdir -p $d/inner/most; done",
				NULL },
		   *slow[] = { "sleep", "600", NULL };
	const char *killer[] = { "sh", "-c", "kill -KILL $(ps -o ppid= $PPID); sleep 600", NULL };
	const char *const *const argvs[] = { quick, slow, killer };

	for (size_t i = 0; i < ARRAY_SIZE(argvs); i++) {
		struct proc_options o = { .argv = argvs[i],
					  .limits = limits,
					  .fds = { -1, -1, -1 } };
		struct proc p = { 0 };
		int pid = keeper_pid();

		ok(proc_spawn(keeper, &o, &p));
		if (argvs[i] != slow)
			ok(proc_wait(&p, 30));
		proc_release(&p);
		keeper_end(keeper);
		/* Where somebody killed the keeper, the reaper removes what it has. */
		eventually(!has_groups(pid));
		ok(keeper_start(&keeper));
	}
}
END_TEST

/* ---- many ---- */

START_TEST(a_thousand_runs_leave_no_descriptor_and_no_process)
{
	struct proc p = { 0 };
	struct ply_result r;
	int fds, before;

	/*
	 * The keeper is the reaper's parent; its descriptors are counted through a command. It may
	 * be quicker than the keeper, who has still to close what it was sent for that command.
	 */
	const char *count = "ls /proc/$(ps -o ppid= $PPID | xargs)/fd | wc -l";

	before = number(count);
	fds = open_fds();
	for (int i = 0; i < 1000; i++) {
		r = sh(i % 2 ? "echo x" : "(true &)", &plain);
		ply_result_free(&r);
		if (i % 10 == 0) {
			spawn("exit 3", &p);
			ok(proc_wait(&p, -1));
			proc_release(&p);
		}
	}
	ck_assert_int_eq(open_fds(), fds);
	eventually(number(count) <= before);
	/*
	 * Of a hundred reapers none is left but the one above this command, once that of the
	 * command before has ended, too.
	 */
	eventually(number("pgrep -P $(ps -o ppid= $PPID) | wc -l") == 1);
}
END_TEST

static void *many(void *arg)
{
	for (int i = 0; i < 30; i++) {
		char script[64], said[64];
		struct ply_result r;

		snprintf(script, sizeof(script), "echo %ld.%d; exit %d", (long)(intptr_t)arg, i, i);
		snprintf(said, sizeof(said), "%ld.%d\n", (long)(intptr_t)arg, i);
		r = sh(script, &plain);
		ck_assert_str_eq(r.out.data, said);
		ck_assert_int_eq(r.exit_code, i);
		ply_result_free(&r);
	}
	return NULL;
}

START_TEST(many_threads_at_once)
{
	pthread_t threads[16];

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, many, (void *)i), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		output_and_exit_code_are_exact,
		a_signal_is_a_negative_exit_code,
		merged_output_is_in_order,
		a_hundred_megabytes_come_whole,
		both_streams_at_once_do_not_block,
		the_limit_cuts_and_says_so,
		input_reaches_the_command,
		what_cannot_be_started_is_told,
		environment_and_path_are_those_given,
		an_environment_of_a_megabyte_passes,
		commands_start_with_default_signals_and_no_descriptors,
		the_callers_children_are_its_own,
		closed_standard_descriptors_are_no_trouble,
		a_timeout_kills_the_tree_and_keeps_the_output,
		stopped_processes_are_killed,
		a_background_process_does_not_hold_up,
		a_background_process_may_print_to_nobody,
		killing_one_command_leaves_the_others,
		a_fork_bomb_is_killed,
		a_killed_reaper_takes_its_tree_along,
		a_command_that_kills_its_reaper_at_once_was_started,
		a_killed_keeper_is_told_and_leaves_nothing,
		a_killed_caller_leaves_nothing,
		a_fork_of_the_caller_does_not_keep_it_alive,
		a_fork_of_the_caller_keeps_no_output_open,
		all_can_be_killed_and_the_keeper_stays,
		an_orderly_end_does_not_run_on_death,
		a_memory_limit_holds,
		a_limit_of_processes_holds,
		a_limit_of_cpu_time_holds,
		the_largest_limits_limit_nothing,
		groups_are_removed,
		a_thousand_runs_leave_no_descriptor_and_no_process,
		many_threads_at_once,
	};
	TCase *tcase = tcase_create("env_proc");

	tcase_add_checked_fixture(tcase, setup, teardown);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tcase, tests[i]);
	return run_case("env_proc", tcase);
}
