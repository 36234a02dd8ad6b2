/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of the reader pool, for the adapter (mount.c): threads that read requests from
 * something served (a mount; a pipe in tests) and handle them. The public face is mount.h.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader;
struct readers;

/*
 * What warm readers have beside their buffers (readers_warm), so that an answer need not wait for
 * the copy of its request's data: slots of the store's stage (store/stage.h), of HEADER_PAGE +
 * DATA_BYTES each. The floor has none.
 */
struct reader_memory {
	void *arg;
	uint8_t *(*take)(void *arg); /* NULL: there is none */
	void (*give)(void *arg, uint8_t *slot);
	/* The calling thread's from now on: its requests are in it (NULL: it has none), or not. */
	void (*serve)(void *arg, uint8_t *slot);
	void (*serve_beside)(void *arg, uint8_t *slot);
	int (*served)(void *arg); /* after each request; negative: give_up, and go on without */
	void (*give_up)(void *arg, uint8_t *slot);
};

/*
 * What one request and one reply need at most: 1 MiB of data (max_write), and before it the headers
 * of a WRITE. The kernel wants room for no less.
 */
#define DATA_BYTES (1024 * 1024)
#define HEADER_BYTES 80
#define REQUEST_BYTES (HEADER_BYTES + DATA_BYTES)
#define REPLY_BYTES DATA_BYTES

/*
 * The calling thread's buffers. Mapped memory: a page that was never touched costs nothing.
 * `request` may change in each function below that says so.
 */
struct reader_buffers {
	uint8_t *request; /* REQUEST_BYTES; where a WRITE's data goes a page begins */
	uint8_t *reply;   /* REPLY_BYTES */
};

/* Embed this in what is served; zero the rest. */
struct served {
	/*
	 * Reads one request (it may wait for one) and handles it. 0: go on, END: there will be no
	 * more. Never called by two threads at once for the reading half; a thread that stepped
	 * aside finishes its request while the next one reads.
	 */
	int (*serve_one)(struct served *s, const struct reader_buffers *buffers);
	/* No thread works on it any more. Called once; *s may be freed here. */
	void (*over)(struct served *s);

	/* of readers.c, under the pool's lock */
	struct reader *leader; /* the thread that reads, or handles what it read last */
	struct served *next_waiting;
	unsigned users; /* threads that read or handle its requests */
	bool ended;     /* serve_one returned END */
};

/* Starts serving. A failure (-EAGAIN, -ENOMEM: no thread to be had) leaves s untouched. */
int readers_serve(struct readers *rs, struct served *s);

/*
 * For a read that must not stop at a page that is not there (eager.c says why): from readers_warm
 * to readers_cool the calling reader's buffers->request, which may be another one then, has all
 * its pages. Cool before waiting long: warm ones are shared.
 */
void readers_warm(void);
void readers_cool(void);
/*
 * The same in the calling reader's slot: buffers->request is there from now on, with pages that
 * were writable a moment ago. As the disk writes them back now and then, and they are not writable
 * until they are touched again, that is for a short wait, and to be said again after it. False: it
 * has no slot (any more), and nothing changed, or all is as after readers_read_beside.
 */
bool readers_read_into_slot(uint64_t now_ns);
/* Again in a buffer of its own. */
void readers_read_beside(void);
/*
 * Right before a read into a slot, if it is one: pages for a request of so many bytes are touched.
 * That takes 4 ns for each (0.1 us for 128 KiB), and would kill us if the disk failed since
 * readers_read_into_slot.
 */
void readers_touch_slot(size_t bytes);
/*
 * Nothing can be read into it (its file was cut, or its disk fails): all is as after
 * readers_read_beside, and nobody gets that slot again. False: it reads into none.
 */
bool readers_lost_slot(void);
/* May the calling reader stay warm however long it waits? As long as it reads, and not all may. */
bool readers_stay_warm(void);

/*
 * Starts a thread with a stack for any handler, without signals; for those that handle requests and
 * are not of a pool (uring.c), too. -errno.
 */
int readers_start_thread(const char *name, void *(*fn)(void *arg), void *arg, pthread_t *ret);

/*
 * As readers_will_block, when the wait could need the very requests that nobody would read
 * meanwhile (a notification takes locks which waiting clients hold): a spare thread is found even
 * beyond max_spare. False: there are too many who wait; who needs those requests must not.
 */
bool readers_step_aside(void);
