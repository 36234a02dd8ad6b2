# SPDX-License-Identifier: Apache-2.0
"""
Where the work of `bench view` is done, one directory each, all on the same underlying filesystem:

    start()     makes the place; self.dir is an empty directory to work in. Unavailable: says why
    settle()    after a run: what the place still has to do for it, so that the next run of another
                place does not pay for it
    begin()     right before a run, outside the clock
    plyfs()     the program, in a view of plyfs; None elsewhere
    requests()  {name: count} that the kernel has sent so far; None where nobody counts
    pid()       of its daemon; None where there is none
    close()

Daemons have a session of their own, as plyfsd makes itself one: where others want the CPU too, the
scheduler gives each session its share, and within one the answer comes sooner.

plyfs has the user's defaults. The floor (floor.c) is what any FUSE filesystem with its flags can
reach; it keeps everything in memory, so it owes nothing to fsync.
"""
import json
import os
import shutil
import socket
import subprocess

import snapshot
from rivals import Unavailable

HERE = os.path.dirname(os.path.realpath(__file__))


def need_root():
    if os.geteuid() != 0:
        raise Unavailable("mounting it needs root")


class Underlying:
    name = "disk"

    def __init__(self, where):
        self.where, self.dir = where, os.path.join(where, "dir")
        p = subprocess.run(["stat", "-f", "-c", "%T", where], stdout=subprocess.PIPE, text=True)
        kind = p.stdout.strip() or "disk"
        self.title = "ext4" if kind == "ext2/ext3" else kind  # they have one magic number

    def start(self):
        os.mkdir(self.dir)

    def settle(self):
        pass

    def begin(self):
        pass

    def plyfs(self):
        return None

    def requests(self):
        return None

    def pid(self):
        return None

    def close(self):
        pass

    def mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.dir for line in f)

    def unmount(self):
        if not os.path.isdir(self.dir) or not self.mounted():
            return
        for command in (["umount", self.dir], ["fusermount3", "-u", self.dir],
                        ["umount", "-l", self.dir]):
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
                return


    def end(self, process):
        """Unmounts, and sees the daemon go: somebody who looks at all mounts may hold this one."""
        self.unmount()
        if not process:
            return
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Overlay(Underlying):
    name = "overlayfs"

    def __init__(self, where):
        super().__init__(where)
        self.title = "overlayfs"

    def layers(self):
        for d in ("lower", "upper", "work", "dir"):
            os.mkdir(os.path.join(self.where, d))
        return "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work".format(self.where)

    def start(self):
        need_root()
        p = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", self.layers(), self.dir],
                           stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise Unavailable(p.stderr.strip())

    def close(self):
        self.unmount()


class FuseOverlay(Overlay):
    name = "fuse-overlayfs"

    def __init__(self, where):
        super().__init__(where)
        self.title, self.process = "fuse-ovl", None

    def start(self):
        if not shutil.which("fuse-overlayfs"):
            raise Unavailable("not installed: apt-get install fuse-overlayfs")
        self.process = subprocess.Popen(
            ["fuse-overlayfs", "-f", "-o", self.layers(), self.dir], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while not self.mounted():
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise Unavailable(self.process.stderr.read().strip() or "it ended at once")

    def pid(self):
        return self.process.pid

    def close(self):
        self.end(self.process)


def fuse_mount(at):
    """A mounted /dev/fuse descriptor, with the options of `plyfs mount` (tools/fuse_mount.c)."""
    ours, theirs = socket.socketpair()
    options = "default_permissions,noatime,nosuid,nodev"
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        p = subprocess.run(
            ["fusermount3", "-o", options + (",allow_other" if os.geteuid() == 0 else ""),
             "--", at], env=dict(os.environ, _FUSE_COMMFD=str(theirs.fileno())),
            pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise Unavailable("fusermount3: " + p.stderr.strip())
        return socket.recv_fds(ours, 1, 1)[1][0]


class Floor(Underlying):
    name = "floor"

    def __init__(self, where):
        super().__init__(where)
        self.title, self.process = "floor", None

    def start(self):
        os.mkdir(self.dir)
        fd = fuse_mount(self.dir)
        self.process = subprocess.Popen([os.path.join(HERE, "floor"), str(fd)], pass_fds=[fd],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)
        os.close(fd)
        if os.geteuid() == 0:  # as `plyfs mount` does
            dev = os.stat(self.dir).st_dev
            with open("/sys/class/bdi/%d:%d/read_ahead_kb" % (os.major(dev), os.minor(dev)),
                      "w") as f:
                f.write("1024")

    def requests(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def pid(self):
        return self.process.pid

    def close(self):
        self.end(self.process)


class Plyfs(Underlying):
    name, options = "plyfs", ()

    def __init__(self, where):
        super().__init__(where)
        self.title = self.name
        self.program = snapshot.Plyfs(where)
        self.dir = self.program.view

    def start(self):
        empty = os.path.join(self.where, "empty")
        os.mkdir(empty)
        self.program.start(empty, *self.options)

    def settle(self):
        # Hashed, packed and durable; fsync alone would leave the first two for later.
        self.program.run("drop", self.program.run("checkpoint", "--sync", self.dir))

    def plyfs(self):
        return self.program.plyfs

    def requests(self):
        return self.program.ops()

    def pid(self):
        return self.program.pid()

    def close(self):
        self.program.close()


class Behind(Plyfs):
    """Many snapshots came before, the last one right before each run."""
    name, many = "behind", 1000

    def start(self):
        super().start()
        self.title = "%dk behind" % (self.many // 1000)
        with open(os.path.join(self.dir, "edited"), "w"):
            pass
        self.program.watch("behind", self.many, self.dir, "edited")

    def begin(self):
        self.program.run("checkpoint", self.dir)


class Restored(Plyfs):
    """Each run comes right after a restore, as a step of an agent that went wrong is undone."""
    name, edited = "restored", 10

    def start(self):
        super().start()
        os.mkdir(os.path.join(self.dir, "edited"))

    def begin(self):
        before = self.program.run("checkpoint", self.dir)
        for i in range(self.edited):
            with open(os.path.join(self.dir, "edited", str(i)), "w") as f:
                f.write("went wrong\n")
        self.program.run("restore", before, self.dir)


class IoUring(Plyfs):
    name, options = "io_uring", ("--io-uring",)


class Journalless(Plyfs):
    """Nothing that was answered outlives this daemon, but for what was saved (store/README.md)."""
    name = "journalless"

    def __init__(self, where):
        super().__init__(where)
        self.title = "no journal"
        self.program.env["PLYFSD_JOURNAL_OFF"] = "1"

    def start(self):
        super().start()
        if self.program.status()["sizes"]["journal_bytes"]:
            raise RuntimeError("PLYFSD_JOURNAL_OFF is without effect: there is a journal")


ALL = [Plyfs, Underlying, Overlay, FuseOverlay, Floor]
URING = [IoUring] + ALL
# Ours beside ours: what is in times of the first, and the most that is wanted of it.
BESIDE = {
    "history": ([Plyfs, Behind, Restored], 1.1),
    "journal": ([Journalless, Plyfs], 1.1),
}
