/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libmicrohttpd calls us once with the headers, then for each piece of the body, then once more;
 * only that last call answers. A thread per connection: a handler blocks nobody but its client.
 */

#include "env/serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "env/pytext.h"
#include "env/serve/arrival.h"
#include "env/serve/multipart.h"
#include "env/serve/spool.h"
#include "env/status.h"
#include "store/base/util.h"

#define MAX_CONNECTIONS 1024
#define CONNECTIONS_TO_REFUSE 64 /* above the limit: told so; beyond them: closed without a word */
#define IDLE_SECONDS 75
#define ARRIVAL_TIMES_IDLE 2 /* who was silent that long still has as long for a header block */
#define ABANDONED_SECONDS 2 /* for answers of what was just ended */
#define ABANDON_AGAIN_SECONDS 0.2 /* what is killed ends sooner, unless there was more of it */
#define MAX_BODY (UINT64_C(4) << 30)
#define STREAM_BLOCK (16 * 1024)
#define FILE_BLOCK (32 * 1024) /* larger ones were not faster */
/* About half of it is for a header block; the reference takes 64 KiB. Unused pages cost none. */
#define CONNECTION_MEMORY (192 * 1024)
/*
 * Handlers run commands and parse JSON of depth up to 2048 by recursion; the default of 8 MiB times
 * a thousand connections is only address space, but some containers limit that.
 */
#define THREAD_STACK (1024 * 1024)

#define ENDING "this server is about to end"
#define TOO_LARGE "the body of this request is too large"

struct http_server {
	struct MHD_Daemon *daemon;
	struct http_options o;
	char *temporary; /* owned */
	int listener;	 /* owned once it listens no more; MHD_INVALID_SOCKET: it does, -1 */
	uint16_t port;
	pthread_mutex_t lock;
	pthread_cond_t idle;
	unsigned running;  /* under lock: requests that have begun and are not answered */
	unsigned handlers; /* under lock: calls of handle */
	bool stopping;	   /* under lock: no request begins any more, */
	bool abandoned;	   /* under lock: nor does a handler of those that have begun */
	atomic_uint connections;
	_Atomic uint64_t trimmed_ns; /* when trim() was last due */
	struct arrivals *arrivals; /* owned */
};

struct connection {
	struct arrival *arrival;
	bool is_too_many; /* there were as many as may be when it came */
};

struct exchange { /* one request */
	struct http_server *server;
	struct http_request q;
	struct arrival *arrival; /* the connection's */
	struct spool body;
	struct spool parts[HTTP_PARTS_MAX];
	struct http_part part_list[HTTP_PARTS_MAX];
	struct multipart *form;
	uint64_t received;
	struct http_response refusal;
	bool refused;
	/* Refused, and no more of its body is read: none knows its end, or it is to be sent yet. */
	bool unread;
};

/* ---- what a handler asks ---- */

const char *http_header(const struct http_request *q, const char *name)
{
	return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

const char *http_argument(const struct http_request *q, const char *name, size_t *ret_len)
{
	const char *value = NULL;

	(void)MHD_lookup_connection_value_n(q->connection, MHD_GET_ARGUMENT_KIND, name,
					    strlen(name), &value, ret_len); /* MHD_NO: NULL */
	return value;
}

struct query {
	struct ply_text *text; /* appended to */
	char before;	       /* the next argument */
	int r;
};

static enum MHD_Result add_argument(void *arg, enum MHD_ValueKind kind, const char *name,
				    const char *value)
{
	struct query *to = arg;

	to->r = text_append(to->text, &to->before, 1);
	to->before = '&';
	if (to->r == 0)
		to->r = text_append_url(to->text, name, "%20");
	if (to->r == 0 && value)
		to->r = text_append(to->text, "=", 1);
	if (to->r == 0 && value)
		to->r = text_append_url(to->text, value, "%20");
	return to->r < 0 ? MHD_NO : MHD_YES;
}

int http_query(const struct http_request *q, struct ply_text *text)
{
	struct query to = { .text = text, .before = '?' };

	(void)MHD_get_connection_values(q->connection, MHD_GET_ARGUMENT_KIND, add_argument, &to);
	return to.r;
}

const struct http_part *http_part(const struct http_request *q, const char *name)
{
	for (size_t i = q->n_parts; i-- > 0;) /* as of JSON, the last of a name counts */
		if (strcmp(q->parts[i].name, name) == 0)
			return &q->parts[i];
	return NULL;
}

int http_watch(const struct http_request *q)
{
	const union MHD_ConnectionInfo *info =
		q->connection ? MHD_get_connection_info(q->connection,
							MHD_CONNECTION_INFO_CONNECTION_FD) :
				NULL;
	struct epoll_event hangup = { .events = EPOLLRDHUP };
	_cleanup_close_ int fd = info ? epoll_create1(EPOLL_CLOEXEC) : -1;

	/* What the client sends is no news: POLLIN of the socket itself would be that, too. */
	if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, info->connect_fd, &hangup) < 0)
		return -1;
	return TAKE_FD(fd);
}

/* ---- answers ---- */

static void response_release(struct http_response *r)
{
	free(r->body);
	free(r->header_value);
	closep(&r->fd);
	*r = (struct http_response){ .fd = -1 };
}

static void refuse(struct exchange *x, unsigned status, const char *detail)
{
	if (x->refused)
		return;
	x->refused = true;
	x->refusal = (struct http_response){ .status = status, .fd = -1 };
	if (asprintf(&x->refusal.body, "{\"detail\":\"%s\"}", detail) < 0)
		x->refusal.body = NULL;
	x->refusal.len = x->refusal.body ? strlen(x->refusal.body) : 0;
}

static void refuse_and_close(struct exchange *x, unsigned status, const char *detail)
{
	if (x->refused)
		return;
	refuse(x, status, detail);
	x->refusal.header_name = "Connection";
	x->refusal.header_value = strdup("close");
}

/* A stream is written by a thread of its own into a pipe, which libmicrohttpd reads. */
struct stream {
	void (*write)(void *arg, bool (*emit)(void *to, const char *data, size_t len), void *to);
	void *arg;
	void (*free_arg)(void *arg);
	void (*late)(void *arg); /* NULL: none, or it was told */
	double until;
	int in, out;
	pthread_t thread;
};

/* Until the client takes more. */
static void stream_wait(struct stream *s)
{
	struct pollfd room = { .fd = s->in, .events = POLLOUT };
	double left = s->until - now_seconds();

	/* Not more than poll's int holds; who comes back too soon waits again. */
	if (poll(&room, 1, !s->late ? -1 : left > 0 ? (int)(MIN(left, 1e6) * 1000) + 1 : 0) != 0)
		return;
	if (now_seconds() >= s->until) {
		s->late(s->arg);
		s->late = NULL;
	}
}

static bool stream_emit(void *to, const char *data, size_t len)
{
	struct stream *s = to;

	while (len > 0) {
		ssize_t n = send(s->in, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			stream_wait(s);
			continue;
		}
		if (n < 0)
			return false;
		data += n;
		len -= (size_t)n;
	}
	return true;
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;

	s->write(s->arg, stream_emit, s);
	(void)shutdown(s->in, SHUT_WR);
	return NULL;
}

static ssize_t stream_read(void *arg, uint64_t pos, char *buf, size_t max)
{
	struct stream *s = arg;
	ssize_t n;

	do
		n = read(s->out, buf, max);
	while (n < 0 && errno == EINTR);
	return n > 0	? n
	       : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM
			: MHD_CONTENT_READER_END_WITH_ERROR;
}

static void stream_free(void *arg)
{
	struct stream *s = arg;

	(void)shutdown(s->out, SHUT_RDWR); /* the writer's next emit fails */
	(void)pthread_join(s->thread, NULL);
	(void)close(s->in);
	(void)close(s->out);
	s->free_arg(s->arg);
	free(s);
}

static struct MHD_Response *stream_response(struct http_response *r)
{
	struct stream *s = calloc(1, sizeof(*s));
	struct MHD_Response *m;
	int pair[2];

	if (!s || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		free(s);
		r->stream_free(r->stream_arg);
		return NULL;
	}
	*s = (struct stream){ .write = r->stream,
			      .arg = r->stream_arg,
			      .free_arg = r->stream_free,
			      .late = r->stream_late,
			      .until = r->stream_until,
			      .in = pair[0],
			      .out = pair[1] };
	if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
		(void)close(pair[0]);
		(void)close(pair[1]);
		free(s);
		r->stream_free(r->stream_arg);
		return NULL;
	}
	m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, s,
					      stream_free);
	if (!m)
		stream_free(s);
	return m;
}

/*
 * Of a file, piece by piece: libmicrohttpd's own way, by sendfile(), tries for ever to send what is
 * not there when the file has become shorter meanwhile. Here the connection is closed.
 */
static ssize_t file_read(void *arg, uint64_t pos, char *buf, size_t max)
{
	ssize_t n;

	do
		n = pread((int)(intptr_t)arg, buf, max, (off_t)pos);
	while (n < 0 && errno == EINTR);
	return n > 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void file_free(void *arg)
{
	(void)close((int)(intptr_t)arg);
}

static struct MHD_Response *file_response(struct http_response *r)
{
	off_t size = lseek(r->fd, 0, SEEK_END);
	struct MHD_Response *m =
		size < 0 ? NULL :
			   MHD_create_response_from_callback((uint64_t)size, FILE_BLOCK, file_read,
							     (void *)(intptr_t)r->fd, file_free);

	if (m)
		r->fd = -1; /* closed with the response */
	return m;
}

static enum MHD_Result answer(struct MHD_Connection *c, struct http_response *r)
{
	struct MHD_Response *m;
	enum MHD_Result result;

	if (r->stream) {
		m = stream_response(r);
	} else if (r->fd >= 0) {
		m = file_response(r);
	} else {
		m = MHD_create_response_from_buffer(r->len, r->body ? r->body : (char *)"",
						    r->body ? MHD_RESPMEM_MUST_FREE
							    : MHD_RESPMEM_PERSISTENT);
		if (m)
			r->body = NULL;
	}
	if (!m) {
		response_release(r);
		return MHD_NO; /* closes the connection: there is no memory to say anything */
	}
	(void)MHD_add_response_header(m, "Content-Type", r->type ? r->type : "application/json");
	/* Or a web page could load a file of ours as its script, and read what it sets. */
	(void)MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
	if (r->header_name && r->header_value)
		(void)MHD_add_response_header(m, r->header_name, r->header_value);
	result = MHD_queue_response(c, r->status, m);
	MHD_destroy_response(m);
	response_release(r);
	return result;
}

/* ---- requests ---- */

static int form_part(void *arg, const char *name, const char *filename)
{
	struct exchange *x = arg;
	size_t i = x->q.n_parts;

	if (i == HTTP_PARTS_MAX)
		return fail(PLY_INVALID, "too many parts in this form");
	x->part_list[i].fd = x->parts[i].fd = -1;
	x->q.n_parts++;
	x->part_list[i].name = strdup(name);
	x->part_list[i].filename = filename ? strdup(filename) : NULL;
	return x->part_list[i].name && (!filename || x->part_list[i].filename) ? 0 : fail_memory();
}

static int form_data(void *arg, const char *data, size_t len)
{
	struct exchange *x = arg;

	if (spool_add(&x->parts[x->q.n_parts - 1], x->server->temporary, data, len) < 0)
		return fail(PLY_FAILED, "no room for the body of this request");
	return 0;
}

static const struct multipart_sink form_sink = { .part = form_part, .data = form_data };

static void refuse_form(struct exchange *x, int status)
{
	refuse(x, status == PLY_INVALID ? 400 : status == PLY_NO_MEMORY ? 500 : 507, ply_error());
}

/* Whether a request may still begin; its answer is waited for in any case. */
static bool running_begin(struct http_server *s)
{
	LOCK_GUARD(&s->lock);

	s->running++;
	return !s->stopping;
}

static void running_end(struct http_server *s)
{
	LOCK_GUARD(&s->lock);

	if (--s->running == 0)
		pthread_cond_broadcast(&s->idle);
}

/* Whether a handler may still begin: abandon() would not know of what it starts then. */
static bool handler_begin(struct http_server *s)
{
	LOCK_GUARD(&s->lock);

	s->handlers += !s->abandoned;
	return !s->abandoned;
}

static void handler_end(struct http_server *s)
{
	LOCK_GUARD(&s->lock);

	if (--s->handlers == 0)
		pthread_cond_broadcast(&s->idle);
}

struct framing {
	const char *length; /* Content-Length; NULL: none yet */
	bool coded;	    /* there is a Transfer-Encoding */
	bool ambiguous;
	unsigned hosts; /* headers of that name */
};

/* A line that is folded becomes part of the name with libmicrohttpd 0.9. */
static bool is_longer(const char *name, const char *than)
{
	size_t len = strlen(than);

	return strncasecmp(name, than, len) == 0 && name[len];
}

static enum MHD_Result look_at_framing(void *arg, enum MHD_ValueKind kind, const char *name,
				       const char *value)
{
	struct framing *f = arg;

	if (strpbrk(name, " \t\r") || (value && strchr(value, '\r')))
		f->ambiguous = true;
	if (is_longer(name, "Content-Length") || is_longer(name, "Transfer-Encoding"))
		f->ambiguous = true;
	f->hosts += strcasecmp(name, "Host") == 0;
	if (strcasecmp(name, "Content-Length") == 0) {
		if (f->length && strcmp(f->length, value ? value : "") != 0)
			f->ambiguous = true;
		f->length = value;
	}
	if (strcasecmp(name, "Transfer-Encoding") == 0) {
		f->coded = true;
		if (!value || strcasecmp(value, "chunked") != 0)
			f->ambiguous = true;
	}
	if (f->coded && f->length)
		f->ambiguous = true;
	return MHD_YES;
}

/*
 * Where this request ends for libmicrohttpd may be elsewhere for a proxy in front of us: what
 * follows is not to be served as the next. A blank before the colon makes another header of it, and
 * a CR is the end of a line for some; a coding that is not chunked ends with the connection, and
 * HTTP/1.0 has none. Of two Hosts the proxy may have looked at the other.
 */
static void refuse_ambiguous(struct exchange *x, const char *version)
{
	bool old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
	struct framing f = { 0 };

	(void)MHD_get_connection_values(x->q.connection, MHD_HEADER_KIND, look_at_framing, &f);
	if (f.ambiguous || (f.coded && old))
		refuse_and_close(x, 400,
				 "where this request ends is not certain: two lengths, another "
				 "coding than chunked, or a blank or a line's end within a header");
	if (f.hosts > 1 || (f.hosts == 0 && !old))
		refuse_and_close(x, 400, "whom this request is for is not certain: it has to have "
					 "one header Host");
	x->unread |= x->refused;
}

/* What proxies are sent is a whole address. */
static const char *path_of(const char *target)
{
	const char *path;

	if (strncasecmp(target, "http://", 7) != 0 && strncasecmp(target, "https://", 8) != 0)
		return target;
	path = strchr(strchr(target, '/') + 2, '/');
	return path ? path : "/";
}

/*
 * A NUL would end the path that we are given, and not the one that a proxy in front of us looked
 * at: of such a request this is the state before there is an exchange. Its path is none.
 */
static char nul_in_path;

static void *on_target(void *arg, const char *target, struct MHD_Connection *c)
{
	const char *nul = strstr(target, "%00");

	return nul && nul < target + strcspn(target, "?") ? &nul_in_path : NULL;
}

static struct exchange *exchange_new(struct http_server *s, struct MHD_Connection *c,
				     const char *method, const char *path,
				     const char *version)
{
	struct exchange *x = calloc(1, sizeof(*x));
	const struct connection *from;
	const char *type, *length;

	if (!x)
		return NULL;
	x->server = s;
	from = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	x->arrival = from ? from->arrival : NULL;
	x->body.fd = -1;
	x->refusal.fd = -1;
	x->q = (struct http_request){ .method = method,
				      .path = path_of(path),
				      .connection = c,
				      .parts = x->part_list };
	refuse_ambiguous(x, version);
	if (!running_begin(s))
		refuse(x, 503, ENDING);
	if (from && from->is_too_many)
		refuse_and_close(x, 503, "too many connections to this server; try again later");
	if (s->o.admit && !x->refused) {
		struct http_response r = { .status = 403, .fd = -1 };

		x->refused = !s->o.admit(s->o.arg, &x->q, &r);
		x->refusal = r;
	}
	length = http_header(&x->q, "Content-Length");
	if (length && strtoull(length, NULL, 10) > s->o.max_body)
		refuse(x, 413, TOO_LARGE);
	x->unread |= x->refused && http_header(&x->q, "Expect");
	type = http_header(&x->q, "Content-Type");
	/* urlencoded is what curl -d calls everything, JSON as well: that is a body like others. */
	x->q.is_form = type && strncasecmp(type, "multipart/form-data", 19) == 0;
	if (x->q.is_form && !x->refused) {
		int status = multipart_new(type, &form_sink, x, &x->form);

		if (status < 0)
			refuse_form(x, status);
	}
	return x;
}

static void exchange_piece(struct exchange *x, const char *data, size_t len)
{
	arrival_body(x->server->arrivals, x->arrival, len);
	x->received += len;
	if (x->received > x->server->o.max_body)
		refuse(x, 413, TOO_LARGE);
	if (!x->form && x->received > HTTP_JSON_MAX)
		refuse(x, 413, "a body of JSON is too large; upload a file instead");
	if (x->refused)
		return;
	if (x->form) {
		int status = multipart_feed(x->form, data, len);

		if (status < 0)
			refuse_form(x, status);
	} else if (spool_add(&x->body, x->server->temporary, data, len) < 0) {
		refuse(x, 507, "no room for the body of this request");
	}
}

static void exchange_finish(struct exchange *x)
{
	if (x->form && !x->refused) {
		int status = multipart_finish(x->form);

		if (status < 0)
			refuse_form(x, status);
	}
	if (x->refused)
		return;
	if (spool_finish(&x->body) < 0)
		refuse(x, 507, "no room for the body of this request");
	x->q.body = x->body.data;
	x->q.body_len = x->body.len;
	for (size_t i = 0; i < x->q.n_parts; i++) {
		if (spool_finish(&x->parts[i]) < 0)
			refuse(x, 507, "no room for the body of this request");
		x->part_list[i].data = x->parts[i].data;
		x->part_list[i].len = x->parts[i].len;
		x->part_list[i].fd = x->parts[i].fd;
	}
}

static enum MHD_Result answer_refusal(struct exchange *x, struct MHD_Connection *c)
{
	if (x->server->o.refused)
		x->server->o.refused(x->server->o.arg, x->refusal.status);
	return answer(c, &x->refusal);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *path,
				  const char *method, const char *version, const char *data,
				  size_t *len, void **state)
{
	struct http_response r = { .status = 200, .fd = -1 };
	struct http_server *s = arg;
	bool cut = *state == &nul_in_path;
	struct exchange *x = cut ? NULL : *state;

	if (!x) {
		x = *state = exchange_new(s, c, method, cut ? "" : path, version);
		if (!x)
			return MHD_NO;
		return x->unread ? answer_refusal(x, c) : MHD_YES;
	}
	if (*len > 0) {
		exchange_piece(x, data, *len);
		*len = 0;
		return MHD_YES;
	}
	arrival_whole(s->arrivals, x->arrival);
	exchange_finish(x);
	if (!x->refused && !handler_begin(s))
		refuse(x, 503, ENDING);
	if (x->refused)
		return answer_refusal(x, c);
	s->o.handle(s->o.arg, &x->q, &r);
	handler_end(s);
	return answer(c, &r);
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
			 enum MHD_RequestTerminationCode why)
{
	struct exchange *x = *state;

	if (!x || *state == &nul_in_path)
		return;
	multipart_free(x->form);
	spool_release(&x->body);
	for (size_t i = 0; i < x->q.n_parts; i++) {
		spool_release(&x->parts[i]);
		free(x->part_list[i].name);
		free(x->part_list[i].filename);
	}
	response_release(&x->refusal);
	arrival_next(x->server->arrivals, x->arrival);
	running_end(x->server);
	free(x);
	*state = NULL;
}

/*
 * Requests leave free pages between what lives on, and malloc keeps them: in millions of requests
 * that was several times what was in use. Some ms of work, so not more often than each few seconds.
 */
#define TRIM_NS (UINT64_C(10) * 1000000000)

static void trim(struct http_server *s)
{
	uint64_t now = now_ns(), last = atomic_load(&s->trimmed_ns);

	if (now - last > TRIM_NS && atomic_compare_exchange_strong(&s->trimmed_ns, &last, now))
		(void)malloc_trim(0); /* says only whether there was anything */
}

static void on_connection(void *arg, struct MHD_Connection *c, void **state,
			  enum MHD_ConnectionNotificationCode what)
{
	struct http_server *s = arg;
	struct connection *k = *state;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		bool full = atomic_fetch_add(&s->connections, 1) >= s->o.max_connections;
		int fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

		*state = k = calloc(1, sizeof(*k));
		if (k)
			*k = (struct connection){ .arrival = arrival_add(s->arrivals, fd),
						  .is_too_many = full };
	} else {
		/* The socket is closed behind this. */
		arrival_remove(s->arrivals, k ? k->arrival : NULL);
		free(k);
		*state = NULL;
		atomic_fetch_sub(&s->connections, 1);
		trim(s);
	}
}

/* ---- life ---- */

static void server_free(struct http_server *s)
{
	arrivals_stop(s->arrivals);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->idle);
	free(s->temporary);
	free(s);
}

static int address_of(const char *host, uint16_t port, struct sockaddr_storage *ret, bool *ret_v6)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		*ret_v6 = false;
		return 0;
	}
	if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		*ret_v6 = true;
		return 0;
	}
	return fail(PLY_INVALID, "'%s' is no address to listen at (127.0.0.1, 0.0.0.0, ::1)", host);
}

bool http_is_loopback(const char *host)
{
	struct in6_addr v6;
	struct in_addr v4;

	if (inet_pton(AF_INET, host, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
	return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Binds by hand: libmicrohttpd does not say why it could not. */
static int listen_at(const char *host, uint16_t port, int *ret_fd, uint16_t *ret_port, bool *ret_v6)
{
	_cleanup_close_ int fd = -1;
	struct sockaddr_storage at;
	socklen_t len = sizeof(at);
	int one = 1, r;

	r = address_of(host, port, &at, ret_v6);
	if (r < 0)
		return r;
	fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail_errno(errno, "making a socket");
	/* Restarting must not wait for the last server's connections to be forgotten. */
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at,
		 *ret_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) < 0 ||
	    listen(fd, SOMAXCONN) < 0) {
		if (errno == EADDRINUSE)
			return fail(PLY_EXISTS,
				    "port %u at %s is taken; choose another with --port", port,
				    host);
		return fail_errno(errno, "listening at %s port %u", host, port);
	}
	if (getsockname(fd, (struct sockaddr *)&at, &len) < 0)
		return fail_errno(errno, "listening at %s port %u", host, port);
	*ret_port = ntohs(*ret_v6 ? ((struct sockaddr_in6 *)&at)->sin6_port
				  : ((struct sockaddr_in *)&at)->sin_port);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int http_start(const struct http_options *o, struct http_server **ret)
{
	unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
			 MHD_USE_POLL | MHD_USE_ITC;
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)o->certificate },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)o->key },
		/* TLS 1.2 and 1.3: RFC 8996 wants none older. */
		{ MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)"NORMAL:-VERS-TLS1.1:-VERS-TLS1.0" },
		{ MHD_OPTION_END, 0, NULL },
	};
	const struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
	const char *tmp = o->temporary ? o->temporary : getenv("TMPDIR");
	struct http_server *s;
	bool v6 = false;
	int fd = -1, r;

	s = calloc(1, sizeof(*s));
	if (!s)
		return fail_memory();
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->idle, NULL);
	s->listener = MHD_INVALID_SOCKET;
	s->o = *o;
	s->o.max_connections = o->max_connections ? o->max_connections : MAX_CONNECTIONS;
	s->o.max_body = o->max_body ? o->max_body : MAX_BODY;
	s->o.idle_seconds = o->idle_seconds ? o->idle_seconds : IDLE_SECONDS;
	s->temporary = strdup(tmp && *tmp ? tmp : "/tmp");
	r = s->temporary ? listen_at(o->host, o->port, &fd, &s->port, &v6) : fail_memory();
	if (r == 0 && arrivals_start(ARRIVAL_TIMES_IDLE * s->o.idle_seconds, &s->arrivals) < 0) {
		(void)close(fd);
		r = fail(PLY_FAILED, "the HTTP server did not start: no thread to be had");
	}
	if (r < 0) {
		server_free(s);
		return r;
	}
	if (v6)
		flags |= MHD_USE_IPv6;
	if (o->certificate)
		flags |= MHD_USE_TLS;
	*ret = s;
	s->daemon = MHD_start_daemon(flags, s->port, NULL, NULL, on_request, s,
				     MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
				     s->o.max_connections + CONNECTIONS_TO_REFUSE,
				     MHD_OPTION_CONNECTION_TIMEOUT, s->o.idle_seconds,
				     MHD_OPTION_URI_LOG_CALLBACK, on_target, NULL,
				     MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
				     MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
				     MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK,
				     MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
				     MHD_OPTION_ARRAY, o->certificate ? tls : none, MHD_OPTION_END);
	if (!s->daemon) {
		(void)close(fd);
		server_free(s);
		return fail(PLY_FAILED, "the HTTP server did not start%s",
			    o->certificate ? "; are certificate and key PEM, and a pair, and the "
					     "key without a passphrase?" :
					     "");
	}
	return 0;
}

uint16_t http_port(const struct http_server *s)
{
	return s->port;
}

unsigned http_connections(const struct http_server *s)
{
	return atomic_load(&s->connections);
}

/* Whether a count of s became 0 in time. */
static bool wait_for_none(struct http_server *s, const unsigned *count, double seconds)
{
	struct timespec until = wait_until((uint64_t)(seconds * 1000));

	LOCK_GUARD(&s->lock);
	while (*count > 0 && pthread_cond_timedwait(&s->idle, &s->lock, &until) == 0)
		;
	return *count == 0;
}

static void set(struct http_server *s, bool *flag)
{
	LOCK_GUARD(&s->lock);

	*flag = true;
}

/* Until no handler runs: one may have been about to start what the first time did not find. */
static void abandon_handlers(struct http_server *s)
{
	set(s, &s->abandoned);
	do
		s->o.abandon(s->o.arg);
	while (!wait_for_none(s, &s->handlers, ABANDON_AGAIN_SECONDS));
}

void http_quiesce(struct http_server *s)
{
	if (s->listener == MHD_INVALID_SOCKET)
		s->listener = MHD_quiesce_daemon(s->daemon);
	set(s, &s->stopping);
}

void http_stop(struct http_server *s, double grace)
{
	http_quiesce(s);
	(void)wait_for_none(s, &s->running, grace);
	if (s->o.abandon)
		abandon_handlers(s);
	(void)wait_for_none(s, &s->running, ABANDONED_SECONDS);
	MHD_stop_daemon(s->daemon); /* joins the threads; streams hear that their client is gone */
	closep(&s->listener);
	server_free(s);
}
