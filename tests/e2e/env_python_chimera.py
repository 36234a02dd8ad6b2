#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 200
"""
plyfs.chimera.PlyEnvironment beside chimera's own LocalEnvironment and GitEnvironment (PyPI:
chimera-run): the same calls on both, every result compared. What is compared with a value instead
is where upstream is known to be wrong; env/README.md lists it.
"""
import os
import shutil
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy
import venv

venv.enter()
plyfs = plypy.package()

from chimera.env import factory
from chimera.env.base import Environment
from chimera.env.git_env import GitEnvironment
from chimera.env.local import LocalEnvironment
from chimera.types import CommandResult, TestResult

from plyfs.chimera import PlyEnvironment, register

FILES = {"a.txt": "one\n", "dir/b.py": "two\n", "dir/sub/c.txt": "three\n", ".hidden": "h\n",
         "dir/.dot/d": "d\n", "x[1].txt": "bracket\n"}
PYTEST = shlex.quote(sys.executable) + " -m pytest -p no:cacheprovider -q"


class Pair:
    """The same files under both; `same(f)` calls f with each and compares what comes of it."""

    def __init__(self, t, files, theirs, kind, **options):
        t.surroundings()
        os.environ["HOME"] = t.at("home")
        # Upstream cannot read an answer when the line that it typed, prompt included, ends just at
        # the terminal's width (tmux joins it with the answer): a wide terminal, on a server of ours.
        os.environ["TMUX_TMPDIR"] = t.at("run")
        ply.write(t.at("home", ".tmux.conf"), "set -g default-size 1000x50\n")
        self.theirs = theirs(t.tree(files, "theirs"), **options)
        self.ours = PlyEnvironment(t.tree(files, "ours"), kind=kind, **options)
        self.t = t

    def __enter__(self):
        assert self.theirs.__enter__() is self.theirs
        assert self.ours.__enter__() is self.ours
        plypy.adopt(self.t, self.ours.workspace)
        return self

    def __exit__(self, *exc):
        self.theirs.__exit__(*exc)
        self.ours.__exit__(*exc)

    def outcome(self, env, function):
        try:
            value = function(env)
        except Exception as e:
            return e
        if isinstance(value, str):
            value = value.replace(str(env.workdir), "WORKDIR")
        if isinstance(value, CommandResult):
            value = CommandResult(value.stdout.replace(str(env.workdir), "WORKDIR"),
                                  value.stderr.replace(str(env.workdir), "WORKDIR"),
                                  value.exit_code)
        return value

    def same(self, function, says=True):
        theirs, ours = self.outcome(self.theirs, function), self.outcome(self.ours, function)
        shown = "theirs: %r\nours:   %r" % (theirs, ours)
        if isinstance(theirs, Exception):
            assert isinstance(ours, type(theirs)), shown
            if says:
                assert str(ours) == str(theirs).replace("theirs", "ours"), shown
            return theirs
        assert type(theirs) is type(ours) and theirs == ours, shown
        return ours


def pair(t, files=FILES, theirs=LocalEnvironment, kind="local", **options):
    return Pair(t, files, theirs, kind, **options)


# ---- 2. Environment ABC ----

def test_it_is_a_real_environment(t):
    assert issubclass(PlyEnvironment, Environment)
    with pair(t) as p:
        for name in dir(LocalEnvironment):
            if not name.startswith("_"):
                assert hasattr(p.ours, name), "LocalEnvironment has %s" % name
        assert type(p.ours.run_command("true")) is CommandResult
        assert type(p.ours.workdir) is type(p.theirs.workdir)
        assert (p.ours.test_cmd, p.ours.timeout) == (p.theirs.test_cmd, p.theirs.timeout)


def test_the_factory_makes_them(t):
    t.surroundings()
    register()
    assert "plyfs" in factory.available_providers()
    env = factory.create_environment("plyfs", workdir=t.tree(FILES, "work"), kind="git")
    assert isinstance(env, PlyEnvironment) and env.workspace.kind == "git"
    with env:
        plypy.adopt(t, env.workspace)
        assert env.read_file("a.txt") == "one\n"
    factory.unregister_environment("plyfs")


def test_setup_creates_the_workdir_and_cleanup_keeps_the_files(t):
    t.surroundings()
    for cls, where in ((LocalEnvironment, "theirs/new/deep"), (PlyEnvironment, "ours/new/deep")):
        env = cls(t.at(where))
        with env:
            if cls is PlyEnvironment:
                plypy.adopt(t, env.workspace)
            assert os.path.isdir(t.at(where))
            env.write_file("x", "kept")
        assert ply.read(t.at(where, "x")) == "kept"


def test_an_exception_leaves_the_block(t):
    t.surroundings()
    with plypy.raises(KeyError):
        with PlyEnvironment(t.tree(FILES, "work")) as env:
            plypy.adopt(t, env.workspace)
            raise KeyError("mine")
    assert not os.path.ismount(t.at("work"))


# ---- 3.2 files ----

def test_files_are_read_as_upstream_reads_them(t):
    with pair(t) as p:
        p.same(lambda e: e.write_file("new/deep/\u00fc.txt", "gr\u00fc\u00dfe\n"))
        p.same(lambda e: e.read_file("new/deep/\u00fc.txt"))
        p.same(lambda e: e.write_file("crlf", "a\r\nb\rc\n"))
        assert p.same(lambda e: e.read_file("crlf")) == "a\nb\nc\n"
        p.same(lambda e: (e.workdir / "crlf").read_bytes())
        p.same(lambda e: e.write_file("crlf", "shorter"))
        p.same(lambda e: e.read_file("crlf"))
        p.same(lambda e: e.read_file(str(e.workdir / "a.txt")))
        p.same(lambda e: (e.workdir / "latin").write_bytes(b"\xff"))
        p.same(lambda e: e.read_file("latin"))
        p.same(lambda e: e.write_file("empty", ""))
        p.same(lambda e: e.read_file("empty"))
        p.same(lambda e: os.symlink("a.txt", e.workdir / "link"))
        p.same(lambda e: e.write_file("link", "through\n"))
        p.same(lambda e: (e.read_file("a.txt"), os.path.islink(e.workdir / "link")))


def test_file_errors_are_upstreams(t):
    with pair(t) as p:
        assert isinstance(p.same(lambda e: e.read_file("nope")), FileNotFoundError)
        p.same(lambda e: e.read_file("nope/deeper"))
        assert isinstance(p.same(lambda e: e.read_file("dir"), says=False), IsADirectoryError)
        p.same(lambda e: e.write_file("dir", "x"), says=False)


def test_paths_are_contained(t):
    with pair(t) as p:
        ply.write(t.at("secret"), "s")
        p.same(lambda e: os.symlink("../secret", e.workdir / "out"))
        p.same(lambda e: os.symlink("..", e.workdir / "up"))
        for path in ("../secret", "/etc/passwd", "dir/../../secret", "out", "up/secret", "up/x/y",
                     "..", "/"):
            assert isinstance(p.same(lambda e: e.read_file(path)), PermissionError), path
            assert isinstance(p.same(lambda e: e.write_file(path, "x")), PermissionError), path
        assert ply.read(t.at("secret")) == "s"
        assert p.same(lambda e: e.read_file("dir/../a.txt")) == "one\n"


# ---- 3.3 list_files ----

def test_globs_match_as_upstreams(t):
    with pair(t) as p:
        p.same(lambda e: os.symlink("a.txt", e.workdir / "link"))
        p.same(lambda e: os.symlink("dir", e.workdir / "dirlink"))
        p.same(lambda e: os.symlink("nowhere", e.workdir / "broken"))
        p.same(lambda e: os.mkfifo(e.workdir / "fifo"))
        for pattern in ("*", "**/*", "*.txt", "**/*.txt", "dir/*", "dir/**/*", "**/c.txt", "?.txt",
                        "[ab].txt", "[!a]*", ".*", "**/.dot/*", "dir/*/c.txt", "DIR/*", "nope",
                        "dir", "*/*.py", "**/sub/*"):
            p.same(lambda e: e.list_files(pattern))
        p.same(lambda e: e.list_files())
        # An empty pattern: ValueError; an absolute one: NotImplementedError.
        for pattern in ("", "/etc/*"):
            p.same(lambda e: e.list_files(pattern), says=False)


# ---- 3.4 run_command ----

def test_commands_give_what_upstream_gives(t):
    with pair(t) as p:
        for cmd in ("python3 -c \"print('hello')\"", "echo out; echo err >&2; exit 3", "pwd", "",
                    "false", "no-such-program-at-all 2>/dev/null", "kill -TERM $$", "kill -9 $$",
                    "printf 'a\\r\\nb\\r'", "printf 'no newline'", "echo $0", "cd dir; pwd",
                    "cat a.txt dir/b.py", "printf '\\303\\274'", "exit 300", "echo 'a;b' | tr ; x",
                    "export X=1", "echo \"[$X]\"", "echo a\necho b", "cat <<E\nhere\nE"):
            p.same(lambda e: e.run_command(cmd))
        assert isinstance(p.same(lambda e: e.run_command("printf '\\377'"), says=False),
                          UnicodeDecodeError)
        p.same(lambda e: e.run_command("echo x", timeout=20, shell_name="ignored"))


def test_a_timeout_is_a_result(t):
    with pair(t) as p:
        r = p.same(lambda e: e.run_command("sleep 30", timeout=1))
        assert (r.stdout, r.stderr, r.exit_code) == ("", "Command timed out", 124)
        # 0 and None: the environment's own.
        p.same(lambda e: e.run_command("echo quick", timeout=0))
        p.same(lambda e: e.run_command("echo quick", timeout=None))
        r = p.same(lambda e: e.run_command("sleep 2", timeout=-1))
        assert r.stderr == "Command timed out"


# ---- 3.5 run_tests ----

def test_test_results_are_upstreams(t):
    outputs = ("3 passed, 1 failed, 2 errors in 0.1s", "1 error in 0.1s", "5 passed, 3 xfailed",
               "nothing of the kind", "no tests ran in 0.01s", "12 passed")
    for i, text in enumerate(outputs):
        for rule in (None, "chimera"):
            options = {"test_rule": rule} if rule else {}
            t.surroundings()
            theirs = LocalEnvironment(t.tree({}, "theirs%d" % i), "echo '=== %s ==='" % text)
            with theirs, PlyEnvironment(t.tree({}, "ours%d" % i), theirs.test_cmd,
                                        **options) as ours:
                plypy.adopt(t, ours.workspace)
                a, b = theirs.run_tests(), ours.run_tests()
                assert a == b and type(b) is TestResult, (text, a, b)
                assert (a.total, a.pass_rate, a.all_passed) == (b.total, b.pass_rate, b.all_passed)


def test_pytest_is_counted_alike(t):
    files = {"test_x.py": "import pytest\n\ndef test_a(): pass\n\ndef test_b(): assert 0\n\n"
                          "@pytest.fixture\ndef f(): 1/0\n\ndef test_c(f): pass\n"}
    with pair(t, files, test_cmd=PYTEST) as p:
        a, b = p.theirs.run_tests(), p.ours.run_tests()
        assert (a.passed, a.failed, a.errors) == (b.passed, b.failed, b.errors) == (1, 1, 1), (a, b)


# ---- 3.6 checkpoint and restore ----

def test_checkpoints_are_restored_in_any_order(t):
    with pair(t) as p:
        assert p.same(lambda e: e.checkpoint()) == "0"
        p.same(lambda e: e.write_file("a.txt", "second\n"))
        p.same(lambda e: e.write_file("later/new.txt", "n\n"))
        assert p.same(lambda e: e.checkpoint()) == "1"
        p.same(lambda e: os.unlink(e.workdir / "dir/b.py"))
        assert p.same(lambda e: e.checkpoint()) == "2"
        for cp in ("0", "1", "2", "0", "2", "1", "1"):
            p.same(lambda e: e.restore(cp))
            p.same(lambda e: e.list_files())
            p.same(lambda e: [e.read_file(f) for f in e.list_files()])
        assert p.same(lambda e: e.checkpoint()) == "3"


def test_an_unknown_checkpoint_is_a_value_error(t):
    with pair(t) as p:
        for cp in ("0", "999", "nonsense"):
            assert isinstance(p.same(lambda e: e.restore(cp), says=False), ValueError)
        p.same(lambda e: e.list_files())


def test_a_restore_keeps_symlinks_and_modes(t):
    """Upstream follows symlinks: listed as a quirk."""
    with pair(t) as p:
        os.symlink("a.txt", t.at("ours/link"))
        os.chmod(t.at("ours/a.txt"), 0o741)
        cp = p.ours.checkpoint()
        os.unlink(t.at("ours/link"))
        os.unlink(t.at("ours/a.txt"))
        p.ours.restore(cp)
        assert os.readlink(t.at("ours/link")) == "a.txt"
        assert os.stat(t.at("ours/a.txt")).st_mode & 0o777 == 0o741


def test_excluded_directories_survive_a_restore(t):
    """As upstream's list of directories, when asked for with the option exclude."""
    from chimera.env.local import CHECKPOINT_EXCLUDED_DIRS
    t.surroundings()
    files = dict(FILES, **{"node_modules/m": "1", "dir/.venv/v": "1", "build/b": "1"})
    theirs = LocalEnvironment(t.tree(files, "theirs"))
    with theirs, PlyEnvironment(t.tree(files, "ours"),
                                exclude=sorted(CHECKPOINT_EXCLUDED_DIRS)) as ours:
        plypy.adopt(t, ours.workspace)
        for env in (theirs, ours):
            cp = env.checkpoint()
            env.write_file("node_modules/m", "2")
            env.write_file("node_modules/n", "2")
            env.write_file("dir/.venv/v", "2")
            env.write_file("a.txt", "2")
            shutil.rmtree(env.workdir / "build")
            env.restore(cp)
            env.seen = {f: env.read_file(f) for f in env.list_files()}
        # Upstream says at any depth, but its restore removes dir with all that it holds.
        assert ours.seen.pop("dir/.venv/v") == "2"
        theirs.seen.pop("dir/.venv/v", None)
        assert ours.seen == theirs.seen, (ours.seen, theirs.seen)


def test_a_clone_is_independent(t):
    with pair(t, test_cmd="echo 7 passed") as p:
        p.same(lambda e: e.write_file("a.txt", "before\n"))
        clones = [e.clone() for e in (p.theirs, p.ours)]
        try:
            for env, clone in zip((p.theirs, p.ours), clones):
                assert isinstance(clone, type(env)) and clone.workdir != env.workdir
                assert clone.read_file("a.txt") == "before\n" and not clone.has_session
                clone.write_file("a.txt", "clone\n")
                env.write_file("dir/b.py", "original\n")
                assert env.read_file("a.txt") == "before\n"
                assert clone.read_file("dir/b.py") == "two\n"
                assert clone.run_tests().passed == 7
                assert (clone.test_cmd, clone.timeout) == (env.test_cmd, env.timeout)
        finally:
            for clone in clones:
                clone.cleanup()


# ---- 4. GitEnvironment ----

def test_the_kind_git_does_what_git_environment_does(t):
    ply.need_tool("git")
    with pair(t, theirs=GitEnvironment, kind="git") as p:
        for env in (p.theirs, p.ours):
            assert env.run_command("git log --oneline").stdout.count("initial") == 1
            env.write_file("a.txt", "v1")
            first = env.checkpoint()
            env.write_file("a.txt", "v2")
            second = env.checkpoint()
            env.write_file("a.txt", "v3")
            env.write_file("new.txt", "n")
            assert len(first) == len(second) == 40
            env.restore(first)
            assert env.read_file("a.txt") == "v1" and "new.txt" not in env.list_files("*")
            env.restore(second)
            assert env.read_file("a.txt") == "v2"
            clone = env.clone()
            assert clone.read_file("a.txt") == "v2" and isinstance(clone, type(env))
            clone.cleanup()
        with plypy.raises(ValueError):
            p.ours.restore("0" * 40)
        assert p.ours.read_file("a.txt") == "v2"


def test_the_kind_container_has_what_docker_environment_lacks(t):
    """Upstream's DockerEnvironment refuses checkpoint and restore."""
    t.surroundings()
    env = PlyEnvironment(t.tree(FILES, "ours"), "echo 3 passed", kind="container")
    try:
        env.setup()
    except plyfs.NotHereError as e:
        ply.skip(str(e))
    plypy.adopt(t, t.at("ours"))
    with env.workspace:
        cp = env.checkpoint()
        assert env.run_command("rm -rf dir; echo x >a.txt; pwd").stdout == "/workspace\n"
        assert env.run_tests().passed == 3 and env.read_file("a.txt") == "x\n"
        env.restore(cp)
        assert env.read_file("a.txt") == "one\n" and "dir/b.py" in env.list_files()
        r = env.run_command("sleep 30", timeout=1)
        assert (r.stdout, r.stderr, r.exit_code) == ("", "Command timed out", 124)
    assert not os.path.ismount(t.at("ours"))


# ---- 5. SessionMixin ----

def test_session_errors_are_upstreams(t):
    ply.need_tool("tmux")
    with pair(t) as p:
        assert p.same(lambda e: e.has_session) is False
        p.same(lambda e: e.list_shells())
        p.same(lambda e: e.end_session())
        for f in (lambda e: e.create_shell("x"), lambda e: e.run_in_session("true")):
            assert isinstance(p.same(f), RuntimeError)
        p.same(lambda e: e.start_session())
        assert isinstance(p.same(lambda e: e.start_session()), RuntimeError)
        p.same(lambda e: e.create_shell("two"))
        assert isinstance(p.same(lambda e: e.create_shell("two")), ValueError)
        assert p.same(lambda e: e.list_shells()) == ["main", "two"]
        assert p.same(lambda e: e.has_session) is True
        p.same(lambda e: e.end_session())
        p.same(lambda e: e.end_session())
        p.same(lambda e: e.has_session)


def test_session_commands_give_what_upstream_gives(t):
    ply.need_tool("tmux")
    with pair(t) as p:
        p.same(lambda e: e.start_session())
        p.same(lambda e: e.create_shell("two"))
        for cmd, shell in (("cd %s", "main"), ("echo hello", "main"), ("export X=kept", "main"),
                           ("echo $X", "main"), ("echo \"[$X]\"", "two"), ("false", "main"),
                           ("cd dir && pwd", "main"), ("pwd", "main"), ("(exit 9)", "two"),
                           ("seq 5", "two")):
            p.same(lambda e: e.run_in_session(
                cmd % e.workdir if "%s" in cmd else cmd, shell_name=shell, timeout=20))
        p.same(lambda e: e.run_command("echo via run; echo err >&2"))
        p.same(lambda e: e.run_in_session("sleep 30", timeout=1))
        # Here 0 is none at all, too; through run_command it is the environment's own.
        for none in (0, -1):
            r = p.same(lambda e: e.run_in_session("sleep 2", timeout=none))
            assert r.stderr == "Command timed out"
        p.same(lambda e: e.run_command("sleep 2", timeout=-1))
        p.same(lambda e: e.run_command("true", timeout=0))
        p.same(lambda e: e.run_in_session("echo usable", timeout=20))


def test_session_commands_that_upstream_gets_wrong(t):
    """Each a quirk of the terminal scraping in upstream's mixin."""
    t.surroundings()
    with PlyEnvironment(t.tree(FILES, "ours"), session=True) as env:
        plypy.adopt(t, env.workspace)
        assert env.has_session
        assert env.run_command("pwd").stdout == str(env.workdir)
        assert env.run_command("printf 'no newline'").stdout == "no newline"
        assert env.run_command("echo %s" % ("x" * 300)).stdout == "x" * 300
        assert env.run_command("echo a # comment").stdout == "a"
        assert env.run_command("sleep 30 & echo b").stdout.split()[-1] == "b"
        assert env.run_command("echo 'trailing  '").stdout == "trailing  "
        assert env.run_command("seq 5000").stdout.count("\n") == 4999


def test_without_chimera_it_is_a_class_of_its_own(t):
    t.surroundings()
    t.tree(FILES, "work")
    script = ("import plypy, sys; plypy.package(); sys.modules['chimera'] = None\n"
              "from plyfs.chimera import PlyEnvironment, TestResult\n"
              "with PlyEnvironment('work', 'echo 2 passed') as env:\n"
              "    cp = env.checkpoint(); env.write_file('a.txt', 'x'); env.restore(cp)\n"
              "    print(env.read_file('a.txt').strip(), env.run_tests().pass_rate)\n")
    p = t.run([sys.executable, "-c", script], env=dict(os.environ, PYTHONPATH=plypy.HERE))
    assert p.stdout == "one 1.0\n", p


ply.main(__name__)
