/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The stopwatch of the bench: does one thing N times and prints the nanoseconds of each, a line
 * per measurement: "NAME NS". In C, because an interpreter's own microseconds would drown what is
 * measured; what to measure and what to make of it is decided by the Python beside it.
 *
 *   stopwatch ioctl N VIEW FILE...          edit the files, checkpoint; edit again, restore
 *   stopwatch command N PLYFS VIEW FILE...  the same with a process per step
 *   stopwatch behind N VIEW FILE            N snapshots, one edit each (no output)
 *   stopwatch fork N VIEW PREFIX            N forks through the ioctl: PREFIX0, PREFIX1, ...
 *   stopwatch mount N PLYFS VIEW PREFIX DIR N forks, each mounted at DIR/0, DIR/1, ...
 *   stopwatch spawn N COMMAND...            a command, from its start to its end
 *
 * A restore goes to the checkpoint of the same round, over ten (or as many as named) edited files.
 * The times of checkpoint and restore hold the syncfs that belongs to them.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/ioctl.h"
#include "tools/bench/lap.h"

extern char **environ;

static int open_view(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		die(path);
	return fd;
}

/* What an editor does: the whole file again, another content each time, sizes of source code. */
static void edit(int dir, const char *file)
{
	static unsigned long round;
	char text[4000];
	size_t n = (size_t)snprintf(text, sizeof(text), "edit %lu\n", ++round);
	int fd;

	memset(text + n, 'x', sizeof(text) - n);
	fd = openat(dir, file, O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		die(file);
	if (write(fd, text, 500 + round * 37 % 3000) < 0)
		die(file);
	close(fd);
}

static void edit_all(int dir, char **files)
{
	for (; *files; files++)
		edit(dir, *files);
}

static void do_ioctl(unsigned long n, char **args)
{
	int dir = open_view(args[0]);

	while (n--) {
		struct plyfs_checkpoint c = { 0 };
		struct plyfs_restore r = { 0 };
		uint64_t begin;

		edit_all(dir, args + 1);
		begin = now_ns();
		if (syncfs(dir) < 0 || ioctl(dir, PLYFS_IOC_CHECKPOINT, &c) < 0)
			die("checkpoint");
		print_lap("checkpoint", begin);

		edit_all(dir, args + 1);
		memcpy(r.id, c.id, sizeof(c.id));
		begin = now_ns();
		if (syncfs(dir) < 0 || plyfs_control(dir, PLYFS_IOC_RESTORE, &r) < 0)
			die("restore");
		print_lap(r.mode ? "restore_epoch" : "restore", begin);
	}
	close(dir);
}

static void do_behind(unsigned long n, char **args)
{
	int dir = open_view(args[0]);

	while (n--) {
		struct plyfs_checkpoint c = { 0 };

		edit(dir, args[1]);
		if (ioctl(dir, PLYFS_IOC_CHECKPOINT, &c) < 0)
			die("checkpoint");
	}
	close(dir);
}

static void do_fork(unsigned long n, char **args)
{
	int dir = open_view(args[0]);

	for (unsigned long i = 0; i < n; i++) {
		struct plyfs_fork f = { 0 };
		uint64_t begin;

		snprintf(f.name, sizeof(f.name), "%s%lu", args[1], i);
		begin = now_ns();
		if (syncfs(dir) < 0 || ioctl(dir, PLYFS_IOC_FORK, &f) < 0)
			die("fork");
		print_lap("fork", begin);
	}
	close(dir);
}

/* Runs a command to its end with its stdout in a file of ours, whose first bytes go to out. */
static void spawn(char **argv, int out_fd, char *out, size_t out_size)
{
	posix_spawn_file_actions_t actions;
	ssize_t got;
	int status;
	pid_t pid;
	int r;

	if (ftruncate(out_fd, 0) < 0)
		die("ftruncate");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
	r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	if (r) {
		errno = r;
		die(argv[0]);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	posix_spawn_file_actions_destroy(&actions);
	if (status) {
		fprintf(stderr, "stopwatch: %s %s failed\n", argv[0], argv[1] ? argv[1] : "");
		exit(1);
	}
	if (!out)
		return;
	got = pread(out_fd, out, out_size - 1, 0);
	if (got < 0)
		die("pread");
	out[got] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

static int open_scratch(void)
{
	/* O_APPEND: after each ftruncate the next command writes at the beginning again. */
	FILE *f = tmpfile();

	if (!f || fcntl(fileno(f), F_SETFL, O_APPEND) < 0)
		die("tmpfile");
	return fileno(f);
}

static void do_command(unsigned long n, char **args)
{
	int dir = open_view(args[1]);
	int scratch = open_scratch();
	char id[64];

	while (n--) {
		char *checkpoint[] = { args[0], "checkpoint", args[1], NULL };
		char *restore[] = { args[0], "restore", id, args[1], NULL };
		uint64_t begin;

		edit_all(dir, args + 2);
		begin = now_ns();
		spawn(checkpoint, scratch, id, sizeof(id));
		print_lap("checkpoint", begin);

		edit_all(dir, args + 2);
		begin = now_ns();
		spawn(restore, scratch, NULL, 0);
		print_lap("restore", begin);
	}
	close(dir);
}

static void do_mount(unsigned long n, char **args)
{
	int scratch = open_scratch();

	if (chdir(args[1]) < 0)
		die(args[1]);
	for (unsigned long i = 0; i < n; i++) {
		char name[64], at[4096];
		char *argv[] = { args[0], "fork", name, "--at", at, NULL };
		uint64_t begin;

		snprintf(name, sizeof(name), "%s%lu", args[2], i);
		snprintf(at, sizeof(at), "%s/%lu", args[3], i);
		begin = now_ns();
		spawn(argv, scratch, NULL, 0);
		print_lap("mount", begin);
	}
}

static void do_spawn(unsigned long n, char **args)
{
	int scratch = open_scratch();

	while (n--) {
		uint64_t begin = now_ns();

		spawn(args, scratch, NULL, 0);
		print_lap("spawn", begin);
	}
}

static const struct {
	const char *name;
	void (*fn)(unsigned long n, char **args);
	int min_args; /* after N */
} modes[] = {
	{ "ioctl", do_ioctl, 2 },     { "command", do_command, 3 }, { "behind", do_behind, 2 },
	{ "fork", do_fork, 2 },       { "mount", do_mount, 4 },     { "spawn", do_spawn, 1 },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		if (argc - 3 < modes[i].min_args)
			break;
		modes[i].fn(count_of(argv[2]), argv + 3);
		return fflush(stdout) ? 1 : 0;
	}
	fprintf(stderr, "usage: stopwatch ioctl|command|behind|fork|mount|spawn N ARGS...\n");
	return 2;
}
