#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: damage
# timeout: 120
"""A store that was copied: at rest it is the same store, in use its states are never mixed."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

PARTS = ["format", "index", "journal", "packs", "stage"]


def copy(store, to, parts=PARTS):
    """Part by part, as rsync(1) does, in this order."""
    os.makedirs(to, exist_ok=True)
    for part in parts:
        at = os.path.join(store.path, part)
        if os.path.isdir(at):
            shutil.copytree(at, os.path.join(to, part), dirs_exist_ok=True)
        else:
            shutil.copy2(at, to)


def small_segments(t):
    t.env["PLYFS_TEST_SEGMENT_BYTES"] = str(128 << 10)


def write_files(view, directory, count):
    """Some 400 bytes of the journal for each."""
    for i in range(count):
        view.write("%s/%05d" % (directory, i), "%d\n" % i)


def opened(t, name):
    store = t.store(name, init=False)
    return store, store.mount(at=t.at(name + "-view"))


def log_of(store):
    return ply.read(os.path.join(store.path, "daemon.log"))


def test_a_store_copied_at_rest_is_the_same_elsewhere(t):
    view = t.view({"a": "1"})
    write_files(view, "d", 300)
    digest = view.digest()
    view.unmount()
    view.store.stop()
    copy(view.store, t.at("copy"))
    shutil.move(view.store.path, t.at("moved"))
    for name in ("copy", "moved"):
        store, there = opened(t, name)
        assert there.digest() == digest, name
        there.unmount()
        store.ply("check", "--read-data")


def test_an_index_older_than_the_journal_is_a_state_that_was(t):
    small_segments(t)
    view = t.view()
    write_files(view, "first", 100)
    view.store.ply("checkpoint", "--sync", view.path)
    early = view.digest()
    copy(view.store, t.at("copy"), PARTS[:2])
    write_files(view, "second", 2000)  # more than segments hold; they go with the commit
    view.store.ply("checkpoint", "--sync", view.path)
    write_files(view, "third", 20)
    copy(view.store, t.at("copy"), PARTS[2:])

    store, there = opened(t, "copy")
    assert there.digest() == early, there.ls()
    assert "goes on behind what the index has" in log_of(store)
    there.write("later", "1")
    store.ply("checkpoint", "--sync", there.path)
    late = there.digest()
    there.unmount()
    store.stop()
    there = store.mount(at=t.at("copy-view"))
    assert there.digest() == late
    assert log_of(store).count("goes on behind") == 1, log_of(store)
    store.ply("check", "--read-data")


def test_a_journal_without_its_oldest_segments_is_given_up(t):
    small_segments(t)
    t.unsupervised()
    t.env["PLYFSD_COMMIT_INTERVAL"] = "0"
    view = t.view()
    write_files(view, "first", 100)
    view.store.ply("checkpoint", "--sync", view.path)
    early = view.digest()
    write_files(view, "second", 1000)
    view.store.kill()
    journal = os.path.join(view.store.path, "journal")
    segments = sorted(n for n in os.listdir(journal) if n != "spare")
    assert len(segments) > 2, segments
    for name in segments[:2]:
        os.unlink(os.path.join(journal, name))
    there = view.store.mount(at=t.at("again"))
    assert there.digest() == early, there.ls()
    assert "branch 'main': " in log_of(view.store), log_of(view.store)


if __name__ == "__main__":
    ply.main()
