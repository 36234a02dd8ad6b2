#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: verbs
# timeout: 120
"""What `drop` takes, by id, name, label and age, what it refuses, and what it says."""
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_drop_and_what_depends_on_it(t):
    view = t.view({"f": "0"})
    ids = []
    for i in range(3):
        view.write("f", str(i))
        ids.append(view.checkpoint())
    view.store.ply("drop", ids[1])
    assert ids[1] not in view.store.out("log")
    view.store.fails("restore", ids[1], view.path)
    view.restore(ids[0])
    assert view.read("f") == "0"
    view.restore(ids[2])
    assert view.read("f") == "2"
    view.store.ply("fork", "side", cwd=view.path)
    view.store.ply("drop", "side")
    view.store.fails("mount", "--branch", "side", "--at", t.at("home"))


def test_drop_says_what_is_lost_with_a_branch(t):
    view = t.view()
    store = view.store
    fork = view.fork("victim")
    for n, says in ((1, " (with 1 change since its last snapshot)"),
                    (2, " (with 2 changes since its last snapshot)")):
        os.utime(fork.at("a.txt" if n == 1 else "dir/b.txt"))
    fork.unmount()
    assert store.out("drop", "--dry-run", "victim") == "would drop branch victim" + says
    assert store.out("drop", "victim") == "dropped branch victim" + says
    store.ply("fork", "--from", "main~0", "clean")
    assert store.out("drop", "clean") == "dropped branch clean"


def test_a_branch_that_another_verb_has_is_waited_for_or_told(t):
    store, at = t.store(), t.at("at")
    os.mkdir(at)
    store.import_(t.tree({"a": "1"}))
    other = {"mount": ["--at", at], "restore": ["--branch", "main", "main"], "import": ["--replace", t.at("source")]}
    with subprocess.Popen([ply.PLYFS, "--store", store.path, "import", "--replace", "-"], env=t.env,
                          stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as busy:
        deadline = time.monotonic() + 60
        while "another verb" not in store.ply("drop", "--dry-run", "main", check=False).stderr:
            assert time.monotonic() < deadline, "the import never began"
        for verb, words in other.items():
            store.fails(verb, *words, says="another verb works on it, or its view is still ending; try again")
        assert not os.path.ismount(at)
        waits = subprocess.Popen([ply.PLYFS, "--store", store.path, "mount", "--at", at], env=t.env)
        while at not in ply.mounts_below(t.path): # the client mounts first: its daemon waits now
            assert waits.poll() is None
        busy.stdin.close()
        assert waits.wait(60) == 0
    t.adopt(at)
    assert ply.read(os.path.join(at, "a")) == "1"


def test_what_was_dropped_is_an_array_for_programs(t):
    view = t.view()
    view.store.ply("fork", "side", cwd=view.path)
    side = view.store.mount(branch="side")
    side.write("new", "1")
    made = side.checkpoint()
    side.write("newer", "1")
    side.unmount()
    wanted = [{"branch": "side", "changes": 2}, {"snapshot": made}]
    for words in (["--dry-run"], []):
        told = json.loads(view.store.out("drop", "--json", *words, "--with-snapshots", "side"))
        assert told == wanted, (words, told)
    # What was dropped before a failure is gone, and so is told.
    view.store.ply("fork", "side", cwd=view.path)
    p = view.store.ply("drop", "--json", "side", "main", check=False)
    assert p.returncode == 1 and "main is mounted" in p.stderr, p
    assert json.loads(p.stdout) == [{"branch": "side", "changes": 0}], p


def test_a_dry_drop_refuses_what_drop_refuses(t):
    view = t.view({"f": "0"})
    store = view.store
    first = view.checkpoint()
    side = view.fork("side")
    side.write("f", "1")
    mounted = side.checkpoint()
    side.write("f", "2")
    free = side.checkpoint()
    store.mount(snapshot=mounted)
    for words, says in ((["side"], "branch side is mounted on '%s'" % re.escape(side.path)),
                        ([mounted], "is mounted"), (["--snapshot", mounted], "is mounted"),
                        (["nosuch"], "no snapshot")):
        assert store.fails("drop", "--dry-run", *words, says=says) == store.fails("drop", *words)
    side.unmount()
    dry = store.out("drop", "--dry-run", "--with-snapshots", "side", first)
    assert dry.replace("would drop", "dropped") == \
        store.out("drop", "--with-snapshots", "side", first)
    assert free in dry and mounted not in dry and first in dry, dry


def test_drop_can_be_told_what_a_word_means(t):
    view = t.view({"f": "0"})
    first, second = view.checkpoint(), view.checkpoint("two")
    view.store.ply("fork", first[:5], cwd=view.path)
    view.store.fails("drop", "--snapshot", first[:5], says="whole id")
    view.store.fails("drop", "--snapshot", "main", says="whole id")
    view.store.fails("drop", "--branch", first, says="no branch")
    for other in ("--branch", "--with-snapshots"):
        view.store.fails("drop", "--snapshot", other, first, says="goes without", code=2)
    view.store.ply("drop", "--branch", first[:5])
    view.store.fails("drop", "--branch", first[:5], says="no branch")
    view.store.ply("drop", "--snapshot", first, "@two")
    assert not {first, second} & {s["id"] for s in view.store.json("log")}


def test_a_branch_that_cannot_be_opened_is_dropped_and_no_snapshot_instead(t):
    view = t.view({"f": "0"})
    store = view.store
    store.ply("checkpoint", "--sync", "-m", "whole", view.path)
    view.unmount()
    store.stop()
    with open(os.path.join(store.path, "index", "data.mdb"), "r+b") as f:
        index = f.read()
        # The branch's record behind its name in LMDB's node: sizes, flags, key, data.
        node = re.compile(b"(\0\0\0\0\x04\0main).{8}", re.S)
        assert node.search(index)
        f.seek(0)
        f.write(node.sub(b"\\1" + b"\xff" * 8, index))
    os.mkdir(t.at("other"))
    store.fails("mount", "--branch", "main", "--at", t.at("other"), says="damaged")
    assert "would drop branch main" in store.out("drop", "--dry-run", "main")
    assert "dropped branch main" in store.out("drop", "main")
    assert "whole" in [s["label"] for s in store.json("tree")["snapshots"]]
    store.fails("drop", "--branch", "main", says="no branch")


def test_drop_with_snapshots_takes_what_was_made_on_the_branch(t):
    view = t.view({"f": "0"})
    first = view.checkpoint()
    side = view.fork("side", t.at("side"))
    mine = []
    for i in range(3):
        side.write("f", str(i + 1))
        mine.append(side.checkpoint())
    side.restore(mine[0])  # and there is a left state
    child = side.fork("child", t.at("child"))
    child.write("g", "x")
    kept = child.checkpoint()
    view.store.fails("drop", "--with-snapshots", "side", says="mounted")
    side.unmount()
    out = view.store.out("drop", "--dry-run", "--with-snapshots", "side")
    assert all(i in out for i in mine) and first not in out and kept not in out, out
    assert "side" in view.store.out("tree")
    view.store.ply("drop", "--with-snapshots", "side")
    left = [s["id"] for s in view.store.json("log")]
    assert first in left and kept in left and not set(mine) & set(left), left
    assert all(s["branch"] != "side" for s in view.store.json("log"))
    child.restore(kept)
    assert child.read("f") == "1" and child.read("g") == "x"
    assert view.store.ply("check", "--read-data").returncode == 0


def test_drop_older_than_spares_what_somebody_may_want(t):
    view = t.view({"f": "0"})
    store = view.store
    side = view.fork("side", t.at("side"))

    def step(where, n, label=""):
        where.write("f", str(n))
        return where.checkpoint(label)

    old, named, on_side = step(view, 1), step(view, 2, "good"), step(side, 3)
    side_head, seen = step(side, 4), step(view, 5)
    shown = store.mount(snapshot=seen)
    time.sleep(0.2)
    new, head = step(view, 6), step(view, 7)
    view.write("f", "8")
    view.restore(new)  # and there is a left state
    made = {s["id"]: s["time_ns"] for s in store.json("log")}
    left = {s["id"] for s in store.json("log") if s["auto"]}
    assert len(left) == 1, left

    def older(ids):  # than those that came after ids
        middle = (made[seen] + made[new]) / 2
        return "%.3f" % (time.time() - middle / 1e9) if ids else "1h"

    assert store.out("drop", "--older-than", older(False)) == ""
    p = store.ply("drop", "--dry-run", "--older-than", older(True), "side")
    assert p.stdout == "would drop snapshot %s\n" % on_side and not p.stderr, p
    p = store.ply("drop", "--older-than", older(True))
    gone = {old, on_side} | {i for i, at in made.items() if at < made[old]}
    assert set(re.findall("snapshot (.*)", p.stdout)) == gone, (p, gone, named)
    assert "1 older snapshot with a label stays" in p.stderr, p
    assert {s["id"] for s in store.json("log")} == set(made) - gone
    store.ply("drop", "--older-than", "0", "--labelled")
    kept = {side_head, seen, new} | left
    assert {s["id"] for s in store.json("log")} == kept, (store.out("log"), head)
    store.ply("undo", view.path)
    assert view.read("f") == "8" and shown.read("f") == "5" and side.read("f") == "4"
    for words, says in ((["--labelled", new], "is for --older-than"), ([], "wants"),
                        (["--older-than", "1d", "--snapshot"], "goes without"),
                        (["--older-than", "1x"], "wants seconds")):
        store.fails("drop", *words, says=says, code=2)
    store.fails("drop", "--older-than", "0", "nosuch", says="no branch 'nosuch'")
    assert store.ply("check", "--read-data").returncode == 0


def test_drop_older_than_spares_what_undo_brings_back_also_where_a_checkpoint_kept_it(t):
    view = t.view({"f": "0"})
    store = view.store
    view.write("f", "1")
    one = view.checkpoint()
    view.write("f", "2")
    two = view.checkpoint()
    view.restore(one)  # nothing had changed: no automatic snapshot is made
    store.ply("drop", "--older-than", "0")
    assert {s["id"] for s in store.json("log")} == {one, two}, store.out("log")
    store.ply("undo", view.path)
    assert view.read("f") == "2"


if __name__ == "__main__":
    ply.main()
