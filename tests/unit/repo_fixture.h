/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the tests of git's half of libplyfs share: a directory with a vault, short words for what
 * lies there and for what git says of it, and a readdir that fails.
 */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/repo.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

static char top[64];
static struct vault *vault;

#define ok(expression) ck_assert_msg((expression) == 0, "%s: %s", #expression, ply_error())

/* So many calls from here on readdir fails once; < 0: never. Ours comes before the C library's. */
static int readdir_passes = -1;
static void (*at_readdir)(void);

struct dirent *readdir(DIR *d)
{
	static struct dirent *(*real)(DIR *);

	if (!real)
		real = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
	if (at_readdir)
		at_readdir();
	if (readdir_passes >= 0 && readdir_passes-- == 0) {
		errno = EIO;
		return NULL;
	}
	return real(d);
}

static inline char *at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline char *at(const char *fmt, ...)
{
	static char path[16][512];
	static int i;
	char below[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(below, sizeof(below), fmt, ap);
	va_end(ap);
	i = (i + 1) % 16;
	snprintf(path[i], sizeof(path[i]), "%s/%s", top, below);
	return path[i];
}

/* A shell's script in top; its status. */
static inline int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline int sh(const char *fmt, ...)
{
	char script[2048], command[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(script, sizeof(script), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "cd %s && { %s ; } >/dev/null 2>log", top, script);
	return system(command);
}

/* What a command prints, its first line. */
static inline const char *said(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline const char *said(const char *fmt, ...)
{
	static char line[4][512];
	static int i;
	char script[2048], command[4096];
	va_list ap;
	FILE *f;

	va_start(ap, fmt);
	vsnprintf(script, sizeof(script), fmt, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "cd %s && { %s ; }", top, script);
	i = (i + 1) % 4;
	line[i][0] = '\0';
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	if (fgets(line[i], sizeof(line[i]), f))
		line[i][strcspn(line[i], "\n")] = '\0';
	pclose(f);
	return line[i];
}

static inline void setup(void)
{
	strcpy(top, "/tmp/plyfs-repo-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(top));
	setenv("HOME", top, 1);
	setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
	setenv("GIT_AUTHOR_NAME", "t", 1);
	setenv("GIT_AUTHOR_EMAIL", "t@example.org", 1);
	setenv("GIT_COMMITTER_NAME", "t", 1);
	setenv("GIT_COMMITTER_EMAIL", "t@example.org", 1);
	unsetenv("XDG_CONFIG_HOME");
	ok(vault_open(at("vault"), &vault));
}

static inline void teardown(void)
{
	char command[128];

	vault_close(vault);
	snprintf(command, sizeof(command), "rm -rf %s", top);
	ck_assert_int_eq(system(command), 0);
}

static inline void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_msg(f, "%s: %m", path);
	fputs(text, f);
	fclose(f);
}

/* A commit of the empty tree. parent may be NULL. */
static inline struct repo_id write_commit(const char *message, const struct repo_id *parent)
{
	_cleanup_(repo_batch_freep) struct repo_batch *b = repo_batch_new();
	char text[512], tree_hex[REPO_HEX], parent_hex[REPO_HEX];
	struct repo_id tree, id;

	ok(repo_batch_add(b, REPO_TREE, "", 0, &tree));
	snprintf(text, sizeof(text),
		 "tree %s\n%s%s%sauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\n%s\n",
		 repo_id_hex(&tree, tree_hex), parent ? "parent " : "",
		 parent ? repo_id_hex(parent, parent_hex) : "", parent ? "\n" : "", message);
	ok(repo_batch_add(b, REPO_COMMIT, text, strlen(text), &id));
	ok(vault_write(vault, &b, 1));
	return id;
}
