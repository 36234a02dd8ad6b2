/* SPDX-License-Identifier: Apache-2.0 */

/*
 * swerex-remote: the server of the SWE-ReX protocol, with that program's flags, for putting in its
 * place in any machine or container image: one statically linked file, which is its own keeper.
 */

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/json_memory.h"
#include "env/keeper.h"
#include "env/proc.h"
#include "env/serve/serve.h"
#include "env/serve/view.h"
#include "store/base/util.h"
#include "tools/standard_fds.h"

/* Deployments stop the server and then look whether it is gone; a command has this long to end. */
#define GRACE_SECONDS 2.0

static const char usage[] = "usage: swerex-remote [-h] [-v] [--host HOST] [--port PORT] "
			    "--auth-token AUTH_TOKEN\n";

/* The exit code, or -1: it is to serve. Either way the caller frees *token, which o has. */
static int parse(int argc, char **argv, struct serve_options *o, char **token)
{
	static const struct option options[] = {
		{ "host", required_argument, NULL, 'H' },
		{ "port", required_argument, NULL, 'p' },
		{ "auth-token", required_argument, NULL, 't' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	long port;
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "vh", options, NULL)) >= 0) {
		switch (c) {
		case 'H':
			o->host = strcmp(optarg, "localhost") == 0 ? "127.0.0.1" : optarg;
			break;
		case 'p':
			port = strtol(optarg, &end, 10);
			if (!*optarg || *end || port < 0 || port > UINT16_MAX) {
				fprintf(stderr, "%sswerex-remote: error: argument --port: invalid "
						"int value: '%s'\n",
					usage, optarg);
				return 2;
			}
			o->port = (uint16_t)port;
			break;
		case 't':
			free(*token);
			o->token = *token = strdup(optarg);
			if (!o->token) {
				fprintf(stderr, "swerex-remote: %s\n", strerror(ENOMEM));
				return 1;
			}
			memset(optarg, 'x', strlen(optarg)); /* /proc shows it to everybody */
			break;
		case 'v':
			if (argc > 2) {
				fprintf(stderr, "swerex-remote: -v takes no other arguments\n");
				return 1;
			}
			puts(PLYFS_VERSION);
			return 0;
		case 'h':
			printf("%s\nServes the SWE-ReX remote runtime protocol.\n"
			       "  --host HOST         the address to listen at (0.0.0.0)\n"
			       "  --port PORT         (8000); 0: any free one, which is printed\n"
			       "  --auth-token TOKEN  what clients must send; '': nothing\n"
			       "Limits: 1024 connections, 512 sessions, bodies of 4 GiB (of JSON: "
			       "512 MiB),\n256 MiB of a command's output. Without a token no web "
			       "page is served.\n",
			       usage);
			return 0;
		default:
			fputs(usage, stderr);
			return 2;
		}
	}
	if (!o->token) {
		fprintf(stderr,
			"%sswerex-remote: error: the following arguments are required: "
			"--auth-token\n",
			usage);
		return 2;
	}
	if (optind == argc)
		return -1;
	fprintf(stderr, "%sswerex-remote: error: unrecognized arguments:", usage);
	for (; optind < argc; optind++)
		fprintf(stderr, " %s", argv[optind]);
	fputc('\n', stderr);
	return 2;
}

int main(int argc, char **argv)
{
	struct serve_options o = { .host = "0.0.0.0", .port = 8000 };
	_cleanup_free_ char *token = NULL;
	struct serve *serve;
	sigset_t set;
	int r, sig;

	if (strcmp(argv[0], "plyfs-keeper") == 0)
		return keeper_program();
	keep_standard_fds();
	keeper_is("/proc/self/exe");
	json_memory_watch();
	r = parse(argc, argv, &o, &token);
	if (r >= 0)
		return r;

	/* Before any thread: they inherit it, and signals come to sigwait alone. */
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	(void)pthread_sigmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGXFSZ, SIG_IGN); /* beyond `ulimit -f` a write fails, and nobody else ends */

	if (access("/proc/self/exe", X_OK) < 0) { /* in a bare chroot */
		fprintf(stderr, "swerex-remote: /proc is not mounted here, or is another's\n");
		return 1;
	}
	keeper_raise_files(); /* a session takes half a dozen descriptors */
	(void)serve_view(&o); /* elsewhere there is nothing to checkpoint */
	if (keeper_start(&o.place.keeper) < 0 || serve_start(&o, &serve) < 0) {
		fprintf(stderr, "swerex-remote: %s\n", ply_error());
		keeper_end(o.place.keeper);
		return 1;
	}
	printf("listening at %s port %u\n", o.host, serve_port(serve));
	(void)fflush(stdout);
	(void)sigwait(&set, &sig);
	serve_stop(serve, GRACE_SECONDS);
	keeper_end(o.place.keeper);
	return 0;
}
