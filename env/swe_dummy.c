/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The dummy deployment: nothing is there and nothing happens. It says what the configuration tells
 * it to, and remembers what it was asked, in order.
 */

#include <stdarg.h>
#include <stdio.h>

#include "env/pytext.h"
#include "env/status.h"
#include "env/swe_config.h"
#include "env/swe_deploy.h"
#include "store/base/util.h"

struct dummy {
	pthread_mutex_t lock;
	struct ply_list calls; /* under lock */
	size_t next;	       /* under lock: of the configured outputs */
};

static int note(struct swe_deploy *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int note(struct swe_deploy *d, const char *fmt, ...)
{
	struct dummy *dummy = d->kind;
	_cleanup_free_ char *line = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&line, fmt, ap);
	va_end(ap);
	if (n < 0) {
		line = NULL; /* undefined after a failure */
		return fail_memory();
	}
	LOCK_GUARD(&dummy->lock);
	return list_append(&dummy->calls, line, (size_t)n);
}

static void dummy_free(void *kind)
{
	struct dummy *dummy = kind;

	if (!dummy)
		return;
	ply_list_free(&dummy->calls);
	pthread_mutex_destroy(&dummy->lock);
	free(dummy);
}

static int dummy_start(struct swe_deploy *d)
{
	struct dummy *dummy = calloc(1, sizeof(*dummy));

	if (!dummy)
		return fail_memory();
	pthread_mutex_init(&dummy->lock, NULL);
	d->kind = dummy;
	d->free_kind = dummy_free;
	return note(d, "start");
}

static int dummy_stop(struct swe_deploy *d, bool afresh)
{
	return note(d, afresh ? "stop afresh" : "stop");
}

static int dummy_create_session(struct swe_deploy *d)
{
	return note(d, "create_session");
}

static int dummy_run(struct swe_deploy *d, const char *command, double timeout,
		     struct swe_answer *ret)
{
	const json_t *outputs = json_object_get(d->config, "outputs"), *o;
	struct dummy *dummy = d->kind;
	_cleanup_(ply_text_free) struct ply_text c = { 0 };
	size_t next;
	int r;

	r = note(d, "run %g %s", timeout, command);
	if (r < 0)
		return r;
	if (!json_is_array(outputs)) {
		ret->exit_code_known = true;
		return text_set(&ret->output, "", 0);
	}
	pthread_mutex_lock(&dummy->lock);
	next = dummy->next++;
	pthread_mutex_unlock(&dummy->lock);
	o = json_array_get(outputs, next);
	if (!o) {
		r = text_append_repr(&c, command, strlen(command));
		return r < 0 ? r
			     : fail(PLY_FAILED, "the dummy has no more outputs: none for %s",
				    c.data);
	}
	ret->exit_code_known = json_is_integer(json_object_get(o, "exit_code"));
	ret->exit_code = (int)config_number(o, "exit_code");
	return text_set(&ret->output, config_string(o, "output"),
			strlen(config_string(o, "output")));
}

static int dummy_interrupt(struct swe_deploy *d)
{
	return note(d, "interrupt");
}

static int dummy_execute(struct swe_deploy *d, const struct swe_execute *x, struct ply_result *ret)
{
	return note(d, "execute %s", x->command);
}

static int dummy_read_file(struct swe_deploy *d, const char *path, struct ply_text *ret)
{
	int r = note(d, "read_file %s", path);

	return r < 0 ? r : text_set(ret, "", 0);
}

static int dummy_write_file(struct swe_deploy *d, const char *path, const void *data, size_t len)
{
	return note(d, "write_file %s", path);
}

static int dummy_exists(struct swe_deploy *d, const char *path)
{
	return note(d, "exists %s", path);
}

static int dummy_copy_tree(struct swe_deploy *d, const char *from, const char *path)
{
	return note(d, "upload %s", path);
}

const struct ply_list *dummy_calls(const struct swe_deploy *d)
{
	return &((const struct dummy *)d->kind)->calls;
}

const struct swe_deploy_ops deploy_dummy = {
	.type = "dummy",
	.start = dummy_start,
	.stop = dummy_stop,
	.create_session = dummy_create_session,
	.run = dummy_run,
	.interrupt = dummy_interrupt,
	.execute = dummy_execute,
	.read_file = dummy_read_file,
	.write_file = dummy_write_file,
	.exists = dummy_exists,
	.copy_tree = dummy_copy_tree,
};
