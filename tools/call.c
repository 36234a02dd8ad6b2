/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Verbs asked for through a view's ioctl: a sandbox may hide the store's socket, never the view.
 * A call runs in a thread; its output waits in two buffers that PLYFS_IOC_READ empties.
 *
 * INVARIANTS
 *
 *  C1 A call has no descriptors of its caller and no working directory, and only verbs that want
 *     none: whoever sits in a sandbox gets nothing from us that lies outside of it.
 *  C2 Output waits for its reader (BUFFER_MAX); a call that nobody read for EXPIRE_SECONDS is
 *     cancelled, then forgotten.
 *  C3 Only the user and the view that started a call may read it.
 *  C4 A call dies with its daemon, and no other one begins it again or takes it for one of its own:
 *     handles only grow, from daemon to daemon.
 *  C5 A call is freed by calls_expire alone, after its thread was joined, when no reader is in it.
 */

#include <errno.h>
#include <time.h>

#include "fs/memo.h"
#include "store/base/err.h"
#include "store/base/util.h"
#include "tools/daemon.h"

#define CALLS_MAX 64
#define ARGS_MAX 256
#define BUFFER_MAX (256 * 1024) /* a few dozen reads ahead */
#define EXPIRE_SECONDS 60
#define READ_WAIT_MS 500 /* a reader thread is not kept longer; the client asks again */

struct buffer {
	struct call *call;
	char *data;
	size_t len;
};

struct call {
	struct call *next; /* under the daemon's lock */
	struct daemon *daemon;
	const struct view_entry *view; /* immutable; compared, never followed */
	uint64_t handle;	       /* immutable */
	uint32_t uid;		       /* immutable */
	unsigned readers;	       /* under the daemon's lock */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct buffer out, err; /* under lock */
	bool over;		/* under lock: status is set, nothing more will be written */
	bool fetched;		/* under lock: the reader has seen the end */
	int status;
	time_t touched; /* under lock: when somebody last read */

	struct cmd cmd;
	char branch[BRANCH_NAME_MAX + 1];
	char *argv[ARGS_MAX + 1];
	char args[sizeof(((struct plyfs_call *)NULL)->args) + 1];
};

static time_t seconds(void)
{
	return (time_t)now_seconds();
}

static void wait_changed(struct call *call, int ms)
{
	struct timespec until = wait_until((uint64_t)ms);

	pthread_cond_timedwait(&call->changed, &call->lock, &until);
}

static ssize_t buffer_write(void *cookie, const char *data, size_t size)
{
	struct buffer *b = cookie;
	struct call *call = b->call;
	char *grown;
	LOCK_GUARD(&call->lock);

	while (b->len > BUFFER_MAX && !__atomic_load_n(&call->cmd.cancel, __ATOMIC_RELAXED))
		wait_changed(call, 200);
	if (__atomic_load_n(&call->cmd.cancel, __ATOMIC_RELAXED))
		return 0;
	grown = realloc(b->data, b->len + size);
	if (!grown)
		return 0;
	b->data = grown;
	memcpy(b->data + b->len, data, size);
	b->len += size;
	pthread_cond_broadcast(&call->changed);
	return (ssize_t)size;
}

/* Moves up to cap bytes to `to`. */
static uint32_t buffer_take(struct buffer *b, char *to, size_t cap)
{
	size_t n = MIN(b->len, cap);

	if (!n)
		return 0;
	memcpy(to, b->data, n);
	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
	return (uint32_t)n;
}

static FILE *buffer_open(struct call *call, struct buffer *b, int mode)
{
	FILE *f;

	b->call = call;
	f = fopencookie(b, "w", (cookie_io_functions_t){ .write = buffer_write });
	if (f)
		(void)setvbuf(f, NULL, mode, BUFSIZ); /* else it keeps its own */
	return f;
}

static void *call_main(void *arg)
{
	struct call *call = arg;
	int status = verb_run(&call->cmd);

	pthread_mutex_lock(&call->lock);
	call->status = status;
	call->over = true;
	pthread_cond_broadcast(&call->changed);
	pthread_mutex_unlock(&call->lock);
	daemon_wake(call->daemon);
	return NULL;
}

static void call_free(struct call *call)
{
	if (call->cmd.out)
		(void)fclose(call->cmd.out); /* never ran */
	if (call->cmd.err)
		(void)fclose(call->cmd.err);
	free(call->out.data);
	free(call->err.data);
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	free(call);
}

/* NUL-separated words into argv; false when there are none or too many. */
static bool split(struct call *call, const char *args, size_t len)
{
	memcpy(call->args, args, len);
	for (size_t at = 0; at < len; at += strlen(call->args + at) + 1) {
		if (call->cmd.argc == ARGS_MAX)
			return false;
		call->argv[call->cmd.argc++] = call->args + at;
	}
	return call->cmd.argc > 0;
}

int call_start(struct view_entry *e, const struct cred *cred, struct plyfs_call *q)
{
	struct daemon *d = e->daemon;
	struct call *call;
	unsigned n = 0;
	int r;

	if (q->args_len == 0 || q->args_len > sizeof(q->args))
		return -EINVAL;
	call = calloc(1, sizeof(*call));
	if (!call)
		return -ENOMEM;
	pthread_mutex_init(&call->lock, NULL);
	pthread_cond_init(&call->changed, NULL);
	call->daemon = d;
	call->view = e;
	call->uid = cred->uid;
	call->touched = seconds();
	memcpy(call->branch, e->branch, sizeof(call->branch));
	call->cmd = (struct cmd){ .daemon = d,
				  .store = d->store,
				  .argv = call->argv,
				  .in_fd = -1,
				  .out_fd = -1,
				  .cwd_fd = -1,
				  .fuse_fd = -1,
				  .columns = 80,
				  .branch = call->branch,
				  .snapshot = e->snapshot };
	if (!split(call, q->args, q->args_len)) {
		call_free(call);
		return -EINVAL;
	}
	if (!verb_is_known(call->argv[0], true)) {
		call_free(call);
		return -EOPNOTSUPP; /* C1 */
	}
	call->cmd.called = call->argv[0];
	call->cmd.out = buffer_open(call, &call->out, _IOFBF);
	call->cmd.err = buffer_open(call, &call->err, _IOLBF);
	if (!call->cmd.out || !call->cmd.err) {
		call_free(call);
		return -ENOMEM;
	}

	LOCK_GUARD(&d->lock);
	for (struct call *o = d->calls; o; o = o->next)
		n++;
	if (n >= CALLS_MAX || d->ending) {
		call_free(call);
		return -EBUSY;
	}
	if (!memo_begins()) { /* by a daemon that died */
		call_free(call);
		return -ECONNRESET;
	}
	call->handle = ++d->last_call;
	r = pthread_create(&call->thread, NULL, call_main, call);
	if (r) {
		call_free(call);
		return -r;
	}
	call->next = d->calls;
	d->calls = call;
	q->handle = call->handle;
	daemon_wake(d); /* calls expire: the main loop must look at the clock now */
	return 0;
}

int call_read(struct view_entry *e, const struct cred *cred, struct plyfs_read *q)
{
	struct daemon *d = e->daemon;
	struct call *call;

	pthread_mutex_lock(&d->lock);
	for (call = d->calls; call; call = call->next)
		if (call->handle == q->handle && call->view == e && call->uid == cred->uid)
			break;
	if (call)
		call->readers++; /* C5 */
	pthread_mutex_unlock(&d->lock);
	if (!call)
		return q->handle <= d->first_call ? -ECONNRESET : -ENOENT;

	pthread_mutex_lock(&call->lock);
	if (!call->out.len && !call->err.len && !call->over)
		wait_changed(call, READ_WAIT_MS);
	q->out_len = buffer_take(&call->out, q->data, sizeof(q->data));
	q->err_len = buffer_take(&call->err, q->data + q->out_len, sizeof(q->data) - q->out_len);
	q->more = !call->over || call->out.len || call->err.len;
	q->status = q->more ? 0 : call->status;
	call->fetched = !q->more;
	call->touched = seconds();
	pthread_cond_broadcast(&call->changed); /* the writer may wait for room */
	pthread_mutex_unlock(&call->lock);

	pthread_mutex_lock(&d->lock);
	call->readers--;
	pthread_mutex_unlock(&d->lock);
	if (!q->more)
		daemon_wake(d);
	return 0;
}

/* Is it over and of no use any more? Cancels what nobody reads. */
static bool call_is_done(struct call *call, bool all)
{
	LOCK_GUARD(&call->lock);
	bool expired = all || seconds() - call->touched > EXPIRE_SECONDS;

	if (expired && !call->over) {
		__atomic_store_n(&call->cmd.cancel, true, __ATOMIC_RELAXED);
		pthread_cond_broadcast(&call->changed);
	}
	return call->over && (expired || call->fetched);
}

unsigned calls_expire(struct daemon *d, bool all)
{
	struct call *done = NULL;
	unsigned left = 0;

	pthread_mutex_lock(&d->lock);
	for (struct call **p = &d->calls; *p;) {
		struct call *call = *p;

		if (call->readers || !call_is_done(call, all)) {
			left++;
			p = &call->next;
			continue;
		}
		*p = call->next;
		call->next = done;
		done = call;
	}
	pthread_mutex_unlock(&d->lock);

	while (done) {
		struct call *call = done;

		done = call->next;
		pthread_join(call->thread, NULL); /* it is over: at its last instruction */
		call_free(call);
	}
	return left;
}
