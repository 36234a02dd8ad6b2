/* SPDX-License-Identifier: Apache-2.0 */

/* Messages between client and daemon: what was sent arrives, what makes no sense is refused. */

#include "tools/wire.c" /* the program's files are in no library */

#include <sys/stat.h>

#include "tests/unit/run.h"

static int pair[2];

static void setup(void)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void teardown(void)
{
	close(pair[0]);
	close(pair[1]);
}

/* Descriptors that this process has open. */
static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

START_TEST(a_request_arrives_whole)
{
	char *argv[] = { (char *)"import", (char *)"", (char *)"a b\n\xff", NULL };
	char *env[] = { (char *)"COLUMNS=90", NULL };
	struct wire_request q = { .argc = 3,
				  .argv = argv,
				  .n_env = 1,
				  .env = env,
				  .snapshot = 77,
				  .branch = "main",
				  .fd = { -1, 0, -1, -1, -1 } };
	struct wire_request got;
	struct stat a, b;
	int fds = open_fds();

	q.fd[WIRE_ERR] = open("/dev/null", O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(wire_send_request(pair[0], &q), 0);
	ck_assert_int_eq(wire_recv_request(pair[1], &got), 0);
	ck_assert_int_eq(got.argc, 3);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(got.argv[i], argv[i]);
	ck_assert_ptr_null(got.argv[3]);
	ck_assert_int_eq(got.n_env, 1);
	ck_assert_str_eq(got.env[0], "COLUMNS=90");
	ck_assert_ptr_null(got.env[1]);
	ck_assert_uint_eq(got.snapshot, 77);
	ck_assert_str_eq(got.branch, "main");
	ck_assert_int_eq(got.fd[WIRE_CWD], -1);
	ck_assert_int_eq(got.fd[WIRE_FUSE], -1);
	ck_assert_int_ge(got.fd[WIRE_IN], 0);
	ck_assert_int_eq(fstat(q.fd[WIRE_ERR], &a), 0);
	ck_assert_int_eq(fstat(got.fd[WIRE_ERR], &b), 0);
	ck_assert_uint_eq(a.st_rdev, b.st_rdev);
	ck_assert_int_eq(fcntl(got.fd[WIRE_ERR], F_GETFD), FD_CLOEXEC);

	wire_request_release(&got);
	close(q.fd[WIRE_ERR]);
	ck_assert_int_eq(open_fds(), fds);
}
END_TEST

START_TEST(a_request_that_is_too_long_is_not_sent)
{
	static char word[WIRE_MAX];
	char *argv[] = { word, NULL };
	struct wire_request q = { .argc = 1, .argv = argv, .fd = { -1, -1, -1, -1, -1 } };

	memset(word, 'x', sizeof(word) - 1);
	ck_assert_int_eq(wire_send_request(pair[0], &q), -EMSGSIZE);
}
END_TEST

START_TEST(the_longest_request_passes)
{
	static char word[WIRE_MAX - sizeof(struct request_header)];
	char *argv[] = { word, NULL };
	struct wire_request q = { .argc = 1, .argv = argv, .fd = { -1, -1, -1, -1, -1 } }, got;

	memset(word, 'x', sizeof(word) - 1);
	ck_assert_int_eq(wire_send_request(pair[0], &q), 0);
	ck_assert_int_eq(wire_recv_request(pair[1], &got), 0);
	ck_assert_str_eq(got.argv[0], word);
	wire_request_release(&got);
}
END_TEST

START_TEST(senseless_requests_are_refused)
{
	char *argv[] = { (char *)"log", (char *)"-n", NULL };
	struct request_header good = { .magic = WIRE_MAGIC, .version = WIRE_VERSION, .argc = 2 };

	for (int i = 0; i < 9; i++) {
		struct request_header h = good;
		char bytes[sizeof(h) + 7];
		size_t len = sizeof(bytes);
		struct wire_request got;

		switch (i) {
		case 0:
			h.magic++;
			break;
		case 1:
			h.version++;
			break;
		case 2:
			h.argc = 0;
			break;
		case 3:
			h.argc = 3;
			break; /* fewer strings than announced */
		case 4:
			h.argc = UINT32_MAX;
			break;
		case 5:
			h.n_env = UINT32_MAX;
			break;
		case 6:
			h.fd_mask = 1;
			break; /* no descriptor came */
		case 7:
			h.fd_mask = 1u << WIRE_FDS;
			break;
		case 8:
			len = sizeof(h) - 1;
			break;
		}
		memcpy(bytes, &h, sizeof(h));
		memcpy(bytes + sizeof(h), "log\0-n", 7);
		ck_assert_int_eq(send(pair[0], bytes, len, 0), (ssize_t)len);
		ck_assert_int_eq(wire_recv_request(pair[1], &got), -EPROTO);
	}
	ck_assert_str_eq(argv[0], "log");
}
END_TEST

START_TEST(a_string_without_an_end_is_refused)
{
	struct request_header h = { .magic = WIRE_MAGIC, .version = WIRE_VERSION, .argc = 1 };
	char bytes[sizeof(h) + 3];
	struct wire_request got;

	memcpy(bytes, &h, sizeof(h));
	memcpy(bytes + sizeof(h), "log", 3);
	ck_assert_int_eq(send(pair[0], bytes, sizeof(bytes), 0), (ssize_t)sizeof(bytes));
	ck_assert_int_eq(wire_recv_request(pair[1], &got), -EPROTO);
}
END_TEST

START_TEST(answers_keep_version_status_and_text)
{
	struct wire_answer a = { .version = WIRE_VERSION + 1,
				 .status = 2,
				 .pid = 42,
				 .text = "no" },
			   got;

	ck_assert_int_eq(wire_send_answer(pair[0], &a), 0);
	ck_assert_int_eq(wire_recv_answer(pair[1], &got), 0);
	ck_assert_uint_eq(got.version, WIRE_VERSION + 1);
	ck_assert_int_eq(got.status, 2);
	ck_assert_int_eq(got.pid, 42);
	ck_assert_str_eq(got.text, "no");
}
END_TEST

START_TEST(a_hang_up_is_the_end)
{
	struct wire_request q;
	struct wire_answer a;

	shutdown(pair[0], SHUT_WR);
	ck_assert_int_eq(wire_recv_request(pair[1], &q), END);
	ck_assert_int_eq(wire_recv_answer(pair[1], &a), END);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("wire");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_request_arrives_whole);
	tcase_add_test(t, a_request_that_is_too_long_is_not_sent);
	tcase_add_test(t, the_longest_request_passes);
	tcase_add_test(t, senseless_requests_are_refused);
	tcase_add_test(t, a_string_without_an_end_is_refused);
	tcase_add_test(t, answers_keep_version_status_and_text);
	tcase_add_test(t, a_hang_up_is_the_end);
	return run_case("wire", t);
}
