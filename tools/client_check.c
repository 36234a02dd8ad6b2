/* SPDX-License-Identifier: Apache-2.0 */

/*
 * check and salvage. The daemon checks and repairs, but cannot even start on a store without a
 * sound index: then a repair begins with making that anew.
 */

#include <string.h>

#include "store/base/util.h"
#include "tools/client.h"

static bool wants_repair(const struct client *cl)
{
	for (int i = 1; i < cl->argc; i++)
		if (strcmp(cl->argv[i], "--repair") == 0)
			return true;
	return false;
}

int client_check(struct client *cl)
{
	_cleanup_close_ int sock = -1;
	int r;

	if (!wants_repair(cl))
		return client_send(cl, true, cl->argc, cl->argv);

	r = client_store(cl);
	if (r)
		return r;
	r = client_connect(cl, false, &sock);
	if (r == NO_DAEMON)
		r = client_salvage_store(cl, "--if-broken");
	closep(&sock);
	sock = -1;
	return r ? r : client_send(cl, true, cl->argc, cl->argv);
}

int client_salvage(struct client *cl)
{
	bool json = false;
	const struct option_def defs[] = { { .name = "json", .flag = &json } };
	int r;

	r = client_parse(cl, defs, ARRAY_SIZE(defs), 0, 0, 0);
	if (r == DONE)
		r = client_store(cl);
	return r ? r : client_salvage_store(cl, json ? "--json" : NULL);
}
