/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The SWE-ReX remote runtime protocol: its endpoints on sessions (session.h), commands (proc.h) and
 * the files of the machine that we stand on. Knows no environment and no store, so that the program
 * that takes swerex-remote's place in a container is this and a socket.
 *
 * What a client can observe is kept to the byte where it matters; where the reference is defective
 * README.md says what is done instead.
 */

#include <limits.h>

#include <jansson.h>

#include "env/proc.h"
#include "env/serve/endpoint.h"

struct rex;

/*
 * What is kept of a command's output. It is held in memory, for a moment up to five times: as
 * bytes, as text, as JSON that grows.
 */
#define REX_OUTPUT_LIMIT (UINT64_C(256) << 20)

/* Where sessions and commands run. Everything is borrowed. */
struct rex_place {
	struct keeper *keeper;
	const char *cwd; /* NULL: where the server stands */
	/* As env_ops.wrap and env_ops.locate (below root); NULL: as they are. */
	int (*wrap)(void *arg, const char *const *argv, const char *const *env, bool terminal,
		    char ***ret);
	int (*locate)(void *arg, const char *path, char ret[static PATH_MAX]);
	const char *root;
	void *arg; /* theirs */
	struct proc_limits limits;
	uint64_t output_limit; /* bytes of a command; 0: REX_OUTPUT_LIMIT; more is an error */
	unsigned max_sessions; /* 0: 512 */
};

int rex_new(const struct rex_place *place, struct rex **ret);
void rex_free(struct rex *rex); /* ends all sessions; no request may be running */
/* Ends all sessions, commands, reads and writes that wait: requests return soon. */
void rex_abandon(struct rex *rex);

extern const struct endpoint rex_endpoints[]; /* their arg is a struct rex */
extern const size_t n_rex_endpoints;

unsigned rex_sessions(struct rex *rex); /* how many there are */

/* The words before a directory and a command that run the one in the other. */
extern const char *const rex_enter[];

/* ---- for the files of this protocol ---- */

/*
 * 511 and the envelope. class: "builtins.FileNotFoundError", "swerex.exceptions.X". The message
 * need not be UTF-8.
 */
void rex_raisef(struct http_response *r, const char *class, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * The same with a text that was put together, whose last status is `s`: below 0 it is a MemoryError
 * instead. Releases the text. extra: NULL, or a reference that is taken.
 */
void rex_raise_text(struct http_response *r, const char *class, int s, struct ply_text *text,
		    json_t *extra);
/* OSError or the subclass that belongs to err: "[Errno 2] No such file or directory: 'PATH'". */
void rex_raise_errno(struct http_response *r, int err, const char *path, size_t len);
/* A command printed more than the place allows. */
void rex_raise_limit(struct http_response *r, const struct rex_place *place);
/* A string for JSON: bytes that are not UTF-8 become \xNN, as four characters. */
json_t *rex_text(const char *data, size_t len);
/* A float as Python writes it. */
const char *rex_float(double d, char buf[static 32]);

const struct rex_place *rex_get_place(const struct rex *rex);
/* Polls POLLIN when the requests that still wait for something are to end; borrowed. */
int rex_end_watch(const struct rex *rex);
bool rex_ends(const struct rex *rex); /* for what waits for nothing, but takes its time */

/* As str(pathlib.Path(path)): "" is ".", no empty or "." parts. Given; NULL: no memory. */
char *rex_path(const char *path);
/*
 * rex_path.c: -errno, EACCES for what leads out of the place. "" is the cwd. Reading and writing do
 * not block.
 */
int rex_open(struct rex *rex, const char *path, int flags, unsigned mode);
/* The directory that holds path, O_PATH; *ret_leaf points into path. */
int rex_open_parent(struct rex *rex, const char *path, const char **ret_leaf);
/* Opens below dir and nowhere else, whatever symlinks say. */
int rex_open_below(int dir, const char *path, int flags, unsigned mode);
/* As os.makedirs(exist_ok=True): 0, or what was raised is in *r and -1. */
int rex_make_directory(struct rex *rex, const char *path, struct http_response *r);
/* The same for the directories above path. */
int rex_make_parents(struct rex *rex, const char *path, struct http_response *r);

/*
 * rex_codec.c: bytes as text, in UTF-8. encoding: one that rex_check_encoding knows; errors: the
 * name of Python's handler. 0; 1: raised; -ENOMEM.
 */
int rex_decode(const struct ply_text *in, const char *encoding, const char *errors,
	       struct ply_text *ret, struct http_response *r);
int rex_check_encoding(const char *encoding, struct http_response *r); /* 0; 1: raised */

/* rex_files.c: write_all of what rex_open gave; -ECANCELED: the client has gone, or we end. */
int rex_write_all(struct rex *rex, const struct http_request *q, int fd, const void *data,
		  size_t len);

/* rex_execute.c, rex_files.c, rex_upload.c */
void rex_execute(void *arg, const struct http_request *q, struct http_response *r);
void rex_read_file(void *arg, const struct http_request *q, struct http_response *r);
void rex_write_file(void *arg, const struct http_request *q, struct http_response *r);
void rex_upload(void *arg, const struct http_request *q, struct http_response *r);
