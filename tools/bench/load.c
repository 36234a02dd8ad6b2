/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The HTTP client of `bench serve`: sends requests that are there as files, one after the other,
 * and prints the nanoseconds of each. One client for every server, so what it costs itself is the
 * same for all; it is in C because a Python client takes longer than the quickest of the answers.
 *
 *   load PORT CLIENTS ROUNDS SECONDS LIMIT FILE...
 *
 * Each of CLIENTS threads has a connection (127.0.0.1, kept alive) and sends all files in turn,
 * ROUNDS times, or for SECONDS when ROUNDS is 0. LIMIT: seconds that an answer may take.
 *
 * A file begins with two lines that are not sent:
 *   NAME STATUS [fresh]   fresh: with a connection of its own, whose making is inside the clock
 *   TEXT                  what the answer's body has to hold; may be empty
 * In the request, @@CLIENT@@ becomes the client's number and @@REQUEST-ID@@@@ one that no other
 * request has, both of the same length as these words.
 *
 * With SECONDS, client number i begins with file number i, so that however short the time is for a
 * slow server, it has as much of every kind; answers that come later are left out.
 *
 * A line per answer on stdout: NAME NS BYTES, 0 bytes for one that did not come in time; at the end
 * "cpu", the processor time of this client, and 0.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/lap.h"

#define FILES_MAX 16
#define CLIENTS_MAX 1024
#define IDS_MAX 2 /* in a request: its header, and the name of a file */
#define CLIENT_WORD "@@CLIENT@@"
#define ID_WORD "@@REQUEST-ID@@@@"
/* Answers are read into this much at once; a larger one gets what its length says. */
#define ROOM ((size_t)1 << 16)

struct request {
	char name[32], text[256];
	unsigned status;
	bool fresh;
	char *data; /* what is sent; of the client */
	size_t len;
	char *ids[IDS_MAX]; /* in data; NULL: no more */
};

struct lap {
	const struct request *request;
	uint64_t ns;
	size_t bytes; /* of the answer's body; 0: none came in time */
};

struct client {
	unsigned number;
	int fd; /* -1: to be made */
	struct request requests[FILES_MAX];
	char *answer;
	size_t room;
	struct lap *laps;
	size_t n_laps, laps_room;
	pthread_t thread;
};

/* Set before the threads, then only read. */
static struct {
	uint16_t port;
	unsigned clients, rounds, seconds, limit;
	char **files;
	unsigned n_files;
	pthread_barrier_t ready;
} load;

static void *room_for(void *p, size_t size)
{
	p = realloc(p, size);
	if (!p)
		die("memory");
	return p;
}

/* ---- requests ---- */

static void read_request(const char *path, unsigned client, struct request *ret)
{
	FILE *f = fopen(path, "r");
	char line[256], number[sizeof(CLIENT_WORD)], fresh[8] = "";
	struct stat st;
	char *at;
	long head;

	if (!f || fstat(fileno(f), &st) < 0)
		die(path);
	if (!fgets(line, sizeof(line), f) ||
	    sscanf(line, "%31s %u %7s", ret->name, &ret->status, fresh) < 2 ||
	    !fgets(ret->text, sizeof(ret->text), f)) {
		fprintf(stderr, "load: '%s' does not begin with NAME STATUS and a text\n", path);
		exit(2);
	}
	ret->text[strcspn(ret->text, "\n")] = '\0';
	ret->fresh = strcmp(fresh, "fresh") == 0;
	head = ftell(f);
	ret->len = (size_t)(st.st_size - head);
	ret->data = room_for(NULL, ret->len);
	if (fread(ret->data, 1, ret->len, f) != ret->len)
		die(path);
	(void)fclose(f);

	(void)snprintf(number, sizeof(number), "%0*u", (int)sizeof(number) - 1, client);
	at = ret->data;
	while ((at = memmem(at, ret->len - (size_t)(at - ret->data), CLIENT_WORD,
			    sizeof(CLIENT_WORD) - 1)))
		memcpy(at, number, sizeof(number) - 1);
	at = ret->data;
	for (unsigned i = 0; i < IDS_MAX; i++) {
		at = memmem(at, ret->len - (size_t)(at - ret->data), ID_WORD, sizeof(ID_WORD) - 1);
		if (!at)
			break;
		ret->ids[i] = at++;
	}
}

static void stamp(struct request *q, unsigned client, unsigned count)
{
	char id[sizeof(ID_WORD)];

	/* The time makes it another one than those of an earlier run. */
	(void)snprintf(id, sizeof(id), "%04x%06x%06x", client & 0xffff, count & 0xffffff,
		       (unsigned)(now_ns() >> 10) & 0xffffff);
	for (unsigned i = 0; i < IDS_MAX && q->ids[i]; i++)
		memcpy(q->ids[i], id, sizeof(id) - 1);
}

/* ---- the wire ---- */

static void hang_up(struct client *c)
{
	if (c->fd >= 0)
		(void)close(c->fd);
	c->fd = -1;
}

static void dial(struct client *c)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_port = htons(load.port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = load.limit };
	int one = 1;

	hang_up(c);
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0 || setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0 ||
	    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    connect(c->fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		die("connecting");
}

static void send_all(struct client *c, const struct request *q)
{
	for (size_t done = 0; done < q->len;) {
		ssize_t n = send(c->fd, q->data + done, q->len - done, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			die(q->name);
		done += n > 0 ? (size_t)n : 0;
	}
}

/* The value of a header of the answer, which ends with a NUL behind its headers; NULL: none. */
static const char *header(const char *head, const char *name)
{
	const char *line = head;

	while ((line = strstr(line, "\r\n"))) {
		line += 2;
		if (strncasecmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
			return line + strlen(name) + 1 + strspn(line + strlen(name) + 1, " ");
	}
	return NULL;
}

/* More of the answer: how much; 0: not in time. */
static size_t more(struct client *c, const struct request *q, size_t have)
{
	ssize_t n;

	if (have + 1 >= c->room)
		c->answer = room_for(c->answer, c->room = have + ROOM + 1);
	do
		n = recv(c->fd, c->answer + have, c->room - have - 1, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0) {
		fprintf(stderr, "load: %s: the server closed the connection\n", q->name);
		exit(1);
	}
	return (size_t)n;
}

/* Sends it and takes the answer: how long that took, and 0 bytes when there was none in time. */
static struct lap exchange(struct client *c, const struct request *q)
{
	struct lap lap = { .request = q };
	size_t have = 0, head, len;
	unsigned status = 0;
	char *end = NULL;
	const char *value;
	uint64_t begin;
	bool last;

	if (q->fresh)
		hang_up(c);
	else if (c->fd < 0)
		dial(c);
	begin = now_ns();
	if (q->fresh)
		dial(c);
	send_all(c, q);
	while (!end) {
		size_t n = more(c, q, have);

		if (!n)
			goto late;
		have += n;
		c->answer[have] = '\0';
		end = strstr(c->answer, "\r\n\r\n");
	}
	head = (size_t)(end - c->answer) + 4;
	end[2] = '\0';
	(void)sscanf(c->answer, "HTTP/1.1 %u", &status);
	value = header(c->answer, "content-length");
	if (!value) {
		fprintf(stderr, "load: %s: an answer without a length\n", q->name);
		exit(1);
	}
	len = head + strtoul(value, NULL, 10);
	value = header(c->answer, "connection");
	/* The reference closes behind these without a word. */
	last = q->fresh || status == 511 || (value && strncasecmp(value, "close", 5) == 0);
	if (len + 1 > c->room)
		c->answer = room_for(c->answer, c->room = len + 1);
	while (have < len) {
		size_t n = more(c, q, have);

		if (!n)
			goto late;
		have += n;
	}
	lap.ns = now_ns() - begin;
	lap.bytes = have - head;
	c->answer[have] = '\0';
	if (status != q->status ||
	    !memmem(c->answer + head, have - head, q->text, strlen(q->text))) {
		fprintf(stderr, "load: %s: %u instead of %u, or without '%s': %.600s\n", q->name,
			status, q->status, q->text, c->answer + head);
		exit(1);
	}
	if (last)
		hang_up(c);
	return lap;
late:
	lap.ns = now_ns() - begin;
	hang_up(c);
	return lap;
}

/* ---- clients ---- */

static void keep(struct client *c, struct lap lap)
{
	if (c->n_laps == c->laps_room) {
		c->laps_room = c->laps_room ? c->laps_room * 2 : 256;
		c->laps = room_for(c->laps, c->laps_room * sizeof(*c->laps));
	}
	c->laps[c->n_laps++] = lap;
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint64_t end = UINT64_MAX;
	unsigned first, left = load.rounds * load.n_files;

	for (unsigned i = 0; i < load.n_files; i++)
		read_request(load.files[i], c->number, &c->requests[i]);
	dial(c);
	(void)pthread_barrier_wait(&load.ready);
	first = load.rounds ? 0 : c->number;
	if (!load.rounds)
		end = now_ns() + (uint64_t)load.seconds * 1000000000;
	for (unsigned count = 0; load.rounds ? count < left : now_ns() < end; count++) {
		struct request *q = &c->requests[(first + count) % load.n_files];
		struct lap lap;

		stamp(q, c->number, count);
		lap = exchange(c, q);
		if (now_ns() < end)
			keep(c, lap);
		if (!lap.bytes)
			break;
	}
	return NULL;
}

static unsigned number_of(const char *text, unsigned long max)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (!*text || *end || n > max) {
		fprintf(stderr, "load: '%s' is no number up to %lu\n", text, max);
		exit(2);
	}
	return (unsigned)n;
}

static uint64_t microseconds(const struct timeval *t)
{
	return (uint64_t)t->tv_sec * 1000000 + (uint64_t)t->tv_usec;
}

int main(int argc, char **argv)
{
	static struct client clients[CLIENTS_MAX];
	struct rusage used;

	if (argc < 7 || argc - 6 > FILES_MAX) {
		fprintf(stderr, "usage: load PORT CLIENTS ROUNDS SECONDS LIMIT FILE...\n");
		return 2;
	}
	load.port = (uint16_t)number_of(argv[1], UINT16_MAX);
	load.clients = number_of(argv[2], CLIENTS_MAX);
	load.rounds = number_of(argv[3], 1000000);
	load.seconds = number_of(argv[4], 100000);
	load.limit = number_of(argv[5], 100000);
	load.files = argv + 6;
	load.n_files = (unsigned)argc - 6;
	if (pthread_barrier_init(&load.ready, NULL, load.clients))
		die("clients");
	for (unsigned i = 0; i < load.clients; i++) {
		clients[i].number = i;
		clients[i].fd = -1;
		if (pthread_create(&clients[i].thread, NULL, client_main, &clients[i]))
			die("a thread");
	}
	for (unsigned i = 0; i < load.clients; i++)
		(void)pthread_join(clients[i].thread, NULL);
	for (struct client *c = clients; c < clients + load.clients; c++) {
		for (struct lap *l = c->laps; l < c->laps + c->n_laps; l++)
			printf("%s %" PRIu64 " %zu\n", l->request->name, l->ns, l->bytes);
	}
	(void)getrusage(RUSAGE_SELF, &used);
	printf("cpu %" PRIu64 " 0\n",
	       (microseconds(&used.ru_utime) + microseconds(&used.ru_stime)) * 1000);
	return fflush(stdout) ? 1 : 0;
}
