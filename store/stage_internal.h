/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Private to stage.c, which has the files, stage_sync.c, which makes them durable, blob.c, which
 * has what lies in them, and loan.c, which lends it.
 *
 * Stage files hold the bytes of blobs one behind the other.
 *
 *	OPEN ----------> SEALING ----------> SEALED
 *	     blob_seal            its chunk
 *	     begins               is stored
 *
 *	OPEN     bytes in the stage; may grow at the end and be overwritten by a sole owner
 *	SEALING  bytes in the stage and fixed; stays so when storing the chunk fails, and the next
 *	         blob_seal tries again
 *	SEALED   bytes in the chunk `name`; file is NULL
 *
 *   1. A blob that is not sealed has its bytes at file[off .. off + len); nobody else's lie there.
 *   2. file->live counts the bytes of unsealed blobs in a file, including those being written. At 0
 *      nothing refers to the file: its room is used again, under another name and from the
 *      beginning.
 *   3. `state`, `file` and `name` change under the blob's lock held for writing, and whoever reads
 *      or writes the file's bytes holds it for reading at least: a file cannot go while in use.
 *   4. len grows (under the lock) only after the bytes are in the file, so whoever reads len
 *      finds them.
 *   5. With a journal (stage_hold) bytes stay where they are, unchanged, while a record that is not
 *      covered may refer to them: places are not reused, and a file in which nothing lives waits
 *      until the records of its time are covered. Records hold references to their blobs until
 *      they have a number, so a file's last blob goes after its last record; a blob that is sealed
 *      just then is found by either side: the record takes its number and then looks for the
 *      blob's name, sealing sets the name and then looks for the last number.
 *   6. Bytes that a group commit made durable are not overwritten in place: it begins a new
 *      *generation*, and blob_write() is for blobs of the present one. While the commit decides
 *      which records it holds, the generation is odd, and nothing at all is overwritten: a blob
 *      made meanwhile may be in one of them.
 *   7. What cannot be read when it is to be sealed becomes, after PATIENCE_ROUNDS, SEALED with the
 *      name of a lost chunk. Nothing new is put into its file, whose room goes back to the disk.
 *
 *   8. Bytes may be pending (behind.h): they are in the file only after behind_settle().
 *   9. file[0 .. durable) needs no sync: a durable mark of the journal says that it had one, or has
 *      a copy that counts (J5). It ends where the file did when the commit began that saw to it:
 *      what was placed by then had been written, and was not overwritten any more, when all
 *      operations had ended that were under way (invariant 6). A sync alone is not enough: a copy
 *      from before it may end in bytes that were overwritten since, and only a whole mark, or the
 *      next copy, keeps these from being put back.
 *  10. What is lent (struct loan) stays where it is, unchanged: its file is held, as one that is
 *      being synced is, nothing pending belongs there (whoever lends settles first), and blob_write
 *      is for a sole owner, while the borrower has a reference beside the tree's. A file that must
 *      not go may be empty meanwhile: its room is not used again (invariant 5). Without a journal
 *      it might be, so then nothing is lent.
 *
 * Order of locks: blob lock > stage lock > chunk locks; a slot's lock after all of them.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "store/base/note.h"
#include "store/behind.h"
#include "store/blob.h"

/*
 * There are many blobs (one per file written between two seals), so they stay small and share locks
 * by address: two busy threads meet by chance in 1 of so many cases.
 */
#define STAGE_LOCKS 64

/* A file is left for the next at this size. */
#define STAGE_FILE_MAX (64 * 1024 * 1024)

struct stage_file {
	struct stage_file *next; /* under the stage's lock, like all below but fd and number */
	uint32_t number;
	int fd;
	uint64_t end;  /* where the next blob goes */
	/*
	 * Bytes on disk: the highest end since it was cut, and GROW_BYTES. Of a file that is not
	 * current who is giving_back changes it without the lock.
	 */
	uint64_t size;
	uint64_t live; /* invariant 2 */
	uint64_t until; /* with nothing alive: the last record of its time (invariant 5) */
	uint64_t begun; /* the end when the last group commit began (invariant 9) */
	uint64_t durable; /* invariant 9 */
	unsigned held; /* by so many that sync it or lend what is in it: it must not go */
	void *map; /* STAGE_FILE_MAX bytes, once something was lent; owned, only read */
	bool bad;      /* some of it cannot be read: its room is not used again */
	atomic_bool dirty; /* has bytes that are not synced; set after they were written */
};

struct stage {
	int dir_fd;             /* immutable, owned: "stage" */
	struct chunks *chunks;  /* immutable, borrowed */
	struct noter noter;     /* immutable */
	struct behind *behind;  /* immutable, owned */
	pthread_rwlock_t locks[STAGE_LOCKS]; /* of blobs */

	pthread_mutex_t lock;
	struct stage_file *files;   /* under lock, owned */
	struct stage_file *current; /* under lock: takes new blobs, may be NULL */
	struct stage_file *spare;   /* under lock, owned: not among the files; SPARES_MAX stay */
	struct stage_file *gone;    /* under lock, owned: to be deleted */
	bool giving_back;           /* under lock: somebody cuts files without it */
	uint32_t last_number;
	_Atomic uintptr_t tail; /* address of the blob placed last, which may be gone by now */
	/* Bytes alive, and up to the files' ends; change under lock, read without it. */
	_Atomic uint64_t unsealed, placed;
	_Atomic uint64_t disk;           /* bytes of files; less of them without the lock as well */
	_Atomic uint64_t behind_bytes;   /* stage_is_behind; changes under lock, read without it */
	uint64_t blobs;                  /* under lock: how many */
	const _Atomic uint64_t *lsn;    /* the journal's last record, borrowed; NULL: no journal */
	uint64_t covered;               /* under lock: records up to it are in the index */
	bool names_dirty;               /* under lock: a file was made since the last sync */
	_Atomic uint32_t generation;    /* invariant 6 */
	/* blob.c's, while the store is opened by one thread: a hash table, one reference each */
	struct blob **adopted;
	size_t n_adopted, adopted_size;
	uint64_t free_bytes;            /* under lock: at the last check */
	uint64_t since_check;           /* under lock: bytes staged since */
	int64_t checked_ns, staged_ns;  /* under lock: of that check, and when a blob wanted room */
	bool unreadable;                /* under lock: in this round something could not be read */
	unsigned unreadable_rounds;     /* under lock: in so many before it, in a row */
	uint64_t gave_up;               /* under lock: bytes that nobody was told of yet */
};

/* Where a blob's bytes are. */
struct stage_place {
	struct stage_file *file;
	uint32_t number;     /* of the file, also when that is gone */
	uint32_t off;        /* in it */
	uint32_t generation; /* when it was taken (invariant 6) */
};

/*
 * len bytes of the current file, counted as alive: what lives in a file holds it. `who` is told
 * apart from others placed later (stage_may_append). -ENOSPC as blob_new.
 */
int stage_take(struct stage *s, const struct blob *who, uint32_t len, struct stage_place *ret);
/* A blob of len bytes lives there no longer. */
void stage_drop(struct stage *s, const struct stage_place *p, uint32_t len);
/* len bytes more behind the first `have`. AGAIN: something is there, or the file is full. */
int stage_extend(struct stage *s, const struct stage_place *p, uint32_t have, uint32_t len);
/* Takes that back. */
void stage_unextend(struct stage *s, const struct stage_place *p, uint32_t have, uint32_t len);

/* Where there is something already, `over`; else what is pending is not looked at. */
int stage_write(struct stage *s, const struct stage_place *p, uint32_t off, const void *data,
		size_t len, bool over);
int stage_read(struct stage *s, const struct stage_place *p, uint32_t off, void *buf, size_t len);

/* Under the lock: it is held once less, and may go. */
void stage_let_go(struct stage *s, struct stage_file *file);

/* As blob_lend, of a blob that is not sealed. */
const void *stage_lend(struct stage *s, const struct stage_place *p, uint32_t off, size_t len,
		       struct loan *loan);

/* A file that was left over and has `end` bytes or more; NULL: there is none. */
struct stage_file *stage_find(struct stage *s, uint32_t number, uint64_t end);
/* Of a blob that was found again, for the first time or longer: more bytes of it are alive. */
void stage_adopt(struct stage *s, const struct stage_place *p, uint32_t more, bool is_new);

/* Something cannot be read that is to be sealed. True: that may pass; false: give it up. */
bool stage_is_patient(struct stage *s);
/* The blob there, of len bytes, is given up (invariant 7). */
void stage_lose(struct stage *s, const struct stage_place *p, uint32_t len);
