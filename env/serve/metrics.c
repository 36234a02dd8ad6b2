/* SPDX-License-Identifier: Apache-2.0 */

/* See metrics.h. */

#include "env/serve/metrics.h"

#include "env/pytext.h"
#include "store/base/util.h"

/* What our protocols answer with; the last stands for any other. */
static const unsigned statuses[] = { 200, 307, 400, 401, 403, 404, 405, 409, 413,
				     422, 499, 500, 501, 503, 504, 507, 511, 0 };
_Static_assert(ARRAY_SIZE(statuses) <= METRICS_STATUSES, "each has its counter");

void metrics_answered(struct metrics *m, size_t protocol, unsigned status)
{
	size_t i = 0;

	while (statuses[i] && statuses[i] != status)
		i++;
	atomic_fetch_add(&m->answered[protocol][i], 1);
}

int metrics_number(struct ply_text *text, const char *name, const char *type, const char *help,
		   unsigned long long value)
{
	return text_append_format(text, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", name, help, name,
				  type, name, value);
}

int metrics_text(struct metrics *m, const char *const *names, size_t n, struct ply_text *text)
{
	int r;

	r = text_append_str(text, "# HELP plyfs_requests_total Requests answered.\n"
				  "# TYPE plyfs_requests_total counter\n");
	for (size_t p = 0; p < n && r == 0; p++) {
		for (size_t i = 0; names[p] && i < ARRAY_SIZE(statuses) && r == 0; i++) {
			unsigned long long count = atomic_load(&m->answered[p][i]);
			char status[16] = "other";

			if (!count)
				continue;
			if (statuses[i])
				snprintf(status, sizeof(status), "%u", statuses[i]);
			r = text_append_format(
				text, "plyfs_requests_total{protocol=\"%s\",status=\"%s\"} %llu\n",
				names[p], status, count);
		}
	}
	if (r == 0)
		r = metrics_number(text, "plyfs_requests_running", "gauge",
				   "Requests that are being served.", atomic_load(&m->running));
	if (r == 0)
		r = metrics_number(text, "plyfs_commands_total", "counter",
				   "Requests that ran a command.", atomic_load(&m->commands));
	return r;
}
