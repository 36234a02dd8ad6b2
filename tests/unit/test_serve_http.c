/* SPDX-License-Identifier: Apache-2.0 */

/* The server and clients that take their time: a second of silence, two for a request to arrive. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "env/serve/arrival.h"
#include "env/serve/http.h"
#include "store/base/util.h"
#include "tests/unit/run.h"

static struct http_server *server;

static void pause_ms(long ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* Says how long the body was; /slow after longer than a request may take. */
static void handle(void *arg, const struct http_request *q, struct http_response *r)
{
	if (strcmp(q->path, "/slow") == 0)
		pause_ms(3000);
	ck_assert_int_gt(asprintf(&r->body, "%zu bytes", q->body_len), 0);
	r->len = strlen(r->body);
}

static void setup(void)
{
	const struct http_options o = { .host = "127.0.0.1", .idle_seconds = 1, .handle = handle };

	ck_assert_int_eq(http_start(&o, &server), 0);
}

static void teardown(void)
{
	http_stop(server, 1);
}

static int open_connection(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(http_port(server)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* A byte every 300 ms, until the other side has closed; false: it took them all. */
static bool is_cut_off(int fd, int bytes)
{
	char c;

	for (int i = 0; i < bytes; i++) {
		ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN))
			return true;
		if (send(fd, "a", 1, MSG_NOSIGNAL) < 0)
			return true;
		pause_ms(300);
	}
	return false;
}

/* false: there is none. */
static bool assert_answer(int fd, const char *body)
{
	char text[1024];
	size_t len = 0;
	ssize_t n;

	do {
		n = recv(fd, text + len, sizeof(text) - 1 - len, 0);
		if (n <= 0)
			return false;
		len += (size_t)n;
		text[len] = '\0';
	} while (!strstr(text, "bytes"));
	ck_assert_msg(strstr(text, "HTTP/1.1 200 ") == text && strstr(text, body), "%s", text);
	return true;
}

START_TEST(dribbled_headers_end)
{
	_cleanup_close_ int fd = open_connection();

	say(fd, "GET / HTTP/1.1\r\nHost: x\r\nX-Long: ");
	ck_assert(is_cut_off(fd, 60));
}
END_TEST

START_TEST(a_dribbled_body_ends)
{
	_cleanup_close_ int fd = open_connection();

	say(fd, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
	ck_assert(is_cut_off(fd, 60));
}
END_TEST

START_TEST(so_does_what_comes_behind_an_answer)
{
	static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	_cleanup_close_ int fd = -1;
	bool came = false;

	for (int i = 0; i < 5 && !came; i++) { /* who gets no CPU for a second is cut off */
		closep(&fd);
		fd = open_connection();
		came = send(fd, request, strlen(request), MSG_NOSIGNAL) > 0 &&
		       assert_answer(fd, "0 bytes");
	}
	ck_assert(came);
	say(fd, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;");
	ck_assert(is_cut_off(fd, 60));
}
END_TEST

/* Four times as fast as it must be; false: it was cut off. */
static bool comes_steadily(void)
{
	_cleanup_close_ int fd = open_connection();
	char part[ARRIVAL_BYTES_PER_SECOND];

	memset(part, 'x', sizeof(part));
	say(fd, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000\r\n\r\n");
	for (int i = 0; i < 16; i++) {
		pause_ms(250);
		if (send(fd, part, sizeof(part), MSG_NOSIGNAL) != sizeof(part))
			return false;
	}
	return assert_answer(fd, "8000 bytes");
}

START_TEST(a_body_that_comes_steadily_may_take_longer)
{
	bool came = false;

	for (int i = 0; i < 5 && !came; i++) /* who gets no CPU for a second is cut off */
		came = comes_steadily();
	ck_assert(came);
}
END_TEST

/* Two on one connection; false: it was cut off. */
static bool answers_come_late(void)
{
	static const char request[] = "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
	_cleanup_close_ int fd = open_connection();

	for (int i = 0; i < 2; i++)
		if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 ||
		    !assert_answer(fd, "0 bytes"))
			return false;
	return true;
}

START_TEST(so_may_an_answer)
{
	bool came = false;

	for (int i = 0; i < 5 && !came; i++)
		came = answers_come_late();
	ck_assert(came);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("arrival");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, dribbled_headers_end);
	tcase_add_test(t, a_dribbled_body_ends);
	tcase_add_test(t, so_does_what_comes_behind_an_answer);
	tcase_add_test(t, a_body_that_comes_steadily_may_take_longer);
	tcase_add_test(t, so_may_an_answer);
	return run_case("http", t);
}
