/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What shells offer behind "plyfs": a script for each, made of the table of verbs (verbs.h) and of
 * what is said here, once for all of them, of values and arguments.
 */

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "store/base/util.h"
#include "store/base/words.h"
#include "tools/client.h"
#include "tools/verbs.h"

enum kind { NOTHING, FILES, BRANCHES, STATES, COMMAND, WORDS };

/* What options take; what is not here is text, or a number. */
static const struct value {
	const char *option;
	enum kind kind;
	const char *words;
} values[] = {
	{ "--branch", BRANCHES },
	{ "--from", STATES },
	{ "--snapshot", STATES },
	{ "--kind", WORDS, "local git container" },
	{ "--at-exit", WORDS, "keep checkpoint discard" },
	{ "--store", FILES },
	{ "--at", FILES },
	{ "--in", FILES },
	{ "--dir", FILES },
	{ "--tar", FILES },
	{ "--git", FILES },
	{ "--token-file", FILES },
	{ "--certificate", FILES },
	{ "--key", FILES },
	{ "--plot", FILES },
	{ "--reference", FILES },
	{ "--install-reference", FILES },
};

/* What verbs take, but those whose synopsis begins with the words that they take ("a|b"). */
static const struct {
	const char *verb;
	enum kind kind;
} arguments[] = {
	{ "init", FILES },	 { "import", FILES },	 { "mount", FILES },
	{ "unmount", FILES },	 { "checkpoint", FILES }, { "undo", FILES },
	{ "writeback", FILES },	 { "restore", STATES },	 { "diff", STATES },
	{ "export", STATES },	 { "drop", STATES },	 { "dump", STATES },
	{ "run", COMMAND },	 { "test", COMMAND },	 { "fsmonitor", FILES },
};

static const struct value *value_of(const char *option)
{
	static const struct value nothing = { .kind = NOTHING };

	for (size_t i = 0; i < ARRAY_SIZE(values); i++)
		if (strcmp(values[i].option, option) == 0)
			return &values[i];
	return &nothing;
}

static enum kind arguments_of(const struct verb_text *v)
{
	for (size_t i = 0; i < ARRAY_SIZE(arguments); i++)
		if (strcmp(arguments[i].verb, v->name) == 0)
			return arguments[i].kind;
	return NOTHING;
}

/* The words that a synopsis begins with, blanks between; false: it begins with something else. */
static bool first_words(const struct verb_text *v, char ret[static 64])
{
	size_t n = strspn(v->synopsis, "abcdefghijklmnopqrstuvwxyz|");

	if (!memchr(v->synopsis, '|', n))
		return false;
	snprintf(ret, 64, "%.*s", (int)n, v->synopsis);
	for (char *p = ret; (p = strchr(p, '|'));)
		*p = ' ';
	return true;
}

/* ---- options ---- */

struct option_text {
	char name[32]; /* the longest is --install-reference */
	bool valued;
};
struct options {
	struct option_text v[48]; /* env has 22, some more for those to come */
	unsigned n;
};

static struct option_text *option_of(struct options *o, const char *word, size_t len)
{
	for (unsigned i = 0; i < o->n; i++)
		if (strlen(o->v[i].name) == len && memcmp(o->v[i].name, word, len) == 0)
			return &o->v[i];
	if (o->n == ARRAY_SIZE(o->v) || len >= sizeof(o->v->name))
		return NULL;
	snprintf(o->v[o->n].name, sizeof(o->v->name), "%.*s", (int)len, word);
	return &o->v[o->n++];
}

/*
 * Each -x and --word of a text; of "-x, --word VALUE" both take a value. What is in brackets behind
 * an option is none: an option that goes with it, or the verb's argument.
 */
static void find_options(struct options *o, const char *text, size_t len)
{
	const char *end = text + len;
	struct option_text *same = NULL; /* the -x before */

	for (const char *p = text; p < end; p++) {
		struct option_text *found;
		size_t n = 0;

		if (*p != '-' || (p > text && !strchr(" [(|", p[-1])))
			continue;
		if (p[1] == '-')
			n = 2 + strspn(p + 2, "abcdefghijklmnopqrstuvwxyz-");
		else if (isalpha((unsigned char)p[1]) && strchr(" ],|", p[2]))
			n = 2;
		found = n > 2 || (n == 2 && p[1] != '-') ? option_of(o, p, n) : NULL;
		if (!found)
			continue;
		if (p[n] == ' ' && !strchr(" -|[", p[n + 1])) {
			found->valued = true;
			if (same)
				same->valued = true;
		}
		same = p[n] == ',' && n == 2 ? found : NULL;
	}
}

static void options_of(const struct verb_text *v, struct options *ret)
{
	*ret = (struct options){ .n = 0 };
	find_options(ret, v->synopsis, strlen(v->synopsis));
	for (const char *line = v->details; *line; line = strchr(line, '\n') + 1) {
		size_t len = 3;

		if (strncmp(line, "  -", 3) != 0)
			continue;
		while (line[len] != '\n' && (line[len] != ' ' || line[len + 1] != ' '))
			len++;
		find_options(ret, line, len);
	}
}

/* In quotes that each of the shells takes. */
static void print_word(const char *word)
{
	for (putchar('\''); *word; word++)
		if (*word == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*word);
	putchar('\'');
}

/* ---- bash ---- */

/*
 * Nothing that a stranger chose (a label) is given to compgen -W, which would expand it. Words are
 * taken for file names only where files are meant: else a directory `test` made a path of the verb.
 */
static const char bash_head[] =
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
	"\t\t--store)\n"
	"\t\t\tw=${words[++i]-}\n"
	"\t\t\t[[ $w == '~/'* ]] && w=$HOME${w:1}\n"
	"\t\t\tstore=(--store \"$w\") ;;\n"
	"\t\t--) dashes=1 ;;\n"
	"\t\t-*) [[ \" $valued \" == *\" $w \"* ]] && ((++i)) ;;\n"
	"\t\t*)\n"
	"\t\t\tif [[ -n $verb ]]; then\n"
	"\t\t\t\t((args++)) || sub=$w\n"
	"\t\t\t\t[[ $verb == run || $verb == test ]] && dashes=1\n"
	"\t\t\t\tcontinue\n"
	"\t\t\tfi\n"
	"\t\t\tverb=$w\n"
	"\t\t\tcase $verb in\n";
/* Before it: what each verb takes; behind it: what the values of options are. */
static const char bash_values[] =
	"\t\t\tesac ;;\n"
	"\t\tesac\n"
	"\tdone\n"
	"\tif ((i > n)); then # a value\n"
	"\t\tcase $prev in\n";
static const char bash_tail[] =
	"\t\t--without)\n"
	"\t\t\t[[ $cur == *,* ]] && w=${cur%,*}, || w=\n"
	"\t\t\tmapfile -t COMPREPLY < \\\n"
	"\t\t\t\t<(compgen -P \"$w\" -W \"$_plyfs_levers\" -- \"${cur##*,}\") ;;\n"
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
	"\tcompletion:0:*) _plyfs_words 'bash zsh fish' ;;\n"
	"\trestore:0:*|export:0:*|dump:0:*|diff:[01]:*) _plyfs_lines tree --names --labels ;;\n"
	"\tdrop:*)\n"
	"\t\tw=' --names --labels'\n"
	"\t\t[[ \" ${words[*]} \" == *' --branch '* ]] && w=' --names'\n"
	"\t\t[[ \" ${words[*]} \" == *' --snapshot '* ]] && w=' --labels'\n"
	"\t\t_plyfs_lines tree $w ;;\n"
	"\tbench:0:*) _plyfs_words 'snapshot view scale serve' ;;\n"
	"\trun:*|test:*|session:*:run|env:2:create|restore:1:*|bench:*) _plyfs_files ;;\n"
	"\tinit:0:*|import:0:*|mount:0:*|unmount:0:*) _plyfs_files ;;\n"
	"\tcheckpoint:0:*|undo:0:*|writeback:0:*|fsmonitor:0:*) _plyfs_files ;;\n"
	"\tesac\n"
	"}\n"
	"complete -F _plyfs plyfs\n";

static void print_bash(void)
{
	const struct verb_text *v;
	struct options o;

	puts("# bash completion for plyfs; made by 'plyfs completion bash'");
	printf("_plyfs_verbs='");
	for (unsigned i = 0; (v = verb_at(i)); i++)
		printf("%s%s", i ? " " : "", v->name);
	printf("'\n_plyfs_levers='");
	for (unsigned i = 0; i < LEVERS; i++)
		printf("%s%s", i ? " " : "", lever_names[i]);
	puts("'");
	fputs(bash_head, stdout);
	for (unsigned i = 0; (v = verb_at(i)); i++) {
		options_of(v, &o);
		printf("\t\t\t%s) options='", v->name);
		for (unsigned k = 0; k < o.n; k++)
			printf(" %s", o.v[k].name);
		printf("' valued='");
		for (unsigned k = 0; k < o.n; k++)
			if (o.v[k].valued)
				printf(" %s", o.v[k].name);
		printf("' ;;\n");
	}
	fputs(bash_values, stdout);
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		printf("\t\t%s) ", values[i].option);
		if (values[i].kind == WORDS)
			printf("_plyfs_words '%s' ;;\n", values[i].words);
		else if (values[i].kind == FILES)
			printf("_plyfs_files ;;\n");
		else
			printf("_plyfs_lines tree --names%s ;;\n",
			       values[i].kind == STATES ? " --labels" : "");
	}
	fputs(bash_tail, stdout);
}

/* ---- zsh ---- */

static const char zsh_head[] =
	"#compdef plyfs\n"
	"# zsh completion for plyfs; made by 'plyfs completion zsh'\n"
	"_plyfs_lines() {\n"
	"\tlocal -a lines\n"
	"\tlines=(${(f)\"$(timeout 2 plyfs $store \"$@\" 2>/dev/null)\"})\n"
	"\tcompadd -a lines\n"
	"}\n"
	"_plyfs_branches() { _plyfs_lines tree --names }\n"
	"_plyfs_states() { _plyfs_lines tree --names --labels }\n"
	"_plyfs() {\n"
	"\tlocal curcontext=$curcontext context state state_descr line\n"
	"\tlocal -a store verbs\n"
	"\tlocal -A opt_args\n"
	"\t_arguments -C : '--store=:store:_files -/' '(- *)--help' '(- *)--version' \\\n"
	"\t\t':verb:->verb' '*:: :->rest'\n"
	"\tstore=(${opt_args[--store]:+--store=${${(Q)opt_args[--store]}/#\\~\\//$HOME/}})\n"
	"\tcase $state in\n"
	"\tverb)\n"
	"\t\tverbs=(\n";
static const char zsh_verbs_end[] =
	"\t\t)\n"
	"\t\t_describe verb verbs ;;\n"
	"\trest)\n"
	"\t\tcase $words[1] in\n";
static const char zsh_tail[] =
	"\t\tesac ;;\n"
	"\tesac\n"
	"}\n"
	"if [[ $funcstack[1] == _plyfs ]]; then _plyfs \"$@\"; else compdef _plyfs plyfs; fi\n";

/* ":what:how" of a value or an argument. */
static void print_zsh_action(enum kind kind, const char *words)
{
	switch (kind) {
	case FILES:
		printf(":file:_files");
		break;
	case BRANCHES:
		printf(":branch:_plyfs_branches");
		break;
	case STATES:
		printf(":state:_plyfs_states");
		break;
	case WORDS:
		printf(":word:(%s)", words ? words : ""); /* always there; gcc -O3 cannot know */
		break;
	default:
		printf(":value: "); /* nothing is offered */
	}
}

static void print_zsh_verb(const struct verb_text *v)
{
	const enum kind kind = arguments_of(v);
	struct options o;
	char words[64];

	options_of(v, &o);
	printf("\t\t%s) _arguments : --help '--store=:store:_files -/'", v->name);
	for (unsigned i = 0; i < o.n; i++) {
		const struct option_text *t = &o.v[i];

		if (strcmp(t->name, "--store") == 0)
			continue;
		printf(" \\\n\t\t\t'%s", t->name);
		if (t->valued) {
			const struct value *value = value_of(t->name);

			fputs(t->name[1] == '-' ? "=" : "", stdout);
			if (strcmp(t->name, "--without") == 0) {
				printf(":lever:_values -s , lever");
				for (unsigned k = 0; k < LEVERS; k++)
					printf(" %s", lever_names[k]);
			} else {
				print_zsh_action(value->kind, value->words);
			}
		}
		putchar('\'');
	}
	if (first_words(v, words)) {
		printf(" \\\n\t\t\t'1");
		print_zsh_action(WORDS, words);
		printf("' '*:file:_files'");
	} else if (kind == COMMAND) {
		printf(" \\\n\t\t\t'(-)1:command:_command_names -e' '*::arguments:_normal'");
	} else if (kind != NOTHING) {
		printf(" \\\n\t\t\t'*");
		print_zsh_action(kind, NULL);
		putchar('\'');
	}
	printf(" ;;\n");
}

static void print_zsh(void)
{
	const struct verb_text *v;
	char line[128];

	fputs(zsh_head, stdout);
	for (unsigned i = 0; (v = verb_at(i)); i++) {
		printf("\t\t\t");
		snprintf(line, sizeof(line), "%s:%s", v->name, v->summary);
		print_word(line);
		putchar('\n');
	}
	fputs(zsh_verbs_end, stdout);
	for (unsigned i = 0; (v = verb_at(i)); i++)
		print_zsh_verb(v);
	fputs(zsh_tail, stdout);
}

/* ---- fish ---- */

static const char fish_head[] =
	"# fish completion for plyfs; made by 'plyfs completion fish'\n"
	"# Is the verb one of these? Without any: is there none yet?\n"
	"function __plyfs_verb\n"
	"\tset -l words (commandline -opc)\n"
	"\tset -l value yes # what follows plyfs is no verb yet: its name is skipped as a value\n"
	"\tfor word in $words\n"
	"\t\tif test -n \"$value\"\n"
	"\t\t\tset value\n"
	"\t\telse if test \"$word\" = --store\n"
	"\t\t\tset value yes\n"
	"\t\telse if not string match -q -- '-*' $word\n"
	"\t\t\tcontains -- $word $argv\n"
	"\t\t\treturn\n"
	"\t\tend\n"
	"\tend\n"
	"\ttest -z \"$argv\"\n"
	"end\n"
	"function __plyfs_lines\n"
	"\tset -l words (commandline -opc)\n"
	"\tset -l store (string match -- '--store=*' $words)\n"
	"\tif set -l i (contains -i -- --store $words)\n"
	"\t\tset -l path $words[(math $i + 1)]\n"
	"\t\tstring match -q -- '~/*' \"$path\"; and set path $HOME(string sub -s 2 -- $path)\n"
	"\t\tset store --store $path\n"
	"\tend\n"
	"\ttimeout 2 plyfs $store tree $argv 2>/dev/null\n"
	"end\n"
	"complete -c plyfs -f\n"
	"complete -c plyfs -l store -rF\n"
	"complete -c plyfs -l help\n"
	"complete -c plyfs -n __plyfs_verb -l version\n";

static void print_fish_offers(enum kind kind, const char *words)
{
	switch (kind) {
	case FILES:
		printf(" -F");
		break;
	case BRANCHES:
		printf(" -f -a '(__plyfs_lines --names)'");
		break;
	case STATES:
		printf(" -f -a '(__plyfs_lines --names --labels)'");
		break;
	case COMMAND:
		printf(" -F -a '(__fish_complete_command)'");
		break;
	case WORDS:
		printf(" -f -a '%s'", words ? words : "");
		break;
	default:
		printf(" -f");
	}
}

static void print_fish_verb(const struct verb_text *v)
{
	struct options o;
	char words[64];

	printf("complete -c plyfs -n __plyfs_verb -a %s -d ", v->name);
	print_word(v->summary);
	putchar('\n');
	options_of(v, &o);
	for (unsigned i = 0; i < o.n; i++) {
		const struct option_text *t = &o.v[i];
		const struct value *value = value_of(t->name);

		if (strcmp(t->name, "--store") == 0)
			continue;
		printf("complete -c plyfs -n '__plyfs_verb %s' %s %s", v->name,
		       t->name[1] == '-' ? "-l" : "-s", t->name + (t->name[1] == '-' ? 2 : 1));
		if (t->valued && strcmp(t->name, "--without") == 0) {
			printf(" -rf -a '");
			for (unsigned k = 0; k < LEVERS; k++)
				printf(" %s", lever_names[k]);
			putchar('\'');
		} else if (t->valued) {
			printf(" -r");
			print_fish_offers(value->kind, value->words);
		}
		putchar('\n');
	}
	printf("complete -c plyfs -n '__plyfs_verb %s'", v->name);
	if (first_words(v, words))
		print_fish_offers(WORDS, words);
	else
		print_fish_offers(arguments_of(v), NULL);
	putchar('\n');
}

static void print_fish(void)
{
	const struct verb_text *v;

	fputs(fish_head, stdout);
	for (unsigned i = 0; (v = verb_at(i)); i++)
		print_fish_verb(v);
}

int client_completion(struct client *cl)
{
	static const struct {
		const char *name;
		void (*print)(void);
	} shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };
	int r = client_parse(cl, NULL, 0, 0, 1, 1);

	if (r)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(shells); i++)
		if (strcmp(cl->args.v[0], shells[i].name) == 0) {
			shells[i].print();
			return client_printed(cl);
		}
	return client_misuse(cl, "there is a completion for bash, zsh and fish, not for '%s'",
			     cl->args.v[0]);
}
