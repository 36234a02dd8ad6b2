/* SPDX-License-Identifier: Apache-2.0 */

/* plyfs-tar: archives in and out, by libarchive; see program.h. */

#include <string.h>

#include "env/formats/tar.h"

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	struct chan c;

	program_begin(&c, true);
	if (strcmp(what, "read") == 0 || strcmp(what, "layer") == 0)
		tar_read(&c, *what == 'l');
	if (strcmp(what, "write") == 0)
		tar_write(&c);
	program_fail(&c, -EINVAL, "plyfs-tar: '%s'", what);
}
