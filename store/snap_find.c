/* SPDX-License-Identifier: Apache-2.0 */

/* Snapshots by what people type: ids, beginnings of ids, labels, branches, and parents of these. */

#include <string.h>

#include "store/base/err.h"
#include "store/base/util.h"
#include "store/store_internal.h"

static int hex_value(const char *text, size_t len, uint64_t *ret)
{
	uint64_t v = 0;

	if (len == 0 || len > SNAP_ID_SIZE - 1)
		return ABSENT;
	for (size_t i = 0; i < len; i++) {
		char c = text[i] | 0x20; /* lower case; digits have the bit already */

		if (c >= '0' && c <= '9')
			v = v << 4 | (c - '0');
		else if (c >= 'a' && c <= 'f')
			v = v << 4 | (c - 'a' + 10);
		else
			return ABSENT;
	}
	*ret = v;
	return 0;
}

static int find_prefix(struct store *s, uint64_t prefix, unsigned digits, struct snap **ret)
{
	unsigned shift = 4 * (SNAP_ID_SIZE - 1 - digits);
	struct snap *found = NULL;

	for (size_t i = 0; i < s->snap_slots; i++) {
		struct snap *sn = s->snaps[i];

		if (!sn || sn->id >> shift != prefix || snap_is_unwanted(sn))
			continue;
		if (found)
			return -ERR_SNAP_AMBIGUOUS;
		found = sn;
	}
	if (!found)
		return -ERR_SNAP_UNKNOWN;
	*ret = found;
	return 0;
}

static int find_label(struct store *s, const char *label, size_t len, struct snap **ret)
{
	for (size_t i = s->snap_slots; i > 0; i--) {
		struct snap *sn = s->snaps[i - 1];

		if (sn && strncmp(sn->label, label, len) == 0 && sn->label[len] == '\0') {
			*ret = sn;
			return 0;
		}
	}
	return -ERR_SNAP_UNKNOWN;
}

/* A whole id comes first, then a branch name (it may look like a prefix), then a prefix. */
static int find_base(struct store *s, const char *text, size_t len, struct snap **ret)
{
	char name[BRANCH_NAME_MAX + 1];
	struct entry *e = NULL;
	struct snap *sn = NULL;
	uint64_t prefix = 0;
	bool hex;

	if (len > 1 && text[0] == '@')
		return find_label(s, text + 1, len - 1, ret);

	hex = hex_value(text, len, &prefix) == 0;
	if (hex && len == SNAP_ID_SIZE - 1)
		sn = snap_lookup(s, prefix);
	if (sn && !snap_is_unwanted(sn)) {
		*ret = sn;
		return 0;
	}

	if (len <= BRANCH_NAME_MAX) {
		memcpy(name, text, len);
		name[len] = '\0';
		e = entry_find(s, name);
	}
	if (e) {
		if (!e->head)
			return -ERR_SNAP_UNKNOWN;
		*ret = e->head;
		return 0;
	}
	return hex ? find_prefix(s, prefix, len, ret) : -ERR_SNAP_UNKNOWN;
}

/* Splits "NAME~N"; a bare "~" counts as "~1", as in git. */
static int split_ancestor(const char *text, size_t *ret_len, uint64_t *ret_up)
{
	const char *tilde = strrchr(text, '~');
	uint64_t n = 0;

	if (!tilde || tilde == text)
		return ABSENT;
	for (const char *c = tilde + 1; *c; c++) {
		if (*c < '0' || *c > '9' || n > SNAP_SEQ_MAX)
			return ABSENT;
		n = 10 * n + (*c - '0');
	}
	*ret_len = tilde - text;
	*ret_up = tilde[1] ? n : 1;
	return 0;
}

int snap_find(struct store *s, const char *text, uint64_t *ret_id)
{
	struct snap *sn = NULL;
	size_t len = strlen(text);
	uint64_t up = 0, id;
	int r;

	LOCK_GUARD(&s->table);
	r = find_base(s, text, len, &sn); /* the whole first: a label may hold a '~' */
	if (r == -ERR_SNAP_UNKNOWN && split_ancestor(text, &len, &up) == 0)
		r = find_base(s, text, len, &sn);

	/* A damaged record answers to its whole id, so that it can be dropped. */
	if (r == -ERR_SNAP_UNKNOWN && up == 0 && len == SNAP_ID_SIZE - 1 &&
	    hex_value(text, len, &id) == 0 && snap_is_bad(s, id)) {
		*ret_id = id;
		return 0;
	}
	if (r < 0)
		return r;

	for (; up > 0 && sn; up--)
		sn = snap_parent(sn);
	if (!sn)
		return -ERR_SNAP_UNKNOWN;
	*ret_id = sn->id;
	return 0;
}
