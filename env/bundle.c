/* SPDX-License-Identifier: Apache-2.0 */

/*
 * OCI runtimes: a bundle for each command, in a directory of the environment.
 *
 *   DIR/N/config.json   what runs; read by the runtime when it starts
 *   DIR/rootfs/         work folder: the machine's root is put together in it
 *   DIR/state/          the runtime's
 *
 * A bundle is of no use once its command has started, and nothing tells us when that is: SLOTS of
 * them are used in turn, far more than commands can be starting at once.
 *
 * crun leaves us in our control group (proc_limits hold). runc insists on one of its own, so
 * limits are told to it as well; what it ran into is not reported then. Neither can hand on a
 * terminal of ours as controlling terminal: no sessions.
 */

#include "env/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "env/env_internal.h"
#include "env/place.h"
#include "env/status.h"
#include "store/base/util.h"

#define SLOTS 1024

static void json_freep(json_t **j)
{
	json_decref(*j);
}
#define _cleanup_json_ _cleanup_(json_freep)

int bundle_begin(struct isolation *i)
{
	const char *base = place_runtime_dir() ?: "/tmp";
	_cleanup_(isolate_mounts_release) struct isolate_mounts m = { 0 };
	_cleanup_free_ char *dir = NULL;
	char path[PATH_MAX];
	int r = 0;

	if (asprintf(&dir, "%s/plyfs-oci-XXXXXX", base) < 0)
		return fail_memory();
	if (!mkdtemp(dir))
		return fail_errno(errno, "%s", dir);
	i->bundles = TAKE_PTR(dir);
	(void)snprintf(path, sizeof(path), "%s/rootfs", i->bundles);
	if (mkdir(path, 0755) < 0)
		return fail_errno(errno, "%s", path);
	if (i->at)
		r = isolate_mounts(i, &m);
	for (size_t k = 0; r == 0 && k < m.n; k++) {
		if (m.list[k].kind != MOUNT_LINK)
			continue;
		(void)snprintf(path, sizeof(path), "%s/rootfs%s", i->bundles, m.list[k].to);
		if (symlink(m.list[k].from, path) < 0)
			r = fail_errno(errno, "%s", path);
	}
	return r;
}

/* ---- config.json ---- */

/* NULL: no memory, or one is not UTF-8. */
static json_t *strings(const char *const *list)
{
	json_t *a = json_array();

	for (; list && *list; list++)
		if (json_array_append_new(a, json_string(*list)) < 0) {
			json_decref(a);
			return NULL;
		}
	return a;
}

static json_t *mount_entry(const char *to, const char *type, const char *from,
			   const char *const *options)
{
	return json_pack("{s:s, s:s, s:s, s:o}", "destination", to, "type", type, "source", from,
			 "options", strings(options));
}

static int put_mounts(const struct isolation *i, json_t *list)
{
	static const char *const none[] = { "nosuid", "nodev", "noexec", NULL };
	static const char *const dev[] = { "nosuid", "mode=755", "size=65536k", NULL };
	static const char *const pts[] = { "nosuid", "noexec", "newinstance", "ptmxmode=0666",
					   "mode=0620", NULL };
	static const char *const shm[] = { "nosuid", "nodev", "noexec", "mode=1777", NULL };
	static const char *const bind[] = { "rbind", "nosuid", "nodev", NULL };
	static const char *const read[] = { "rbind", "ro", "nosuid", "nodev", NULL };
	_cleanup_(isolate_mounts_release) struct isolate_mounts m = { 0 };
	char size[32];
	const char *const empty[] = { "nosuid", "nodev", "mode=1777",
				      i->limits.memory ? size : NULL, NULL };
	int r;

	(void)snprintf(size, sizeof(size), "size=%ju", (uintmax_t)i->limits.memory);
	r = isolate_mounts(i, &m);
	if (r < 0)
		return r;
	r = json_array_append_new(list, mount_entry("/proc", "proc", "proc", none)) |
	    json_array_append_new(list, mount_entry("/dev", "tmpfs", "tmpfs", dev)) |
	    json_array_append_new(list, mount_entry("/dev/pts", "devpts", "devpts", pts)) |
	    json_array_append_new(list, mount_entry("/dev/shm", "tmpfs", "shm", shm));
	for (size_t k = 0; r == 0 && k < m.n; k++) {
		const struct isolate_mount *x = &m.list[k];

		if (x->kind == MOUNT_EMPTY)
			r = json_array_append_new(list,
						  mount_entry(x->to, "tmpfs", "tmpfs", empty));
		else if (x->kind != MOUNT_LINK)
			r = json_array_append_new(
				list, mount_entry(x->to, "bind", x->from,
						  x->kind == MOUNT_READ ? read : bind));
		if (r < 0) /* it must not be left out: it may be there to hide something */
			return fail(PLY_INVALID,
				    "%s takes UTF-8 only, and '%s' or '%s' is not; bwrap takes it",
				    i->runtime, x->from, x->to);
	}
	return r < 0 ? fail_memory() : 0;
}

static json_t *namespaces(const struct isolation *i)
{
	static const char *const kinds[] = { "pid", "ipc", "uts", "mount" };
	json_t *list = json_array();

	for (size_t k = 0; k < ARRAY_SIZE(kinds); k++)
		(void)json_array_append_new(list, json_pack("{s:s}", "type", kinds[k]));
	if (!i->network)
		(void)json_array_append_new(list, json_pack("{s:s}", "type", "network"));
	if (geteuid() != 0)
		(void)json_array_append_new(list, json_pack("{s:s}", "type", "user"));
	return list;
}

/* Root in there is who we are: runc insists on a root. */
static json_t *id_map(unsigned outside)
{
	return json_pack("[{s:i, s:I, s:i}]", "containerID", 0, "hostID", (json_int_t)outside,
			 "size", 1);
}

static json_t *linux_part(const struct isolation *i)
{
	json_t *l = json_pack("{s:o, s:o, s:o}", "namespaces", namespaces(i), "maskedPaths",
			      strings(isolate_masked), "readonlyPaths", strings(isolate_read_only));
	json_t *limits = json_object();

	if (geteuid() != 0) {
		(void)json_object_set_new(l, "uidMappings", id_map(geteuid()));
		(void)json_object_set_new(l, "gidMappings", id_map(getegid()));
	}
	if (strcmp(i->runtime, "runc") == 0 && geteuid() == 0) {
		if (i->limits.memory)
			(void)json_object_set_new(limits, "memory",
						  json_pack("{s:I, s:I}", "limit",
							    (json_int_t)i->limits.memory, "swap",
							    (json_int_t)i->limits.memory));
		if (i->limits.processes)
			(void)json_object_set_new(limits, "pids",
						  json_pack("{s:I}", "limit",
							    (json_int_t)i->limits.processes));
	}
	(void)json_object_set_new(l, "resources", limits);
	return l;
}

static json_t *capabilities(void)
{
	static const char *const sets[] = { "bounding", "effective", "permitted", "inheritable",
					    "ambient" };
	json_t *all = json_object();

	for (size_t k = 0; k < ARRAY_SIZE(sets); k++)
		(void)json_object_set_new(all, sets[k], strings(isolate_capabilities));
	return all;
}

static int make_config(const struct isolation *i, const char *const *argv, const char *const *env,
		       char **ret)
{
	_cleanup_json_ json_t *mounts = json_array(), *words = strings(argv);
	_cleanup_json_ json_t *variables = strings(env), *config = NULL;
	_cleanup_free_ char *root = NULL;
	int r;

	if (!words || !variables)
		return fail(PLY_INVALID,
			    "%s takes UTF-8 only, and %s has other bytes; bwrap takes them",
			    i->runtime, words ? "a variable" : "the command");
	if (i->at)
		r = asprintf(&root, "%s/rootfs", i->bundles);
	else
		r = asprintf(&root, "%s", i->dir);
	if (r < 0) {
		root = NULL;
		r = fail_memory();
	} else {
		r = put_mounts(i, mounts);
	}
	if (r < 0)
		return r;
	config = json_pack(
		"{s:s, s:{s:b, s:{s:i, s:i}, s:O, s:O, s:s, s:b, s:o}, s:{s:s, s:b}, s:s, s:O,"
		" s:o}",
		"ociVersion", "1.0.0", "process", "terminal", false, "user", "uid",
		0, "gid", 0, "args", words, "env",
		variables, "cwd", i->cwd, "noNewPrivileges", true,
		"capabilities", capabilities(), "root", "path", root, "readonly", i->at != NULL,
		"hostname", ISOLATE_HOSTNAME, "mounts", mounts, "linux", linux_part(i));
	*ret = config ? json_dumps(config, 0) : NULL;
	return *ret ? 0 : fail(PLY_INVALID, "a configuration for %s cannot be made of this",
			       i->runtime);
}

static int write_config(const char *dir, const char *text)
{
	_cleanup_free_ char *path = NULL;
	size_t len = strlen(text);
	_cleanup_close_ int fd = -1;

	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return fail_errno(errno, "%s", dir);
	if (asprintf(&path, "%s/config.json", dir) < 0) {
		path = NULL;
		return fail_memory();
	}
	/* A new file: a runtime that still reads what the slot had before goes on with that. */
	if (unlink(path) < 0 && errno != ENOENT)
		return fail_errno(errno, "%s", path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail_errno(errno, "%s", path);
	if (write(fd, text, len) != (ssize_t)len)
		return fail(PLY_FAILED, "%s: it cannot be written", path);
	return 0;
}

int bundle_words(struct isolation *i, const char *const *argv, const char *const *env, char ***ret)
{
	unsigned number = __atomic_fetch_add(&i->next, 1, __ATOMIC_RELAXED);
	bool crun = strcmp(i->runtime, "crun") == 0;
	_cleanup_free_ char *dir = NULL, *state = NULL, *config = NULL, *id = NULL;
	struct ply_list w = { 0 };
	int r;

	if (asprintf(&dir, "%s/%u", i->bundles, number % SLOTS) < 0)
		dir = NULL;
	if (asprintf(&state, "%s/state", i->bundles) < 0)
		state = NULL;
	if (asprintf(&id, "%s-%u", strrchr(i->bundles, '/') + 1, number) < 0)
		id = NULL;
	if (!dir || !state || !id)
		return fail_memory();
	r = make_config(i, argv, env, &config);
	if (r == 0)
		r = write_config(dir, config);

	const char *const words[] = { i->program, "--root", state,
				      crun ? "--cgroup-manager=disabled" : NULL };
	const char *const rest[] = { "run", "--bundle", dir, id };

	for (size_t k = 0; r == 0 && k < ARRAY_SIZE(words); k++)
		if (words[k])
			r = list_append(&w, words[k], strlen(words[k]));
	for (size_t k = 0; r == 0 && k < ARRAY_SIZE(rest); k++)
		r = list_append(&w, rest[k], strlen(rest[k]));
	if (r < 0) {
		ply_list_free(&w);
		return r;
	}
	*ret = w.items;
	return 0;
}

int bundle_ending(const struct isolation *i, char ***ret)
{
	/* A runtime that was killed leaves its state, and runc its control groups. */
	static const char script[] =
		"for s in \"$1\"/state/*/; do [ -d \"$s\" ] && "
		"\"$2\" --root \"$1/state\" delete --force \"$(basename \"$s\")\"; done; "
		"rm -rf \"$1\"";
	const char *const words[] = { "/bin/sh", "-c", script, "sh", i->bundles, i->program };
	struct ply_list w = { 0 };
	int r = 0;

	for (size_t k = 0; r == 0 && k < ARRAY_SIZE(words); k++)
		r = list_append(&w, words[k], strlen(words[k]));
	if (r < 0) {
		ply_list_free(&w);
		return r;
	}
	*ret = w.items;
	return 0;
}
