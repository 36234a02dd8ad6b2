/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/how.h"

/*
 * The verbs: one table for the client's dispatch, the daemon's dispatch, --help and completion.
 *
 * X(name, where, synopsis, summary, details)
 *   where     LOCAL   the client does it alone (client_<name>)
 *             BOTH    client_<name>, which sends words on to the daemon's cmd_<name>
 *             DAEMON  sent to the daemon as it stands (cmd_<name>), also through a view's ioctl
 *             ENV     plyfs-env or plyfs-session do it (env.h); the client turns into them
 *             FILES   as DAEMON, but it touches files of the client: never through an ioctl
 *             HOST    as BOTH, but it touches files or mounts of the client, or runs a program of
 *                     its choice: never through an ioctl
 *   synopsis  after "plyfs NAME "; at most 79 columns with it
 *   details   for `plyfs NAME --help`, at most 79 columns. The completion offers each "-x" and
 *             "--word" of the synopsis, and of lines that begin with two blanks and a dash what
 *             stands before the next two blanks. "--word VALUE", with one blank, takes a value.
 *
 * Verbs up to VERBS_SHOWN stand in `plyfs --help`, which fits 24 lines; the rest is named there.
 */

#define LEVER_HELP(lever, name, help) "      " name ": " help "\n"

#define VERB_LIST(X) \
	X(init, LOCAL, "STORE", "make an empty store in a new directory", \
	  "STORE is made with mode 0700; an empty directory will do, too.\n") \
	X(import, FILES, "[OPTION]... SOURCE[#REV]", \
	  "bring in a directory, a tar file, a git revision, an image", \
	  "SOURCE is a directory, a tar file of any compression ('-': on stdin), or, with\n" \
	  "#REV or --rev, a git repository. Prints the id of the snapshot that it makes.\n" \
	  "  --branch NAME   the branch that gets the tree (main); made when there is none\n" \
	  "  --rev REV       a git revision of SOURCE\n" \
	  "  --oci           SOURCE is DIR[:TAG|@DIGEST], an OCI image layout: each layer\n" \
	  "                  becomes a snapshot\n" \
	  "  --replace       the branch may have a state already: it gets the new one\n" \
	  "  -m, --label LABEL\n" \
	  "  --json          statistics of the import\n") \
	X(mount, HOST, "[--branch NAME | --snapshot ID] --at MOUNTPOINT", \
	  "show a branch or a snapshot as a directory", \
	  "Starts the daemon when needed; prints the mount point.\n" \
	  "  --at DIR        an empty directory\n" \
	  "  --branch NAME   the branch (main); one view per branch\n" \
	  "  --snapshot ID   a snapshot, read-only\n" \
	  "  --private       as root: for root only (else every user, checked by modes)\n" \
	  "  --allow-other   as another user: for every user, as well (docker, sudo);\n" \
	  "                  wants user_allow_other in /etc/fuse.conf\n" \
	  "  --suid, --dev   as root: setuid programs, devices in it count (a container's\n" \
	  "                  root may want that; whoever wrote the view then is trusted)\n" \
	  "  --fsmonitor     the git repository in it asks plyfs what has changed\n" \
	  "  --inotify       a restore tells programs that watch files (inotify)\n" \
	  "  --io-uring      for several busy clients at once; the view then ends when\n" \
	  "                  the daemon is killed. See plyfs doctor\n" \
	  "  --passthrough   as root, with --snapshot: the kernel reads large files itself,\n" \
	  "                  from copies that are made when they are first opened\n" \
	  "  --without A,B   for diagnosis: without what makes it fast, or some of that:\n" \
	  LEVER_LIST(LEVER_HELP) \
	  "Short form: plyfs mount DIR, without a store: DIR is imported into a store of\n" \
	  "its own below $XDG_DATA_HOME/plyfs, and the view is mounted over DIR. The next\n" \
	  "time its view goes on where it was.\n" \
	  "  --fresh         import DIR anew\n" \
	  "  --update        when the view holds nothing that was not written back\n") \
	X(unmount, HOST, "[--lazy | --no-sync] MOUNTPOINT", \
	  "end a view; the branch stays in the store", \
	  "  --lazy          detach now, end when the last process has left\n" \
	  "  --no-sync       do not wait until what was in it is durable\n" \
	  "After the short form of mount, what differs from the directory is told, and:\n" \
	  "  --write-back    bring the differences into the directory\n" \
	  "  --dry-run       with --write-back: only list them; nothing is unmounted\n" \
	  "  --force         with --write-back: over what changed in the directory itself\n") \
	X(checkpoint, BOTH, "[-m LABEL] [--sync] [DIR]", "keep the present state; prints its id", \
	  "Of the view that DIR (.) lies in; with --store or --branch, of a branch (main).\n" \
	  "With nothing changed since the last one, its id is printed again.\n" \
	  "  -m, --label LABEL\n" \
	  "  --sync          wait until it is durable\n" \
	  "  --branch NAME   this branch, whether mounted or not\n") \
	X(restore, BOTH, "ID [DIR]", "go back to a snapshot; undo takes you back", \
	  "ID is an id or the start of one, @LABEL, a branch name (its last snapshot), or\n" \
	  "one of these with ~N: N snapshots earlier.\n" \
	  "  --branch NAME   this branch, whether mounted or not\n") \
	X(undo, BOTH, "[DIR]", "bring back the state that the last restore left", \
	  "An undo can be undone as well.\n" \
	  "  --branch NAME   this branch, whether mounted or not\n") \
	X(fork, BOTH, "[--from ID] NAME [--at MOUNTPOINT]", "begin a branch from a state", \
	  "  --from ID       a snapshot, or a branch (its present state); default: the\n" \
	  "                  view that the current directory lies in, else main\n" \
	  "  --at DIR        mount it there (an empty directory) at once\n" \
	  "  --private, --allow-other, --without A,B, --inotify, --io-uring   with --at, as\n" \
	  "                  mount has them\n") \
	X(drop, DAEMON, "[OPTION]... ID|NAME... | --older-than T [NAME...]", \
	  "forget snapshots or branches", \
	  "A branch name is that branch; its snapshots stay. The space comes back with gc.\n" \
	  "  --with-snapshots  with a branch the snapshots that were made on it\n" \
	  "  --older-than T  snapshots made so long ago (12h, 7d; of branches NAME, else of\n" \
	  "                  all); the last one of each branch stays, and what has a label\n" \
	  "  --labelled      with --older-than: those with a label as well\n" \
	  "  --branch        NAMEs are branches, never ids\n" \
	  "  --snapshot      whole IDs of snapshots or @LABEL, never branches\n" \
	  "  --dry-run       only say what would be dropped\n" \
	  "  --json          an array of objects\n") \
	X(log, DAEMON, "[--branch NAME] [-n N] [--json]", "the snapshots, newest first", \
	  "  --branch NAME   those that led to this branch, or were made on it\n" \
	  "  -n, --count N   the newest N\n" \
	  "  --json          an array of objects\n") \
	X(diff, DAEMON, "[OPTION]... [A [B]]", "what changed between two states", \
	  "A, B: snapshots, or branches (their present states). B: the view's present\n" \
	  "state; without A: since the view's last snapshot.\n" \
	  "  --name-status   a letter and a path for each change (the default)\n" \
	  "  --stat          lines added and removed\n" \
	  "  -p, --patch     as git prints it; git apply takes it\n" \
	  "  --json          an array of objects\n" \
	  "  --no-renames    a rename is a deletion and an addition\n" \
	  "  --directories   each that came or went, too, and not only what is in it\n" \
	  "  --exit-code     exit 1 when there are changes\n" \
	  "  -z, --null      of --name-status: end paths with NUL, unquoted\n") \
	X(env, ENV, "create|list|destroy [OPTION]... [NAME [DIR]]", \
	  "environments: named views with their options", \
	  "create NAME DIR: over a directory (or of the view that it is); create NAME: a\n" \
	  "fork of the view that we are in, or of a store. Prints its directory.\n" \
	  "  --kind KIND     local, git (checkpoints are commits, but those\n" \
	  "                  of plyfs checkpoint) or container\n" \
	  "  --store S, --from ID, --at DIR   what to fork, and where to mount it\n" \
	  "  --test-command C, --test-report GLOB, --test-rule RULE, --timeout S\n" \
	  "  --merge 1, --output-limit BYTES, --exclude A:B\n" \
	  "  --commit all|untracked|tracked, --ref REF   of kind git\n" \
	  "  --root 1, --network 1, --memory BYTES, --processes N, --cpu-time S,\n" \
	  "  --runtime R     of a container\n" \
	  "list: what there is. destroy NAME: ends its sessions, unmounts, drops a fork.\n" \
	  "  --json          of list: an array of objects\n" \
	  "  --write-back    bring the differences into the directory that it covers\n" \
	  "  --force         also when it is in use\n") \
	X(run, LOCAL, "[OPTION]... [--] COMMAND...", "run a command in a view", \
	  "Exits with the command's code; 124 on timeout, 127 and 126 as env(1) does.\n" \
	  "  --in DIR        in this directory of a view (.)\n" \
	  "  --timeout S     end it and whatever it started after S seconds\n" \
	  "  --memory SIZE   of it and all that it starts: 512M, 2G\n" \
	  "  --processes N   at the same time\n" \
	  "  --cpu-time S    of each process\n" \
	  "  --fork          in a new branch of the view, mounted for this run only\n" \
	  "  --name NAME     with --fork: the branch's name (run-...)\n" \
	  "  --drop          with --fork: drop the branch afterwards\n") \
	X(test, ENV, "[--in DIR] [--timeout S] [--json] [-- COMMAND...]", \
	  "run the tests in a view, and count", \
	  "COMMAND, or what the environment was created with, or python -m pytest. Exits\n" \
	  "with its code; 124 on timeout; 1 when a test failed and the code is 0.\n" \
	  "  --json          numbers and output as one object\n") \
	X(session, ENV, "start|run|interrupt|list|end [OPTION]... NAME [-- COMMAND]", \
	  "shells that stay: start, run, interrupt, end", \
	  "start NAME: a bash in the view, in the background. run NAME -- COMMAND: in it;\n" \
	  "prints its output, exits with its code. One word is a line for the shell, more\n" \
	  "are taken as they are; '-': from stdin. A Ctrl-C goes to the command.\n" \
	  "  --in DIR        the view that DIR is in (.)\n" \
	  "  --timeout S     interrupt it after S seconds; exit 124; the shell goes on\n" \
	  "  --expect RE     the command asks: until its output matches\n" \
	  "  --quit          the command ends a program that asks\n" \
	  "  --json          of list: an array of objects\n") \
	X(shell, ENV, "[--in DIR] [--at-exit keep|checkpoint|discard]", \
	  "an interactive shell in a view", \
	  "At its end, if something changed, asks whether to keep it.\n" \
	  "  --at-exit WHAT  does not ask; without a terminal, keep is usual\n") \
	X(serve, ENV, "[--in DIR | --store S --from ID] [OPTION]...", \
	  "an environment behind HTTP, for agents", \
	  "SWE-ReX, Chimera and our own protocol (/v1/openapi.json) on one port. Of the\n" \
	  "view that DIR (.) is in, or of a fork that goes when the server ends: by a\n" \
	  "SIGTERM or a Ctrl-C.\n" \
	  "  --host ADDRESS  127.0.0.1; others want a token, or:\n" \
	  "  --insecure      serve whoever can reach it\n" \
	  "  --port PORT     8000; 0: any free one; it is printed\n" \
	  "  --token-file F, --auth-token T   what clients must send; else PLYFS_TOKEN\n" \
	  "  --cloud         POST /sandboxes makes forks, each with a port of its own\n" \
	  "  --test-command C, --timeout S    of the environment\n" \
	  "  --certificate F, --key F         PEM: https\n" \
	  "  --max-connections N (1024), --max-sessions N (512), --max-body BYTES (4 GiB)\n" \
	  "  --max-output BYTES   kept of a command's output (256 MiB)\n") \
	X(status, BOTH, "[--ops] [--json]", "the daemon, its views, the store's sizes", \
	  "Of the store that --store names, or whose view we are in; starts no daemon.\n" \
	  "  --ops           requests of the kernel to each view, by kind\n" \
	  "  --json          one object; \"daemon\" is null when none runs\n") \
	X(doctor, LOCAL, "[--json]", "look whether this machine can mount views", \
	  "Works without a store. Exits 1 when mounting will not work.\n" \
	  "  --json          {\"checks\": [{\"kind\": ..., \"text\": ...}], \"good\": ...}\n") \
	X(tree, DAEMON, "[--json | --names --labels]", "snapshots and branches as a tree", \
	  "  --names         only the names of branches, a line each\n" \
	  "  --labels        only the labels, as @LABEL, a line each\n" \
	  "  --json          {\"snapshots\": [...], \"branches\": [...]}\n") \
	X(export, FILES, "ID (--dir D | --tar F | --git REPO[#BRANCH])", "write a state out", \
	  "ID: a snapshot, or a branch (its present state).\n" \
	  "  --dir D         a directory, absent or empty\n" \
	  "  --tar F         a tar file (PAX); '-': on stdout\n" \
	  "  --git REPO      a commit in a git repository; prints its id. With #BRANCH it\n" \
	  "                  is that branch's next one, else the ref refs/plyfs/ID names it\n" \
	  "  --json          statistics of the export\n") \
	X(gc, DAEMON, "[--json]", "give back the space of what was dropped", \
	  "Views may stay mounted.\n" \
	  "  --json          statistics\n") \
	X(check, BOTH, "[--read-data] [--repair] [--json]", "verify the store, or repair it", \
	  "Exits 1 when something is damaged, and names it: objects, snapshots, paths.\n" \
	  "  --read-data     read and hash every chunk\n" \
	  "  --repair        that, and mend what can be; nothing may be mounted. What is\n" \
	  "                  lost stays an I/O error where it was, and is named each time\n" \
	  "  --json          statistics and an array of damages\n") \
	X(salvage, LOCAL, "[--json]", "make a store's index anew from its packs", \
	  "For a store that does not open: index/ is damaged or gone. Snapshots and\n" \
	  "branches come back as the packs have them; the old index is kept beside it.\n" \
	  "  --json          statistics\n") \
	X(dump, DAEMON, "[ID]", "print a store's inside, or a snapshot's tree, for people", "") \
	X(writeback, HOST, "[--dry-run [--json]] [--force] DIR", \
	  "bring a short-form view's differences into DIR", \
	  "What unmount --write-back does, later: DIR must not be mounted. Its store is\n" \
	  "found by DIR, as by mount DIR, if not by --store; PLYFS_STORE is not asked.\n" \
	  "  --dry-run       only list them\n" \
	  "  --json          of --dry-run: an array of objects\n" \
	  "  --force         over what changed in DIR itself\n") \
	X(fsmonitor, BOTH, "2 TOKEN | --install [DIR]", \
	  "answer git's question what may have changed", \
	  "For git, as its core.fsmonitor: git status then looks at what changed instead\n" \
	  "of at everything.\n" \
	  "  --install       set it up in the git repository DIR, as mount --fsmonitor does\n" \
	  "                  in that at the top of the view\n") \
	X(bench, LOCAL, "snapshot|view|scale|serve [OPTION]...", "measure against other ways", \
	  "  --quick         less of it\n" \
	  "  --json          every measurement as one object\n" \
	  "  --only A,B      some parts of it; not of serve\n" \
	  "  --dir DIR       where to work ($TMPDIR, or /tmp)\n" \
	  "  --rounds N, --history, --io-uring, --journal, --plot FILE   of view\n" \
	  "  --reference PROGRAM, --install-reference DIR   of serve\n" \
	  "'plyfs bench snapshot --help' says more.\n") \
	X(daemon, HOST, "--replace", "let this version's daemon take over the views", \
	  "After an upgrade: the daemon of this program goes on with the views of the one\n" \
	  "that runs. Whoever works in them waits a moment. Prints the new one's pid.\n") \
	X(completion, LOCAL, "bash|zsh|fish", "print a completion script", "") \
	X(version, LOCAL, "", "print the version", "")

#define VERBS_SHOWN 19

struct verb_text {
	const char *name, *synopsis, *summary, *details;
};

const struct verb_text *verb_find(const char *name);
/* One after the other; NULL: that was the last. */
const struct verb_text *verb_at(unsigned i);

/* The options of verbs that mount which client and daemon both read, and the number they make. */
struct mount_options {
	bool io_uring, inotify;
	uint32_t without; /* bits of levers */
};
/* clang-format off */
#define OPTIONS_MOUNT(o) \
	{ .name = "io-uring", .flag = &(o)->io_uring }, \
	{ .name = "inotify", .flag = &(o)->inotify }, \
	{ .name = "without", .bits = &(o)->without, .words = lever_names }
/* clang-format on */
static inline uint32_t mount_how(const struct mount_options *o)
{
	return o->without | (o->io_uring ? MOUNT_IO_URING : 0) | (o->inotify ? MOUNT_INOTIFY : 0);
}
extern const char *const lever_names[LEVERS + 1]; /* by enum lever; NULL-terminated */
/* Those that are switched off, as --without takes them; "" when none is. */
#define LEVERS_TEXT_SIZE 80
const char *levers_to_text(uint32_t how, char text[static LEVERS_TEXT_SIZE]);

/* What restore says of a branch, twice its name, whose last snapshot is not all that it has. */
#define BRANCH_IS_NEWER \
	"branch %s has changed since its last snapshot, which this is; for its present state: " \
	"plyfs restore $(plyfs checkpoint --branch %s)"

/* `plyfs NAME --help`; argv[0] is the verb. */
bool help_is_asked(int argc, char **argv);
void help_print_verb(const struct verb_text *v, FILE *to);
/* `plyfs --help`: on stdout, unflushed. */
void help_print(void);
