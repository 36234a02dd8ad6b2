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
 *      READDIRPLUS reply is stamped when it is linked, so each directory gets a barrier
 *      (invalidating a name that cannot exist waits for the directory's lock) and a second epoch
 *      follows.
 *  S5  Nothing is told while a lock is held or while the only reader waits (will_block), but for
 *      attributes alone, for which the kernel waits for nobody.
 *  S6  UNLINK, RMDIR and RENAME are about what the kernel had behind a name when it asked, which
 *      may be of the state before, and the answer of the one after. It has asked whether the
 *      caller may do that to the former; it moves that; and a directory that goes, or is replaced,
 *      is dead for it (V5), though it lives on elsewhere. So as long as a name is not told, who
 *      asks so is told to look again (ESTALE): the kernel sends a LOOKUP, and asks once more, with
 *      the directory's lock held from the one to the other. It holds that lock until it has done
 *      what was answered, so every such request is over when its name has been told. (By epoch
 *      that is so of those that were sent before the epoch and answered before all was told.)
 *      LINK holds no lock of what it gives a name to: of a file that a restore replaced it is told
 *      so at any time.
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
#include "store/hash.h"

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

int notes_send(struct view *v, struct notes *notes)
{
	const struct view_kernel *k = &v->kernel;
	int first = 0;

	for (size_t i = 0; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];
		const char *name = notes->text + n->at;

		if (n->old_node && n->retired && k->inval_gone)
			keep_first(&first, k->inval_gone(k->arg, n->old_node, n->retired, name,
							 n->len));
		else if (n->old_node)
			keep_first(&first, k->inval_entry(k->arg, n->old_node, name, n->len,
							  n->expire));
		if (n->new_node && n->new_node != n->old_node)
			keep_first(&first, k->inval_entry(k->arg, n->new_node, name, n->len,
							  n->expire));
		__atomic_store_n(&notes->n_told, i + 1, __ATOMIC_RELEASE);
	}
	for (size_t i = 0; i < notes->n_inodes; i++)
		keep_first(&first, send_inode(k, &notes->inodes[i]));
	return first;
}

static bool is_untold(const struct notes *notes, const struct place *p)
{
	size_t told = __atomic_load_n(&notes->n_told, __ATOMIC_ACQUIRE);

	if (notes->all)
		return true;
	for (size_t i = told; i < notes->n_names; i++) {
		const struct name_note *n = &notes->names[i];

		if ((n->old_node == p->dir || n->new_node == p->dir) && n->len == p->len &&
		    memcmp(notes->text + n->at, p->name, p->len) == 0)
			return true;
	}
	return false;
}

/* False the first time, at this switch. */
static bool has_asked(struct view *v, uint64_t asked)
{
	for (size_t i = 0; i < MIN(v->n_refused, REFUSED); i++)
		if (v->refused[i] == asked)
			return true;
	v->refused[v->n_refused++ % REFUSED] = asked;
	return false;
}

static uint64_t hash_place(const struct place *p, uint64_t seed)
{
	return hash64(p->name, p->len, seed ^ p->dir);
}

bool must_look_again(struct view *v, const struct place *places, size_t n)
{
	uint64_t asked = (uint32_t)view_asker();
	bool untold = false;

	if (!v->telling)
		return false;
	for (size_t i = 0; i < n; i++) {
		untold |= is_untold(v->telling, &places[i]);
		asked = hash_place(&places[i], asked);
	}
	return untold && !has_asked(v, asked);
}

bool must_look_for_file(struct view *v, uint64_t node, const struct place *place)
{
	return !has_asked(v, hash_place(place, hash64(&node, sizeof(node), view_asker())));
}

void telling_begins(struct view *v, const struct notes *notes)
{
	v->telling = notes;
	v->n_refused = 0;
}

void telling_ends(struct view *v)
{
	WRITE_GUARD(v->lock);
	v->telling = NULL;
}

/*
 * Read from the table as it goes: nothing that could fail, and directories that come meanwhile
 * belong to the new state.
 */
int tell_directories(struct view *v)
{
	const struct view_kernel *k = &v->kernel;
	int first = 0;

	for (uint32_t i = 1;; i++) {
		uint64_t node = 0;

		{
			LOCK_GUARD(&v->table_lock);
			const struct vnode *n;

			if (i >= v->n_slots)
				return first;
			n = v->slots[i];
			if (n && S_ISDIR(n->type))
				node = n->node;
		}
		if (!node)
			continue;
		if (k->inc_epoch) /* S4 */
			keep_first(&first, k->inval_entry(k->arg, node, "/", 1, false));
		keep_first(&first, k->inval_inode(k->arg, node, 0, 0));
	}
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
		if (!vnode_by_node(v, note->retired))
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
	return v->expired ? 0 : -ENOMEM;
}

void view_notes_free(struct view *v)
{
	if (v->expired)
		notes_release(v->expired);
	free(v->expired);
}
