/* SPDX-License-Identifier: Apache-2.0 */

/* HTTP by libcurl; see http_client.h. */

#include "env/http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "env/pytext.h"
#include "env/status.h"
#include "store/base/util.h"

/* The largest answer: as much as an environment keeps of a command's output by default. */
#define BODY_BYTES ((size_t)1 << 30)
/*
 * libcurl keeps all headers, and has a limit of 300 KB for those before a body, but none for those
 * behind one that is chunked.
 */
#define HEADER_BYTES ((size_t)1 << 20)

/* What one request needs. The connection stays with the multi handle. */
struct line {
	CURL *easy;
	CURLM *multi;
	struct line *next; /* under http->lock */
};

struct http {
	char *base;	      /* owned, immutable */
	char *authorization;  /* the header; owned, immutable; NULL: none */
	bool is_here;	      /* immutable: on this machine */
	pthread_mutex_t lock;
	struct line *idle; /* under lock: those that nobody uses */
};

/* An answer on its way. */
struct incoming {
	CURL *easy;
	bool once;	/* the request changes something: it is not to be sent again */
	bool sent;
	struct http_reply *reply;
	int *fd;
	int error;	/* errno of a failed write */
	size_t headers; /* bytes of them */
	bool too_large;
	bool no_memory;
};

/*
 * A server that hangs up while TLS writes would end the program by SIGPIPE. Signals' actions are
 * the program's, so it is held back from this thread alone, and taken away.
 */
struct pipe_guard {
	sigset_t before;
	bool was_pending;
};

static struct pipe_guard pipe_hold(void)
{
	struct pipe_guard g = { .was_pending = false };
	sigset_t pipe, pending;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	(void)sigpending(&pending); /* cannot fail, nor can the next */
	g.was_pending = sigismember(&pending, SIGPIPE) == 1;
	(void)pthread_sigmask(SIG_BLOCK, &pipe, &g.before);
	return g;
}

static void pipe_release(struct pipe_guard *g)
{
	static const struct timespec at_once = { 0 };
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	while (!g->was_pending && sigtimedwait(&pipe, NULL, &at_once) < 0 && errno == EINTR)
		;
	(void)pthread_sigmask(SIG_SETMASK, &g->before, NULL); /* it was one of ours */
}
#define HOLD_SIGPIPE() _cleanup_(pipe_release) _unused_ struct pipe_guard pipe_guard_ = pipe_hold()

static void line_free(struct line *l)
{
	if (!l)
		return;
	curl_easy_cleanup(l->easy);
	if (l->multi)
		(void)curl_multi_cleanup(l->multi); /* nothing is added to it */
	free(l);
}

static void line_freep(struct line **l)
{
	line_free(*l);
}

void http_close(struct http *h)
{
	HOLD_SIGPIPE();

	if (!h)
		return;
	while (h->idle) {
		struct line *l = h->idle;

		h->idle = l->next;
		line_free(l);
	}
	pthread_mutex_destroy(&h->lock);
	free(h->base);
	free(h->authorization);
	free(h);
}

static void http_closep(struct http **h)
{
	http_close(*h);
}

const char *http_base(const struct http *h)
{
	return h->base;
}

/* ---- addresses ---- */

static const char *host_of(const char *base)
{
	return base + (strncmp(base, "https://", 8) == 0 ? 8 : 7);
}

/* The host of a URL: "localhost", 127.x.y.z, [::1]. A name that only begins so is another's. */
static bool is_this_machine(const char *host)
{
	size_t len = strcspn(host, ":/?#");
	char name[64];
	struct in_addr v4;

	if (*host == '[')
		return strncmp(host, "[::1]", 5) == 0;
	if (len >= sizeof(name))
		return false;
	memcpy(name, host, len);
	name[len] = '\0';
	if (strcasecmp(name, "localhost") == 0)
		return true;
	return inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

static int check_address(const char *base, const char *key, bool anywhere)
{
	bool tls = strncmp(base, "https://", 8) == 0;
	const char *host = host_of(base);

	if (!tls && strncmp(base, "http://", 7) != 0)
		return fail(PLY_INVALID, "'%s' is no address: http://HOST or https://HOST", base);
	for (const char *p = host; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == '@' || *p == '\\' || *p == 0x7f)
			return fail(PLY_INVALID,
				    "'%s' is no address: http://HOST or https://HOST", base);
	if (!*host || *host == '/' || *host == ':')
		return fail(PLY_INVALID, "'%s' names no host", base);
	if (!key)
		return 0;
	for (const char *p = key; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return fail(PLY_INVALID, "api_key has a control character in it");
	if (!tls && !anywhere && !is_this_machine(host))
		return fail(PLY_INVALID,
			    "refusing to send api_key to %s without TLS: use https, or no key",
			    base);
	return 0;
}

static void global_init(void)
{
	(void)curl_global_init(CURL_GLOBAL_DEFAULT); /* a failure shows at the first handle */
}

/* header: with what goes before the key. */
static int open_it(const char *base, const char *header, const char *key, bool anywhere,
		   struct http **ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	_cleanup_(http_closep) struct http *h = NULL;
	int r;

	r = check_address(base, key, anywhere);
	if (r < 0)
		return r;
	(void)pthread_once(&once, global_init); /* cannot fail */
	h = calloc(1, sizeof(*h));
	if (!h)
		return fail_memory();
	pthread_mutex_init(&h->lock, NULL);
	h->is_here = is_this_machine(host_of(base));
	h->base = strdup(base);
	if (!h->base)
		return fail_memory();
	if (key && asprintf(&h->authorization, "%s%s", header, key) < 0) {
		h->authorization = NULL;
		return fail_memory();
	}
	*ret = TAKE_PTR(h);
	return 0;
}

int http_open(const char *base, const char *key, struct http **ret)
{
	return open_it(base, "Authorization: Bearer ", key, false, ret);
}

int http_open_header(const char *base, const char *header, const char *key, struct http **ret)
{
	_cleanup_free_ char *before = NULL;

	if (asprintf(&before, "%s: ", header) < 0) {
		before = NULL; /* undefined after a failure */
		return fail_memory();
	}
	return open_it(base, before, key, true, ret);
}

/* ---- a line for a request ---- */

static int take_line(struct http *h, struct line **ret)
{
	_cleanup_(line_freep) struct line *l = NULL;

	{
		LOCK_GUARD(&h->lock);
		l = h->idle;
		if (l)
			h->idle = l->next;
	}
	if (!l) {
		l = calloc(1, sizeof(*l));
		if (!l)
			return fail_memory();
		l->easy = curl_easy_init();
		l->multi = curl_multi_init();
		if (!l->easy || !l->multi)
			return fail_memory();
	}
	*ret = TAKE_PTR(l);
	return 0;
}

static void give_line(struct http *h, struct line *l)
{
	curl_easy_reset(l->easy); /* keeps the connection */
	LOCK_GUARD(&h->lock);
	l->next = h->idle;
	h->idle = l;
}

/* ---- a request ---- */

static int make_url(const struct http *h, const struct http_request *q, struct ply_text *ret)
{
	int r;

	r = text_append(ret, h->base, strlen(h->base));
	if (r == 0)
		r = text_append(ret, q->path, strlen(q->path));
	if (r < 0 || !q->name)
		return r;
	r = text_append(ret, "?", 1);
	if (r == 0)
		r = text_append_url(ret, q->name, "+");
	if (r == 0)
		r = text_append(ret, "=", 1);
	return r < 0 ? r : text_append_url(ret, q->value, "+");
}

static void slist_freep(struct curl_slist **list)
{
	curl_slist_free_all(*list);
}

static int add_header(struct curl_slist **list, const char *header)
{
	struct curl_slist *longer = curl_slist_append(*list, header);

	if (!longer)
		return fail_memory();
	*list = longer;
	return 0;
}

static int make_headers(const struct http *h, const struct http_request *q,
			struct curl_slist **ret)
{
	int r = 0;

	if (h->authorization)
		r = add_header(ret, h->authorization);
	/* "NAME:" alone is one that libcurl would send, and shall not. */
	if (r == 0)
		r = add_header(ret, "Expect:");
	if (r == 0 && !q->upload)
		r = add_header(ret, q->json ? "Content-Type: application/json" : "Content-Type:");
	return r;
}

static void mime_freep(curl_mime **mime)
{
	curl_mime_free(*mime);
}

static int add_field(curl_mime *form, const char *name, const char *value)
{
	curl_mimepart *part = curl_mime_addpart(form);

	if (!part || curl_mime_name(part, name) != CURLE_OK ||
	    curl_mime_data(part, value, CURL_ZERO_TERMINATED) != CURLE_OK)
		return fail_memory();
	return 0;
}

static int make_form(CURL *easy, const struct http_request *q, curl_mime **ret)
{
	const char *const usual[] = { "path", q->upload_path, NULL };
	curl_mimepart *part;

	*ret = curl_mime_init(easy);
	if (!*ret)
		return fail_memory();
	for (const char *const *f = q->fields ? q->fields : usual; *f; f += 2) {
		int r = add_field(*ret, f[0], f[1]);

		if (r < 0)
			return r;
	}
	part = curl_mime_addpart(*ret);
	if (!part || curl_mime_name(part, "file") != CURLE_OK)
		return fail_memory();
	/* Read piece by piece while it is sent. */
	if (curl_mime_filedata(part, q->upload) != CURLE_OK)
		return fail(PLY_NOT_FOUND, "%s cannot be read", q->upload);
	return curl_mime_filename(part, q->upload_path) == CURLE_OK ? 0 : fail_memory();
}

/* libcurl's callback for what comes; anything but len ends the transfer. */
static size_t receive(char *data, size_t one, size_t len, void *arg)
{
	struct incoming *in = arg;
	struct ply_text *body = &in->reply->body;
	long status = 0;

	(void)curl_easy_getinfo(in->easy, CURLINFO_RESPONSE_CODE, &status); /* then it stays 0 */
	if (in->fd && status >= 200 && status < 300) {
		in->error = -write_all(*in->fd, data, len);
		return in->error ? 0 : len;
	}
	in->too_large = body->len + len > BODY_BYTES;
	if (in->too_large)
		return 0;
	in->no_memory = text_append(body, data, len) < 0;
	return in->no_memory ? 0 : len;
}

/* libcurl's callback for a line of the headers. */
static size_t receive_header(char *data, size_t one, size_t len, void *arg)
{
	struct incoming *in = arg;

	in->headers += len;
	return in->headers > HEADER_BYTES ? 0 : len;
}

/*
 * libcurl's callback just before a request is sent. Where a connection that was kept ends without
 * an answer, libcurl would send it again over a new one: a command would run twice.
 */
static int before_sending(void *arg, char *address, char *own_address, int port, int own_port)
{
	struct incoming *in = arg;

	if (in->sent && in->once)
		return CURL_PREREQFUNC_ABORT;
	in->sent = true;
	return CURL_PREREQFUNC_OK;
}

#define SET(easy, option, value)                                                                   \
	do {                                                                                       \
		if (curl_easy_setopt(easy, CURLOPT_##option, value) != CURLE_OK)                   \
			return fail(PLY_REMOTE, "libcurl does not know " #option);                 \
	} while (0)

static int set_method(CURL *easy, const struct http_request *q, curl_mime *form)
{
	if (form) {
		SET(easy, MIMEPOST, form);
	} else if (strcmp(q->method, "POST") == 0) {
		SET(easy, POST, 1L);
		SET(easy, POSTFIELDS, q->json ? q->json : "");
		SET(easy, POSTFIELDSIZE_LARGE, (curl_off_t)(q->json ? strlen(q->json) : 0));
	} else {
		SET(easy, CUSTOMREQUEST, q->method);
	}
	return 0;
}

static int set_limits(CURL *easy, const struct http_request *q)
{
	/* A day and more is what nobody waits for. */
	long ms = q->timeout < 1e6 ? (long)(q->timeout * 1000) + 1 : 1000000000L;

	SET(easy, CONNECTTIMEOUT_MS, ms);
	if (q->upload || q->download) {
		SET(easy, LOW_SPEED_LIMIT, 1L);
		SET(easy, LOW_SPEED_TIME, (ms + 999) / 1000);
	} else {
		SET(easy, TIMEOUT_MS, ms);
	}
	SET(easy, TCP_KEEPALIVE, 1L); /* the other end may be gone while a command runs */
	return 0;
}

/*
 * Its certificates are those of the system, or, as with curl itself, of SSL_CERT_FILE. A proxy
 * (http_proxy and the like) would be another machine, which gets no key for this one.
 */
static int set_rest(const struct http *h, CURL *easy, const char *url, struct curl_slist *headers,
		    char *words, struct incoming *in)
{
	const char *certificates = getenv("SSL_CERT_FILE");

	SET(easy, URL, url);
	if (h->is_here)
		SET(easy, PROXY, "");
	SET(easy, PATH_AS_IS, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
	SET(easy, PROTOCOLS_STR, "http,https");
#else
	SET(easy, PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	if (certificates && *certificates)
		SET(easy, CAINFO, certificates);
	SET(easy, HTTPHEADER, headers);
	SET(easy, USERAGENT, "plyfs/" PLYFS_VERSION);
	SET(easy, NOSIGNAL, 1L); /* we are a library: signals are the program's */
	SET(easy, ERRORBUFFER, words);
	SET(easy, WRITEFUNCTION, receive);
	SET(easy, WRITEDATA, in);
	SET(easy, HEADERFUNCTION, receive_header);
	SET(easy, HEADERDATA, in);
	SET(easy, PREREQFUNCTION, before_sending);
	SET(easy, PREREQDATA, in);
	/* Python's and Node's servers end a connection after five seconds of silence. */
	SET(easy, MAXAGE_CONN, 4L);
	return 0;
}

/* Until it is done. PLY_CANCELLED. */
static int transfer(struct line *l, bool cancellable, CURLcode *ret)
{
	struct curl_waitfd cancel = { .fd = cancellable ? cancel_fd() : -1,
				      .events = CURL_WAIT_POLLIN };
	int running = 0, left;
	CURLMcode m;
	CURLMsg *msg;

	m = curl_multi_add_handle(l->multi, l->easy);
	while (m == CURLM_OK) {
		m = curl_multi_perform(l->multi, &running);
		if (m != CURLM_OK || !running)
			break;
		/* It comes back by itself for libcurl's own timers; a minute is for the rest. */
		m = curl_multi_poll(l->multi, &cancel, cancel.fd >= 0, 60000, NULL);
		if (cancel.fd >= 0 && cancel.revents) {
			(void)curl_multi_remove_handle(l->multi, l->easy); /* it is in there */
			return fail(PLY_CANCELLED, "cancelled");
		}
	}
	msg = curl_multi_info_read(l->multi, &left);
	*ret = m == CURLM_OK && msg ? msg->data.result : CURLE_FAILED_INIT;
	(void)curl_multi_remove_handle(l->multi, l->easy);
	return 0;
}

static int explain(const struct http *h, const struct http_request *q, CURLcode code,
		   const char *words, const struct incoming *in)
{
	if (in->no_memory || code == CURLE_OUT_OF_MEMORY)
		return fail_memory();
	if (in->error)
		return fail_errno(in->error, "%s%s: writing what came", h->base, q->path);
	if (in->too_large)
		return fail(PLY_REMOTE, "%s%s: an answer of more than %zu bytes", h->base, q->path,
			    BODY_BYTES);
	if (in->headers > HEADER_BYTES)
		return fail(PLY_REMOTE, "%s%s: headers of more than %zu bytes", h->base, q->path,
			    HEADER_BYTES);
	if (code == CURLE_ABORTED_BY_CALLBACK)
		return fail(PLY_REMOTE, "%s%s: the server hung up without an answer; it may have "
			    "done what was asked", h->base, q->path);
	if (code == CURLE_READ_ERROR && q->upload)
		return fail(PLY_FAILED, "%s cannot be read", q->upload);
	return fail(code == CURLE_OPERATION_TIMEDOUT ? PLY_TIMEOUT : PLY_REMOTE, "%s%s: %s",
		    h->base, q->path, *words ? words : curl_easy_strerror(code));
}

void http_reply_release(struct http_reply *reply)
{
	ply_text_free(&reply->body);
}

static int ask(struct http *h, struct line *l, const struct http_request *q,
	       struct http_reply *ret)
{
	_cleanup_(slist_freep) struct curl_slist *headers = NULL;
	_cleanup_(ply_text_free) struct ply_text url = { 0 };
	_cleanup_(mime_freep) curl_mime *form = NULL;
	struct incoming in = { .easy = l->easy,
			       .once = strcmp(q->method, "POST") == 0,
			       .reply = ret,
			       .fd = q->download };
	char words[CURL_ERROR_SIZE] = "";
	CURLcode code = CURLE_OK;
	int r;

	r = make_url(h, q, &url);
	if (r == 0)
		r = make_headers(h, q, &headers);
	if (r == 0 && q->upload)
		r = make_form(l->easy, q, &form);
	if (r == 0)
		r = set_method(l->easy, q, form);
	if (r == 0)
		r = set_limits(l->easy, q);
	if (r == 0)
		r = set_rest(h, l->easy, url.data, headers, words, &in);
	if (r == 0)
		r = transfer(l, q->cancellable, &code);
	if (r < 0)
		return r;
	if (code != CURLE_OK)
		return explain(h, q, code, words, &in);
	(void)curl_easy_getinfo(l->easy, CURLINFO_RESPONSE_CODE, &ret->status); /* it was OK */
	return 0;
}

int http_send(struct http *h, const struct http_request *q, struct http_reply *ret)
{
	_cleanup_(http_reply_release) struct http_reply reply = { 0 };
	struct line *l = NULL;
	HOLD_SIGPIPE();
	int r;

	r = take_line(h, &l);
	if (r < 0)
		return r;
	r = ask(h, l, q, &reply);
	/* uvicorn answers an exception, and then ends the connection without a word of it. */
	if (reply.status >= 500)
		line_free(l);
	else
		give_line(h, l);
	if (r < 0)
		return r;
	*ret = reply;
	reply = (struct http_reply){ 0 };
	return 0;
}
