#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 600
"""plyfs env, test, session, shell: environments, their tests and shells as verbs."""
import concurrent.futures
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


class Env:
    """The program with runtime, state and data directories of this test."""

    def __init__(self, t):
        self.t = t
        for name in ("run", "state"):
            os.mkdir(t.at(name), 0o700)
        t.env.update(XDG_RUNTIME_DIR=t.at("run"), XDG_STATE_HOME=t.at("state"), SHELL="/bin/bash")
        t.clean.append(self.end_all)

    def end_all(self):
        for s in json.loads(self("session", "list", "--json").stdout):
            self("session", "end", s["name"], "--in", s["dir"], check=False)
        for e in json.loads(self("env", "list", "--json").stdout):
            self("env", "destroy", "--force", e["name"], check=False)

    def __call__(self, *args, **kw):
        return self.t.run([ply.PLYFS, *args], **kw)

    def fails(self, *args, code=1, says="", **kw):
        p = self(*args, check=False, **kw)
        assert p.returncode == code, p
        assert re.search(says, p.stderr), p
        assert p.stderr.startswith("plyfs ") and p.stderr.count("\n") == 1, p
        return p

    def list(self, what):
        return json.loads(self(what, "list", "--json").stdout)


def over_directory(t, name="work"):
    """An environment over a directory: (Env, its path)."""
    env = Env(t)
    t.tree({"a.txt": "one\n", "dir/b.txt": "two\n"}, name)
    path = env("env", "create", name, t.at(name)).stdout.strip()
    store = ply.Store(t, init=False)
    with ply.View(store, path).fd() as fd:
        store.path = ply.ioctl_info(fd)["store"]
    store.daemon()
    t.stores.append(store)
    return env, path


def mounted(path):
    return bool(ply.mounts_below(path, "fuse"))


# ---- env ----


def test_nobodys_branch_is_taken_for_an_environments(t):
    env = Env(t)
    store = t.store()
    store.import_(t.tree({"a": "mine"}))
    store.mount()
    env.fails("env", "create", "--store", store.path, "main", says="there is a branch 'main'")
    assert env.list("env") == []
    # A record that says what we do not understand: destroying could drop the wrong thing.
    env("env", "create", "--store", store.path, "fork")
    # Its branch is not the user's to drop; nothing is made for one that cannot be.
    env.fails("env", "create", "--store", store.path, "--at", t.at("at"), "fork",
              says="there is an environment 'fork' already; take another name, or destroy it")
    assert not os.path.exists(t.at("at"))
    record = t.at("state", "plyfs", "env", "fork.json")
    whole = ply.read(record)
    ply.write(record, whole.replace('"forked"', '"from the future"'))
    env.fails("env", "destroy", "fork", says="damaged")
    assert {"main", "fork"} == {b["name"] for b in store.json("tree")["branches"]}
    # Nor is a command run as if nothing had been said of the place that it is for.
    place = json.loads(whole)["path"]
    env.fails("test", "--in", place, "touch ran", says="damaged")
    env.fails("session", "start", "s", "--in", place, says="damaged")
    assert not os.path.exists(os.path.join(place, "ran"))
    ply.write(record, whole)
    # What is no file at all is not waited for.
    os.mkfifo(t.at("state", "plyfs", "env", "pipe.json"))
    assert [e["name"] for e in env.list("env")] == ["fork"]
    env.fails("env", "destroy", "pipe", says="damaged")
    env("env", "destroy", "fork")
    assert [b["name"] for b in store.json("tree")["branches"]] == ["main"]


def test_an_environment_over_a_directory(t):
    env, path = over_directory(t)
    assert path == t.at("work") and mounted(path)
    assert ply.read(path + "/dir/b.txt") == "two\n"
    listed, = env.list("env")
    assert (listed["name"], listed["path"], listed["mounted"], listed["kind"]) == (
        "work", path, True, "local")
    assert "work" in env("env", "list").stdout
    ply.write(path + "/a.txt", "changed\n")
    p = env("env", "destroy", "--write-back", "work")
    assert not mounted(path) and ply.read(path + "/a.txt") == "changed\n", p
    assert env.list("env") == []


def test_destroy_without_write_back_leaves_the_directory_and_says_so(t):
    env, path = over_directory(t)
    ply.write(path + "/a.txt", "changed\n")
    p = env("env", "destroy", "work")
    assert ply.read(path + "/a.txt") == "one\n" and "writeback" in p.stderr, p


def test_a_fork_is_a_branch_that_goes_with_it(t):
    env, path = over_directory(t)
    fork = env("env", "create", "try", cwd=path).stdout.strip()
    assert fork == t.at("run/plyfs/env/try"), fork
    ply.write(fork + "/a.txt", "tried\n")
    assert ply.read(path + "/a.txt") == "one\n"
    names = [b["name"] for b in t.stores[0].json("tree")["branches"]]
    assert "try" in names, names
    env("env", "destroy", "try")
    assert not os.path.exists(fork)
    assert [b["name"] for b in t.stores[0].json("tree")["branches"]] == ["main"]


def test_a_fork_of_a_snapshot_of_a_store_at_a_place(t):
    env = Env(t)
    store = t.store()
    snap = store.import_(t.tree({"f": "1"}))
    at = t.at("place")
    env("env", "create", "--store", store.path, "--from", snap, "--at", at, "x")
    store.daemon()
    assert ply.read(at + "/f") == "1"
    env("env", "destroy", "x")
    assert os.listdir(at) == [] and env.list("env") == []


def test_an_environment_on_a_view_leaves_it_mounted(t):
    env = Env(t)
    view = t.view()
    env("env", "create", "mine", view.path)
    env("env", "destroy", "mine")
    assert view.read("a.txt") == "one\n"


def test_seconds_are_written_as_for_run(t):
    env = Env(t)
    view = t.view()
    env("env", "create", "--timeout", "1h", "mine", view.path)
    env("test", "--", "true", cwd=view.path)
    p = env("test", "--timeout", "0.005m", "--", "sleep 60", cwd=view.path, check=False)
    assert p.returncode == 124, p
    with subprocess.Popen([ply.PLYFS, "serve", "--port", "0", "--timeout", "2m"], cwd=view.path, env=t.env,
                          stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline().startswith("listening at ")
        p.terminate()
    env("env", "destroy", "mine")


def test_mistakes_are_told_in_one_line(t):
    env, path = over_directory(t)
    env.fails("env", "create", "work", path, says="already")
    env.fails("env", "create", "../x", path, code=2, says="name")
    env.fails("env", "create", "--kind", "nope", "x", path, code=2, says="--kind")
    env.fails("env", "create", "x", t.at("absent"), says="absent")
    odd = t.at("b\udcffd")
    os.mkdir(odd)
    env.fails("env", "create", "x", odd, says="d' is not UTF-8, and an environment's record is: rename")
    assert [e["name"] for e in env.list("env")] == ["work"]
    p = env.fails("env", "create", "x", cwd=t.path, says="not in a plyfs view; .*--store")
    assert "--in" not in p.stderr, p  # it has none
    for option, value in (("timeout", "soon"), ("network", "2"), ("test-rule", "x")):
        env.fails("env", "create", "--" + option, value, "x", path, code=2,
                  says=option.replace("-", "."))
    env.fails("test", "--timeout", "soon", code=2, cwd=path, says="timeout")
    env.fails("env", "destroy", "nobody", says="no environment 'nobody'")
    env.fails("env", "destroy", "--write-back", "nobody", says="no environment")
    env.fails("env", "frobnicate", code=2, says="create, list, destroy")
    env.fails("session", "run", "x", "--", "true", cwd=t.path, says="not in a plyfs view; .*--in DIR", code=125)
    # A name where the directory is wanted.
    env.fails("session", "start", "x", "--in", "agent", cwd=t.path, says="'plyfs env list' tells")
    env.fails("session", "run", "x", "--", "true", cwd=path, says="no session 'x'", code=125)
    env.fails("test", cwd=t.path, says="not in a plyfs view")
    env.fails("shell", "--at-exit", "maybe", code=2, cwd=path, says="keep, checkpoint or discard")
    assert [e["name"] for e in env.list("env")] == ["work"]


def test_where_nothing_can_be_remembered_nothing_was(t):
    """What only asks whether a view is an environment's works with a HOME that is not there, or not to be written."""
    env = Env(t)
    view = t.view({"f": "1"})
    del t.env["XDG_STATE_HOME"]
    for home in ("/proc", "/dev/null", t.at("none")):
        t.env["HOME"] = home
        assert env.list("env") == []
        env("test", "--in", view.path, "--", "true")
        env("shell", "--in", view.path, input="exit 3\n", check=False)
        env("session", "start", "--in", view.path, "s")
        assert env("session", "run", "--in", view.path, "s", "--", "echo $HOME").stdout == home + "\n"
        env("session", "end", "--in", view.path, "s")
        env.fails("env", "destroy", "x", says="there is no environment 'x'")
        if home != t.at("none"):
            for says in ("making '%s/.local': " % home, "; set XDG_STATE_HOME to name another place"):
                env.fails("env", "create", "x", view.path, says=says)
    assert not os.path.exists(t.at("none"))
    del t.env["HOME"]
    for words in (["test", "--in", view.path, "--", "true"], ["env", "list"]):
        env.fails(*words, says="neither XDG_STATE_HOME nor HOME says where environments are remembered; set one")
    t.env["XDG_STATE_HOME"] = t.at("state")


def test_a_busy_environment_is_not_destroyed_by_halves(t):
    env, path = over_directory(t)
    fork = env("env", "create", "busy", cwd=path).stdout.strip()
    with open(fork + "/held", "w"):
        says = env.fails("env", "destroy", "busy", says="in use", cwd=fork).stderr
        assert "'plyfs unmount --lazy'" in says and "(plyfs-env)" not in says, says
        assert mounted(fork) and len(env.list("env")) == 2
    env("env", "destroy", "busy", cwd=fork)
    assert not mounted(fork)


def test_of_an_environment_whose_daemon_is_dead_nothing_hides_the_directory(t):
    env, path = over_directory(t)
    fork = env("env", "create", "fork", cwd=path).stdout.strip()
    os.kill(int(ply.read("/proc/%d/stat" % t.stores[0].daemon()).rsplit(")", 1)[1].split()[1]), 9)  # its supervisor
    t.stores[0].kill()
    for name, where in (("fork", fork), ("work", path)):
        p = env("env", "destroy", name)
        assert p.stderr == "plyfs env destroy: the view's daemon had ended; '%s' is free again\n" % where, p
    assert not mounted(fork) and not os.path.exists(fork) and not mounted(path) and env.list("env") == []
    assert sorted(os.listdir(path)) == ["a.txt", "dir"]
    assert t.stores[0].out("tree", "--names") == "main"


def test_a_record_that_may_not_be_on_the_disk_is_none(t):
    ply.need_tool("strace")
    if ply.is_sanitized(ply.PLYFS):
        ply.skip("the leak sanitizer does not work under strace")
    env, path = over_directory(t)
    p = t.run(["strace", "-o", t.at("trace"), "-e", "trace=fsync", "-e", "inject=fsync:error=EIO",
               ply.PLYFS, "env", "create", "fork"], check=False, cwd=path)
    assert p.returncode == 1 and p.stderr.endswith("fork.json': Input/output error\n"), p
    assert [e["name"] for e in env.list("env")] == ["work"] and os.listdir(t.at("state/plyfs/env")) == ["work.json"]


def test_what_a_killed_create_left_can_be_destroyed(t):
    env, path = over_directory(t)
    for delay in (0.005, 0.02, 0.04, 0.06, 0.1):
        p = subprocess.Popen([ply.PLYFS, "env", "create", "k"], cwd=path, env=t.env,
                             stdout=subprocess.DEVNULL)
        time.sleep(delay)
        p.kill()
        p.wait()

        def is_gone():  # the daemon may still be about to do what it was asked for
            if any(e["name"] == "k" for e in env.list("env")):
                env("env", "destroy", "--force", "k", check=False)
            return [e["name"] for e in env.list("env")] == ["work"] and \
                not mounted(t.at("run")) and \
                [b["name"] for b in t.stores[0].json("tree")["branches"]] == ["main"]
        ply.wait_for("all of it to go", is_gone)


# ---- test ----

PYTEST = "===== 3 passed, 1 failed, 1 skipped in 0.12s ====="


def test_a_test_run_is_counted(t):
    env, path = over_directory(t)
    p = env("test", "--", "echo '%s'; exit 1" % PYTEST, cwd=path, check=False)
    assert p.returncode == 1 and p.stdout.strip() == PYTEST, p
    assert "3 passed, 1 failed" in p.stderr, p
    got = json.loads(env("test", "--json", "--", "echo '%s'; exit 1" % PYTEST,
                         cwd=path + "/dir", check=False).stdout)
    assert (got["passed"], got["failed"], got["skipped"], got["total"]) == (3, 1, 1, 4), got
    assert got["runner"] == "pytest" and not got["all_passed"] and got["exit_code"] == 1
    assert got["output"].strip() == PYTEST and abs(got["pass_rate"] - 0.75) < 1e-6


def test_the_remembered_test_command_and_words_as_they_are(t):
    env, path = over_directory(t)
    env("env", "create", "--test-command", "pwd; echo '1 passed in 1s'", "tested", cwd=path)
    fork = env.list("env")[0]["path"]
    p = env("test", "--in", fork + "/dir")
    assert p.stdout.splitlines()[0] == fork, p
    env("env", "create", "--test-command", "no-such", "untested", cwd=path)
    p = env("test", "--in", env.list("env")[1]["path"], check=False)
    assert p.returncode == 127 and p.stderr.endswith("exit 127; no test runner's report was found; 'no-such' was "
                                                     "run: plyfs test -- COMMAND runs another\n"), p
    env("env", "destroy", "untested")
    p = env("test", "--in", fork, "--", "printf", "%s|", "a b", "$HOME", "it's")
    assert p.stdout == "a b|$HOME|it's|", p


def test_a_test_run_that_takes_too_long_is_killed(t):
    env, path = over_directory(t)
    p = env("test", "--timeout", "2", "--", "echo begun; setsid sleep 77.%d" % os.getpid(), cwd=path,
            check=False)
    assert p.returncode == 124 and "begun" in p.stdout, p
    assert p.stderr == "\nplyfs test: timed out\n" and not p.stdout.endswith("\n"), p
    assert not running(r"sleep 77\.%d")


def running(words):
    """The processes that have these words, with our number in them: nobody else's."""
    return subprocess.run(["pgrep", "-f", words % os.getpid()], stdout=subprocess.PIPE, text=True).stdout


# ---- session ----

def test_of_tests_that_a_signal_ended_the_signal_is_told(t):
    env, path = over_directory(t)
    p = env("test", "--", "kill -9 $$", cwd=path, check=False)
    assert (p.returncode, p.stderr) == (
        137, "plyfs test: killed by signal 9; no test runner's report was found\n"), p


def session(t):
    env, path = over_directory(t)
    env("session", "start", "s", cwd=path)
    return env, path


def test_a_session_keeps_its_state(t):
    env, path = session(t)
    run = lambda *a, **kw: env("session", "run", "s", *a, cwd=path, **kw)
    assert run("--", "cd dir; X=42").stdout == ""
    assert run("--", "pwd; echo $X").stdout == path + "/dir\n42\n"
    assert run("--", "false", check=False).returncode == 1
    assert run("--", "(exit 77)", check=False).returncode == 77
    assert run("--", "printf", "%s|", "a b", "$X").stdout == "a b|$X|"
    assert run("-", input="for i in 1 2; do\n  echo $i\ndone\n").stdout == "1\n2\n"
    assert run("--", "printf 'no newline'").stdout == "no newline"
    env.fails("session", "run", "s", "--", "for do", cwd=path, says="syntax", code=125)
    assert run("--", "echo $X").stdout == "42\n"


def test_sessions_are_independent_and_listed(t):
    env, path = session(t)
    env("session", "start", "--in", path + "/dir", "other")
    env("session", "run", "s", "--", "X=1", cwd=path)
    assert env("session", "run", "--in", path, "other", "--", "pwd; echo [$X]").stdout == (
        path + "/dir\n[]\n")
    got = {s["name"]: s for s in env.list("session")}
    assert set(got) == {"s", "other"} and got["s"]["dir"] == path, got
    assert not got["s"]["busy"] and ply.alive(got["s"]["pid"])
    assert "other" in env("session", "list").stdout
    env.fails("session", "start", "s", cwd=path, says="already")
    env("session", "end", "s", cwd=path)
    assert [s["name"] for s in env.list("session")] == ["other"]
    assert not ply.alive(got["s"]["pid"])


def test_output_beyond_a_limit_of_file_sizes_ends_no_session(t):
    env, path = session(t)
    t.run(["prlimit", "--fsize=100000", "--pid", str(env.list("session")[0]["pid"])])
    env.fails("session", "run", "s", "--", "seq 100000", cwd=path, says="File too large", code=125)
    assert env("session", "run", "s", "--", "echo on", cwd=path).stdout == "on\n"


def test_a_session_that_cannot_be_reached_may_be_one(t):
    env, path = session(t)
    place = t.at("run/plyfs/session")
    name = os.path.join(place, os.listdir(place)[0])
    os.rename(name, t.at("aside"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:  # what connect(2) fails with
        other.bind(name)
        other.listen()
        for words in (["session", "list"], ["session", "list", "--json"], ["env", "destroy", "work"]):
            env.fails(*words, says="wrong type")
        env.fails("session", "run", "s", "--", "true", cwd=path, says="wrong type", code=125)
        assert mounted(path)
    os.rename(t.at("aside"), name)
    assert env("session", "run", "s", "--", "echo on", cwd=path).stdout == "on\n"


def test_a_session_whose_process_is_stopped_is_told_and_not_waited_for(t):
    env, path = session(t)
    env("session", "start", "other", cwd=path)
    pid = next(s["pid"] for s in env.list("session") if s["name"] == "s")
    os.kill(pid, signal.SIGSTOP)
    try:
        # At once: each waits for as long as what it asks for may take.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            verbs = [pool.submit(env.fails, *words, cwd=path, says="kill -CONT %d" % pid)
                     for words in (("session", "list"), ("session", "interrupt", "s"))]
            verbs.append(pool.submit(env.fails, "env", "destroy", "work",
                                     says="kill -CONT %d" % pid))
            listed = verbs[0].result()
            for v in verbs:
                v.result()
        assert "other" in listed.stdout, listed.stdout
        assert mounted(path)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert env("session", "run", "s", "--", "echo on", cwd=path).stdout == "on\n"


def test_the_end_of_a_session_whose_process_is_stopped_comes_when_it_goes_on(t):
    env, path = session(t)
    pid = env.list("session")[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        run = subprocess.Popen([ply.PLYFS, "session", "run", "s", "--", "echo run"], cwd=path,
                               env=t.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert b"kill -CONT %d" % pid in run.stderr.readline()
        assert run.poll() is None
        run.kill()
        run.communicate()
        env.fails("session", "end", "s", cwd=path, says="kill -CONT %d" % pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    ply.wait_for("its end", lambda: not ply.alive(pid))


def starts_slowly(t, pool, path, seconds):
    """A start of a session "s" whose shell is ready after so many; what it comes to."""
    os.makedirs(t.at("slow"))
    for name in (".bashrc", ".bash_profile"):
        with open(t.at("slow/" + name), "w") as f:
            f.write(": > %s; sleep %d\n" % (t.at("starts"), seconds))
    start = pool.submit(t.run, [ply.PLYFS, "session", "start", "s"], cwd=path, check=False,
                        env=dict(t.env, HOME=t.at("slow")))
    ply.wait_for("its shell", lambda: os.path.exists(t.at("starts")))
    assert not start.done()
    return start


def test_a_session_that_starts_is_listed_and_waited_for(t):
    env, path = over_directory(t)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        start = starts_slowly(t, pool, path, 7)
        assert [(s["name"], s["busy"]) for s in env.list("session")] == [("s", True)]
        assert env("session", "run", "s", "--", "echo ready", cwd=path).stdout == "ready\n"
        assert start.result().returncode == 0
        assert not env.list("session")[0]["busy"]


def test_a_session_that_starts_can_be_ended(t):
    env, path = over_directory(t)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        start = starts_slowly(t, pool, path, 17)  # less than a start may take
        env("session", "end", "s", cwd=path)
        p = start.result()
        assert (p.returncode, p.stderr) == (
            1, "plyfs session start: the session was ended while it started\n"), p
    assert env.list("session") == []
    env("session", "start", "s", cwd=path)


def test_a_session_whose_shell_ended_goes_though_it_is_asked_for(t):
    env, path = over_directory(t)
    env("session", "start", "s", cwd=path)
    env("session", "run", "s", "--", "exit 3", cwd=path, check=False)

    def started():
        return env("session", "start", "s", cwd=path, check=False).returncode == 0

    ply.wait_for("a session of the same name", started)  # asks all the time


def test_a_session_whose_path_is_not_utf8_is_listed(t):
    env = Env(t)
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    path = store.mount(at=t.at("na\udcefve")).path
    env("session", "start", "s", cwd=path)
    as_json = path.replace("\udcef", "\u00ef")
    assert [(s["name"], s["dir"]) for s in env.list("session")] == [("s", as_json)]
    env("session", "end", "s", cwd=path)


def test_a_session_holds_nothing_of_who_started_it(t):
    env, path = over_directory(t)
    r, w = os.pipe()
    p = subprocess.Popen([ply.PLYFS, "session", "start", "s"], cwd=path, env=t.env, pass_fds=[w],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(w)
    assert p.communicate(timeout=60) == (b"", b"") and p.returncode == 0
    assert os.read(r, 1) == b""  # at its end at once
    assert len(env.list("session")) == 1


def closed(t, path, how, *words):
    """plyfs WORDS with descriptors closed by the shell."""
    return t.run(["sh", "-c", '"$0" "$@" ' + how, ply.PLYFS, *words], cwd=path, check=False, timeout=60)


def test_an_output_that_was_closed_is_no_socket_of_ours(t):
    env, path = over_directory(t)
    env("session", "start", "s", cwd=path)
    ply.write(t.at("shell"), "#!/bin/sh\necho $$ >>a.txt\n")
    os.chmod(t.at("shell"), 0o755)
    t.env["SHELL"] = t.at("shell")
    for words in (["test", "--", "echo SECRET"], ["test", "--json", "--", "true"],
                  ["shell", "--at-exit", "checkpoint"], ["serve", "--port", "0"],
                  ["session", "run", "s", "--", "echo x"], ["session", "list"], ["env", "list"]):
        for how in (">&-", "<&- >&-"):
            p = closed(t, path, how, *words)
            assert p.returncode == (125 if words[:2] == ["session", "run"] else 1), (how, words, p)
            assert p.stderr.splitlines()[-1].endswith(": the output could not be written"), (words, p)


def test_a_session_starts_whatever_is_closed(t):
    env, path = over_directory(t)
    for n, how in enumerate(("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-",
                             "<&- >&- 2>&-")):
        p = closed(t, path, how, "session", "start", "s%d" % n)
        assert (p.returncode, p.stdout, p.stderr) == (0, "", ""), (how, p)
        assert env("session", "run", "s%d" % n, "--", "echo here", cwd=path).stdout == "here\n", how
    p = closed(t, path, "<&-", "session", "run", "s0", "-")
    assert p.returncode == 125 and "Bad file descriptor" in p.stderr, p


def test_a_small_stack_is_enough(t):
    if ply.sanitized():
        ply.skip("a sanitizer's frames are larger")
    env, path = over_directory(t)
    small = lambda *words, **kw: t.run(["sh", "-c", 'ulimit -s 64 && exec "$0" "$@"', ply.PLYFS, *words],
                                       cwd=path, **kw).stdout
    small("session", "start", "s")
    assert small("session", "run", "s", "--", "seq 100000").splitlines()[-1] == "100000"
    assert small("session", "run", "s", "-", input="echo in\n") == "in\n"
    assert small("test", "--", "seq 100000").splitlines()[-1] == "100000"
    small("session", "end", "s")


def test_output_of_megabytes_is_exact(t):
    env, path = session(t)
    p = env("session", "run", "s", "--", "seq 1000000", cwd=path)
    assert p.stdout == "".join("%d\n" % i for i in range(1, 1000001))


def test_a_timeout_leaves_the_session_usable(t):
    env, path = session(t)
    p = env("session", "run", "--timeout", "2", "s", "--", "echo begun; sleep 60", cwd=path,
            check=False)
    assert p.returncode == 124 and p.stdout.split() == ["begun"], p
    assert env("session", "run", "s", "--", "echo fine", cwd=path).stdout == "fine\n"
    # What the interrupt brings is told once, behind what there was.
    p = env("session", "run", "--timeout", "2", "s", "--",
            "sh -c \"trap 'echo ended; exit' INT; echo begun; sleep 60\"", cwd=path, check=False)
    assert p.returncode == 124 and p.stdout.split() == ["begun", "ended"], p


def begun(env, path, command):
    p = subprocess.Popen([ply.PLYFS, "session", "run", "s", "--", command], cwd=path,
                         env=env.t.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ply.wait_for("busy", lambda: env.list("session")[0]["busy"])
    ply.wait_for("the command", lambda: running(r"^sleep 68\.%d$"))
    return p


def test_interrupt_ends_what_runs(t):
    env, path = session(t)
    for how in ("verb", "ctrl-c", "killed"):
        p = begun(env, path, "sleep 68.%d" % os.getpid())
        if how == "verb":
            env("session", "interrupt", "s", cwd=path)
        else:
            p.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
        p.communicate(timeout=60)
        assert how == "killed" or p.returncode == 130, (how, p.returncode)
        ply.wait_for("idle", lambda: not env.list("session")[0]["busy"])
        assert env("session", "run", "s", "--", "echo fine", cwd=path).stdout == "fine\n"


def test_a_busy_session_says_so(t):
    env, path = session(t)
    p = begun(env, path, "sleep 68.%d" % os.getpid())
    env.fails("session", "run", "s", "--", "true", cwd=path, code=125,
              says="'s' is running 'sleep 68.%d': wait for it, or end it: plyfs session interrupt s"
              % os.getpid())
    env("session", "end", "s", cwd=path)
    p.communicate(timeout=60)
    assert p.returncode == 125, p.returncode
    env.fails("session", "run", "s", "--", "true", cwd=path, says="no session", code=125)


def test_what_a_killed_caller_leaves_running_is_waited_for(t):
    env, path = session(t)
    for _ in range(2):
        p = begun(env, path, "sh -c \"trap '' INT; sleep 68.%d\"" % os.getpid())
        p.kill()
        p.communicate(timeout=60)
        assert env("session", "run", "s", "--", "echo fine", cwd=path).stdout == "fine\n"


def test_who_waits_for_a_program_that_asks_is_told(t):
    env, path = session(t)
    run = lambda *a, **kw: env("session", "run", *a, cwd=path, **kw)
    asks = ("--expect", "name\\? ", "s", "--", "bash -c 'read -p \"name? \" n'")
    run(*asks)
    p = subprocess.Popen([ply.PLYFS, "session", "run", "s", "--", "echo x"], cwd=path, env=env.t.env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ply.wait_for("a word", lambda: select.select([p.stderr], [], [], 0)[0])
    said = p.stderr.readline()
    assert said == ("plyfs session run: waiting for what asks in 's', if it has not ended: --expect or --quit "
                    "answers it, 'plyfs session interrupt s' ends it\n"), said
    env("session", "interrupt", "s", cwd=path)
    out, rest = p.communicate(timeout=60)
    assert rest == "" and p.returncode == 0 and out.endswith("x\n"), (p, out, rest)
    # None is told of that is not there any more, or of a command that just takes a while.
    assert run("s", "--", "sleep 1.5; echo y").stdout == "y\n"
    run(*asks)
    run("--quit", "s", "--", "me")
    assert run("s", "--", "sleep 1.5; echo y").stderr == ""


def test_programs_that_ask_are_talked_to(t):
    env, path = session(t)
    run = lambda *a: env("session", "run", *a, cwd=path)
    run("--expect", "name\\? ", "s", "--", "bash -c 'read -p \"name? \" n; echo hello $n; "
        "read -p \"more? \" m; echo bye'")
    assert "hello ply" in run("--expect", "more\\? ", "s", "--", "ply").stdout
    run("--quit", "s", "--", "no")
    assert run("s", "--", "echo fine").stdout == "fine\n"


def test_a_session_ends_with_its_shell_its_view_and_its_process(t):
    env, path = session(t)
    pid = env.list("session")[0]["pid"]
    env("session", "run", "s", "--", "exit 0", cwd=path, check=False)
    ply.wait_for("its end", lambda: not ply.alive(pid))
    assert env.list("session") == []

    env("session", "start", "s", cwd=path)
    pid = env.list("session")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    ply.wait_for("its death", lambda: not ply.alive(pid))
    assert env.list("session") == []
    env("session", "start", "s", cwd=path)

    fork = env("env", "create", "f", cwd=path).stdout.strip()
    env("session", "start", "in-fork", "--in", fork)
    env("env", "destroy", "f")  # ends its session, and no other one
    assert [s["name"] for s in env.list("session")] == ["s"]
    pid = env.list("session")[0]["pid"]
    env("unmount", "--lazy", path)
    ply.wait_for("its end", lambda: not ply.alive(pid))


def test_a_session_lives_through_restores(t):
    env, path = session(t)
    run = lambda c: env("session", "run", "s", "--", c, cwd=path).stdout
    snap = env("checkpoint", path).stdout.strip()
    run("cd dir; rm ../a.txt; X=1")
    env("restore", snap, path)
    assert run("pwd; echo $X; cat ../a.txt") == path + "/dir\n1\none\n"


def test_sockets_are_for_their_owner_only(t):
    env, path = session(t)
    d = t.at("run/plyfs/session")
    assert os.stat(d).st_mode & 0o777 == 0o700
    for name in os.listdir(d):
        assert os.stat(os.path.join(d, name)).st_mode & 0o777 == 0o600, name


def test_root_makes_nothing_in_a_users_runtime_directory(t):
    """Where su(1) leaves him: that user's programs refuse what is another's."""
    ply.need_root()
    env = Env(t)
    os.chown(t.at("run"), 65534, 65534)
    try:
        env("session", "list")
        assert os.listdir(t.at("run")) == []
    finally:
        os.chown(t.at("run"), 0, 0)  # what ends with the test is looked for there


# ---- shell ----

def test_a_shell_keeps_checkpoints_or_discards(t):
    env, path = over_directory(t)
    shell = lambda how, script, **kw: env("shell", "--at-exit", how, cwd=path, input=script, **kw)
    shell("keep", "echo kept >a.txt\n")
    assert ply.read(path + "/a.txt") == "kept\n"
    p = shell("checkpoint", "echo marked >a.txt\n")
    assert ply.ID.match(p.stdout.strip()), p
    p = shell("discard", "echo lost >a.txt; exit 3\n", check=False)
    assert p.returncode == 3 and ply.read(path + "/a.txt") == "marked\n", p
    env("undo", path)
    assert ply.read(path + "/a.txt") == "lost\n"
    p = shell("checkpoint", "true\n")
    assert p.stdout == "", p  # nothing changed, nothing to decide
    env("shell", cwd=path, input="echo usual >a.txt\n")  # no terminal: kept
    assert ply.read(path + "/a.txt") == "usual\n"


def test_a_shell_on_a_terminal_asks(t):
    env, path = over_directory(t)
    for answer, wanted in ((b"d\n", "one\n"), (b"k\n", "changed\n")):
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(path)
            os.execve(ply.PLYFS, [ply.PLYFS, "shell"], dict(t.env, PS1="$ ", TERM="dumb"))
        seen = b""
        os.write(fd, b"echo changed >a.txt; exit\n")
        while True:
            try:
                data = os.read(fd, 4096)
            except OSError:
                break
            if b"[K/c/d]" in seen + data and b"[K/c/d]" not in seen:
                os.write(fd, answer)
            seen += data
            if not data:
                break
        assert b"keep the changes, checkpoint or discard" in seen, seen
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
        os.close(fd)
        assert ply.read(path + "/a.txt") == wanted, seen


# ---- run ----

def test_a_timeout_of_run_ends_what_left_its_group(t):
    view = t.view()
    p = view.store.ply("run", "--timeout", "0.5", "--", "sh", "-c",
                       "setsid sleep N & (setsid sh -c 'trap \"\" TERM; sleep N; sleep N'"
                       " &); sleep N".replace("N", "66.%d" % os.getpid()), cwd=view.path,
                       check=False, timeout=60)
    assert p.returncode == 124, p
    left = running(r"sleep 66\.%d")
    assert not left.strip(), left


if __name__ == "__main__":
    ply.main()
