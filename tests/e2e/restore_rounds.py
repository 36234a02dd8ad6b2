#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 420
"""
Rounds of {checkpoint, do something drastic, restore a random earlier snapshot} through the live
mount, on the branch and on forks, in any order; the digest is right every time, undo brings the
left state back.

    restore_rounds.py            25 rounds on a small tree
    PLYFS_TEST_LONG=1            200 rounds on 50,000 files with a 1 GiB file
    PLYFS_TEST_SEED=n            repeats a failure
"""
import mmap
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import trees

ROUNDS = 200 if ply.LONG else 8 if ply.COLLIDE else 25
FILES = 50000 if ply.LONG else 800 if ply.COLLIDE else 4000
BIG = 1 << 30 if ply.LONG else 2 << 20 if ply.COLLIDE else 64 << 20


class Moves:
    """What may happen between two checkpoints. Each returns a word for the protocol."""

    def __init__(self, t, view, rng):
        self.t, self.view, self.rng = t, view, rng

    def dirs(self):
        found = []
        for d, dirs, _ in os.walk(self.view.path):
            if ".git" in dirs:
                dirs.remove(".git")
            if d != self.view.path:
                found.append(d)
        return found

    def files(self, n):
        found = [os.path.join(d, x) for d, dirs, xs in os.walk(self.view.path)
                 if "/repo" not in d for x in xs if x != "big"]
        found = [p for p in found if os.path.isfile(p) and not os.path.islink(p)]
        return self.rng.sample(found, min(n, len(found)))

    def remove_half(self):
        tops = sorted(n for n in self.view.ls() if n not in ("big", "repo"))
        for d in tops:
            inner = self.view.at(d)
            if not os.path.isdir(inner) or os.path.islink(inner):
                continue
            for n in sorted(os.listdir(inner))[::2]:
                subprocess.run(["rm", "-rf", os.path.join(inner, n)], check=True)

    def checkout(self):
        if not os.path.isdir(self.view.at("repo/.git")):
            return
        self.t.run(["git", "checkout", "-q", "-f", self.rng.choice(["one", "two", "three"])],
                   cwd=self.view.at("repo"))

    def edit_big(self):
        if not os.path.exists(self.view.at("big")):
            return
        with open(self.view.at("big"), "r+b", buffering=0) as f:
            for _ in range(20):
                f.seek(self.rng.randrange(BIG))
                f.write(self.rng.randbytes(self.rng.randrange(1, 50000)))
            if self.rng.random() < 0.3:
                f.truncate(self.rng.randrange(BIG // 2, BIG))

    def rename_dirs(self):
        for d in self.rng.sample(self.dirs(), 5):
            if os.path.isdir(d) and "/repo" not in d:
                to = self.rng.choice([x for x in self.dirs() if "/repo" not in x] or [d])
                try:
                    os.rename(d, os.path.join(to, "renamed-%d" % self.rng.randrange(10**9)))
                except OSError:
                    pass  # below itself

    def mode_storm(self):
        for p in self.files(400):
            os.chmod(p, self.rng.choice([0o600, 0o644, 0o755, 0o400, 0o4711]))
            if os.geteuid() == 0:
                os.chown(p, self.rng.randrange(5), self.rng.randrange(5))

    def map_writes(self):
        for p in self.files(10):
            size = os.path.getsize(p)
            if not size:
                continue
            os.chmod(p, 0o600)
            with open(p, "r+b") as f, mmap.mmap(f.fileno(), size) as m:
                for _ in range(5):
                    i = self.rng.randrange(size)
                    m[i:i + 1] = b"#"

    def unpack(self):
        to = self.view.at("unpacked-%d" % self.rng.randrange(3))
        os.makedirs(to, exist_ok=True)
        subprocess.run(["tar", "-xf", self.t.at("some.tar"), "-C", to], check=True)

    def small_edits(self):
        for p in self.files(10):
            os.chmod(p, 0o644)
            with open(p, "a") as f:
                f.write("edit %d\n" % self.rng.randrange(1000))

    def links_and_xattrs(self):
        for p in self.files(30):
            beside = os.path.join(os.path.dirname(p), "%d" % self.rng.randrange(10**6))
            try:
                os.link(p, beside + ".h")  # not p's name and more: that may have 255 bytes
                os.symlink(os.path.basename(p), beside + ".s")
                os.setxattr(p, "user.k", self.rng.randbytes(20))
            except FileExistsError:
                pass

    def everything_new(self):
        for n in self.view.ls():
            if n != "repo":
                subprocess.run(["rm", "-rf", self.view.at(n)], check=True)
        ply.make_bulk(self.view.at("fresh"), 500, seed=self.rng.randrange(1000))


def prepare(t):
    source = t.at("source")
    trees.real_tree(source, FILES)
    trees.add_odd_things(source + "/odd")
    # A lone large sparse file would make every digest read its holes again and again.
    os.truncate(source + "/odd/sparse-large", 1 << 20)
    with open(source + "/big", "wb", buffering=0) as f:
        block = os.urandom(1 << 20)
        for i in range(BIG >> 20):
            f.write(i.to_bytes(8, "little") + block[8:])
    repo = source + "/repo"
    ply.make_bulk(repo, 300)
    t.sh("""
git init -q -b one . && git add -A && git commit -qm one
git checkout -q -b two && git rm -rqf d000/s0001 && echo 2 >two && git add -A && git commit -qm two
git checkout -q -b three one && echo 3 >d000/s0000/f000.txt && git commit -qam three
git checkout -q one
""", cwd=repo)
    ply.make_bulk(t.at("tarred"), 400, seed=7)
    t.run(["tar", "-cf", t.at("some.tar"), "-C", t.at("tarred"), "."])
    return source


def test_random_rounds(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED") or time.time())
    print("# seed %d" % seed)
    rng = random.Random(seed)
    view = t.view(prepare(t))
    views = [view]
    known = {}  # id -> digest
    moves = [n for n in vars(Moves) if not n.startswith("_") and n not in ("dirs", "files")]
    order = []
    forks = 0
    for i in range(ROUNDS):
        v = rng.choice(views)
        snap = v.checkpoint("round %d" % i)
        if snap not in known:
            known[snap] = v.digest()
        # Every move once before any comes again.
        if not order:
            order = rng.sample(moves, len(moves))
        move = order.pop()
        getattr(Moves(t, v, rng), move)()
        undo = rng.random() < 0.4
        left = v.digest() if undo else None
        target = rng.choice(sorted(known))
        if target == snap and left == known[snap]:
            undo = False  # a restore of the head with nothing changed keeps the older undo
        how = v.restore(target)
        got = v.digest()
        print("# %3d %-16s %s restore %s %s" % (i, move, v.info()["branch"], target,
                                               ["names", "epoch"][how["mode"]]))
        assert got == known[target], "round %d (seed %d): after %s, restore of %s" % (
            i, seed, move, target)
        if undo:
            v.undo()
            assert v.digest() == left, "round %d (seed %d): undo after %s" % (i, seed, move)
            if rng.random() < 0.5:
                v.undo()
                assert v.digest() == known[target], "round %d (seed %d): undone undo" % (i, seed)
        if rng.random() < 0.15 and forks < 4:
            forks += 1
            views.append(v.fork("fork%d" % forks))
            assert views[-1].digest() == v.digest(), "a fork differs (seed %d)" % seed
    # Forks among themselves were not disturbed, and all of it is on disk as well.
    states = {v.info()["branch"]: v.digest() for v in views}
    some = rng.sample(sorted(known), min(5, len(known)))
    view.store.ply("checkpoint", "--sync", view.path)
    for v in views:
        v.unmount()
    view.store.stop()
    view.store.ply("check", timeout=300)
    for branch, digest in states.items():
        v = view.store.mount(branch=branch)
        assert v.digest() == digest, "branch %s after a new start (seed %d)" % (branch, seed)
        v.unmount()
    for snap in some:
        v = view.store.mount(snapshot=snap)
        assert v.digest() == known[snap], "snapshot %s after a new start (seed %d)" % (snap, seed)
        v.unmount()


def test_a_chain_of_snapshots_in_any_order(t):
    rng = random.Random(3)
    view = t.view(ply.make_bulk(t.at("source"), 300))
    known = []
    for i in range(60):
        view.write("d000/s0000/f%03d.txt" % rng.randrange(50), "state %d" % i)
        view.write("n%d" % i, "x" * i)
        if i:
            os.unlink(view.at("n%d" % (i - 1)))
        known.append((view.checkpoint(), view.digest()))
    for snap, digest in [rng.choice(known) for _ in range(150)]:
        view.restore(snap)
        assert view.digest() == digest


def test_restores_by_name_leave_unchanged_names_cached(t):
    # After a small restore a stat storm asks the daemon about changed names only.
    view = t.view(ply.make_bulk(t.at("source"), 2000))
    storm = lambda: subprocess.run(["find", view.path, "-newer", "/etc/passwd", "-size", "+1000k"],
                                   check=True)
    first = view.checkpoint()
    names = ["d%03d/s%04d/f%03d.txt" % (i // 2 % 2, i, i) for i in range(10)]
    for n in names:
        view.write(n, "edited")
    with ply.caches_stay():
        storm()
        storm()
        before = ops(view)
        how = view.restore(first)
        assert how["mode"] == 0, "ten files went by the epoch"
        storm()
        after = ops(view)
    asked = {k: after[k] - before.get(k, 0) for k in after if after[k] != before.get(k, 0)}
    print("# requests in a storm over 2,000 files after a restore of ten: %s" % asked)
    # 10 names are looked up again; 10 directories at most give their attributes and listing.
    assert asked.get("LOOKUP", 0) + asked.get("GETATTR", 0) <= 40, asked
    assert asked.get("READDIR", 0) + asked.get("READDIRPLUS", 0) <= 40, asked


def ops(view):
    status = view.store.json("status", "--ops")
    mine = next(v for v in status["views"] if v["mountpoint"] == view.path)
    return dict(mine["ops"])


if __name__ == "__main__":
    ply.main()
