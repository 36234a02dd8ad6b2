/* SPDX-License-Identifier: Apache-2.0 */

/* What only `plyfs serve` can: Chimera's protocols and our own. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/soak_client.h"

/* As --max-body of the server. */
#define BODY_MAX (1 << 20)

static bool write_file(struct client *c, const char *name, const char *content)
{
	return post(c, "/files/write", "{\"path\":\"%s/c%u/%s\",\"content\":\"%s\"}", soak.dir,
		    c->index, name, content) &&
	       want_all(c, 200, "{}");
}

static bool read_file(struct client *c, const char *name, const char *content)
{
	path(c, "/files/read?path=%s/c%u/%s", soak.dir, c->index, name);
	return ask(c, "GET") && want_all(c, 200, "{\"content\":\"%s\"}", content);
}

static void chimera_file(struct client *c)
{
	struct text content = { 0 };

	text_clear(&content);
	letters(c, &content, length(c));
	pthread_rwlock_rdlock(&soak.files);
	if (write_file(c, "chimera", content.data) && read_file(c, "chimera", content.data)) {
		path(c, "/files/download?path=%s/c%u/chimera", soak.dir, c->index);
		if (ask(c, "GET"))
			want_all(c, 200, "%s", content.data);
		path(c, "/files/list?pattern=*/c%u/chim*", c->index);
		if (rnd(c, 10) == 0 && ask(c, "GET"))
			want(c, 200, "/chimera\"");
	}
	pthread_rwlock_unlock(&soak.files);
	free(content.data);
}

static void chimera_execute(struct client *c)
{
	unsigned code = rnd(c, 9);

	if (post(c, "/execute", "{\"cmd\":\"echo $((%lu+1)); exit %u\"}", c->serial, code))
		want_all(c, 200,
			 "{\"stdout\":\"%lu\\n\",\"stderr\":\"\",\"exit_code\":%u,"
			 "\"timed_out\":false,\"truncated\":false}",
			 c->serial + 1, code);
	c->serial++;
	if (get(c, "/health"))
		want_all(c, 200, "{\"status\":\"ok\"}");
}

static void chimera_refuses(struct client *c)
{
	static const struct {
		const char *path, *body;
		unsigned status;
	} calls[] = {
		{ "/files/write", "{\"path\": 3}", 400 },
		{ "/files/write", "{\"path\": \"../../out\", \"content\": \"\"}", 403 },
		{ "/execute", "{\"cmd\": []}", 400 },
		{ "/restore", "{\"checkpoint_id\": \"no such\"}", 404 },
		{ "/v1/restore", "{\"id\": \"no such\"}", 404 },
		{ "/v1/fork", "{\"name\": \"--at\"}", 400 },
		{ "/v1/drop", "{\"name\": \"none\"}", 400 },
		{ "/v1/exec", "{\"command\": 7}", 400 },
		{ "/sandboxes", "{\"image\": 7}", 400 },
	};
	unsigned i = rnd(c, sizeof(calls) / sizeof(*calls));

	if (post(c, calls[i].path, "%s", calls[i].body))
		want(c, calls[i].status, "\"detail\"");
}

static void too_large(struct client *c)
{
	path(c, "/write_file");
	letters(c, &c->body, BODY_MAX + 1 + rnd(c, 100000));
	if (ask(c, "POST"))
		want(c, 413, "too large");
	text_clear(&c->body);
}

static void exec(struct client *c)
{
	if (post(c, "/v1/exec", "{\"command\":[\"cat\"],\"stdin\":\"in %lu\"}", c->serial))
		want_all(c, 200,
			 "{\"stdout\":\"in %lu\",\"stderr\":\"\",\"exit_code\":0,"
			 "\"timed_out\":false,"
			 "\"truncated\":false}",
			 c->serial);
	c->serial++;
}

static void stream(struct client *c)
{
	if (post(c, "/v1/exec", "{\"command\":\"seq %u; echo e >&2; exit 3\",\"stream\":true}",
		 rnd(c, 3000)) &&
	    want(c, 200, "event: stderr\ndata: {\"data\":\"e\\n\"}"))
		want(c, 200, "event: exit\ndata: {\"exit_code\":3,\"timed_out\":false}");
}

/* Leaves while the command runs, which ends then. */
static void leave_stream(struct client *c)
{
	conn_close(&c->conn, GENTLY);
	path(c, "/v1/exec");
	text_format(&c->body, "{\"command\":\"%s\",\"stream\":true}",
		    rnd(c, 2) ? "echo a; sleep 50" : "while :; do echo much; done");
	text_clear(&c->request);
	build(c, &c->request, "POST", 0);
	if (!conn_open(&c->conn, c->port) || !deliver(c, 50) || (rnd(c, 4) && !conn_more(&c->conn)))
		wrong(c, "no stream");
	count(c, 0);
	conn_close(&c->conn, rnd(c, 2) ? BY_RESET : GENTLY);
}

/* An id out of the last answer: behind key and quotes. */
static bool take_id(struct client *c, const char *key, char *ret, size_t room)
{
	const char *at = strstr(c->a.body, key);

	if (!at) {
		wrong(c, "no %s in %.300s", key, c->a.body);
		return false;
	}
	at += strlen(key);
	snprintf(ret, room, "%.*s", (int)strcspn(at, "\",}"), at);
	return true;
}

/* Nobody else looks at files meanwhile. */
static void states(struct client *c)
{
	bool chimera = rnd(c, 2);
	char id[64];

	pthread_rwlock_wrlock(&soak.files);
	if (write_file(c, "state", "one") &&
	    post(c, chimera ? "/checkpoint" : "/v1/checkpoint", "{}") && want(c, 200, "id\":\"") &&
	    take_id(c, "id\":\"", id, sizeof(id)) && write_file(c, "state", "two") &&
	    post(c, chimera ? "/restore" : "/v1/restore", "{\"%s\":\"%s\"}",
		 chimera ? "checkpoint_id" : "id", id) &&
	    want_all(c, 200, "{}") && read_file(c, "state", "one") && post(c, "/v1/undo", "{}") &&
	    want_all(c, 200, "{}"))
		(void)read_file(c, "state", "two");
	pthread_rwlock_unlock(&soak.files);
}

static void branches(struct client *c)
{
	char name[64];

	snprintf(name, sizeof(name), "b%u-%lu", c->index, c->serial++);
	if (!post(c, "/v1/fork", "{\"name\":\"%s\"}", name) ||
	    !want_all(c, 200, "{\"name\":\"%s\"}", name))
		return;
	if (post(c, "/v1/fork", "{\"name\":\"%s\"}", name))
		want(c, 400, "exists");
	if (get(c, "/v1/tree"))
		want(c, 200, name);
	if (get(c, "/v1/snapshots?count=3"))
		want(c, 200, "{\"snapshots\":[");
	if (post(c, "/v1/drop", "{\"name\":\"%s\",\"with_snapshots\":true}", name))
		want_all(c, 200, "{}");
}

static void diff(struct client *c)
{
	if (get(c, rnd(c, 2) ? "/v1/diff" : "/v1/diff?form=stat"))
		want(c, 200, NULL);
}

static void documents(struct client *c)
{
	if (get(c, "/v1/metrics"))
		want(c, 200, "plyfs_connections ");
	if (get(c, "/v1/openapi.json"))
		want(c, 200, "\"openapi\"");
}

/* A server of its own, for a while. */
static void sandbox(struct client *c)
{
	char id[64], port[16], checkpoint[64];

	if (!post(c, "/sandboxes", "{}") || !want(c, 200, "\"status\":\"ready\"") ||
	    !take_id(c, "sandbox_id\":\"", id, sizeof(id)))
		return;
	path(c, "/sandboxes/%s", id);
	if (ask(c, "GET") && want(c, 200, id) && take_id(c, "\"port\":", port, sizeof(port))) {
		conn_close(&c->conn, GENTLY);
		c->port = (unsigned)atoi(port);
		if (post(c, "/files/write", "{\"path\":\"own\",\"content\":\"1\"}") &&
		    want_all(c, 200, "{}") && post(c, "/checkpoint", "{}") &&
		    take_id(c, "id\":\"", checkpoint, sizeof(checkpoint)) &&
		    post(c, "/execute", "{\"cmd\":\"echo 2 > own; cat own\"}") &&
		    want(c, 200, "\"stdout\":\"2\\n\"") &&
		    post(c, "/restore", "{\"checkpoint_id\":\"%s\"}", checkpoint) &&
		    want_all(c, 200, "{}") && get(c, "/files/read?path=own"))
			want_all(c, 200, "{\"content\":\"1\"}");
		if (post(c, "/create_session", "{\"startup_timeout\":50}")) /* is left open */
			want(c, 200, "\"session_type\":\"bash\"");
		conn_close(&c->conn, GENTLY);
		c->port = soak.port;
	}
	path(c, "/sandboxes/%s", id);
	if (ask(c, "DELETE"))
		want_all(c, 200, "{}");
}

const struct scenario env_scenarios[] = {
	{ "chimera file", 60, chimera_file },
	{ "chimera execute", 10, chimera_execute },
	{ "chimera refuses", 30, chimera_refuses },
	{ "too large", 2, too_large },
	{ "exec", 10, exec },
	{ "stream", 10, stream },
	{ "leave stream", 5, leave_stream },
	{ "states", 1, states },
	{ "branches", 1, branches },
	{ "diff", 1, diff },
	{ "documents", 5, documents },
	{ "sandbox", 1, sandbox },
	{ NULL, 0, NULL },
};
