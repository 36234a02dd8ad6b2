#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: posix
# timeout: 120
"""Leaving a view: who keeps it busy is told, and nothing stays of clients that are gone."""
import contextlib
import ctypes
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

TREESTORM = os.path.join(ply.BUILD, "tests", "treestorm")
SEED = os.environ.get("PLYFS_TEST_SEED") or str(int(time.time()))
libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def holder(work):
    """A process that did `work` and sleeps then; "PID (NAME)" as it should be told."""
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept = work()
            os.write(ready[1], b"1")
            signal.pause()
            del kept
        finally:
            os._exit(1)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1) == b"1", "the holder could not do its part"
        with open("/proc/%d/comm" % pid) as f:
            yield r"%d \(%s\)" % (pid, f.read().strip())
    finally:
        os.close(ready[0])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def mapped(path):
    """A mapping whose descriptor is closed."""
    fd = os.open(path, os.O_RDONLY)
    libc.mmap.restype = ctypes.c_void_p
    assert libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, fd,
                     ctypes.c_int64(0)) != ctypes.c_void_p(-1).value
    os.close(fd)


def refuses(view, says):
    said = view.store.fails("unmount", view.path, says=says)
    assert "--lazy" in said and said.count("\n") == 1, said
    assert view.read("a.txt") == "one\n"


def test_unmount_names_the_process_that_keeps_a_view_busy(t):
    view = t.view()
    for work in (lambda: os.chdir(view.at("dir")), lambda: os.open(view.at("a.txt"), os.O_RDONLY),
                 lambda: os.open(view.at("new"), os.O_CREAT | os.O_WRONLY),
                 lambda: os.open(view.path, os.O_PATH), lambda: mapped(view.at("a.txt"))):
        with holder(work) as who:
            refuses(view, who)
    with holder(lambda: (os.open(view.at("new"), os.O_RDONLY), os.unlink(view.at("new")))) as who:
        refuses(view, who)
    shutil.copy(os.path.realpath(shutil.which("sleep")), view.at("nap"))
    p = subprocess.Popen([view.at("nap"), "100"])
    try:
        ply.wait_for("exec", lambda: os.readlink("/proc/%d/exe" % p.pid) == view.at("nap"))
        refuses(view, r"%d \(nap\)" % p.pid)
    finally:
        p.kill()
        p.wait()
    if os.geteuid() == 0:
        with holder(lambda: os.chroot(view.path)) as who:
            refuses(view, who)
    view.unmount()


def test_unmount_names_several_and_not_everybody(t):
    view = t.view()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(holder(lambda: os.chdir(view.path)))
        said = view.store.fails("unmount", view.path, says="in use by")
        assert said.count("(") == 5, said
    view.unmount()


def test_unmount_names_mounts_and_loop_devices_in_a_view(t):
    ply.need_root()
    view = t.view({"a.txt": "one\n", "at": None})
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", view.at("at")]).returncode:
        ply.skip("no tmpfs may be mounted here")
    t.clean.append(lambda: subprocess.run(["umount", view.at("at")], stderr=subprocess.DEVNULL))
    refuses(view, "the mount on " + view.at("at"))
    t.run(["umount", view.at("at")])

    with open(view.at("image"), "wb") as f:
        f.truncate(1 << 20)
    p = t.run(["losetup", "-f", "--show", view.at("image")], check=False)
    if p.returncode == 0:
        device = p.stdout.strip()
        try:
            refuses(view, os.path.basename(device))
        finally:
            t.run(["losetup", "-d", device])
        # The kernel lets go of it some moments later.
        ply.wait_for("the loop device's end", lambda: not subprocess.run(
            ["losetup", "-j", view.at("image")], stdout=subprocess.PIPE).stdout)
    view.unmount()


def test_unmount_tells_what_holds_a_view_elsewhere(t):
    ply.need_root()
    if not ply.own_mounts:  # as in a plain chroot; or sandboxes of other tests hold the view as well
        ply.skip("no mount namespaces here")
    view = t.view()
    os.mkdir(t.at("bound"))
    t.run(["mount", "--bind", view.at("dir"), t.at("bound")])
    t.clean.append(lambda: subprocess.run(["umount", t.at("bound")], stderr=subprocess.DEVNULL))
    view.store.fails("unmount", view.path, says="(?s)unmounted.*the mount on " + t.at("bound"))
    assert ply.read(t.at("bound/b.txt")) == "two\n"
    t.run(["umount", t.at("bound")])
    ply.wait_for("the view's end", lambda: not view.store.json("status")["views"])

    view.store.mount(at=view.path)


    def leave():
        assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
        assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE

    with holder(leave) as who:
        p = subprocess.Popen([ply.PLYFS, "unmount", view.path], stderr=subprocess.PIPE, text=True,
                             env=t.env)
        said = p.stderr.readline()
        assert re.search("unmounted; waiting.*%s in another" % who, said), said
        assert p.poll() is None
    assert p.wait(timeout=60) == 0 and not view.store.json("status")["views"]
    p.stderr.close()


# ---- what stays ----

def counters(view):
    """Node ids that the kernel holds, and inodes in the tree."""
    return view.store.status()["views"][0]["nodes"], view.inodes()


def at_rest(view):
    """Counters to compare with: the kernel tells of what it forgets when it likes."""
    seen = []
    while len(seen) < 3 or seen[-3:] != seen[-1:] * 3:
        ply.drop_caches()
        time.sleep(0.05)
        seen.append(counters(view))
    return seen[-1]


def settles(view, want):
    def same():
        ply.drop_caches()
        return counters(view) == want
    try:
        ply.wait_for("the counters of before", same)
    except AssertionError:
        raise AssertionError("nodes, inodes: %s; wanted %s" % (counters(view), want)) from None


def test_killed_clients_leave_no_nodes_and_no_inodes(t):
    view = t.view({"f": "1", "d/g": "2"})
    before = at_rest(view)

    def work():
        kept = [os.open(view.path, os.O_TMPFILE | os.O_RDWR) for _ in range(50)]
        for i in range(50):
            name = view.at("d/n%d" % i)
            kept.append(os.open(name, os.O_CREAT | os.O_RDWR))
            os.write(kept[-1], b"x" * 5000)
            os.unlink(name)
        os.mkdir(view.at("gone"))
        kept.append(os.open(view.at("gone"), os.O_RDONLY))
        os.chdir(view.at("gone"))
        os.rmdir(view.at("gone"))
        mapped(view.at("f"))
        libc.inotify_add_watch(libc.inotify_init1(0), os.fsencode(view.at("d")), 0xfff)
        return kept

    with holder(work):
        nodes, inodes = counters(view)
        assert nodes >= before[0] + 101 and inodes == before[1] + 101, (nodes, inodes, before)
    settles(view, before)
    assert view.ls("d") == ["g"]


def test_a_storm_that_is_killed_leaves_no_nodes_and_no_inodes(t):
    view = t.view({"f": "1"})
    before = at_rest(view)
    for n in range(10 if ply.LONG else 2):
        os.mkdir(view.at("s"))
        p = ply.run([TREESTORM, "--seed", SEED + str(n), "--processes", "6", "--seconds", "2",
                     "--kill", view.at("s")], check=False)
        assert p.returncode == 0, p.stdout + p.stderr
        subprocess.run(["rm", "-rf", view.at("s")], check=True)
        settles(view, before)
    assert view.ls() == ["f"]
    assert view.store.ply("check").returncode == 0


def test_restores_under_a_storm_that_is_killed_leave_no_nodes(t):
    view = t.view({"f": "1", "s": None})
    first = view.checkpoint()
    before = at_rest(view)
    p = subprocess.Popen([TREESTORM, "--seed", SEED, "--processes", "4", "--seconds", "60",
                          view.at("s")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         start_new_session=True)
    try:
        for _ in range(30):
            time.sleep(0.05)
            view.restore(first)
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
    view.restore(first)
    settles(view, before)
    assert view.ls("s") == []


def test_who_waits_for_the_reader_of_a_fifo_can_leave(t):
    t.env["PLYFSD_IDLE"] = "0.1"
    store, fifo = t.store(), t.at("fifo")
    store.import_(t.tree({"f": "1"}))
    os.mkfifo(fifo)
    p = subprocess.Popen([ply.PLYFS, "--store", store.path, "export", "main", "--tar", fifo], env=t.env)
    ply.wait_for("a daemon", store.daemon)
    time.sleep(0.3)  # it waits in the daemon by now; if not, nothing is shown
    pid = store.daemon()
    p.kill()
    p.wait()
    ply.wait_for("the daemon's end", lambda: not ply.alive(pid), 10)
    p = subprocess.Popen([ply.PLYFS, "--store", store.path, "export", "main", "--tar", fifo], env=t.env)
    assert t.run(["tar", "tf", fifo]).stdout == "./\nf\n" and p.wait() == 0


def test_who_unmounts_from_within_another_view_waits_for_the_right_one(t):
    ply.need_tool("strace")
    if ply.is_sanitized(ply.PLYFS):
        ply.skip("the leak sanitizer does not work under strace")
    view = t.view()
    other = view.fork("other")
    p = t.run(["strace", "-e", "trace=sendmsg", "-s", "600", ply.PLYFS, "unmount", other.path],
              cwd=view.path)
    asked = [line for line in p.stderr.splitlines() if "unmount" in line]
    assert len(asked) == 1 and r"%s\0other\0" % other.path in asked[0], asked


if __name__ == "__main__":
    ply.main()
