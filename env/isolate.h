/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The words that run a command isolated: bubblewrap's, or an OCI runtime's, for which a bundle
 * (config.json) is written. Two shapes:
 *
 *   root         a directory is the root filesystem; over it only /proc, /dev and /sys
 *   work folder  the machine's own root, read-only, and a directory at a place in it; /tmp, /run,
 *                other views and what is to be hidden are empty and private to the command
 *
 * Always: namespaces of its own for processes, IPC, mounts, host name, and, without `network`, the
 * network (loopback only); no new privileges; of root's capabilities those that package managers
 * and tests need and none that reaches the machine. An ordinary user gets a user namespace, in
 * which it is root (with bubblewrap in a work folder: itself).
 *
 * Each command has namespaces of its own, a session's shell too: what is started within a session
 * sees the other processes of that session, and its servers on loopback; nothing else does.
 */

#include <stdbool.h>
#include <stdint.h>

#include "env/plyfs.h"
#include "env/proc.h"

struct isolation {
	char *runtime; /* owned: "bwrap", "crun", "runc" */
	char *program; /* owned: where it is */
	char *dir;     /* owned: the root, or what is to be at `at` */
	char *at;      /* owned: absolute; NULL: root shape */
	char *cwd;     /* owned: in there */
	bool network;
	struct ply_list env;  /* "K=V": all that a command begins with */
	struct ply_list hide; /* directories of the machine; work folder only */
	struct proc_limits limits; /* for runtimes that leave our control group: runc */
	char *bundles; /* owned: directory for OCI bundles, made by isolate_begin; NULL: bwrap */
	unsigned next; /* atomic: of bundles */
};

/*
 * Finds the program and makes what it needs; runtime, dir, at, cwd, network, env are set. 1: not
 * installed.
 */
int isolate_begin(struct isolation *i);
/* The words around argv, given: argv_free. env: more "K=V"; may be NULL. */
int isolate_words(struct isolation *i, const char *const *argv, const char *const *env,
		  char ***ret);
/*
 * What removes all that is left of it, also after we died: a command (given: argv_free), or NULL
 * when there is nothing.
 */
int isolate_ending(const struct isolation *i, char ***ret);
void isolate_release(struct isolation *i);
/* Whether a command reaches nothing at a path of the machine that we get this error for. */
bool isolate_is_out_of_reach(int error);
/* Puts "NAME=VALUE" into a list of such, in place of another one with this name. */
int isolate_put_variable(struct ply_list *env, const char *name, const char *value);

/* ---- inside: isolate.c and its OCI half, bundle.c ---- */

enum mount_kind { MOUNT_BIND, MOUNT_READ, MOUNT_EMPTY, MOUNT_LINK };
struct isolate_mount {
	enum mount_kind kind;
	char *from; /* owned: of the machine; MOUNT_LINK: the target */
	char *to;   /* owned */
};
struct isolate_mounts { /* in order; /proc and /dev come first, by the runtime's own means */
	struct isolate_mount *list; /* owned */
	size_t n;
};
int isolate_mounts(const struct isolation *i, struct isolate_mounts *ret);
void isolate_mounts_release(struct isolate_mounts *m);

/* Of capabilities(7); of a root that is the machine's root. */
extern const char *const isolate_capabilities[];
/* Paths below /proc that are the machine's, not a namespace's. */
extern const char *const isolate_read_only[], *const isolate_masked[];
#define ISOLATE_HOSTNAME "plyfs"

int bundle_begin(struct isolation *i);
/* env: all of it. */
int bundle_words(struct isolation *i, const char *const *argv, const char *const *env, char ***ret);
int bundle_ending(const struct isolation *i, char ***ret);
