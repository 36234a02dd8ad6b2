#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 120
"""
What programs do at the very moment of a restore: requests that the kernel sent before it and that
are answered after it, and the other way round. Afterwards nobody sees anything of the state before,
and at no time may anybody what he must not.
"""
import errno
import multiprocessing
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

SECONDS = 30 if ply.LONG else 3
MANY = 300  # changed names besides, so that telling the kernel of them all takes a while
NOBODY = 65534


class Two:
    """A view and two states of it that differ in many names, and in what `change` did."""

    def __init__(self, t, change, prepare=lambda view: None):
        self.view = t.view({"many/x%d" % i: "1" for i in range(MANY)})
        os.chmod(t.path, 0o755)
        prepare(self.view)
        self.a = self.view.checkpoint("a")
        for i in range(MANY):
            self.view.write("many/x%d" % i, "22")
        change(self.view)
        self.b = self.view.checkpoint("b")
        self.fd = os.open(self.view.path, os.O_RDONLY)
        t.clean.append(lambda: os.close(self.fd))

    def warm(self):
        """All the names are in the kernel's cache, so that it will be told of them."""
        for i in range(MANY):
            os.stat(self.view.at("many/x%d" % i))

    def restore(self, snap):
        self.warm()
        return ply.ioctl_restore(self.fd, snap)

    def to_and_fro(self, seconds=SECONDS):
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            self.restore(self.a)
            self.restore(self.b)
            rounds += 1
        return rounds


class Beside:
    """A process that does `work(stop)` until it is told to stop; what it returned."""

    def __init__(self, work, uid=0):
        self.stop = multiprocessing.Event()
        self.results = multiprocessing.SimpleQueue()
        self.process = multiprocessing.Process(target=self.run, args=(work, uid))
        self.process.start()

    def run(self, work, uid):
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        try:
            self.results.put(work(self.stop))
        except BaseException as e:
            self.results.put(e)

    def end(self):
        self.stop.set()
        got = self.results.get()
        self.process.join()
        if isinstance(got, BaseException):
            raise got
        return got


# ---- who may what ----

def test_a_file_that_a_restore_made_is_opened_only_by_who_may(t):
    ply.need_root()

    def change(view):
        view.write("pub/f", "SECRET")
        os.chmod(view.at("pub/f"), 0o600)

    def prepare(view):
        os.mkdir(view.at("pub"))
        os.chmod(view.at("pub"), 0o777)

    two = Two(t, change, prepare)

    def create(stop):
        tried, foreign, errors = 0, 0, set()
        while not stop.is_set():
            tried += 1
            try:
                fd = os.open(two.view.at("pub/f"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            except OSError as e:
                errors.add(errno.errorcode[e.errno])
                continue
            foreign += os.fstat(fd).st_uid != NOBODY
            os.close(fd)
            with ply.overtaken():
                os.unlink(two.view.at("pub/f"))
        return tried, foreign, errors

    beside = Beside(create, NOBODY)
    rounds = two.to_and_fro()
    tried, foreign, errors = beside.end()
    assert tried > rounds > 0 and foreign == 0, (tried, rounds, foreign, errors)
    assert errors <= {"EACCES", "ENOENT"}, errors
    ply.ioctl_restore(two.fd, two.b)
    assert two.view.read("pub/f") == "SECRET"


def test_a_symlink_that_a_restore_made_is_followed(t):
    two = Two(t, lambda view: os.symlink("many/x1", view.at("f")))

    def create(stop):
        errors = set()
        while not stop.is_set():
            try:
                os.close(os.open(two.view.at("f"), os.O_RDONLY | os.O_CREAT, 0o644))
                os.unlink(two.view.at("f"))
            except OSError as e:
                errors.add(errno.errorcode[e.errno])
        return errors

    beside = Beside(create)
    two.to_and_fro()
    assert beside.end() <= {"ENOENT", "ESTALE"}  # of unlink


def test_a_file_that_each_state_has_gets_another_name(t):
    """It is another node after each restore; what there is under its name is not ENOENT for that."""
    two = Two(t, lambda view: view.write("f", "22"), lambda view: view.write("f", "1"))

    def link(stop):
        made, errors = 0, set()
        while not stop.is_set():
            try:
                os.link(two.view.at("f"), two.view.at("f%d" % made))
                made += 1
            except OSError as e:
                errors.add(errno.errorcode[e.errno])
        return made, errors

    beside = Beside(link)
    rounds = two.to_and_fro()
    made, errors = beside.end()
    assert made > rounds > 0 and errors <= {"ESTALE"}, (made, rounds, errors)


def test_a_working_directory_that_becomes_a_private_one_is_one(t):
    ply.need_root()
    view = t.view()
    os.chmod(t.path, 0o755)
    path = view.at("d")
    without = view.checkpoint("without")
    os.mkdir(path)
    os.chmod(path, 0o777)
    public = view.checkpoint("public")
    view.restore(without)
    os.mkdir(path, 0o700)
    view.write("d/key", "SECRET")
    private = view.checkpoint("private")
    view.restore(public)

    steps, answers = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()

    def stranger():
        os.chdir(path)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        answers.put("here")
        steps.get()
        answers.put(os.stat(".").st_mode & 0o777)  # it is dead now, and the kernel knows its mode
        steps.get()
        answers.put([os.access("key", os.R_OK, effective_ids=True), can_make("planted")])

    def can_make(name):
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        except OSError:
            return False
        return True

    p = multiprocessing.Process(target=stranger)
    p.start()
    answers.get()
    view.restore(without)
    steps.put("look")
    assert answers.get() == 0o777
    view.restore(private)
    steps.put("try")
    assert answers.get() == [False, False]
    p.join()
    assert view.ls("d") == ["key"]


# ---- what is seen afterwards ----

def test_a_dead_working_directory_that_comes_back_has_its_files(t):
    view = t.view()
    without = view.checkpoint("without")
    view.write("d/old", "1")
    old = view.checkpoint("old")
    view.restore(without)
    view.write("d/new", "2")
    new = view.checkpoint("new")
    view.restore(old)
    fd = os.open(view.at("d"), os.O_RDONLY)
    try:
        os.stat("old", dir_fd=fd)
        view.restore(without)
        for name in "old", "new":
            try:
                os.stat(name, dir_fd=fd)
                assert False, name
            except FileNotFoundError:
                pass
        view.restore(new)
        assert os.listdir(fd) == ["new"]
        os.stat("new", dir_fd=fd)
        assert view.read("d/new") == "2"
    finally:
        os.close(fd)


def test_a_rename_across_a_restore_moves_what_is_there_now(t):
    two = Two(t, lambda view: view.write("a", "of b"), lambda view: view.write("a", "of a"))
    a, b = two.view.at("a"), two.view.at("b")
    go, done = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()

    def rename():
        rng = random.Random(1)
        while go.get():
            until = time.perf_counter_ns() + rng.randrange(2000000)
            while time.perf_counter_ns() < until:
                pass
            try:
                os.rename(a, b)
                done.put(True)
            except FileNotFoundError:
                done.put(False)

    p = multiprocessing.Process(target=rename)
    p.start()
    end, tried, stale = time.monotonic() + 2 * SECONDS, 0, []
    while time.monotonic() < end or tried <= 10:
        two.restore(two.b)
        ply.read(a)
        two.warm()
        go.put(True)
        ply.ioctl_restore(two.fd, two.a)
        if done.get() and os.path.exists(b):
            tried += 1
            stale += [ply.read(b)] if ply.read(b) != "of a" else []
    go.put(False)
    p.join()
    assert not stale, (tried, len(stale), stale[:1])


def test_a_directory_that_is_looked_up_meanwhile_has_its_new_mode(t):
    view = t.view({"d/z": ""})
    without = view.checkpoint("without")
    os.mkdir(view.at("d/c"))
    states = []
    for mode in 0o755, 0o700:
        os.chmod(view.at("d/c"), mode)
        states.append(view.checkpoint("%o" % mode))
    go, done = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()

    def look():
        os.nice(5)
        while go.get():
            os.listdir(view.at("d")) if random.random() < 0.5 else os.stat(view.at("d/c"))
            done.put(True)

    def burn(stop):
        while not stop.is_set():
            pass

    p = multiprocessing.Process(target=look)
    p.start()
    hog = Beside(burn)  # so that what was answered does not arrive at once
    end, tried, stale = time.monotonic() + 2 * SECONDS, 0, 0
    with view.fd() as fd:
        while time.monotonic() < end or tried <= 10:
            ply.ioctl_restore(fd, without)
            ply.ioctl_restore(fd, states[0])
            go.put(True)
            until = time.perf_counter_ns() + random.randrange(3000000)
            while time.perf_counter_ns() < until:
                pass
            ply.ioctl_restore(fd, states[1])
            done.get()
            tried += 1
            stale += os.stat(view.at("d/c")).st_mode & 0o777 != 0o700
    go.put(False)
    p.join()
    hog.end()
    assert stale == 0, (tried, stale)


def test_a_mount_made_right_after_a_restore_stays(t):
    ply.need_root()
    two = Two(t, lambda view: None)
    last = two.view.at("many/x%d" % (MANY - 1))
    other = t.at("other")
    ply.write(other, "mounted")
    for _ in range(10):
        two.restore(two.b)
        with open(last):  # its old file lives on
            two.restore(two.a)
            t.run(["mount", "--bind", other, last])
            time.sleep(0.05)  # what is done after the answer is done
            got = ply.read(last)
            t.run(["umount", last], check=False)
        assert got == "mounted", got


# ---- many at once ----

def test_restores_from_everywhere_at_once_end(t):
    two = Two(t, lambda view: None)
    end = time.monotonic() + SECONDS
    counts = {"restored": 0, "refused": 0, "looked": 0}

    def restore(k):
        for i in range(1000000):
            if time.monotonic() > end:
                return
            try:
                ply.ioctl_restore(two.fd, (two.a, two.b)[(i + k) % 2])
                counts["restored"] += 1
            except BlockingIOError:
                counts["refused"] += 1
                time.sleep(0.01)

    def look():
        while time.monotonic() < end or not counts["looked"]:
            for i in range(50):
                os.stat(two.view.at("many/x%d" % i))
                os.path.exists(two.view.at("many/none%d" % i))
            os.listdir(two.view.at("many"))
            counts["looked"] += 1

    threads = [threading.Thread(target=restore, args=(k,), daemon=True) for k in range(150)]
    threads += [threading.Thread(target=look, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stuck = sum(thread.is_alive() for thread in threads)
    if stuck:
        two.view.store.kill()  # or nobody could be waited for
    assert stuck == 0 and counts["restored"] > 0 and counts["looked"] > 0, (stuck, counts)


if __name__ == "__main__":
    ply.main()
