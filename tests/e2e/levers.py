#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""
Each lever can be switched off (mount --without): the view is as right, only the counters differ, and
a daemon that follows another serves it alike.
"""
import contextlib
import functools
import glob
import os
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

LEVERS = ["cache", "no-open", "readdirplus", "epoch", "awake", "read-ahead", "write-around",
          "eager"]
# More than any restore tells by name where there are epochs (NAMES_MAX in fs/switch.c).
MANY = 3000


def mounted(t, without, files=None):
    """A view of a fork: all of a test's are of one store."""
    if not t.stores:
        t.store().import_(t.tree(files or {"a.txt": "one\n", "dir/b.txt": "two\n"})
                          if not isinstance(files, str) else files)
    store = t.stores[0]
    at = t.at("without-" + without if without else "with-all")
    os.mkdir(at)
    branch = os.path.basename(at).replace(",", ".")[:63]  # no name is longer
    store.ply("fork", "--from", "main", branch, "--at", at,
              *(["--without", without] if without else []))
    store.daemon()
    return ply.View(store, at)


def shown(view):
    return next(v for v in view.store.json("status", "--ops")["views"]
                if v["mountpoint"] == view.path)


def ops(view, *names):
    counts = shown(view)["ops"]
    return sum(counts.get(name, 0) for name in names)


def test_help_completion_and_mistakes_know_all(t):
    store = t.store()
    told = t.run([ply.PLYFS, "mount", "--help"]).stdout
    offered = t.run([ply.PLYFS, "completion", "bash"]).stdout
    said = store.fails("mount", "--at", t.path, "--without", "cache,speed", code=2, says="'speed'")
    assert "'%s'" % " ".join(LEVERS) in offered
    for lever in LEVERS:
        assert "\n      %s: " % lever in told and lever in said, lever
    os.mkdir(t.at("m"))
    store.fails("fork", "x", "--at", t.at("m"), "--without", "", code=2)


def test_status_shows_what_a_view_does_without(t):
    view = mounted(t, "no-open,cache")
    assert shown(view)["without"] == ["cache", "no-open"]
    assert re.search("without-no-open,cache .*, without cache,no-open$", view.store.out("status"),
                     re.M)
    usual = mounted(t, "")
    assert shown(usual)["without"] == []
    assert "with-all" in view.store.out("status")


def test_the_short_form_takes_it(t):
    top = t.tree({"a": "1"})
    t.run([ply.PLYFS, "mount", top, "--without", "readdirplus"])
    t.adopt(top)
    assert shown(ply.View(t.stores[0], top))["without"] == ["readdirplus"]
    t.run([ply.PLYFS, "unmount", top])


# ---- the view is right ----

def rename_all(view):
    """More names differ than a restore tells one by one."""
    for top, _, names in os.walk(view.path):
        for name in names:
            os.rename(os.path.join(top, name), os.path.join(top, "was-" + name))


def restores_are_right(t, without):
    source = ply.make_bulk(t.at("source"), MANY, size=40)
    view = mounted(t, without, source)
    first = view.checkpoint()
    ply.assert_same_tree(source, view.path)
    view.write("new", "1")
    rename_all(view)
    os.unlink(view.at("was-new"))
    names, second = ply.treelist(view.path), view.checkpoint()
    for _ in range(2):
        view.restore(first)
        ply.assert_same_tree(source, view.path)
        view.restore(second)
        assert ply.treelist(view.path) == names
        assert not os.path.exists(view.at("d000/s0000/f000.txt"))
    view.undo()
    ply.assert_same_tree(source, view.path)
    return shown(view)["notifications"]


def test_restores_without_cache(t):
    restores_are_right(t, "cache")


def test_restores_without_no_open(t):
    restores_are_right(t, "no-open")


def test_restores_without_readdirplus(t):
    restores_are_right(t, "readdirplus")


def test_restores_without_epoch(t):
    with ply.caches_stay():  # of a name that the kernel has forgotten it is not told
        told = restores_are_right(t, "epoch")
    assert told["epochs"] == 0 and told["entries"] > 5 * 2 * MANY, told


def test_restores_without_anything(t):
    restores_are_right(t, ",".join(LEVERS))


def test_another_history_without_epoch(t):
    """The numbers of inodes mean nothing there: by path, and names that were not there before."""
    view = mounted(t, "epoch", {"keep/a": "1", "keep/sub/deep": "1", "go/b": "2", "file": "3"})
    other = t.tree({"go/new": "5", "keep/a": "4", "keep/sub/new": "6", "keep/c": "7", "late": "8",
                    "file/is/now": "9"}, "other")
    first = view.checkpoint()
    second = view.store.import_(other, "--branch", "other")
    for _ in range(2):
        for name in ("late", "keep/c", "keep/sub/new", "go/new", "file/is/now"):
            assert not os.path.exists(view.at(name)), name
        view.restore(second)
        for name in ("late", "keep/c", "keep/sub/new", "go/new", "file/is/now"):
            assert os.path.exists(view.at(name)), name
        ply.assert_same_tree(other, view.path)
        view.restore(first)
        ply.assert_same_tree(t.at("source"), view.path)


# ---- the counters show it ----

def counting(test):
    """No other test has the machine forget what was cached."""
    @functools.wraps(test)
    def calm(t):
        with ply.caches_stay():
            test(t)
    return calm


@counting
def test_what_the_cache_saves(t):
    for without in ("", "cache"):
        view = mounted(t, without)
        before = ops(view, "LOOKUP", "GETATTR", "READ")
        for _ in range(20):
            assert view.read("dir/b.txt") == "two\n"
            assert not os.path.exists(view.at("none"))
        spent = ops(view, "LOOKUP", "GETATTR", "READ") - before
        assert spent >= 80 if without else spent < 20, (without, spent)


@counting
def test_who_has_gone_costs_who_looks_at_what_he_wrote_nothing_for_long(t):
    """He asked nothing after his last write, and no close is told once an open was refused (fs/around.c)."""
    view = mounted(t, "")
    assert view.read("a.txt") == "one\n"
    names = ["new%d" % i for i in range(20)]
    assert all(ply.ended_well(ply.child(view.write, name, name)) for name in names)

    def costs():
        before = ops(view, "LOOKUP", "GETATTR")
        for name in names:
            assert os.stat(view.at(name)).st_size == len(name)
        return ops(view, "LOOKUP", "GETATTR") - before
    ply.wait_for("answers that stay", lambda: costs() < 3)


@counting
def test_what_no_open_saves(t):
    for without in ("", "no-open"):
        view = mounted(t, without)
        for _ in range(20):
            assert view.read("a.txt") == "one\n"
            assert view.ls("dir") == ["b.txt"]
        spent = ops(view, "OPEN"), ops(view, "OPENDIR")
        assert min(spent) >= 20 if without else max(spent) <= 1, (without, spent)
        if without:  # closing is told without anybody waiting for it
            ply.wait_for("RELEASE", lambda: ops(view, "RELEASE") >= 20 and
                         ops(view, "RELEASEDIR") >= 20)


@counting
def test_what_readdirplus_saves(t):
    files = {"many/%03d" % i: "x" for i in range(200)}
    for without in ("", "readdirplus"):
        view = mounted(t, without, files)
        for e in os.scandir(view.at("many")):
            assert e.stat(follow_symlinks=False).st_size == 1
        plus, plain = ops(view, "READDIRPLUS"), ops(view, "READDIR")
        lookups = ops(view, "LOOKUP")
        if without:
            assert plus == 0 and plain > 0 and lookups >= 200, (plus, plain, lookups)
        else:
            assert plus > 0 and lookups < 100, (plus, plain, lookups)


@counting
def test_what_reading_ahead_saves(t):
    """Who mounts as root may ask for it, where /sys can be written."""
    spent = {}
    for without in ("", "read-ahead"):
        view = mounted(t, without, {"big": "some bytes\n" * 800000})
        dev = os.stat(view.path).st_dev
        kib = int(ply.read("/sys/class/bdi/%d:%d/read_ahead_kb" % (os.major(dev), os.minor(dev))))
        if not without and kib < 1024:
            ply.skip("needs root and a /sys that can be written")
        assert (kib == 1024) == (not without), kib
        before = ops(view, "READ")
        with open(view.at("big"), "rb", buffering=0) as f:
            while f.read(1 << 17):
                pass
        spent[without] = ops(view, "READ") - before
    assert 2 * spent[""] < spent["read-ahead"], spent


@counting
def test_what_writing_around_saves(t):
    """Written through the cache the kernel first asks for file capabilities; past it, who reads."""
    can = "are written around" in t.run([ply.PLYFS, "doctor"], check=False).stdout
    for without in ("", "write-around"):
        view = mounted(t, without)
        before = ops(view, "GETXATTR"), ops(view, "READ")
        whole = "p" * 4096  # what fills no page is not cached by a write
        for i in range(20):
            view.write("new%d" % i, whole)
        asked = ops(view, "GETXATTR") - before[0]
        for _ in range(2):
            for i in range(20):
                assert view.read("new%d" % i) == whole
        read = ops(view, "READ") - before[1]
        if without or not can:
            assert asked >= 20 and read == 0, (without, asked, read)
        else:
            assert asked == 0 and read == 20, (without, asked, read)


# ---- idle CPUs ----

DEVICE = "/dev/cpu_dma_latency"


def can_keep_awake():
    with contextlib.suppress(OSError):
        return (ply.read("/sys/devices/system/cpu/cpuidle/current_driver") == "haltpoll\n" and
                os.access(DEVICE, os.W_OK))
    return False


def times_awake(view):
    return view.store.status()["daemon"]["awake"]


def wished():
    """The shortest time to wake that anybody wants, in us."""
    with open(DEVICE, "rb") as f:
        return struct.unpack("i", f.read(4))[0]


def others_have_it(view):
    """Whether a process besides the view's daemon has the device open."""
    ours = "/proc/%d/" % view.store.daemon()
    for fd in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(fd) == DEVICE and not fd.startswith(ours):
                return True
    return False


def storm(view, until):
    """Requests that follow each other closely, as far as others let them."""
    def some():
        for _ in range(200):
            os.statvfs(view.path)
        return until()
    return ply.wait_for("an effect of many requests", some)


def test_cpus_stay_awake_while_requests_come(t):
    if not can_keep_awake():
        ply.skip("needs root, /dev/cpu_dma_latency, and CPUs that haltpoll gives back")
    view = mounted(t, "")
    storm(view, lambda: times_awake(view) > 0)
    storm(view, lambda: wished() == 0)
    try:
        ply.wait_for("nobody's wish", lambda: wished() > 0)
    except AssertionError:
        if not others_have_it(view):  # one who is stopped goes on wishing
            raise
    # Now and then is not often: what comes alone may sleep.
    before = times_awake(view)
    for _ in range(20):
        time.sleep(0.01)
        os.statvfs(view.path)
    assert times_awake(view) <= before + 2, "status asks a view little"
    assert re.search("^awake +[1-9]", view.store.out("status", "--ops"), re.M)


def test_cpus_sleep_without_awake(t):
    if not can_keep_awake():
        ply.skip("needs root, /dev/cpu_dma_latency, and CPUs that haltpoll gives back")
    view = mounted(t, "awake")
    for _ in range(2000):
        os.statvfs(view.path)
    assert not times_awake(view)


def test_status_says_whether_it_can_be_done(t):
    view = mounted(t, "")
    assert (times_awake(view) is not None) == can_keep_awake()


# ---- waiting for requests ----

def others_running():
    return int(ply.read("/proc/loadavg").split()[3].split("/")[0]) - 1


def test_requests_in_a_row_are_found_before_the_daemon_sleeps(t):
    view, busy = mounted(t, ""), []

    def found():
        busy.append(others_running() >= os.cpu_count() - 1)
        return shown(view)["found"] > 0

    with contextlib.suppress(AssertionError):
        storm(view, found)
    if shown(view)["found"] == 0 and sum(busy) > len(busy) / 2:
        ply.skip("all CPUs were busy")
    assert re.search("found before the daemon slept: [1-9]", view.store.out("status", "--ops"))


def test_a_daemon_that_others_leave_no_cpu_sleeps(t):
    view = mounted(t, "")
    hogs = [subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
                             stdout=subprocess.PIPE) for _ in range(os.cpu_count())]
    try:
        for p in hogs:
            p.stdout.readline()  # who only begins waits for the disk now and then
        ply.wait_for("busy CPUs", lambda: others_running() >= len(hogs))
        for _ in range(5000):
            os.statvfs(view.path)
        # One that moves from CPU to CPU may be missed when those that run are counted.
        assert shown(view)["found"] < 500
    finally:
        for p in hogs:
            p.kill()
            p.communicate()


def test_the_daemon_sleeps_at_once_without_eager(t):
    view = mounted(t, "eager")
    for _ in range(2000):
        os.statvfs(view.path)
    assert shown(view)["found"] == 0


# ---- another daemon ----

def test_the_next_daemon_serves_it_alike(t):
    t.deaths()
    view = mounted(t, "no-open,readdirplus")
    cached = mounted(t, "cache")
    os.kill(view.store.daemon(), signal.SIGKILL)
    os.statvfs(view.path)
    assert shown(view)["without"] == ["no-open", "readdirplus"]
    assert shown(cached)["without"] == ["cache"]
    for _ in range(10):
        assert view.read("a.txt") == cached.read("a.txt") == "one\n"
        assert view.ls("dir") == cached.ls("dir") == ["b.txt"]
    assert ops(view, "OPEN") >= 10 and ops(view, "READDIRPLUS") == 0
    assert ops(cached, "LOOKUP") >= 10


ply.main(__name__)
