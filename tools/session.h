/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A session of the program: a process in the background that holds a ply_session, and what it and
 * the verbs say to each other on a socket (SOCK_SEQPACKET) in a directory of ours alone. One
 * request per connection. What may be long (a command, its output) is in a memfd beside it.
 *
 * A command that nobody waits for any more, since who asked was killed, is interrupted; who comes
 * meanwhile waits for that.
 *
 * The process ends with its shell, when it is told to, on SIGTERM, and when its view is unmounted.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

#include "tools/env.h"

enum session_op {
	SESSION_RUN,	   /* bytes: the command, NUL, perhaps a regular expression, NUL */
	SESSION_INTERRUPT, /* what runs */
	SESSION_INFO,
	SESSION_END, /* is answered by the process's end: the connection closes */
};

struct session_request {
	uint32_t op;
	double timeout;		/* 0: none */
	uint64_t len;		/* of the bytes */
	uint64_t command_len;	/* of them */
	bool expects, quits;	/* there is an expression; the command ends what was asking */
};

struct session_answer { /* with the output in a memfd, if it was SESSION_RUN */
	int32_t status;	/* enum ply_status; PLY_TIMEOUT: it was interrupted then */
	int32_t exit_code;
	int32_t matched; /* the expression was seen: 0; else -1 */
	pid_t pid;
	bool busy;
	bool asks; /* a program was begun that asks, and nothing has told of its end */
	char name[64];
	char dir[4096];
	char text[1024]; /* ply_error() */
};

/* A message with a descriptor beside it (-1: none). -errno; END of the socket: -EPIPE. */
int host_send(int sock, const void *message, size_t size, int fd);
int host_receive(int sock, void *message, size_t size, int *ret_fd);

/* ---- where they are: see session.c ---- */

#define SESSION_NAME_MAX (16 + 1 + 63 + 1)

/* The name of its socket in the directory of sessions. */
void host_socket_name(const char *mount, const char *name, char ret[static SESSION_NAME_MAX]);
int host_directory(const struct cmd *c, int *ret_dir);
struct sockaddr_un host_address(int dir, const char *name);
/* A connection; -errno; -ENOENT: no such session (what a killed one left is removed). */
int host_reach(int dir, const char *name, int *ret_sock);
