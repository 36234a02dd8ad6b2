#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 200
"""
What users get: the build installed somewhere, the examples of env/examples against it. The C one is
compiled with pkg-config against the shared and the static library, the Python one runs from the
wheel in an environment of its own, the shell one with the installed program.
"""
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import plypy
import venv

plypy.need_plain_build()

EXAMPLES = os.path.join(ply.SOURCE, "env", "examples")
WANTED = ["as it is: 3 passed, 0 failed", "broken: 1 passed, 2 failed",
          "restored: 3 passed, 0 failed"]
CALC = "def add(a, b):\n    return a + b\n"
TESTS = ("import unittest\n\nimport calc\n\n\nclass Add(unittest.TestCase):\n"
         "    def test_small(self):\n        self.assertEqual(calc.add(1, 2), 3)\n\n"
         "    def test_zero(self):\n        self.assertEqual(calc.add(0, 5), 5)\n\n"
         "    def test_text(self):\n        self.assertEqual(calc.add('a', 'b'), 'ab')\n")


class Installed(installed.Installed):
    """With what the examples need."""

    def pkg_config(self, *args):
        return self.t.run(["pkg-config", *args, "libplyfs"], env=self.env).stdout.split()

    def repository(self, name):
        """A real one: tests, a commit, an ignored file."""
        t = self.t
        repo = t.tree({"calc.py": CALC, "test_calc.py": TESTS, ".gitignore": "*.log\n"}, name)
        t.run(["sh", "-euc", "git init -q; git add .; git commit -qm first; echo x >a.log"],
              cwd=repo)
        return repo

    def run(self, argv, repo, **env):
        """Runs an example; the repository is afterwards what it was, clean and not mounted."""
        p = self.t.run([*argv, repo], env=dict(self.env, **env), timeout=60)
        assert ply.read(os.path.join(repo, "calc.py")) == CALC
        assert not os.path.ismount(repo)
        shutil.rmtree(os.path.join(repo, "__pycache__"), ignore_errors=True)
        assert self.t.run(["git", "status", "--porcelain"], cwd=repo).stdout == ""
        return p


def test_what_is_installed(t):
    i = Installed(t)
    there = {os.path.relpath(os.path.join(d, f), i.prefix)
             for d, _, names in os.walk(i.prefix) for f in names}
    for f in ("bin/plyfs", "libexec/plyfs/plyfsd", "libexec/plyfs/plyfs-keeper",
              "libexec/plyfs/plyfs-env", "include/plyfs.h",
              "share/doc/plyfs/examples/example.c", "share/doc/plyfs/examples/demo.sh",
              "share/doc/plyfs/examples/swe-agent/plyfs/bin/_state_plyfs"):
        assert f in there, "%s is missing in %s" % (f, sorted(there))
    soname = t.run(["readelf", "-d", os.path.join(i.lib, "libplyfs.so")]).stdout
    assert "[libplyfs.so.0]" in soname, soname
    assert os.path.exists(os.path.join(i.lib, "libplyfs.a"))
    assert i.pkg_config("--modversion") == [
        re.search(r"version: '(.*)'", ply.read(os.path.join(ply.SOURCE, "meson.build")))[1]]
    # Nothing of it leads into the build or the source tree.
    for d, _, names in os.walk(i.top):
        for f in names:
            if f.endswith((".pc", ".h", ".sh", ".py")):
                text = ply.read(os.path.join(d, f))
                assert ply.BUILD not in text and ply.SOURCE not in text, f


def test_the_header_stands_alone(t):
    i = Installed(t)
    ply.write(t.at("x.c"), "#include <plyfs.h>\nint main(void) { return ply_version()[0] == 0; }\n")
    for std in ("c99", "c17", "gnu17"):
        t.run(["cc", "-std=" + std, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
               *i.pkg_config("--cflags"), t.at("x.c")])
    if shutil.which("c++"):
        t.run(["c++", "-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
               *i.pkg_config("--cflags"), t.at("x.c")])


def test_the_example_in_c_with_the_shared_library(t):
    i = Installed(t)
    source = os.path.join(i.prefix, "share/doc/plyfs/examples/example.c")
    t.run(["cc", "-Wall", "-Wextra", "-Werror", source, "-o", t.at("example"),
           *i.pkg_config("--cflags", "--libs")])
    p = i.run([t.at("example")], i.repository("repo"), LD_LIBRARY_PATH=i.lib)
    assert p.stdout.splitlines() == WANTED, p
    lines = [line for line in ply.read(source).splitlines() if line and line[:2] != "/*"]
    assert len(lines) <= 30, "the example in C has %d lines" % len(lines)


def test_the_example_in_c_with_the_static_library(t):
    i = Installed(t)
    # Ours static, what it needs shared, as a distribution has it.
    needs = i.pkg_config("--print-requires-private")
    libs = [os.path.join(i.lib, "libplyfs.a"), "-pthread", "-lm",
            *t.run(["pkg-config", "--libs", *needs]).stdout.split()]
    # Somewhere else than the installation, so that the programs are not found by neighbourhood.
    t.run(["cc", "-Wall", "-Wextra", "-Werror", os.path.join(EXAMPLES, "example.c"), "-o",
           t.at("example"), *i.pkg_config("--cflags"), *libs])
    needed = t.run(["readelf", "-d", t.at("example")]).stdout
    assert "libplyfs" not in needed, needed
    p = i.run([t.at("example")], i.repository("repo"),
              PLYFS_LIBEXEC=os.path.join(i.prefix, "libexec", "plyfs"))
    assert p.stdout.splitlines() == WANTED, p


def test_the_static_library_leaves_names_to_the_program(t):
    i = Installed(t)
    names = t.run(["nm", "--defined-only", "--extern-only", os.path.join(i.lib, "libplyfs.a")])
    names = {line.split()[2] for line in names.stdout.splitlines() if len(line.split()) == 3}
    assert names and all(n.startswith("ply_") for n in names), sorted(names)[:20]


def wheel(t, *args):
    """Builds it; a Python environment that has it and nothing else."""
    try:
        python = venv.python()
    except SystemExit:  # it has said why
        ply.skip("no wheel can be built")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    env = dict(os.environ, PATH=os.path.dirname(python) + ":" + os.environ["PATH"])
    # A copy: the backend leaves no trace in the source tree even when it is ended.
    source = shutil.copytree(plypy.PACKAGE, t.at("package"),
                             ignore=shutil.ignore_patterns("__pycache__"))
    t.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", t.at("wheels"), source,
           *args], env=env)
    made = os.listdir(t.at("wheels"))
    assert len(made) == 1, made
    t.run([sys.executable, "-m", "venv", "--without-pip", t.at("own")])
    own = t.at("own", "bin", "python3")
    t.run([*pip, "--python", own, "install", "--no-deps", "--no-index",
           t.at("wheels", made[0])], env=env)
    return own, made[0]


def test_the_example_in_python_from_the_wheel(t):
    i = Installed(t)
    own, name = wheel(t)
    assert name.endswith("-py3-none-any.whl"), name
    example = os.path.join(EXAMPLES, "example.py")
    p = i.run([own, example], i.repository("repo"))  # which is found beside the plyfs in PATH
    assert p.stdout.splitlines() == WANTED, p
    code = [line for line in ply.read(example).splitlines() if line and line[0] not in "#\""]
    assert len(code) <= 15, "the example in Python has %d lines" % len(code)
    # It says what to do when there is no library.
    p = t.run([own, "-c", "import plyfs"], env=dict(t.env, PLYFS_LIBRARY="/nonexistent.so"),
              check=False)
    assert "ImportError" in p.stderr and "PLYFS_LIBRARY" in p.stderr, p


def test_a_wheel_that_brings_the_library_along(t):
    i = Installed(t)
    own, name = wheel(t, "-Csetup-args=-Dlibrary=" + os.path.realpath(
        os.path.join(i.lib, "libplyfs.so")))
    assert "linux" in name, name
    p = i.run([own, os.path.join(EXAMPLES, "example.py")], i.repository("repo"),
              PLYFS_LIBEXEC=os.path.join(i.prefix, "libexec", "plyfs"))
    assert p.stdout.splitlines() == WANTED, p
    where = t.run([own, "-c", "import plyfs._api as a; print(a.lib._name)"], env=i.env).stdout
    assert where.startswith(t.at("own")), where


def test_the_example_in_shell(t):
    i = Installed(t)
    p = i.run(["sh", os.path.join(i.prefix, "share/doc/plyfs/examples/example.sh")],
              i.repository("repo"))
    summary = re.findall(r"(\d+) passed, (\d+) failed", p.stderr)
    assert summary == [("3", "0"), ("1", "2"), ("3", "0")], p
    said = [line for line in p.stdout.splitlines() if line in ("broken", "restored")]
    assert said == ["broken", "restored"], p


def test_the_example_in_shell_takes_a_relative_path(t):
    i = Installed(t)
    repo = i.repository("repo")
    t.run(["sh", os.path.join(i.prefix, "share/doc/plyfs/examples/example.sh"), "repo"],
          cwd=os.path.dirname(repo), env=i.env, timeout=60)
    assert not os.path.ismount(repo)
    assert ply.read(os.path.join(repo, "calc.py")) == CALC


ply.main(__name__)
