#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 180
# serial: yes
"""A store on a disk of 64 MB, filled to the last block again and again by random work through the
mount (4 times; 100 times in the long form). Only ENOSPC is seen, and nothing else is lost: a model
outside says what each file must hold. On the full disk reading, going back to a checkpoint, drop and
gc work, and drop plus gc bring the room back. In every other round somebody else takes what the store
keeps in reserve as well: then reading and going back still work."""
import errno
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

ROUNDS = 100 if ply.LONG else 4
SEED = int(os.environ.get("PLYFS_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
DISK_MB = 64
PIECE = 64 << 10
KEPT = 6 << 20  # a spare segment of the journal (4 MiB) comes and goes; the index does not shrink


class Full(Exception):
    """The one failure that may be met."""


class Work:
    """Random work, and what must be there after it: a name's bytes."""

    def __init__(self, view, rng):
        self.view, self.rng, self.files = view, rng, {}

    def fd(self, name, flags):
        return os.open(self.view.at(name), flags, 0o644)

    def some(self):
        return self.rng.choice(sorted(self.files)) if self.files else None

    def bytes(self, most):
        return self.rng.randbytes(self.rng.randrange(1, most))

    def new(self):
        name = "d%d/f%d" % (self.rng.randrange(6), self.rng.randrange(1 << 30))
        os.makedirs(os.path.dirname(self.view.at(name)), exist_ok=True)
        fd = self.fd(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.files[name] = b""
        self.put(fd, name, 0, self.bytes(8 * PIECE))

    def append(self):
        name = self.some()
        if name:
            self.put(self.fd(name, os.O_WRONLY), name, len(self.files[name]), self.bytes(PIECE))

    def overwrite(self):
        name = self.some()
        if name and self.files[name]:
            at = self.rng.randrange(len(self.files[name]))
            self.put(self.fd(name, os.O_WRONLY), name, at, self.bytes(2 * PIECE))

    def put(self, fd, name, at, data):
        """Whatever a write says that it wrote is written, and no more."""
        try:
            while data:
                n = os.pwrite(fd, data, at)
                old = self.files[name]
                self.files[name] = old[:at] + data[:n] + old[at + n:]
                at, data = at + n, data[n:]
        finally:
            os.close(fd)

    def cut(self):
        name = self.some()
        if name:
            size = self.rng.randrange(len(self.files[name]) + 1)
            os.truncate(self.view.at(name), size)
            self.files[name] = self.files[name][:size]

    def rename(self):
        name, to = self.some(), "r%d" % self.rng.randrange(20)
        if name:
            os.rename(self.view.at(name), self.view.at(to))
            self.files[to] = self.files.pop(name)

    def unlink(self):
        name = self.some()
        if name:
            os.unlink(self.view.at(name))
            del self.files[name]

    def sync(self):
        name = self.some()
        if name:
            fd = self.fd(name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def step(self):
        verbs = ([self.new] * 10 + [self.append] * 6 + [self.overwrite] * 6 + [self.cut] * 2 +
                 [self.rename] * 2 + [self.unlink] * 2 + [self.sync])
        try:
            self.rng.choice(verbs)()
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            raise Full() from None

    def check(self):
        seen = {}
        for top, _, names in os.walk(self.view.path):
            for n in names:
                path = os.path.join(top, n)
                with open(path, "rb") as f:
                    seen[os.path.relpath(path, self.view.path)] = f.read()
        assert sorted(seen) == sorted(self.files)
        wrong = [n for n in seen if seen[n] != self.files[n]]
        assert not wrong, wrong[:5]


def drop_all_but(store, keep):
    """Snapshots that are not needed; those that a branch came back from included."""
    ids = [s["id"] for s in store.json("log") if s["id"] not in keep]
    if ids:
        store.ply("drop", *ids)


def fill(t, store, view, work):
    """Until writes are refused, with checkpoints on the way; they may be refused, too."""
    refused, marks = 0, []
    while refused < 12:
        try:
            work.step()
        except Full:
            refused += 1
        if work.rng.random() < 0.05:
            try:
                marks.append((view.checkpoint(), dict(work.files)))
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
    return marks


def take_all(path):
    """A file that leaves no block free."""
    with open(path, "wb", buffering=0) as f:
        for size in (1 << 20, 4096):
            try:
                while True:
                    f.write(bytes(size))
            except OSError as e:
                assert e.errno == errno.ENOSPC, e


def one_round(t, store, view, work, n):
    empty, files = view.checkpoint("round %d" % n), dict(work.files)
    marks = [(empty, files)] + fill(t, store, view, work)
    work.check()
    other = t.at("disk", "other")
    if n % 2:
        take_all(other)
        work.check()

    # Back to some checkpoint of this round, on the full disk; and undo it, perhaps.
    snap, there = work.rng.choice(marks)
    now = dict(work.files)
    view.restore(snap)
    work.files = there
    work.check()
    if there != now and work.rng.random() < 0.5:
        view.undo()
        work.files = now
        work.check()

    if n % 2:
        os.unlink(other)

    # Everything that came in this round is dropped.
    view.restore(empty)
    work.files = files
    drop_all_but(store, [empty])
    store.ply("gc", timeout=120)
    work.check()


def test_filled_again_and_again_only_enospc_is_seen(t):
    where = ply.small_disk(t, DISK_MB)
    rng = random.Random(SEED)
    print("seed %d" % SEED)
    store = t.store("disk/store")
    store.import_(t.tree({}))
    view = store.mount()
    work = Work(view, rng)
    for i in range(10):
        work.new()
    view.checkpoint("begin")
    first = None
    for n in range(ROUNDS):
        one_round(t, store, view, work, n)
        left = ply.room(where)
        first = first or left
        assert left > first - KEPT, "round %d: %d of %d bytes came back" % (n, left, first)
        if n % 10 == 3:
            store.ply("check", "--read-data")
    digest = view.digest()
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")
    assert store.mount().digest() == digest


if __name__ == "__main__":
    ply.main()
