#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 300
"""
plyfs.sweagent beside SWE-ReX's own LocalRuntime and LocalDeployment (PyPI: swe-rex): the same
script of calls on both, every result compared. Where SWE-ReX is known to be wrong, what ours does
is compared with what bash does.
"""
import asyncio
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy
import venv

venv.enter()
plyfs = plypy.package()

import pydantic
from swerex import exceptions as rex
from swerex.deployment import config as rex_config
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import (
    AbstractRuntime, BashAction, BashInterruptAction, CloseBashSessionRequest, Command,
    CreateBashSessionRequest, ReadFileRequest, UploadRequest, WriteFileRequest)

import plyfs.sweagent as sweagent
from plyfs.sweagent import PlyDeployment, PlyDeploymentConfig

FILES = {"a.txt": "one\n", "dir/b.txt": "two\n"}


class Both:
    """Both deployments, started; same(call) makes the call on both runtimes and compares."""

    def __init__(self, t):
        self.t = t

    async def __aenter__(self):
        self.t.surroundings()
        os.environ["TERM"] = "dumb"  # what SWE-ReX's own sessions need
        self.theirs_at = self.t.tree(FILES, "theirs")
        self.ours_at = self.t.tree(FILES, "ours")
        self.theirs, self.ours = LocalDeployment(), PlyDeployment(workdir=self.ours_at)
        for deployment in (self.theirs, self.ours):
            await deployment.start()
        plypy.adopt(self.t, self.ours.workspace)
        return self

    async def __aexit__(self, *exc):
        await self.theirs.stop()
        await self.ours.stop()

    async def outcome(self, deployment, where, call):
        try:
            value = await call(deployment.runtime, where)
        except Exception as e:
            return e
        def told(v):  # without what is one's own: directory, process numbers, upstream's markers
            v = "SHELLPS1PREFIX" if v == "UNIQUESTRING29234" else v
            return re.sub(r"\[(\d)\](\+?) +\d+", r"[\1]\2 PID", v.replace(where, "WHERE"))
        return type(value)(**{k: told(v) if isinstance(v, str) else v
                              for k, v in value.model_dump().items()})

    async def same(self, call, says=True):
        theirs = await self.outcome(self.theirs, self.theirs_at, call)
        ours = await self.outcome(self.ours, self.ours_at, call)
        shown = "theirs: %r\nours:   %r" % (theirs, ours)
        assert type(theirs) is type(ours), shown
        if isinstance(theirs, Exception):
            if says:
                assert str(ours).replace(self.ours_at, "") == str(theirs).replace(
                    self.theirs_at, ""), shown
        else:
            assert theirs == ours, shown
        return ours

    async def session(self, name="default"):
        for deployment in (self.theirs, self.ours):  # upstream tells the prompt of the bashrc
            await deployment.runtime.create_session(CreateBashSessionRequest(
                session=name, startup_timeout=10))
        await self.same(lambda r, w: r.run_in_session(BashAction(
            command="cd " + w, session=name, timeout=10, check="ignore")))

    async def run(self, command, **kw):
        action = BashAction(command=command, **{"check": "silent", "timeout": 10, **kw})
        return await self.same(lambda r, w: r.run_in_session(action))


def both(t, script):
    async def main():
        async with Both(t) as b:
            await script(b)
    asyncio.run(main())


def alone(t, script, **options):
    """Only ours, with its default session."""
    async def main():
        t.surroundings()
        d = PlyDeployment(workdir=t.tree(FILES, "ours"), **options)
        await d.start()
        plypy.adopt(t, d.workspace)
        try:
            await d.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
            await script(d)
        finally:
            await d.stop()
    asyncio.run(main())


# ---- the deployment ----

def test_it_is_a_deployment_with_a_life(t):
    async def main():
        t.surroundings()
        seen = []

        class Hook(DeploymentHook):
            def on_custom_step(self, message):
                seen.append(message)

        d = PlyDeployment(workdir=t.tree(FILES, "ours"))
        assert isinstance(d, AbstractDeployment)
        d.add_hook(Hook())
        with plypy.raises(rex.DeploymentNotStartedError):
            d.runtime
        assert not await d.is_alive()
        await d.start()
        plypy.adopt(t, d.workspace)
        assert isinstance(d.runtime, AbstractRuntime)
        assert await d.is_alive(timeout=10) and await d.runtime.is_alive()
        assert seen == ["Starting runtime"]
        await d.stop()
        await d.stop()
        assert not await d.is_alive() and not os.path.ismount(t.at("ours"))
        with plypy.raises(rex.DeploymentStartupError):
            await PlyDeployment(workdir=t.at("nowhere"), options={"from": "nothing"}).start()
    asyncio.run(main())


def test_a_configuration_names_it(t):
    sweagent.register()
    sweagent.register()
    any_config = pydantic.TypeAdapter(rex_config.DeploymentConfig)
    config = any_config.validate_python(
        {"type": "plyfs", "workdir": "/src", "kind": "container", "options": {"root": True}})
    assert type(config) is PlyDeploymentConfig
    deployment = rex_config.get_deployment(config)
    assert type(deployment) is PlyDeployment and deployment._config == config
    assert type(any_config.validate_python({"type": "local"})) is rex_config.LocalDeploymentConfig
    for wrong in ({"type": "plyfs", "platform": "x"}, {"type": "plyfs", "kind": "docker"}):
        with plypy.raises(pydantic.ValidationError):
            PlyDeploymentConfig(**wrong)


def test_the_image_of_an_instance_of_a_batch_is_the_state_to_begin_with(t):
    # As SWE-agent's run-batch makes each instance's configuration of the common one. It sets the
    # image of every type but its own local one, also where an instance names none.
    store = t.store()
    store.import_(t.tree({"a.txt": "1"}))
    common = PlyDeploymentConfig(options={"store": store.path})

    async def began(image, **fields):
        t.surroundings()
        config = common.model_copy(deep=True, update=fields)
        config.image = image
        d = config.get_deployment()
        await d.start()
        plypy.adopt(t, d.workspace)
        await d.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        seen = await d.runtime.run_in_session(BashAction(command="cat a.txt; rm a.txt", timeout=10))
        await d.stop()
        return seen.output

    assert asyncio.run(began("main")) == "1"
    assert asyncio.run(began("main")) == "1"  # each is a fork of its own
    with plypy.raises(rex.DeploymentStartupError):
        asyncio.run(began("nothing"))
    ply.write(t.at("dir/a.txt"), "3")
    assert asyncio.run(began("", options={}, workdir=t.at("dir"))) == "3"


def test_checkpoints_under_a_running_session(t):
    async def script(d):
        good = d.workspace.checkpoint()
        run = lambda c: d.runtime.run_in_session(BashAction(command=c, timeout=10))
        await run("cd dir; X=kept; rm b.txt; echo new >new")
        d.workspace.restore(good)
        seen = await run("ls; echo $X; cat b.txt")
        assert seen.output == "b.txt\nkept\ntwo\n", seen
    alone(t, script)


# ---- sessions ----

def test_sessions_exist_once(t):
    async def script(b):
        await b.session()
        await b.same(lambda r, w: r.create_session(CreateBashSessionRequest()))
        await b.same(lambda r, w: r.run_in_session(BashAction(command="true", session="it's")))
        await b.same(lambda r, w: r.run_in_session(BashInterruptAction(session="nope")))
        await b.same(lambda r, w: r.close_session(CloseBashSessionRequest(session="nope")))
        await b.same(lambda r, w: r.close_session(CloseBashSessionRequest()))
        await b.same(lambda r, w: r.close_session(CloseBashSessionRequest()))
        await b.same(lambda r, w: r.run_in_session(BashAction(command="true")))
        await b.session()
        await b.run("echo again")
    both(t, script)


def test_startup_files_are_sourced(t):
    async def script(b):
        ply.write(t.at("rc"), "echo from rc\nexport RC=yes\nPS1='$ '\n")
        for r in (b.theirs.runtime, b.ours.runtime):
            created = await r.create_session(CreateBashSessionRequest(
                startup_source=[t.at("rc"), t.at("no such file")], startup_timeout=10))
            assert "from rc" in created.output, created
        await b.run("echo $RC")
    both(t, script)


def test_commands_in_a_session_give_the_same(t):
    async def script(b):
        await b.session()
        for command in (
                "echo hello", "nonexistent_command_xyz 2>/dev/null", "false && true",
                "false || true", "printf '\\nx'", "printf '\\n\\nx\\n\\n\\n'", "echo '   x'",
                "echo ' a\n b\n'", "", "\n", "\n \n\n", "\n\necho a\n\n", "echo a\necho b\n\necho c",
                "# just a comment", "python3 - <<EOF\nprint('here')\nEOF",
                "(sleep 10) &>/dev/null &",
                "echo a; echo b && echo c", "for i in 1 2 3;\ndo\n  echo $i\ndone", "[[ 1 == 1 ]]",
                "a=(x y); echo ${a[1]}", "echo \"two\nlines\"", "echo $((1+2))",
                "f() { echo in f $1; }\nf 2", "X=kept", "echo $X", "cd dir; pwd; cd ..", "pwd",
                "echo out; echo err >&2", "(exit 42)", "cat <<'EOF'\n$X `y`\nEOF",
                "printf '\\033[31mred\\033[0m\\n'", "printf '\\303\\274\\n'", "printf '\\377\\n'",
                "stty -a | head -1", "ls --color=always", "echo $TERM", "tty -s; echo $?",
                "seq 3000", "kill -9 $BASHPID & wait $!", "echo -n no newline"):
            await b.run(command)
    both(t, script)


def test_a_sessions_exit_codes_are_checked_alike(t):
    async def script(b):
        await b.session()
        for check in ("raise", "silent", "ignore"):
            for command in ("true", "(exit 3)", "echo some output; false"):
                await b.run(command, check=check)
        await b.run("false", check="raise", error_msg="It failed")
        for command in ("(a", "a='", "for", "echo x; )"):
            e = await b.same(lambda r, w: r.run_in_session(BashAction(command=command, timeout=9)),
                             says=False)
            assert isinstance(e, rex.BashIncorrectSyntaxError), (command, e)
            assert set(e.extra_info) == {"bash_stdout", "bash_stderr"}, e.extra_info
            assert "syntax" in str(e) or "unexpected" in str(e), e
        await b.run("echo nothing was run")
    both(t, script)


def test_sessions_are_isolated(t):
    async def script(b):
        await b.session("one")
        await b.session("two")
        await b.run("X=1; cd dir", session="one")
        await b.run("X=2", session="two")
        await b.run("echo $X; pwd", session="one")
        await b.run("echo $X; pwd", session="two")
    both(t, script)


def test_a_timeout_leaves_it_running_and_an_interrupt_recovers(t):
    async def script(b):
        await b.session()
        e = await b.run("sleep 30", timeout=0.3)
        assert isinstance(e, rex.CommandTimeoutError) and isinstance(e, TimeoutError)
        seen = await b.same(lambda r, w: r.run_in_session(BashInterruptAction()))
        assert seen.exit_code == 0
        await b.run("echo usable")
        e = await b.outcome(b.ours, b.ours_at, lambda r, w: r.run_in_session(
            BashAction(command="echo begun; sleep 30", timeout=2)))
        assert e.extra_info["partial_output"] == "begun\n", e.extra_info
        assert "the command goes on" in e.extra_info["reason"], e.extra_info
    both(t, script)


def test_interactive_programs_are_driven_alike(t):
    async def script(b):
        await b.session()
        python = "python3 -q"
        act = lambda **kw: b.same(lambda r, w: r.run_in_session(BashAction(timeout=10, **kw)))
        for _ in range(2):
            seen = await act(command=python, expect=[">>> "], is_interactive_command=True)
            assert seen.expect_string == ">>> " and seen.exit_code == 0, seen
            seen = await act(command="print('hello world')", expect=[">>> "],
                             is_interactive_command=True)
            assert seen.output == "hello world", seen
            await b.outcome(b.theirs, b.theirs_at, lambda r, w: r.run_in_session(BashAction(
                command="quit()\n", timeout=10, is_interactive_quit=True)))
            seen = await b.outcome(b.ours, b.ours_at, lambda r, w: r.run_in_session(BashAction(
                command="quit()\n", timeout=10, is_interactive_quit=True)))
            assert seen.exit_code == 0, seen
            await b.run("echo between")
    both(t, script)


def test_a_pager_that_survives_ctrl_c_is_killed(t):
    ply.need_tool("less")

    async def script(d):
        run = lambda **kw: d.runtime.run_in_session(BashAction(**kw))
        await run(command="seq 5000 >long", timeout=10)
        with plypy.raises(rex.CommandTimeoutError):
            await run(command="TERM=xterm less long", timeout=0.5)
        await d.runtime.run_in_session(BashInterruptAction())
        seen = await run(command="echo usable", timeout=10)
        assert "usable" in seen.output, seen
    alone(t, script)


def test_a_dead_shell_is_said(t):
    async def script(b):
        from pexpect.exceptions import EOF
        await b.session()
        e = await b.same(lambda r, w: r.run_in_session(BashAction(command="exit 3", timeout=10)),
                         says=False)
        assert isinstance(e, EOF), e
    both(t, script)


def test_what_swerex_gets_wrong_bash_gets_right(t):
    async def script(d):
        for command, output in (
                ("cat <<E\na\nE\ncat <<E\nd\nE", "a\nd\n"),
                ("cat <<E\nx\nE\necho after", "x\nafter\n"),
                ("cat <<E | tr a-z A-Z\nx\nE", "X\n"), ("cat <<E && echo more\nx\nE", "x\nmore\n"),
                ("echo a;\necho b", "a\nb\n"), ("true &\nwait\necho b", None),
                ("echo 'a\tb'", "a\tb\n"), ('echo "wow!"', "wow!\n"),
                ("yes | head -2", "y\ny\n"), ("echo SHELLPS1PREFIX", "SHELLPS1PREFIX\n"),
                ("echo UNIQUESTRING29234", "UNIQUESTRING29234\n"),
                ("cat <<E\n%s\nE" % ("y" * 200000), "y" * 200000 + "\n")):
            seen = await d.runtime.run_in_session(BashAction(command=command, timeout=20))
            assert output is None or seen.output == output, (command[:60], seen.output[-100:])
    alone(t, script)


def test_an_interrupt_reaches_a_busy_session(t):
    async def script(d):
        task = asyncio.create_task(d.runtime.run_in_session(
            BashAction(command="sh -c 'echo begun; : >%s; exec sleep 30'" % t.at("begun"), timeout=60,
                       check="silent")))
        while not os.path.exists(t.at("begun")):
            await asyncio.sleep(0.02)
        seen = await d.runtime.run_in_session(BashInterruptAction())
        assert seen.exit_code == 0
        done = await task
        assert done.exit_code == 130 and done.output.startswith("begun\n"), done
        # And other calls do not wait for a command either.
        task = asyncio.create_task(d.runtime.execute(Command(
            command="until [ -e %s ]; do sleep 0.05; done" % t.at("go"), shell=True)))
        await asyncio.sleep(0.05)
        assert await d.is_alive()
        assert (await d.runtime.execute(Command(command=["echo", "x"]))).stdout == "x\n"
        assert not task.done()
        ply.write(t.at("go"), "")
        await task
    alone(t, script)


def test_close_frees_the_names(t):
    async def script(d):
        await d.runtime.close()
        await d.runtime.close()
        await d.runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        assert (await d.runtime.run_in_session(BashAction(command="echo x"))).output == "x\n"
    alone(t, script)


# ---- execute ----

def test_execute_gives_what_subprocess_gives(t):
    async def script(b):
        execute = lambda **kw: b.same(lambda r, w: r.execute(Command(
            **dict(kw, cwd=kw.get("cwd", w)))))
        for kw in (
                dict(command="echo 'hello world'", shell=True), dict(command=["echo", "a b", "$X"]),
                dict(command="echo ''", shell=True),
                dict(command="printf '\\n a \\n '", shell=True),
                dict(command=["echo", "-n", "x\n"]), dict(command="", shell=True),
                dict(command="\n", shell=True, check=True), dict(command="exit 3", shell=True),
                dict(command="exit 3", shell=True, check=True),
                dict(command="echo o; echo e >&2; exit 3", shell=True, check=True,
                     error_msg="It failed"),
                dict(command=["false"], check=True), dict(command="kill -9 $$", shell=True),
                dict(command="echo out; echo err >&2", shell=True, merge_output_streams=True),
                dict(command="echo out; echo err >&2", shell=True),
                dict(command="printf 'a\\r\\n\\377'", shell=True), dict(command="echo hi"),
                dict(command="no-such-program"), dict(command="./a.txt"), dict(command="./nope"),
                dict(command=""), dict(command=[]), dict(command=["a\0b"]), dict(command="pwd",
                                                                             shell=True),
                dict(command="pwd", shell=True, cwd="/"), dict(command="pwd", cwd="/no/such/place"),
                dict(command="echo $X $HOME", shell=True, env={"X": "a 'b'"}),
                dict(command="/usr/bin/env", env={}), dict(command="/usr/bin/env", env={"K": "v"}),
                dict(command=["echo $0 $1", "zero", "one"], shell=True)):
            await execute(**kw)
        assert isinstance(await execute(command="sleep 5", shell=True, timeout=0.2),
                          rex.CommandTimeoutError)
        assert isinstance(await execute(command=["sleep", "5"], timeout=0.2),
                          rex.CommandTimeoutError)
    both(t, script)


def test_execute_ends_what_it_started(t):
    async def script(d):
        with plypy.raises(rex.CommandTimeoutError) as e:
            await d.runtime.execute(Command(command="echo begun; sleep 4712.1 & sleep 4712.1",
                                            shell=True, timeout=0.5))
        assert e.value.extra_info["partial_output"] in ("begun\n", ""), e.value.extra_info
        assert not [p for p in os.listdir("/proc") if p.isdigit() and
                    "sleep 4712.1" in plypy.cmdline(p)]
    alone(t, script)


# ---- files ----

def test_files_are_read_and_written_alike(t):
    async def script(b):
        write = lambda path, content: b.same(lambda r, w: r.write_file(
            WriteFileRequest(path="%s/%s" % (w, path), content=content)))
        read = lambda path, **kw: b.same(lambda r, w: r.read_file(
            ReadFileRequest(path="%s/%s" % (w, path), **kw)))
        await write("new/deep.txt", "text \u00fc\n")
        await read("new/deep.txt")
        await write("crlf", "a\r\nb\rc")
        assert (await read("crlf")).content == "a\nb\nc"
        await read("nope")
        await read("dir")
        await write("dir", "x")
        await write("a.txt/below", "x")
        for where in (b.theirs_at, b.ours_at):
            ply.write(os.path.join(where, "latin"), b"gr\xfc\xdfe\xff\n")
        await read("latin")
        await read("latin", errors="backslashreplace")
        await read("latin", errors="replace")
        await read("latin", encoding="latin-1")
        await read("latin", encoding="no-such-codec")
        await write("large", "x" * (1 << 20))
        assert len((await read("large")).content) == 1 << 20
        for where in (b.theirs_at, b.ours_at):
            assert ply.read(os.path.join(where, "new/deep.txt")) == "text \u00fc\n"
    both(t, script)


def test_uploads_arrive(t):
    async def script(b):
        source = t.tree({"f": "1", "sub/.g": "2", "sub/h": "3"}, "up")
        os.chmod(os.path.join(source, "f"), 0o755)
        await b.same(lambda r, w: r.upload(UploadRequest(source_path=source + "/f",
                                                         target_path=w + "/f2")))
        await b.same(lambda r, w: r.upload(UploadRequest(source_path=source,
                                                         target_path=w + "/tree")))
        listing = await b.same(lambda r, w: r.execute(Command(
            command="ls -lAR --time-style=+ . | grep -v total", shell=True, cwd=w)))
        assert ".g" in listing.stdout and "f2" in listing.stdout, listing
        # Again, into what is there: merged, as SWE-ReX's server does it.
        await b.ours.runtime.upload(UploadRequest(source_path=source,
                                                  target_path=b.ours_at + "/tree"))
        with plypy.raises(ValueError):
            await b.ours.runtime.upload(UploadRequest(source_path=t.at("nope"), target_path="x"))
    both(t, script)


def test_a_container_is_a_deployment(t):
    async def main():
        t.surroundings()
        d = PlyDeployment(workdir=t.tree(FILES, "ours"), kind="container")
        try:
            await d.start()
        except rex.DeploymentStartupError as e:
            if isinstance(e.__cause__, plyfs.NotHereError):
                ply.skip(str(e))
            raise
        plypy.adopt(t, t.at("ours"))
        r = d.runtime
        await r.create_session(CreateBashSessionRequest(startup_timeout=10))
        seen = await r.run_in_session(BashAction(command="pwd; ls", timeout=10))
        assert seen.output.split() == ["/workspace", "a.txt", "dir"], seen
        # Paths are the container's.
        await r.write_file(WriteFileRequest(path="/workspace/x/y", content="hi\r\n"))
        for path in ("/workspace/x/y", "x/y"):
            assert (await r.read_file(ReadFileRequest(path=path))).content == "hi\n"
        for path, error in (("/etc/passwd", PermissionError), ("none", FileNotFoundError)):
            with plypy.raises(error):
                await r.read_file(ReadFileRequest(path=path))
        source = t.tree({"f": "1", "sub/g": "2"}, "up")
        await r.upload(UploadRequest(source_path=source, target_path="/workspace/up"))
        done = await r.execute(Command(command=["cat", "up/f", "up/sub/g", "x/y"]))
        assert done.stdout == "12hi\r\n", done
        assert (await r.execute(Command(command="no-such-program"))).exit_code == 127
        assert (await r.execute(Command(command="echo $A$HOME; pwd", shell=True, cwd="/",
                                        env={"A": "b"}))).stdout == "b\n/\n"
        await d.stop()
    asyncio.run(main())


# ---- SWE-agent itself ----

def test_swe_agents_own_environment_runs_on_it_from_a_configuration(t):
    checkout = os.environ.get("PLYFS_TEST_SWEAGENT")
    if not checkout:
        ply.skip("PyPI's sweagent is a placeholder; PLYFS_TEST_SWEAGENT may name a checkout")
    ply.need_tool("git")
    t.surroundings()
    repo = t.tree(FILES, "repo")
    t.run(["sh", "-euc", "git init -q; git add .; git commit -qm first"], cwd=repo)
    script = """
import json, plypy, sys, types
plypy.package()
sys.modules["ghapi"] = types.ModuleType("ghapi")  # a client of GitHub that nothing here uses
sys.modules["ghapi.all"] = types.ModuleType("ghapi.all")
sys.modules["ghapi.all"].GhApi = object
import plyfs.sweagent
plyfs.sweagent.register()
from sweagent.environment.swe_env import EnvironmentConfig, SWEEnv
config = EnvironmentConfig.model_validate(json.loads(sys.argv[1]))
env = SWEEnv.from_config(config)
env.start()
seen = [env.communicate("pwd; git status --short; echo $STARTED", check="raise")]
good = env.deployment.workspace.checkpoint("prepared")
env.write_file(sys.argv[2] + "/a.txt", "changed\\n")
env.communicate("rm -r dir; cd /", check="raise")
seen.append(env.communicate("git -C %s status --short" % sys.argv[2]))
env.reset()
seen.append(env.communicate("git status --short; pwd"))
env.communicate("rm -rf .git *")
env.deployment.workspace.restore(good)
seen.append(env.communicate("git status --short; cat a.txt"))
env.set_env_variables({"X": "a b"})
seen.append(env.communicate("echo $X"))
try:
    env.communicate("sleep 30", timeout=0.5)
except Exception as e:
    seen.append(type(e).__name__)
env.interrupt_session()
seen.append(env.read_file(sys.argv[2] + "/a.txt"))
env.hard_reset()
seen.append(env.communicate("pwd", check="raise"))
env.close()
print("SEEN" + json.dumps(seen))
"""
    config = {"deployment": {"type": "plyfs", "workdir": repo},
              "repo": {"type": "preexisting", "repo_name": repo[1:]},
              "post_startup_commands": ["export STARTED=yes"]}
    p = t.run([sys.executable, "-c", script, json.dumps(config), repo], timeout=100,
              env=dict(os.environ, PYTHONPATH=plypy.HERE + os.pathsep + checkout))
    seen = json.loads(p.stdout[p.stdout.rindex("SEEN") + 4:])
    assert seen == [repo + "\nyes\n", " M a.txt\n D dir/b.txt\n", repo + "\n", "one\n", "a b\n",
                    "CommandTimeoutError", "one\n", repo + "\n"], seen


ply.main(__name__)
