#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 240
"""
Who sits in a directory is told where it is (getcwd(2)), wherever restores take it: many directories are held open
while they are made, moved and removed, looked for where they no longer are, and go and come back, by names and by
epoch. The caller of a restore looks at what that moved, as the program does, or leaves it to the next one's.

    restore_cwd.py               1,500 steps
    PLYFS_TEST_LONG=1            20,000
    PLYFS_TEST_SEED=n            repeats a failure
"""
import contextlib
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import deaths
import ply

STEPS = 20000 if ply.LONG else 1500
ROUNDS = 1000 if ply.LONG else 100
BULK = 2300  # files in every other state: more than are told by names (NAMES_MAX)
DIRS = 14    # at a time: they are to meet each other
SNAPS = 12


class Held:
    """A view, and a descriptor of each directory that was ever in it, by inode number."""

    def __init__(self, view, rng):
        self.view, self.rng, self.fds, self.log, self.made = view, rng, {}, [], 0
        self.top = os.open(view.path, os.O_RDONLY | os.O_DIRECTORY)
        self.snaps = [view.checkpoint()]
        ply.make_bulk(view.at("bulk"), BULK, size=10)
        self.snaps.append(view.checkpoint())

    def close(self):
        for fd in [self.top, *self.fds.values()]:
            os.close(fd)

    def say(self, *words):
        self.log.append(" ".join(map(str, words)).replace(self.view.path, ""))

    def dirs(self):
        found = []
        for path, dirs, _ in os.walk(self.view.path):
            dirs[:] = sorted(set(dirs) - {"bulk"})
            found.append(path)
        return found

    def let_go(self, ino):
        if ino in self.fds:
            os.close(self.fds.pop(ino))

    def make(self):
        dirs = self.dirs()
        if len(dirs) >= DIRS:
            return
        path = os.path.join(self.rng.choice(dirs), "n%d" % self.made)
        self.made += 1
        os.mkdir(path)
        self.say("mkdir", path)
        self.hold(path)

    def hold(self, path=None):
        path = path or self.rng.choice(self.dirs())
        ino = os.stat(path).st_ino
        if ino not in self.fds:
            self.fds[ino] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def move(self):
        dirs = self.dirs()
        source = self.rng.choice(dirs)
        target = os.path.join(self.rng.choice(dirs), "m%d" % self.rng.randrange(6))
        if source == self.view.path or (target + "/").startswith(source + "/"):
            return
        gone = os.stat(target).st_ino if os.path.isdir(target) else 0
        with contextlib.suppress(OSError):  # another one is there, and not empty
            os.rename(source, target)
            self.say("mv", source, target)
            self.let_go(gone)  # for good (V5)

    def remove(self):
        path = self.rng.choice(self.dirs())
        ino = os.stat(path).st_ino
        with contextlib.suppress(OSError):
            os.rmdir(path)
            self.say("rmdir", path)
            self.let_go(ino)

    def checkpoint(self):
        self.snaps.append(self.view.checkpoint())
        self.say("checkpoint", self.snaps[-1])
        if len(self.snaps) > SNAPS:
            self.snaps.pop(self.rng.randrange(SNAPS))

    def look(self):
        """For something in a directory that may be there no longer."""
        if not self.fds:
            return
        ino = self.rng.choice(sorted(self.fds))
        for name in "m%d" % self.rng.randrange(6), "n%d" % self.rng.randrange(self.made + 1), ".":
            with contextlib.suppress(OSError):
                os.stat(name, dir_fd=self.fds[ino])
        self.say("look in", ino)

    def restore(self):
        snap = self.rng.choice(self.snaps)
        how = ply.ioctl_restore(self.top, snap)
        self.say("restore", snap, ["by names", "by epoch"][how["mode"]])
        if self.rng.random() < 0.2:
            return
        for path in ply.ioctl_moved(self.top):
            self.say("  told", path)
            with contextlib.suppress(OSError):
                os.lstat(self.view.at(path))
        told = {ino: os.readlink("/proc/self/fd/%d" % fd) for ino, fd in self.fds.items()}
        for path in self.dirs():
            ino = os.stat(path).st_ino
            if told.get(ino, path) == path:
                continue
            if os.fstat(self.fds[ino]).st_ino != ino:
                self.let_go(ino)  # it has become the one that was at its path in another state (V5)
                continue
            raise AssertionError("%s is told for %s (%d) after\n%s" % (
                told[ino], path, ino, "\n".join(self.log[-200:])))


def rounds(t, rng, name="store"):
    store = t.store(name)
    store.import_(t.tree({"a/f": "f", "b/f": "f"}, "source-" + name))
    with contextlib.closing(Held(store.mount(), rng)) as held:
        does = ([held.make] * 30 + [held.move] * 20 + [held.checkpoint] * 10 + [held.remove] * 3 + [held.hold] * 3 +
                [held.look] * 8 + [held.restore] * 28)
        for _ in range(STEPS):
            held.rng.choice(does)()


def test_whoever_sits_in_a_directory_is_told_where_it_is(t):
    rounds(t, ply.seeded())


def test_what_went_wrong_once_does_not(t):
    """Of these each failed before one of its mends."""
    for seed in 570860075, 1699397902, 175737437, 1662972402, 1057:
        print("# %d" % seed)
        rounds(t, random.Random(seed), str(seed))


class Busy(deaths.Beside):
    """Makes files in a directory and removes them half of the time: whoever does so has its lock in the kernel."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def run(self):
        took = 0
        while not self.over.wait(took):
            began = time.monotonic()
            with contextlib.suppress(OSError):  # a restore may be between the two
                os.close(os.open(self.path, os.O_CREAT))
                os.unlink(self.path)
            took = time.monotonic() - began


def test_nor_does_it_matter_who_works_where_it_was(t):
    view = t.store().mount()
    for d in "from", "to":
        os.mkdir(view.at(d))
    places = [view.at("from/d"), view.at("to/d")]
    os.mkdir(places[0])
    with contextlib.ExitStack() as ends:
        fd = os.open(places[0], os.O_RDONLY)
        ends.callback(os.close, fd)
        snaps = [view.checkpoint()]
        os.rename(*places)
        snaps.append(view.checkpoint())
        for d in "from", "to":
            ends.enter_context(Busy(view.at(d + "/busy")))
        for n in range(ROUNDS):
            view.store.ply("restore", snaps[n % 2], view.path)  # it looks at what was moved
            assert os.readlink("/proc/self/fd/%d" % fd) == places[n % 2], n


if __name__ == "__main__":
    ply.main()
