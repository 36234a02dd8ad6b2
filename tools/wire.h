/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What client and daemon say to each other on STORE/sock (a SOCK_SEQPACKET socket: one message is
 * one packet).
 *
 *   daemon: answer   hello, as soon as it accepted: its version; status other than 0 is a refusal
 *   client: request  the verb's words, some of the environment, descriptors by SCM_RIGHTS
 *   daemon: answer   the exit code, when the verb is done
 *
 * The hello comes first so that a client whose connection waited in the queue of a daemon that was
 * about to end can tell "never taken up: try again" (no hello) from "died at work" (hello, no
 * answer). A client that goes away cancels its verb. Integers are native: it is all one machine.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x504c5957u /* "WYLP" */
#define WIRE_VERSION 1
/* The default socket buffer is 208 KiB, bookkeeping included: half of it always passes. */
#define WIRE_MAX (96 * 1024)
#define WIRE_TEXT_MAX 1024
#define WIRE_STRINGS_MAX 4096

enum wire_fd { WIRE_CWD, WIRE_IN, WIRE_OUT, WIRE_ERR, WIRE_FUSE, WIRE_FDS };

struct wire_request {
	int argc, n_env;
	char **argv, **env; /* NULL-terminated */
	uint64_t snapshot;  /* of the read-only view that the client is in */
	char branch[64];    /* of the view that the client is in */
	int fd[WIRE_FDS];   /* -1: not sent */
	void *memory;	    /* private: what a received request points into */
};

struct wire_answer {
	uint32_t version; /* of the protocol */
	int32_t status;
	int32_t pid;
	char text
		[WIRE_TEXT_MAX]; /* hello: the program's version, or why it refuses; may be empty.
				  * The last one: why the verb was not begun; when it is done,
				  * where a view is mounted that plyfs_see_restored is for,
				  * before that, if it takes states, these, each with a blank
				  * behind it; else empty */
};

/* All: 0, or -errno; -EMSGSIZE for a request that is too long; -EPROTO for senseless bytes. */
int wire_send_request(int sock, const struct wire_request *q);
/* Received descriptors are close-on-exec. END when the other side hung up. Free with _release. */
int wire_recv_request(int sock, struct wire_request *ret);
void wire_request_release(struct wire_request *q); /* closes the descriptors, too */
int wire_send_answer(int sock, const struct wire_answer *a);
/*
 * END when the other side hung up; AGAIN when it did before it had read all that we sent. Answers
 * of other versions arrive with version and status.
 */
int wire_recv_answer(int sock, struct wire_answer *ret);
