#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: restore
# timeout: 240
"""
What is removed or replaced at the very moment of a restore: the kernel asked by what was there
before, and is answered by what is there after it. So that the two meet, the daemon is stopped until
both are on their way. (Which one it takes first is open: it is tried until it was the restore.)
"""
import errno
import multiprocessing
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

CROSSED = 20 if ply.LONG else 5
MANY = 2100  # names that differ besides: more are told by epoch (fs/switch.c)
NOBODY = 65534


class Crossing:
    """A view in state a, and the state b."""

    def __init__(self, t, a, b, many=0):
        ply.need_root()
        if not os.path.exists("/proc/self/stack"):
            ply.skip("no /proc/PID/stack here")
        self.view = t.view({})
        a(self.view)
        self.a = self.view.checkpoint("a")
        for i in range(many):
            self.view.write("many/x%d" % i, "")
        b(self.view)
        self.b = self.view.checkpoint("b")
        self.pid = self.view.store.daemon()
        self.fd = os.open(self.view.path, os.O_RDONLY)
        t.clean.append(lambda: os.close(self.fd))

    def go(self, snap):
        ply.ioctl_restore(self.fd, snap)

    def cross(self, work, uid=0):
        """Restores b, and another process does `work` meanwhile: the error it got, or None."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            tasks = "/proc/%d/task" % self.pid
            ply.wait_for("the daemon to stop", lambda: all(
                " T " in ply.read("%s/%s/stat" % (tasks, task)) for task in os.listdir(tasks)))
            restore = ply.child(self.go, self.b)
            ply.wait_for("the restore to be asked for", lambda: waits(restore))
            other = Other(work, uid)
            ply.wait_for("the other to ask", lambda: waits(other.process.pid))
        finally:
            os.kill(self.pid, signal.SIGCONT)
        assert ply.ended_well(restore)
        return other.end()


class Other:
    def __init__(self, work, uid):
        self.work, self.uid, self.error = work, uid, multiprocessing.SimpleQueue()
        self.process = multiprocessing.Process(target=self.run)
        self.process.start()

    def run(self):
        if self.uid:
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)
        try:
            self.work()
            self.error.put(None)
        except OSError as e:
            self.error.put(errno.errorcode[e.errno])

    def end(self):
        error = self.error.get()
        self.process.join()
        return error


def waits(pid):
    """For an answer from a view."""
    return "request_wait_answer" in ply.read("/proc/%d/stack" % pid)


def a_directory_that_moved_is_alive(t, many):
    def a(view):
        os.mkdir(view.at("d"))
        os.mkdir(view.at("y"))

    def b(view):
        os.rename(view.at("d"), view.at("e"))
        os.rename(view.at("y"), view.at("d"))

    c = Crossing(t, a, b, many)
    crossed = 0
    while crossed < CROSSED:
        c.go(c.a)
        held = os.open(c.view.at("d"), os.O_RDONLY)  # e, in b
        assert c.cross(lambda: os.rmdir(c.view.at("d"))) is None
        os.mkdir(c.view.at("e/in"))
        if "d" not in c.view.ls():
            crossed += 1
            assert os.listdir(held) == ["in"]  # else it was removed before, and another one is back
        os.close(held)


def test_a_directory_that_moved_is_alive_when_its_former_name_is_removed(t):
    a_directory_that_moved_is_alive(t, 0)


def test_so_it_is_by_epoch(t):
    a_directory_that_moved_is_alive(t, MANY)


def test_a_directory_is_alive_that_comes_back_later(t):
    def a(view):
        os.mkdir(view.at("d"))
        os.mkdir(view.at("y"))

    def b(view):
        os.rmdir(view.at("d"))
        os.rename(view.at("y"), view.at("d"))

    c = Crossing(t, a, b)
    crossed = 0
    while crossed < CROSSED:
        c.go(c.a)
        held = [os.open(c.view.at(name), os.O_RDONLY) for name in ("d", "y")]
        assert c.cross(lambda: os.rmdir(c.view.at("d"))) is None
        crossed += "d" not in c.view.ls()
        c.go(c.a)
        os.mkdir(c.view.at("d/in"))
        assert c.view.ls("d") == ["in"]
        for fd in held:
            os.close(fd)


def test_a_directory_that_moved_is_alive_when_its_former_name_is_taken(t):
    """The kernel looks a name up before it replaces it; a restore fits between all the same."""
    def a(view):
        os.mkdir(view.at("d"))
        os.mkdir(view.at("y"))

    c = Crossing(t, a, lambda view: os.rename(view.at("d"), view.at("e")), MANY)
    for _ in range(4 * CROSSED):
        c.go(c.a)
        held = os.open(c.view.at("d"), os.O_RDONLY)
        assert c.cross(lambda: os.rename(c.view.at("y"), c.view.at("d"))) is None
        os.mkdir(c.view.at("e/in"))
        os.close(held)


def test_a_file_of_others_stays(t):
    os.chmod(t.path, 0o755)

    def a(view):
        os.mkdir(view.at("tmp"))
        os.chmod(view.at("tmp"), 0o1777)
        view.write("tmp/f", "his")
        os.chown(view.at("tmp/f"), NOBODY, NOBODY)

    def b(view):
        os.unlink(view.at("tmp/f"))
        view.write("tmp/f", "root's")

    c = Crossing(t, a, b)
    refused = 0
    while refused < CROSSED:
        c.go(c.a)
        tmp = os.open(c.view.at("tmp"), os.O_RDONLY)
        look = Other(lambda: os.stat("f", dir_fd=tmp), NOBODY)  # and nobody has to ask for ACLs
        assert look.end() is None
        error = c.cross(lambda: os.unlink("f", dir_fd=tmp), NOBODY)
        assert error in (None, "EPERM"), error
        refused += error == "EPERM"
        os.close(tmp)
        assert c.view.read("tmp/f") == "root's"


if __name__ == "__main__":
    ply.main()
