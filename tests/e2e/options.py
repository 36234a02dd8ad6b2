#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: verbs
# timeout: 180
"""What each verb takes, what its help says, what the manual says and what shells offer are the same."""
import functools
import glob
import os
import re
import sys

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


if __name__ == "__main__":
    ply.main()
