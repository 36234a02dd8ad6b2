/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Records between the daemon and the programs that libarchive and libgit2 live in, on a stream
 * socket; env/transfer/helper.h is the daemon's end of it, program.h theirs. Both sides are of one
 * installation (HELLO sees to it), so the bytes may change with any version. Neither side believes
 * the other: what comes is checked before it is used.
 *
 *   record: le32 kind, le32 length, so many bytes
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/inode.h"
#include "store/base/util.h"

/* An attribute is at most 64 KiB; a member's names are what libarchive takes, 1 MiB each. */
#define RECORD_MAX (4u << 20)
#define RECORD_DATA_MAX (64u << 10) /* of file content in one record: in the cache all the way */

/* Descriptors that a program is started with: the socket; the archive, if there is one. */
#define CHAN_SOCKET_FD 3
#define CHAN_ARCHIVE_FD 4
#define CHAN_FDS_END 5

enum record_kind {
	REC_HELLO = 1, /* the program's first word: its version, text */
	REC_MEMBER,    /* struct member */
	REC_XATTR,     /* of the member: name, NUL, value */
	REC_RUN,       /* of the member, when not all of it is data: le64 offset, le64 length */
	REC_DATA,      /* of the member: le64 offset, bytes */
	REC_SKIP,      /* something was left out: the line for people */
	REC_SIDES,     /* two contents to compare: struct sides; their bytes in REC_DATA */
	REC_TEXT,      /* of the answer: a piece of a patch */
	REC_COUNT,     /* the answer's end: le64 lines added, le64 lines removed */
	REC_FAILED,    /* le32 of -r, the note; nothing follows */
	REC_END,       /* all was said; nothing follows. A layer: the digest of its tar, text */
};

struct record {
	enum record_kind kind;
	const uint8_t *data; /* in the channel's buffer, until the next one */
	size_t len;
};

struct chan {
	int fd; /* borrowed */
	/*
	 * Asked every CHAN_LOOK_MS while the other side lets us wait; non-zero is what the call
	 * returns. NULL: waits for ever.
	 */
	int (*look)(void *arg);
	void *arg;
	/* Of a program that ends without having done its task: what it has begun goes. Or NULL. */
	void (*drop)(void *arg);
	void *drop_arg;
	uint8_t *in, *out; /* owned */
	size_t in_cap, in_at, in_len, out_len;
};
#define CHAN_LOOK_MS 200 /* a person does not notice */

void chan_release(struct chan *c);

/* Adds a record of `head`, then `tail` (may be NULL); sent when enough has come together. */
int chan_put(struct chan *c, enum record_kind kind, const void *head, size_t head_len,
	     const void *tail, size_t tail_len);
/* Sends what was put. -EPIPE: nobody is there any more; what they said last may still be read. */
int chan_flush(struct chan *c);
/* Is there anything to be read, without waiting? Also true when the other side has gone. */
bool chan_ready(const struct chan *c);
/* The next record. END: the other side has gone, between two records or within one. */
int chan_get(struct chan *c, struct record *ret);

/* One object of a tree. Its ino, nlink and what follows from the tree are nothing here. */
struct member {
	struct inode inode;
	const char *path;   /* lent, as all three; as it was written, unchecked */
	const char *link;   /* a hard link to that; or NULL */
	const char *target; /* of a symlink; or NULL */
};
int chan_put_member(struct chan *c, const struct member *m);
/* False: no member. The strings point into the record. */
bool record_member(const struct record *r, struct member *ret);

int chan_put_xattr(struct chan *c, const char *name, const void *value, size_t len);
bool record_xattr(const struct record *r, const char **ret_name, const void **ret_value,
		  size_t *ret_len);

int chan_put_run(struct chan *c, enum record_kind kind, uint64_t a, uint64_t b);
/* Of REC_RUN and REC_COUNT. */
bool record_run(const struct record *r, uint64_t *ret_a, uint64_t *ret_b);

/* In as many records as it takes. */
int chan_put_data(struct chan *c, uint64_t off, const void *data, size_t len);
/* Never empty. */
bool record_data(const struct record *r, uint64_t *ret_off, const void **ret_data, size_t *ret_len);

/* Of REC_FAILED: < 0, whatever was sent. *ret_text is malloced, given; NULL without memory. */
int record_failed(const struct record *r, char **ret_text);
/* Text of REC_SKIP, REC_HELLO, REC_END: up to size - 1 bytes of it, ended by a NUL. */
void record_text(const struct record *r, char *ret, size_t size);

/*
 * Two contents, old and new: what REC_DATA carries after it is old_len bytes, then new_len, their
 * offsets counted through.
 */
#define PATCH_FILE_MAX \
	(UINT64_C(512) << 20) /* git's core.bigFileThreshold; both sides lie in memory */
struct sides {
	bool old_there, new_there; /* else the file comes, or goes */
	bool binary;		   /* a GIT binary patch is wanted */
	bool count;		   /* no text, only the numbers */
	uint64_t old_len, new_len;
};
int chan_put_sides(struct chan *c, const struct sides *s);
bool record_sides(const struct record *r, struct sides *ret);
