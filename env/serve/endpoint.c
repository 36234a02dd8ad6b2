/* SPDX-License-Identifier: Apache-2.0 */

#include "env/serve/endpoint.h"

#include <stdlib.h>
#include <string.h>

#include "env/plyfs.h"
#include "store/base/util.h"

const char *request_id(const struct http_request *q)
{
	const char *id = http_header(q, "X-Request-ID");

	return id && *id ? id : NULL;
}

int client_watch(const struct http_request *q)
{
	int watch = request_id(q) ? -1 : http_watch(q);

	ply_cancel_on(watch);
	return watch;
}

void client_unwatch(int *watch)
{
	ply_cancel_on(-1);
	closep(watch);
}

static void reply_memory(struct http_response *r)
{
	r->status = 500;
	r->body = strdup("{\"detail\":\"out of memory\"}");
	r->len = r->body ? strlen(r->body) : 0;
}

void reply_json(struct http_response *r, unsigned status, json_t *body)
{
	r->status = status;
	r->body = body ? model_dump(body, &r->len) : NULL;
	json_decref(body);
	if (!r->body)
		reply_memory(r);
}

void reply_detail(struct http_response *r, unsigned status, const char *detail)
{
	/* What a path or a program's words brought in may not be UTF-8. */
	json_t *text = json_string(detail);

	reply_json(r, status,
		   json_pack("{s:o}", "detail", text ? text : json_string("(not UTF-8)")));
}

bool reply_complaint(struct http_response *r, unsigned status, const struct model *m)
{
	if (model_ok(m))
		return false;
	r->status = status;
	r->body = m->no_memory ? NULL : model_complaint(m, &r->len);
	if (!r->body)
		reply_memory(r);
	return true;
}

bool reply_nul(struct http_response *r, const char *from, const char *name, const char *value,
	       size_t len)
{
	json_t *input;

	if (strlen(value) == len)
		return false;
	input = json_stringn(value, len);
	reply_json(r, 400,
		   json_pack("{s:[{s:s, s:[ss], s:s, s:o}]}", "detail", "type", "value_error",
			     "loc", from, name, "msg", "Value error, embedded null byte", "input",
			     input ? input : json_string("(not UTF-8)")));
	return true;
}

bool argument_read(const struct http_request *q, struct http_response *r, const char *name,
		   const char **ret)
{
	size_t len = 0;

	*ret = http_argument(q, name, &len);
	return !*ret || !reply_nul(r, "query", name, *ret, len);
}

bool body_read(const struct http_request *q, struct http_response *r,
	       const struct model_field *fields, size_t n, struct model *m, void *to)
{
	model_parse(m, q->body_len ? q->body : "{}", q->body_len ? q->body_len : 2);
	model_read(m, fields, n, to);
	return !reply_complaint(r, 400, m);
}
