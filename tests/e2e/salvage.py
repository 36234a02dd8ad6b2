#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: damage
# timeout: 120
"""The index is lost: salvage brings everything durable back from the packs alone."""
import errno
import glob
import json
import os
import random
import re
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def made(t):
    """A store with some history, closed; and what it looks like."""
    store = t.store()
    store.import_(ply.make_bulk(t.at("source"), 300, size=5000))
    view = store.mount()
    for i in range(6):
        view.write("d000/f%d" % i, "round %d\n" % i * 500)
        store.ply("checkpoint", "-m", "c%d" % i, view.path)
    fork = view.fork("other")
    fork.write("only here", "x" * 40000)
    store.ply("checkpoint", "--sync", fork.path)
    store.ply("drop", "@c2")
    view.restore(store.json("log")[-1]["id"])
    view.write("after the restore", "1")
    store.ply("checkpoint", "--sync", view.path)
    digests = {"main": view.digest(), "other": fork.digest()}
    view.unmount()
    fork.unmount()
    tree = tree_of(store)
    store.stop()
    return store, digests, tree


def tree_of(store):
    tree = store.json("tree")
    for s in tree["snapshots"]:
        s.pop("durable", None)  # what is durable a moment later
    return tree


def expect(store, digests, tree):
    now = tree_of(store)
    assert now == tree, "%r\n%r" % (now, tree)
    for branch, digest in digests.items():
        view = store.mount(branch=branch)
        assert view.digest() == digest, branch
        view.unmount()
    store.ply("check", "--read-data")


def lose_index(store):
    store.stop()
    shutil.rmtree(os.path.join(store.path, "index"))


def test_everything_durable_is_back(t):
    store, digests, tree = made(t)
    lose_index(store)
    says = store.fails("log", says="salvage")
    assert len(says.strip().splitlines()) == 1, says
    result = store.json("salvage")
    assert result["snapshots"] == len(tree["snapshots"]) and result["gaps"] == 0, result
    expect(store, digests, tree)
    # It goes on as before, and so it does a second time.
    view = store.mount()
    view.write("later", "2")
    later = store.out("checkpoint", "--sync", view.path)
    assert later not in [s["id"] for s in tree["snapshots"]]
    view.unmount()
    tree = tree_of(store)
    lose_index(store)
    store.ply("salvage")
    now = tree_of(store)
    assert now == tree, "%r\n%r" % (now, tree)


def test_after_gc_and_after_a_kill(t):
    t.unsupervised()
    store, digests, tree = made(t)
    store.ply("drop", "@c3")
    store.ply("gc")
    store.ply("gc")
    view = store.mount()
    view.write("sealed before the kill", "1")
    snap = store.out("checkpoint", "--sync", view.path)
    store.kill()
    store.ply("unmount", view.path, check=False)
    ply.wait_for("the mount to vanish", lambda: not ply.mounts_below(view.path))
    shutil.rmtree(os.path.join(store.path, "index"))
    store.ply("salvage")
    ids = [s["id"] for s in store.json("log")]
    assert ids[0] == snap, ids
    view = store.mount()
    assert view.read("sealed before the kill") == "1"
    view.unmount()
    other = store.mount(branch="other")
    assert other.digest() == digests["other"]
    other.unmount()
    store.ply("check", "--read-data")


def test_check_repair_salvages_by_itself(t):
    store, digests, tree = made(t)
    path = os.path.join(store.path, "index", "data.mdb")
    os.truncate(path, 8192)
    store.fails("check", says="salvage")
    p = store.ply("check", "--repair")
    assert "salvaged" in p.stderr, p
    expect(store, digests, tree)
    assert os.path.isdir(os.path.join(store.path, "index.damaged"))
    # Nothing is broken: nothing is done.
    p = store.ply("check", "--repair", "--json")
    assert json.loads(p.stdout)["clean"] and not p.stderr, p
    store.stop()
    assert not os.path.exists(os.path.join(store.path, "index.damaged.1"))


def test_who_ends_is_waited_for(t):
    store, _, _ = made(t)
    for _ in range(5):
        p = store.ply("check", "--repair")
        assert p.stdout.startswith("clean: ") and not p.stderr, p
    store.ply("log")
    store.ply("salvage")


def test_a_lost_format_file(t):
    store, digests, tree = made(t)
    with open(os.path.join(store.path, "format")) as f:
        text = f.read()
    os.unlink(os.path.join(store.path, "format"))
    store.ply("salvage")
    with open(os.path.join(store.path, "format")) as f:
        assert f.read() == text
    expect(store, digests, tree)


def test_who_meets_damage_is_told_to_check(t):
    store, _, _ = made(t)
    for pack in glob.glob(os.path.join(store.path, "packs", "*")):
        os.unlink(pack)
    os.mkdir(t.at("at"))
    for words in (["mount", "--at", t.at("at")], ["export", "main", "--dir", t.at("out")], ["gc"]):
        store.fails(*words, says="; 'plyfs check' names what it touches")
    # What belongs to nodes that cannot be read does not belong to nothing, and gc refused.
    p = store.ply("check", check=False)
    assert p.returncode == 1 and "--repair" in p.stderr and "gc" not in p.stdout, p
    store.ply("check", "--repair")
    store.fails("mount", "--at", t.at("at"), says="; 'plyfs check' names what it touches")
    p = store.ply("check")
    assert "path: / (the root)" in p.stdout and "is an I/O error" in p.stdout, p


def test_salvage_and_repair_want_the_store_for_themselves(t):
    view = t.view()
    view.store.fails("salvage", says="unmount")
    view.store.fails("check", "--repair", says="unmount")
    view.write("f", "1")
    assert view.read("f") == "1"


def test_salvage_of_what_is_no_store(t):
    os.mkdir(t.at("empty"))
    store = t.store("empty", init=False)
    store.fails("salvage", says="not a plyfs store")
    assert os.listdir(store.path) == []
    fresh = t.store("fresh")
    fresh.stop()
    shutil.rmtree(os.path.join(fresh.path, "index"))
    for pack in glob.glob(os.path.join(fresh.path, "packs", "*")):
        os.unlink(pack)
    fresh.fails("salvage", says="^plyfs salvage: .*no list of snapshots")
    fresh.fails("check", "--repair", says="^plyfs check: .*no list of snapshots")


# ---- forged collisions: see tests/unit/test_chunk.c for why these two have one XXH3-128 ----

def forged(shift, length=100000):
    data = bytearray(random.Random(9).randbytes(length))
    data[0:8] = struct.pack("<II", 0x396cfeb8, 1000 + shift)
    data[64:72] = struct.pack("<II", 0x2c81017c, 5000 - shift)
    return bytes(data)


def test_files_with_colliding_hashes_are_two_files(t):
    view = t.view({"a": "1"})
    for i in range(5):
        view.write("f%d" % i, forged(i))
    first = view.checkpoint()
    view.store.ply("checkpoint", "--sync", view.path)
    for i in range(5):
        view.write("f%d" % i, forged(i + 2))
    view.store.ply("checkpoint", "--sync", view.path)
    view.unmount()
    view.store.ply("gc")
    view.store.stop()
    lose_index(view.store)
    view.store.ply("salvage")
    text = view.store.out("dump")
    assert re.search("data chunks 7", text), text  # seven contents, each stored once
    now, then = view.store.mount(), view.store.mount(snapshot=first)
    for i in range(5):
        for v, shift in ((now, i + 2), (then, i)):
            with open(v.at("f%d" % i), "rb") as f:
                assert f.read() == forged(shift), (v.path, i)
    view.store.ply("check", "--read-data")



def test_an_index_that_is_a_link_to_nothing_is_not_made_anew(t):
    """An index that was put on another disk, which is not there today: an empty one would have gc remove all packs."""
    store, digests, tree = made(t)
    index, far = store.path + "/index/data.mdb", t.at("far/data.mdb")
    os.mkdir(t.at("far"))
    shutil.move(index, far)
    os.symlink(far, index)
    expect(store, digests, tree)
    store.stop()
    for gone in (far, t.at("far")):
        os.rename(gone, t.at("away"))
        for words in (["log"], ["gc"], ["check"], ["check", "--repair"]):
            said = store.fails(*words, says="index/data.mdb is a link to what is not there; bring that back$")
            assert said.count("\n") == 1, said
        os.rename(t.at("away"), gone)
    expect(store, digests, tree)



def test_why_a_repair_cannot_begin_is_told_once(t):
    ply.small_disk(t, 16)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "1"}))
    store.stop()
    made = []
    try:  # no inode is left for a socket
        while True:
            made.append(t.at("disk/f%d" % len(made)))
            ply.write(made[-1], "")
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
    said = store.fails("check", "--repair")
    assert said == "plyfs check: listening on '%s/sock': No space left on device\n" % store.path, said
    for path in made[:-1]:
        os.unlink(path)
    assert "clean" in store.out("check", "--repair")


if __name__ == "__main__":
    ply.main()
