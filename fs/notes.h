/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Notes of what the kernel is to forget, for switch.c: made while a switch is planned, sent when it
 * is done (S2, S4 and S5 in notes.c). All zeros: no notes. The caller keeps others away from them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view;

struct name_note {
	uint64_t old_node; /* the directory's node id before rebinding, or 0 */
	uint64_t dir;      /* inode number of the directory in the tree the name is from */
	uint64_t new_node; /* its node id afterwards, or 0 */
	uint64_t child;    /* inode number of the directory behind the name before; 0: none */
	uint64_t retired;  /* the node id of the file that differs; 0: about something else */
	bool expire; /* as inval_entry (view.h) has it */
	uint32_t len;
	size_t at; /* where the name, with a NUL, begins in notes.text */
};

struct inode_note { /* attributes (and listings) changed */
	uint64_t node;
	uint64_t parent; /* its directory's node id before; 0: the kernel does not know that */
	bool rights;     /* who may what may have changed */
};

struct notes {
	struct name_note *names;
	size_t n_names, cap_names;
	size_t n_told; /* atomic: of them, first: what the kernel knows by now */
	bool all;      /* every name, by epoch: there are none here */
	char *text;
	size_t n_text, cap_text;
	struct inode_note *inodes;
	size_t n_inodes, cap_inodes;
};

/* Frees what the notes have; whoever uses them again sets them to zeros. */
void notes_release(struct notes *notes);
/* name: borrowed, note.len bytes, which are copied; note.at is set here. -ENOMEM: as it was. */
int notes_add_name(struct notes *notes, struct name_note note, const char *name);
/* Adds to the last one, if it is of the same node. -ENOMEM: as it was. */
int notes_add_inode(struct notes *notes, struct inode_note note);

/*
 * Tells the kernel of attributes that may say who may what: they hold from the very moment on at
 * which the state does. The lock is held under which it changes.
 */
void notes_send_rights(struct view *v, const struct notes *notes);
/*
 * Tells the kernel; no locks held. Failures other than "not cached" are returned, the first one,
 * after all has been told.
 */
int notes_send(struct view *v, struct notes *notes);
/*
 * Tells it of every directory that it knows: attributes and cached listings are not under the
 * epoch, and who is busy in one has to be waited for (S4, S6). No locks held; failures as of
 * notes_send.
 */
int tell_directories(struct view *v);

/*
 * S6: from telling_begins (the view's lock held for writing; notes: borrowed) to telling_ends (no
 * locks held) the kernel may mean something else by a name than the state has there.
 */
void telling_begins(struct view *v, const struct notes *notes);
void telling_ends(struct view *v);
struct place {
	uint64_t dir; /* node id */
	const char *name;
	size_t len;
};
/*
 * Who asks for something to be done to what is behind these names is to be answered with ESTALE,
 * and is known when he asks once more. The view's lock held for writing.
 */
bool must_look_again(struct view *v, const struct place *places, size_t n);
/* As must_look_again, for who gives a file a name that a restore replaced since he looked it up. */
bool must_look_for_file(struct view *v, uint64_t node, const struct place *place);

/* Makes the view's notes, without any in them: -ENOMEM. */
int view_notes_new(struct view *v);
/* Frees them, at the view's end. */
void view_notes_free(struct view *v);
/*
 * Files whose names were only expired by the last restore, and that nobody looked at since: the
 * kernel would keep them, and we their old state with all its space, until it needs memory.
 * switch_lock is held, no other.
 */
void drop_expired(struct view *v);
