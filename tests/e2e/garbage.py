#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: gc
# timeout: 180
"""Garbage collection while views are mounted and written."""
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_gc_while_views_are_mounted_and_written(t):
    view = t.view(ply.make_bulk(t.at("source"), 1500, size=6000))
    store = view.store
    fork = view.fork("other")
    stop = threading.Event()
    errors, expected = [], {}

    def writer(v, seed):
        rng = random.Random(seed)
        mine = expected.setdefault(seed, {})
        try:
            n = 0
            while not stop.is_set():
                n += 1
                name = "w%d/f%d" % (seed, rng.randrange(50))
                data = rng.randbytes(rng.randrange(1, 200000)).hex()
                v.write(name, data)
                mine[name] = data
                if n % 7 == 0:
                    v.checkpoint()
                # gc seals what was written so far; on a slow build it must have a chance.
                time.sleep(0.003)
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=writer, args=(view, 1)),
               threading.Thread(target=writer, args=(fork, 2))]
    for th in threads:
        th.start()
    try:
        for _ in range(8):
            ids = [s["id"] for s in snapshots(store) if not s.get("head")]
            victims = ids[1::2][:10]
            if victims:
                store.ply("drop", *victims, check=False)
            store.ply("gc", timeout=120)
    finally:
        stop.set()
        for th in threads:
            th.join()
    assert not errors, errors
    for v, seed in ((view, 1), (fork, 2)):
        for name, data in expected[seed].items():
            assert v.read(name) == data, name
    store.ply("checkpoint", "--sync", view.path)
    store.ply("check", "--read-data", timeout=120)
    digests = view.digest(), fork.digest()
    view.unmount()
    fork.unmount()
    store.stop()
    assert (store.mount().digest(), store.mount(branch="other").digest()) == digests


def snapshots(store):
    log = store.json("log")
    return log["snapshots"] if isinstance(log, dict) else log


def test_open_unlinked_files_survive_gc(t):
    view = t.view({"f": "x" * 300000})
    with open(view.at("f"), "rb", buffering=0) as f:
        first = view.checkpoint()
        os.unlink(view.at("f"))
        view.write("g", "1")
        view.checkpoint()
        view.store.ply("drop", first, check=False)
        for s in snapshots(view.store):
            view.store.ply("drop", s["id"], check=False)
        view.store.ply("gc")
        # The kernel's cache would answer; ask the daemon.
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert f.read(400000) == b"x" * 300000


def test_files_replaced_by_a_restore_survive_gc_while_open(t):
    view = t.view({"f": "t" * 300000})
    first = view.checkpoint()
    view.write("f", "l" * 300000)
    f = open(view.at("f"), "rb", buffering=0)
    view.restore(first)
    view.write("h", "1")
    view.checkpoint()
    view.restore(first)
    for s in snapshots(view.store):
        if s["id"] != first:
            view.store.ply("drop", s["id"], check=False)
    view.store.ply("gc")
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert f.read(400000) == b"l" * 300000
    f.close()
    assert view.read("f") == "t" * 300000


def test_a_mounted_snapshot_is_not_dropped(t):
    view = t.view({"f": "1"})
    snap = view.checkpoint()
    view.write("f", "2")
    view.checkpoint()
    old = view.store.mount(snapshot=snap)
    view.store.fails("drop", snap, says="mounted|use")
    assert old.read("f") == "1"


def test_gc_says_what_it_did(t):
    view = t.view({"f": "1"})
    view.write("big", os.urandom(3 << 20))
    snap = view.checkpoint()
    view.store.ply("checkpoint", "--sync", view.path)
    os.unlink(view.at("big"))
    view.checkpoint()
    view.store.ply("drop", snap)
    result = view.store.json("gc")
    assert any("before" in k for k in result) and any("after" in k for k in result), result


def test_a_gc_killed_in_the_middle_leaves_a_sound_store(t):
    t.unsupervised()
    view = t.view(ply.make_bulk(t.at("source"), 2000, size=9000))
    store = view.store
    for i in range(5):
        view.write("big", os.urandom(8 << 20))
        snap = view.checkpoint()
        store.ply("checkpoint", "--sync", view.path)
        os.unlink(view.at("big"))
        view.write("n", str(i))
        view.checkpoint()
        store.ply("checkpoint", "--sync", view.path)
        store.ply("drop", snap)
        p = subprocess.Popen([ply.PLYFS, "gc"], env=dict(t.env, PLYFS_STORE=store.path),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            p.wait(0.005 * i)
        except subprocess.TimeoutExpired:
            pass
        store.kill()
        p.wait(60)
        ply.wait_for("the mount to vanish", lambda: not ply.mounts_below(view.path))
        store.ply("check", "--read-data")
        store.ply("mount", "--at", view.path)
        assert view.read("n") == str(i)
    ply.assert_same_tree(view.at("d000"), t.at("source/d000"))


def test_what_is_written_over_and_over_is_collected_by_itself(t):
    if not ply.LONG:
        ply.skip("3 GB are written, as only 1 GiB more starts it (PLYFS_TEST_LONG); "
                 "disk_full.py has it on a small disk")
    view = t.view({"a": "kept"})
    for _ in range(12):
        with open(view.at("f"), "wb") as f:
            for _ in range(256):
                f.write(os.urandom(1 << 20))
        view.store.ply("checkpoint", "--sync", view.path)
        view.store.ply("drop", "main~0")
    sizes = view.store.status()["sizes"]
    assert sizes["pack_bytes"] < 2 << 30, sizes
    view.store.ply("check", "--read-data", timeout=170)


if __name__ == "__main__":
    ply.main()
