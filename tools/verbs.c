/* SPDX-License-Identifier: Apache-2.0 */

/* The table of verbs as text, and help; see verbs.h. */

#include "tools/verbs.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define TEXT(name, where, synopsis, summary, details) { #name, synopsis, summary, details },
static const struct verb_text verb_texts[] = { VERB_LIST(TEXT) };
#undef TEXT
static const unsigned n_verb_texts = sizeof(verb_texts) / sizeof(verb_texts[0]);

const struct verb_text *verb_at(unsigned i)
{
	return i < n_verb_texts ? &verb_texts[i] : NULL;
}

const struct verb_text *verb_find(const char *name)
{
	for (unsigned i = 0; i < n_verb_texts; i++)
		if (strcmp(verb_texts[i].name, name) == 0)
			return &verb_texts[i];
	return NULL;
}

#define LEVER_NAME(lever, name, help) name,
const char *const lever_names[LEVERS + 1] = { LEVER_LIST(LEVER_NAME) };

#define LEVER_LENGTH(lever, name, help) +sizeof(name) /* with what separates it from the next */
_Static_assert(LEVER_LIST(LEVER_LENGTH) <= LEVERS_TEXT_SIZE, "all of them fit");

const char *levers_to_text(uint32_t how, char text[static LEVERS_TEXT_SIZE])
{
	char *end = text;

	*end = '\0';
	for (unsigned i = 0; i < LEVERS; i++)
		if (how & WITHOUT(i))
			end += sprintf(end, "%s%s", end > text ? "," : "", lever_names[i]);
	return text;
}

void help_print(void)
{
	printf("usage: plyfs [--store STORE] VERB [ARGUMENT]...   (or PLYFS_STORE names it)\n\n");
	for (unsigned i = 0; i < VERBS_SHOWN; i++)
		printf("  %-11s %s\n", verb_texts[i].name, verb_texts[i].summary);
	/* two lines hold them all */
	printf("  also:");
	for (unsigned i = VERBS_SHOWN; i < n_verb_texts; i++)
		printf("%s %s", i == (VERBS_SHOWN + n_verb_texts) / 2 ? "\n       " : "",
		       verb_texts[i].name);
	printf("\nInside a mounted view no store need be named. "
	       "'plyfs VERB --help' says more.\n");
}

bool help_is_asked(int argc, char **argv)
{
	const char *verb = argv[0];

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--") == 0)
			return false;
		if (strcmp(argv[i], "--help") == 0 || (i == 1 && strcmp(argv[i], "-h") == 0))
			return true;
		/* `run COMMAND --help` is the command's, `bench X --help` the bench's */
		if ((strcmp(verb, "run") == 0 && argv[i][0] != '-') || strcmp(verb, "bench") == 0)
			return false;
	}
	return false;
}

void help_print_verb(const struct verb_text *v, FILE *to)
{
	fprintf(to, "usage: plyfs %s%s%s\n%c%s\n", v->name, *v->synopsis ? " " : "", v->synopsis,
		toupper((unsigned char)v->summary[0]), v->summary + 1);
	if (*v->details)
		fprintf(to, "\n%s", v->details);
}
