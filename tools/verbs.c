/* SPDX-License-Identifier: Apache-2.0 */

/* The table of verbs as text: help and completion; see verbs.h. */

#include "tools/verbs.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define TEXT(name, where, synopsis, summary, details) { #name, synopsis, summary, details },
static const struct verb_text verb_texts[] = { VERB_LIST(TEXT) };
#undef TEXT
static const unsigned n_verb_texts = sizeof(verb_texts) / sizeof(verb_texts[0]);

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

void help_print_verb(const struct verb_text *v)
{
	printf("usage: plyfs %s%s%s\n%c%s\n", v->name, *v->synopsis ? " " : "", v->synopsis,
	       toupper((unsigned char)v->summary[0]), v->summary + 1);
	if (*v->details)
		printf("\n%s", v->details);
}

/* Prints each --word of a text with a space before it. */
static void print_options(const char *text)
{
	for (const char *p = strstr(text, "--"); p; p = strstr(p, "--")) {
		size_t n = 2;

		while (islower((unsigned char)p[n]) || p[n] == '-')
			n++;
		if (n > 2)
			printf(" %.*s", (int)n, p);
		p += n;
	}
}

void completion_print_bash(void)
{
	printf("# bash completion for plyfs; made by 'plyfs completion bash'\n"
	       "_plyfs_branches()\n"
	       "{\n"
	       "\ttimeout 2 plyfs tree --names 2>/dev/null\n" /* who waits for a Tab */
	       "}\n"
	       "_plyfs()\n"
	       "{\n"
	       "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= i\n"
	       "\tlocal verbs='");
	for (unsigned i = 0; i < n_verb_texts; i++)
		printf("%s%s", i ? " " : "", verb_texts[i].name);
	printf("'\n"
	       "\tCOMPREPLY=()\n"
	       "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	       "\t\tcase ${COMP_WORDS[i]} in\n"
	       "\t\t--store) ((i++)) ;;\n"
	       "\t\t-*) ;;\n"
	       "\t\t*) verb=${COMP_WORDS[i]}; break ;;\n"
	       "\t\tesac\n"
	       "\tdone\n"
	       "\tif [[ -z $verb && $cur == -* ]]; then\n"
	       "\t\tCOMPREPLY=($(compgen -W '--store --help --version' -- \"$cur\"))\n"
	       "\t\treturn\n"
	       "\tfi\n"
	       "\tif [[ -z $verb && $prev != --store ]]; then\n"
	       "\t\tCOMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\"))\n"
	       "\t\treturn\n"
	       "\tfi\n"
	       "\tcase $prev in\n"
	       "\t--branch|--from)\n"
	       "\t\tCOMPREPLY=($(compgen -W \"$(_plyfs_branches)\" -- \"$cur\"))\n"
	       "\t\treturn ;;\n"
	       "\t--without)\n"
	       "\t\tCOMPREPLY=($(compgen -W '");
	for (unsigned i = 0; i < LEVERS; i++)
		printf("%s%s", i ? " " : "", lever_names[i]);
	printf("' -- \"$cur\"))\n"
	       "\t\treturn ;;\n"
	       "\tesac\n"
	       "\tif [[ $cur == -* ]]; then\n"
	       "\t\tlocal options=\n"
	       "\t\tcase $verb in\n");
	for (unsigned i = 0; i < n_verb_texts; i++) {
		printf("\t\t%s) options='--help", verb_texts[i].name);
		print_options(verb_texts[i].synopsis);
		print_options(verb_texts[i].details);
		printf("' ;;\n");
	}
	printf("\t\tesac\n"
	       "\t\tCOMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
	       "\t\treturn\n"
	       "\tfi\n"
	       "\tcase $verb in\n"
	       "\tdrop|fork)\n"
	       "\t\tCOMPREPLY=($(compgen -W \"$(_plyfs_branches)\" -- \"$cur\")) ;;\n"
	       "\tenv|session)\n"
	       "\t\tlocal words='create list destroy'\n"
	       "\t\t[[ $verb == session ]] && words='start run interrupt list end'\n"
	       "\t\t[[ $prev == \"$verb\" ]] &&\n"
	       "\t\t\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ||\n"
	       "\t\t\tCOMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
	       "\tcompletion) COMPREPLY=($(compgen -W bash -- \"$cur\")) ;;\n"
	       "\t*) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
	       "\tesac\n"
	       "}\n"
	       "complete -o filenames -F _plyfs plyfs\n");
}
