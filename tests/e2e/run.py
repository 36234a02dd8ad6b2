#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: run
# timeout: 120
"""plyfs run: commands on a view, their exit codes, limits and forks."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_the_commands_own_exit_code(t):
    view = t.view()
    for code in (0, 1, 3, 77, 124):
        p = view.store.ply("run", "--", "sh", "-c", "exit %d" % code, cwd=view.path, check=False)
        assert p.returncode == code, p
    assert view.store.ply("run", "--", "nosuchcommand", cwd=view.path,
                          check=False).returncode == 127
    assert view.store.ply("run", "--", "./a.txt", cwd=view.path, check=False).returncode == 126


def test_output_and_input_are_passed_through(t):
    view = t.view()
    p = view.store.ply("run", "sh", "-c", "cat; echo out; echo err >&2", cwd=view.path,
                       input="in\n")
    assert p.stdout == "in\nout\n" and p.stderr == "err\n"


def test_options_after_the_command_are_its_own(t):
    view = t.view()
    p = view.store.ply("run", "echo", "--timeout", "--fork", cwd=view.path)
    assert p.stdout == "--timeout --fork\n"


def test_a_timeout_kills_the_whole_group(t):
    view = t.view()
    p = view.store.ply("run", "--timeout", "0.5", "--", "sh", "-c",
                       "sh -c 'trap \"\" TERM; sleep 61.7' & sleep 61.7", cwd=view.path,
                       check=False, timeout=60)
    assert p.returncode == 124, p
    left = subprocess.run(["pgrep", "-f", "sleep 61.7"], stdout=subprocess.PIPE, text=True).stdout
    assert not left.strip(), left


def limited(view, *args):
    """plyfs run with limits; whether a control group keeps them is said."""
    p = view.store.ply("run", *args, cwd=view.path, check=False, timeout=120)
    return p, "no control group" not in p.stderr


def test_a_limit_of_memory_holds(t):
    view = t.view()
    p, group = limited(view, "--memory", "64M", "--", "python3", "-c", "bytearray(400 << 20)")
    assert p.returncode != 0, p
    assert ("limit of memory" if group else "MemoryError") in p.stderr, p
    p, _ = limited(view, "--memory", "1G", "--", "python3", "-c", "print(len(bytearray(99 << 20)))")
    assert (p.returncode, p.stdout) == (0, "%d\n" % (99 << 20)), p
    assert "limit of" not in p.stderr, p


def test_a_limit_of_processes_holds_and_what_is_left_ends(t):
    view = t.view()
    start = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 71.3 & done"
    p, group = limited(view, "--processes", "8", "--", "sh", "-c", start)
    left = subprocess.run(["pgrep", "-f", "sleep 71.3"], stdout=subprocess.PIPE, text=True).stdout
    assert not left.strip(), left
    if group:
        assert "limit of processes" in p.stderr, p


def test_a_limit_of_cpu_time_holds(t):
    view = t.view()
    p, _ = limited(view, "--cpu-time", "1", "--", "sh", "-c", "while :; do :; done")
    assert p.returncode == 128 + signal.SIGXCPU, p


def test_a_limit_that_is_none_is_refused(t):
    p, _ = limited(t.view(), "--memory", "much", "--", "true")
    assert p.returncode == 2 and "512M" in p.stderr, p


def test_a_signal_shows_as_shells_show_it(t):
    view = t.view()
    p = t.run(["sh", "-c", "'%s' run -- sh -c 'kill -TERM $$'; echo $?" % ply.PLYFS],
              cwd=view.path)
    assert p.stdout.strip() == str(128 + signal.SIGTERM), p


def test_fork_leaves_the_view_alone_and_keeps_a_branch(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--", "sh", "-c", "echo changed >a.txt; pwd; cat a.txt",
                       cwd=view.path)
    assert p.stdout.splitlines()[-1] == "changed"
    assert view.read("a.txt") == "one\n"
    where = p.stdout.splitlines()[0]
    assert not os.path.ismount(where)
    assert len(view.store.status()["views"]) == 1
    text = view.store.json("tree")
    names = [b["name"] for b in text["branches"]]
    assert len(names) == 2, names
    other = next(n for n in names if n != "main")
    assert view.store.mount(branch=other).read("a.txt") == "changed\n"


def test_a_fork_that_fails_is_told_by_the_verb_that_was_called(t):
    view = t.view()
    view.store.ply("fork", "taken")
    p = view.store.ply("run", "--fork", "--name", "taken", "true", cwd=view.path, check=False)
    assert p.returncode == 1 and p.stderr.startswith("plyfs run: taken: a branch of this"), p


def test_a_fork_lies_where_there_is_a_place(t):
    view = t.view()
    os.mkdir(t.at("tmp"))
    for run, tmp, wanted in (("", "", "/tmp"), (t.at("gone"), t.at("tmp"), t.at("tmp")),
                             ("tmp", "", "/tmp"), (t.at("tmp"), "/", t.at("tmp"))):
        p = view.store.ply("run", "--fork", "--drop", "pwd", cwd=view.path,
                           env={"XDG_RUNTIME_DIR": run, "TMPDIR": tmp})
        assert os.path.dirname(p.stdout.strip()) == wanted, (run, tmp, p)
    p = view.store.ply("session", "list", env={"XDG_RUNTIME_DIR": t.at("gone")})
    assert not p.stdout and not p.stderr, p


def test_fork_with_drop_leaves_nothing(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--drop", "--", "sh", "-c", "rm -rf *; exit 4",
                       cwd=view.path, check=False)
    assert p.returncode == 4, p
    assert len(view.store.json("tree")["branches"]) == 1
    assert view.ls() == ["a.txt", "dir"]


def test_a_fork_with_a_timeout_is_cleaned_up(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--drop", "--timeout", "0.3", "--", "sleep", "30",
                       cwd=view.path, check=False)
    assert p.returncode == 124, p
    assert len(view.store.status()["views"]) == 1
    assert len(view.store.json("tree")["branches"]) == 1


if __name__ == "__main__":
    ply.main()
