#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: crash
# timeout: 240
"""
A mount outlives its daemon: what processes in it have (working directories, descriptors, mappings,
shells) goes on, what they ask for while it is down is done once; a daemon that keeps dying, and one that
is replaced. Restores and checkpoints are in supervisor_restores.py.
"""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
from deaths import Killer, kill, over, seed_of_run, supervised

def few_open_files(t, count):
    """The soft limit, which a program may raise, as the daemon does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    t.clean.append(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))


def forget_pages(path):
    """What is read next comes from the daemon."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_children(count, work):
    """work(i) in processes of their own, which all must end well."""
    return [ply.child(work, i) for i in range(count)]


def all_ended_well(pids):
    for pid in pids:
        assert ply.ended_well(pid), "a child failed"


# ---- what processes have ----

def test_a_shell_keeps_its_working_directory(t):
    view = supervised(t)
    sh = subprocess.Popen(["sh"], cwd=view.at("dir/sub"), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, bufsize=1, env=t.env)
    t.clean.append(lambda: (sh.kill(), sh.wait()))

    def ask(command):
        sh.stdin.write(command + "\n")
        return sh.stdout.readline().strip()

    for i in range(3):
        kill(view)
        assert ask("cat c.txt") == "three"
        assert ask("/bin/pwd -P") == view.at("dir/sub")
        assert ask("echo %d > new; cat new" % i) == str(i)
    kill(view)
    os.rename(view.at("dir"), view.at("moved"))
    kill(view)
    assert ask("/bin/pwd -P") == view.at("moved/sub")
    sh.stdin.close()
    sh.wait()


def test_an_open_unlinked_file_stays_until_it_is_closed(t):
    view = supervised(t)
    data = os.urandom(300000)
    with open(view.at("gone"), "w+b") as f, open(view.at("tmp"), "wb") as other:
        f.write(data)
        f.flush()
        os.unlink(view.at("gone"))
        other.close()
        os.unlink(view.at("tmp"))
        kill(view)
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(0)
        assert f.read() == data
        assert os.fstat(f.fileno()).st_nlink == 0
        f.write(b"more")
        f.flush()
        kill(view)
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(0)
        assert f.read() == data + b"more"
        # The root, two directories, three files, and it; the other one when the kernel has told of its end.
        ply.wait_for("it alone", lambda: view.inodes() == 7)
    ply.wait_for("its end", lambda: view.inodes() == 6)
    kill(view)
    assert view.inodes() == 6
    view.store.ply("check", "--read-data")


def test_a_mapping_goes_on(t):
    view = supervised(t)
    view.write("m", b"\0" * 65536)
    with open(view.at("m"), "r+b") as f, mmap.mmap(f.fileno(), 65536) as m:
        for i in range(4):
            m[i * 5000:i * 5000 + 4] = b"%04d" % i
            kill(view)
            m[40000 + i] = 65 + i
            m.flush()
    forget_pages(view.at("m"))
    got = open(view.at("m"), "rb").read()
    assert [got[i * 5000:i * 5000 + 4] for i in range(4)] == [b"%04d" % i for i in range(4)]
    assert got[40000:40004] == b"ABCD"


def test_locks_and_a_listing_half_read_go_on(t):
    view = supervised(t)
    ply.make_tree(view.path, {"many/f%04d" % i: "" for i in range(1500)})
    with open(view.at("a.txt")) as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        names = []
        with os.scandir(view.at("many")) as entries:
            for n, e in enumerate(entries):
                names.append(e.name)
                if n in (10, 700):
                    kill(view)
        assert sorted(names) == ["f%04d" % i for i in range(1500)]
        with open(view.at("a.txt")) as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                assert False, "the lock has gone"
            except BlockingIOError:
                pass


def test_tail_follows(t):
    view = supervised(t)
    view.write("log", "begin\n")
    tail = subprocess.Popen(["tail", "-n", "+1", "-f", view.at("log")], stdout=subprocess.PIPE,
                            text=True, env=t.env)
    t.clean.append(lambda: (tail.kill(), tail.wait()))
    assert tail.stdout.readline() == "begin\n"
    for i in range(3):
        kill(view)
        with open(view.at("log"), "a") as f:
            f.write("line %d\n" % i)
        assert tail.stdout.readline() == "line %d\n" % i


def test_what_the_kernel_has_cached_is_what_the_next_daemon_has(t):
    view = supervised(t)
    os.symlink("a.txt", view.at("link"))
    os.setxattr(view.at("a.txt"), "user.x", b"y")
    before = ply.treelist(view.path)
    kill(view)
    assert ply.treelist(view.path) == before
    inos = {n: os.stat(view.at(n)).st_ino for n in ("a.txt", "dir", "dir/b.txt")}
    kill(view)
    if os.geteuid() == 0:
        ply.drop_caches()
    assert ply.treelist(view.path) == before
    assert inos == {n: os.stat(view.at(n)).st_ino for n in inos}


def test_a_daemon_that_dies_while_it_writes_into_its_own_view_is_followed(t):
    """Its last thread waits for an answer of its own: an export into the view, an import from it."""
    view = supervised(t, ply.make_bulk(t.at("source"), 1500, size=6000))
    store = view.store
    snap = view.checkpoint()
    for n in range(6):
        out = view.at("out%d" % n)
        argv = ["export", snap, "--dir", out] if n % 3 else ["import", "--branch", "b%d" % n, view.path]
        p = subprocess.Popen([ply.PLYFS, *argv], env=dict(t.env, PLYFS_STORE=store.path), cwd=t.path,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        t.clean.append(lambda p=p: (p.kill(), p.wait()))
        time.sleep(0.03 * (n + 1))
        kill(view)
        assert p.wait(60) in (0, 1)
        view.write("n", str(n))
    kill(view)
    assert view.read("n") == "5"
    assert ply.treedigest(view.at("d000")) == ply.treedigest(t.at("source/d000"))
    store.ply("check", "--read-data")


# ---- done once ----

def ask(path, large):
    """One request, which the kernel cannot answer; large: others, and one with data."""
    if large:
        with open(path, "r+b", buffering=0) as f:
            assert f.write(b"x" * 300000) == 300000
    else:
        ply.raises(errno.ENODATA, os.getxattr, path, "user.none")


@contextlib.contextmanager
def before_all_of(pid):
    """Threads of this process run, and none of that one, which has to wait for the same CPU."""
    cpus, cpu = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}
    for tid in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(tid), cpu)
            os.sched_setscheduler(int(tid), os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, cpu)
    with contextlib.suppress(PermissionError):  # then this one goes first mostly
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)


def test_a_request_that_comes_as_the_daemon_dies_is_answered(t):
    """
    The reader is woken for it and killed before it has a CPU, so it reads it as a dead man, for whom
    no page is made writable; those of a slot are not once the disk has them.
    """
    view = supervised(t, {"f": "x"})
    begun = mmap.mmap(-1, 1)

    def client(large):
        begun[0] = 1
        ask(view.at("f"), large)

    for n in range(8):
        for _ in range(10):
            ask(view.at("f"), n % 2)
        time.sleep(0.05)  # the reader sleeps
        with contextlib.suppress(FileNotFoundError):  # there are no slots on this filesystem
            with open(os.path.join(view.store.path, "stage", "behind"), "rb") as f:
                os.fsync(f.fileno())
        pid, begun[0] = view.store.daemon(), 0
        with before_all_of(pid):
            child = ply.child(client, n % 3 == 2)
            while not begun[0] or ply.read("/proc/%d/stat" % child).rsplit(")", 1)[1].split()[0] == "R":
                os.sched_yield()
            os.kill(pid, signal.SIGKILL)
        assert ply.ended_well(child), "request %d failed" % n
        os.statvfs(view.path)


def test_appends_are_neither_lost_nor_doubled(t):
    view, seed = supervised(t), seed_of_run()
    view.write("log", "")

    def append(i):
        fd = os.open(view.at("log"), os.O_WRONLY | os.O_APPEND)
        for n in range(400):
            line = b"%d %d %s\n" % (i, n, b"x" * (n * 7 % 900))
            assert os.write(fd, line) == len(line)
        os.close(fd)

    with Killer(view, seed) as killer:
        all_ended_well(in_children(3, append))
    print("# %d kills" % killer.kills)
    forget_pages(view.at("log"))
    last = [-1] * 3
    for line in open(view.at("log")):
        i, n, x = line[:-1].split(" ")
        assert int(n) == last[int(i)] + 1 and len(x) == int(n) * 7 % 900, line
        last[int(i)] += 1
    assert last == [399] * 3, last


def test_names_are_made_moved_and_removed_exactly_once(t):
    """Each call must succeed: done twice, its second time would say EEXIST or ENOENT."""
    view, seed = supervised(t), seed_of_run()
    rounds = 2000 if ply.LONG else 120

    def storm(i):
        os.mkdir(view.at("s%d" % i))
        os.chdir(view.at("s%d" % i))
        for n in range(rounds):
            os.mkdir("d")
            os.close(os.open("d/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.link("d/f", "hard")
            os.symlink("there", "soft")
            os.setxattr("hard", "user.n", b"%d" % n, os.XATTR_CREATE)
            os.removexattr("d/f", "user.n")
            os.mkfifo("fifo")
            os.rename("d", "e")
            assert os.stat("e/f").st_nlink == 2
            os.unlink("e/f")
            os.rename("hard", "kept%d" % (n % 3))
            os.unlink("soft")
            os.unlink("fifo")
            os.rmdir("e")
        assert sorted(os.listdir(".")) == ["kept0", "kept1", "kept2"]

    with Killer(view, seed) as killer:
        all_ended_well(in_children(3, storm))
    print("# %d kills" % killer.kills)
    view.store.ply("check", "--read-data")


def test_copies_and_truncations_are_done_once(t):
    view, seed = supervised(t), seed_of_run()
    view.write("source", os.urandom(500000))
    want = open(view.at("source"), "rb").read()

    def copy(i):
        src = os.open(view.at("source"), os.O_RDONLY)
        for n in range(60):
            dst = os.open(view.at("copy%d" % i), os.O_CREAT | os.O_TRUNC | os.O_RDWR)
            at = 0
            while at < len(want):
                got = os.copy_file_range(src, dst, len(want) - at, at, at)
                assert got > 0
                at += got
            os.posix_fallocate(dst, len(want), 1000)
            os.ftruncate(dst, len(want) + n)
            os.posix_fadvise(dst, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(dst, 1 << 20, 0) == want + b"\0" * n
            os.close(dst)

    with Killer(view, seed) as killer:
        all_ended_well(in_children(2, copy))
    print("# %d kills" % killer.kills)


class Death:
    """Within it the daemon dies once, with a request of these opcodes done and not answered."""

    def __init__(self, t, view, *opcodes):
        self.view, self.files = view, [t.at("die", str(n)) for n in opcodes]

    def __enter__(self):
        self.deaths = self.view.store.status()["daemon"]["deaths"]
        for f in self.files:
            ply.write(f, "")

    def __exit__(self, kind, *what):
        left = [f for f in self.files if os.path.exists(f)]
        for f in left:
            os.unlink(f)
        if kind:
            return  # the answer was wrong: that is what is to be told
        if len(left) == len(self.files):
            ply.skip("a release build, or a kernel that asks for it in other words")
        assert self.view.store.status()["daemon"]["deaths"] == self.deaths + 1


def dying(t, files=None):
    os.mkdir(t.at("die"))
    t.env["PLYFS_TEST_DIE"] = t.at("die")
    return supervised(t, files)


NO_TIMES = ("--no-times",)
SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE = 6, 8, 9, 10, 11, 12, 13, 16
SETATTR, SETXATTR, REMOVEXATTR, CREATE, IOCTL, FALLOCATE = 4, 21, 24, 35, 39, 43
RENAME2, COPY, TMPFILE, COPY_64 = 45, 47, 51, 53


def renamed2(src, dst, flags):
    if ply._libc.renameat2(-100, os.fsencode(src), -100, os.fsencode(dst), flags) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def copied(src, dst):
    with open(src, "rb") as s, open(dst, "r+b") as d:
        return os.copy_file_range(s.fileno(), d.fileno(), 3, 0, 1)


def falloc(path):
    with open(path, "r+b") as f:
        os.posix_fallocate(f.fileno(), 0, 9000)


def appended(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    with os.fdopen(fd, "wb", buffering=0) as f:
        return f.write(b"more")


# Name, opcode, what is done in a directory with a file f of 5 bytes and an empty directory e, what
# it answers. Most would fail when they are done twice.
CALLS = [
    ("mkdir", MKDIR, lambda: os.mkdir("n"), None),
    ("mkfifo", MKNOD, lambda: os.mkfifo("n"), None),
    ("symlink", SYMLINK, lambda: os.symlink("there", "n"), None),
    ("link", LINK, lambda: os.link("f", "n"), None),
    ("create", CREATE, lambda: os.close(os.open("n", os.O_CREAT | os.O_EXCL | os.O_RDWR)), None),
    ("tmpfile", TMPFILE, lambda: os.close(os.open(".", os.O_TMPFILE | os.O_RDWR)), None),
    ("unlink", UNLINK, lambda: os.unlink("f"), None),
    ("rmdir", RMDIR, lambda: os.rmdir("e"), None),
    ("rename", RENAME, lambda: os.rename("f", "n"), None),
    ("rename, exchanging", RENAME2, lambda: renamed2("f", "e", 2), None),
    ("rename, not replacing", RENAME2, lambda: renamed2("f", "n", 1), None),
    ("setxattr", SETXATTR, lambda: os.setxattr("f", "user.n", b"1", os.XATTR_CREATE), None),
    ("removexattr", REMOVEXATTR, lambda: os.removexattr("f", "user.x"), None),
    ("chmod", SETATTR, lambda: os.chmod("f", 0o4711), None),
    ("truncate", SETATTR, lambda: os.truncate("f", 3), None),
    ("utime", SETATTR, lambda: os.utime("f", (1, 2)), None),
    ("append", WRITE, lambda: appended("f"), 4),
    ("fallocate", FALLOCATE, lambda: falloc("f"), None),
    ("copy", (COPY, COPY_64), lambda: copied("f", "g"), 3),
]


def test_what_was_done_and_not_answered_is_answered(t):
    """The daemon dies between the two."""
    view = dying(t)
    for n, (name, opcode, call, answer) in enumerate(CALLS):
        opcodes = opcode if isinstance(opcode, tuple) else (opcode,)
        seen = []
        for where in ("calm%d" % n, "dying%d" % n):
            ply.make_tree(view.at(where), {"f": "12345", "g": "abcdefgh", "e": None})
            os.setxattr(view.at(where, "f"), "user.x", b"y")
            os.chdir(view.at(where))
            before = view.info()["changes"]
            try:
                if where.startswith("calm"):
                    got = call()
                else:
                    with Death(t, view, *opcodes):
                        got = call()
            except OSError as e:
                raise AssertionError("%s, %s: %s" % (name, where, e)) from e
            finally:
                os.chdir(t.path)
            assert got == answer, (name, where, got)
            tree = ply.treelist(view.at(where), *NO_TIMES)
            seen.append((view.info()["changes"] - before, tree))
        assert seen[0] == seen[1], (name, seen)
    view.store.ply("check", "--read-data")


def test_what_was_asked_of_the_view_and_not_answered_is_answered(t):
    view = dying(t)
    first = view.checkpoint("first")
    view.write("a.txt", "2")
    with view.fd() as fd:
        with Death(t, view, IOCTL):
            second = ply.ioctl_checkpoint(fd, "second")
        with Death(t, view, IOCTL):
            ply.ioctl_fork(fd, "idea")
        with Death(t, view, IOCTL):
            answer = ply.ioctl_restore(fd, first)
        assert answer["id"] == first and view.read("a.txt") == "one\n", answer
        with Death(t, view, IOCTL):
            answer = ply.ioctl_undo(fd)
        assert view.read("a.txt") == "2"
    labels = [s["label"] for s in view.store.json("log")]
    assert labels.count("second") == 1 and labels.count("first") == 1, labels
    assert view.store.mount(branch="idea").read("a.txt") == "2"
    assert view.store.mount(snapshot=second).read("a.txt") == "2"


def seek_data(path, found, died):
    """
    SEEK_DATA in a hole that a mapping has stored into; `died` lets the daemon die as that is written back.
    Its thread that waits for that can die only when the WRITE is answered.
    """
    size, at = 1 << 20, 300000
    with open(path, "w+b", buffering=0) as f:
        os.ftruncate(f.fileno(), size)
        with mmap.mmap(f.fileno(), size) as m, died:
            m[at] = 33
            seek = ply.child(lambda: found(lambda: os.lseek(f.fileno(), 0, os.SEEK_DATA), at & -4096))
            try:
                ply.wait_for("the answer", lambda: os.waitid(os.P_PID, seek, os.WEXITED |
                                                             os.WNOHANG | os.WNOWAIT))
            except AssertionError:
                ply._libc.umount2(os.fsencode(os.path.dirname(path)), 1)  # else none can be killed
                raise
            assert ply.ended_well(seek)


def test_a_daemon_that_dies_while_a_mapping_is_written_back_for_a_seek_is_followed(t):
    def found(seek, at):
        assert seek() == at

    view = dying(t)
    seek_data(view.at("f"), found, Death(t, view, WRITE))


def test_a_view_ends_with_a_daemon_that_is_not_followed_whatever_that_waits_for(t):
    def found(seek, at):
        try:
            seek()
        except OSError as e:
            assert e.errno in (errno.ECONNABORTED, errno.ENOTCONN), e

    t.unsupervised()
    ply.need_root()  # by force
    os.mkdir(t.at("die"))
    t.env["PLYFS_TEST_DIE"] = t.at("die")
    view = t.view()
    pid = view.store.daemon()
    ply.write(t.at("die", str(WRITE)), "")
    with contextlib.suppress(OSError):  # of its close
        seek_data(view.at("f"), found, contextlib.nullcontext())
    if os.path.exists(t.at("die", str(WRITE))):
        ply.skip("a release build")
    ply.wait_for("its end", lambda: not ply.alive(pid))


def test_a_verb_asked_of_the_view_is_begun_at_most_once(t):
    view = dying(t)
    args = b"fork\0idea\0"

    def error_of(number, layout, *values):
        with view.fd() as fd:
            try:
                ply.ioctl(fd, number, layout, *values)
            except OSError as e:
                return e.errno
        return 0

    with Death(t, view, IOCTL):
        error = error_of(ply.IOC_CALL, ply.CALL, len(args), 0, 0, args)
    assert error == errno.ECONNRESET, error
    with view.fd() as fd:
        handle = ply.ioctl(fd, ply.IOC_CALL, ply.CALL, 4, 0, 0, b"log\0")[2]
    kill(view)
    with view.fd() as fd:
        later = ply.ioctl(fd, ply.IOC_CALL, ply.CALL, 5, 0, 0, b"tree\0")[2]
    assert later > handle
    # Its output is not another's.
    error = error_of(ply.IOC_READ, ply.READ, handle, 0, 0, 0, 0, b"")
    assert error == errno.ECONNRESET, error


def damage_memo(pid):
    """What the next daemon is to know of the view that was mounted first."""
    for fd in sorted(os.listdir("/proc/%d/fd" % pid), key=int):
        path = "/proc/%d/fd/%s" % (pid, fd)
        if "memfd:plyfs-view" in os.readlink(path):
            with open(path, "r+b") as f:
                f.seek(4096)  # behind the head: what was asked, and the first of the node ids
                f.write(b"\xff" * 200000)
            return
    assert False, "there is no memo"


# ---- dying too often, ending, being replaced ----

def test_a_view_of_which_nothing_is_known_is_given_up_and_others_go_on(t):
    view = supervised(t)
    other = view.fork("idea")
    other.write("b", "idea")
    pid = view.store.daemon()
    os.kill(pid, signal.SIGSTOP)  # it would use it, too
    damage_memo(pid)
    os.kill(pid, signal.SIGKILL)
    assert other.read("b") == "idea" and other.read("a.txt") == "one\n"
    try:
        os.statvfs(view.path)
        assert False, "that should have failed"
    except OSError as e:
        assert e.errno in (errno.ENOTCONN, errno.ECONNABORTED), e
    log = view.store.log_tail()
    assert "ended by itself" not in log and log.count("what the daemon before knew of it is damaged") == 1, log
    view.store.ply("unmount", view.path)
    assert view.store.mount(at=view.path).read("a.txt") == "one\n"
    other.write("b", "goes on")


def test_many_views_go_on_where_few_files_may_be_open(t):
    few_open_files(t, 64)
    view = supervised(t)
    views = [view]
    for i in range(40):
        view.store.ply("fork", "f%d" % i)
        views.append(view.store.mount(branch="f%d" % i))
    kill(view)
    for v in views:
        assert v.read("a.txt") == "one\n"


def test_a_daemon_that_keeps_dying_is_given_up_with_an_error(t):
    ply.need_followed_daemon()
    few_open_files(t, 1024)  # as most have it
    view = t.view()
    store = view.store
    f = open(view.at("a.txt"))
    deaths = 0
    while "answer EIO" not in store.log_tail() and deaths < 50:  # so many within 10 s
        pid = store.daemon()
        if pid:
            os.kill(pid, signal.SIGKILL)
            ply.wait_for("its death", lambda: not ply.alive(pid))
            deaths += 1
    assert deaths >= 5, deaths
    ply.wait_for("the line", lambda: "answer EIO" in store.log_tail())
    assert store.log_tail().count("answer EIO") == 1
    for attempt in (lambda: os.listdir(view.at("dir")), lambda: os.statvfs(view.path),
                    lambda: os.mkdir(view.at("d")), lambda: view.write("x", "y")):
        try:
            attempt()
            assert False, "that should have failed"
        except OSError as e:
            assert e.errno == errno.EIO, e
    f.close()
    # The store itself is for whoever comes.
    assert "main" in store.out("tree")
    store.ply("unmount", view.path)
    assert store.mount(at=view.path).read("a.txt") == "one\n"
    store.ply("check", "--read-data")


def test_a_daemon_that_cannot_start_again_is_given_up(t):
    ply.need_followed_daemon()
    view = t.view()
    store = view.store
    pid = store.daemon()
    os.rename(os.path.join(store.path, "format"), t.at("format"))
    os.kill(pid, signal.SIGKILL)
    try:
        os.statvfs(view.path)
        assert False, "that should have failed"
    except OSError as e:
        assert e.errno == errno.EIO, e
    ply.wait_for("the line", lambda: "answer EIO" in store.log_tail())
    os.rename(t.at("format"), os.path.join(store.path, "format"))
    store.ply("unmount", view.path)


def test_a_store_that_is_broken_is_tried_once(t):
    ply.need_followed_daemon()
    view = t.view()
    store = view.store
    pid = store.daemon()
    os.kill(pid, signal.SIGSTOP)  # it might commit, and heal it
    with open(os.path.join(store.path, "index", "data.mdb"), "r+b") as f:
        f.write(b"\xa5" * 8192)  # both of LMDB's first pages
    os.kill(pid, signal.SIGKILL)
    ply.wait_for("the line", lambda: "answer EIO" in store.log_tail())
    try:
        os.statvfs(view.path)
        assert False, "that should have failed"
    except OSError as e:
        assert e.errno == errno.EIO, e
    log = store.log_tail()
    assert log.count("error: opening store") == 1, log
    store.ply("unmount", view.path)
    store.fails("log", says="salvage|repair")
    store.ply("check", "--repair")


def test_a_stop_is_not_a_death(t):
    view = supervised(t)
    store, pid = view.store, view.store.daemon()
    view.write("x", "y")
    os.kill(pid, signal.SIGTERM)
    ply.wait_for("its end", lambda: not ply.alive(pid))
    ply.wait_for("the mount's end", lambda: not ply.mounts_below(view.path))
    assert store.daemon() is None and "killed by" not in store.log_tail()
    view = store.mount(at=view.path)
    assert view.read("x") == "y"
    parent = int(ply.read("/proc/%d/stat" % store.daemon()).rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGTERM)
    ply.wait_for("its end", lambda: not ply.alive(parent))
    assert not ply.mounts_below(view.path) and store.daemon() is None


def test_status_and_others_wait_for_the_next_daemon(t):
    view = supervised(t)
    store = view.store
    for n in range(5):
        os.kill(store.daemon(), signal.SIGKILL)
        status = store.status()
        assert status["daemon"] and status["daemon"]["deaths"] == n + 1, status
        assert len(status["views"]) == 1
    assert "5 daemons before this one" in store.out("status")
    os.kill(store.daemon(), signal.SIGKILL)
    view.unmount()
    assert not ply.mounts_below(view.path)
    assert "main" in store.out("tree")


def test_another_program_takes_over_under_load(t):
    view = supervised(t)
    store = view.store
    stop = t.at("stop")

    def work(i):
        os.chdir(view.path)
        n = 0
        while not os.path.exists(stop) or n <= 10:
            os.mkdir("w%d" % i)
            with open("w%d/f" % i, "x") as f:
                f.write(str(n))
            assert ply.read("w%d/f" % i) == str(n)
            os.rename("w%d/f" % i, "last%d" % i)
            os.rmdir("w%d" % i)
            n += 1

    pids = in_children(3, work)
    seen = {store.daemon()}
    for n in range(6):
        time.sleep(0.1)
        pid = int(store.out("daemon", "--replace"))
        assert pid not in seen and store.daemon() == pid
        seen.add(pid)
        if n == 3:
            kill(view)  # the new program's supervisor does the same
            seen.add(store.daemon())
    open(stop, "w").close()
    all_ended_well(pids)
    status = store.status()["daemon"]
    assert status["replacements"] == 6 and status["deaths"] == 1, status
    assert "6 daemons" in store.out("status")
    over(view)
    store.ply("check", "--read-data")


def test_replacing_needs_no_views_and_says_when_it_cannot_be(t):
    store = t.store()
    store.stop()
    assert store.ply("daemon", "--replace").stdout == ""
    store.fails("daemon", code=2, says="--replace")
    t.unsupervised()
    view = store.mount()
    store.fails("daemon", "--replace", says="unmount")
    view.unmount()


def test_nor_can_it_be_when_the_supervisor_was_killed(t):
    view = supervised(t)
    assert view.store.json("status")["daemon"]["supervised"]
    pid = view.store.daemon()
    parent = int(ply.read("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[1])
    os.kill(parent, signal.SIGKILL)
    ply.wait_for("its end", lambda: not ply.alive(parent))
    view.store.fails("daemon", "--replace", says="supervisor.* was killed; unmount")
    assert "its supervisor was killed" in view.store.out("status")
    assert not view.store.json("status")["daemon"]["supervised"]
    view.write("a.txt", "goes on")
    assert view.read("a.txt") == "goes on" and view.store.daemon() == pid


def is_dead(view):
    try:
        os.statvfs(view.path)  # the kernel has to ask
    except OSError as e:
        return e.errno == errno.ENOTCONN
    return False


def test_what_was_mounted_meanwhile_is_not_taken_off(t):
    t.unsupervised()
    view, other = t.view(), t.store("other")
    pid = view.store.daemon()
    with open("/proc/%d/stat" % pid) as f:
        supervisor = int(f.read().rsplit(")", 1)[1].split()[1])
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        ply.wait_for("the view's end", lambda: is_dead(view))
        new = other.mount(at=view.path)
        new.write("f", "1\n")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    ply.wait_for("the end of the supervisor", view.store.is_let_go)
    assert new.read("f") == "1\n"
    new.unmount()


if __name__ == "__main__":
    ply.main(__name__)
