#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: verbs
# timeout: 180
"""The program's verbs as people and scripts meet them: what they print, and their exit codes."""
import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def verbs(t):
    text = t.run([ply.PLYFS, "--help"]).stdout
    return text, re.findall(r"^  ([a-z]+) ", text, re.M)


def test_help_fits_a_screen_and_every_verb_has_its_own(t):
    text, names = verbs(t)
    assert len(text.splitlines()) <= 40, len(text.splitlines())
    for verb in ("init import mount unmount checkpoint restore undo fork drop log tree diff run "
                 "export gc check status doctor bench").split():
        assert verb in text, verb
        p = t.run([ply.PLYFS, verb, "--help"])
        assert p.stdout.startswith("usage: plyfs " + verb), p.stdout
        for line in (text + p.stdout).splitlines():
            assert len(line) <= 80, line


def test_a_value_is_never_taken_for_an_option(t):
    """`mount` and `fork --at` hand theirs on to the daemon."""
    store, at = t.view().store, t.at("at")
    os.mkdir(at)
    for words in (["mount", "--branch=--help", "--at", at], ["mount", "--snapshot=--help", "--at", at],
                  ["fork", "--from=--help", "--at", at, "--", "new"]):
        p = store.ply(*words, check=False)
        assert p.returncode == 1 and not p.stdout and "--help: no " in p.stderr, (words, p)
        assert not os.path.ismount(at), words


def test_a_word_too_many_is_told_with_the_words_wanted(t):
    store = t.store()
    wanted = {"version": "", "tree": " [--json | --names --labels]", "status": " [--ops] [--json]"}
    for verb, synopsis in wanted.items(): # what the client reads itself, and the daemon
        assert store.fails(verb, "x", code=2) == ("plyfs %s: 'x' is too much; wants: plyfs %s%s "
            "(try 'plyfs %s --help')\n" % (verb, verb, synopsis, verb)), verb
    assert store.fails("session", "list", "x", code=2).startswith("plyfs session list: 'x' is too much; "), store
    assert store.fails("drop", code=2) == (
        "plyfs drop: wants: plyfs drop [OPTION]... ID|NAME... | --older-than T [NAME...] "
        "(try 'plyfs drop --help')\n")


def test_an_output_that_cannot_be_written_is_told(t):
    view = t.view()
    for i in range(30):
        view.write("f%d" % i, "line\n" * 1000)
    view.checkpoint()
    for words in (["--help"], ["--version"], ["version"], ["mount", "--help"], ["doctor"],
                  ["completion", "bash"], ["status"], ["log"], ["log", "--json"],
                  ["tree", "--json"], ["dump"], ["diff", "main~1", "main"],
                  ["diff", "--json", "main~1", "main"], ["diff", "--patch", "main~1", "main"]):
        with open("/dev/full", "w") as full:
            p = subprocess.run([ply.PLYFS, *words], stdout=full, stderr=subprocess.PIPE, text=True,
                               env=dict(t.env, PLYFS_STORE=t.stores[0].path))
        assert p.returncode == 1 and p.stderr.count("\n") == 1, (words, p)
        assert "could not be written" in p.stderr, (words, p)


def test_an_answer_that_nobody_reads_ends_as_any_program_does(t):
    view = t.view({"f": "1"})
    view.write("f", "2")
    os.mkdir(t.at("other"))
    for words in (["--help"], ["doctor"], ["log"], ["tree", "--json"], ["dump", "main"], ["status"],
                  ["diff"], ["export", "main", "--tar", "-"], ["checkpoint"],
                  ["mount", "--snapshot", "main", "--at", t.at("other")]):
        for default, code in (True, -signal.SIGPIPE), (False, 1):
            read, write = os.pipe()
            os.close(read)
            p = subprocess.run([ply.PLYFS, *words], stdout=write, stderr=subprocess.PIPE, text=True,
                               env=t.env, cwd=view.path, restore_signals=default)
            os.close(write)
            assert p.returncode == code and p.stderr.count("\n") == (not default), (words, p)
    assert not os.path.ismount(t.at("other"))


def test_a_doctor_whose_reader_leaves_leaves_nothing(t):
    ply.need_mount_namespaces()
    # A sanitizer makes the directory of its reports, which is not there any more.
    env = {k: v for k, v in t.env.items() if k not in ply.SANITIZER_OPTIONS}
    p = t.run(["unshare", "-m", "sh", "-euc", """
        exec 9<"$1"
        mount -t tmpfs none /tmp
        (sleep 0.1; exec /proc/self/fd/9 doctor) | true
        ls -A /tmp
    """, "sh", ply.PLYFS], check=False, env=env)
    assert p.returncode == 0 and not p.stdout + p.stderr, p


def test_exit_codes_are_seen_by_children_of_who_ignores_theirs(t):
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    view = t.view()
    for verb, code in (["run"], 7), (["run", "--timeout", "9"], 7), (["test"], 7):
        p = view.store.ply(*verb, "--in", view.path, "--", "sh", "-c", "exit 7", check=False,
                           preexec_fn=ignore)
        assert p.returncode == code, (verb, p)
    p = view.store.ply("shell", "--in", view.path, input="exit 9\n", check=False,
                       preexec_fn=ignore, env={"SHELL": "/bin/sh"})
    assert p.returncode == 9, p
    pid = view.store.daemon()
    view.unmount()
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid))
    view.store.ply("salvage", preexec_fn=ignore)


def test_a_mounted_fork_that_cannot_be_told_is_none(t):
    view = t.view()
    os.mkdir(t.at("fork"))
    for _ in range(2):
        with open("/dev/full", "w") as full:
            p = view.store.ply("fork", "idea", "--at", t.at("fork"), stdout=full, cwd=view.path,
                               check=False)
        assert p.returncode == 1 and "could not be written" in p.stderr, p
        assert not os.path.ismount(t.at("fork"))
    assert view.store.ply("fork", "idea", "--at", t.at("fork")).stdout == t.at("fork") + "\n"


def test_version(t):
    assert re.fullmatch(r"plyfs \d+\.\d+\.\d+\n", t.run([ply.PLYFS, "--version"]).stdout)
    assert t.run([ply.PLYFS, "log", "-h"]).stdout == t.run([ply.PLYFS, "log", "--help"]).stdout
    assert t.run([ply.PLYFS, "-h"]).stdout == t.run([ply.PLYFS, "--help"]).stdout


def readme_session():
    """Of the README: the lines typed after a prompt, and what it says they print."""
    block = re.search(r"^    \$ .*\n(?:    .*\n)+", ply.read(os.path.join(ply.SOURCE, "README.md")), re.M)[0]
    lines = [line[4:] for line in block.splitlines()]
    return ([line[2:] for line in lines if line.startswith("$ ")],
            "".join(line + "\n" for line in lines if not line.startswith("$ ")))


def test_the_session_of_the_readme_goes_as_it_says(t):
    typed, says = readme_session()
    assert len(typed) >= 8 and "M\ta.txt" in says, (typed, says)
    t.tree({"a.txt": "hello\n", "src/main.c": "int main(void) { return 0; }\n"}, "project")
    env = dict(t.env, PATH=os.path.dirname(ply.PLYFS) + ":" + t.env["PATH"])
    env.pop("PLYFS_STORE", None)
    store = ply.Store(t, init=False)
    t.stores.append(store)
    said = t.run(["sh", "-euc", "\n".join(typed)], env=env, cwd=t.path).stdout
    store.daemon()
    assert says in said and t.at("work2") in said, said
    assert ply.read(t.at("work/a.txt")) == ply.read(t.at("out/a.txt")) == "hello\n"
    assert os.listdir(t.at("work2")) == []
    assert os.path.exists(t.at("work/src/main.c"))
    sh = lambda s: t.run(["sh", "-euc", s], env=env, cwd=t.path)
    sh("cd work && plyfs undo")
    assert ply.read(t.at("work/a.txt")) == "oops\n"
    sh("plyfs --store store mount --branch idea --at work2")
    assert ply.read(t.at("work2/a.txt")) == "hello\n"
    sh("plyfs unmount work2 && plyfs unmount work")
    assert os.listdir(t.at("work")) == []


def test_a_verb_that_is_none(t):
    for word, meant in (("umount", "unmount"), ("chekpoint", "checkpoint"), ("stauts", "status"), ("lo", "log"),
                        ("remount", "mount")):
        for line in ([word], ["help", word]):
            p = t.run([ply.PLYFS, *line], check=False)
            assert (p.returncode, p.stdout) == (2, ""), p
            assert p.stderr == "plyfs: there is no verb '%s'; is '%s' meant?\n" % (word, meant), p.stderr
    for word in ("x", "lgo", "snapshot", "", "u" * 100):
        p = t.run([ply.PLYFS, word], check=False)
        assert p.returncode == 2 and p.stderr.endswith("(try 'plyfs --help')\n"), p.stderr[-100:]
    assert t.run([ply.PLYFS, "help"]).stdout == t.run([ply.PLYFS, "--help"]).stdout
    assert t.run([ply.PLYFS, "help", "undo"]).stdout == t.run([ply.PLYFS, "undo", "--help"]).stdout


def test_checkpoint_prints_the_id_and_nothing_else(t):
    view = t.view()
    for args in ([], ["-m", "a label"], ["--sync"]):
        view.write("f", str(args))
        p = view.store.ply("checkpoint", *args, view.path)
        assert ply.ID.match(p.stdout.rstrip("\n")) and p.stdout.endswith("\n"), p
        assert p.stderr == "", p
    # By store and branch, from outside.
    view.write("f", "x")
    out = view.store.out("checkpoint", "--branch", "main")
    assert out == view.info()["head"]


def test_a_label_without_its_option_is_told(t):
    view = t.view({"a": "1"})
    view.store.fails("checkpoint", "before it", cwd=view.path, code=1,
                     says=["'before it': No such file", "-m 'before it'"])
    assert len(view.store.json("log")) == 1


def test_labels_and_relative_names(t):
    view = t.view({"f": "0"})
    ids = []
    for i in range(4):
        view.write("f", str(i))
        ids.append(view.store.out("checkpoint", "-m", "step %d" % i, view.path))
    for name, wanted in (("@step 1", "1"), (ids[2], "2"), (ids[3] + "~1", "2"),
                         ("main", "2"), (ids[0][:8], "0")):
        view.store.ply("restore", name, view.path)
        assert view.read("f") == wanted, name
    view.store.ply("restore", ids[3], view.path)
    view.store.ply("restore", "main~2", view.path)
    assert view.read("f") == "1"


def test_the_longest_label_is_a_name_like_any(t):
    """It and its "@" are more than an ioctl takes."""
    view = t.view({"f": "0"})
    store, label = view.store, "L" * 255
    view.write("f", "1")
    store.ply("checkpoint", "-m", label, view.path)
    for name, wanted in (("@" + label, "1"), ("@" + label + "~1", "0")):
        for words in (name, view.path), ("--branch", "main", name):
            view.write("f", "x")
            store.ply("restore", *words)
            assert view.read("f") == wanted, words
    p = store.ply("restore", "@" + label + "L", view.path, check=False)
    assert p.returncode == 1 and "no snapshot or branch is called so" in p.stderr, p
    snapshot = store.mount(snapshot="main")
    p = store.ply("restore", "@" + label, snapshot.path, check=False)
    assert p.returncode == 1 and "this view shows a snapshot" in p.stderr, p


def test_a_whole_id_is_the_snapshot_whatever_a_branch_is_called(t):
    view = t.view({"f": "0"})
    store = view.store
    first = view.checkpoint()
    view.write("f", "1")
    second = view.checkpoint()
    store.ply("fork", first, cwd=view.path)  # a branch of that name, with the second's state
    assert store.out("diff", first, second) == "M\tf"
    assert store.out("diff", first.upper(), second) == "M\tf"
    store.ply("export", first, "--dir", t.at("out"))
    assert ply.read(t.at("out/f")) == "0"
    store.ply("fork", "--from", first, "side")
    assert store.mount(branch="side").read("f") == "0"
    view.restore(first)
    assert view.read("f") == "0"
    assert store.out("drop", "--dry-run", first) == "would drop snapshot " + first
    assert store.out("drop", "--branch", first) == "dropped branch " + first
    # A branch's name comes before the beginning of an id.
    store.ply("fork", "--from", second, first[:6])
    assert store.out("diff", first[:6], second) == ""
    assert store.out("drop", first[:6]) == "dropped branch " + first[:6]


def test_verbs_work_in_any_directory_of_the_view(t):
    view = t.view()
    env = {"PLYFS_STORE": ""}
    snap = view.store.out("checkpoint", cwd=view.at("dir/sub"), env=env)
    view.write("a.txt", "x")
    assert view.store.out("diff", snap, cwd=view.at("dir"), env=env) == "M\ta.txt"
    assert snap in view.store.out("log", cwd=view.at("dir/sub"), env=env)
    view.store.ply("restore", snap, cwd=view.at("dir/sub"), env=env)
    assert view.read("a.txt") == "one\n"
    assert view.store.ply("undo", view.at("dir"), env=env).returncode == 0


def test_through_a_view_of_a_snapshot_no_branch_changes(t):
    view = t.view({"a": "1"})
    base = view.checkpoint("base")
    view.write("a", "2")
    view.checkpoint()
    view.restore("@base")
    view.write("a", "work")
    frozen = view.store.mount(snapshot=base)
    for words in (["restore", "@base"], ["undo"], ["checkpoint"], ["checkpoint", "--sync"]):
        with frozen.fd() as fd:
            status, out, err = ply.ioctl_call(fd, *words)
        assert (status, out) == (1, "") and "shows a snapshot; it cannot change" in err, (words, status, err)
        view.store.fails("--store", view.store.path, *words, cwd=frozen.path, says="shows a snapshot")
        assert view.read("a") == "work", words
    with frozen.fd() as fd:
        assert ply.ioctl_call(fd, "checkpoint", "--branch", "main")[0] == 0
        assert ply.ioctl_call(fd, "fork", "idea") == (0, "", "")
    assert view.store.mount(branch="idea").read("a") == "1"


def test_log_lists_the_newest_first(t):
    view = t.view({"f": "0"})
    ids = [view.info()["head"]]
    for i in range(5):
        view.write("f", "%d" % (i + 1))
        ids.append(view.checkpoint("step %d" % i))
    lines = view.store.out("log").splitlines()
    listed = [re.search(r"\b([0-9a-f]{12})\b", line)[1] for line in lines]
    assert listed == ids[::-1], lines
    assert "step 4" in lines[0] and "step 0" in lines[4]
    assert len(view.store.out("log", "-n", "2").splitlines()) == 2
    log = view.store.json("log")
    snaps = log["snapshots"] if isinstance(log, dict) else log
    assert [s["id"] for s in snaps] == ids[::-1]
    for s in snaps:
        assert {"id", "parent", "branch", "label", "durable"} <= set(s), s
    again = view.store.out("log", "--branch", "main")
    assert [re.search(r"\b([0-9a-f]{12})\b", line)[1] for line in again.splitlines()] == listed


def test_durability_is_told(t):
    view = t.view({"f": "0"})
    view.write("f", "1")
    snap = view.store.out("checkpoint", "--sync", view.path)
    log = view.store.json("log")
    snaps = log["snapshots"] if isinstance(log, dict) else log
    assert next(s for s in snaps if s["id"] == snap)["durable"] is True


def test_tree_shows_branches_and_their_snapshots(t):
    view = t.view({"f": "0"})
    view.write("f", "1")
    a = view.checkpoint("alpha")
    fork = view.fork("side")
    fork.write("f", "2")
    b = fork.checkpoint("beta")
    text = view.store.out("tree")
    for word in (a, b, "main", "side", "alpha", "beta"):
        assert word in text, (word, text)
    assert text.index(a) < text.index(b)
    got = json.dumps(view.store.json("tree"))
    assert a in got and b in got and "side" in got


def test_export_to_a_directory_and_a_tar(t):
    view = t.view()
    snap = view.checkpoint()
    view.write("a.txt", "later\n")
    view.store.ply("export", snap, "--dir", t.at("out"))
    ply.assert_same_tree(t.at("source"), t.at("out"))
    view.store.ply("export", "main", "--dir", t.at("now"))
    assert ply.read(t.at("now/a.txt")) == "later\n"
    view.store.ply("export", snap, "--tar", t.at("f.tar"))
    tar = view.store.ply("export", snap, "--tar", "-", text=False).stdout
    assert tar == open(t.at("f.tar"), "rb").read()
    assert sorted(t.run(["tar", "-tf", t.at("f.tar")]).stdout.split())[-1].endswith("c.txt")


def said_to_a_terminal(t, argv, env, columns):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    t.run(argv, env=env, stderr=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):
        while True:
            said += os.read(ours, 65536)
    os.close(ours)
    return said


def test_a_bar_is_drawn_only_where_a_line_can_be_cleared(t):
    source = ply.make_bulk(t.at("source"), 2000)
    store = t.store()
    for term, drawn in (("xterm", True), ("dumb", False), ("", False), (None, False)):
        env = {k: v for k, v in dict(t.env, PLYFS_STORE=store.path, TERM=term).items() if v is not None}
        said = said_to_a_terminal(t, [ply.PLYFS, "import", "--branch", "b-%s" % term, source], env, 80)
        assert (b"\x1b[K" in said) == drawn and (drawn or said == b""), (term, said)


def test_a_bar_fits_its_line(t):
    store = t.store()
    source = ply.make_bulk(t.at("source"), 2000)
    for columns, word in (80, b"importing    "), (12, b"importing"), (1, b""):
        env = dict(t.env, PLYFS_STORE=store.path, TERM="xterm")
        env.pop("COLUMNS", None)
        said = said_to_a_terminal(t, [ply.PLYFS, "import", "--branch", "b-%d" % columns, source],
                                  env, columns)
        drawn = said.replace(b"\x1b[K", b"").split(b"\r")
        assert word in said and all(len(d) < columns for d in drawn), (columns, said)


def test_import_reads_a_tar_from_stdin(t):
    t.tree({"a": "1"})
    store = t.store()
    with open(t.at("x.tar"), "wb") as f:
        subprocess.run(["tar", "-C", t.at("source"), "-c", "."], stdout=f, check=True)
    with open(t.at("x.tar"), "rb") as f:
        store.ply("import", "-", stdin=f)
    assert store.mount().read("a") == "1"


def test_what_is_opened_is_not_taken_for_a_closed_stdin_or_stdout(t):
    store = t.store()
    store.import_(t.tree({"a": "1\n"}))
    sh = lambda how, *words: t.run(["sh", "-c", '"$0" "$@" ' + how, ply.PLYFS, *words], check=False,
                                   env=dict(t.env, PLYFS_STORE=store.path))
    p = sh("<&-", "import", "--branch", "other", "-")
    assert p.returncode == 1 and p.stderr == "plyfs import: there is no stdin to read\n", p
    for how in (">&-", "<&- >&-", "<&- >&- 2>&-"):
        for words in (["status"], ["log"], ["tree"], ["diff", "main~0", "main", "--json"],
                      ["version"]):
            p = sh(how, *words)
            said = "" if "2>" in how else "plyfs %s: the output could not be written\n" % words[0]
            assert (p.returncode, p.stdout, p.stderr) == (1, "", said), (how, p)
        assert sh(how, "diff", "main~0", "main").returncode == 0  # has nothing to say


def test_import_of_another_branch_while_mounted(t):
    view = t.view({"a": "1"})
    view.store.import_(t.tree({"b": "2"}, "second"), "--branch", "second")
    assert view.store.mount(branch="second").ls() == ["b"]
    assert view.ls() == ["a"]


def test_a_store_that_lies_in_what_it_imports_stays_out(t):
    source = t.tree({"a": "1", "sub/b": "2"})
    store = t.store("source/sub/store")
    p = store.ply("import", source)
    assert "warning: 'sub/store' is the store itself: its content stays out" in p.stderr, p
    view = store.mount()
    assert view.ls() == ["a", "sub"] and view.ls("sub") == ["b", "store"], view.ls("sub")
    assert view.ls("sub/store") == [] and view.read("sub/b") == "2"


def test_status_as_text_and_json(t):
    view = t.view()
    view.write("x", "1")
    s = view.store.status()
    v = s["views"][0]
    assert v["mountpoint"] == view.path and v["branch"] == "main", s
    text = view.store.out("status", "--ops")
    assert "LOOKUP" in text or "lookup" in text, text


def test_status_without_a_daemon_is_json_whatever_the_store_is_called(t):
    for name, as_json in (("na\udcefve", "na\u00efve"), ("na\u00efve", "na\u00efve"),
                          ("cut-\u20ac"[:4] + "\udce2\udc82", "cut-\u00e2\u0082"),
                          ("surrogate-\udced\udca0\udc80", "surrogate-\u00ed\u00a0\u0080"),
                          ("long-\udcc0\udcaf", "long-\u00c0\u00af"), ("\U0001f600", "\U0001f600"),
                          ('quote"\\\n', 'quote"\\\n')):
        os.mkdir(t.at(name))
        p = t.run([ply.PLYFS, "init", t.at(name)])
        p = t.run([ply.PLYFS, "--store", t.at(name), "status", "--json"])
        assert json.loads(p.stdout) == {"daemon": None, "store": t.at(as_json), "views": [], "sizes": None,
                                        "log": t.at(as_json) + "/daemon.log"}, p
    # What is not there is null, and no key less.
    assert set(json.loads(p.stdout)) == set(t.view().store.status())


def test_check_of_a_sound_store(t):
    view = t.view()
    view.store.ply("checkpoint", "--sync", view.path)
    assert view.store.ply("check").returncode == 0
    assert view.store.ply("check", "--read-data").returncode == 0
    got = view.store.json("check")
    assert got.get("damaged", 0) == 0, got


def test_one_of_a_kind_is_told_in_the_singular(t):
    store = t.store()
    ply.make_tree(t.at("from"), {"x": "1"})
    store.ply("import", t.at("from"))
    text = store.out("check") + store.out("status") + store.out("dump", "main") + store.out("dump")
    for wanted in ("1 snapshot, 1 branch, 1 node, 1 chunk, ", "1 branch, 1 chunk in ", "1 tree node, ", ": 1 byte inline",
                   "packs 1, 1 chunk, ", "in memory 1 node\n"):
        assert wanted in text, (wanted, text)


def test_dump_is_for_people(t):
    view = t.view()
    snap = view.checkpoint()
    view.store.ply("checkpoint", "--sync", view.path)
    assert snap in view.store.out("dump")
    assert "a.txt" in view.store.out("dump", snap)


def test_doctor_does_not_call_a_view_good_that_it_could_not_ask(t):
    view = t.store().mount()
    few = t.run(["prlimit", "--nofile=4", ply.PLYFS, "doctor"], check=False).stdout
    assert "not all views were asked: Too many open files" in few and "all views answer" not in few, few
    view.unmount()


def test_doctor_works_without_a_store(t):
    p = t.run([ply.PLYFS, "doctor"], check=False)
    assert p.returncode in (0, 1) and "/dev/fuse" in p.stdout and "--io-uring" in p.stdout, p
    assert os.uname().release in p.stdout, p.stdout
    assert len(re.findall("^(ok|note) +idle CPUs ", p.stdout, re.M)) == 1, p.stdout
    if p.returncode == 0:
        assert len(re.findall("^(ok|note) .*mount --passthrough", p.stdout, re.M)) == 1, p.stdout


def test_the_store_is_found_by_option_and_environment(t):
    view = t.view()
    for argv, env in (([ply.PLYFS, "--store", view.store.path, "log"], {}),
                      ([ply.PLYFS, "log"], {"PLYFS_STORE": view.store.path}),
                      ([ply.PLYFS, "--store", os.path.relpath(view.store.path, t.path), "log"],
                       {})):
        assert "main" in t.run(argv, env=dict(t.env, **env)).stdout
    p = t.run([ply.PLYFS, "log"], check=False)
    assert p.returncode in (1, 2) and "--store" in p.stderr, p


def test_in_a_view_its_store_is_meant_whatever_the_environment_says(t):
    views = {}
    for name in ("a", "b"):
        store = t.store("store-" + name)
        store.import_(t.tree({name: "1\n"}, "tree-" + name))
        views[name] = store.mount()
    a, b = views["a"].store, views["b"]
    snap = b.checkpoint()
    b.write("new", "2\n")

    def in_b(*words, **kw):  # a.ply sets PLYFS_STORE
        return a.ply(*words, cwd=b.path, **kw)

    t.surroundings()
    assert in_b("diff").stdout == in_b("diff", snap).stdout == "A\tnew\n"
    assert b.store.path in in_b("status").stdout
    in_b("fork", "--from", "main", "forked")
    os.mkdir(t.at("mounted"))
    in_b("fork", "--from", "forked", "other", "--at", t.at("mounted"))
    assert ply.read(t.at("mounted/new")) == "2\n"
    assert b.store.out("tree", "--names").split() == ["forked", "main", "other"]
    in_b("drop", "forked")
    assert ply.read(os.path.join(in_b("env", "create", "e").stdout.strip(), "new")) == "2\n"
    in_b("env", "destroy", "e")
    p = in_b("serve", "--from", snap, check=False)
    assert p.returncode == 2 and "--store" in p.stderr, p
    assert a.out("tree", "--names").split() == ["main"]

    # The option says more than where we are, and the short form is of no store.
    assert in_b("--store", a.path, "diff", "main").stdout == ""
    where = in_b("--store", a.path, "env", "create", "e").stdout.strip()
    assert os.listdir(where) == ["a"]
    in_b("env", "destroy", "e")
    in_b("mount", t.tree({"c": "3\n"}, "c"))
    t.adopt(t.at("c"))
    in_b("unmount", t.at("c"))


def test_in_a_dead_view_no_other_store_is_meant(t):
    t.unsupervised()
    other, view = t.store("other"), t.view()
    here = os.open(view.path, os.O_RDONLY)
    view.store.kill()
    other.fails("drop", "main", says="view is dead", preexec_fn=lambda: os.fchdir(here), cwd=None)
    os.close(here)


def test_a_very_long_store_path(t):
    deep = t.at(*["d" * 50] * 6)
    os.makedirs(deep)
    store = t.store(os.path.relpath(os.path.join(deep, "store"), t.path))
    store.import_(t.tree({"a": "1"}))
    assert store.mount().read("a") == "1"


def test_completion_in_bash_offers_what_is_meant(t):
    t.surroundings()
    view, other = t.view(), t.store("other")
    view.checkpoint("a $(touch made) b")
    view.store.ply("fork", "f2")
    other.import_(t.at("source"), "--branch", "elsewhere")
    here, home = t.at("here"), "~/" + os.path.relpath(other.path, t.env["HOME"])
    for name in ("test", "f2", "one two"):
        os.makedirs(os.path.join(here, name))
    view.store.ply("env", "create", "an-env", view.path)
    view.store.ply("session", "start", "a-session", cwd=view.path)
    t.run([ply.PLYFS, "completion", "bash"], stdout=open(t.at("completion"), "w"))
    script = """
        compopt() { echo files; }
        . "$1"; shift
        COMP_WORDS=(plyfs "$@"); COMP_CWORD=$#
        _plyfs
        for reply in "${COMPREPLY[@]}"; do eval "words=($reply)"; printf '%s\\n' "${words[*]}"; done
    """

    def offered(*words):
        p = t.run(["bash", "-c", script, "bash", t.at("completion"), *words], cwd=here,
                  env=dict(t.env, PATH=os.path.dirname(ply.PLYFS) + ":" + t.env["PATH"],
                           PLYFS_STORE=view.store.path))
        assert not p.stderr, p
        return p.stdout.splitlines()

    for words, wanted in {
            "tes": ["test"], "mount on": ["files", "one two"], "--s": ["--store"],
            "drop f2": ["f2"], "drop f2 ": ["f2", "main", "@a $(touch made) b"],
            "drop --branch m": ["main"], "log --branch f": ["f2"], "restore f": ["f2"],
            "restore @": ["@a $(touch made) b"], "restore @ a": ["@a $(touch made) b"],
            "restore f2 f": ["files", "f2"], "diff main f": ["f2"], "export m": ["main"],
            "export main --d": ["--dir"], "export main --dir f": ["files", "f2"],
            "export main --git f": ["files", "f2"],
            "dump m": ["main"], "mount --snapshot m": ["main"], "env create --from m": ["main"],
            "fork main f": [], "checkpoint -m f": [], "run --timeout f": [],
            "--store OTHER log --branch ": ["elsewhere"], "--store HOME log --branch ": ["elsewhere"],
            "drop --store = OTHER ": ["elsewhere"],
            "--store=OTHER tr": ["tree"], "--store = o": ["files", "one two"], "--store = f": ["files", "f2"],
            "mount --at = f": ["files", "f2"], "writeback --w": [], "fsmonitor --": ["--help", "--install"],
            "fsmonitor --install f": ["files", "f2"], "fsmonitor f": ["files", "f2"],
            "writeback --dry-run f": ["files", "f2"], "writeback --dry-run --j": ["--json"],
            "unmount --w": ["--write-back"], "run -- ls --t": ["files"], "run ls --t": ["files"],
            "run --in d ls f": ["files", "f2"], "run --t": ["--timeout"], "run -- sha51": ["sha512sum"],
            "test ./f": ["files", "./f2"], "env d": ["destroy"], "env destroy a": ["an-env"],
            "env create --o": ["--output-limit"], "env create --m": ["--merge", "--memory"],
            "session run a": ["a-session"], "session run a-session -- sha51": ["sha512sum"],
            "session run a-session -- sha512sum f": ["files", "f2"],
            "mount --without aw": ["awake"], "completion ": ["bash", "zsh", "fish"],
            "mount --without cache,aw": ["cache,awake"], "mount --without=awake,cach": ["awake,cache"],
            "serve --i": ["--in", "--insecure"], "log -": ["--help", "--branch", "-n", "--count", "--json"],
            "checkpoint -m": ["-m"], "tree --j": ["--json"], "drop --branch ": ["f2", "main"],
            "drop --snapshot ": ["@a $(touch made) b"], "bench v": ["view"],
            "bench view --r": ["--rounds", "--reference"], "bench view --plot f": ["files", "f2"],
            "bench serve --only ": [], "diff -": ["--help", "--name-status", "--stat", "-p", "--patch", "--json",
                                                  "--no-renames", "--directories", "--exit-code", "-z",
                                                  "--null"]}.items():
        got = offered(*words.replace("OTHER", other.path).replace("HOME", home).split(" "))
        assert set(got) == set(wanted), (words, got)
        assert len(got) == len(set(got)) or "--" not in got[0], (words, got)
    assert not os.path.exists(os.path.join(here, "made"))
    view.store.ply("env", "destroy", "an-env")


def test_what_the_doctor_says_is_json_as_well(t):
    doctor = lambda *words: t.run([ply.PLYFS, "doctor", *words], check=False)
    p, got = doctor(), json.loads(doctor("--json").stdout)
    while doctor().stdout != p.stdout:  # another test has just switched io_uring on, or off
        p, got = doctor(), json.loads(doctor("--json").stdout)
    lines = [line.split(None, 1) for line in p.stdout.splitlines()]
    assert [[c["kind"], c["text"]] for c in got["checks"]] == [
        [kind.lower(), text] for kind, text in lines[:-1]], (got, lines)
    assert got["good"] == (p.returncode == 0) and got["good"] == ("cannot" not in p.stdout.splitlines()[-1])


def test_options_that_would_change_nothing_are_refused(t):
    view = t.view({"f": "1"})
    for option in ("--tell", "--exit-code"):
        view.store.fails("writeback", option, t.path, code=2, says="there is no option " + option)
    view.store.fails("tree", "--json", "--names", code=2, says="--json goes without --names")
    for option in ("--patch", "--stat", "--json"):
        view.store.fails("diff", "-z", option, "main", "main", code=2,
                         says="plyfs diff: -z goes with --name-status")


def test_broken_pipes_are_quiet(t):
    view = t.view({"f": "0"})
    for i in range(300):
        view.write("f", str(i))
        view.checkpoint()
    p = t.sh("PLYFS_STORE='%s' '%s' log | head -n 1" % (view.store.path, ply.PLYFS))
    assert p.stderr == "" and len(p.stdout.splitlines()) == 1, p
    assert view.store.daemon()


def test_an_interrupted_import_leaves_nothing(t):
    import signal
    source = ply.make_bulk(t.at("source"), 20000, size=4000)
    store = t.store()
    p = subprocess.Popen([ply.PLYFS, "import", source], env=dict(t.env, PLYFS_STORE=store.path),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    packs = os.path.join(store.path, "packs")
    end = time.monotonic() + 60
    while sum(f.stat().st_size for f in os.scandir(packs)) < 100000:  # of some 20 MB
        assert p.poll() is None and time.monotonic() < end, p.communicate()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode != 0, (out, err)
    store.daemon()
    assert "main" not in store.out("tree", check=False)
    store.import_(source)
    store.ply("check")


def interrupted(t, n, *words, **kw):
    """plyfs WORDS, with a signal n/4 ms after its start; what it printed."""
    p = subprocess.Popen([ply.PLYFS, *words], stdout=subprocess.PIPE, text=True, **kw)
    time.sleep(n / 4000)
    p.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[n % 3])
    return p.communicate(timeout=60)[0]


def test_an_interrupted_mount_is_none_or_whole(t):
    view = t.view()
    where = t.at("where")
    os.mkdir(where)
    view.store.ply("fork", "side")
    for n in range(66):
        for words in (["mount", "--branch", "side", "--at", where],
                      ["fork", "fork-%d" % n, "--at", where]):
            said = interrupted(t, n, *words, cwd=view.path, env=t.env)
            assert (said == where + "\n") == os.path.ismount(where), (n, words, said)
            if said:
                assert sorted(os.listdir(where)) == ["a.txt", "dir"], (n, words)
                view.store.ply("unmount", where)
            else:
                assert where not in ply.mounts_below(where), (n, words)


def test_the_log_of_the_daemon_holds_no_noise(t):
    view = t.view()
    view.write("x", "1")
    snap = view.checkpoint()
    view.restore(snap)
    view.store.out("log")
    view.unmount()
    view.store.stop()
    for line in view.store.log_tail().splitlines():
        assert not re.search(r"error|warning|fail|libfuse|fuse:", line, re.I), line


if __name__ == "__main__":
    ply.main()
