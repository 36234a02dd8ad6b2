#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 240
"""A view among processes and mounts: links, mappings, exec, locks, events, pipes, other mounts."""
import ctypes
import errno
import fcntl
import mmap
import os
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)


def opened(t, path, flags=os.O_RDWR):
    """A descriptor that is closed before the view is unmounted."""
    fd = os.open(path, flags)
    t.clean.append(lambda: os.close(fd))
    return fd


# ---- links ----

def test_every_name_tells_the_same_link_count(t):
    v = t.view({"n0": "x", "d": None, "e/deep": None})
    names = ["n0"] + ["%s/n%d" % (d, i) for i, d in enumerate(["d", "e", "e/deep", ".", "d"], 1)]
    fd = os.open(v.at("n0"), os.O_RDONLY)

    def counts(want):
        assert os.fstat(fd).st_nlink == want
        seen = {n: os.stat(v.at(n)).st_nlink for n in names if os.path.lexists(v.at(n))}
        assert len(seen) == want and set(seen.values()) <= {want}, (want, seen)

    for i, n in enumerate(names[1:], 2):
        os.link(v.at(names[i - 2]), v.at(n))
        counts(i)
    snap = v.checkpoint()
    os.rename(v.at("d/n1"), v.at("e/deep/n1"))
    names[1] = "e/deep/n1"
    counts(6)
    os.rename(v.at("n0"), v.at("d/n5"))  # both are one file: nothing happens
    counts(6)
    for i, n in enumerate(list(names)):
        os.unlink(v.at(n))
        counts(5 - i)
    again = os.open("/proc/self/fd/%d" % fd, os.O_WRONLY)
    os.pwrite(again, b"y", 0)
    os.close(again)
    assert os.pread(fd, 9, 0) == b"y" and os.fstat(fd).st_nlink == 0
    v.restore(snap)
    assert os.fstat(fd).st_nlink in (0, 6)  # replaced or not, as a changed file it is
    names[1] = "d/n1"
    for n in names:
        assert os.stat(v.at(n)).st_nlink == 6 and v.read(n) == "x"
    os.close(fd)


def acl(group):
    """An access ACL that gives so much to the group and to one more, and to nobody else."""
    entries = [(1, 6, -1), (4, group, -1), (8, group, 100), (0x10, group, -1), (0x20, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)


def test_who_looks_during_a_change_does_not_keep_what_was_before(t):
    """Attributes are cached for ever, so an answer from before a change must not be taken after it."""
    v = t.view({"f": "x"})
    path = v.at("f")
    fd = opened(t, path)

    def allocate(k):
        PUNCH_HOLE = 3  # and keeps the size
        assert libc.fallocate(fd, PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(4096)) == 0

    def set_and_remove(k):
        os.setxattr(path, "user.b", b"1")
        os.removexattr(path, "user.b")

    changes = [
        allocate,
        set_and_remove,
        lambda k: os.setxattr(path, "user.a", b"%d" % k),
        lambda k: os.setxattr(path, "system.posix_acl_access", acl(k % 8)),
        lambda k: os.pwrite(fd, b"x", 0),
        lambda k: os.chmod(path, 0o600 + k % 8),
    ]
    for _ in range(2):
        child = os.fork()
        if child == 0:
            while True:
                os.stat(path)
        t.clean.append(lambda p=child: (os.kill(p, signal.SIGKILL), os.waitpid(p, 0)))
    for number, change in enumerate(changes):
        for _ in range(30):
            for k in range(15):
                before = time.time_ns()
                change(k)
            time.sleep(0.001)
            assert os.stat(path).st_ctime_ns >= before, "change %d is not seen" % number


def starved(t, look):
    """A process that calls look(line) for each line it is told, and hardly gets a CPU for it."""
    HOGS = 5  # with one the looker had its answer within ms, in most of the rounds
    cpu = min(os.sched_getaffinity(0))
    told, tell = os.pipe()
    hear, say = os.pipe()

    def hog():
        pass

    def look_once():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        look(os.read(told, 4096).decode())
        os.write(say, b".")

    for work in [hog] * HOGS + [look_once]:
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, {cpu})
            while True:
                work()
        t.clean.append(lambda p=child: (os.kill(p, signal.SIGKILL), os.waitpid(p, 0)))
    for fd in told, tell, hear, say:
        t.clean.append(lambda fd=fd: os.close(fd))
    return lambda line: os.write(tell, line.encode()), lambda: os.read(hear, 1)


def overtaken(t, v):
    """begin(what, *args): the daemon has answered it; taken(): the kernel has that, too."""
    AT_FDCWD, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS = -100, 0x2000, 0x7ff
    attr = ctypes.create_string_buffer(256)
    asks = {
        "look": (lambda path: libc.statx(AT_FDCWD, path.encode(), AT_STATX_FORCE_SYNC,
                                         STATX_BASIC_STATS, attr), ["GETATTR", "STATX"]),
        "chmod": (lambda path, mode: os.chmod(path, int(mode)), ["SETATTR"]),
        "link": (os.link, ["LINK"]),
    }

    def ask(line):
        what, *args = line.split("\n")
        asks[what][0](*args)

    def answered(what):
        shown = v.store.json("status", "--ops")["views"]
        return sum(shown[0]["ops"].get(op, 0) for op in asks[what][1])

    tell, taken = starved(t, ask)

    def begin(what, *args):
        seen = answered(what)
        tell("\n".join([what, *args]))
        ply.wait_for("an answer", lambda: answered(what) > seen)

    return begin, taken


def test_an_answer_that_is_taken_after_a_change_is_not_kept(t):
    """The kernel gives changes of names no date, so such an answer has to be told as too old."""
    v = t.view({"d/f": "x", "e": None})
    f = "/proc/self/fd/%d" % opened(t, v.at("d/f"))
    begin, taken = overtaken(t, v)

    def rename(k):
        names = [v.at("d/f"), v.at("e/f")]
        os.rename(names[k % 2], names[(k + 1) % 2])

    changes = {
        "a file is made": (v.at("d"), lambda k: os.mknod(v.at("d/%d" % k))),
        "a file is removed": (v.at("d"), lambda k: os.unlink(v.at("d/%d" % k))),
        "a directory is made": (v.at("d"), lambda k: os.mkdir(v.at("d/%d" % k))),
        "a directory is renamed": (v.at("e"), lambda k: os.rename(v.at("d/%d" % k), v.at("e/%d" % k))),
        "a file is renamed": (f, rename),
        "an attribute is set": (f, lambda k: os.setxattr(f, "user.a", b"%d" % k)),
    }
    kept = {}
    for name, (what, change) in changes.items():
        for k in range(2):
            os.stat(what)  # or who makes the change asks himself
            begin("look", what)
            before = time.time_ns()
            change(k)
            taken()
            if os.stat(what).st_ctime_ns < before:
                kept[name] = kept.get(name, 0) + 1
    assert not kept, kept


def test_nor_is_one_that_is_taken_after_a_mapping_was_written_back(t):
    """The kernel gives this no date either, and munmap(2) waits for nobody who sets attributes."""
    v = t.view({"f": "x"})
    f = v.at("f")
    fd = os.open(f, os.O_RDWR)
    begin, taken = overtaken(t, v)
    asks = {
        "look": lambda k: [f],
        "link": lambda k: [f, v.at("%d" % k)],
    }
    if ply.has_epochs():  # Linux before 6.16 takes what SETATTR answers whatever was since
        asks["chmod"] = lambda k: [f, "%d" % (0o600 + k)]
    maps = [mmap.mmap(fd, 1) for _ in range(3 * len(asks))]  # which asks for the size
    os.close(fd)
    kept = {}
    for what, args in asks.items():
        for k in range(3):
            os.stat(f)
            begin(what, *args(k))
            before = time.time_ns()
            with maps.pop() as m:
                m[0] = k
            taken()
            if os.stat(f).st_mtime_ns < before:
                kept[what] = kept.get(what, 0) + 1
    assert not kept, kept


def test_an_open_unlinked_file_has_no_links_whatever_is_asked_of_it(t):
    v = t.view({"f": "x", "d/g": "y"})
    fd = os.open(v.at("f"), os.O_RDWR)
    path = "/proc/self/fd/%d" % fd
    os.unlink(v.at("f"))
    for change in (lambda: os.fchmod(fd, 0o640), lambda: os.write(fd, b"zz"),
                   lambda: os.setxattr(fd, "user.a", b"1"), lambda: os.utime(fd),
                   lambda: os.ftruncate(fd, 70000), lambda: os.fsync(fd),
                   lambda: v.write("f", "another"), lambda: v.checkpoint()):
        change()
        assert os.fstat(fd).st_nlink == 0 == os.stat(path).st_nlink
    again = os.open(path, os.O_RDONLY)  # by its descriptor it can be opened
    assert os.pread(again, 3, 0) == b"zz\0" and os.getxattr(fd, "user.a") == b"1"
    # linkat(AT_SYMLINK_FOLLOW): what has lost its last name gets none again.
    assert libc.linkat(-100, path.encode(), -100, v.at("back").encode(), 0x400) == -1
    assert ctypes.get_errno() == errno.ENOENT
    os.close(again)
    os.close(fd)
    assert v.read("f") == "another"


def test_a_removed_directory_that_is_open_is_empty_and_takes_nothing(t):
    v = t.view({"d/sub/x": ""})
    os.unlink(v.at("d/sub/x"))
    fd = os.open(v.at("d/sub"), os.O_RDONLY)
    os.rmdir(v.at("d/sub"))
    assert os.fstat(fd).st_nlink == 0 and os.listdir(fd) == []
    for make in (lambda: os.mkdir("n", dir_fd=fd), lambda: os.symlink("n", "n", dir_fd=fd),
                 lambda: os.open("n", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
                 lambda: os.stat("..", dir_fd=fd) and os.stat("n", dir_fd=fd),
                 lambda: os.rename(v.at("d"), "n", dst_dir_fd=fd)):
        ply.raises(errno.ENOENT, make)
    os.close(fd)


# ---- mappings and programs ----

def test_a_shared_mapping_is_shared_between_processes(t):
    v = t.view({"f": "\0" * 8192})
    processes, rounds = 4, 2000

    def work(i):
        with open(v.at("f"), "r+b") as f, mmap.mmap(f.fileno(), 8192) as m:
            for n in range(1, rounds + 1):
                struct.pack_into("<I", m, 4 * i, n)  # its own word
                if n == rounds // 2:
                    m.flush()

    pids = [ply.child(work, i) for i in range(processes)]
    with open(v.at("f"), "r+b") as f, mmap.mmap(f.fileno(), 8192) as m:
        words = lambda: struct.unpack_from("<%dI" % processes, m)
        ply.wait_for("all words", lambda: words() == (rounds,) * processes)
        assert all(map(ply.ended_well, pids))
        assert os.pread(f.fileno(), 4, 4) == struct.pack("<I", rounds), "read(2) sees it"
        os.unlink(v.at("f"))
        pid = ply.child(lambda: m.__setitem__(slice(5000, 5003), b"new"))
        assert ply.ended_well(pid) and m[5000:5003] == b"new", "unlinked and mapped in two processes"


def test_a_private_mapping_is_private(t):
    v = t.view({"f": "a" * 5000})
    with open(v.at("f"), "r+b") as f, mmap.mmap(f.fileno(), 5000, mmap.MAP_PRIVATE) as m:
        m[0:3] = b"own"
        assert v.read("f")[:4] == "aaaa"
        os.pwrite(f.fileno(), b"b", 4500)
        assert m[0:4] == b"owna"


def test_a_mapping_beyond_the_end_is_a_bus_error(t):
    size = 3 * mmap.PAGESIZE
    v = t.view({"f": "a" * size})

    def touch():
        with open(v.at("f"), "r+b") as f, mmap.mmap(f.fileno(), size) as m:
            os.ftruncate(f.fileno(), 100)
            assert m[99:101] == b"a\0"  # the rest of the last page is zero
            m[size - 1]
    status = os.waitpid(ply.child(touch), 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS, status


def test_a_running_program_is_not_written_and_a_written_one_not_run(t):
    v = t.view({"x": ""})
    shutil.copy(os.path.realpath(shutil.which("sleep")), v.at("prog"))
    p = subprocess.Popen([v.at("prog"), "100"])
    t.clean.append(lambda: (p.kill(), p.wait()))
    ply.wait_for("exec", lambda: os.readlink("/proc/%d/exe" % p.pid) == v.at("prog"))
    ply.raises(errno.ETXTBSY, os.open, v.at("prog"), os.O_WRONLY)
    ply.raises(errno.ETXTBSY, os.truncate, v.at("prog"), 0)
    os.chmod(v.at("prog"), 0o700)
    os.rename(v.at("prog"), v.at("moved"))
    os.unlink(v.at("moved"))
    assert p.poll() is None and os.readlink("/proc/%d/exe" % p.pid).endswith("(deleted)")
    p.kill()
    p.wait()

    shutil.copy(os.path.realpath(shutil.which("true")), v.at("prog"))
    with open(v.at("prog"), "r+b"):
        ply.raises(errno.ETXTBSY, subprocess.run, [v.at("prog")])
    assert subprocess.run([v.at("prog")]).returncode == 0
    os.chmod(v.at("prog"), 0o644)
    ply.raises(errno.EACCES, subprocess.run, [v.at("prog")])
    v.write("bad", "#!%s/none\n" % v.path)
    os.chmod(v.at("bad"), 0o755)
    ply.raises(errno.ENOENT, subprocess.run, [v.at("bad")])


def test_direct_io_and_cached_io_see_each_other(t):
    v = t.view({"f": "c" * 16384})
    fd = os.open(v.at("f"), os.O_RDWR)
    direct = os.open(v.at("f"), os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)  # aligned
    with mmap.mmap(fd, 16384) as m:
        assert os.preadv(direct, [page], 4096) == 4096 and page[:] == b"c" * 4096
        page[:] = b"d" * 4096
        assert os.pwritev(direct, [page], 4096) == 4096
        assert os.pread(fd, 2, 4095) == b"cd" and m[4095:4097] == b"cd"
        os.pwrite(fd, b"w", 8000)
        m[8001:8002] = b"m"
        assert os.preadv(direct, [page], 4096) == 4096 and page[8000 - 4096:8002 - 4096] == b"wm"
    os.close(fd)
    os.close(direct)


AIO = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}  # io_setup, io_submit, io_getevents


def write_async(context, fd, page):
    """A page at 0, as libaio does."""
    _, submit, get_events = AIO[os.uname().machine]
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    iocb = ctypes.create_string_buffer(struct.pack("QIiHhIQQqQII", 0, 0, 0, 1, 0, fd, address,
                                                   len(page), 0, 0, 0, 0), 64)
    event = (ctypes.c_int64 * 4)()
    assert libc.syscall(submit, context, 1, ctypes.byref(ctypes.pointer(iocb))) == 1
    assert libc.syscall(get_events, context, 1, 1, event, None) == 1 and event[2] == len(page)


def read_until(fd, end):
    while not end[0]:
        os.pread(fd, 4096, 0)


def test_who_reads_during_an_asynchronous_direct_write_leaves_no_old_page(t):
    if os.uname().machine not in AIO:
        ply.skip("other numbers of system calls")
    v = t.view({"f": "-" * 4096})
    context = ctypes.c_ulong()
    assert libc.syscall(AIO[os.uname().machine][0], 8, ctypes.byref(context)) == 0
    direct = os.open(v.at("f"), os.O_RDWR | os.O_DIRECT)
    page, end = mmap.mmap(-1, 4096), mmap.mmap(-1, 1)
    cached = os.open(v.at("f"), os.O_RDONLY)
    for i in range(300):
        end[0] = 0
        pid = ply.child(read_until, cached, end)
        time.sleep(i % 4 / 10000)
        page[:] = bytes([i % 251 + 1]) * 4096
        write_async(context, direct, page)
        end[0] = 1
        assert ply.ended_well(pid)
        assert os.pread(cached, 4096, 0) == page[:], i
    os.close(direct)
    os.close(cached)


# ---- locks ----

def lock(fd, kind, start, length, command=fcntl.F_SETLK):
    fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def waits_for_lock(pid):
    """Until the process does."""
    ply.wait_for("somebody to wait for a lock", lambda: re.search(
        r"-> \w+ +\w+ +\w+ +%d " % pid, ply.read("/proc/locks")))


F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38


def test_posix_locks_have_ranges_wait_and_end_with_their_process(t):
    v = t.view({"f": "x" * 100})
    fd = opened(t, v.at("f"))
    ready, go = os.pipe(), os.pipe()

    def hold():
        f = os.open(v.at("f"), os.O_RDWR)
        lock(f, fcntl.F_WRLCK, 10, 10)
        lock(f, fcntl.F_RDLCK, 50, 0)
        os.write(ready[1], b"1")
        os.read(go[0], 1)

    pid = ply.child(hold)
    os.read(ready[0], 1)
    lock(fd, fcntl.F_WRLCK, 0, 10)
    lock(fd, fcntl.F_WRLCK, 20, 10)
    lock(fd, fcntl.F_RDLCK, 60, 10)
    for start, kind in ((5, fcntl.F_WRLCK), (15, fcntl.F_RDLCK), (90, fcntl.F_WRLCK)):
        ply.raises(errno.EAGAIN, lock, fd, kind, start, 10)
    got = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    kind, _, start, length, owner = struct.unpack("hhqqi4x", got)
    assert (kind, start, length, owner) == (fcntl.F_WRLCK, 10, 10, pid), "who holds it"

    waiter = ply.child(lambda: lock(os.open(v.at("f"), os.O_RDWR), fcntl.F_WRLCK, 12, 2,
                                fcntl.F_SETLKW))
    waits_for_lock(waiter)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "it waits"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ply.ended_well(waiter)
    lock(fd, fcntl.F_WRLCK, 15, 50)
    os.close(os.open(v.at("f"), os.O_RDONLY))  # closing any descriptor lets all go
    assert ply.ended_well(ply.child(lambda: lock(os.open(v.at("f"), os.O_RDWR), fcntl.F_WRLCK, 0, 0)))


def test_two_processes_that_wait_for_each_other_are_told(t):
    v = t.view({"f": "x" * 100})
    fd = opened(t, v.at("f"))
    ready = os.pipe()
    lock(fd, fcntl.F_WRLCK, 0, 1)

    def other():
        f = os.open(v.at("f"), os.O_RDWR)
        lock(f, fcntl.F_WRLCK, 1, 1)
        os.write(ready[1], b"1")
        lock(f, fcntl.F_WRLCK, 0, 1, fcntl.F_SETLKW)

    pid = ply.child(other)
    os.read(ready[0], 1)
    waits_for_lock(pid)
    ply.raises(errno.EDEADLK, lock, fd, fcntl.F_WRLCK, 1, 1, fcntl.F_SETLKW)
    lock(fd, fcntl.F_UNLCK, 0, 1)
    assert ply.ended_well(pid)


def test_locks_of_open_files_belong_to_descriptors(t):
    v = t.view({"f": "x" * 100})
    a, b = os.open(v.at("f"), os.O_RDWR), opened(t, v.at("f"))
    lock(a, fcntl.F_WRLCK, 0, 10, F_OFD_SETLK)
    ply.raises(errno.EAGAIN, lock, b, fcntl.F_WRLCK, 5, 10, F_OFD_SETLK)
    same = os.dup(a)
    os.close(a)
    ply.raises(errno.EAGAIN, lock, b, fcntl.F_WRLCK, 5, 10, F_OFD_SETLK)
    waiter = ply.child(lambda: lock(b, fcntl.F_WRLCK, 5, 10, F_OFD_SETLKW))
    os.close(same)
    os.kill(waiter, 0)
    # The child has `same`, too, until it ends: fork shares the open file. So it never gets it.
    time.sleep(0.1)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
    os.kill(waiter, signal.SIGKILL)
    os.waitpid(waiter, 0)
    lock(b, fcntl.F_WRLCK, 5, 10, F_OFD_SETLK)


def test_a_flock_is_shared_by_fork_and_waited_for(t):
    v = t.view({"f": "x"})
    a, b = opened(t, v.at("f"), os.O_RDONLY), opened(t, v.at("f"), os.O_RDONLY)
    fcntl.flock(a, fcntl.LOCK_SH)
    fcntl.flock(b, fcntl.LOCK_SH)
    ply.raises(errno.EAGAIN, fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(b, fcntl.LOCK_UN)

    def work():
        os.close(a)
        fcntl.flock(os.open(v.at("f"), os.O_RDONLY), fcntl.LOCK_EX)
    waiter = ply.child(work)
    waits_for_lock(waiter)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0)
    fcntl.flock(a, fcntl.LOCK_UN)
    assert ply.ended_well(waiter)


# ---- events, pipes ----

IN = dict(MODIFY=2, ATTRIB=4, CLOSE_WRITE=8, MOVED_FROM=0x40, MOVED_TO=0x80, CREATE=0x100,
          DELETE=0x200, DELETE_SELF=0x400)


class Watch:
    """inotify on one path."""

    def __init__(self, path):
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self.fd, os.fsencode(path), sum(IN.values())) >= 0

    def events(self):
        """What came since the last call: (kind, name), in order."""
        out = []
        while select.select([self.fd], [], [], 0.05)[0]:
            data = os.read(self.fd, 65536)
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                out += [(k, data[16:16 + size].rstrip(b"\0").decode())
                        for k, bit in IN.items() if mask & bit]
                data = data[16 + size:]
        return out


def test_inotify_tells_local_changes(t):
    v = t.view({"d/old": "1"})
    w, f = Watch(v.at("d")), Watch(v.at("d/old"))
    v.write("d/new", "2")
    assert w.events() == [("CREATE", "new"), ("MODIFY", "new"), ("CLOSE_WRITE", "new")]
    os.chmod(v.at("d/old"), 0o600)
    assert w.events() == [("ATTRIB", "old")] and f.events() == [("ATTRIB", "")]
    snap = v.checkpoint()
    os.rename(v.at("d/new"), v.at("d/newer"))
    os.mkdir(v.at("d/sub"))
    assert w.events() == [("MOVED_FROM", "new"), ("MOVED_TO", "newer"), ("CREATE", "sub")]
    with open(v.at("d/old"), "a") as out:
        out.write("more")
    os.unlink(v.at("d/old"))
    assert w.events() == [("MODIFY", "old"), ("CLOSE_WRITE", "old"), ("DELETE", "old")]
    assert ("DELETE_SELF", "") in f.events()
    # The watch is on the directory, which lives on behind a restore. Of that it tells nothing (README).
    v.restore(snap)
    assert w.events() == []
    v.write("d/again", "3")
    assert ("CREATE", "again") in w.events()


def test_sendfile_and_splice(t):
    v = t.view({"x": ""})
    data = os.urandom(3 << 20)
    v.write("f", data)
    with open(v.at("f"), "rb") as src, open(v.at("copy"), "wb") as dst:
        done = 0
        while done < len(data):
            done += os.sendfile(dst.fileno(), src.fileno(), done, len(data) - done)
    assert open(v.at("copy"), "rb").read() == data
    # Out of the view through a pipe and into it again, also with an offset.
    src, dst = os.open(v.at("f"), os.O_RDONLY), os.open(v.at("spliced"), os.O_CREAT | os.O_WRONLY)
    out, into = os.pipe()
    splice = lambda a, off_a, b, off_b, n: libc.splice(
        a, off_a and ctypes.byref(off_a), b, off_b and ctypes.byref(off_b), ctypes.c_size_t(n), 0)
    at, to = ctypes.c_int64(1000), ctypes.c_int64(5000)
    while at.value < len(data):
        n = splice(src, at, into, None, 65536)
        assert n > 0, os.strerror(ctypes.get_errno())
        while n > 0:
            m = splice(out, None, dst, to, n)
            assert m > 0, os.strerror(ctypes.get_errno())
            n -= m
    assert open(v.at("spliced"), "rb").read() == b"\0" * 5000 + data[1000:]
    for fd in (src, dst, out, into):
        os.close(fd)


# ---- other mounts ----

def mount(t, *args):
    ply.need_root()
    p = t.run(["mount", *args], check=False)
    if p.returncode:
        ply.skip("mount %s: %s" % (" ".join(args), p.stderr.strip()))
    t.clean.append(lambda: subprocess.run(["umount", args[-1]], stderr=subprocess.DEVNULL))


def overlay(t, lower, upper, work):
    where = t.at("merged")
    os.mkdir(where)
    mount(t, "-t", "overlay", "overlay", "-o",
          "lowerdir=%s,upperdir=%s,workdir=%s" % (lower, upper, work), where)
    return where


def use_overlay(top):
    """What a container's build does to its root."""
    os.chmod(os.path.join(top, "a"), 0o600)
    with open(os.path.join(top, "d/b"), "a") as f:
        f.write(" and more")
    os.unlink(os.path.join(top, "gone"))
    shutil.rmtree(os.path.join(top, "tree"))
    os.mkdir(os.path.join(top, "tree"))  # opaque
    ply.write(os.path.join(top, "tree/only"), "this")
    os.rename(os.path.join(top, "a"), os.path.join(top, "moved"))
    os.link(os.path.join(top, "moved"), os.path.join(top, "linked"))
    os.setxattr(os.path.join(top, "d"), "user.kept", b"1")
    os.symlink("d/b", os.path.join(top, "link"))


def check_overlay(top):
    assert sorted(os.listdir(top)) == ["d", "link", "linked", "moved", "tree"], os.listdir(top)
    assert ply.read(os.path.join(top, "link")) == "2 and more"
    assert os.listdir(os.path.join(top, "tree")) == ["only"]
    assert os.stat(os.path.join(top, "linked")).st_mode & 0o777 == 0o600
    assert os.getxattr(os.path.join(top, "d"), "user.kept") == b"1"


LOWER = {"a": "1", "d/b": "2", "gone": "3", "tree/x/y": "4"}


def test_an_overlay_over_a_view(t):
    ply.need_root()
    v = t.view({"lower/" + k: x for k, x in LOWER.items()})
    os.mkdir(t.at("upper"))
    os.mkdir(t.at("work"))
    before = v.digest()
    top = overlay(t, v.at("lower"), t.at("upper"), t.at("work"))
    use_overlay(top)
    check_overlay(top)
    assert v.digest() == before
    t.run(["umount", top])


def test_an_overlay_that_writes_into_a_view(t):
    ply.need_root()
    v = t.view({"upper": None, "work": None})
    top = overlay(t, ply.make_tree(t.at("lower"), LOWER), v.at("upper"), v.at("work"))
    use_overlay(top)
    check_overlay(top)
    t.run(["umount", top])
    # What it keeps there (whiteouts, opaque directories) is in snapshots like everything.
    snap = v.checkpoint()
    shutil.rmtree(v.at("upper"))
    os.mkdir(v.at("upper"))
    v.restore(snap)
    os.rmdir(top)
    check_overlay(overlay(t, t.at("lower"), v.at("upper"), v.at("work")))
    t.run(["umount", top])


def test_an_overlay_with_both_sides_in_one_view(t):
    ply.need_root()
    v = t.view(dict({"lower/" + k: x for k, x in LOWER.items()}, upper=None, work=None))
    top = overlay(t, v.at("lower"), v.at("upper"), v.at("work"))
    use_overlay(top)
    check_overlay(top)
    t.run(["umount", top])


def test_bind_mounts_of_and_in_a_view(t):
    ply.need_root()
    v = t.view({"d/f": "1", "e": None})
    os.mkdir(t.at("outside"))
    ply.write(t.at("other/g"), "2")
    mount(t, "--bind", v.at("d"), t.at("outside"))
    ply.write(t.at("outside/new"), "3")
    assert v.read("d/new") == "3"
    ply.raises(errno.EXDEV, os.link, v.at("d/f"), t.at("outside/linked"))
    ply.raises(errno.EXDEV, os.rename, v.at("d/f"), t.at("outside/moved"))
    mount(t, "--bind", t.at("other"), v.at("e"))
    assert v.read("e/g") == "2"
    ply.raises(errno.EBUSY, os.rmdir, v.at("e"))
    snap = v.checkpoint()
    v.write("d/new", "4")
    v.restore(snap)
    assert ply.read(t.at("outside/new")) == "3", "a bind mount follows a restore"
    assert v.read("e/g") == "2", "a mount inside survives one"
    t.run(["umount", v.at("e")])
    assert v.ls("e") == []
    t.run(["mount", "-o", "remount,bind,ro", t.at("outside")])
    ply.raises(errno.EROFS, ply.write, t.at("outside/x"), "")
    v.write("d/x", "writable here")
    t.run(["umount", t.at("outside")])


def test_setuid_programs_and_devices_count_only_when_asked(t):
    ply.need_root()
    store = t.store()
    store.import_(t.tree({}))
    os.chmod(t.path, 0o755)

    def judge(*options):
        """The user that a setuid program of root's becomes, and whether a device opens."""
        v = store.mount(None, None, None, *options)
        shutil.copy(shutil.which("id"), v.at("id"))
        os.chmod(v.at("id"), 0o4755)
        if not os.path.exists(v.at("null")):
            os.mknod(v.at("null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
        user = t.run([v.at("id"), "-u"], user=65534, group=65534, extra_groups=[], cwd="/").stdout
        opens = t.run(["sh", "-c", ": >>'%s'" % v.at("null")], check=False).returncode == 0
        # A remount keeps what it was mounted with.
        for to in ("ro", "rw"):
            t.run([ply.PLYFS, "plyfs", v.path, "-o", "remount," + to])
        again = t.run([v.at("id"), "-u"], user=65534, group=65534, extra_groups=[], cwd="/").stdout
        assert again == user
        v.unmount()
        return int(user), opens

    assert judge() == (65534, False)
    assert judge("--suid") == (0, False)
    assert judge("--suid", "--dev") == (0, True)


def test_remounting_read_only_and_back(t):
    ply.need_root()
    v = t.view({"f": "1"})

    def remount(options, code=0):
        # As mount(8) does it through mount.fuse(8), which seeks an installed plyfs.
        p = t.run([ply.PLYFS, "plyfs", v.path, "-o", "nosuid,nodev,noatime,user_id=0," + options],
                  check=False)
        assert p.returncode == code, p.stderr
        return p.stderr

    with open(v.at("f"), "a"):
        assert "open for writing" in remount("remount,ro", 1)
    remount("ro,remount")
    ply.raises(errno.EROFS, v.write, "g", "")
    ply.raises(errno.EROFS, os.chmod, v.at("f"), 0)
    assert v.read("f") == "1"
    remount("remount,rw")
    v.write("f", "2")
    # Without a helper mount(8) asks the kernel itself.
    # By mount(2): what util-linux 2.39 and newer take first allows a FUSE filesystem no change.
    t.env["LIBMOUNT_FORCE_MOUNT2"] = "always"
    t.run(["mount", "-i", "-o", "remount,ro", v.path])
    ply.raises(errno.EROFS, v.write, "g", "")
    t.run(["mount", "-i", "-o", "remount,rw", v.path])
    with open("/proc/self/mountinfo") as f:
        line = next(x for x in f if " %s " % v.path in x)
    assert " rw,nosuid,nodev,noatime " in line, line
    assert v.read("f") == "2" and os.stat(v.at("f")).st_nlink == 1
    assert "plyfs mount" in remount("rw", 1)


if __name__ == "__main__":
    ply.main()
