#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 600
"""
The installed swerex-remote and `plyfs serve` under swe-rex's own client (PyPI): each method of
RemoteRuntime (files in serve_rex_files.py), each error that the protocol has; and upstream's test suite,
whole. What goes over the wire is in serve_rex_http.py.
"""
import asyncio
import os
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import server
import venv

venv.enter()
import pexpect
from swerex import exceptions as ex
from swerex.deployment.config import RemoteDeploymentConfig, get_deployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.deployment.remote import RemoteDeployment
from swerex.runtime.abstract import (
    BashInterruptAction, CloseBashSessionRequest, Command, CreateBashSessionRequest,
    ReadFileRequest, UploadRequest, WriteFileRequest)
from swerex.runtime.config import RemoteRuntimeConfig
from swerex.runtime.remote import RemoteRuntime

from rexclient import create, quick, raises, rex, run

REX = "1.4.0"
CONFTEST = '''
import os
from dataclasses import dataclass, field

import pytest
from swerex.runtime.abstract import (BashAction, CloseBashSessionRequest, Command,
                                     CreateBashSessionRequest)
from swerex.runtime.remote import RemoteRuntime

TEST_API_KEY = "testkey"


@dataclass
class RemoteServer:
    port: int
    headers: dict = field(default_factory=lambda: {"X-API-Key": TEST_API_KEY})


@pytest.fixture(scope="session")
def remote_server():
    return RemoteServer(int(os.environ["REX_PORT"]))


@pytest.fixture
async def remote_runtime(remote_server):
    r = RemoteRuntime(port=remote_server.port, auth_token=TEST_API_KEY)
    try:
        yield r
    finally:
        await r.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    try:
        yield remote_runtime
    finally:
        await remote_runtime.close_session(CloseBashSessionRequest())


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5
'''


# ---- sessions ----

def test_a_session_keeps_what_it_is_told(t):
    async def go():
        r = rex(t).runtime
        created = await r.create_session(create())
        assert created.session_type == "bash"
        o = await r.run_in_session(quick("cd /usr; export A=1; f() { echo f$1; }; alias x='echo al'"))
        assert (o.output, o.exit_code, o.failure_reason) == ("", 0, "")
        assert o.expect_string == "SHELLPS1PREFIX"
        o = await r.run_in_session(quick("pwd; echo $A; f 2\nx"))
        assert o.output == "/usr\n1\nf2\nal\n"
        o = await r.run_in_session(quick("echo \"$PS1|$PS2|$PS0|$TERM\"; stty size"))
        assert o.output == "SHELLPS1PREFIX|||dumb\n24 80\n"
        await r.close_session(CloseBashSessionRequest())
        await raises(ex.SessionDoesNotExistError, r.run_in_session(quick("x")),
                     "session 'default' does not exist")
        await raises(ex.SessionDoesNotExistError, r.close_session(CloseBashSessionRequest()),
                     "session 'default' does not exist")
    run(go())


def test_a_name_is_taken_once_and_free_after_the_close(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create("n"))
        await raises(ex.SessionExistsError, r.create_session(create("n")),
                     "session n already exists")
        await r.create_session(create(""))
        await raises(ex.SessionDoesNotExistError, r.run_in_session(quick("x", session="it's \"\u00fc\"")),
                     "session 'it\\'s \"\u00fc\"' does not exist")
        await r.close()
        await r.close()
        await raises(ex.SessionDoesNotExistError, r.run_in_session(quick("x", session="n")))
        await r.create_session(create("n"))
        assert (await r.run_in_session(quick("echo new", session="n"))).output == "new\n"
    run(go())


def test_startup_files_are_sourced_and_told(t):
    ply.write(t.at("one.sh"), "echo from one; V=one\n")

    async def go():
        r = rex(t).runtime
        created = await r.create_session(create(startup_source=[t.at("one.sh"), t.at("none.sh")]))
        assert "from one" in created.output and "none.sh" in created.output, created
        assert (await r.run_in_session(quick("echo $V"))).output == "one\n"
    run(go())


def test_a_start_that_takes_too_long_leaves_nothing(t):
    ply.write(t.at("slow.sh"), "sleep 31.7\n")

    async def go():
        s = rex(t)
        for seconds in (0.3, 0, -2):
            slow = CreateBashSessionRequest(startup_source=[t.at("slow.sh")], startup_timeout=seconds)
            await raises(pexpect.exceptions.TIMEOUT, s.runtime.create_session(slow))
        await raises(ex.SessionDoesNotExistError, s.runtime.run_in_session(quick("x")))
        assert not [c for _, c in s.children() if "31.7" in c]
        await s.runtime.create_session(create())
    run(go())


def test_a_session_that_still_starts_can_be_closed(t):
    ply.write(t.at("slow.sh"), "sleep 333\n")  # who starts it hears of its end at once

    async def go():
        s = rex(t)
        r = s.runtime
        for close in (r.close, lambda: r.close_session(CloseBashSessionRequest(session="z"))):
            slow = asyncio.create_task(r.create_session(create("z", startup_source=[t.at("slow.sh")])))
            while not [c for _, c in s.children() if "333" in c]:
                await asyncio.sleep(0.05)
            await close()
            await raises(ex.SessionDoesNotExistError,
                         r.close_session(CloseBashSessionRequest(session="z")))
            await r.create_session(create("z"))
            await raises(pexpect.exceptions.EOF, slow, "the session was ended")
            assert (await r.run_in_session(quick("echo new", session="z"))).output == "new\n"
            assert len([c for _, c in s.children() if "bash" in c]) == 1, s.children()
            await r.close()
    run(go())


def test_checks_and_their_errors(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        e = await raises(ex.NonZeroExitCodeError, r.run_in_session(quick("echo \"a'b\"; exit_() { return 3; }; exit_")))
        assert str(e) == "Command 'echo \"a\\'b\"; exit_() { return 3; }; exit_' failed with exit " \
            "code 3. Here is the output:\n\"a'b\\n\"", str(e)
        e = await raises(ex.NonZeroExitCodeError, r.run_in_session(quick("false", error_msg="oh")))
        assert str(e).startswith("oh: Command 'false' failed with exit code 1.")
        o = await r.run_in_session(quick("false", check="silent"))
        assert o.exit_code == 1
        o = await r.run_in_session(quick("(exit 9)", check="ignore"))
        assert o.exit_code is None
        e = await raises(ex.BashIncorrectSyntaxError, r.run_in_session(quick("(a", check="silent")),
                         "while checking bash command \n'(a'\n---- Stderr ----\n")
        assert set(e.extra_info) == {"bash_stdout", "bash_stderr"}, e.extra_info
        assert "syntax error" in e.extra_info["bash_stderr"]
        assert (await r.run_in_session(quick("echo still"))).output == "still\n"
    run(go())


def test_the_check_of_syntax_needs_no_path(t):
    """And runs no bash that a command's PATH leads to."""
    ply.write(t.at("repo", "bash"), "#!/bin/sh\ntouch %s\n" % t.at("ran"))
    os.chmod(t.at("repo", "bash"), 0o755)

    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        await r.run_in_session(quick("cd %s; P=$PATH" % t.at("repo")))
        for path in (".:$P", "/opt/nowhere", ""):
            await r.run_in_session(quick("PATH=" + path))
            o = await r.run_in_session(quick("echo one \\\n  two"))
            assert (o.output, o.exit_code) == ("one two\n", 0), o
            o = await r.run_in_session(quick("f() { for i in 1; do (echo $i); done; }; f"))
            assert (o.output, o.exit_code) == ("1\n", 0), o
            await raises(ex.BashIncorrectSyntaxError, r.run_in_session(quick("echo done } ) (")))
        assert not os.path.exists(t.at("ran"))
    run(go())


def test_a_timeout_leaves_the_command_and_an_interrupt_brings_the_shell_back(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        e = await raises(ex.CommandTimeoutError,
                         r.run_in_session(quick("echo begun; sleep 30", timeout=2.5)),
                         "timeout after 2.5 seconds while running command 'echo begun; sleep 30'")
        assert isinstance(e, TimeoutError) and e.extra_info["partial_output"] == "begun\n"
        o = await r.run_in_session(BashInterruptAction())
        assert o.exit_code == 0 and "begun" in o.output, o
        o = await r.run_in_session(quick("echo after"))
        assert (o.output, o.exit_code) == ("after\n", 0)
    run(go())


def test_what_is_told_of_much_output_is_its_two_ends_and_in_time(t):
    """The rest is kept for what ends the command."""
    async def go():
        s = rex(t)
        r = s.runtime
        await r.create_session(create())
        began = time.monotonic()
        e = await raises(ex.CommandTimeoutError, r.run_in_session(quick("echo first; yes", timeout=3)))
        assert time.monotonic() - began < 15, time.monotonic() - began
        told = e.extra_info["partial_output"]
        assert told.startswith("first\ny\n") and told.endswith(("\ny\n", "\ny")), (told[:20], told[-20:])
        assert "bytes are left out" in told and 130000 < len(told) < 140000, len(told)
        o = await r.run_in_session(BashInterruptAction())
        assert o.output.startswith("first\ny\n") and len(o.output) > 140000, len(o.output)
        assert (await r.run_in_session(quick("echo after"))).output == "after\n"
    run(go())


def test_a_timeout_says_whether_anything_was_run(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        e = await raises(ex.CommandTimeoutError, r.run_in_session(quick("sleep 30", timeout=2)))
        assert "the command goes on" in e.extra_info["reason"], e.extra_info
        ran = t.at("ran")
        e = await raises(ex.CommandTimeoutError, r.run_in_session(quick("touch " + ran, timeout=0.3)))
        assert "nothing was run: interrupt it" in e.extra_info["reason"], e.extra_info
        await r.run_in_session(BashInterruptAction())
        assert not os.path.exists(ran)
    run(go())


def test_an_interrupt_passes_a_busy_session(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        # A program that says that it is there, and dies of a SIGINT at any time.
        busy = asyncio.create_task(r.run_in_session(quick(
            "sh -c 'echo a; : >%s; exec sleep 30'; echo b" % t.at("begun"), check="silent")))
        while not os.path.exists(t.at("begun")):
            await asyncio.sleep(0.02)
        o = await r.run_in_session(BashInterruptAction())
        first = await busy
        assert o.exit_code == 0 and first.exit_code == 130 and first.output.startswith("a\n"), first
        assert (await r.run_in_session(quick("echo c"))).output == "c\n"
    run(go())


def test_the_job_that_survives_ctrl_c_is_killed(t):
    ply.write(t.at("deaf.sh"), "trap '' INT TERM\nwhile :; do sleep 0.1; done\n")

    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        await raises(ex.CommandTimeoutError,
                     r.run_in_session(quick("bash " + t.at("deaf.sh"), timeout=0.3)))
        o = await r.run_in_session(BashInterruptAction(timeout=0.2, n_retry=2))
        assert o.exit_code == 0
        o = await r.run_in_session(quick("echo after", check="silent"))
        assert "after" in o.output
    run(go())


def test_an_interactive_program_with_expect(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        o = await r.run_in_session(quick("python3 -q -i", is_interactive_command=True, expect=[">>> "]))
        assert o.expect_string == ">>> "
        o = await r.run_in_session(quick("print(6 * 7)", is_interactive_command=True,
                                         expect=[r"\d{3}", ">>> "]))
        assert (o.output, o.expect_string) == ("42", ">>> "), o
        await raises(ex.CommandTimeoutError,
                     r.run_in_session(quick("1", is_interactive_command=True, expect=["never"],
                                            timeout=0.3)))
        o = await r.run_in_session(quick("quit()\n", is_interactive_quit=True))
        assert o.exit_code == 0
        assert (await r.run_in_session(quick("echo back"))).output == "back\n"
        await raises(re.error,
                     r.run_in_session(quick("cat", is_interactive_command=True, expect=["(a"])))
        await raises(AssertionError, r.run_in_session(
            quick("x", is_interactive_command=True, is_interactive_quit=True)))
    run(go())


def test_the_death_of_a_shell_is_an_eof(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        e = await raises(pexpect.exceptions.EOF,
                         r.run_in_session(quick("set -e; echo compiling; ls /nope; echo no")))
        assert e.extra_info["partial_output"].startswith("compiling\nls: "), e.extra_info
        await raises(pexpect.exceptions.EOF, r.run_in_session(quick("echo x")))
        await r.close_session(CloseBashSessionRequest())
        await r.create_session(create())
        assert (await r.run_in_session(quick("echo y"))).output == "y\n"
    run(go())


def test_a_start_that_fails_tells_what_was_printed(t):
    ply.write(t.at("slow.sh"), "echo so far; sleep 31.7\n")
    ply.write(t.at("end.sh"), "echo last words; exit 3\n")

    async def go():
        r = rex(t).runtime
        slow = CreateBashSessionRequest(startup_source=[t.at("slow.sh")], startup_timeout=4)
        e = await raises(pexpect.exceptions.TIMEOUT, r.create_session(slow))
        assert "so far\n" in e.extra_info["partial_output"], e.extra_info
        e = await raises(pexpect.exceptions.EOF,
                         r.create_session(create(startup_source=[t.at("end.sh")])))
        assert "last words\n" in e.extra_info["partial_output"], e.extra_info
    run(go())


def test_output_is_exact(t):
    async def go():
        r = rex(t).runtime
        await r.create_session(create())
        for command, output in [
            ("printf '\\n\\n x \\n\\n'", "\n\n x \n\n"), ("printf x", "x"), ("echo ''", "\n"),
            ("printf 'a\\033[31mred\\033[0m\\r\\nb\\r'", "ared\r\nb\r"),
            ("printf 'ok\\377bad\\303\\n'", "ok\\xffbad\\xc3\n"),
            ("cat <<EOF\none\nEOF\ncat <<EOF\ntwo\nEOF", "one\ntwo\n"),
            ("cat <<'EOF' | tr a-z A-Z\none $x\nEOF\necho next", "ONE $X\nnext\n"),
            ("echo a;\necho b &\nwait; echo c", None), ("[[ a == a ]] && echo yes", "yes\n"),
            ("echo \"wow!\"", "wow!\n"), ("printf 'a\\tb'", "a\tb"), ("echo 'a\tb'", "a\tb\n"),
            ("# only a comment", ""), ("", ""), ("\n \n", ""), ("echo \u00fc\U0001f600", "\u00fc\U0001f600\n"),
        ]:
            o = await r.run_in_session(quick(command))
            if output is not None:
                assert o.output == output, (command, o.output)
            assert o.exit_code == 0, (command, o)
        big = await r.run_in_session(quick("seq 1 300000", timeout=60))
        assert big.output == "".join("%d\n" % i for i in range(1, 300001))
    run(go())


# ---- execute ----

def test_execute_runs_as_subprocess_does(t):
    os.mkdir(t.at("dir"))

    async def go():
        r = rex(t).runtime

        async def does(out, err, code, **kw):
            c = await r.execute(Command(timeout=60, **kw))
            assert (c.stdout, c.stderr, c.exit_code) == (out, err, code), (kw, c)
        await does("a b\n", "", 0, command=["echo", "a b"])
        await does("o\n", "e\n", 3, command="echo o; echo e >&2; exit 3", shell=True)
        await does("o\ne\n", "", 0, command="echo o; echo e >&2", shell=True,
                   merge_output_streams=True)
        await does("x y", "", 0, command=["printf '%s %s' \"$0\" \"$1\"", "x", "y"], shell=True)
        await does("now\nlate\n", "", 0, command="(sleep 0.5; echo late) & echo now", shell=True)
        await does("", "late\n", 3, command="(sleep 0.5; echo late >&2) >&- & exit 3", shell=True)
        await does("", "", -9, command="kill -9 $$", shell=True)
        await does("", "", 0, command="", shell=True)
        await does("", "", 0, command="cat", shell=True)
        await does("a\\xffb\r\n", "", 0, command="printf 'a\\377b\\r\\n'", shell=True)
        await does("A=1\n", "", 0, command=["/usr/bin/env"], env={"A": "1"})
        await does("", "", 0, command=["/usr/bin/env"], env={})
        await does(t.at("dir") + "\n", "", 0, command=["pwd"], cwd=t.at("dir"))
        assert "HOME=" in (await r.execute(Command(command=["env"]))).stdout
        await raises(FileNotFoundError, r.execute(Command(command="echo hi")),
                     "[Errno 2] No such file or directory: 'echo hi'")
        await raises(FileNotFoundError, r.execute(Command(command=["pwd"], cwd="/nope")), "'/nope'")
        await raises(NotADirectoryError, r.execute(Command(command=["pwd"], cwd="/etc/passwd")))
        await raises(PermissionError, r.execute(Command(command="")), "[Errno 13] Permission denied: ''")
        await raises(PermissionError, r.execute(Command(command=["/etc/passwd"])))
        await raises(IndexError, r.execute(Command(command=[])), "list index out of range")
        await raises(ValueError, r.execute(Command(command=["a\0b"])), "embedded null byte")
        await raises(ValueError, r.execute(Command(command=["env"], env={"A=B": "c"})),
                     "illegal environment variable name")
        await raises(ex.CommandTimeoutError,
                     r.execute(Command(command="sleep 10", shell=True, timeout=0.25)),
                     "Timeout (0.25s) exceeded while running command")
        e = await raises(ex.NonZeroExitCodeError, r.execute(
            Command(command=["sh", "-c", "echo o; echo e >&2; exit 2"], check=True, error_msg="m")))
        assert str(e) == "m: Command ['sh', '-c', 'echo o; echo e >&2; exit 2'] failed with exit " \
            "code 2. Stdout:\n'o\\n'\nStderr:\n'e\\n'", str(e)
    run(go())


def test_a_timeout_ends_the_whole_tree(t):
    async def go():
        s = rex(t)
        await raises(ex.CommandTimeoutError, s.runtime.execute(
            Command(command="(setsid sleep 32.1 &) ; sleep 32.1", shell=True, timeout=1)))
        # Its own end is none as long as something holds its output.
        await raises(ex.CommandTimeoutError, s.runtime.execute(
            Command(command="sleep 32.1 &", shell=True, timeout=0.4)))
        ply.wait_for("its processes' end", lambda: not [c for _, c in s.children() if "32.1" in c])
    run(go())


# ---- the program ----

def test_flags_of_swerex_remote(t):
    def cli(*words):
        return subprocess.run([server.SWEREX_REMOTE, *words], env=t.env, text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p = cli("--version")
    assert p.returncode == 0 and p.stdout.strip() == cli("-v").stdout.strip() != ""
    p = cli("-v", "--port", "1")
    assert p.returncode == 1 and p.stderr
    p = cli("--port", "0")
    assert p.returncode == 2 and "--auth-token" in p.stderr and p.stderr.startswith("usage:")
    p = cli("--auth-token", "x", "--port", "many")
    assert p.returncode == 2 and "'many'" in p.stderr
    p = cli("--auth-token", "x", "--host", "no.such.host")
    assert p.returncode == 1 and "no address" in p.stderr
    p = cli("--auth-token", "x", "--port", "0", "this", "that")
    assert p.returncode == 2 and p.stderr.endswith("error: unrecognized arguments: this that\n"), p.stderr
    p = cli("-h")
    assert p.returncode == 0 and "--auth-token" in p.stdout
    s = rex(t)
    assert not server.shows(s, s.token)
    p = cli("--auth-token", "x", "--host", "127.0.0.1", "--port", str(s.port))
    assert p.returncode == 1 and "taken" in p.stderr


def test_what_a_bare_root_lacks_is_named(t):
    if os.geteuid() != 0:
        ply.skip("root only: it hides /proc and /dev")
    for where, said in ("/proc", "/proc is not mounted"), ("/dev", "'/dev/null'"):
        p = t.run(["unshare", "-m", "sh", "-euc", 'mount -t tmpfs none "$0"; exec "$@"', where, server.SWEREX_REMOTE,
                   "--auth-token", "x", "--host", "127.0.0.1", "--port", "0"], check=False, timeout=60)
        assert p.returncode == 1 and said in p.stderr, (where, p.returncode, p.stderr)


def test_the_end_leaves_no_process(t):
    async def go():
        s = rex(t)
        await s.runtime.create_session(create())
        await s.runtime.run_in_session(quick("sleep 34.5 & disown; setsid sleep 34.5 &"))
        busy = threading.Thread(target=lambda: s.raw(
            b"POST /execute HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 44\r\n\r\n"
            b'{"command": "sleep 34.5", "shell": true    }' % s.token.encode(), timeout=30))
        busy.start()
        ply.wait_for("the sleeps", lambda: len([c for _, c in s.children() if "sleep 34.5" in c]) >= 3)
        s.stop(30)
        busy.join()
        ply.wait_for("their end", lambda: not s.children())
    run(go())


def test_a_deployment_of_upstreams(t):
    async def go():
        s = rex(t)
        config = RemoteDeploymentConfig(auth_token=s.token, host="http://127.0.0.1", port=s.port)
        d = server.Watched(get_deployment(config))
        assert type(d.what) is RemoteDeployment
        d.from_config(config)
        d.add_hook(DeploymentHook())
        for call in (d.is_alive, d.stop):
            await raises(ex.DeploymentNotStartedError, call(), "Deployment not started")
        for _ in range(2):
            await d.start()
            assert await d.is_alive()
            await d.runtime.create_session(create())
            assert (await d.runtime.run_in_session(quick("echo d"))).output == "d\n"
            await d.stop()
        await raises(ex.DeploymentNotStartedError, d.is_alive(), "Deployment not started")
        d.assert_all_called()
    run(go())


def test_every_method_and_every_class_of_errors(t):
    # The others are the client's own, or those of deployments that start something; a session that
    # is not initialized is one that does not exist here.
    ours = {"NonZeroExitCodeError", "NoExitCodeError", "BashIncorrectSyntaxError",
            "CommandTimeoutError", "SessionExistsError", "SessionDoesNotExistError"}
    others = {"SwerexException", "SessionNotInitializedError", "DeploymentNotStartedError",
              "DeploymentStartupError", "DockerPullError", "DummyOutputsExhaustedError"}
    assert {n for n, c in vars(ex).items() if isinstance(c, type) and
            issubclass(c, ex.SwerexException)} == ours | others, "swe-rex has new ones"

    async def go():
        s = rex(t)
        r = server.Watched(s.runtime)
        r.from_config(RemoteRuntimeConfig(auth_token=s.token, port=s.port))
        await r.wait_until_alive(timeout=30)
        assert await r.is_alive(timeout=30)
        await r.create_session(create())
        await r.create_session(create("mute"))
        mute = asyncio.create_task(r.run_in_session(quick("builtin() { :; }", session="mute")))
        while not mute.done():
            await asyncio.sleep(0.2)
            await r.run_in_session(BashInterruptAction(session="mute"))
        raised = {type(e).__name__ for e in [
            await raises(ex.NoExitCodeError, mute),  # the shell can no longer say it
            await raises(ex.SessionExistsError, r.create_session(create())),
            await raises(ex.SessionDoesNotExistError, r.run_in_session(quick("x", session="y"))),
            await raises(ex.NonZeroExitCodeError, r.run_in_session(quick("false"))),
            await raises(ex.BashIncorrectSyntaxError, r.run_in_session(quick("("))),
            await raises(ex.CommandTimeoutError, r.execute(Command(command=["cat", "/dev/zero"],
                                                                   timeout=0.2))),
        ]}
        assert raised == ours, ours - raised
        assert (await r.close_session(CloseBashSessionRequest())).session_type == "bash"
        await r.write_file(WriteFileRequest(path=t.at("f"), content="text"))
        assert (await r.read_file(ReadFileRequest(path=t.at("f")))).content == "text"
        await r.upload(UploadRequest(source_path=t.at("f"), target_path=t.at("g")))
        assert ply.read(t.at("g")) == "text"
        await r.close()
        r.assert_all_called()
        s.stop()
        assert not await r.is_alive(timeout=1)
        await raises(TimeoutError, r.wait_until_alive(timeout=0.5))
    run(go())


# ---- a view ----

def test_the_same_on_a_view_with_checkpoints_beside(t):
    view = t.view({"a.txt": "one\n"})
    s = server.serve(t, view)

    async def go():
        r = RemoteRuntime(port=s.port, auth_token=s.token, timeout=30)
        await r.create_session(create())
        assert (await r.run_in_session(quick("pwd; cat a.txt"))).output == view.path + "\none\n"
        assert (await r.execute(Command(command=["pwd"]))).stdout == view.path + "\n"
        assert (await r.execute(Command(command=["cat", "a.txt"], cwd="."))).stdout == "one\n"
        await r.write_file(WriteFileRequest(path="sub/b.txt", content="b"))
        assert view.read("sub/b.txt") == "b"
        before = s.post("/v1/checkpoint").json["id"]
        await r.run_in_session(quick("mkdir d && cd d && rm ../a.txt && echo x > ../new"))
        assert s.post("/v1/restore", {"id": before}).status == 200
        assert view.ls() == ["a.txt", "sub"]
        o = await r.run_in_session(quick("cd ..; ls", check="silent"))
        assert "SHELLPS1" not in o.output
        assert (await r.run_in_session(quick("cd %s; cat a.txt" % view.path))).output == "one\n"
        await r.upload(UploadRequest(source_path=t.tree({"x/y": "z"}, "other"), target_path="."))
        assert view.read("x/y") == "z"
    run(go())
    s.stop()


def test_the_program_alone_on_a_view_can_checkpoint(t):
    view = t.view({"a.txt": "one\n"})
    s = rex(t, cwd=view.path)
    first = s.post("/v1/checkpoint", {"label": "first"})
    assert first.status == 200 and ply.ID.match(first.json["id"]), first
    s.post("/write_file", {"path": "a.txt", "content": "two\n"})
    assert s.post("/v1/restore", {"id": "@first"}).status == 200
    assert view.read("a.txt") == "one\n"
    assert s.post("/v1/undo").status == 200 and view.read("a.txt") == "two\n"
    assert s.post("/v1/restore", {"id": "none"}).status == 404
    assert s.post("/v1/restore").status == 400
    assert s.post("/v1/checkpoint", {"label": "x" * 300}).status == 400
    assert s.get("/v1/tree").status == 404
    s.stop()
    assert rex(t).post("/v1/checkpoint").status == 404, "there is no view here"


# ---- upstream ----

def test_upstreams_own_tests(t):
    source = server.sdist("swe-rex", REX)
    if not source:
        ply.skip("no source archive of swe-rex")
    os.makedirs(t.at("suite", "tests"))
    ply.write(t.at("suite", "tests", "__init__.py"), "")
    ply.write(t.at("suite", "tests", "conftest.py"), CONFTEST)
    for name in ("test_execution.py", "test_server.py", "test_remote_deployment.py"):
        with open(os.path.join(source, "tests", name)) as f:
            ply.write(t.at("suite", "tests", name), f.read())
    s = rex(t, token="testkey")
    p = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o",
                        "asyncio_mode=auto", "tests"], cwd=t.at("suite"), text=True, timeout=250,
                       env=dict(s.env, REX_PORT=str(s.port), PATH=os.environ["PATH"]),
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = p.stdout.strip().splitlines()[-1]
    assert p.returncode == 0 and re.match(r"5\d passed", last), p.stdout[-6000:]
    print("# " + last)
    s.stop()


if __name__ == "__main__":
    with installed.programs():
        ply.main(__name__)
