#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: verbs
# timeout: 180
"""What each verb takes, what its help says, what the manual says and what shells offer are the same."""
import fcntl
import functools
import glob
import json
import os
import pty
import re
import select
import struct
import sys
import termios

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools")
ELSEWHERE = "bench"  # its options are Python's; it has a help of its own
EVERYWHERE = {"--help", "-h", "--store"}


def verbs():
    return re.findall(r"^\tX\((\w+),", ply.read(TOOLS + "/verbs.h"), re.M)


@functools.cache
def names_of(*files):
    """Of each option of each verb in these files of tools/."""
    text = "".join(ply.read(p) for f in files for p in glob.glob(os.path.join(TOOLS, f)))
    names = {"--" + n for n in re.findall(r'\.name = "([a-z-]+)"|X\(\w+, "([a-z-]+)"\)', text) for n in n if n}
    names |= {"-" + c for c in re.findall(r"\.letter = '(.)'", text)}
    assert len(names) > 20 and "--json" in names
    return sorted(names - EVERYWHERE)


def subs(verb):
    return {"env": ["create", "list", "destroy"],
            "session": ["start", "run", "interrupt", "list", "end"]}.get(verb, [None])


def taken(store, verb):
    """{option: whether it wants a value} of all that a verb does not refuse."""
    options = {}
    ours = verb in ("env", "test", "session", "shell", "serve")
    for sub in subs(verb):
        for name in names_of(*["env_*.c", "session*.c"] if ours else ["c*.c", "verbs.h"]):
            # Nothing is done: what comes behind it is refused, whatever verb it is.
            said = store.fails(verb, *([sub] if sub else []), name + "=", "--no-such", code=2)
            if "there is no option %s " % name not in said:
                options[name] = "takes no value" not in said and "no option -=" not in said
    return options


def of_help(t, verb):
    """{option: whether it wants a value} of verbs.h's rule: see its head. "-x, --word VALUE": both want it."""
    usage, *lines = t.run([ply.PLYFS, verb, "--help"]).stdout.splitlines()
    options = {}
    for part in [usage] + [line[2:].split("  ")[0] for line in lines if line.startswith("  -")]:
        part = re.sub(r"(-[a-z]), (--[a-z]+)( [A-Z]+)", r"\1\3, \2\3", part)
        for name, value in re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-z])\b( \w)?", part):
            options[name] = options.get(name, False) or bool(value)
    return {name: valued for name, valued in options.items() if name not in EVERYWHERE}


@functools.cache
def manual():
    """{verb: (options in its headings and lists, all that are named in its paragraphs)}."""
    found = {}
    body = ply.read(TOOLS + "/plyfs.1").split(".Sh VERBS")[1].split("\n.Sh ")[0]
    for block in re.split(r"^\.It Ic ", body, flags=re.M)[1:]:
        heading, _, rest = block.partition("\n")
        verb = heading.split()[0]
        heads = found.setdefault(verb, (set(), set()))
        listed = "\n".join(re.findall(r"^\.It (Fl .*)", rest, re.M))
        heads[0].update(flags(heading + " " + listed))
        heads[1].update(flags(block))
    return found


def flags(text):
    """Of mdoc: "Fl -name", "Fl x", and several to one Fl."""
    lines = "\n".join(re.findall(r"\bFl .*", text))
    return {"-" + word for word in re.findall(r"(?<=\s)-[a-z][a-z-]*|(?<=Fl )[a-zA-Z]\b", lines)}


def test_options_help_and_manual_agree(t):
    store = t.store()
    wrong = []
    for verb in verbs():
        if verb == ELSEWHERE:
            continue
        took, told = taken(store, verb), of_help(t, verb)
        heads, named = manual().get(verb, (set(), set()))
        if took != told:
            wrong.append("%s takes %s; its help says %s" % (
                verb, *[sorted(a.items() - b.items()) for a, b in ((took, told), (told, took))]))
        if not set(took) <= named:
            wrong.append("%s: the manual does not have %s" % (verb, sorted(set(took) - named)))
        if not heads - EVERYWHERE <= set(took):
            wrong.append("%s: only the manual has %s" % (verb, sorted(heads - set(took))))
    assert not wrong, "\n".join(wrong)


# ---- what shells offer ----

def completion(t, shell):
    ply.need_tool(shell)
    where = t.at("completion." + shell)
    ply.write(where, t.run([ply.PLYFS, "completion", shell]).stdout)
    t.env["PATH"] = os.path.dirname(ply.PLYFS) + ":" + t.env["PATH"]
    return where


def in_bash(t, lines):
    script = """
        compopt() { :; }
        . "$1"; shift
        for line; do
            COMP_WORDS=($line); [[ $line == *" " ]] && COMP_WORDS+=("")
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _plyfs
            echo "${COMPREPLY[*]}"
        done
    """
    p = t.run(["bash", "-uc", script, "bash", completion(t, "bash"), *lines])
    assert not p.stderr, p
    return [set(line.split()) for line in p.stdout.splitlines()]


def in_fish(t, lines):
    script = "source $argv[1]; for line in $argv[2..]; complete -C $line; echo; end"
    p = t.run(["fish", "--no-config", "-c", script, completion(t, "fish"), *lines])
    assert not p.stderr, p
    parts = re.split(r"^$", p.stdout, flags=re.M)
    return [{w.split("\t")[0] for w in part.splitlines() if w} for part in parts[:len(lines)]]


def in_zsh(t, lines):
    """What its line editor lists, which wants a terminal: of many columns, so that no word is cut."""
    script = completion(t, "zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], dict(t.env, TERM="dumb", PS1="$ "))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 200, 0, 0))

    got = bytearray()

    def until(mark):
        while mark not in got:
            assert select.select([terminal], [], [], 60)[0], got
            got.extend(os.read(terminal, 65536))
        before, _, got[:] = got.partition(mark)
        return before.decode(errors="replace")

    os.write(terminal, b"autoload -U compinit; compinit -u -D; . %s; LISTMAX=1000; unsetopt prompt_sp; "
             b"bindkey '^T' list-choices; PS1=PROM''PT\n" % script.encode())
    until(b"PROMPT")
    found = []
    for line in lines:
        os.write(terminal, line.encode() + b"\x14\x15echo EN''D\n")  # list them; forget the line
        listed, again, _ = until(b"END\r\n").partition("PROMPT")  # behind a list the line is shown again
        until(b"PROMPT")
        rows = listed.split("\r\n")[1:-1] if again else []
        found.append({w for row in rows for w in (row.split()[:1] if " -- " in row else row.split())})
    os.close(terminal)
    os.waitpid(pid, 0)
    return found


def offers_all(t, shell):
    """Each verb, the first words of those that have some, and each option."""
    ours = [v for v in verbs() if v != ELSEWHERE]
    lines = ["plyfs ", "plyfs -", "plyfs env ", "plyfs session ", "plyfs completion "] + ["plyfs %s -" % v for v in ours]
    offered, before, env, session, shells, *options = shell(t, lines)
    assert offered - {"--help", "--version", "--store"} == set(verbs()), offered ^ set(verbs())
    synopsis = ply.read(TOOLS + "/plyfs.1").split("\n.Sh SYNOPSIS\n")[1].split("\n.Sh ")[0]
    assert before == flags(synopsis), (before, flags(synopsis))
    assert env >= set(subs("env")) and session >= set(subs("session")), (env, session)
    assert shells == {"bash", "zsh", "fish"}, shells
    assert len(options) == len(ours)
    # "-" is a command of zsh's own, where a command may stand.
    wrong = {v: (got - {"-"} | {"--store"}) ^ (set(of_help(t, v)) | {"--help", "--store"}) for v, got in zip(ours, options)}
    assert not any(wrong.values()), {v: w for v, w in wrong.items() if w}


def test_bash_offers_each_verb_and_option(t):
    offers_all(t, in_bash)


def test_zsh_does_so(t):
    offers_all(t, in_zsh)
    store = t.store("other")
    store.import_(t.tree({"f": "1"}), "--label", "a b")
    ply.write(t.at("here/some-file"), "")
    home = "~/" + os.path.relpath(store.path, t.env["HOME"])
    offered = in_zsh(t, ["plyfs --store %s log --branch " % store.path, "plyfs --store %s log --branch " % home,
                         "plyfs --store=%s log --branch " % store.path, "plyfs restore ", "plyfs mount --without a",
                         "plyfs env create --kind c", "plyfs import %s/here/s" % t.path, "plyfs fork x",
                         "plyfs writeback --dry-run %s/here/s" % t.path,
                         "plyfs fsmonitor --install %s/here/s" % t.path])
    assert offered == [{"main"}, {"main"}, {"main"}, set(), {"awake"}, {"container"}, {"some-file"}, set(),
                       {"some-file"}, {"some-file"}], offered


def test_fish_does_so(t):
    offers_all(t, in_fish)
    store = t.store("other")
    store.import_(t.tree({"f": "1"}), "--label", "a b")
    ply.write(t.at("here/some file"), "")
    home = "~/" + os.path.relpath(store.path, t.env["HOME"])
    offered = in_fish(t, ["plyfs --store %s log --branch " % store.path, "plyfs --store %s log --branch " % home,
                          "plyfs --store=%s log --branch " % store.path, "plyfs --store %s restore " % store.path,
                          "plyfs mount --without a", "plyfs env create --kind c",
                          "plyfs import %s/here/s" % t.path, "plyfs fork x",
                          "plyfs writeback --dry-run %s/here/s" % t.path,
                          "plyfs fsmonitor --install %s/here/s" % t.path])
    file = {t.at("here") + "/some file"}
    assert offered == [{"main"}, {"main"}, {"main"}, {"main", "@a b"}, {"awake"}, {"container"}, file, set(), file,
                       file], offered


def keys(value):
    """Of all objects in a value of JSON."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(v) for v in value.values()))


def test_the_manual_names_the_keys_of_json(t):
    section = ply.read(TOOLS + "/plyfs.1").split("\n.Sh JSON\n")[1].split("\n.Sh ")[0]
    told = set(re.findall(r"[a-z_]+", section))
    view = t.view({"a": "1", "b": "2"})
    os.unlink(view.at("a"))
    view.write("b", "3")
    view.write("c", "4")
    store = view.store
    store.ply("env", "create", "one")
    store.ply("session", "start", "--in", view.path, "two")
    for line in ("log --json", "tree --json", "diff --json main~0 main", "env list --json",
                 "session list --json", "test --json --in %s -- true" % view.path,
                 "export --json main --tar %s" % t.at("tar"),
                 "import --json --branch other %s" % t.tree({"x": "1"}, name="other")):
        got = keys(json.loads(store.out(*line.split())))
        assert got, line
        assert got <= told, "%s: %s" % (line, sorted(got - told))
    store.ply("session", "end", "--in", view.path, "two")
    store.ply("env", "destroy", "one")


if __name__ == "__main__":
    ply.main()
