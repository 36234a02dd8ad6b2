#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: space
# timeout: 300
# serial: yes
"""What a store costs on disk, and that it comes back."""
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def size(path):
    """Bytes on disk of a file that may have gone meanwhile, but for what an xfs allots behind its end."""
    try:
        st = os.lstat(path)
    except FileNotFoundError:
        return 0
    return min(st.st_blocks * 512, -(-st.st_size // 4096) * 4096)


def used(store):
    """Bytes on disk, after everything is durable."""
    return sum(size(os.path.join(d, n)) for d, _, names in os.walk(store.path) for n in names)


def settle(view):
    view.store.ply("checkpoint", "--sync", view.path)
    return used(view.store)


def test_1000_checkpoints_with_ten_edited_files_add_at_most_3x_the_edited_bytes(t):
    # Files of a few KiB as in source trees; each round rewrites ten of them whole.
    rng = random.Random(8)
    source = ply.make_bulk(t.at("source"), 5000, size=9000)
    paths = [os.path.relpath(os.path.join(d, n), source)
             for d, _, names in os.walk(source) for n in names]
    view = t.view(source)
    before = settle(view)
    edited = 0
    for i in range(1000):
        for name in rng.sample(paths, 10):
            data = rng.randbytes(rng.randrange(1000, 12000))
            with open(view.at(name), "wb") as f:
                f.write(data)
            edited += len(data)
        view.checkpoint()
    after = settle(view)
    print("# edited %.1f MiB, store grew %.1f MiB: %.2fx" % (
        edited / 2**20, (after - before) / 2**20, (after - before) / edited))
    assert after - before <= 3 * edited


def test_importing_the_same_tree_twice_adds_under_1_percent(t):
    store = t.store()
    source = ply.make_bulk(t.at("source"), 4000, size=12000)
    store.import_(source)
    store.stop()
    first = used(store)
    store.import_(source, "--branch", "again")
    store.stop()
    second = used(store)
    print("# %.1f MiB, then %+.3f %%" % (first / 2**20, 100 * (second - first) / first))
    assert second - first < 0.01 * first


def test_one_4k_write_in_a_1g_file_adds_under_64k(t):
    view = t.view({"x": ""})
    size = 1 << 30
    with open(view.at("big"), "wb", buffering=0) as f:
        for i in range(size >> 20):
            f.write(i.to_bytes(8, "little") + os.urandom((1 << 20) - 8))
    before = settle(view)
    assert before > size
    with open(view.at("big"), "r+b", buffering=0) as f:
        f.seek(500 << 20 | 123 << 12)
        f.write(os.urandom(4096))
    after = settle(view)
    print("# the 4 KiB write cost %d bytes" % (after - before))
    assert after - before < 65536
    with open(view.at("big"), "rb", buffering=0) as f:
        f.seek(501 << 20)
        assert f.read(8) == (501).to_bytes(8, "little")


def test_dropped_snapshots_give_their_space_back(t):
    view = t.view(ply.make_bulk(t.at("source"), 500, size=8000))
    store = view.store
    base = settle(view)
    ids = []
    for i in range(6):
        with open(view.at("large"), "wb") as f:
            f.write(os.urandom(20 << 20))
        ids.append(view.checkpoint("large %d" % i))
    os.unlink(view.at("large"))
    digest = view.digest()
    full = settle(view)
    assert full - base > 110 << 20
    store.ply("drop", *ids[:3])
    store.ply("gc", timeout=120)
    middle = used(store)
    assert middle - base < (full - base) * 0.62, (base, full, middle)
    store.ply("drop", *ids[3:])
    store.ply("gc", timeout=120)
    end = used(store)
    print("# %.1f MiB, with six large files %.1f, after dropping three %.1f, all %.1f" % (
        base / 2**20, full / 2**20, middle / 2**20, end / 2**20))
    assert end - base < 4 << 20, (base, end)
    assert view.digest() == digest
    store.ply("check", "--read-data")


def test_checkpoints_without_changes_cost_nothing(t):
    view = t.view()
    before = settle(view)
    for _ in range(100):
        view.checkpoint()
    assert settle(view) - before <= 4096


def test_a_writer_that_never_pauses_does_not_leave_packs_behind(t):
    # Bytes lie in the stage until they are in packs; a writer may be 256 MiB ahead, and as much that is sealed
    # may not be let go of yet (stage_is_behind, which each write asks before it: some are under way).
    view = t.view()
    stage = os.path.join(view.store.path, "stage")
    noise, most = os.urandom(1 << 20), 0
    with open(view.at("large"), "wb") as f:
        for i in range(700):
            f.write(b"%8d" % i + noise[8:])
            if i % 8 == 0:
                most = max(most, sum(size(os.path.join(stage, n))
                                     for n in os.listdir(stage)))
    print("# 700 MiB written at once, at most %.0f MiB staged" % (most / 2**20))
    assert most < 544 << 20
    with open(view.at("large"), "rb") as f:
        for i in range(700):
            assert f.read(1 << 20) == b"%8d" % i + noise[8:], i


def test_copies_within_a_view_share_their_bytes(t):
    view = t.view({"x": ""})
    with open(view.at("a"), "wb") as f:
        f.write(os.urandom(30 << 20))
    before = settle(view)
    t.run(["cp", view.at("a"), view.at("b")])
    after = settle(view)
    assert after - before < 1 << 20, after - before
    assert subprocess.run(["cmp", view.at("a"), view.at("b")]).returncode == 0


if __name__ == "__main__":
    ply.main()
