/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calltable: what each call about paths answers and does, line by line, to be compared between two
 * filesystems.
 *
 *     calltable [--every N] [--seed N] [--call NAME] [--no-ctime] DIR
 *     calltable --make DIR
 *     calltable --read-only [...] DIR
 *
 * In DIR it makes a small world: one of everything that a path can name, with owners, modes and
 * links that matter. Then it makes each call on each place (or pair of places) as each of four
 * users and prints the result, and what changed in the whole world: who is gone, new or somebody
 * else now, types, modes, owners, link counts, sizes, contents, and which times. A case that
 * changed something is followed by a new world, so cases do not depend on each other.
 *
 * --every N runs one case of N, chosen by the seed, --call those of one call. --make only makes the
 * world; --read-only uses one that is there, and fails if a case changed it. --no-ctime leaves out
 * ctime, for kernels whose clock for it ticks every few milliseconds. Needs root.
 */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/calltable.h"
#include "tests/lib/exerciser.h"

static uint64_t every = 1, seed, n_case, n_run;
static const char *only; /* the call, or NULL for all */
static bool read_only;

/* ---- users ---- */

static const struct user {
	const char *name;
	uid_t uid;
	gid_t gid, group;
} users[] = {
	{ "root", 0, 0, 0 },
	{ "owner", 1000, 1000, 1000 },
	{ "member", 1001, 1001, GROUP },
	{ "stranger", 1002, 1002, 1002 },
};
#define N_USERS (sizeof(users) / sizeof(*users))

static void become(const struct user *u)
{
	if (u->uid == 0)
		need(seteuid(0) == 0, "seteuid");
	need(setgroups(1, &u->group) == 0 && setegid(u->gid) == 0, "setgroups");
	need(seteuid(u->uid) == 0, "seteuid");
}

/* ---- cases ---- */

static const char *path_of(const struct place *p)
{
	return p->path ? p->path : p->label;
}

static bool chosen(const char *call)
{
	uint64_t z = (n_case++ + seed) * 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	return (z >> 20) % every == 0 && (!only || strcmp(only, call) == 0);
}

static void run(const struct user *u, const char *name, const struct call *c,
		const struct pair_call *pc, const struct place *a, const struct place *b)
{
	static int cwd = -1;
	bool changed;
	int r, e;

	if (cwd < 0) {
		cwd = openat(top_fd, "w/cwd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		need(cwd >= 0 && fchdir(cwd) == 0, "w/cwd");
	}
	become(u);
	errno = 0;
	r = c ? c->fn(path_of(a)) : pc->fn(path_of(a), path_of(b));
	e = errno;
	become(&users[0]);
	need(fchdir(cwd) == 0, "fchdir");

	printf("%s %s %s%s%s: ", u->name, name, a->label, b ? " " : "", b ? b->label : "");
	if (r < 0)
		printf("%s", strerrorname_np(e) ? strerrorname_np(e) : "?");
	else
		printf("%d", r);
	changed = show_difference();
	putchar('\n');
	n_run++;
	if (changed) {
		if (read_only) {
			printf("calltable: the world changed\n");
			exit(1);
		}
		close(cwd);
		cwd = -1;
		new_world();
	}
}

static void run_all(void)
{
	for (size_t u = 0; u < N_USERS; u++)
		for (size_t a = 0; a < n_places; a++) {
			for (size_t c = 0; c < n_calls; c++)
				if (chosen(calls[c].name))
					run(&users[u], calls[c].name, &calls[c], NULL, &places[a],
					    NULL);
			for (size_t c = 0; c < n_pair_calls; c++)
				for (size_t b = 0; b < n_places; b++)
					if (chosen(pair_calls[c].name))
						run(&users[u], pair_calls[c].name, NULL,
						    &pair_calls[c], &places[a], &places[b]);
		}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "call", 1, NULL, 'l' }, { "every", 1, NULL, 'e' },
		{ "seed", 1, NULL, 's' }, { "no-ctime", 0, NULL, 'c' },
		{ "make", 0, NULL, 'm' }, { "read-only", 0, NULL, 'r' },
		{ NULL, 0, NULL, 0 },
	};
	bool make = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'l':
			only = optarg;
			break;
		case 'e':
			every = number(optarg);
			break;
		case 's':
			seed = number(optarg);
			break;
		case 'c':
			no_ctime = true;
			break;
		case 'm':
			make = true;
			break;
		case 'r':
			read_only = true;
			break;
		default:
			return 2;
		}
	}
	if (optind + 1 != argc || !every || geteuid() != 0) {
		fprintf(stderr,
			"usage (as root): calltable [--every N] [--seed N] [--call NAME] "
			"[--no-ctime] [--make | --read-only] DIR\n");
		return 2;
	}
	top_fd = open(argv[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	need(top_fd >= 0, argv[optind]);
	umask(022);
	make_names();

	if (read_only)
		look_at_world();
	else
		new_world();
	if (!make) {
		run_all();
		printf("%" PRIu64 " of %" PRIu64 " cases\n", n_run, n_case);
	}
	return 0;
}
