#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: live
# timeout: 240
"""
Views whose requests come through io_uring (plyfs mount --io-uring): what they hold, many clients at
once, requests that wait for each other, and the end, gentle and not. Whatever might hang is done by
children, who have a time to be done in; when one of them hangs, the view ends with its daemon.
"""
import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

SWITCH = "/sys/module/fuse/parameters/enable_uring"
HANGS_AFTER_S = 60
# What a client may get whose view dies; ECANCELED is of the ring's own end.
LOST = (errno.ECONNABORTED, errno.ENOTCONN, errno.EIO, errno.ECANCELED)


def switch(value):
    with open(SWITCH, "w") as f:
        f.write(value)


held = []  # the switch is the machine's: one script at a time uses it


def need_uring():
    """Switches it on for as long as this script runs."""
    ply.need_root()
    try:
        if not held:
            held.append(open(SWITCH))
            fcntl.flock(held[0], fcntl.LOCK_EX)
        was = ply.read(SWITCH).strip()
    except OSError:
        ply.skip("this kernel has no FUSE over io_uring (Linux 6.14)")
    if was != "Y":
        try:
            switch("Y")
        except OSError as e:
            ply.skip("%s cannot be written: %s" % (SWITCH, e.strerror))
        atexit.register(switch, was)
    with contextlib.suppress(OSError):
        if ply.read("/proc/sys/kernel/io_uring_disabled").strip() == "2":
            ply.skip("kernel.io_uring_disabled is 2")


def mount(store, *more):
    p = store.ply("mount", "--at", store.bench.at("mnt"), "--io-uring", *more, check=False)
    if "without liburing" in p.stderr:
        ply.skip("built without liburing")
    assert p.returncode == 0, p.stderr
    assert "ends when its daemon is killed" in p.stderr, p.stderr
    store.daemon()
    return ply.View(store, store.bench.at("mnt"))


def uring_view(t, files=None):
    need_uring()
    store = t.store()
    store.import_(t.tree(files or {"a.txt": "one\n", "dir/b.txt": "two\n"}))
    os.mkdir(t.at("mnt"))
    return mount(store)


def ring_threads(pid):
    """Of its rings."""
    names = []
    for task in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(OSError):  # it may end meanwhile
            names.append(ply.read("/proc/%d/task/%s/comm" % (pid, task)).strip())
    return names.count("plyfs-ring")


class Children:
    """Functions that run beside us, each in a process of its own."""

    def __init__(self, view):
        self.daemon = view.store.daemon()
        self.pids = []

    def start(self, function, *args, cpu=None):
        def work():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if cpu is not None:
                os.sched_setaffinity(0, [cpu])
            function(*args)

        self.pids.append(ply.child(work))
        return self.pids[-1]

    def done(self, pid):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def join(self):
        """They all ended well."""
        try:
            ply.wait_for("the clients' end", lambda: all(map(self.done, self.pids)), HANGS_AFTER_S)
        except AssertionError:
            for pid in self.pids:
                if not self.done(pid):
                    print("# %d hangs: %s" % (pid, ply.read("/proc/%d/stack" % pid).split("\n")))
                    os.kill(pid, signal.SIGKILL)
            os.kill(self.daemon, signal.SIGKILL)
            raise
        finally:
            codes = [os.waitpid(pid, 0)[1] for pid in self.pids]
            self.pids = []
        assert not any(codes), codes


# ---- what it holds ----

def test_files_are_as_they_were_written(t):
    view = uring_view(t)
    rng = random.Random(1)
    model = bytearray(5 << 20)
    fd = os.open(view.at("large"), os.O_RDWR | os.O_CREAT)
    for size in (1, 4095, 4096, 65537, 1 << 20, (1 << 20) + 1, 3 << 20):
        for _ in range(5):
            at, data = rng.randrange(len(model) - size), rng.randbytes(size)
            assert os.pwrite(fd, data, at) == size
            model[at:at + size] = data
    os.ftruncate(fd, len(model))
    for drop in (False, True):
        if drop:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for size in (1, 4095, 1 << 20, 3 << 20):
            at = rng.randrange(len(model) - size)
            assert os.pread(fd, size, at) == model[at:at + size], (size, at)
        assert os.pread(fd, len(model) + 1, 0) == model
    with mmap.mmap(fd, len(model)) as m:
        assert m[:] == model
        m[12345:12350] = b"added"
        model[12345:12350] = b"added"
        m.flush()
    os.close(fd)
    fd = os.open(view.at("large"), os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, len(model))
    assert os.preadv(fd, [page], 0) == len(model) and page[:] == model
    os.close(fd)

    os.setxattr(view.path, "user.long", b"v" * 65536)
    assert os.getxattr(view.path, "user.long") == b"v" * 65536
    os.symlink("t" * 4095, view.at("link"))
    assert os.readlink(view.at("link")) == "t" * 4095
    name = "n" * 255
    os.mkdir(view.at(name))
    os.rename(view.at("a.txt"), view.at(name, "a"))
    for call in (lambda: os.mkdir(view.at(name)), lambda: os.unlink(view.at("missing"))):
        try:
            call()
            raise AssertionError("that should have failed")
        except OSError as e:
            assert e.errno in (errno.EEXIST, errno.ENOENT), e

    snap = view.checkpoint()
    view.unmount()
    view = mount(view.store)  # from the store
    assert hashlib.sha256(open(view.at("large"), "rb").read()).digest() == \
        hashlib.sha256(model).digest()
    assert view.read(os.path.join(name, "a")) == "one\n"
    assert view.info()["head"] == snap


def test_a_large_directory_is_listed_whole(t):
    view = uring_view(t)
    names = {"%05d-%s" % (i, "x" * (i % 200)) for i in range(6000)}
    os.mkdir(view.at("many"))
    for name in names:
        open(view.at("many", name), "w").close()
    assert set(view.ls("many")) == names
    assert {e.name for e in os.scandir(view.at("many")) if e.stat().st_size == 0} == names
    ply.run(["rm", "-r", view.at("many")])
    assert not os.path.exists(view.at("many"))


# ---- many at once ----

def client(top, seed, rounds):
    """A tree of its own, with its model."""
    rng, files = random.Random(seed), {}
    os.mkdir(top)
    for i in range(rounds):
        name = os.path.join(top, str(rng.randrange(30)))
        kind = rng.randrange(10)
        if kind < 4 or name not in files:
            files[name] = rng.randbytes(rng.choice([0, 10, 5000, 200000]))
            with open(name, "wb") as f:
                f.write(files[name])
        elif kind < 8:
            with open(name, "rb") as f:
                assert f.read() == files[name], name
        elif kind < 9:
            os.unlink(name)
            del files[name]
        else:
            assert set(os.listdir(top)) == {os.path.basename(n) for n in files}
    for name, data in files.items():
        with open(name, "rb") as f:
            assert f.read() == data, name


def test_many_clients_at_once(t):
    view = uring_view(t)
    children = Children(view)
    for i in range(12):
        children.start(client, view.at("c%d" % i), i, 400)
    children.join()


def nodes(view):
    return view.store.status()["views"][0]["nodes"]


def test_killed_and_interrupted_clients_leave_nothing(t):
    view = uring_view(t)
    os.listdir(view.path)
    ply.drop_caches()
    before = nodes(view)

    def interrupted(n):
        signal.signal(signal.SIGALRM, lambda *a: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        client(view.at("i%d" % n), n, 200)
        signal.setitimer(signal.ITIMER_REAL, 0)
        ply.run(["rm", "-r", view.at("i%d" % n)])

    children = Children(view)
    killed = [children.start(client, view.at("k%d" % i), i, 10 ** 9) for i in range(6)]
    for i in range(3):
        children.start(interrupted, i)
    ply.wait_for("work", lambda: all(os.path.exists(view.at("k%d" % i)) for i in range(6)))
    for pid in killed:
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        children.pids.remove(pid)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    children.join()
    ply.run(["rm", "-r", *(view.at("k%d" % i) for i in range(6))])

    def back():
        ply.drop_caches()
        return nodes(view) <= before
    ply.wait_for("the kernel to forget", back)


def test_what_many_large_requests_at_once_took_is_given_back(t):
    if ply.sanitized():
        ply.skip("a sanitizer has shadows of all that is touched")
    view = uring_view(t, {"large": os.urandom(1 << 20)})
    pid, cpu = view.store.daemon(), min(os.sched_getaffinity(0))
    clients = 60

    def anonymous():
        return int(re.search(r"RssAnon:\s+(\d+) kB", ply.read("/proc/%d/status" % pid))[1]) >> 10

    def asks():
        def ask(i):
            fd = os.open(view.at("large"), os.O_RDWR | os.O_DIRECT)
            with mmap.mmap(-1, 1 << 20) as page:
                for call in (os.preadv, os.pwritev) * 2 if i % 2 else (os.preadv, os.preadv):
                    assert call(fd, [page], 0) == len(page)
            os.close(fd)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def all_wait(child):
        tasks = "/proc/%d/task/" % child
        return sum("request_wait" in ply.read(tasks + i + "/wchan") for i in os.listdir(tasks)) == clients

    before = anonymous()
    children = Children(view)
    with open(view.at("large")):  # who opens it asks for nothing
        os.kill(pid, signal.SIGSTOP)
        try:
            child = children.start(asks, cpu=cpu)
            ply.wait_for("the clients", lambda: all_wait(child))
        finally:
            os.kill(pid, signal.SIGCONT)
        children.join()
    ply.wait_for("memory to be given back", lambda: anonymous() < before + clients // 4)


def while_refused(t, view, how, work):
    """work() in a child while the rings' calls are answered so, one of three."""
    tasks = "/proc/%d/task/" % view.store.daemon()
    children = Children(view)
    tracer = subprocess.Popen(["strace", "-f", "-p", str(view.store.daemon()), "-o", t.at("trace"), "-e",
                               "trace=io_uring_enter", "-e", "inject=io_uring_enter:%s:when=1+3" % how],
                              stderr=subprocess.DEVNULL)
    try:
        ply.wait_for("strace", lambda: all("TracerPid:\t%d\n" % tracer.pid in ply.read(tasks + i + "/status")
                                           for i in os.listdir(tasks)))
        children.start(work)
        children.join()
    finally:
        tracer.terminate()
        tracer.wait()
    assert ply.read(t.at("trace")).count("(INJECTED)") > 10


def test_a_ring_that_is_refused_memory_tries_again(t):
    ply.need_tool("strace")
    view = uring_view(t)
    with open(view.at("a.txt"), "r+b", buffering=0) as f:  # its close asks for nothing
        while_refused(t, view, "error=EAGAIN", lambda: [os.pwrite(f.fileno(), b"%03d" % i, 0) for i in range(100)])
    assert view.read("a.txt") == "099\n", view.read("a.txt")


def kernel_says():
    """Of what it was given and does not take, to who may read it."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in said if "fuse: Invalid" in line or "fuse: Failed to get iovec" in line]


def test_a_ring_that_is_refused_memory_at_first_gives_its_entries_later(t):
    ply.need_tool("strace")
    need_uring()
    view, fork = t.view(), t.at("forked")
    os.mkdir(fork)

    def work():
        view.store.ply("fork", "--from", "main", "other", "--at", fork, "--io-uring")
        for i in range(100):
            ply.write(os.path.join(fork, "new"), str(i))
        assert ply.read(os.path.join(fork, "new")) == "99"

    before = kernel_says()
    while_refused(t, view, "error=EAGAIN", work)
    after = [line for line in kernel_says() if line not in before]
    assert after == [], after


def test_a_reply_that_is_not_handed_over_yet_keeps_its_memory(t):
    """The kernel takes some of what it is given, and says how many, when it has no memory for the rest."""
    ply.need_tool("strace")
    content = os.urandom(1 << 20)
    view = uring_view(t, {"large": content})
    fd = os.open(view.at("large"), os.O_RDONLY | os.O_DIRECT)

    def work():
        with mmap.mmap(-1, len(content)) as page:
            for _ in range(40):
                assert os.preadv(fd, [page], 0) == len(content) and page[:] == content

    while_refused(t, view, "retval=1", work)
    os.close(fd)


def test_what_a_ring_had_no_memory_for_comes_again(t):
    if ply.sanitized():
        ply.skip("the sanitizer wants to be the first that is loaded")
    refused = t.at("refused")
    t.env.update(LD_PRELOAD=os.path.join(ply.BUILD, "tests", "bad_moments.so"), PLYFS_RING_REFUSED=refused)
    view = uring_view(t)
    assert "bad_moments" in ply.read("/proc/%d/maps" % view.store.daemon())
    ply.write(refused, "")
    children = Children(view)
    for i in range(4):
        children.start(client, view.at("c%d" % i), i, 50)
    children.join()


def test_locks_wait_and_are_interrupted(t):
    view = uring_view(t)
    with open(view.at("a.txt"), "r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)

        def interrupted():
            def stop(*a):
                raise InterruptedError
            with open(view.at("a.txt"), "r+") as f:
                try:
                    signal.signal(signal.SIGALRM, stop)
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                    fcntl.lockf(f, fcntl.LOCK_EX)
                except InterruptedError:
                    return
            raise AssertionError("it has the lock")

        def gets_it():
            with open(view.at("a.txt"), "r+") as f:
                fcntl.lockf(f, fcntl.LOCK_EX)
                f.write("two")

        children = Children(view)
        for _ in range(4):
            children.start(interrupted)
        children.join()
        waits = children.start(gets_it)
        time.sleep(0.2)
        assert not children.done(waits)
        fcntl.lockf(held, fcntl.LOCK_UN)
        children.join()
    assert view.read("a.txt") == "two\n"


# ---- requests that wait for others ----

def test_restores_do_not_wait_for_requests_behind_them(t):
    """
    All on one CPU, so in one queue: a restore tells the kernel of names and waits there for clients
    that hold the directory and wait for an answer themselves.
    """
    view = uring_view(t, {"d/%d" % i: "x" for i in range(20)})
    snap = view.checkpoint()
    cpu = min(os.sched_getaffinity(0))
    until = time.monotonic() + (30 if ply.LONG else 6)

    def changes(n):
        while time.monotonic() < until:
            name = view.at("d", "of-%d" % n)
            with ply.overtaken():
                open(name, "w").close()
                os.rename(name, view.at("d", str(n)))
                os.unlink(view.at("d", str(n)))
            os.listdir(view.at("d"))

    def restores(n):
        fd = os.open(view.path, os.O_RDONLY)
        while time.monotonic() < until:
            if n % 2:
                ply.ioctl_checkpoint(fd, "")
            else:
                ply.ioctl_restore(fd, snap)

    children = Children(view)
    for i in range(8):
        children.start(changes, i, cpu=cpu)
    for i in range(8):
        children.start(restores, i, cpu=cpu)
    children.join()
    view.restore(snap)
    assert len(view.ls("d")) == 20


def test_a_restore_alone_does_not_wait_for_one_behind_it(t):
    """As above, with nobody else whose requests would get things going again."""
    names = {"d/%d" % i: "x" for i in range(20)}
    view = uring_view(t, names)
    cpu = min(os.sched_getaffinity(0))
    for _ in range(100 if ply.LONG else 20):
        for name in names:
            view.write(name, "x")
        snap = view.checkpoint()
        for name in names:
            os.rename(view.at(name), view.at(name + "-renamed"))
        view.unmount()
        view = mount(view.store)
        assert len([e.stat() for e in os.scandir(view.at("d"))]) == 20
        begun, done = t.at("begun"), t.at("done")

        def changes():
            ply.write(begun, "")
            while not os.path.exists(done):
                with contextlib.suppress(FileNotFoundError):
                    open(view.at("d/other"), "w").close()
                    os.unlink(view.at("d/other"))

        def restores():
            ply.wait_for("changes", lambda: os.path.exists(begun))
            try:
                fd = os.open(view.path, os.O_RDONLY)
                ply.ioctl_restore(fd, snap)
            finally:
                ply.write(done, "")

        children = Children(view)
        children.start(changes, cpu=cpu)
        children.start(restores, cpu=cpu)
        children.join()
        os.unlink(begun)
        os.unlink(done)


def test_more_restores_than_entries_are_refused_or_done(t):
    """A CPU's clients have 60 entries for what may wait; whoever comes then is told so, but for syncs."""
    view = uring_view(t, {"d/%d" % i: "x" for i in range(20)})
    snap = view.checkpoint()

    def restores():
        fd = os.open(view.path, os.O_RDONLY)
        failed = []

        def restore():
            for _ in range(5):
                try:
                    ply.ioctl_restore(fd, snap)
                except OSError as e:
                    if e.errno != errno.EAGAIN:
                        failed.append(e)
                try:
                    os.fsync(fd)
                except OSError as e:
                    failed.append(e)
        threads = [threading.Thread(target=restore) for _ in range(90)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed

    def changes():
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with ply.overtaken():
                open(view.at("d/other"), "w").close()
                os.rename(view.at("d/other"), view.at("d/3"))

    children = Children(view)
    for function in (restores, changes, changes):
        children.start(function, cpu=min(os.sched_getaffinity(0)))
    children.join()
    view.restore(snap)
    assert len(view.ls("d")) == 20


def test_more_seeks_than_entries_find_what_mappings_hold(t):
    """Who has no entry to wait with is told that all is data."""
    view = uring_view(t)
    size, at = 1 << 20, 300000

    def seeks():
        wrong = []
        together = threading.Barrier(90)

        def seek(i):
            with open(view.at("f%d" % i), "w+b", buffering=0) as f:
                os.ftruncate(f.fileno(), size)
                with mmap.mmap(f.fileno(), size) as m:
                    together.wait()
                    for _ in range(10):
                        m[at] += 1
                        try:
                            data = os.lseek(f.fileno(), 0, os.SEEK_DATA)
                            hole = os.lseek(f.fileno(), at, os.SEEK_HOLE)
                            if not data <= at < hole <= size:
                                wrong.append((i, data, hole))
                        except OSError as e:
                            wrong.append((i, e))
        threads = [threading.Thread(target=seek, args=(i,)) for i in range(90)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong

    children = Children(view)
    children.start(seeks, cpu=min(os.sched_getaffinity(0)))
    children.join()


def test_checkpoint_and_restore_while_others_work(t):
    view = uring_view(t)
    children = Children(view)
    os.mkdir(view.at("stays"))
    snap = view.checkpoint()
    stop = t.at("stop")

    def works(n):
        while not os.path.exists(stop):
            with contextlib.suppress(FileNotFoundError, FileExistsError, NotADirectoryError):
                top = view.at("stays", str(n))
                os.mkdir(top)
                for i in range(20):
                    ply.write(os.path.join(top, str(i)), "w" * 3000)
                for i in range(20):
                    ply.read(os.path.join(top, str(i)))
                shutil.rmtree(top, ignore_errors=True)

    for i in range(6):
        children.start(works, i)
    for i in range(1000 if ply.LONG else 200):
        time.sleep(0.01)
        view.checkpoint("n%d" % i)
        if i % 4 == 3:
            view.restore(snap)
            view.undo()
    ply.write(stop, "")
    children.join()
    view.restore(snap)
    assert view.ls("stays") == []
    assert view.store.ply("check").returncode == 0


def test_new_files_are_written_around_the_cache(t):
    view = uring_view(t)
    if "are written around" not in t.run([ply.PLYFS, "doctor"], check=False).stdout:
        ply.skip("this kernel has none of that")
    text = "p" * 4096  # what fills no page is not cached by a write

    def reads():
        return view.store.json("status", "--ops")["views"][0]["ops"].get("READ", 0)

    view.write("new", text)

    with ply.caches_stay():
        before = reads()
        for _ in range(2):
            assert view.read("new") == text
        assert reads() == before + 1
    with open(view.at("new"), "a") as f:
        f.write("more")
    assert view.read("new") == text + "more"


# ---- the beginning and the end ----

def test_status_shows_it_and_unmount_leaves_no_thread(t):
    view = uring_view(t)
    pid = view.store.daemon()
    at_first = len(os.listdir("/proc/%d/fd" % pid))
    assert ring_threads(pid) >= os.sysconf("SC_NPROCESSORS_ONLN")
    assert view.store.status()["views"][0]["io_uring"] is True
    assert "io_uring" in view.store.out("status")
    view.store.fails("daemon", "--replace", says="io-uring")

    fork = t.at("forked")
    os.mkdir(fork)
    view.store.ply("fork", "--from", "main", "other", "--at", fork, "--io-uring")
    assert ply.read(os.path.join(fork, "a.txt")) == "one\n"
    plain = view.store.mount(snapshot=view.checkpoint())
    assert plain.read("a.txt") == "one\n"
    said = {v["mountpoint"]: v["io_uring"] for v in view.store.status()["views"]}
    assert said == {view.path: True, fork: True, plain.path: False}, said
    view.store.ply("unmount", fork)
    view.unmount()
    ply.wait_for("the threads' end", lambda: ring_threads(pid) == 0)

    for _ in range(10):
        view = mount(view.store)
        assert view.read("dir/b.txt") == "two\n"
        view.unmount()
    ply.wait_for("the threads' end", lambda: ring_threads(pid) == 0)
    # The last client's socket is closed when the daemon hears that it has gone.
    ply.wait_for("the descriptors' end", lambda: len(os.listdir("/proc/%d/fd" % pid)) <= at_first)
    plain.unmount()


def test_a_lazy_unmount_ends_with_the_last_process(t):
    view = uring_view(t)
    pid = view.store.daemon()
    with open(view.at("a.txt")) as f:
        view.store.ply("unmount", "--lazy", view.path)
        assert f.read() == "one\n"
        assert ring_threads(pid) > 0
    ply.wait_for("the threads' end", lambda: not ply.alive(pid) or ring_threads(pid) == 0)


def test_clients_of_a_killed_daemon_get_an_error(t):
    view = uring_view(t)
    for again in range(5):
        children = Children(view)

        def works(n):
            os.chdir(view.path)  # the mount is taken off
            name = "w%d" % n
            while True:
                try:
                    with open(name, "wb") as f:
                        f.write(b"w" * 300000)
                    os.listdir(".")
                    os.unlink(name)
                except OSError as e:
                    assert e.errno in LOST, e
                    return

        for i in range(6):
            children.start(works, i)
        fd = os.open(view.path, os.O_RDONLY)
        time.sleep(0.2 + 0.05 * again)
        view.store.kill()
        children.join()
        os.close(fd)
        view = mount(view.store)
        assert view.read("a.txt") == "one\n"
    assert view.store.ply("check").returncode == 0
    view.unmount()


def test_a_verb_that_asks_while_the_daemon_dies_finds_a_dead_view(t):
    view = uring_view(t)
    pid = view.store.daemon()
    view.write("new", "x")  # who opens the directory asks for its attributes again
    os.kill(pid, signal.SIGSTOP)
    p = subprocess.Popen([ply.PLYFS, "unmount", view.path], stderr=subprocess.PIPE, text=True)
    # It asks in a child, which has nothing else to wait for.
    ply.wait_for("its request", lambda: subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(p.pid)], capture_output=True, text=True).stdout[:1] in ("S", "D"))
    os.kill(pid, signal.SIGKILL)
    err = p.communicate(timeout=HANGS_AFTER_S)[1]
    # Who stands by the daemon may be faster.
    assert "daemon had ended" in err if p.returncode == 0 else "no plyfs view is mounted" in err, err
    ply.wait_for("the mount to vanish", lambda: not os.path.ismount(view.path))


def test_without_the_kernels_word_it_says_what_to_do(t):
    need_uring()
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    os.mkdir(t.at("mnt"))
    switch("N")
    try:
        store.fails("mount", "--at", t.at("mnt"), "--io-uring", says=SWITCH)
        assert not os.path.ismount(t.at("mnt"))
    finally:
        switch("Y")
    mount(store).unmount()


def test_the_bench_has_both(t):
    uring_view(t).unmount()  # or skips
    p = t.run([ply.PLYFS, "bench", "view", "--quick", "--json", "--io-uring", "--only", "storm-2",
               "--dir", t.path], timeout=200)
    found = json.loads(p.stdout)
    assert found["first"] == "io_uring" and {"plyfs", "disk", "floor"} < set(found["places"]), found
    row, = found["rows"]
    assert set(row["ratio"]) == set(found["places"]) - {"io_uring"}, row
    assert {"disk", "floor"} <= set(row["limits"]), row
    assert set(found["groups"][0]["requests"]) >= {"plyfs", "io_uring", "floor"}, found["groups"]


ply.main(__name__)
