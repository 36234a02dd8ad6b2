# SPDX-License-Identifier: Apache-2.0
"""
What else could do the job, each with the same three verbs on a tree of files:

    prepare(source)      takes the tree in; self.tree is where edits go
    checkpoint() -> key  remembers the state of self.tree
    restore(key)         self.tree is that state again, what came later is gone

`limit` says how many snapshots it can reasonably have behind it, `why` the reason.
Only what belongs to the verb is inside the clock; each is used the fastest way we know that is
still right: system calls where a program would use them, commands where people do.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess

_libc = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


class Unavailable(Exception):
    pass


@contextlib.contextmanager
def undisturbed():
    """For taking down what was mounted and made: who asks us to end meanwhile is heard afterwards."""
    ends = signal.SIGTERM, signal.SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)


def _run(*argv, **kw):
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)
    if p.returncode:
        raise Unavailable("%s: %s" % (argv[0], (p.stderr or p.stdout).strip().split("\n")[-1]))
    return p.stdout


class Copy:
    name, title = "cp", "cp -a"
    limit, why = 1, "a whole copy per snapshot"

    def __init__(self, where):
        self.where, self.tree, self.n = where, os.path.join(where, "tree"), 0

    def prepare(self, source):
        _run("cp", "-a", source, self.tree)

    def checkpoint(self):
        self.n += 1
        to = os.path.join(self.where, "copy%d" % self.n)
        _run("cp", "-a", self.tree, to)
        return to

    def restore(self, key):
        _run("rm", "-rf", self.tree)
        _run("cp", "-a", key, self.tree)

    def forget(self, key):
        shutil.rmtree(key)

    def close(self):
        pass


class ShadowGit:
    """A git directory beside the tree, as agents use it: everything added, ignored files too."""
    name, title = "git", "shadow git"
    limit, why = 1000, "minutes to build the history"

    def __init__(self, where):
        self.where, self.tree = where, os.path.join(where, "tree")
        self.env = dict(os.environ, GIT_DIR=os.path.join(where, "shadow.git"),
                        GIT_WORK_TREE=self.tree, GIT_CONFIG_NOSYSTEM="1", HOME=where,
                        GIT_AUTHOR_NAME="b", GIT_AUTHOR_EMAIL="b", GIT_COMMITTER_NAME="b",
                        GIT_COMMITTER_EMAIL="b")

    def git(self, *args):
        return _run("git", *args, env=self.env, cwd=self.tree)

    def prepare(self, source):
        if not shutil.which("git"):
            raise Unavailable("no git")
        _run("cp", "-a", source, self.tree)
        _run("git", "init", "-q", "--bare", self.env["GIT_DIR"])
        self.git("config", "core.bare", "false")
        self.git("config", "gc.auto", "0")
        self.git("add", "-A", "-f", ".")
        self.git("commit", "-q", "-m", "start")

    def checkpoint(self):
        self.git("add", "-A", "-f", ".")
        self.git("commit", "-q", "--allow-empty", "-m", "checkpoint")
        with open(os.path.join(self.env["GIT_DIR"], "refs/heads",
                               self.branch())) as f:
            return f.read().strip()

    def branch(self):
        with open(os.path.join(self.env["GIT_DIR"], "HEAD")) as f:
            return f.read().strip().split("/")[-1]

    def restore(self, key):
        self.git("reset", "-q", "--hard", key)
        self.git("clean", "-fdxq")

    def forget(self, key):
        pass

    def close(self):
        pass


class Overlay:
    """Each snapshot is a layer; the tree is mounted again over the layers below."""
    name, title = "overlayfs", "overlayfs remount"
    limit, why = 1, "a mount takes few hundred layers at most"

    def __init__(self, where):
        self.where, self.tree = where, os.path.join(where, "tree")
        self.layers, self.n, self.mounted = [], 0, False

    def prepare(self, source):
        if os.geteuid() != 0:
            raise Unavailable("needs root")
        os.mkdir(self.tree)
        base = os.path.join(self.where, "base")
        _run("cp", "-a", source, base)
        self.layers = [base]
        self.mount()

    def mount(self):
        self.n += 1
        self.upper = os.path.join(self.where, "u%d" % self.n)
        work = os.path.join(self.where, "w%d" % self.n)
        os.mkdir(self.upper)
        os.mkdir(work)
        data = "lowerdir=%s,upperdir=%s,workdir=%s" % (
            ":".join(reversed(self.layers)), self.upper, work)
        if _libc.mount(b"overlay", self.tree.encode(), b"overlay", 0, data.encode()) < 0:
            raise Unavailable("overlay: " + os.strerror(ctypes.get_errno()))
        self.mounted = True

    def unmount(self):
        if _libc.umount2(self.tree.encode(), 0) < 0:
            raise Unavailable("umount: " + os.strerror(ctypes.get_errno()))
        self.mounted = False

    def checkpoint(self):
        self.unmount()
        self.layers = self.layers + [self.upper]
        self.mount()
        return self.layers

    def restore(self, key):
        self.unmount()
        self.layers = key
        self.mount()

    def forget(self, key):
        # Keeps the number of layers as it was: back to the base, outside the clock.
        self.restore(self.layers[:1])

    def close(self):
        if self.mounted:
            _libc.umount2(self.tree.encode(), MNT_DETACH)


class Btrfs:
    name, title = "btrfs", "btrfs snapshot"
    limit, why = 1000, "minutes to make them"

    def __init__(self, where):
        self.where = where
        self.fs = os.path.join(where, "fs")
        self.tree = os.path.join(self.fs, "tree")
        self.n, self.mounted = 0, False

    def prepare(self, source):
        if os.geteuid() != 0:
            raise Unavailable("needs root")
        if not shutil.which("mkfs.btrfs"):
            raise Unavailable("no btrfs-progs")
        image = os.path.join(self.where, "image")
        with open(image, "wb") as f:
            f.truncate(8 << 30)
        _run("mkfs.btrfs", "-q", image)
        os.mkdir(self.fs)
        _run("mount", "-o", "loop,noatime", image, self.fs)
        self.mounted = True
        _run("btrfs", "-q", "subvolume", "create", self.tree)
        _run("cp", "-a", source + "/.", self.tree)
        _run("sync", "-f", self.fs)

    def checkpoint(self):
        self.n += 1
        to = os.path.join(self.fs, "s%d" % self.n)
        _run("btrfs", "-q", "subvolume", "snapshot", "-r", self.tree, to)
        return to

    def restore(self, key):
        _run("btrfs", "-q", "subvolume", "delete", self.tree)
        _run("btrfs", "-q", "subvolume", "snapshot", key, self.tree)

    def forget(self, key):
        pass

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.fs], stderr=subprocess.DEVNULL)


ALL = [Copy, ShadowGit, Overlay, Btrfs]
