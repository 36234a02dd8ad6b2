#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 150
"""The Python package on real views: Workspace and Session, their asyncio forms, errors, ends."""
import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy

plyfs = plypy.package()

FILES = {"calc.py": "def add(a, b):\n    return a + b\n",
         "test_calc.py": "import unittest\nimport calc\n\n\nclass T(unittest.TestCase):\n"
                         "    def test_add(self):\n        self.assertEqual(calc.add(2, 2), 4)\n",
         "src/a.txt": "one\n", "src/.hidden": "h\n"}
TESTS = "%s -m unittest" % sys.executable


def opened(t, name="project", files=FILES, **options):
    """An open workspace on a directory of its own."""
    t.surroundings()
    return plypy.adopt(t, plyfs.Workspace(t.tree(files, name), **options).open())


def sleepers(word):
    """Processes whose command line holds this word."""
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid()) and
            word in plypy.cmdline(pid)]


# ---- the workspace ----

def test_a_checkpoint_and_a_restore_around_a_test_run(t):
    with opened(t, test_command=TESTS) as ws:
        first = ws.test()
        assert (first.passed, first.failed, first.all_passed) == (1, 0, True), first
        assert first.runner == "unittest" and "Ran 1 test" in first.output, first
        assert str(first) == "1 passed, 0 failed, 0 errors", str(first)
        good = ws.checkpoint("good")
        ws.write("calc.py", "add = max\n")
        assert not ws.test().all_passed
        assert "calc.py" in ws.diff(good)
        ws.restore(good)
        assert ws.test() .passed == 1
        assert ws.read("calc.py") == FILES["calc.py"]
        ws.undo()
        assert ws.read("calc.py") == "add = max\n"


def test_a_test_command_that_is_none_does_not_look_like_tests(t):
    t.surroundings()
    with plypy.adopt(t, plyfs.Workspace(t.at("not/there"), test_command="no-such").open()) as ws:
        assert ws.list_files() == []  # the directory is made
        tests = ws.test()
    assert (tests.all_passed, tests.exit_code) == (True, 127), tests  # as it is with Chimera's
    assert str(tests) == "0 passed, 0 failed, 0 errors, exit code 127", str(tests)


def test_closing_writes_back_to_the_directory(t):
    ws = opened(t)
    ws.write("new/deep.txt", "n\n")
    ws.close()
    assert not os.path.ismount(t.at("project"))
    assert ply.read(t.at("project/new/deep.txt")) == "n\n"
    ws.open()
    assert ws.read("new/deep.txt") == "n\n"
    ws.close()
    ws.close()


def test_files_are_read_written_and_listed(t):
    with opened(t) as ws:
        assert ws.workdir == os.path.realpath(t.at("project"))
        ws.write("a b/\u00fc.txt", "gr\u00fc\u00dfe\r\n")
        assert ws.read("a b/\u00fc.txt") == "gr\u00fc\u00dfe\r\n"
        ws.write("raw", b"\0\xff\n")
        assert ws.read_bytes("raw") == b"\0\xff\n"
        assert ws.read_bytes(os.path.join(ws.workdir, "raw")) == b"\0\xff\n"
        ws.write("empty", "")
        assert ws.read_bytes("empty") == b""
        assert ws.list_files("src/*") == ["src/.hidden", "src/a.txt"]
        assert ws.list_files("**/*.py") == ["calc.py", "test_calc.py"]
        ply.write(t.at("outside"), "local\n")
        ws.upload(t.at("outside"), "up/loaded")
        ws.download("up/loaded", t.at("back"))
        assert ply.read(t.at("back")) == "local\n"


def test_commands_give_exact_bytes_and_codes(t):
    with opened(t) as ws:
        r = ws.run("printf 'a\\377b\\r\\n'; echo e >&2; exit 3")
        assert (r.out, r.err, r.exit_code, r.success) == (b"a\xffb\r\n", b"e\n", 3, False), r
        assert r.stdout == "a\\xffb\r\n"
        assert ws.run(["printf", "%s|", "a b", "$HOME"]).out == b"a b|$HOME|"
        assert ws.run("pwd").stdout == ws.workdir + "\n"
        assert ws.run("kill -9 $$").exit_code == -9
        with plypy.raises(plyfs.CommandFailedError, RuntimeError, says="code 3: e") as e:
            r.check()
        assert e.value.result is r
        r = ws.run("echo begun; sleep 60 & sleep 60", timeout=0.3)
        assert (r.exit_code, r.timed_out) == (124, True), r


def test_commands_run_at_the_same_time_in_threads(t):
    with opened(t) as ws:
        # Each waits for the other: one after the other they would run into the timeout.
        ws.run("mkfifo x y")
        results = []
        threads = [threading.Thread(target=lambda c=c: results.append(ws.run(c, timeout=60)))
                   for c in ("echo 1 >x; cat y", "cat x; echo 2 >y")]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        assert sorted(r.out for r in results) == [b"1\n", b"2\n"], results


def test_forks_in_parallel_threads_do_not_see_each_other(t):
    with opened(t, test_command=TESTS) as ws:
        errors = []

        def explore(n):
            try:
                with ws.fork() as fork:
                    fork.write("mine", str(n))
                    if n % 2:
                        fork.write("calc.py", "add = max\n")
                    assert fork.test().all_passed == (n % 2 == 0)
                    assert fork.run("cat mine").out == str(n).encode()
                    assert fork.workdir != ws.workdir
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=explore, args=(n,)) for n in range(6)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        assert not errors, errors
        assert "mine" not in ws.list_files() and ws.test().all_passed


def test_the_kind_git_makes_commits(t):
    ply.need_tool("git")
    with opened(t, kind="git") as ws:
        ws.run("git init -q").check()
        first = ws.checkpoint("first")
        assert len(first) == 40, first
        ws.write("calc.py", "x\n")
        ws.restore(first)
        assert ws.read("calc.py") == FILES["calc.py"]


def test_the_kind_container_isolates(t):
    t.surroundings()
    ws = plyfs.Workspace(t.tree(FILES, "project"), kind="container", test_command=TESTS)
    try:
        ws.open()
    except plyfs.NotHereError as e:
        ply.skip(str(e))
    plypy.adopt(t, t.at("project"))
    with ws:
        good = ws.checkpoint()
        r = ws.run("pwd; cat src/a.txt; rm -rf src; touch /etc/here; "
                   "tail -n +3 /proc/net/dev | cut -d: -f1")
        assert r.stdout.startswith("/workspace\none\n") and r.stdout.split()[2:] == ["lo"], r
        assert "Read-only" in r.stderr and not os.path.exists("/etc/here"), r
        with ws.session() as shell:
            assert shell.run("pwd; ls").output.split() == ["/workspace", "calc.py", "test_calc.py"]
            ws.restore(good)
            assert shell.run("cat src/a.txt").output == "one\n"
        assert ws.read("src/a.txt") == "one\n"


# ---- errors ----

def test_errors_are_ours_and_pythons(t):
    with opened(t) as ws:
        cases = [
            (lambda: ws.read("nope"), plyfs.NotFoundError, FileNotFoundError),
            (lambda: ws.read("src"), plyfs.IsDirectoryError, IsADirectoryError),
            (lambda: ws.read("../outside"), plyfs.DeniedError, PermissionError),
            (lambda: ws.read("/etc/passwd"), plyfs.DeniedError, PermissionError),
            (lambda: ws.write("src", "x"), plyfs.IsDirectoryError, IsADirectoryError),
            (lambda: ws.restore("999"), plyfs.UnknownIdError, ValueError),
            (lambda: ws.list_files(""), plyfs.InvalidError, ValueError),
            (lambda: ws.create_shell("x"), plyfs.StateError, RuntimeError),
            (lambda: ws.read("a\0b"), plyfs.InvalidError, ValueError),
            (lambda: plyfs.Workspace(kind="nonsense"), plyfs.InvalidError, ValueError),
            (lambda: plyfs.Workspace(".", nonsense="1"), plyfs.InvalidError, ValueError),
            (lambda: plyfs.Workspace(".", timeout="soon"), plyfs.InvalidError, ValueError),
            (lambda: plyfs.Workspace(".").checkpoint(), plyfs.StateError, RuntimeError),
        ]
        for function, ours, pythons in cases:
            with plypy.raises(ours, pythons, plyfs.PlyError) as e:
                function()
            assert str(e.value) and e.value.status < 0 and e.value.status_name.startswith("PLY_")
        ws.write("latin", b"\xff")
        with plypy.raises(UnicodeDecodeError, ValueError):
            ws.read("latin")


def test_each_thread_has_its_own_error(t):
    with opened(t) as ws:
        wrong = []

        def fail(name):
            for _ in range(200):
                try:
                    ws.read(name)
                except FileNotFoundError as e:
                    if name not in str(e):
                        wrong.append(str(e))

        threads = [threading.Thread(target=fail, args=("missing-%d" % i,)) for i in range(4)]
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        assert not wrong, wrong[:3]


# ---- sessions ----

def test_a_session_keeps_its_state_and_survives_a_restore(t):
    with opened(t) as ws:
        good = ws.checkpoint()
        with ws.session() as shell:
            assert shell.alive
            shell.run("cd src; export X='a b'; f() { echo \"$X:$1\"; }")
            seen = shell.run("f 1; pwd; false")
            assert (seen.output, seen.exit_code) == ("a b:1\n%s/src\n" % ws.workdir, 1), seen
            shell.run("rm -rf ../src")
            ws.restore(good)
            assert shell.run("ls -A; cat a.txt").output.split() == [".hidden", "a.txt", "one"]
            assert shell.run("cat <<EOF\n$X\nEOF").output == "a b\n"
        assert not shell.alive


def test_a_session_says_what_is_wrong(t):
    with opened(t) as ws:
        with ws.session() as shell:
            with plypy.raises(plyfs.BashSyntaxError, RuntimeError, says="syntax error"):
                shell.run("echo never; (")
            with plypy.raises(plyfs.CommandFailedError, RuntimeError) as e:
                shell.run("echo out; (exit 7)", check="raise")
            assert (e.value.result.output, e.value.result.exit_code) == ("out\n", 7)
            with plypy.raises(plyfs.PlyTimeoutError, TimeoutError) as e:
                shell.run("echo begun; sleep 60", timeout=2)
            assert e.value.output == "begun\n", e.value.output
            shell.interrupt()
            assert shell.run("echo usable").output == "usable\n"
            with plypy.raises(ValueError, says="silent"):
                shell.run("true", check="perhaps")
            with plypy.raises(plyfs.SessionGoneError, RuntimeError):
                shell.run("exit 3")
            assert not shell.alive
        ply.write(t.at("end.sh"), "echo last words; exit 3\n")
        with plypy.raises(plyfs.SessionGoneError, RuntimeError) as e:
            ws.session(startup_source=[t.at("end.sh")]).start()
        assert "last words\n" in e.value.output, e.value.output
        ws.start_session()
        with plypy.raises(plyfs.SessionGoneError, RuntimeError) as e:
            ws.run_in_session("set -e; echo last words; false")
        assert e.value.output == "last words", e.value.output


def test_a_session_talks_to_a_program(t):
    with opened(t) as ws, ws.session() as shell:
        program = "import sys\nwhile True:\n    x = input('next? ')\n    if x == 'q': break\n" \
                  "    print(x.upper())\n"
        ws.write("ask.py", program)
        seen = shell.run("%s ask.py" % sys.executable, 20, interactive=True, expect=["next\\? "])
        assert seen.matched == 0, seen
        seen = shell.run("hello", 20, interactive=True, expect=["nothing", "next\\? "])
        assert seen.matched == 1 and "HELLO" in seen.output, seen
        shell.run("q", 20, interactive_quit=True)
        assert shell.run("echo $((40+2))").output == "42\n"


def test_shells_of_a_workspace_are_independent(t):
    with opened(t) as ws:
        assert not ws.has_session and ws.list_shells() == []
        ws.start_session()
        ws.create_shell("two")
        assert ws.has_session and ws.list_shells() == ["main", "two"]
        ws.run("X=1; cd src")
        assert ws.run("echo $X; pwd", shell="two").stdout == "\n%s" % ws.workdir
        assert ws.run("echo $X").stdout == "1"
        with plypy.raises(plyfs.StateError, RuntimeError):
            ws.start_session()
        with plypy.raises(plyfs.ExistsError, ValueError):
            ws.create_shell("two")
        ws.end_session()
        ws.end_session()
        assert ws.run("echo $X").stdout == "\n"


# ---- asyncio ----

def test_coroutines_run_at_the_same_time(t):
    t.surroundings()

    async def explore(ws, n):
        fork = await ws.fork()
        plypy.adopt(t, fork.sync)
        async with fork:
            await fork.write("mine", str(n))
            r = await fork.run("cat mine; sleep 0.2")
            assert r.stdout == str(n)
            return await fork.test()

    async def main():
        ws = plyfs.AsyncWorkspace(t.tree(FILES, "project"), test_command=TESTS)
        async with ws:
            plypy.adopt(t, ws.sync)
            good = await ws.checkpoint()
            results = await asyncio.gather(*(explore(ws, n) for n in range(4)))
            assert [r.passed for r in results] == [1, 1, 1, 1]
            await ws.write("calc.py", "")
            assert (await ws.diff(good)).split()[-1].endswith("calc.py")
            await ws.restore(good)
            assert await ws.read("calc.py") == FILES["calc.py"]
            assert await ws.list_files("*.py") == ["calc.py", "test_calc.py"]

    asyncio.run(main())


def test_cancelling_a_task_kills_its_command_only(t):
    t.surroundings()

    async def main():
        async with plyfs.AsyncWorkspace(t.tree(FILES, "project")) as ws:
            plypy.adopt(t, ws.sync)
            doomed = asyncio.create_task(ws.run("touch begun; sleep 4711.1 & sleep 4711.1"))
            other = asyncio.create_task(ws.run("while [ ! -e go ]; do sleep 0.05; done; echo on"))
            while not ws.sync.list_files("begun"):
                await asyncio.sleep(0.05)
            doomed.cancel()
            with plypy.raises(asyncio.CancelledError):
                await doomed
            assert not sleepers("4711.1")
            await ws.write("go", "")
            assert (await other).stdout == "on\n"
            with plypy.raises(TimeoutError):
                await asyncio.wait_for(ws.run("sleep 4711.2"), 0.5)
            assert not sleepers("4711.2")

    asyncio.run(main())


def test_cancelling_a_sessions_command_leaves_the_shell_usable(t):
    t.surroundings()

    async def main():
        async with plyfs.AsyncWorkspace(t.tree(FILES, "project")) as ws:
            plypy.adopt(t, ws.sync)
            async with ws.session() as shell:
                await shell.run("X=kept")
                task = asyncio.create_task(shell.run("sleep 4711.3"))
                while not sleepers("4711.3"):
                    await asyncio.sleep(0.05)
                task.cancel()
                with plypy.raises(asyncio.CancelledError):
                    await task
                assert not sleepers("4711.3")
                assert (await shell.run("echo $X")).output == "kept\n"

    asyncio.run(main())


def test_cancelling_what_resists_holds_up_no_other_task(t):
    async def main():
        async with plyfs.AsyncSession() as shell:
            task = asyncio.create_task(shell.run("(trap '' INT; exec sleep 4711.8)"))
            while not sleepers("4711.8"):
                await asyncio.sleep(0.05)
            task.cancel()
            lived = []
            while not task.done():
                lived.append(bool(sleepers("4711.8")))
                await asyncio.sleep(0)
            assert any(lived[1:]) and task.cancelled()

    asyncio.run(main())


def test_cancelling_the_shells_own_end_is_a_cancellation(t):
    async def main():
        async with plyfs.AsyncSession() as shell:
            task = asyncio.create_task(shell.run("exec sleep 4711.9"))
            while not sleepers("4711.9"):
                await asyncio.sleep(0.05)
            task.cancel()
            with plypy.raises(asyncio.CancelledError):
                await task
            assert not shell.alive

    asyncio.run(main())


def test_more_coroutines_than_any_pool_has_threads(t):
    t.surroundings()

    async def main():
        async with plyfs.AsyncWorkspace(t.tree(FILES, "project")) as ws:
            plypy.adopt(t, ws.sync)
            waiting = [asyncio.create_task(ws.run("while [ ! -e go ]; do sleep 0.1; done"))
                       for _ in range(40)]
            await asyncio.sleep(0.2)
            await ws.write("go", "")
            assert all(r.success for r in await asyncio.gather(*waiting))

    asyncio.run(main())


# ---- ends ----

def child(t, script, **kw):
    """A Python of its own with the package, in the test's surroundings."""
    t.surroundings()
    return subprocess.Popen(
        [sys.executable, "-c", "import plypy, os, sys, time, gc\nplyfs = plypy.package()\n"
         + textwrap.dedent(script)],
        env=dict(os.environ, PYTHONPATH=plypy.HERE), stdout=subprocess.PIPE, text=True,
        cwd=t.path, **kw)


def test_a_workspace_that_is_dropped_is_cleaned(t):
    ws = opened(t)
    ws.run("sleep 4711.4 >/dev/null 2>&1 & echo started")
    ply.wait_for("the sleep", lambda: sleepers("4711.4"))  # which has no words as it is about to start
    assert os.path.ismount(t.at("project"))
    del ws
    gc.collect()
    assert not sleepers("4711.4")
    assert not os.path.ismount(t.at("project"))


def test_a_session_holds_its_workspace(t):
    ws = opened(t)
    shell = ws.session()
    shell.start()
    del ws
    gc.collect()
    assert shell.run("cat src/a.txt").output == "one\n"
    del shell
    gc.collect()
    assert not os.path.ismount(t.at("project"))


def test_an_interpreter_that_ends_cleans_up(t):
    project = t.tree(FILES, "project")
    p = child(t, """
        ws = plyfs.Workspace("project").open()
        ws.run("sleep 4711.5 >/dev/null 2>&1 & echo started")
        ws.write("made", "x")
        print("store", flush=True)
        sys.exit(3)
    """)
    assert p.wait(60) == 3
    assert not sleepers("4711.5") and not os.path.ismount(project)
    assert ply.read(t.at("project/made")) == "x"


def test_an_interpreter_that_is_killed_leaves_nothing(t):
    project = t.tree(FILES, "project")
    p = child(t, """
        ws = plyfs.Workspace("project").open()
        ws.run("sleep 4711.6 >/dev/null 2>&1 & echo started")
        print("ready", flush=True)
        time.sleep(60)
    """)
    assert p.stdout.readline() == "ready\n"
    plypy.adopt(t, project)
    assert sleepers("4711.6")
    p.kill()
    p.wait()
    ply.wait_for("the end of its processes", lambda: not sleepers("4711.6"))
    ply.wait_for("its mount's end", lambda: not os.path.ismount(project))


def test_a_forked_child_does_not_end_its_parents_workspace(t):
    with opened(t) as ws:
        pid = os.fork()
        if pid == 0:
            del ws
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert ws.run("cat src/a.txt").stdout == "one\n"
        assert os.path.ismount(ws.workdir)


def test_a_forked_child_does_not_keep_its_parents_view_busy(t):
    with opened(t) as ws:
        ws.run("true")
        ws.write("new", "x")
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        try:
            ws.close()
            assert not os.path.ismount(t.at("project")) and ply.read(t.at("project/new")) == "x"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_ctrl_c_ends_the_command_and_is_raised(t):
    t.tree(FILES, "project")
    p = child(t, """
        with plyfs.Workspace("project") as ws:
            try:
                ws.run("touch begun; sleep 4711.7")
            except KeyboardInterrupt:
                print("interrupted", ws.run("echo usable").stdout.strip(), flush=True)
            with ws.session() as shell:
                try:
                    shell.run("touch again; sleep 4711.7")
                except KeyboardInterrupt:
                    print("interrupted", shell.run("echo usable").output.strip(), flush=True)
    """)
    for name in ("begun", "again"):
        ply.wait_for("the command", lambda: os.path.exists(t.at("project", name)) and
                     sleepers("4711.7"))
        p.send_signal(signal.SIGINT)
        assert p.stdout.readline() == "interrupted usable\n"
    assert p.wait(60) == 0
    assert not sleepers("4711.7")


def test_ctrl_c_while_the_command_is_being_started_ends_it(t):
    t.tree(FILES, "project")
    p = child(t, """
        import threading
        start = threading.Thread.start
        def slow(self):
            start(self)
            time.sleep(60)
        with plyfs.Workspace("project") as ws:
            threading.Thread.start = slow
            try:
                ws.run("touch begun; sleep 4711.7")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            sys.stdin.read()
    """, stdin=subprocess.PIPE)
    ply.wait_for("the command", lambda: os.path.exists(t.at("project/begun")))
    p.send_signal(signal.SIGINT)
    assert p.stdout.readline() == "interrupted\n"
    assert sleepers("4711.7") == [str(p.pid)]  # whose script has the word, too
    p.stdin.close()
    assert p.wait(60) == 0


def test_nothing_is_left_open_after_many(t):
    def state():
        return len(os.listdir("/proc/self/fd")), threading.active_count()
    source = t.tree(FILES, "project")
    t.surroundings()
    before = None
    for i in range(200 if ply.LONG else 6):
        with plyfs.Workspace(source) as ws:
            plypy.adopt(t, ws)
            ws.run("true")
            with ws.session() as shell:
                shell.run("true")
            with contextlib.suppress(FileNotFoundError):
                ws.read("nope")
        del ws, shell
        gc.collect()
        if i == 1:
            before = state()
    assert state() == before, (before, state())


ply.main(__name__)
