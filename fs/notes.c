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
 *  S5  Nothing is told while a lock is held or while the only reader waits (will_block), but for
 *      attributes alone, for which the kernel waits for nobody.
 *  S6  By names: RENAME moves the dentry that the kernel had when it asked, which may be of the
 *      state before while the answer is of the one after; nothing differs at the new name, which
 *      would stay stale. So what is renamed between the switch and the end of the telling is told
 *      behind it. As the kernel holds the directories' locks until it has moved, every such rename
 *      of a name that differs is over when that name has been told.
 *  S7  A LOOKUP or READDIRPLUS answered before the switch may make an inode after it was told that
 *      its attributes changed. So where there was none, a barrier on its directory (as S4's)
 *      waits until it is there, and it is told again.
 */

#include "fs/notes.h"

#include <errno.h>

#include "fs/view_internal.h"
#include "store/base/err.h"
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

int notes_add_inode(struct notes *notes, struct inode_note note)
{
	/* one object's items follow each other in the diff, its record first */
	if (notes->n_inodes && notes->inodes[notes->n_inodes - 1].node == note.node) {
		notes->inodes[notes->n_inodes - 1].rights |= note.rights;
		return 0;
	}
	if (os_grow(&notes->inodes, &notes->cap_inodes, notes->n_inodes + 1,
		    sizeof(*notes->inodes)) < 0)
		return -ENOMEM;
	notes->inodes[notes->n_inodes++] = note;
	return 0;
}

void notes_send_rights(struct view *v, const struct notes *notes)
{
	for (size_t i = 0; i < notes->n_inodes && v->kernel.inval_inode; i++)
		if (notes->inodes[i].rights) /* told again, should that fail */
			(void)v->kernel.inval_inode(v->kernel.arg, notes->inodes[i].node, -1, 0);
}

static int send_inode(const struct view_kernel *k, const struct inode_note *n)
{
	int r = k->inval_inode(k->arg, n->node, 0, 0);

	if (r != ABSENT || !n->parent)
		return r;
	r = k->inval_entry(k->arg, n->parent, "/", 1, false); /* S7 */
	return r < 0 && r != -ENOENT ? r : k->inval_inode(k->arg, n->node, 0, 0);
}

/* Not to know a name or an inode is no failure. */
static void keep_first(int *first, int r)
{
	if (r < 0 && r != -ENOENT && !*first)
		*first = r;
}

int notes_send(struct view *v, const struct notes *notes)
{
	const struct view_kernel *k = &v->kernel;
	int first = 0;

	for (size_t i = 0; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];
		const char *name = notes->text + n->at;

		if (n->old_node)
			keep_first(&first, k->inval_entry(k->arg, n->old_node, name, n->len,
							  n->expire));
		if (n->new_node && n->new_node != n->old_node)
			keep_first(&first, k->inval_entry(k->arg, n->new_node, name, n->len,
							  n->expire));
	}
	for (size_t i = 0; i < notes->n_inodes; i++)
		keep_first(&first, send_inode(k, &notes->inodes[i]));
	return first;
}

void note_renamed(struct view *v, uint64_t dir, const char *name, size_t len)
{
	struct name_note note = { .old_node = dir, .len = (uint32_t)len };

	if (v->telling && notes_add_name(v->renamed, note, name) < 0)
		v->renamed_more = true;
}

/*
 * A rename may go on from where one before it went, so this ends when there was none meanwhile. An
 * epoch is right for any number; where the kernel has none it takes as long as it takes.
 */
#define RENAMED_ROUNDS 8

void tell_renamed(struct view *v)
{
	const struct view_kernel *k = &v->kernel;

	for (unsigned round = 0; v->telling; round++) {
		struct notes notes;
		bool more;

		{
			WRITE_GUARD(v->lock);
			notes = *v->renamed;
			*v->renamed = (struct notes){ 0 };
			more = v->renamed_more || (round == RENAMED_ROUNDS && k->inc_epoch);
			v->renamed_more = false;
			v->telling = notes.n_names > 0 && !more;
		}
		if (more && k->inc_epoch)
			(void)k->inc_epoch(k->arg);
		else
			(void)notes_send(v, &notes);
		notes_release(&notes);
	}
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
			keep_first(&first, k->inval_entry(k->arg, node, "/", 1, false));
		keep_first(&first, k->inval_inode(k->arg, node, 0, 0));
		any_listed |= listed;
	}
	*ret_listed = any_listed;
	return first;
}

/*
 * Does the kernel still have the retired file's name? Whoever looked it up anew has another dentry
 * there, on which something may be mounted by now: that one is not to be thrown out.
 */
static bool is_left_behind(struct view *v, const struct name_note *note, const char *name)
{
	struct inode i;
	struct bound b;

	READ_GUARD(v->lock);
	{
		LOCK_GUARD(&v->table_lock);
		if (!note->retired || !vnode_by_node(v, note->retired))
			return false;
	}
	if (vnode_bind_dir(v, note->old_node, &b) < 0 ||
	    fs_lookup(&b.fs, b.ino, name, note->len, &i) < 0)
		return true;

	LOCK_GUARD(&v->table_lock);
	return !vnode_by_ino(v, i.ino);
}

void drop_expired(struct view *v)
{
	const struct view_kernel *k = &v->kernel;
	struct notes *notes = v->expired;

	for (size_t i = 0; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];

		if (is_left_behind(v, n, notes->text + n->at))
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

int view_notes_new(struct view *v)
{
	v->expired = os_calloc(1, sizeof(*v->expired));
	v->renamed = os_calloc(1, sizeof(*v->renamed));
	return v->expired && v->renamed ? 0 : -ENOMEM;
}

void view_notes_free(struct view *v)
{
	if (v->expired)
		notes_release(v->expired);
	if (v->renamed)
		notes_release(v->renamed);
	free(v->expired);
	free(v->renamed);
}
