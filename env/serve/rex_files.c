/* SPDX-License-Identifier: Apache-2.0 */

/*
 * read_file and write_file of the SWE-ReX protocol: text as Python's open() reads it (a codec, what
 * to do with bytes that it cannot decode, every line end a newline) and writes it (UTF-8).
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env/files.h"
#include "env/pytext.h"
#include "env/serve/model.h"
#include "env/serve/rex.h"
#include "env/status.h"
#include "store/base/util.h"

/* ---- bytes ---- */

/*
 * A pipe or a device may have nothing, or no room, for ever: neither the client nor our end waits
 * for that. events: POLLIN or POLLOUT.
 */
static int wait_ready(struct rex *rex, const struct http_request *q, int fd, short events)
{
	_cleanup_(client_unwatch) int watch = client_watch(q);
	struct pollfd p[] = {
		{ .fd = fd, .events = events },
		{ .fd = watch, .events = POLLIN },
		{ .fd = rex_end_watch(rex), .events = POLLIN },
	};

	if (poll(p, ARRAY_SIZE(p), -1) < 0)
		return errno == EINTR ? 0 : -errno;
	return p[1].revents || p[2].revents ? -ECANCELED : 0;
}

static int read_whole(struct rex *rex, const struct http_request *q, const char *path,
		      struct ply_text *ret)
{
	_cleanup_close_ int fd = rex_open(rex, path, O_RDONLY, 0);
	struct stat st;
	size_t room;
	int r;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > HTTP_JSON_MAX)
		return -EFBIG;
	room = (size_t)st.st_size + 4096; /* what is in /proc says 0 */
	ret->data = malloc(room + 1);
	while (ret->data) {
		ssize_t n = read(fd, ret->data + ret->len, room - ret->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			r = wait_ready(rex, q, fd, POLLIN);
			if (r < 0)
				return r;
			continue;
		}
		if (n < 0)
			return -errno;
		ret->len += (size_t)n;
		ret->data[ret->len] = '\0';
		if (n == 0)
			return 0;
		if (ret->len > HTTP_JSON_MAX) /* a device has no size, and may have no end */
			return -EFBIG;
		if (ret->len == room) {
			char *p = realloc(ret->data, room * 2 + 1);

			if (!p)
				return -ENOMEM;
			ret->data = p;
			room *= 2;
		}
	}
	return -ENOMEM;
}

/* CRLF and CR become LF, in place. */
static void newlines(struct ply_text *text)
{
	size_t to = 0;

	for (size_t i = 0; i < text->len; i++) {
		if (text->data[i] == '\r') {
			text->data[to++] = '\n';
			if (i + 1 < text->len && text->data[i + 1] == '\n')
				i++;
		} else {
			text->data[to++] = text->data[i];
		}
	}
	text->len = to;
}

/* What the struct of every request here begins with. */
struct path_request {
	const char *path;
	size_t path_len;
};

/*
 * Reads a request into *ret, a struct that begins with a path_request. False: it is not a right
 * one, which was answered. m is to be released in any case.
 */
static bool path_request_read(const struct http_request *q, struct model *m,
			      const struct model_field *fields, size_t n, void *ret,
			      struct http_response *r)
{
	const struct path_request *file = ret;

	model_parse(m, q->body, q->body_len);
	model_read(m, fields, n, ret);
	if (reply_complaint(r, 422, m))
		return false;
	if (strlen(file->path) != file->path_len) {
		rex_raisef(r, "builtins.ValueError", "embedded null byte");
		return false;
	}
	return true;
}

struct read_request {
	struct path_request file;
	const char *encoding, *errors;
};

void rex_read_file(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "path", MODEL_STRING, offsetof(struct read_request, file.path),
		  offsetof(struct read_request, file.path_len), true, NULL },
		{ "encoding", MODEL_STRING_OR_NULL, offsetof(struct read_request, encoding), 0,
		  false, NULL },
		{ "errors", MODEL_STRING_OR_NULL, offsetof(struct read_request, errors), 0, false,
		  NULL },
	};
	struct read_request f = { 0 };
	struct ply_text bytes = { 0 }, text = { 0 };
	_cleanup_free_ char *path = NULL;
	struct model m;
	int err;

	if (!path_request_read(q, &m, fields, ARRAY_SIZE(fields), &f, r))
		goto out;
	f.encoding = f.encoding ? f.encoding : "utf-8";
	if (rex_check_encoding(f.encoding, r) != 0)
		goto out;
	path = rex_path(f.file.path);
	err = path ? read_whole(arg, q, path, &bytes) : -ENOMEM;
	if (err < 0) {
		const char *shown = path ? path : f.file.path;

		rex_raise_errno(r, -err, shown, strlen(shown));
		goto out;
	}
	err = rex_decode(&bytes, f.encoding, f.errors ? f.errors : "strict", &text, r);
	if (err < 0)
		rex_raisef(r, "builtins.MemoryError", "out of memory");
	if (err != 0)
		goto out;
	newlines(&text);
	reply_json(r, 200, json_pack("{s:o}", "content", json_stringn(text.data, text.len)));
out:
	ply_text_free(&bytes);
	ply_text_free(&text);
	model_release(&m);
}

/* ---- writing ---- */

int rex_write_all(struct rex *rex, const struct http_request *q, int fd, const void *data,
		  size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = write(fd, (const char *)data + done, len - done);
		int r = n < 0 && errno != EINTR ? -errno : 0;

		if (r == -EAGAIN)
			r = wait_ready(rex, q, fd, POLLOUT);
		if (r < 0)
			return r;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

struct write_request {
	struct path_request file;
	const char *content;
	size_t content_len;
};

void rex_write_file(void *arg, const struct http_request *q, struct http_response *r)
{
	static const struct model_field fields[] = {
		{ "content", MODEL_STRING, offsetof(struct write_request, content),
		  offsetof(struct write_request, content_len), true, NULL },
		{ "path", MODEL_STRING, offsetof(struct write_request, file.path),
		  offsetof(struct write_request, file.path_len), true, NULL },
	};
	struct write_request f = { 0 };
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	struct stat st;
	struct model m;
	int err;

	if (!path_request_read(q, &m, fields, ARRAY_SIZE(fields), &f, r))
		goto out;
	path = rex_path(f.file.path);
	if (!path) {
		rex_raisef(r, "builtins.MemoryError", "out of memory");
		goto out;
	}
	if (rex_make_parents(arg, path, r) < 0)
		goto out;
	fd = rex_open(arg, path, O_WRONLY | O_CREAT, 0666);
	if (fd < 0 || fstat(fd, &st) < 0) {
		rex_raise_errno(r, fd < 0 ? -fd : errno, path, strlen(path));
		goto out;
	}
	err = -(S_ISREG(st.st_mode) ? files_replace(fd, f.content, f.content_len)
				    : rex_write_all(arg, q, fd, f.content, f.content_len));
	if (close(TAKE_FD(fd)) < 0 && !err)
		err = errno;
	if (err)
		rex_raise_errno(r, err, path, strlen(path));
	else
		reply_json(r, 200, json_object());
out:
	model_release(&m);
}
