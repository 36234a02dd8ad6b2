#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 300
"""
Many processes make, move, remove and read a few names while restores, undos and checkpoints go on,
and the daemon is killed now and then. Whenever they rest, the view has to show what is there: what
another mount shows of a fork, which the kernel sees for the first time. A restored state is what it
was, and something can be made in each of its directories, also where somebody stayed in it.

    PLYFS_TEST_LONG=1 for longer, PLYFS_TEST_SEED=n to begin as a failure did
"""
import contextlib
import errno
import multiprocessing
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

SECONDS = 120 if ply.LONG else 8
WORKERS = 4
MANY = 2100  # names that some states have and others lack: told by epoch (fs/switch.c)
STATES = 12
# What the others, and restores, may make of a call.
EXPECTED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, errno.EINVAL,
            errno.ELOOP, errno.EPERM, errno.ESTALE)


class Worker:
    """One process. It rests when `rest` has another number than 0, and says so once for each."""

    def __init__(self, top, seed, rest, resting, stop, expected):
        self.rng, self.top, self.expected = random.Random(seed), top, expected
        self.rest, self.resting, self.stop = rest, resting, stop
        self.held = []
        self.pid = ply.child(self.run)

    def path(self):
        return "/".join(self.rng.choice("abcd") for _ in range(self.rng.choice([1, 2, 2, 3, 3])))

    def run(self):
        os.chdir(self.top)
        calls = [self.mkdir] * 5 + [self.rmdir] * 3 + [self.rename] * 4 + [self.unlink] * 2 + [
            self.write] * 3 + [self.link, self.chmod, self.stay] + [self.list] * 2
        while not self.stop.is_set():
            number = self.rest.value
            if number:
                self.resting.release()
                ply.wait_for("the next round", lambda: self.rest.value != number
                             or self.stop.is_set(), 250)
                continue
            at = self.rng.choice(self.held) if self.held and self.rng.random() < 0.2 else None
            try:
                self.rng.choice(calls)(self.path(), at)
            except OSError as e:
                assert e.errno in self.expected, e

    def mkdir(self, path, at):
        os.mkdir(path, dir_fd=at)

    def rmdir(self, path, at):
        os.rmdir(path, dir_fd=at)

    def rename(self, path, at):
        os.rename(path, self.path(), src_dir_fd=at)

    def unlink(self, path, at):
        os.unlink(path, dir_fd=at)

    def write(self, path, at):
        flags = self.rng.choice([0, os.O_EXCL, os.O_TRUNC, os.O_APPEND])
        fd = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o644, dir_fd=at)
        try:
            os.write(fd, b"%d" % self.rng.randrange(10**6) * self.rng.choice([1, 40, 900]))
        finally:
            os.close(fd)

    def link(self, path, at):
        os.link(path, self.path(), src_dir_fd=at)

    def chmod(self, path, at):
        os.chmod(path, self.rng.choice([0o755, 0o700, 0o711]), dir_fd=at)

    def stay(self, path, at):
        self.held.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at))
        if len(self.held) > 6:
            os.close(self.held.pop(self.rng.randrange(6)))

    def list(self, path, at):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        try:
            for entry in os.scandir(fd):
                with contextlib.suppress(FileNotFoundError):
                    entry.stat(follow_symlinks=False)
        finally:
            os.close(fd)


def ask(call, *args):
    """A request that a dying daemon was taking may be EIO (fs/README.md): it was not done."""
    while True:
        try:
            return call(*args)
        except OSError as e:
            if e.errno != errno.EIO:
                raise


def restless(fd, states, rng, seconds):
    """What the workers meet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(states) < STATES or rng.random() < 0.1:
            states.setdefault(ask(ply.ioctl_checkpoint, fd))
        ask(ply.ioctl_restore, fd, rng.choice(list(states)))
        if rng.random() < 0.1:
            with contextlib.suppress(FileNotFoundError):  # nothing was left yet
                ask(ply.ioctl_undo, fd)
        time.sleep(rng.choice([0, 0, 0.001, 0.02]))


def look(view, fd, number):
    """All is as another mount of the same state has it; what that is."""
    name = "fork%d" % number
    ask(ply.ioctl_fork, fd, name)
    fork = view.store.mount(branch=name)
    truth = ply.treelist(fork.path)
    seen = []

    def right():  # times of a directory may be those of before for a second (fs/README.md)
        seen[:] = ply.treelist(view.path).splitlines()
        return seen == truth.splitlines()

    try:
        ply.wait_for("what is there", right)
    except AssertionError:
        differs = set(seen) ^ set(truth.splitlines())
        raise AssertionError("the view and its fork: %s" % sorted(differs)[:20]) from None
    for where, _, _ in os.walk(view.path):
        os.rmdir(os.mkdir(where + "/new") or where + "/new")
    fork.unmount()
    view.store.ply("drop", name)
    return truth


def storm(t, kills=False, epochs=False):
    rng = ply.seeded()
    if kills:
        t.deaths()
    view = t.view({"a/a/a": "x", "b": None})
    states = {view.checkpoint(): None}
    if epochs:
        for i in range(MANY):
            view.write("many/%d" % i, "")
        states[view.checkpoint()] = None
    fd = os.open(view.path, os.O_RDONLY)
    t.clean.append(lambda: os.close(fd))
    rest, resting = multiprocessing.Value("i", 0), multiprocessing.Semaphore(0)
    stop = multiprocessing.Event()
    t.clean.append(stop.set)
    # a file that was written to after a restore had replaced it is lost with the daemon
    expected = EXPECTED + (errno.EIO,) * kills
    workers = [Worker(view.path, rng.random(), rest, resting, stop, expected)
               for _ in range(WORKERS)]
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end or number < 3:
        number += 1
        death = threading.Timer(rng.uniform(0, 0.5), os.kill, (view.store.daemon(), signal.SIGKILL))
        if kills:
            death.start()
        restless(fd, states, rng, rng.uniform(0.05, 0.5))
        rest.value = number
        for worker in workers:
            assert resting.acquire(timeout=100), "a worker that does not end its call"
        if kills:
            death.join()
            view.store.daemon()  # another one is there
        target = rng.choice([None, *states])
        if target:
            ask(ply.ioctl_restore, fd, target)
        truth = look(view, fd, number)
        if target:
            assert states[target] in (None, truth), "state %s is another one" % target
            states[target] = truth
        rest.value = 0
    stop.set()
    assert all([ply.ended_well(worker.pid) for worker in workers])
    print("# %d rounds, %d states" % (number, len(states)))


def test_what_is_seen_is_what_is_there(t):
    storm(t)


def test_so_it_is_by_epoch(t):
    storm(t, epochs=True)


def test_so_it_is_when_the_daemon_dies_now_and_then(t):
    storm(t, kills=True)


if __name__ == "__main__":
    ply.main()
