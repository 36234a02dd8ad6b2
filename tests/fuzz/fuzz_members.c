/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a program that reads archives tells the daemon (chan.h): a byte of rules, then records. The
 * program may have been taken over by what it read. Refused, or a state whose tree is whole.
 */

#include <sys/socket.h>
#include <unistd.h>

#include "env/transfer/import_members.h"
#include "tests/fuzz/fuzz_tree.h"

#define INPUT_MAX (64 * 1024) /* what a socket takes before anybody reads from it */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)close(fuzz_store_open());
	return 0;
}

static void finish(struct builder *b)
{
	struct root *root;

	MUST(builder_finish(b, &root, NULL) == 0);
	fuzz_walk(root);
	root_unref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct import_ops ops = { 0 };
	struct builder b;
	struct layer layer = { .b = &b };
	struct import_rules rules = { 0 };
	struct helper h = { .name = "records" };
	char text[16];
	int pair[2];

	if (size < 1 || size > INPUT_MAX)
		return 0;
	rules.layer = *data & 1 ? &layer : NULL;
	rules.once = *data & 2;
	MUST(store_import_begin(fuzz_store) == 0);
	MUST(builder_init(&b, fuzz_store, &ops) == 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	MUST(size == 1 || send(pair[1], data + 1, size - 1, 0) == (ssize_t)size - 1);
	(void)close(pair[1]);
	h.chan.fd = pair[0];
	h.talk = &b.talk;
	if (import_members(&b, &h, &rules, text, sizeof(text)) == 0)
		finish(&b);
	helper_release(&h);
	layer_release(&layer);
	builder_release(&b);
	store_import_end(fuzz_store);
	return 0;
}
