/* SPDX-License-Identifier: Apache-2.0 */

#include "store/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/os.h"
#include "store/base/util.h"
#include "store/hash.h"

int boot_id(uint8_t ret[static BOOT_BYTES])
{
	const char *test = getenv("PLYFS_TEST_BOOT_ID"); /* a test's power cut */
	_cleanup_close_ int fd = -1;
	char text[36];
	struct name name;
	int r;

	if (test) {
		name = name_of(test, strlen(test), 0);
		memcpy(ret, name.b, BOOT_BYTES);
		return 0;
	}
	r = os_openat(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY, 0, &fd);
	if (r == 0)
		r = os_pread_full(fd, text, sizeof(text), 0);
	if (r == -ENOENT || r == -EACCES) /* no /proc: each open counts as another boot */
		return os_random(ret, BOOT_BYTES);
	if (r != 0) /* to guess would be to lose what is not synced */
		return r < 0 ? r : -EIO;
	name = name_of(text, sizeof(text), 0);
	memcpy(ret, name.b, BOOT_BYTES);
	return 0;
}
