/* SPDX-License-Identifier: Apache-2.0 */

/*
 * soak PORT TOKEN DIRECTORY ARCHIVE all|rex SEED REQUESTS CLIENTS
 *
 * Many clients of a server at once, each with requests of every kind, well-formed and not,
 * delivered in every way; what can be known of an answer is compared. Another client asks /is_alive
 * all the time. Prints how many requests there were, the statuses of the answers (0: none was
 * waited for), and how long /is_alive took at most; exits 1 when an answer was wrong or did not
 * come.
 *
 * A client works in DIRECTORY/cN with sessions of its own, so that it knows what is there. ARCHIVE
 * is a zip with one file, "zipped/one", whose text is "from the archive". `rex`: a server of that
 * protocol alone; with `all`, DIRECTORY lies in the view that is served.
 */

#include "tests/lib/soak_client.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct soak soak;

/* ---- what every server can ---- */

static void alive(struct client *c)
{
	if (get(c, rnd(c, 4) ? "/is_alive" : "/"))
		want(c, 200, strcmp(c->path, "/") ? "\"is_alive\":true" : "hello world");
}

static void bad_token(struct client *c)
{
	static const char *const paths[] = { "/is_alive", "/execute", "/nope", "/upload" };

	path(c, "%s", paths[rnd(c, 4)]);
	text_clear(&c->headers);
	if (rnd(c, 2))
		text_format(&c->headers, "X-API-Key: %s%u\r\n", soak.token, rnd(c, 10));
	letters(c, &c->body, rnd(c, 3000));
	if (ask(c, rnd(c, 2) ? "POST" : "GET"))
		want(c, strstr(c->headers.data, "Key") ? 401 : 403, "\"detail\"");
}

static void unknown(struct client *c)
{
	path(c, rnd(c, 3) ? "/nope/%lu" : "/is_alive", c->serial++);
	if (rnd(c, 2))
		letters(c, &c->body, rnd(c, 3000));
	if (ask(c, "PUT"))
		want(c, strcmp(c->path, "/is_alive") ? 404 : 405, "\"detail\"");
}

static void bad_body(struct client *c)
{
	static const char *const bodies[] = { "",
					      "{\"command\": ",
					      "[]",
					      "{\"command\": {}}",
					      "{\"timeout\": \"soon\", \"path\": 7}",
					      "\xff\xfe",
					      "{\"a\": \"\\ud800\"}" };
	static const char *const paths[] = { "/execute", "/run_in_session", "/write_file",
					     "/read_file" };

	if (rnd(c, 10) == 0) {
		path(c, "/execute");
		for (unsigned n = 3000 + rnd(c, 3000); n > 0; n--)
			text_add(&c->body, "[", 1);
		(void)ask(c, "POST");
	} else {
		(void)post(c, paths[rnd(c, 4)], "%s", bodies[rnd(c, 7)]);
	}
	want(c, 422, "\"detail\"");
}

static void file(struct client *c)
{
	struct text content = { 0 };
	size_t len = length(c);

	letters(c, &content, len);
	pthread_rwlock_rdlock(&soak.files);
	if (post(c, "/write_file", "{\"path\":\"%s/c%u/f%u\",\"content\":\"%s\"}", soak.dir,
		 c->index, rnd(c, 8), content.data) &&
	    want_all(c, 200, "{}")) {
		char name[512];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(c->body.data + 9, "\""),
			 c->body.data + 9);
		if (post(c, "/read_file", "{\"path\":\"%s\"}", name))
			want_all(c, 200, "{\"content\":\"%s\"}", content.data);
	}
	pthread_rwlock_unlock(&soak.files);
	free(content.data);
}

static void no_file(struct client *c)
{
	if (post(c, "/read_file", "{\"path\":\"%s/c%u/none\"}", soak.dir, c->index))
		want(c, 511, "builtins.FileNotFoundError");
}

static void form_part(struct client *c, const char *boundary, const char *name, const char *more,
		      const struct text *data)
{
	text_format(&c->body, "--%s\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n",
		    boundary, name, more);
	text_add(&c->body, data->data, data->len);
	text_add(&c->body, "\r\n", 2);
}

/* The form of an upload to DIRECTORY/cN/NAME. */
static bool upload_as(struct client *c, const char *where, const char *name, const char *unzip,
		      const struct text *data)
{
	struct text target = { 0 }, flag = { 0 };
	char boundary[40];

	path(c, "%s", where);
	snprintf(boundary, sizeof(boundary), "-%u--%lu", rnd(c, 1000), c->serial++);
	text_format(&c->headers, "Content-Type: multipart/form-data; boundary=%s\r\n", boundary);
	text_format(&target, "%s/c%u/%s", soak.dir, c->index, name);
	text_format(&flag, "%s", unzip);
	form_part(c, boundary, "target_path", "", &target);
	form_part(c, boundary, "path", "", &target); /* Chimera's name for it */
	form_part(c, boundary, "file", "; filename=\"f\"", data);
	form_part(c, boundary, "unzip", "", &flag);
	text_format(&c->body, "--%s--\r\n", boundary);
	free(target.data);
	free(flag.data);
	return ask(c, "POST") && want_all(c, 200, "{}");
}

static void upload(struct client *c)
{
	struct text content = { 0 };

	letters(c, &content, length(c));
	pthread_rwlock_rdlock(&soak.files);
	if (upload_as(c, soak.rex || rnd(c, 2) ? "/upload" : "/files/upload", "uploaded", "false",
		      &content) &&
	    post(c, "/read_file", "{\"path\":\"%s/c%u/uploaded\"}", soak.dir, c->index))
		want_all(c, 200, "{\"content\":\"%s\"}", content.data);
	pthread_rwlock_unlock(&soak.files);
	free(content.data);
}

static void archive(struct client *c)
{
	pthread_rwlock_rdlock(&soak.files);
	if (upload_as(c, "/upload", "tree", "true", &soak.archive) &&
	    post(c, "/read_file", "{\"path\":\"%s/c%u/tree/zipped/one\"}", soak.dir, c->index))
		want_all(c, 200, "{\"content\":\"from the archive\"}");
	pthread_rwlock_unlock(&soak.files);
}

static void bad_form(struct client *c)
{
	static const char *const bodies[] = {
		"--b\r\nno headers at all",
		"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx", "--b--\r\n", "",
		"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"
	};
	unsigned which = rnd(c, 5);

	path(c, "/upload");
	text_format(&c->headers, "Content-Type: multipart/form-data; boundary=b\r\n");
	text_format(&c->body, "%s", bodies[which]);
	if (ask(c, "POST"))
		want(c, which == 2 ? 422 : 400, "\"detail\"");
}

static void execute(struct client *c)
{
	unsigned long n = c->serial++;
	unsigned code = rnd(c, 20);

	if (post(c, "/execute",
		 "{\"command\":\"echo $((%lu+1)); echo e%lu >&2; exit %u\",\"shell\":true}", n, n,
		 code))
		want_all(c, 200, "{\"stdout\":\"%lu\\n\",\"stderr\":\"e%lu\\n\",\"exit_code\":%u}",
			 n + 1, n, code);
}

static void execute_too_long(struct client *c)
{
	if (post(c, "/execute", "{\"command\":[\"sleep\",\"30\"],\"timeout\":0.05}"))
		want(c, 511, "swerex.exceptions.CommandTimeoutError");
	if (post(c, "/execute", "{\"command\":[\"no-such-program\"]}"))
		want(c, 511, "builtins.FileNotFoundError");
}

static bool create_session(struct client *c)
{
	return post(c, "/create_session", "{\"session\":\"s%u\",\"startup_timeout\":50}",
		    c->index) &&
	       want(c, 200, "\"session_type\":\"bash\"");
}

static void close_session(struct client *c)
{
	if (post(c, "/close_session", "{\"session\":\"s%u\"}", c->index))
		want_all(c, 200, "{\"session_type\":\"bash\"}");
}

static bool run(struct client *c, const char *more, const char *command)
{
	return post(c, "/run_in_session",
		    "{\"action_type\":\"bash\",\"session\":\"s%u\",\"timeout\":50,%s"
		    "\"command\":\"%s\"}",
		    c->index, more, command);
}

static void session(struct client *c)
{
	unsigned long n = c->serial++;
	char command[100], output[100];

	if (!create_session(c))
		return;
	snprintf(command, sizeof(command), "V=%lu; cd /", n);
	if (run(c, "", command))
		want(c, 200, "{\"output\":\"\",\"exit_code\":0");
	for (unsigned i = 10 + rnd(c, 60); i > 0; i--) {
		switch (rnd(c, 12)) {
		case 0:
			if (run(c, "", "(exit 3)"))
				want(c, 511, "swerex.exceptions.NonZeroExitCodeError");
			break;
		case 1:
			if (run(c, "", "echo (a"))
				want(c, 511, "swerex.exceptions.BashIncorrectSyntaxError");
			break;
		case 2:
			if (run(c, "\"check\":\"silent\",", "seq 3; false"))
				want(c, 200, "{\"output\":\"1\\n2\\n3\\n\",\"exit_code\":1");
			break;
		case 3:
			if (run(c, "\"expect\":[\"(a+)+b\",\"two.?\"],", "echo one two three"))
				want(c, 200, "\"expect_string\":\"two.?\"");
			if (run(c, "", ":")) /* what the pattern left */
				want(c, 200, NULL);
			break;
		default:
			snprintf(command, sizeof(command), "echo $V $PWD $((%u+1))", i);
			snprintf(output, sizeof(output),
				 "{\"output\":\"%lu / %u\\n\",\"exit_code\":0,", n, i + 1);
			if (run(c, "", command))
				want(c, 200, output);
		}
	}
	if (rnd(c, 4) == 0) {
		if (run(c, "", "exit 4"))
			want(c, 511, "pexpect.exceptions.EOF");
		if (run(c, "", "echo x"))
			want(c, 511, "pexpect.exceptions.EOF");
	}
	close_session(c);
}

static void no_session(struct client *c)
{
	if (rnd(c, 2) ? run(c, "", "echo")
		      : post(c, "/close_session", "{\"session\":\"s%u\"}", c->index))
		want(c, 511, "swerex.exceptions.SessionDoesNotExistError");
}

/* A command that runs for long, on a connection of its own, and what ends it. */
static void busy_session(struct client *c)
{
	unsigned long n = c->serial++;
	bool interrupt = rnd(c, 2);
	struct client other;

	if (!create_session(c))
		return;
	client_init(&other, c->index);
	other.kind = c->kind;
	path(&other, "/run_in_session");
	text_format(
		&other.body,
		"{\"session\":\"s%u\",\"command\":\"echo on > %s/c%u/on%lu; sleep 40\",\"check\":"
		"\"silent\"}",
		c->index, soak.dir, c->index, n);
	build(&other, &other.request, "POST", 0);
	pthread_rwlock_rdlock(&soak.files);
	if (!conn_open(&other.conn, other.port) ||
	    !conn_send(&other.conn, other.request.data, other.request.len))
		wrong(&other, "cannot be sent");
	if (interrupt) {
		/* Before it has begun there is nothing to interrupt. */
		while (post(c, "/read_file", "{\"path\":\"%s/c%u/on%lu\"}", soak.dir, c->index,
			    n) &&
		       c->a.status == 511)
			pause_ms(5);
		want(c, 200, NULL);
		if (post(c, "/run_in_session",
			 "{\"action_type\":\"bash_interrupt\",\"session\":\"s%u\",\"timeout\":5}",
			 c->index))
			want(c, 200, "\"exit_code\":0");
		if (conn_receive(&other.conn, &other.a))
			want(&other, 200, "\"exit_code\":130");
		else
			wrong(&other, "no answer");
	} else {
		pause_ms(rnd(c, 300));
	}
	pthread_rwlock_unlock(&soak.files);
	close_session(c);
	if (!interrupt) {
		if (!conn_receive(&other.conn, &other.a))
			wrong(&other, "no answer");
		else if (!strstr(other.a.body, "pexpect.exceptions.EOF") &&
			 !strstr(other.a.body, "SessionDoesNotExistError"))
			wrong(&other, "got %u and '%.300s'", other.a.status, other.a.body);
	}
	count(&other, other.a.status);
	client_release(&other);
	if (post(c, "/execute", "{\"command\":[\"rm\",\"-f\",\"%s/c%u/on%lu\"]}", soak.dir,
		 c->index, n))
		want(c, 200, "\"exit_code\":0");
}

/* The same id again: the same answer, and nothing is done. */
static void again(struct client *c)
{
	unsigned long n = c->serial++;
	char *first = NULL;

	pthread_rwlock_rdlock(&soak.files);
	for (int i = 0; i < 2; i++) {
		path(c, "/execute");
		text_format(&c->headers, "X-Request-ID: %lu-%u-%lu\r\n", soak.seed, c->index, n);
		text_format(&c->body,
			    "{\"shell\":true,\"command\":"
			    "\"cd %s/c%u && echo $$ | tee -a once%lu; wc -l < "
			    "once%lu\"}",
			    soak.dir, c->index, n, n);
		if (!ask(c, "POST") || !want(c, 200, "\\n1\\n\""))
			break;
		if (first && strcmp(first, c->a.body) != 0)
			wrong(c, "wanted '%s' again, got '%s'", first, c->a.body);
		free(first);
		first = strdup(c->a.body);
	}
	free(first);
	if (post(c, "/execute", "{\"command\":[\"rm\",\"%s/c%u/once%lu\"]}", soak.dir, c->index, n))
		want(c, 200, "\"exit_code\":0");
	pthread_rwlock_unlock(&soak.files);
}

/* ---- who does what ---- */

static const struct scenario scenarios[] = {
	/* Weights: requests cost between 50 us and 20 ms, and a soak is to be over some day. */
	{ "alive", 300, alive },
	{ "bad token", 80, bad_token },
	{ "unknown", 60, unknown },
	{ "bad body", 60, bad_body },
	{ "file", 100, file },
	{ "no file", 20, no_file },
	{ "upload", 30, upload },
	{ "archive", 10, archive },
	{ "bad form", 10, bad_form },
	{ "execute", 30, execute },
	{ "too long", 3, execute_too_long },
	{ "session", 8, session },
	{ "no session", 20, no_session },
	{ "busy session", 1, busy_session },
	{ "again", 5, again },
	{ NULL, 0, NULL },
};

static const struct scenario *choose(struct client *c)
{
	const struct scenario *const tables[] = { scenarios, rude_scenarios, env_scenarios };
	const unsigned n = soak.rex ? 2 : 3;
	unsigned sum = 0, at;

	for (unsigned i = 0; i < n; i++)
		for (const struct scenario *s = tables[i]; s->name; s++)
			sum += s->weight;
	at = rnd(c, sum);
	for (unsigned i = 0; i < n; i++) {
		for (const struct scenario *s = tables[i]; s->name; s++) {
			if (at < s->weight)
				return s;
			at -= s->weight;
		}
	}
	return NULL; /* not reached: at is below the sum */
}

static void *client_main(void *arg)
{
	struct client *c = arg;

	path(c, "/execute");
	if (post(c, "/execute", "{\"command\":[\"mkdir\",\"-p\",\"%s/c%u\"]}", soak.dir, c->index))
		want(c, 200, "\"exit_code\":0");
	while (atomic_load(&soak.left) > 0) {
		const struct scenario *s = choose(c);

		c->kind = s->name;
		s->play(c);
	}
	return NULL;
}

/* ---- the well-behaved client ---- */

static atomic_bool over;

static void *watch_main(void *arg)
{
	double *slowest = arg;
	struct client c;

	client_init(&c, 0);
	c.kind = "watch";
	while (!atomic_load(&over)) {
		struct timespec begin, end;
		double took;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		path(&c, "/is_alive");
		text_clear(&c.request);
		build(&c, &c.request, "GET", 0);
		if (!conn_open(&c.conn, c.port) ||
		    !conn_send(&c.conn, c.request.data, c.request.len) ||
		    !conn_receive(&c.conn, &c.a))
			wrong(&c, "no answer");
		else
			want(&c, 200, "\"is_alive\":true");
		clock_gettime(CLOCK_MONOTONIC, &end);
		conn_close(&c.conn, GENTLY);
		took = (double)(end.tv_sec - begin.tv_sec) +
		       (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
		*slowest = took > *slowest ? took : *slowest;
		pause_ms(50);
	}
	client_release(&c);
	return NULL;
}

static void read_archive(const char *name)
{
	FILE *f = fopen(name, "rb");
	char buf[4096];
	size_t n;

	if (!f)
		err(1, "%s", name);
	while ((n = fread(buf, 1, sizeof(buf), f)) > 0)
		text_add(&soak.archive, buf, n);
	(void)fclose(f); /* only read */
}

int main(int argc, char **argv)
{
	unsigned n = argc == 9 ? (unsigned)atoi(argv[8]) : 0;
	struct client *clients = calloc(n + 1, sizeof(*clients));
	pthread_t *threads = calloc(n + 1, sizeof(*threads));
	pthread_rwlockattr_t attr;
	pthread_t watch;
	double slowest = 0;

	if (!n || !clients || !threads)
		errx(2, "usage: soak PORT TOKEN DIRECTORY ARCHIVE all|rex SEED REQUESTS CLIENTS");
	soak.port = (unsigned)atoi(argv[1]);
	soak.token = argv[2];
	soak.dir = argv[3];
	read_archive(argv[4]);
	soak.seed = strtoull(argv[6], NULL, 10);
	soak.rex = strcmp(argv[5], "rex") == 0;
	atomic_store(&soak.left, atol(argv[7]));
	/* Else a restore would wait for ever: there is always somebody who looks at his files. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&soak.files, &attr);

	if (pthread_create(&watch, NULL, watch_main, &slowest) != 0)
		errx(1, "no thread");
	for (unsigned i = 0; i < n; i++) {
		client_init(&clients[i], i);
		if (pthread_create(&threads[i], NULL, client_main, &clients[i]) != 0)
			errx(1, "no thread");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		client_release(&clients[i]);
	}
	atomic_store(&over, true);
	pthread_join(watch, NULL);

	printf("requests %ld", atol(argv[7]) - atomic_load(&soak.left));
	for (unsigned i = 0; i < sizeof(soak.statuses) / sizeof(*soak.statuses); i++)
		if (soak.statuses[i])
			printf(" %u:%lu", i, atomic_load(&soak.statuses[i]));
	printf(" slowest /is_alive %.3f s\n", slowest);
	free(clients);
	free(threads);
	free(soak.archive.data);
	return atomic_load(&soak.failures) > 0;
}
