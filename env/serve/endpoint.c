/* SPDX-License-Identifier: Apache-2.0 */

#include "env/serve/endpoint.h"

#include <stdlib.h>
#include <string.h>

void reply_json(struct http_response *r, unsigned status, json_t *body)
{
	char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	json_decref(body);
	if (!text) {
		status = 500;
		text = strdup("{\"detail\":\"out of memory\"}");
	}
	r->status = status;
	r->body = text;
	r->len = text ? strlen(text) : 0;
}

void reply_detail(struct http_response *r, unsigned status, const char *detail)
{
	/* What a path or a program's words brought in may not be UTF-8. */
	json_t *text = json_string(detail);

	reply_json(r, status,
		   json_pack("{s:o}", "detail", text ? text : json_string("(not UTF-8)")));
}
