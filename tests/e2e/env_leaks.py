#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 300
"""
Nothing is left of an environment: no process, mount, descriptor, file, branch or snapshot; after
many create, run, destroy cycles in one process, and after callers that were killed at random
moments. Callers are this script itself with libplyfs through ctypes; every process that comes of
one is known by a word in its environment.
"""
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

LIBRARY = os.path.join(ply.BUILD, "env", "libplyfs.so")
LOADS = ply.loads(LIBRARY)
CYCLES = 1000 if ply.LONG else 30
KILLS = 1000 if ply.LONG else 30
VERB_CYCLES = 100 if ply.LONG else 5


# ---- a caller: the library in a process of its own ----

class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("len", ctypes.c_size_t)]


class Result(ctypes.Structure):
    _fields_ = [("out", Text), ("err", Text), ("exit_code", ctypes.c_int),
                ("timed_out", ctypes.c_bool), ("truncated", ctypes.c_bool),
                ("out_of_memory", ctypes.c_bool), ("too_many_processes", ctypes.c_bool)]


class Library:
    def __init__(self):
        self.c = ctypes.CDLL(LIBRARY)
        self.c.ply_error.restype = ctypes.c_char_p
        self.c.ply_env_run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double,
                                       ctypes.c_char_p, ctypes.POINTER(Result)]

    def ok(self, r):
        assert r >= 0, self.c.ply_error().decode()

    def run(self, env, command, shell=None):
        result = Result()
        self.ok(self.c.ply_env_run(env, command.encode(), 20.0, shell, ctypes.byref(result)))
        code = result.exit_code
        self.c.ply_result_free(ctypes.byref(result))
        return code

    def cycle(self, options, i):
        env = ctypes.c_void_p()
        self.ok(self.c.ply_env_new(b"local", ctypes.byref(env)))
        try:
            for k, v in options.items():
                self.ok(self.c.ply_env_set(env, k.encode(), v.encode()))
            self.ok(self.c.ply_env_setup(env))
            # Things that would like to stay.
            code = self.run(env, "echo %d >f; exec >/dev/null 2>&1; "
                            "setsid sleep 600 & (sleep 600 &) ; exit 3" % i)
            assert code == 3, code
            snap = Text()
            self.ok(self.c.ply_env_checkpoint(env, None, ctypes.byref(snap)))
            self.run(env, "rm -f f; cd /; sleep 600 >/dev/null 2>&1 & sleep 0.0%d" % (i % 7))
            self.ok(self.c.ply_env_restore(env, snap.data))
            self.c.ply_text_free(ctypes.byref(snap))
            if i % 3 == 0:
                self.ok(self.c.ply_env_start_session(env, None))
                self.run(env, "sleep 600 & cd /tmp", b"main")
            self.ok(self.c.ply_env_cleanup(env))
        finally:
            self.c.ply_env_free(env)


def open_fds():
    return len(os.listdir("/proc/self/fd"))


def caller():
    """SCRIPT --caller CYCLES OPTIONS-AS-JSON; prints the descriptors before and after."""
    library, options = Library(), json.loads(sys.argv[3])
    library.cycle(options, 0)  # what a library opens once and keeps is no leak
    before = open_fds()
    print("ready", flush=True)
    for i in range(int(sys.argv[2])):
        library.cycle(options, i)
    print(before, open_fds(), flush=True)


# ---- what there is ----

def marked(mark):
    """Processes with the mark in their environment, as (pid, command line)."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                if mark.encode() not in f.read():
                    continue
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words and ply.alive(int(pid)):
            found.append((int(pid), words))
    return found


class Scene:
    """A store with a tree and one mounted view, which keeps the daemon alive."""

    def __init__(self, t):
        self.t = t
        for name in ("run", "state", "tmp"):
            os.mkdir(t.at(name), 0o700)
        t.env.update(XDG_RUNTIME_DIR=t.at("run"), XDG_STATE_HOME=t.at("state"),
                     TMPDIR=t.at("tmp"), PLYFS_PROGRAM=ply.PLYFS,
                     PLYFS_LIBEXEC=os.path.join(ply.BUILD, "env"))
        self.view = t.view({"a": "1", "d/b": "2"})
        self.mark = "PLYFS_LEAK_MARK=%d.%d" % (os.getpid(), id(self))
        self.env = dict(t.env, **dict([self.mark.split("=")]))
        self.options = {"store": self.view.store.path, "from": "main"}

    def start(self, cycles, options=None):
        if not LOADS:
            ply.skip("this sanitizer's library does not load into Python")
        p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--caller", str(cycles),
                              json.dumps(options or self.options)],
                             env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        return p

    def state(self):
        """Everything that could have been left, but processes."""
        places = [self.t.at(x) for x in ("run", "state", "tmp", "home")]
        tree = self.view.store.json("tree")
        return {
            "mounts": ply.mounts_below(self.t.path),
            "files": sorted(f for p in places for d, ds, fs in os.walk(p)
                            for f in (os.path.join(d, n) for n in ds + fs)
                            if not f.startswith(self.t.at("home/data"))),  # the stores stay
            "branches": sorted(b["name"] for b in tree["branches"]),
            "snapshots": sorted(s["id"] for s in tree["snapshots"]),
        }

    def assert_gone(self, before):
        try:
            ply.wait_for("no process", lambda: not marked(self.mark), 60)
        except AssertionError:
            raise AssertionError("processes are left: %s" % marked(self.mark))
        after = self.state()
        for what, had in before.items():
            assert after[what] == had, "%s: %s" % (what, [x for x in after[what] if x not in had])


# ---- tests ----

def test_many_cycles_leave_nothing(t):
    scene = Scene(t)
    before = scene.state()
    p = scene.start(CYCLES)
    out, err = p.communicate(timeout=3000)
    assert p.returncode == 0, err
    had, has = out.split()[-2:]
    assert had == has, "descriptors: %s, then %s" % (had, has)
    scene.assert_gone(before)


def test_callers_killed_at_random_leave_nothing(t):
    scene = Scene(t)
    before = scene.state()
    seed = int(os.environ.get("PLYFS_TEST_SEED") or time.time())
    print("# PLYFS_TEST_SEED=%d" % seed)
    rng = random.Random(seed)
    for i in range(KILLS):
        p = scene.start(1000)
        # Some while they still start, most in the middle of their cycles.
        if i % 5:
            assert p.stdout.readline() == "ready\n", p.stderr.read()
        time.sleep(rng.random() * 0.25)
        p.send_signal(signal.SIGKILL)
        p.communicate()
        scene.assert_gone(before)


def test_callers_killed_over_a_directory_leave_its_changes_in_it(t):
    scene = Scene(t)
    work = t.tree({"keep": "1"}, "work")
    rng = random.Random(int(os.environ.get("PLYFS_TEST_SEED") or 1))
    for i in range(max(3, KILLS // 10)):
        before = scene.state()
        p = scene.start(1000, {"workdir": work})
        assert p.stdout.readline() == "ready\n", p.stderr.read()
        time.sleep(rng.random() * 0.2)
        p.send_signal(signal.SIGKILL)
        p.communicate()
        scene.assert_gone(before)
        assert not os.path.ismount(work) and ply.read(work + "/keep") == "1"
        assert set(os.listdir(work)) <= {"keep", "f"}, os.listdir(work)


def test_cycles_of_the_verbs_leave_nothing(t):
    scene = Scene(t)
    run = lambda *a: t.run([ply.PLYFS, *a], cwd=scene.view.path, env=scene.env)
    run("env", "create", "warm")  # the directories that are made once
    run("session", "list")
    run("env", "destroy", "warm")
    before = scene.state()
    for i in range(VERB_CYCLES):
        at = run("env", "create", "e%d" % i).stdout.strip()
        run("session", "start", "--in", at, "s")
        run("session", "run", "--in", at, "s", "--", "sleep 600 & setsid sleep 600 & echo x >f")
        run("test", "--in", at, "--", "sleep 600 >/dev/null 2>&1 & echo '1 passed in 1s'")
        run("env", "destroy", "e%d" % i)
    scene.assert_gone(before)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--caller"]:
        caller()
    else:
        ply.main()
