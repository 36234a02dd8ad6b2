/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the kernel is to forget: collected before a switch changes anything, told when it is done.
 *
 * A restore by names (switch.c) notes each name and object that differs; one by epoch tells the
 * directories, which the epoch does not cover. The names of files are only expired, which is cheap
 * while somebody waits; what nobody looked at since is thrown out afterwards (view_tidy), or by the
 * next restore.
 *
 * Of the argument that no stale name can stay behind (S1 and S3 are in switch.c), what makes a
 * notification come late enough:
 *  S2  A reply computed before, with a name that differs: LOOKUP of a name not cached and
 *      READDIRPLUS hold the directory's lock in the kernel until their result is linked, and
 *      invalidating a name takes that lock exclusively, so it comes after.
 *  S4  By epoch: a LOOKUP is stamped with the epoch before it is sent, so it is stale; a
 *      READDIRPLUS reply is stamped when it is linked, so each directory that was listed gets a
 *      barrier (invalidating a name that cannot exist waits for the directory's lock) and a
 *      second epoch follows.
 *  S5  Nothing is told while a lock is held or while the only reader waits (will_block).
 */

#include "fs/notes.h"

#include <errno.h>

#include "fs/view_internal.h"
#include "store/base/os.h"
#include "store/base/util.h"

void notes_release(struct notes *notes)
{
	free(notes->names);
	free(notes->text);
	free(notes->inodes);
}

int notes_add_name(struct notes *notes, struct name_note note, const char *name)
{
	if (os_grow(&notes->names, &notes->cap_names, notes->n_names + 1,
		    sizeof(*notes->names)) < 0 ||
	    os_grow(&notes->text, &notes->cap_text, notes->n_text + note.len + 1, 1) < 0)
		return -ENOMEM;
	note.at = notes->n_text;
	memcpy(notes->text + note.at, name, note.len);
	notes->text[note.at + note.len] = '\0';
	notes->n_text += note.len + 1;
	notes->names[notes->n_names++] = note;
	return 0;
}

int notes_add_inode(struct notes *notes, uint64_t node)
{
	if (notes->n_inodes && notes->inodes[notes->n_inodes - 1] == node)
		return 0; /* one object's items follow each other in the diff */
	if (os_grow(&notes->inodes, &notes->cap_inodes, notes->n_inodes + 1,
		    sizeof(*notes->inodes)) < 0)
		return -ENOMEM;
	notes->inodes[notes->n_inodes++] = node;
	return 0;
}

int notes_send(struct view *v, const struct notes *notes)
{
	const struct view_kernel *k = &v->kernel;
	int first = 0;

	for (size_t i = 0; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];
		const char *name = notes->text + n->at;
		int r = 0;

		if (n->old_node)
			r = k->inval_entry(k->arg, n->old_node, name, n->len, n->expire);
		if (n->new_node && n->new_node != n->old_node)
			r = k->inval_entry(k->arg, n->new_node, name, n->len, n->expire);
		if (r < 0 && r != -ENOENT && !first)
			first = r;
	}
	for (size_t i = 0; i < notes->n_inodes; i++) {
		int r = k->inval_inode(k->arg, notes->inodes[i], 0, 0);

		if (r < 0 && r != -ENOENT && !first)
			first = r;
	}
	return first;
}

/*
 * A listed one gets a barrier, the name that no file can have (S4). Read from the table as it goes:
 * nothing that could fail, and directories that come meanwhile belong to the new state.
 */
int tell_directories(struct view *v, bool *ret_listed)
{
	const struct view_kernel *k = &v->kernel;
	bool any_listed = false;
	int first = 0;

	for (uint32_t i = 1;; i++) {
		uint64_t node = 0;
		bool listed = false;
		int r = 0;

		{
			LOCK_GUARD(&v->table_lock);
			struct vnode *n;

			if (i >= v->n_slots)
				break;
			n = v->slots[i];
			if (n && S_ISDIR(n->type)) {
				node = n->node;
				listed = n->listed;
				n->listed = false;
				if (listed)
					vnode_save(v, n);
			}
		}
		if (!node)
			continue;
		if (listed)
			r = k->inval_entry(k->arg, node, "/", 1, false);
		if (r < 0 && r != -ENOENT && !first)
			first = r;
		r = k->inval_inode(k->arg, node, 0, 0);
		if (r < 0 && r != -ENOENT && !first)
			first = r;
		any_listed |= listed;
	}
	*ret_listed = any_listed;
	return first;
}

void drop_expired(struct view *v)
{
	const struct view_kernel *k = &v->kernel;
	struct notes *notes = v->expired;

	for (size_t i = 0; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];
		bool kept = false;

		if (n->retired) {
			LOCK_GUARD(&v->table_lock);
			kept = vnode_by_node(v, n->retired) != NULL;
		}
		if (kept)
			(void)k->inval_entry(k->arg, n->old_node, notes->text + n->at, n->len,
					     false);
	}
	notes_release(notes);
	*notes = (struct notes){ 0 };
}

void view_tidy(struct view *v)
{
	LOCK_GUARD(&v->switch_lock);
	memo_tells(v->memo, true);
	drop_expired(v);
	memo_tells(v->memo, false);
}

int expired_new(struct view *v)
{
	v->expired = os_calloc(1, sizeof(*v->expired));
	return v->expired ? 0 : -ENOMEM;
}

void expired_free(struct view *v)
{
	if (v->expired)
		notes_release(v->expired);
	free(v->expired);
}
