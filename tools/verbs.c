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

/* Words that were printed, with spaces around: the synopsis and the details have some both. */
struct printed {
	char words[1024]; /* the longest list, of env, has 350 */
	size_t len;
};

static void print_once(struct printed *p, const char *word, size_t len)
{
	char spaced[64];

	if ((size_t)snprintf(spaced, sizeof(spaced), " %.*s ", (int)len, word) >= sizeof(spaced) ||
	    strstr(p->words, spaced) || p->len + len + 3 > sizeof(p->words))
		return;
	memcpy(p->words + p->len, spaced, len + 3);
	p->len += len + 1; /* the next one's space is this one's */
	printf(" %.*s", (int)len, word);
}

/* Each -x and --word of a text, or each --word that takes a value. */
static void print_options(struct printed *printed, const char *text, size_t len, bool valued)
{
	const char *end = text + len;

	for (const char *p = text; p < end; p++) {
		size_t n = 1;

		if (*p != '-' || (p > text && !strchr(" [(|", p[-1])))
			continue;
		if (p[1] == '-')
			for (n = 2; islower((unsigned char)p[n]) || p[n] == '-'; n++)
				;
		else if (isalpha((unsigned char)p[1]) && strchr(" ],|", p[2]))
			n = valued ? 1 : 2;
		if (n > (p[1] == '-' ? 2 : 1) &&
		    (!valued || (p[n] == ' ' && !strchr(" -|", p[n + 1]))))
			print_once(printed, p, n);
	}
}

static void print_verb_options(const struct verb_text *v, bool valued)
{
	struct printed printed = { .words = "" };

	print_options(&printed, v->synopsis, strlen(v->synopsis), valued);
	for (const char *line = v->details; *line; line = strchr(line, '\n') + 1) {
		size_t len = 3;

		if (strncmp(line, "  -", 3) != 0)
			continue;
		while (line[len] != '\n' && (line[len] != ' ' || line[len + 1] != ' '))
			len++;
		print_options(&printed, line, len, valued);
	}
}

/*
 * Nothing that a stranger chose (a label) is given to compgen -W, which would expand it. Words are
 * taken for file names only where files are meant: else a directory `test` made a path of the verb.
 */
static const char completion_head[] =
	"_plyfs_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
	"_plyfs_files()\n"
	"{\n"
	"\tcompopt -o filenames 2>/dev/null\n"
	"\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
	"}\n"
	"_plyfs_command()\n"
	"{\n"
	"\t[[ $cur == */* ]] && _plyfs_files || mapfile -t COMPREPLY < <(compgen -c -- \"$cur\")\n"
	"}\n"
	"# The lines that a verb prints; of lists the first word.\n"
	"_plyfs_lines()\n"
	"{\n"
	"\tlocal word\n"
	"\twhile IFS= read -r word; do\n"
	"\t\t[[ $2 == list ]] && word=${word%% *}\n"
	"\t\t[[ $word == \"$cur\"* ]] || continue\n"
	"\t\tprintf -v word %q \"$word\"\n"
	"\t\tCOMPREPLY+=(\"$word\")\n"
	"\tdone < <(timeout 2 plyfs \"${store[@]}\" \"$@\" 2>/dev/null)\n"
	"}\n"
	"_plyfs()\n"
	"{\n"
	"\tlocal cur prev= verb= sub= valued= options= dashes= args=0 i n w\n"
	"\tlocal -a words=() store=()\n"
	"\tCOMPREPLY=()\n"
	"\t# \"--option=value\" and \"@label\" come in parts.\n"
	"\tfor ((i = 1; i <= COMP_CWORD; i++)); do\n"
	"\t\tw=${COMP_WORDS[i]} n=${#words[@]}\n"
	"\t\tif ((n)) && [[ $w == = || ${words[n-1]} == --*= || ${words[n-1]} == @ ]]; then\n"
	"\t\t\twords[n-1]+=$w\n"
	"\t\telse\n"
	"\t\t\twords+=(\"$w\")\n"
	"\t\tfi\n"
	"\tdone\n"
	"\tn=$((${#words[@]} - 1)) cur=${words[n]}\n"
	"\tunset \"words[n]\"\n"
	"\t[[ $cur == --*=* ]] && words[n++]=${cur%%=*} cur=${cur#*=}\n"
	"\t((n)) && prev=${words[n-1]}\n"
	"\tfor ((i = 0; i < n; i++)); do\n"
	"\t\tw=${words[i]}\n"
	"\t\tif [[ -n $dashes ]]; then\n"
	"\t\t\t((args++))\n"
	"\t\t\tcontinue\n"
	"\t\tfi\n"
	"\t\tcase $w in\n"
	"\t\t--store=*) store=(\"$w\") ;;\n"
	"\t\t--store) store=(--store \"${words[++i]-}\") ;;\n"
	"\t\t--) dashes=1 ;;\n"
	"\t\t-m|-n) ((++i)) ;;\n"
	"\t\t-*) [[ \" $valued \" == *\" $w \"* ]] && ((++i)) ;;\n"
	"\t\t*)\n"
	"\t\t\tif [[ -n $verb ]]; then\n"
	"\t\t\t\t((args++)) || sub=$w\n"
	"\t\t\t\t[[ $verb == run || $verb == test ]] && dashes=1\n"
	"\t\t\t\tcontinue\n"
	"\t\t\tfi\n"
	"\t\t\tverb=$w\n"
	"\t\t\tcase $verb in\n";
/* Between the two: what each verb takes. */
static const char completion_tail[] =
	"\t\t\tesac ;;\n"
	"\t\tesac\n"
	"\tdone\n"
	"\tif ((i > n)); then # a value\n"
	"\t\tcase $prev in\n"
	"\t\t--branch) _plyfs_lines tree --names ;;\n"
	"\t\t--from|--snapshot) _plyfs_lines tree --names --labels ;;\n"
	"\t\t--kind) _plyfs_words 'local git container' ;;\n"
	"\t\t--at-exit) _plyfs_words 'keep checkpoint discard' ;;\n"
	"\t\t--without)\n"
	"\t\t\t[[ $cur == *,* ]] && w=${cur%,*}, || w=\n"
	"\t\t\tmapfile -t COMPREPLY < \\\n"
	"\t\t\t\t<(compgen -P \"$w\" -W \"$_plyfs_levers\" -- \"${cur##*,}\") ;;\n"
	"\t\t--store|--at|--in|--dir|--tar|--git|--*-file|--certificate|--key|--plot|"
	"--*reference|--install)\n"
	"\t\t\t_plyfs_files ;;\n"
	"\t\tesac\n"
	"\t\treturn\n"
	"\tfi\n"
	"\tif [[ -z $verb ]]; then\n"
	"\t\t[[ $cur == -* ]] && _plyfs_words '--store --help --version' ||\n"
	"\t\t\t_plyfs_words \"$_plyfs_verbs\"\n"
	"\t\treturn\n"
	"\tfi\n"
	"\tif [[ $cur == -* && -z $dashes ]]; then\n"
	"\t\t_plyfs_words \"--help $options\"\n"
	"\t\treturn\n"
	"\tfi\n"
	"\tcase $verb:$args:$sub in\n"
	"\trun:0:*|test:0:*) _plyfs_command ;;\n"
	"\tsession:0:*) _plyfs_words 'start run interrupt list end' ;;\n"
	"\tsession:1:run|session:1:interrupt|session:1:end) _plyfs_lines session list ;;\n"
	"\tsession:2:run) [[ -n $dashes ]] && _plyfs_command ;;\n"
	"\tenv:0:*) _plyfs_words 'create list destroy' ;;\n"
	"\tenv:1:destroy) _plyfs_lines env list ;;\n"
	"\tcompletion:0:*) _plyfs_words bash ;;\n"
	"\trestore:0:*|export:0:*|dump:0:*|diff:[01]:*) _plyfs_lines tree --names --labels ;;\n"
	"\tdrop:*)\n"
	"\t\tw=' --names --labels'\n"
	"\t\t[[ \" ${words[*]} \" == *' --branch '* ]] && w=' --names'\n"
	"\t\t[[ \" ${words[*]} \" == *' --snapshot '* ]] && w=' --labels'\n"
	"\t\t_plyfs_lines tree $w ;;\n"
	"\tbench:0:*) _plyfs_words 'snapshot view scale serve' ;;\n"
	"\trun:*|test:*|session:*:run|env:2:create|restore:1:*|bench:*) _plyfs_files ;;\n"
	"\tinit:0:*|import:0:*|mount:0:*|unmount:0:*) _plyfs_files ;;\n"
	"\tcheckpoint:0:*|undo:0:*|writeback:0:*) _plyfs_files ;;\n"
	"\tesac\n"
	"}\n"
	"complete -F _plyfs plyfs\n";

void completion_print_bash(void)
{
	puts("# bash completion for plyfs; made by 'plyfs completion bash'");
	printf("_plyfs_verbs='");
	for (unsigned i = 0; i < n_verb_texts; i++)
		printf("%s%s", i ? " " : "", verb_texts[i].name);
	printf("'\n_plyfs_levers='");
	for (unsigned i = 0; i < LEVERS; i++)
		printf("%s%s", i ? " " : "", lever_names[i]);
	puts("'");
	fputs(completion_head, stdout);
	for (unsigned i = 0; i < n_verb_texts; i++) {
		printf("\t\t\t%s) options='", verb_texts[i].name);
		print_verb_options(&verb_texts[i], false);
		printf("' valued='");
		print_verb_options(&verb_texts[i], true);
		printf("' ;;\n");
	}
	fputs(completion_tail, stdout);
}
