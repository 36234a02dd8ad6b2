/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inside of a helper program (env/transfer/helper.h): its channel, and how it fails. It has one
 * thread and one task, and gives nothing back before it ends.
 */

#include "env/formats/chan.h"

/*
 * The channel, after HELLO. From here on the process dies with the daemon's thread, gains no
 * rights by running anything, and leaves no core. alone: it needs nothing but its descriptors, so
 * what root started goes on as nobody.
 */
void program_begin(struct chan *c, bool alone);
/* Both do not return. r < 0; the note is told to whoever asked. */
_Noreturn void program_fail(struct chan *c, int r, const char *fmt, ...) _printf_(3, 4);
_Noreturn void program_end(struct chan *c, const char *text);
/* One line about what is left out. */
void program_skip(struct chan *c, const char *fmt, ...) _printf_(2, 3);
/* What was put, or the end: nobody is there to be told. */
void program_must(struct chan *c, int r);
/* The daemon's next record. None comes, or none that is one: this does not return. */
void program_get(struct chan *c, struct record *ret);
/* A record of the daemon's was out of place. */
_Noreturn void program_confused(struct chan *c);
