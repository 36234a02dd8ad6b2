/* SPDX-License-Identifier: Apache-2.0 */

/*
 * plyfs serve: an environment behind HTTP (env/serve/). Of the view that a directory lies in, or of
 * a fork that is made for it and goes when the server ends.
 */

#include "tools/env.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "env/proc.h"
#include "env/serve/cloud.h"
#include "env/serve/serve.h"
#include "store/base/util.h"

/* What runs has this long to end by itself when the server is told to end. */
#define GRACE_SECONDS 2.0
#define SMALL_FILE_MAX (1024 * 1024) /* a token, a certificate with its chain */
#define USUAL UINT64_MAX	     /* of a limit: it was not given */
#define MANY_MAX 100000		     /* connections, sessions: no process has as many descriptors */

struct asked {
	const char *host, *token, *token_file, *in, *from, *test_command, *timeout;
	const char *certificate, *key;
	uint64_t port, max_connections, max_body, max_sessions, max_output;
	bool insecure, cloud;
};

static void env_freep(struct ply_env **env)
{
	ply_env_free(*env);
}

/* A small file's text; given. */
static int read_small(const struct cmd *c, const char *path, char **ret)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_free_ char *text = malloc(SMALL_FILE_MAX + 1);
	ssize_t n, len = 0;

	if (!text)
		return cmd_fail(c, "%s", strerror(ENOMEM));
	if (fd < 0)
		return cmd_fail(c, "'%s': %s", path, strerror(errno));
	while ((n = read(fd, text + len, (size_t)(SMALL_FILE_MAX - len))) > 0)
		len += n;
	if (n < 0)
		return cmd_fail(c, "'%s': %s", path, strerror(errno));
	if (len == SMALL_FILE_MAX)
		return cmd_fail(c, "'%s' is too large for what it is to be", path);
	text[len] = '\0';
	*ret = TAKE_PTR(text);
	return DONE;
}

/* Nobody is to find it in /proc. */
static void hide(char *secret)
{
	if (secret)
		memset(secret, 'x', strlen(secret));
}

static int read_token(const struct cmd *c, const char *path, char **ret)
{
	int code = read_small(c, path, ret);

	if (code == DONE)
		(*ret)[strcspn(*ret, "\r\n")] = '\0';
	if (code == DONE && !**ret) {
		free(TAKE_PTR(*ret));
		code = cmd_fail(c, "the first line of '%s' is empty", path);
	}
	return code;
}

/* --auth-token, or the first line of --token-file, or PLYFS_TOKEN, or none. Given. */
static int find_token(const struct cmd *c, const struct asked *a, char **ret)
{
	char *of_environment = getenv("PLYFS_TOKEN");
	const char *given = a->token ?: of_environment ?: "";
	int code = DONE;

	if (a->token && a->token_file)
		return cmd_misuse(c, "either --auth-token or --token-file");
	if (a->token_file)
		code = read_token(c, a->token_file, ret);
	else if (!(*ret = strdup(given)))
		code = cmd_fail(c, "%s", strerror(ENOMEM));
	/* Whichever counts. Nor do commands that the server runs get it in their environment. */
	hide((char *)a->token);
	hide(of_environment);
	(void)unsetenv("PLYFS_TOKEN"); /* fails for no name of ours */
	return code;
}

static int check_limit(const struct cmd *c, const char *name, uint64_t given, uint64_t max)
{
	if (given > 0 && (given <= max || given == USUAL))
		return DONE;
	if (max == UINT64_MAX)
		return cmd_misuse(c, "--%s is 1 or more, not 0", name);
	return cmd_misuse(c, "--%s is 1 to %" PRIu64 ", not %" PRIu64, name, max, given);
}

/* What can be told to be wrong before anything is mounted. */
static int check(const struct cmd *c, const struct asked *a, const char *token)
{
	if (a->port > UINT16_MAX)
		return cmd_misuse(c, "--port is 0 to 65535, not %" PRIu64, a->port);
	if (!a->certificate != !a->key)
		return cmd_misuse(c, "--certificate and --key go together");
	if (a->in && a->from)
		return cmd_misuse(c, "either --in, or a fork: --store and --from");
	if (!*token && !http_is_loopback(a->host) && !a->insecure)
		return cmd_misuse(c, "without a token only this machine is served; give "
				     "--token-file, or --insecure to serve whoever can reach %s",
				  a->host);
	return check_limit(c, "max-connections", a->max_connections, MANY_MAX) ?:
	       check_limit(c, "max-sessions", a->max_sessions, MANY_MAX) ?:
	       check_limit(c, "max-body", a->max_body, UINT64_MAX) ?:
	       check_limit(c, "max-output", a->max_output, UINT64_MAX);
}

/* 0 stands for the usual one below. */
static uint64_t limit(uint64_t given)
{
	return given == USUAL ? 0 : given;
}

static int set_up(const struct cmd *c, const struct asked *a, struct ply_env **ret)
{
	_cleanup_(env_freep) struct ply_env *env = NULL;
	_cleanup_(place_release) struct place place = { 0 };
	const char *store = getenv("PLYFS_STORE"); /* the client makes it of --store */
	int code;

	if (!a->from) {
		code = place_find(c, a->in, &place);
		return code ? code : env_of_place(c, &place, a->test_command, a->timeout, ret);
	}
	if (!store || !*store)
		return cmd_misuse(c, "--from wants a store: name it with --store");
	if (ply_env_new("local", &env) < 0 || ply_env_set(env, "store", store) < 0 ||
	    ply_env_set(env, "from", a->from) < 0)
		return cmd_ply_failed(c);
	code = a->test_command ? env_set(c, env, "test_command", a->test_command) : DONE;
	if (code == DONE && a->timeout)
		code = env_set(c, env, "timeout", a->timeout);
	if (code)
		return code;
	if (ply_env_setup(env) < 0)
		return cmd_ply_failed(c);
	*ret = TAKE_PTR(env);
	return DONE;
}

static void block_signals(sigset_t *set)
{
	(void)sigemptyset(set);
	(void)sigaddset(set, SIGINT);
	(void)sigaddset(set, SIGTERM);
	(void)sigaddset(set, SIGHUP);
	(void)pthread_sigmask(SIG_BLOCK, set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN); /* beyond `ulimit -f` a write fails, and nobody else ends */
}

/* Until a signal of the set comes. */
static int serve_until(const struct cmd *c, const struct serve_options *o, struct ply_env *env,
		       const sigset_t *set)
{
	bool v6 = strchr(o->host, ':');
	struct serve *serve;
	int sig, code;

	if (serve_start(o, &serve) < 0)
		return cmd_ply_failed(c);
	printf("listening at %s://%s%s%s:%u, serving %s\n", o->certificate ? "https" : "http",
	       v6 ? "[" : "", o->host, v6 ? "]" : "", serve_port(serve), ply_env_workdir(env));
	code = cmd_flush(c);
	if (code == DONE)
		(void)sigwait(set, &sig);
	serve_stop(serve, GRACE_SECONDS);
	return code;
}

int verb_serve(struct cmd *c)
{
	_cleanup_free_ char *token = NULL, *certificate = NULL, *key = NULL;
	_cleanup_(env_freep) struct ply_env *env = NULL;
	struct asked a = { .host = "127.0.0.1",
			   .port = 8000,
			   .max_connections = USUAL,
			   .max_sessions = USUAL,
			   .max_body = USUAL,
			   .max_output = USUAL };
	const struct option_def defs[] = {
		{ .name = "host", .word = &a.host },
		{ .name = "port", .number = &a.port },
		{ .name = "auth-token", .word = &a.token },
		{ .name = "token-file", .word = &a.token_file },
		{ .name = "in", .text = &a.in },
		{ .name = "from", .word = &a.from },
		{ .name = "test-command", .text = &a.test_command },
		{ .name = "timeout", .text = &a.timeout },
		{ .name = "cloud", .flag = &a.cloud },
		{ .name = "insecure", .flag = &a.insecure },
		{ .name = "certificate", .word = &a.certificate },
		{ .name = "key", .word = &a.key },
		{ .name = "max-connections", .number = &a.max_connections },
		{ .name = "max-body", .number = &a.max_body },
		{ .name = "max-sessions", .number = &a.max_sessions },
		{ .name = "max-output", .number = &a.max_output },
	};
	struct serve_options o = { 0 };
	struct cloud *cloud = NULL;
	sigset_t set;
	int code;

	code = cmd_parse(c, defs, ARRAY_SIZE(defs), 0, 0, 0);
	if (strcmp(a.host, "localhost") == 0)
		a.host = "127.0.0.1";
	if (code == DONE)
		code = find_token(c, &a, &token);
	if (code == DONE)
		code = check(c, &a, token);
	if (code == DONE && a.certificate)
		code = read_small(c, a.certificate, &certificate);
	if (code == DONE && a.key)
		code = read_small(c, a.key, &key);
	if (code)
		return code;

	/* Before there is any thread: they inherit it, and signals come to sigwait alone. */
	block_signals(&set);
	keeper_raise_files(); /* a session takes half a dozen descriptors */
	code = set_up(c, &a, &env);
	if (code)
		return code;
	o.host = a.host;
	o.port = (uint16_t)a.port;
	o.token = token;
	o.certificate = certificate;
	o.key = key;
	o.max_connections = (unsigned)limit(a.max_connections);
	o.max_body = limit(a.max_body);
	o.max_output = limit(a.max_output);
	if (serve_environment(&o, env) < 0)
		return cmd_ply_failed(c);
	o.place.max_sessions = (unsigned)limit(a.max_sessions);
	if (a.cloud && cloud_new(env, &o, &cloud) < 0)
		return cmd_ply_failed(c);
	serve_cloud(&o, cloud);
	code = serve_until(c, &o, env, &set);
	cloud_free(cloud);
	if (ply_env_cleanup(env) < 0 && code == DONE)
		code = cmd_ply_failed(c);
	return code;
}
