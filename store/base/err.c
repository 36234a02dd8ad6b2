/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/err.h"

#include <errno.h>
#include <string.h>

/*
 * Codes of ours in one table, in the order of the enum: the row of code c is c - ERR_FIRST_ - 1.
 * Everything returned is a string literal or libc's constant table, so any thread may keep it.
 */

static const struct {
	int no;
	const char *name;
	const char *text;
} errs[] = {
#define ERR_ROW(code, errno_class, sentence) { errno_class, #code, sentence },
	ERR_LIST(ERR_ROW)
#undef ERR_ROW
};

/* The row of a failure of ours, or -1. The argument may be any int (INT_MIN has no negation). */
static int err_row(int r)
{
	int n = (int)(sizeof(errs) / sizeof(errs[0]));

	if (r > -(ERR_FIRST_ + 1) || r < -(ERR_FIRST_ + n))
		return -1;
	return -r - ERR_FIRST_ - 1;
}

int err_errno(int r)
{
	int row = err_row(r);

	if (r >= 0)
		return 0;
	if (row >= 0)
		return errs[row].no;
	if (r <= -ERR_BASE)
		return EIO;
	return -r;
}

bool err_is_machine(int r)
{
	static const int machine[] = {
		ENOMEM, EMFILE, ENFILE, ENOSPC, EDQUOT, EACCES, EPERM, EROFS,
		ENODEV, ENXIO, ETIMEDOUT, ESTALE, /* disks that are behind a network, or gone */
	};

	for (size_t i = 0; i < sizeof(machine) / sizeof(machine[0]); i++)
		if (r == -machine[i])
			return true;
	return false;
}

const char *err_str(int r)
{
	static const char *const outcomes[] = { "done", "not there", "the end", "not this way",
						"there already" };
	int row = err_row(r);
	const char *s;

	if (r >= 0)
		return r <= EXISTS ? outcomes[r] : "an outcome without a name";
	if (row >= 0)
		return errs[row].text;
	s = r > -ERR_BASE ? strerrordesc_np(-r) : NULL;
	return s ? s : "unknown error";
}

const char *err_name(int r)
{
	static const char *const outcomes[] = { "0", "ABSENT", "END", "AGAIN", "EXISTS" };
	int row = err_row(r);
	const char *s;

	if (r >= 0)
		return r <= EXISTS ? outcomes[r] : "?";
	if (row >= 0)
		return errs[row].name;
	s = r > -ERR_BASE ? strerrorname_np(-r) : NULL;
	return s ? s : "?";
}
