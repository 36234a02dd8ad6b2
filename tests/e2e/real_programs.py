#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: real-programs
# timeout: 1200
"""Real programs in a view: this project is cloned, configured, built and tested inside one."""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def clone(t, view):
    """This source tree as a commit of its own, cloned into the view."""
    there = subprocess.run(["git", "-C", ply.SOURCE, "rev-parse", "HEAD"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    clean = there and not subprocess.run(
        ["git", "-C", ply.SOURCE, "status", "--porcelain"], stdout=subprocess.PIPE,
        text=True).stdout.strip()
    origin = ply.SOURCE
    if not clean:
        # What is being worked on, not only what is committed.
        origin = t.at("origin")
        os.mkdir(origin)
        for n in ("README.md", "LICENSE", "meson.build", "meson_options.txt", "store", "fs", "env",
                  "tools", "tests", ".ci", ".clang-format", ".gitignore"):
            p = os.path.join(ply.SOURCE, n)
            if os.path.isdir(p):
                shutil.copytree(p, os.path.join(origin, n), symlinks=True,
                                ignore=shutil.ignore_patterns("__pycache__", "build*"))
            elif os.path.exists(p):
                shutil.copy2(p, origin)
        t.sh("git init -q -b main . && git add -A && git commit -qm now", cwd=origin)
    t.run(["git", "-c", "safe.directory=*", "clone", "-q", "--no-hardlinks", origin,
           view.at("project")], timeout=300,
          env=dict(t.env, GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory",
                   GIT_CONFIG_VALUE_0="*"))
    return view.at("project")


def unit_tests(t, project):
    """Name and program of each; in the short form some of those whose rooms live on the disk."""
    told = json.loads(t.run(["meson", "introspect", "--tests", "build"], cwd=project).stdout)
    short = r"(journal|seal|stage|store|sweep|table|view)(_(?!model|collisions)\w+)?"
    chosen = [(test["name"], os.path.relpath(test["cmd"][0], os.path.join(project, "build")))
              for test in told if any(s.endswith("unit") for s in test["suite"])
              and (ply.LONG or re.fullmatch(short, test["name"]))]
    assert len(chosen) > 15, chosen
    return [name for name, _ in chosen], sorted({program for _, program in chosen})


def test_this_project_is_cloned_built_and_tested_in_a_view(t):
    ply.need_tool("git", "meson", "ninja", "cc")
    view = t.view({"readme": "x"})
    project = clone(t, view)
    git_status = lambda: t.run(["git", "status", "--porcelain"], cwd=project).stdout
    assert git_status() == ""
    t.run(["meson", "setup", "build", "--werror"], cwd=project, timeout=300)
    tests, programs = unit_tests(t, project)
    parts = [] if ply.LONG else ["tools/plyfs", *programs]
    build = lambda: t.run(["ninja", "-C", "build", *parts], cwd=project, timeout=900)
    build()
    assert git_status() == "", "the build is ignored"
    nothing = lambda: "no work to do" in t.run(["ninja", "-n", "-C", "build", *parts], cwd=project).stdout
    assert nothing()

    built = view.checkpoint("built")
    victim = os.path.join(project, "store", "hash.c")
    os.utime(victim)
    assert not nothing()
    build()
    assert nothing()
    rebuilt = view.checkpoint("rebuilt")
    with open(victim, "a") as f:
        f.write("\n/* edited */\n")
    assert not nothing() and git_status() == " M store/hash.c\n"

    view.restore(built)
    assert nothing(), "after the restore ninja finds work"
    assert git_status() == ""
    view.restore(rebuilt)
    assert nothing() and git_status() == ""
    view.restore(built)

    # The unit tests pass on the view as they do outside.
    t.run(["meson", "test", "-C", "build", "--suite", "unit", "--no-rebuild", "--print-errorlogs",
           "--timeout-multiplier", "3", *tests], cwd=project, timeout=900,
          env=dict(t.env, TMPDIR=view.path))
    assert git_status() == ""
    t.run(["git", "fsck", "--strict"], cwd=project)


def test_git_work_inside_a_view(t):
    view = t.view({"x": "1"})
    repo = ply.make_bulk(view.at("repo"), 800)
    t.sh("""
git init -q -b main . && git add -A && git commit -qm one
test -z "$(git status --porcelain)"
git checkout -q -b side && echo s >>d000/s0000/f000.txt && git commit -qam side
git checkout -q main && git mv d000/s0001 d000/moved && git commit -qm moved
git merge -q -m merged side && git gc -q && git fsck --strict
git stash list && git worktree add -q ../wt side && git -C ../wt status --porcelain
""", cwd=repo)
    snap = view.checkpoint()
    t.sh("git reset -q --hard HEAD~1 && git clean -fdxq && echo x >untracked", cwd=repo)
    view.restore(snap)
    assert t.run(["git", "status", "--porcelain"], cwd=repo).stdout == ""
    assert t.run(["git", "log", "--oneline"], cwd=repo).stdout.count("\n") == 4


def test_sqlite_and_mapped_databases_work_in_a_view(t):
    import sqlite3
    view = t.view({"x": "1"})
    db = sqlite3.connect(view.at("db"))
    db.execute("pragma journal_mode=wal")
    db.execute("create table t (a, b)")
    for i in range(200):
        with db:
            db.execute("insert into t values (?, ?)", (i, "x" * i))
    db.close()
    snap = view.checkpoint()
    db = sqlite3.connect(view.at("db"))
    with db:
        db.execute("delete from t")
    db.close()
    view.restore(snap)
    db = sqlite3.connect(view.at("db"))
    assert db.execute("select count(*), sum(length(b)) from t").fetchone() == (200, 19900)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


def test_programs_run_from_a_view(t):
    view = t.view({"x": "1"})
    shutil.copy2(os.path.realpath(shutil.which("ls")), view.at("ls"))
    assert t.run([view.at("ls"), view.path]).stdout == "ls\nx\n"
    view.write("s.sh", "#!/bin/sh\necho from a script\n")
    os.chmod(view.at("s.sh"), 0o755)
    assert t.run([view.at("s.sh")]).stdout == "from a script\n"


def test_tar_and_cp_see_the_same_tree(t):
    view = t.view(ply.make_bulk(t.at("source"), 500))
    t.sh("mkdir copy tarred; cp -a '%s/.' copy; tar -C '%s' --format=posix -cf - . | "
         "tar -C tarred -xpf -" % (view.path, view.path))
    ply.assert_same_tree(t.at("source"), t.at("copy"), "--no-holes")
    ply.assert_same_tree(t.at("source"), t.at("tarred"), "--no-holes")


if __name__ == "__main__":
    ply.main()
