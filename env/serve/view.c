/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checkpoint, restore and undo of the view that the server stands in, through its ioctl: for the
 * server that knows no environment. The same requests and answers as native.c's; ids are those of
 * snapshots.
 */

#include "env/serve/view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "env/serve/model.h"
#include "fs/ioctl.h"
#include "store/base/util.h"

static void refuse(struct http_response *r, int err)
{
	unsigned status = err == ENOENT	 ? 404
			  : err == EINVAL ? 400
			  : err == EPERM || err == EACCES || err == EROFS ? 403
									  : 500;

	reply_detail(r, status,
		     err == ENOENT  ? "not found"
		     : err == EROFS ? "this view shows a snapshot; nothing in it changes"
				    : strerror(err));
}

/* 0 or an errno. What shared mappings hold is written first. */
static int control(unsigned long request, void *data)
{
	_cleanup_close_ int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd) < 0 || plyfs_control(fd, request, data) < 0)
		return errno;
	return 0;
}

/* The one field of a body, NULL when it is not there and need not be. False: answered. */
static bool read_body(const struct http_request *q, struct http_response *r, const char *name,
		      bool required, struct model *m, const char **ret)
{
	const struct model_field field = { .name = name,
					   .type = required ? MODEL_STRING
							    : MODEL_STRING_OR_NULL,
					   .required = required };

	return body_read(q, r, &field, 1, m, ret);
}

static void checkpoint(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	struct plyfs_checkpoint c = { 0 };
	const char *label = NULL;
	int err;

	if (!read_body(q, r, "label", false, &m, &label))
		return;
	if (label && strlen(label) >= sizeof(c.label)) {
		reply_detail(r, 400, "the label is too long");
		return;
	}
	if (label)
		strcpy(c.label, label);
	err = control(PLYFS_IOC_CHECKPOINT, &c);
	if (err)
		refuse(r, err);
	else
		reply_json(r, 200, json_pack("{s:s}", "id", c.id));
}

static void restore(void *arg, const struct http_request *q, struct http_response *r)
{
	_cleanup_(model_release) struct model m = { 0 };
	struct plyfs_restore c = { 0 };
	const char *id = NULL;
	int err;

	if (!read_body(q, r, "id", true, &m, &id))
		return;
	err = strlen(id) >= sizeof(c.id) ? ENOENT : 0;
	if (!err) {
		strcpy(c.id, id);
		err = control(PLYFS_IOC_RESTORE, &c);
	}
	if (err)
		refuse(r, err);
	else
		reply_json(r, 200, json_object());
}

static void undo(void *arg, const struct http_request *q, struct http_response *r)
{
	struct plyfs_restore c = { 0 };
	int err = control(PLYFS_IOC_UNDO, &c);

	if (err == ENOENT)
		reply_detail(r, 409, "there is no restore to undo");
	else if (err)
		refuse(r, err);
	else
		reply_json(r, 200, json_object());
}

static const struct endpoint endpoints[] = {
	{ "POST", "/v1/checkpoint", false, checkpoint },
	{ "POST", "/v1/restore", false, restore },
	{ "POST", "/v1/undo", false, undo },
};

bool serve_view(struct serve_options *o)
{
	_cleanup_close_ int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct plyfs_info info;

	if (fd < 0 || ioctl(fd, PLYFS_IOC_INFO, &info) < 0 || info.version != PLYFS_IOC_VERSION)
		return false;
	o->protocols[0] = (struct serve_protocol){ .name = "native",
						   .endpoints = endpoints,
						   .n = ARRAY_SIZE(endpoints) };
	return true;
}
