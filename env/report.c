/* SPDX-License-Identifier: Apache-2.0 */

/*
 * ply_tests_parse: a test run's counts from its output. One pass over the output; every line is
 * shown to every reader (report.h), then what they saw is summed: one command may run several
 * runners, or one of them several times. Time and memory do not depend on what is in it: linear,
 * a few KiB.
 */

#include "env/report.h"

#include <string.h>

#include "env/plyfs.h"
#include "env/status.h"
#include "store/base/util.h"

/* OUTER ones first: what they open and close concerns how the others see the same line. */
static const struct reader *const readers[] = {
	&read_ctest,  &read_meson,  &read_prove, &read_pytest, &read_unittest, &read_go,
	&read_cargo,  &read_jest,   &read_vitest, &read_mocha, &read_node,     &read_check,
	&read_gtest,  &read_maven,  &read_gradle, &read_rspec, &read_phpunit,  &read_tap,
};
#define N_READERS ARRAY_SIZE(readers)

/* ---- counts ---- */

void count(uint64_t *to, uint64_t n)
{
	if (__builtin_add_overflow(*to, n, to))
		*to = UINT64_MAX;
}

static void counts_add(struct counts *to, const struct counts *c)
{
	for (size_t i = 0; i < N_SLOTS; i++)
		count(&to->n[i], c->n[i]);
}

void tally_add(struct tally *t, const struct counts *c)
{
	counts_add(&t->sum, c);
	t->seen = true;
}

uint64_t counts_sum(const struct counts *c)
{
	uint64_t sum = 0;

	for (size_t i = PASSED; i <= SKIPPED; i++)
		count(&sum, c->n[i]);
	return sum;
}

void counts_rest(struct counts *c, uint64_t total)
{
	uint64_t others;

	c->n[PASSED] = 0;
	others = counts_sum(c);
	c->n[PASSED] = total > others ? total - others : 0;
}

/* ---- reading a line ---- */

bool starts_with(const char *s, const char *word)
{
	return strncmp(s, word, strlen(word)) == 0;
}

bool ends_with(const char *s, const char *word)
{
	size_t n = strlen(s), w = strlen(word);

	return n >= w && memcmp(s + n - w, word, w) == 0;
}

bool eat(const char **p, const char *word)
{
	if (!starts_with(*p, word))
		return false;
	*p += strlen(word);
	return true;
}

void eat_spaces(const char **p)
{
	*p += strspn(*p, " \t");
}

bool eat_run(const char **p, char c, size_t n)
{
	size_t have = 0;

	while ((*p)[have] == c)
		have++;
	if (have < n)
		return false;
	*p += have;
	return true;
}

bool is_banner(const char *line, char c, const char *title)
{
	return eat_run(&line, c, 1) && eat(&line, " ") && eat(&line, title) && eat(&line, " ") &&
	       eat_run(&line, c, 1) && !*line;
}

bool eat_number(const char **p, uint64_t *ret)
{
	const char *s = *p;
	uint64_t n = 0;

	if (*s < '0' || *s > '9')
		return false;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(*s - '0'), &n))
			n = UINT64_MAX;
	*p = s;
	*ret = n;
	return true;
}

static const struct word *look_up(const struct word *words, const char *s, size_t len)
{
	for (; words->word; words++)
		if (strcmp(words->word, "*") == 0 ||
		    (strlen(words->word) == len && memcmp(words->word, s, len) == 0))
			return words;
	return NULL;
}

size_t read_counts(const char *p, const char *end, const char *separator, const char *mark,
		   const struct word *words, struct counts *ret)
{
	size_t sep = strlen(separator), known = 0;

	while (p < end) {
		const char *stop = memmem(p, (size_t)(end - p), separator, sep);
		const char *next = stop ? stop + sep : end;
		const struct word *w;
		uint64_t n;

		if (!stop)
			stop = end;
		if (mark) {
			const char *m = memmem(p, (size_t)(stop - p), mark, strlen(mark));

			if (!m)
				return 0;
			w = look_up(words, p, (size_t)(m - p));
			p = m + strlen(mark);
			if (!eat_number(&p, &n) || p != stop)
				return 0;
		} else {
			if (!eat_number(&p, &n) || *p != ' ' || p + 1 >= stop)
				return 0;
			p++;
			w = look_up(words, p, (size_t)(stop - p));
		}
		if (!w)
			return 0;
		known += strcmp(w->word, "*") != 0;
		count(&ret->n[w->slot], n);
		p = next;
	}
	return known;
}

static uint64_t hash(const char *s, size_t len)
{
	uint64_t h = 14695981039346656037u; /* FNV-1a */

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)s[i]) * 1099511628211u;
	return h ? h : 1;
}

bool seen_before(struct seen *seen, const char *name, size_t len)
{
	uint64_t h = hash(name, len);
	size_t i = h % SEEN_NAMES;

	while (seen->hash[i] && seen->hash[i] != h)
		i = (i + 1) % SEEN_NAMES;
	if (seen->hash[i])
		return true;
	if (seen->n == SEEN_NAMES - 1) /* one stays free, so that the search ends */
		return false;
	seen->hash[i] = h;
	seen->n++;
	return false;
}

/* ---- lines ---- */

/* Past an escape sequence at p (which is ESC): colours, links, character sets. */
static const char *skip_escape(const char *p, const char *end)
{
	if (++p == end)
		return p;
	if (*p == '[') { /* CSI: parameters, then one letter */
		for (p++; p < end && !(*p >= '@' && *p <= '~'); p++)
			;
		return p < end ? p + 1 : p;
	}
	if (*p == ']') { /* OSC: up to BEL or ESC \ */
		for (p++; p < end && *p != '\a' && *p != '\033'; p++)
			;
		if (p < end && *p == '\033' && p + 1 < end && p[1] == '\\')
			p++;
		return p < end ? p + 1 : p;
	}
	for (; p < end && *p >= ' ' && *p <= '/'; p++) /* "ESC ( B" */
		;
	return p < end ? p + 1 : p;
}

/* What a person would see of a line of len bytes at p, in buf. */
static void clean(const char *p, size_t len, char buf[LINE_BYTES + 1])
{
	const char *cr, *end;
	size_t n = 0;

	while (len && p[len - 1] == '\r')
		len--;
	end = p + len;
	cr = memrchr(p, '\r', len);
	if (cr)
		p = cr + 1;
	while (p < end && n < LINE_BYTES) {
		if (*p == '\033')
			p = skip_escape(p, end);
		else
			buf[n++] = *p++;
	}
	while (n && (buf[n - 1] == ' ' || buf[n - 1] == '\t'))
		n--;
	buf[n] = '\0';
}

/* ---- all readers together ---- */

/*
 * The states lie behind each other in one block. When an OUTER reader opens, the block is saved;
 * when it closes, all but its own state go back to that.
 */
struct reading {
	char *now, *saved; /* owned; saved lies in now's allocation */
	size_t size;
	size_t at[N_READERS];
	size_t opener; /* whose opening was saved; N_READERS: nobody's */
};

static void reading_release(struct reading *r)
{
	free(r->now);
}

static int reading_init(struct reading *r)
{
	*r = (struct reading){ .opener = N_READERS };
	for (size_t i = 0; i < N_READERS; i++) {
		r->at[i] = r->size;
		r->size += (readers[i]->size + 15) & ~(size_t)15; /* any type may stand there */
	}
	r->now = calloc(2, r->size);
	if (!r->now)
		return fail_memory();
	r->saved = r->now + r->size;
	return 0;
}

static void forget_inner(struct reading *r)
{
	size_t begin = r->at[r->opener], end = begin + readers[r->opener]->size;

	memcpy(r->now, r->saved, begin);
	memcpy(r->now + end, r->saved + end, r->size - end);
	r->opener = N_READERS;
}

static void reading_line(struct reading *r, const char *line)
{
	for (size_t i = 0; i < N_READERS; i++) {
		struct tally *t = (struct tally *)(r->now + r->at[i]);
		bool was_open = t->open;

		readers[i]->line(t, line);
		if (readers[i]->rank != OUTER || t->open == was_open)
			continue;
		if (t->open && r->opener == N_READERS) {
			memcpy(r->saved, r->now, r->size);
			r->opener = i;
		} else if (!t->open && r->opener == i) {
			forget_inner(r);
		}
	}
}

/* Sums what was seen; "pytest+jest". False: nothing was. */
static bool reading_end(struct reading *r, struct counts *ret, char *runner, size_t size)
{
	*runner = '\0';
	for (size_t i = 0; i < N_READERS; i++) {
		struct tally *t = (struct tally *)(r->now + r->at[i]);
		size_t len = strlen(runner);

		if (readers[i]->end)
			readers[i]->end(t);
		if (!t->seen || (readers[i]->rank == WEAK && len))
			continue;
		counts_add(ret, &t->sum);
		(void)snprintf(runner + len, size - len, "%s%s", len ? "+" : "",
			       readers[i]->name); /* more than fit are cut */
	}
	return *runner;
}

static int read_text(const char *output, size_t len, struct counts *ret, char *runner, size_t size)
{
	_cleanup_(reading_release) struct reading r;
	const char *p = output, *end = output + len;
	char line[LINE_BYTES + 1];
	int s;

	s = reading_init(&r);
	if (s < 0)
		return s;
	while (p < end) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		size_t n = (size_t)((nl ? nl : end) - p);

		clean(p, n, line);
		reading_line(&r, line);
		p += nl ? n + 1 : n;
	}
	(void)reading_end(&r, ret, runner, size); /* nothing seen: zeros and "" */
	return 0;
}

/* ---- upstream's rule ---- */

/* The number before the leftmost `word` that has one: what (\d+)WORD finds. */
static uint64_t number_before(const char *output, size_t len, const char *word)
{
	const char *p = output, *end = output + len;

	while ((p = memmem(p, (size_t)(end - p), word, strlen(word)))) {
		const char *digits = p;
		uint64_t n = 0;

		while (digits > output && digits[-1] >= '0' && digits[-1] <= '9')
			digits--;
		if (eat_number(&digits, &n))
			return n;
		p++;
	}
	return 0;
}

/* ---- all of it ---- */

static void read_chimera(const char *output, size_t len, struct counts *ret)
{
	ret->n[PASSED] = number_before(output, len, " passed");
	ret->n[FAILED] = number_before(output, len, " failed");
	ret->n[ERRORS] = number_before(output, len, " error");
}

int report_read(const char *output, size_t len, const struct counts *cases, bool broken,
		const char *rule, struct ply_tests *ret)
{
	struct ply_tests tests = { 0 };
	struct counts counts = { 0 };
	const char *believed = NULL; /* NULL: whom the text names */
	int r;

	if (rule && strcmp(rule, "chimera") != 0)
		return fail(PLY_INVALID, "no rule for test reports is called '%s': chimera", rule);
	if (rule) {
		read_chimera(output, len, &counts);
		believed = rule;
	} else if (cases && !broken) {
		counts = *cases;
		believed = "junit-xml";
	} else {
		r = read_text(output, len, &counts, tests.runner, sizeof(tests.runner));
		if (r < 0)
			return r;
		/* A report that breaks off, and no words about it: never taken for success. */
		if (cases && !*tests.runner) {
			counts = *cases;
			count(&counts.n[ERRORS], 1);
			believed = "junit-xml";
		}
	}
	if (believed)
		(void)snprintf(tests.runner, sizeof(tests.runner), "%s", believed);
	tests.passed = MIN(counts.n[PASSED], PLY_TESTS_MAX);
	tests.failed = MIN(counts.n[FAILED], PLY_TESTS_MAX);
	tests.errors = MIN(counts.n[ERRORS], PLY_TESTS_MAX);
	tests.skipped = MIN(counts.n[SKIPPED], PLY_TESTS_MAX);
	*ret = tests;
	return 0;
}

int ply_tests_parse(const char *output, size_t len, const char *xml, size_t xml_len,
		    const char *rule, struct ply_tests *ret)
{
	struct counts cases = { 0 };
	bool broken = false;
	int r;

	*ret = (struct ply_tests){ 0 };
	if (xml && !rule) {
		r = junit_read(xml, xml_len, &cases);
		if (r < 0 && r != PLY_INVALID)
			return r;
		broken = r < 0;
	}
	return report_read(output ? output : "", output ? len : 0, xml ? &cases : NULL, broken,
			   rule, ret);
}
