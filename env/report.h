/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a test run's output says. Each test runner has a *reader*: a small machine that is shown
 * the output line by line and knows how its runner closes a run. Nothing else counts: "5 passed"
 * in a log line is no report, because it does not stand where the runner puts its own, or not
 * between the lines that the runner puts around it. A program that prints a whole report in the
 * place of its runner's own is believed; nobody could tell.
 *
 * Lines reach a reader without colours, without what a carriage return took back, and without
 * trailing space; cut after LINE_BYTES (no closing line is that long); NUL-terminated.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINE_BYTES 4096

enum slot {
	PASSED,
	FAILED,
	ERRORS,
	SKIPPED, /* also: todo, pending, expected failures, disabled */
	TOTAL,	 /* where a runner tells it */
	OTHER,	 /* assertions, warnings: read, not used */
	N_SLOTS,
};
struct counts {
	uint64_t n[N_SLOTS];
};

/* Every reader's state begins with one. */
struct tally {
	struct counts sum; /* of the runs that ended */
	bool seen;	   /* there was one, if only to say that there were no tests */
	bool open;	   /* OUTER only: between a run's first line and its last */
};

enum rank {
	LEAF,
	/*
	 * Runs programs that may be tests of other runners, and shows their output: what the
	 * others say between its first and its last line is part of its own count.
	 */
	OUTER,
	WEAK, /* believed only when no other reader saw anything: its lines are others' too */
};

struct reader {
	const char *name;
	enum rank rank;
	size_t size; /* of its state, which is zeroed at first, and plain: it may be copied */
	void (*line)(void *state, const char *line);
	void (*end)(void *state); /* nothing comes any more; may be NULL */
};

extern const struct reader read_pytest, read_unittest;			     /* report_python.c */
extern const struct reader read_jest, read_vitest, read_mocha, read_node;    /* report_js.c */
extern const struct reader read_go, read_cargo;				     /* report_go.c, ... */
extern const struct reader read_check, read_gtest, read_ctest, read_meson;   /* report_c.c */
extern const struct reader read_maven, read_gradle, read_rspec, read_phpunit; /* report_more.c */
extern const struct reader read_tap, read_prove;			     /* report_tap.c */

/* A run ended with these. */
void tally_add(struct tally *t, const struct counts *c);
void count(uint64_t *to, uint64_t n); /* adds; none of these ever wraps */
uint64_t counts_sum(const struct counts *c);	 /* passed, failed, errors, skipped */
/* PASSED is what of total is none of the others; 0 if they are more. */
void counts_rest(struct counts *c, uint64_t total);

/* ---- reading a line: each moves *p past what it ate, or leaves it and says false ---- */

bool eat(const char **p, const char *word);
bool eat_number(const char **p, uint64_t *ret); /* decimal; what is too large is UINT64_MAX */
void eat_spaces(const char **p);
bool starts_with(const char *s, const char *word);
bool ends_with(const char *s, const char *word);
/* "===": n or more of c, and then the end or something else. */
bool eat_run(const char **p, char c, size_t n);
/* "==== TITLE ====" */
bool is_banner(const char *line, char c, const char *title);

/* Names, by hash; a zeroed one is empty. */
#define SEEN_NAMES 1024
struct seen {
	uint64_t hash[SEEN_NAMES]; /* 0: free; open addressing */
	size_t n;
};
/* Was it there? It is now. When there is no more room: false. */
bool seen_before(struct seen *seen, const char *name, size_t len);

struct word {
	const char *word; /* "*": any other one; the table ends with NULL */
	enum slot slot;
};
/*
 * Reads all of [p, end) as a list of counts, separated by `separator`: "2 failed, 4 passed", or,
 * with a mark (": "), "Failures: 2, Errors: 1". Adds each to its slot of *ret. Gives how many
 * of them the table names itself; 0 when it is not such a list (*ret is then of no use).
 */
size_t read_counts(const char *p, const char *end, const char *separator, const char *mark,
		   const struct word *words, struct counts *ret);

/* ---- report.c ---- */

struct ply_tests;

/*
 * ply_tests_parse with the XML read already, perhaps from several files. cases: what was in them;
 * NULL: there was none. broken: one of them broke off, so that they are believed only when the
 * output says nothing; then one more error says so.
 */
int report_read(const char *output, size_t len, const struct counts *cases, bool broken,
		const char *rule, struct ply_tests *ret);

/* ---- junit.c ---- */

/*
 * Adds the cases of a JUnit XML document. PLY_INVALID when it is none, is cut off, has a DOCTYPE
 * (where entity bombs live) or nests deeper than any report does; what came before was added.
 */
int junit_read(const char *xml, size_t len, struct counts *counts);
