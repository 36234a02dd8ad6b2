#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 180
"""
In the daemon one call of the C library after the other fails, whoever makes it, while it handles a
request of the kernel: who called gets an error and nothing was done, or it was done; the same call
succeeds the next time; the store holds what the view showed.
"""
import contextlib
import ctypes
import errno
import hashlib
import os
import random
import stat
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

# What was injected, as the kernel hands it on.
ERRORS = {errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EAGAIN}
PATIENCE = 60
BIG = random.Random(1).randbytes(600000)
libc = ctypes.CDLL(None, use_errno=True)


def call(fn, *args):
    if fn(*args) < 0:
        raise OSError(ctypes.get_errno(), fn.__name__)


def rename2(a, b, flags):
    call(libc.renameat2, -100, os.fsencode(a), -100, os.fsencode(b), flags)


def fallocate(fd, mode, off, n):
    call(libc.fallocate, fd, mode, ctypes.c_long(off), ctypes.c_long(n))


# ---- one call each: OP(w, opened) prepares and returns what is called; w(name) is a path ----

OPS = {}


def op(f):
    OPS[f.__name__] = f
    return f


def opened(stack, path, flags=os.O_RDWR):
    fd = os.open(path, flags)
    stack.callback(os.close, fd)
    return fd


def uncached(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return fd


def opens(path, flags):
    return lambda w, s: lambda: os.close(os.open(w(path), flags, 0o640))


OPS.update({
    "create": opens("new", os.O_CREAT | os.O_EXCL | os.O_RDWR),
    "tmpfile": opens("dir", os.O_TMPFILE | os.O_RDWR),
    "truncating_open": opens("big", os.O_TRUNC | os.O_WRONLY),
    "lookup": lambda w, s: lambda: os.stat(w("dir/f7")).st_size,
    "lookup_nothing": lambda w, s: lambda: os.path.lexists(w("dir/no")),
    "readlink": lambda w, s: lambda: os.readlink(w("sym")),
    "list": lambda w, s: lambda: sorted(os.listdir(w("dir"))),
    "list_long": lambda w, s: lambda: [(e.name, e.stat(follow_symlinks=False).st_size) for e in
                                       sorted(os.scandir(w("dir")), key=lambda e: e.name)],
    "mkdir": lambda w, s: lambda: os.mkdir(w("new"), 0o750),
    "rmdir": lambda w, s: lambda: os.rmdir(w("empty")),
    "mknod": lambda w, s: lambda: os.mkfifo(w("new"), 0o600),
    "symlink": lambda w, s: lambda: os.symlink("t" * 900, w("new")),
    "link": lambda w, s: lambda: os.link(w("small"), w("dir/new")),
    "unlink": lambda w, s: lambda: os.unlink(w("big")),
    "unlink_of_two": lambda w, s: lambda: os.unlink(w("two")),
    "rename": lambda w, s: lambda: os.rename(w("big"), w("dir/new")),
    "rename_over": lambda w, s: lambda: os.rename(w("small"), w("big")),
    "rename_dir": lambda w, s: lambda: os.rename(w("dir"), w("empty/dir")),
    "exchange": lambda w, s: lambda: rename2(w("small"), w("dir"), 2),
    "chmod": lambda w, s: lambda: os.chmod(w("small"), 0o600),
    "chown": lambda w, s: lambda: os.chown(w("small"), os.getuid(), os.getgid()),
    "utimens": lambda w, s: lambda: os.utime(w("small"), ns=(1, 2)),
    "truncate": lambda w, s: lambda: os.truncate(w("big"), 12345),
    "extend": lambda w, s: lambda: os.truncate(w("small"), 1 << 30),
    "setxattr": lambda w, s: lambda: os.setxattr(w("small"), "user.new", b"v" * 10),
    "setxattr_large": lambda w, s: lambda: os.setxattr(w("small"), "user.new", b"v" * 30000),
    "setxattr_again": lambda w, s: lambda: os.setxattr(w("small"), "user.x", b"other"),
    "setfacl": lambda w, s: lambda: os.setxattr(
        w("small"), "system.posix_acl_access", struct.pack("<I" + "HHI" * 5, 2,
        1, 6, 0xffffffff, 2, 4, 7, 4, 4, 0xffffffff, 16, 6, 0xffffffff, 32, 0, 0xffffffff)),
    "getxattr": lambda w, s: lambda: os.getxattr(w("small"), "user.x"),
    "listxattr": lambda w, s: lambda: os.listxattr(w("small")),
    "removexattr": lambda w, s: lambda: os.removexattr(w("small"), "user.x"),
    "statfs": lambda w, s: lambda: os.statvfs(w("")).f_namemax,
})


@op
def read_small(w, s):
    fd = uncached(opened(s, w("small")))
    return lambda: os.pread(fd, 100, 0)


@op
def read_large(w, s):
    fd = uncached(opened(s, w("big")))
    return lambda: os.pread(fd, len(BIG) + 1, 0) == BIG


@op
def write_small(w, s):
    fd = opened(s, w("small"))
    return lambda: os.pwrite(fd, b"new", 1)


@op
def write_large(w, s):
    fd = opened(s, w("small"))
    return lambda: os.pwrite(fd, BIG[1:], 3)


@op
def write_into_large(w, s):
    fd = opened(s, w("big"))
    return lambda: os.pwrite(fd, b"new", 300001)


@op
def append(w, s):
    fd = opened(s, w("small"), os.O_WRONLY | os.O_APPEND)
    return lambda: os.write(fd, b"new" * 3000)


@op
def fsync(w, s):
    fd = opened(s, w("small"))
    os.pwrite(fd, b"n", 0)
    return lambda: os.fsync(fd)


@op
def fsync_of_a_directory(w, s):
    fd = opened(s, w("dir"), os.O_RDONLY)
    os.utime(fd, ns=(5, 6))
    return lambda: os.fsync(fd)


@op
def allocate(w, s):
    fd = opened(s, w("small"))
    return lambda: fallocate(fd, 0, 0, 50000)


@op
def punch(w, s):
    fd = opened(s, w("big"))
    return lambda: fallocate(fd, 3, 5000, 300000)


@op
def zero(w, s):
    fd = opened(s, w("big"))
    return lambda: fallocate(fd, 16, 5000, 300000)


@op
def copy_range(w, s):
    a, b = opened(s, w("big")), opened(s, w("small"))

    def all_of_it():
        n = 0
        while n < 500000:
            n += os.copy_file_range(a, b, 500000 - n, 4096 + n, n)
        return n
    return all_of_it


@op
def seek_hole(w, s):
    fd = opened(s, w("big"))
    return lambda: os.lseek(fd, 0, os.SEEK_HOLE)


@op
def link_of_a_tmpfile(w, s):
    fd = opened(s, w("dir"), os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"temporary")
    return lambda: call(libc.linkat, -100, b"/proc/self/fd/%d" % fd, -100, os.fsencode(w("new")),
                        0x400)


@op
def checkpoint(w, s):
    fd = opened(s, w("dir"), os.O_RDONLY)
    os.utime(w("dir/f1"), ns=(7, 8))
    return lambda: len(ply.ioctl_checkpoint(fd, "a label"))


@op
def checkpoint_sync(w, s):
    fd = opened(s, w("dir"), os.O_RDONLY)
    os.utime(w("dir/f1"), ns=(7, 8))
    return lambda: len(ply.ioctl_checkpoint(fd, "a label", ply.CHECKPOINT_SYNC))


@op
def restore(w, s):
    fd = opened(s, w(""), os.O_RDONLY)
    return lambda: ply.ioctl_restore(fd, "@other")["id"]


@op
def undo(w, s):
    fd = opened(s, w(""), os.O_RDONLY)
    ply.ioctl_restore(fd, "@other")
    return lambda: ply.ioctl_undo(fd)["mode"] in (0, 1)


forks = 0


@op
def fork(w, s):
    global forks
    forks += 1
    fd, name = opened(s, w("dir"), os.O_RDONLY), "fork%d" % forks
    return lambda: ply.ioctl_fork(fd, name)


@op
def info(w, s):
    fd = opened(s, w("dir"), os.O_RDONLY)
    return lambda: ply.ioctl_info(fd)["branch"]


# ---- what is seen ----

def look(top):
    found = {}

    def one(path, name):
        st = os.lstat(path)
        if name.startswith("/dir/f"):
            found[name] = (st.st_size, st.st_mtime_ns)  # there to be listed; judged() reads them
            return
        what = ""
        if stat.S_ISREG(st.st_mode):
            with open(path, "rb") as f:
                what = "sparse" if st.st_size > 1 << 28 else hashlib.md5(f.read()).hexdigest()
        elif stat.S_ISLNK(st.st_mode):
            what = os.readlink(path)
        elif stat.S_ISDIR(st.st_mode):
            what = sorted(os.listdir(path))
            for sub in what:
                one(os.path.join(path, sub), name + "/" + sub)
        xattrs = [(x, os.getxattr(path, x, follow_symlinks=False))
                  for x in sorted(os.listxattr(path, follow_symlinks=False))]
        found[name] = (st.st_mode, st.st_nlink, st.st_uid, st.st_gid,
                       0 if stat.S_ISDIR(st.st_mode) else st.st_size, what, xattrs, st.st_mtime_ns)

    one(top, "")
    return found


def relative(state, base):
    """Times that are not the base's are the call's own."""
    return {name: v[:-1] + (name in base and base[name][-1] == v[-1],)
            for name, v in state.items()}


def difference(a, b):
    return "\n".join("%r: %.300r, wanted %.300r" % (k, a.get(k), b.get(k))
                     for k in sorted({*a, *b}) if a.get(k) != b.get(k))


class Watch:
    """A request that gets no answer ends with its mount, and is told."""

    def __init__(self, path):
        self.abort = "/sys/fs/fuse/connections/%d/abort" % os.stat(path).st_dev
        self.hung = False

    def over(self):
        self.hung = True
        ply.write(self.abort, "1")

    @contextlib.contextmanager
    def patience(self):
        timer = threading.Timer(PATIENCE, self.over)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        assert not self.hung, "no answer for %d s" % PATIENCE


def made(t, *more):
    """A view of base, and snapshots base and other."""
    os.makedirs(t.at("source/empty"))
    ply.make_tree(t.at("source"), {"small": "content", "one": "linked", "big": BIG, **{
        "dir/f%d" % i: "x" * i for i in range(90)}})
    os.link(t.at("source/one"), t.at("source/two"))
    os.symlink("small", t.at("source/sym"))
    os.setxattr(t.at("source/small"), "user.x", b"value")
    store = t.store()
    store.import_(t.at("source"))
    view = store.mount(None, None, t.at("view"), *more)
    base = view.checkpoint("base")
    for name in ("big", "dir/f3", "sym"):
        os.unlink(view.at(name))
    view.write("small", "other")
    os.chmod(view.at("dir"), 0o700)
    view.write("dir/later", "1")
    view.checkpoint("other")
    view.restore(base)
    return view, base


def mounted_again(view, more=()):
    view.unmount()
    view.store.stop()
    view.store.mount(None, None, view.path, *more)


class Try:
    """
    An operation from base on, while its n-th call fails. asks: the kernel asks for more before and
    after it, as for attributes.
    """

    def __init__(self, view, base, faults, name, n, cold, asks):
        error = (errno.EIO, errno.ENOSPC)[n % 2]
        watch = Watch(view.path)
        self.asks = asks
        self.failed = self.result = self.again = None
        if view.info()["changes"] or view.info()["head"] != base:
            view.restore(base)
        if cold:
            mounted_again(view)
            watch = Watch(view.path)
        with contextlib.ExitStack() as stack, watch.patience():
            act = OPS[name](view.at, stack)
            self.before = cold or look(view.path)
            with faults.armed(n, error, where=faults.IN_REQUESTS):
                try:
                    self.result = act()
                except OSError as e:
                    self.failed = e
            self.told = "%s, call %d (%s): %s" % (
                name, n, faults.what, self.failed or repr(self.result)[:80])
            self.seen = self.last = look(view.path)
            if self.failed:
                try:
                    self.result = act()
                except OSError as e:
                    self.again = e
                self.last = look(view.path)
        self.after = relative(self.last, self.before)

    def check(self, calm):
        if self.failed:
            assert self.failed.errno in ERRORS, self.told
            if self.asks and relative(self.seen, self.before) == calm.after:
                return  # done, and what was asked for then failed
            assert not self.again, "%s; then %s" % (self.told, self.again)
            assert self.seen == self.before, \
                self.told + "\n" + difference(self.seen, self.before)
        assert self.result == calm.result, \
            "%s: %.200r, not %.200r" % (self.told, self.result, calm.result)
        assert self.after == calm.after, self.told + "\n" + difference(self.after, calm.after)


def all_of(t, rng, names, *more, cold=False, some):
    faults = ply.Faults(t)
    view, base = made(t, *more)
    state = look(view.path)
    wrong, told = [], []
    for name in names:
        calm = Try(view, base, faults, name, -1, cold and state, cold or bool(more))
        calls = faults.ticks
        assert not calm.failed, calm.told
        told.append("%s %d" % (name, calls))
        for n in range(calls) if ply.LONG else sorted(rng.sample(range(calls), min(calls, some))):
            try:
                Try(view, base, faults, name, n, cold and state, cold or bool(more)).check(calm)
            except AssertionError as e:
                wrong.append(str(e))
    print("# calls: " + ", ".join(told))
    print("# " + faults.told())
    assert not wrong, "\n".join(wrong)
    judged(view)


def judged(view):
    """The daemon is the same, and the store holds what the view shows, also after a kill."""
    store = view.store
    status = store.status()
    assert status["daemon"]["deaths"] == 0 and not status["sizes"]["failed"], store.log_tail()
    digest = view.digest()
    store.ply("check", "--read-data")
    mounted_again(view)
    assert view.digest() == digest
    store.ply("check", "--read-data")


def test_a_call_is_done_or_is_an_error(t):
    all_of(t, ply.seeded(), OPS, some=5)


def test_the_same_when_the_kernel_keeps_nothing(t):
    rng = ply.seeded()
    all_of(t, rng, OPS if ply.LONG else rng.sample([*OPS], 15), "--without", "cache", some=3)


def test_the_same_when_nothing_is_in_memory(t):
    rng = ply.seeded()
    names = ("lookup", "lookup_nothing", "readlink", "list", "list_long", "read_small",
             "read_large", "create", "unlink", "unlink_of_two", "rename_over", "setxattr", "getxattr", "truncate",
             "write_into_large", "punch", "copy_range", "restore", "fork")
    all_of(t, rng, names if ply.LONG else rng.sample(names, 8), cold=True, some=2)


if __name__ == "__main__":
    ply.main(__name__)
