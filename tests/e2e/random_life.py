#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 240
"""
A random life of a store: several views are changed, checkpointed, restored, undone, forked, unmounted
and mounted again, snapshots and branches are dropped, gc runs, daemons are killed and replaced, in any
order. Every state is compared with what it was when it was kept, and what processes have open with what
they opened, while all this goes on and after it. At the end the store is checked, and everything is
there once more after salvage made its index anew.

    random_life.py               2 lives of 100 moves
    PLYFS_TEST_LONG=1            8 lives of 600
    PLYFS_TEST_SEED=n            repeats a life (what runs beside it, and thus how it ends, is not repeated)
"""
import collections
import contextlib
import errno
import mmap
import os
import shutil
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import deaths
import ply

LIVES, MOVES = (8, 600) if ply.LONG else (2, 100)
FILES = 150    # enough for nodes of several levels in the tree; each digest reads them all
VIEWS = 6
OPEN = 60      # of all views together: each is read again and again
LARGE = 300000  # bytes: some chunks

# Which moves are made how often. What costs seconds comes seldom.
WEIGHTS = {"change": 30, "checkpoint": 20, "restore": 16, "undo": 6, "fork": 4, "fork_from": 2, "import_": 1,
           "open": 12, "close": 3, "show": 3, "hide": 2, "drop": 6, "drop_branch": 2, "gc": 3, "kill": 5,
           "replace": 2, "remount": 3, "sync": 2, "forget": 2}
# With each of these a view goes on when its daemon is killed.
OPTIONS = [["--without", "cache"], ["--without", "no-open"], ["--without", "readdirplus,write-around,read-ahead"]]


class Held:
    """
    A file that is open, and mapped. Nobody writes to files that are called "whole…" but by rename, so
    it has these bytes whatever becomes of its name and of the view's state.
    """

    def __init__(self, path, often):
        self.path, self.often = path, often
        self.fd = os.open(path, os.O_RDONLY)
        try:
            self.bytes = os.pread(self.fd, LARGE + 1, 0)
            self.map = mmap.mmap(self.fd, 0, prot=mmap.PROT_READ) if self.bytes else None
        except BaseException:
            os.close(self.fd)
            raise

    def check(self):
        if self.map:  # not of what the kernel has cached
            self.map.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.fstat(self.fd).st_size == len(self.bytes), "what is open has another size: " + self.path
        assert os.pread(self.fd, LARGE + 1, 0) == self.bytes, "what is open has other bytes: " + self.path
        assert not self.map or self.map[:] == self.bytes, "what is mapped has other bytes: " + self.path

    def close(self):
        if self.map:
            self.map.close()
        os.close(self.fd)


class HeldDir:
    """A directory that is open: it can be listed, be it there or removed; if there, one can go up from it."""

    def __init__(self, path, often):
        self.path, self.often = path, often
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def check(self):
        os.listdir(self.fd)
        if os.fstat(self.fd).st_nlink:
            os.stat("..", dir_fd=self.fd)

    def close(self):
        os.close(self.fd)


class Reader(deaths.Beside):
    """Reads some of what is open all the time."""

    def __init__(self):
        super().__init__()
        self.lock, self.held, self.failed, self.reads = threading.Lock(), [], None, 0

    def run(self):
        n = 0
        while not self.over.wait(0.002):
            with self.lock:
                if not self.held:
                    continue
                n = (n + 1) % len(self.held)
                try:
                    if self.held[n].often:
                        self.held[n].check()
                        self.reads += 1
                except BaseException as e:
                    self.failed = e
                    return

    def __exit__(self, *what):
        super().__exit__(*what)
        for h in self.held:
            h.close()


class Life:
    def __init__(self, t, rng, reader):
        self.t, self.rng, self.reader = t, rng, reader
        self.known = {}   # digests of snapshots
        self.left = {}    # digests of states that a restore or an undo left, by their ids
        self.undone = {}  # by branch: the id of the state that undo brings back, or ""
        self.shown = []   # snapshots that are mounted: (view, id)
        self.made = 0
        self.counts = collections.Counter()
        self.store = t.store("store-%d" % rng.randrange(1 << 30))
        self.views, self.now = {}, {}
        self.import_("main")

    def mount(self, **which):
        of_its_kind = ["--inotify"] if "branch" in which else ["--passthrough"] if os.geteuid() == 0 else []
        more = self.rng.choice([[], of_its_kind, *OPTIONS])
        return self.store.mount(which.get("branch"), which.get("snapshot"), None, *more)

    def import_(self, branch):
        """To a branch of its own: what it has in common with the others is found by its bytes alone."""
        if len(self.views) == VIEWS:
            return
        self.made += 1
        source, name = self.t.at("source-%d" % self.rng.randrange(1 << 30)), "import%d" % self.made
        ply.make_bulk(source, FILES, per_dir=15, seed=self.rng.randrange(3))
        for d, _, names in os.walk(source):
            for n in names:
                os.rename(os.path.join(d, n), os.path.join(d, self.rng.choice(["whole-", "grows-"]) + n))
        snap = self.store.import_(source, "--branch", name)
        ply.remove(source)
        self.views[name] = self.mount(branch=name)
        self.now[name] = self.known[snap] = self.views[name].digest()

    def some(self, of):
        return self.rng.choice(sorted(of))

    def files(self, view, prefix=""):
        return sorted(os.path.join(d, n) for d, _, names in os.walk(view.path) for n in names
                      if n.startswith(prefix) and not os.path.islink(os.path.join(d, n)))

    def data(self):
        return self.rng.randbytes(self.rng.choice([0, 10, 3000, 70000, LARGE]))

    def looks_right(self, what):
        """
        Every view shows the state that it is to have. What is open has the bytes that it had; but some of it is
        asked for only when another daemon has come, which knows no more of it than the one before kept for it.
        """
        for branch, view in self.views.items():
            assert view.digest() == self.now[branch], "%s: branch %s differs" % (what, branch)
        for view, snap in self.shown:
            assert view.digest() == self.known[snap], "%s: snapshot %s differs" % (what, snap)
        with self.reader.lock:
            for h in self.reader.held:
                if h.often or what in ("kill", "replace"):
                    h.check()

    # ---- the moves; each begins with the branch that it is about ----

    def change(self, branch):
        view = self.views[branch]
        dirs, files = sorted(d for d, _, _ in os.walk(view.path)), self.files(view)
        for _ in range(self.rng.randrange(1, 30)):
            self.change_one(dirs, files)
        self.now[branch] = view.digest()

    def change_one(self, dirs, files):
        self.made += 1
        new, where = str(self.made), self.rng.choice(dirs)
        what = self.rng.choice(["make", "replace", "replace", "remove", "append", "write", "cut", "link", "symlink",
                                "move", "move_dir", "mkdir", "rmtree", "mode", "xattr"])
        file = self.rng.choice(files) if files else None
        grows = [f for f in files if os.path.basename(f).startswith("grows")]
        # Some of these are gone meanwhile, by what was changed before.
        with contextlib.suppress(FileNotFoundError):
            if what == "make" or not file:
                ply.write(os.path.join(where, self.rng.choice(["whole-", "grows-"]) + new), self.data())
            elif what == "replace":
                ply.write(os.path.join(where, "new"), self.data())
                os.rename(os.path.join(where, "new"), file)
            elif what == "remove":
                os.unlink(file)
            elif what == "append" and grows:
                ply.write(self.rng.choice(grows), self.data(), "a")
            elif what == "write" and grows:
                with open(self.rng.choice(grows), "r+b") as f:
                    f.seek(self.rng.randrange(LARGE))
                    f.write(self.data())
            elif what == "cut" and grows:
                os.truncate(self.rng.choice(grows), self.rng.randrange(LARGE))
            elif what == "link":
                os.link(file, os.path.join(where, os.path.basename(file)[:6] + new))
            elif what == "symlink":
                os.symlink("nowhere", os.path.join(where, new))
            elif what == "move":
                os.rename(file, os.path.join(where, os.path.basename(file)[:6] + new))
            elif what == "move_dir" and len(dirs) > 1:
                one = self.rng.choice(dirs[1:])
                if not (where + "/").startswith(one + "/"):
                    os.rename(one, os.path.join(where, "d" + new))
            elif what == "mkdir":
                os.mkdir(os.path.join(where, "d" + new))
            elif what == "rmtree" and len(dirs) > 20:
                shutil.rmtree(self.rng.choice(dirs[1:]))
            elif what == "mode":
                os.chmod(self.rng.choice([file, where]), self.rng.choice([0o700, 0o755, 0o770]))
            elif what == "xattr":
                os.setxattr(file, "user.n", new.encode())

    def checkpoint(self, branch):
        snap = self.views[branch].checkpoint()
        assert self.known.setdefault(snap, self.now[branch]) == self.now[branch], "two states are " + snap

    def restore(self, branch):
        if self.known:
            snap = self.some(self.known)
            self.goes_to(branch, self.known[snap], self.views[branch].restore(snap))

    def undo(self, branch):
        if self.undone.get(branch):
            self.goes_to(branch, self.left[self.undone[branch]], self.views[branch].undo())

    def goes_to(self, branch, digest, how):
        # Where there was nothing to leave it is what an earlier restore left, or nothing.
        self.left.setdefault(how["left"], self.now[branch])
        self.undone[branch] = how["left"]
        self.now[branch] = digest
        self.see_moved(self.views[branch])

    def see_moved(self, view):
        """As each program that restores does (fs/control.c): else who walks by first may be answered ESTALE."""
        with view.fd() as fd:
            for path in ply.ioctl_moved(fd):
                ply.wait_for("the kernel to move a directory's name", lambda path=path: self.is_seen(view.at(path)))

    def is_seen(self, path):
        try:
            os.lstat(path)
        except OSError as e:
            return e.errno != errno.ESTALE
        return True

    def fork(self, branch):
        if len(self.views) < VIEWS:
            self.made += 1
            name = "fork%d" % self.made
            with self.views[branch].fd() as fd:
                ply.syncfs(fd)
                ply.ioctl_fork(fd, name)
            self.views[name], self.now[name] = self.mount(branch=name), self.now[branch]

    def fork_from(self, branch):
        if len(self.views) < VIEWS and self.known:
            self.made += 1
            name, snap = "fork%d" % self.made, self.some(self.known)
            self.store.ply("fork", "--from", snap, name)
            self.views[name], self.now[name] = self.mount(branch=name), self.known[snap]

    def open(self, branch):
        for view in [self.views[branch], *(view for view, _ in self.shown)]:
            for path in sorted(d for d, _, _ in os.walk(view.path)):
                with self.reader.lock:
                    if self.rng.random() < 0.2 and len(self.reader.held) < OPEN:
                        self.reader.held.append(HeldDir(path, often=self.rng.random() < 0.5))
            for path in self.files(view, "whole"):
                with self.reader.lock:
                    if self.rng.random() < 0.05 and len(self.reader.held) < OPEN:
                        self.reader.held.append(Held(path, often=self.rng.random() < 0.5))

    def close(self, branch):
        self.close_some(self.views[branch], 0.5)

    def close_some(self, view, share):
        with self.reader.lock:
            go = [h for h in self.reader.held if (h.path + "/").startswith(view.path + "/") and self.rng.random() < share]
            self.reader.held = [h for h in self.reader.held if h not in go]
        for h in go:
            h.close()

    def end_view(self, view):
        self.close_some(view, 1)
        view.unmount()

    def show(self, branch):
        if len(self.shown) < 2 and self.known:
            snap = self.some(self.known)
            self.shown.append((self.mount(snapshot=snap), snap))

    def hide(self, branch):
        if self.shown:
            self.end_view(self.shown.pop(0)[0])

    def drop(self, branch):
        """Whether or not somebody has something of it open, and views stand on it."""
        for snap in self.rng.sample(sorted(self.known), min(len(self.known), self.rng.randrange(1, 4))):
            if any(snap == shown for _, shown in self.shown):
                self.store.fails("drop", "--snapshot", snap, says="mounted")
                continue
            self.store.ply("drop", "--snapshot", snap)
            del self.known[snap]
            self.undone = {b: s for b, s in self.undone.items() if s != snap}

    def drop_branch(self, branch):
        if len(self.views) > 1:
            self.end_view(self.views.pop(branch))
            self.store.ply("drop", "--branch", branch)
            del self.now[branch]
            self.undone.pop(branch, None)

    def gc(self, branch):
        self.store.ply("gc", timeout=300)

    def kill(self, branch):
        if ply.has_epochs():
            os.kill(self.store.daemon(), signal.SIGKILL)
            os.statvfs(self.views[branch].path)

    def replace(self, branch):
        if ply.has_epochs():
            self.store.ply("daemon", "--replace")
            self.store.daemon()

    def remount(self, branch):
        self.end_view(self.views[branch])
        self.views[branch] = self.mount(branch=branch)

    def sync(self, branch):
        self.known[self.store.out("checkpoint", "--sync", self.views[branch].path)] = self.now[branch]

    def forget(self, branch):
        if os.geteuid() == 0:
            ply.drop_caches()

    # ---- all of it ----

    def live(self):
        moves = []
        for i in range(MOVES):
            move = self.rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
            branch = self.some(self.views)
            moves.append("%s %s" % (move, branch))
            self.counts[move] += 1
            try:
                getattr(self, move)(branch)
                self.looks_right(move)
                if self.reader.failed:
                    raise self.reader.failed
            except (AssertionError, OSError) as e:
                raise AssertionError("move %d (the last ones: %s): %s" % (i, ", ".join(moves[-12:]), e)) from e

    def is_all_there(self, when):
        for branch, digest in self.now.items():
            view = self.store.mount(branch=branch)
            assert view.digest() == digest, "%s: branch %s differs" % (when, branch)
            view.unmount()
        for snap, digest in self.known.items():
            view = self.store.mount(snapshot=snap)
            assert view.digest() == digest, "%s: snapshot %s differs" % (when, snap)
            view.unmount()
        self.store.stop()

    def end(self):
        for branch in self.views:
            self.sync(branch)
        for view in [*self.views.values(), *(view for view, _ in self.shown)]:
            self.end_view(view)
        self.store.stop()
        self.store.ply("check", "--read-data", timeout=300)
        self.is_all_there("after a new start")
        shutil.rmtree(os.path.join(self.store.path, "index"))
        self.store.ply("salvage", timeout=300)
        self.is_all_there("after salvage")


def test_lives(t):
    t.deaths()
    rng = ply.seeded()
    for _ in range(LIVES):
        with Reader() as reader:
            life = Life(t, rng, reader)
            life.live()
            life.end()
        assert not reader.failed, reader.failed
        moves = ", ".join("%s %d" % x for x in life.counts.most_common())
        print("# %d reads of what was open; %s" % (reader.reads, moves))


if __name__ == "__main__":
    ply.main()
