#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: damage
# timeout: 180
"""One flipped bit anywhere in a store: found, never wrong bytes, named, mended or given up."""
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def make_store(t):
    """Two branches, snapshots, a gc: packs with dead records, an index with free pages."""
    store = t.store("good")
    source = ply.make_bulk(t.at("source"), 250, size=6000)
    with open(os.path.join(source, "large"), "wb") as f:
        f.write(random.Random(5).randbytes(400000))
    store.import_(source)
    view = store.mount()
    for i in range(12):
        view.write("d000/s0001/changed", "round %d\n" % i * 300)
        view.write("new%d/file" % i, os.urandom(30000).hex())
        store.ply("checkpoint", "--sync", "-m", "c%d" % i, view.path)
    fork = view.fork("other")
    fork.write("only in other", "o" * 50000)
    store.ply("checkpoint", "--sync", fork.path)
    for i in range(0, 10, 2):
        store.ply("drop", "@c%d" % i)
    store.ply("gc")
    view.write("last", "l" * 9000)
    store.ply("checkpoint", "--sync", view.path)
    view.unmount()
    fork.unmount()
    store.stop()
    return store


def copy_store(good, to):
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", good, to], check=True)


def index_places(path):
    """Two sorts of places in the index: heads of pages, and bytes that are not zero."""
    with open(path, "rb") as f:
        data = f.read(8 << 20).rstrip(b"\0")
    heads = [page + i for page in range(0, len(data), 4096) for i in range(60)]
    return heads, [i for i, b in enumerate(data) if b]


def read_state(top):
    """Path -> digest, or the errno: of files their bytes, of directories their names."""
    found = {}

    def look(path):
        where = os.path.join(top, path) if path else top  # which may be a file: no slash behind it
        try:
            if os.path.isdir(where):
                names = sorted(os.listdir(where))
                found[path] = hashlib.sha256("\0".join(names).encode()).hexdigest()
                for name in names:
                    look(os.path.join(path, name) if path else name)
            else:
                st = os.lstat(where)
                with open(where, "rb") as f:
                    h = hashlib.sha256(f.read())
                h.update(b"%o %d" % (st.st_mode, st.st_mtime_ns))
                found[path] = h.hexdigest()
        except OSError as e:
            found[path] = e.errno
    look("")
    return found


def read_known(top, paths):
    """The same for paths that are known: a directory that cannot be listed hides nothing."""
    found = read_state(top)
    for path in paths:
        if path not in found:
            where = os.path.join(top, path)
            try:
                os.lstat(where)
                found[path] = read_state(where)[""]
            except OSError as e:
                found[path] = e.errno
    return found


def states(store):
    log = store.json("tree")
    return (log["snapshots"], [b["name"] for b in log["branches"]])


def mounted(t, store, **what):
    at = t.at("m")
    os.makedirs(at, exist_ok=True)
    args = ["mount", "--at", at]
    for k, v in what.items():
        args += ["--" + k, v]
    p = store.ply(*args, check=False)
    return (at, p)


def read_all(t, store, which, expected=None):
    got = {}
    for kind, name in which:
        at, p = mounted(t, store, **{kind: name})
        if p.returncode:
            assert p.returncode == 1 and len(p.stderr.strip().splitlines()) == 1, p
            got[name] = None
            continue
        got[name] = read_known(at, expected[name]) if expected else read_state(at)
        store.ply("unmount", at)
    return got


class Oracle:
    def __init__(self, t):
        self.t = t
        self.good = make_store(t)
        snapshots, branches = states(self.good)
        self.snapshots = snapshots
        self.which = [("branch", b) for b in branches]
        self.which += [("snapshot", snapshots[i]["id"]) for i in (0, len(snapshots) // 2)]
        self.expected = read_all(t, self.good, self.which)
        self.good.stop()
        self.store = t.store("flipped", init=False)
        self.counts = {"slack": 0, "whole": 0, "index": 0, "lost": 0, "format": 0}

    def compare(self, got, allowed, what):
        """Everything right but what may be lost; returns how many are."""
        lost = 0
        for name, files in self.expected.items():
            if got[name] is None:
                # Its record or its top node: whichever it is, the report has told of this state.
                assert allowed and allowed(name), (what, name, "does not mount")
                lost += 1
                continue
            for path, digest in files.items():
                have = got[name].get(path)
                if have == digest:
                    continue
                assert have == errno.EIO, "%s: %s in %s: %r" % (what, path, name, have)
                lost += 1
                if allowed is not None:
                    covered(allowed(name), path, what)
        return lost

    def flip(self, rel, offset, bit):
        what = "%s byte %d bit %d" % (rel, offset, bit)
        store = self.store
        copy_store(self.good.path, store.path)
        path = os.path.join(store.path, rel)
        with open(path, "r+b") as f:
            f.seek(offset)
            byte = f.read(1)[0]
            f.seek(offset)
            f.write(bytes([byte ^ 1 << bit]))

        p = store.ply("check", "--read-data", "--json", check=False)
        assert p.returncode in (0, 1), (what, p)
        if not p.stdout.strip():
            # It does not open: one clear line, and the repair makes it anew.
            assert p.returncode == 1 and len(p.stderr.strip().splitlines()) == 1, (what, p)
            assert "salvage" in p.stderr or "format" in p.stderr or "not a plyfs" in p.stderr or \
                "newer" in p.stderr, (what, p)
            self.counts["format" if rel == "format" else "index"] += 1
            lost, allowed = 0, None  # the packs have it all
        else:
            report = json.loads(p.stdout)
            assert report["clean"] == (p.returncode == 0), (what, report)
            reported = paths_of(report)
            if report["clean"]:
                # Nobody noticed: then it must mean nothing.
                self.compare(read_all(self.t, store, self.which, self.expected), None, what)
                self.counts["slack"] += 1
                store.stop()
                return
            allowed = lambda name: reported.get(name, reported.get(None, set()))
            lost = self.compare(read_all(self.t, store, self.which, self.expected), allowed, what)
            self.counts["lost" if lost else "whole"] += 1

        p = store.ply("check", "--repair", check=False)
        assert p.returncode == 0, (what, p.stdout, p.stderr)
        p = store.ply("check", "--read-data", check=False)
        assert p.returncode == 0 and p.stdout.splitlines(), (what, p.stdout, p.stderr)
        again = read_all(self.t, store, self.which, self.expected)
        assert self.compare(again, allowed, what) <= lost, (what, "less than before the repair")
        now, _ = states(store)
        assert [strip(s) for s in now] == [strip(s) for s in self.snapshots], what
        store.ply("gc")
        store.ply("check", "--read-data")
        store.stop()


def strip(snapshot):
    return {k: v for k, v in snapshot.items() if k not in ("durable",)}


def paths_of(report):
    """State -> paths that the report names. Paths of one damage are told once."""
    paths, touched = {}, {}
    for d in report["damages"]:
        if "touched" in d:
            assert len(set(d["paths"])) == len(d["paths"]), ("a path is named twice", d)
            paths.setdefault(d["touched"], set()).update(d["paths"])
            touched.setdefault(d["branch"] or d["snapshot"], set()).add(d["touched"])
    named = {state: set().union(*[paths[n] for n in names]) for state, names in touched.items()}
    # A damaged key says no more whose record it was.
    if any("record is damaged" in d.get("damage", "") for d in report["damages"]):
        named[None] = {"a record"}
    return named


def covered(paths, path, what):
    """20 paths are named, the rest is counted."""
    parts = path.split("/")
    above = {"/".join(parts[:i]) for i in range(len(parts) + 1)} | {"/"}
    assert len(paths) >= 20 or paths & above, "%s: %s is not among %s" % (what, path, paths)


def test_a_flipped_bit_anywhere(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED", time.time_ns() % 1000000))
    rng = random.Random(seed)
    print("# seed %d" % seed)
    began = time.monotonic()
    oracle = Oracle(t)
    top = oracle.good.path
    packs = ["packs/" + p for p in sorted(os.listdir(os.path.join(top, "packs")))]
    lengths = {p: os.path.getsize(os.path.join(top, p)) for p in packs}
    heads, bytes_used = index_places(os.path.join(top, "index/data.mdb"))
    done = 0
    while done < 500 if ply.LONG else time.monotonic() - began < 22:
        kind = rng.random()
        if kind < 0.55:
            rel = rng.choices(packs, [lengths[p] for p in packs])[0]
            offset = rng.randrange(lengths[rel])
        elif kind < 0.6:
            rel, offset = rng.choice(packs), rng.randrange(24)
        elif kind < 0.95:
            rel, offset = "index/data.mdb", rng.choice(heads if kind < 0.75 else bytes_used)
        else:
            rel = "format"
            offset = rng.randrange(os.path.getsize(os.path.join(top, rel)))
        oracle.flip(rel, offset, rng.randrange(8))
        done += 1
    print("# %d flips: %s" % (done, oracle.counts))


if __name__ == "__main__":
    ply.main()
