/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What an error number cannot carry (which chunk, what was expected) goes to the note callback
 * that was given when the store was opened. Libraries do not print; the program decides where a
 * note goes (the daemon: its log).
 */
struct noter {
	/* One line without newline; any thread; may be NULL. */
	void (*fn)(void *arg, const char *line);
	void *arg;
};

/* Sends one formatted line, returns r unchanged, so that `return note(...)` reads well. */
int note(const struct noter *n, int r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
