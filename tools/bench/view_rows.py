# SPDX-License-Identifier: Apache-2.0
"""
The work of `bench view`. A row says what is timed:

    material(m)        once, on the underlying filesystem: what the work needs (m.path is a directory
                       for it). Unavailable: the row is left out, and says why
    prepare(m, at)     before each run, outside the clock; `at` is the row's directory in a place
    run(m, at)         {row: seconds}, mostly of one row

`limit` is what is wanted of it in times of the underlying filesystem (None: nothing); `floor`
whether it may be compared with the floor; `several`, that it is several clients at once.
"""
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import time

from rivals import Unavailable

HERE = os.path.dirname(os.path.realpath(__file__))
# Where a machine has files like those of a project, and what is too large for one of them.
SOURCES = ("/usr/include", "/usr/share", "/usr/lib/python3", "/usr/lib", "/etc")
LARGEST = 128 << 10
# How often a run does what takes some tenths of a second; it tells the median. A round of plyfs's sealer,
# or of the system's writeback, falls into one of four or five, and none says much by itself.
SHORT = 3


class Material:
    """What the rows share; `quick`: as little as still runs."""

    def __init__(self, path, quick):
        self.path, self.quick, self.made = path, quick, {}
        self.plyfs = None  # the program, while the work is done in a view
        os.mkdir(path)
        self.env = dict(os.environ, HOME=path, CCACHE_DISABLE="1", GIT_CONFIG_NOSYSTEM="1",
                        GIT_AUTHOR_NAME="b", GIT_AUTHOR_EMAIL="b", GIT_COMMITTER_NAME="b",
                        GIT_COMMITTER_EMAIL="b", GIT_TERMINAL_PROMPT="0")

    def at(self, *names):
        return os.path.join(self.path, *names)

    def size(self, quick, full):
        return quick if self.quick else full

    def once(self, name, make):
        """make(path) the first time; the path."""
        if name not in self.made:
            self.made[name] = self.at(name)
            make(self.made[name])
        return self.made[name]

    def command(self, argv, cwd, fine=(0,)):
        p = subprocess.run(argv, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if p.returncode not in fine:
            raise RuntimeError("%s: exit %d: %s" % (" ".join(argv), p.returncode,
                                                    p.stderr.strip()[-500:]))

    def timed(self, argv, cwd, fine=(0,)):
        begin = time.perf_counter()
        self.command(argv, cwd, fine)
        return time.perf_counter() - begin

    def median_timed(self, n, *what):
        """Of something that takes tens of milliseconds: one interruption would be the whole ratio."""
        return sorted(self.timed(*what) for _ in range(n))[n // 2]

    def at_once(self, commands):
        """Seconds until all of them, begun together, are done."""
        begin = time.perf_counter()
        running = [subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                   for argv in commands]
        said = [p.communicate()[1] for p in running]
        seconds = time.perf_counter() - begin
        for p, err in zip(running, said):
            if p.returncode:
                raise RuntimeError("%s: exit %d: %s" % (" ".join(p.args), p.returncode,
                                                        err.strip()[-500:]))
        return seconds

    def laps(self, *args, times=1):
        """{name: median seconds} of that many runs of filework."""
        found = {}
        for _ in range(times):
            p = subprocess.run([os.path.join(HERE, "filework"), *map(str, args)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if p.returncode:
                raise RuntimeError(p.stderr.strip())
            for line in p.stdout.splitlines():
                name, ns = line.split()
                found.setdefault(name, []).append(int(ns) / 1e9)
        return {name: sorted(s)[len(s) // 2] for name, s in found.items()}

    # ---- trees ----

    def tree(self):
        return self.once("tree", self._tree)

    def _tree(self, to):
        """Some thousand files of this machine, as a source tree has them."""
        want = self.size(300, 5000)
        for source in SOURCES:
            for folder, dirs, names in os.walk(source):
                dirs.sort()
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    st = os.lstat(path)
                    if not stat.S_ISREG(st.st_mode) or not 0 < st.st_size <= LARGEST:
                        continue
                    if want == 0:
                        return
                    copy = to + folder + "/" + name
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    try:
                        shutil.copy2(path, copy)
                    except OSError:
                        continue  # unreadable for this user
                    want -= 1

    def tar(self):
        def make(path):
            with tarfile.open(path, "w") as t:
                t.add(self.tree(), "tree")
        return self.once("tree.tar", make)

    def unpacked(self, at):
        """The tree in a place, there from an earlier run or not."""
        top = os.path.join(at, "..", "shared-tree")
        if not os.path.isdir(os.path.join(top, "tree")):
            os.makedirs(top, exist_ok=True)
            self.command(["tar", "xf", self.tar()], top)
        return os.path.join(top, "tree")

    # ---- git ----

    def repository(self):
        if not shutil.which("git"):
            raise Unavailable("not installed: apt-get install git")
        return self.once("repo.git", self._repository)

    def _repository(self, to):
        """Two states, a and b, in which every tenth file differs."""
        work = self.at("repo-work")
        shutil.copytree(self.tree(), work)

        def git(*args):
            self.command(["git", *args], work)
        git("init", "-q")
        git("add", "-A", "-f")
        git("commit", "-q", "-m", "a")
        git("tag", "a")
        names = sorted(os.path.join(d, n) for d, _, ns in os.walk(work) for n in ns
                       if "/.git" not in d)
        for i, name in enumerate(names[::10]):
            if i % 10 == 0:
                os.unlink(name)
            else:
                with open(name, "ab") as f:
                    f.write(b"changed in b\n")
        git("add", "-A", "-f")
        git("commit", "-q", "-m", "b")
        git("tag", "b")
        git("gc", "-q")
        self.command(["git", "clone", "-q", "--bare", work, to], self.path)
        shutil.rmtree(work)

    def clone(self, at):
        top = os.path.join(at, "clone")
        if not os.path.isdir(top):
            self.command(["git", "clone", "-q", "--no-hardlinks", self.repository(), top], at)
            self.command(["git", "checkout", "-q", "a"], top)
        return top


class Row:
    floor, several = True, False

    def material(self, m):
        pass

    def prepare(self, m, at):
        pass


def remove(path):
    subprocess.run(["rm", "-rf", path], check=True)


class Untar(Row):
    name, title, limit = "untar", "untar a source tree", 5

    def material(self, m):
        m.tar()

    def prepare(self, m, at):
        remove(os.path.join(at, "tree"))

    def run(self, m, at):
        return {self.name: m.timed(["tar", "xf", m.tar()], at)}


class Stat(Row):
    name, title, limit = "stat", "walk with stat, warm", 1.15

    def prepare(self, m, at):
        self.tree = m.unpacked(at)
        m.laps("stat", self.tree, 2)

    def run(self, m, at):
        return {self.name: m.laps("stat", self.tree, 11)["stat"]}


class Open(Row):
    name, title, limit = "open", "open+read+close, warm", 1.6

    def prepare(self, m, at):
        self.tree = m.unpacked(at)
        m.laps("open", self.tree, 2)

    def run(self, m, at):
        return {self.name: m.laps("open", self.tree, 11)["open"]}


class Search(Row):
    name, limit = "search", 1.15
    tool = ["rg", "-uuu", "-c"] if shutil.which("rg") else ["grep", "-r", "-c"]
    title = "%s, warm" % ("rg" if tool[0] == "rg" else "grep -r")

    def prepare(self, m, at):
        self.tree = m.unpacked(at)
        self.run(m, at)

    def run(self, m, at):
        return {self.name: m.median_timed(
            5, self.tool + ["no such words are in there", "."], self.tree, (1,))}


class Write(Row):
    name, title, limit = "write", "sequential write", 1.5

    def prepare(self, m, at):
        remove(os.path.join(at, "file"))

    def run(self, m, at):
        return m.laps("write", os.path.join(at, "file"), m.size(8, 64))


class Overwrite(Row):
    name, title, limit = "overwrite", "4 KiB random writes", None

    def file(self, m, at):
        return [os.path.join(at, "file"), m.size(8, 64)]

    def prepare(self, m, at):
        if not os.path.exists(os.path.join(at, "file")):
            m.laps("write", *self.file(m, at))

    def run(self, m, at):
        # Pages go on at random from lap to lap: of the second's 46 in 100 were written before, as
        # 43 are of 20,000 in one lap. The same ones again would cost a view less than the first time.
        return m.laps("overwrite", *self.file(m, at), m.size(500, 7000), SHORT)


class Read(Overwrite):
    name, title, limit = "read", "sequential read, warm", 1.15

    def prepare(self, m, at):
        super().prepare(m, at)
        m.laps("read", *self.file(m, at), 1)

    def run(self, m, at):
        return m.laps("read", *self.file(m, at), 11)


class Reread(Overwrite):
    """Pages dropped: the disk's own speed in one place, memory's in the other."""
    name, title, limit = "reread", "sequential read, uncached", None

    def run(self, m, at):
        return m.laps("reread", *self.file(m, at), times=SHORT)


class Pick(Overwrite):
    name, title, limit = "pick", "4 KiB random reads, uncached", None

    def run(self, m, at):
        # Once: the next laps would find in our cache what the first had to load.
        return m.laps("pick", *self.file(m, at), m.size(500, 20000))


class Storm(Row):
    name, title = "storm", "small files"
    # After a write the kernel asks for the times: the first stat of each is one request anywhere.
    parts = {"create": ("create small files", 4), "stat-storm": ("stat them, first", None),
             "stat-again": ("stat them again", 1.15), "rename": ("rename them", 4),
             "unlink": ("unlink them", 4)}

    def run(self, m, at):
        laps = m.laps("storm", at, m.size(500, 5000), times=SHORT)
        laps["stat-storm"], laps["stat-again"] = laps.pop("stat"), laps.pop("again")
        return laps


class Storm2(Row):
    name, title, limit, several = "storm-2", "small files, two at once", 4, True

    def prepare(self, m, at):
        for who in "ab":
            os.makedirs(os.path.join(at, who), exist_ok=True)

    def run(self, m, at):
        return {self.name: m.at_once([[os.path.join(HERE, "filework"), "storm",
                                       os.path.join(at, who), str(m.size(300, 3000))]
                                      for who in "ab"])}


class Clone(Row):
    name, title, limit = "clone", "git clone", None

    def material(self, m):
        m.repository()

    def prepare(self, m, at):
        remove(os.path.join(at, "clone"))

    def run(self, m, at):
        return {self.name: m.timed(["git", "clone", "-q", "--no-hardlinks", m.repository(),
                                    "clone"], at)}


class Status(Row):
    name, title, limit = "status", "git status, warm", 1.6

    def material(self, m):
        m.repository()

    def prepare(self, m, at):
        self.top = m.clone(at)
        for _ in range(2):
            self.run(m, at)

    def run(self, m, at):
        return {self.name: m.median_timed(7, ["git", "status"], self.top)}


class Checkout(Row):
    name, title, limit = "checkout", "git checkout there and back", 2.5

    def material(self, m):
        m.repository()

    def prepare(self, m, at):
        self.top = m.clone(at)
        m.command(["git", "checkout", "-q", "a"], self.top)

    def run(self, m, at):
        return {self.name: m.timed(["git", "checkout", "-q", "b"], self.top) +
                m.timed(["git", "checkout", "-q", "a"], self.top)}


class StatusAsked(Status):
    """A view tells git what has changed; elsewhere git looks, with its cache of untracked files."""
    name, title, limit, floor = "status-fsmonitor", "git status, fsmonitor", 1.0, False

    def prepare(self, m, at):
        self.top = m.clone(at)
        m.command(["git", "config", "core.untrackedCache", "true"], self.top)
        if m.plyfs:
            m.command([m.plyfs, "fsmonitor", "--install"], self.top)
        for _ in range(2):
            self.run(m, at)


class Git2(Checkout):
    name, title, several = "git-2", "git, two work trees at once", True

    def prepare(self, m, at):
        for who in "ab":
            os.makedirs(os.path.join(at, who), exist_ok=True)
            m.command(["git", "checkout", "-q", "a"], m.clone(os.path.join(at, who)))

    def run(self, m, at):
        work = "git status && git checkout -q b && git status && git checkout -q a"
        return {self.name: m.at_once([["sh", "-c", "cd \"$1\" && " + work, "sh",
                                       os.path.join(at, who, "clone")] for who in "ab"])}


class Build(Row):
    name, title, limit, several = "build", "C build, make -j", 1.2, True

    def material(self, m):
        for tool in ("make", "cc"):
            if not shutil.which(tool):
                raise Unavailable("not installed: apt-get install build-essential")
        m.once("c", lambda to: self.generate(to, m.size(4, 40), m.size(10, 60)))

    @staticmethod
    def generate(to, files, functions):
        os.mkdir(to)
        rng = random.Random(1)
        for i in range(files):
            with open(os.path.join(to, "f%d.h" % i), "w") as f:
                f.write("#pragma once\nint f%d_0(int a, const char *s);\n" % i)
            with open(os.path.join(to, "f%d.c" % i), "w") as f:
                f.write("#include <errno.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
                        "#include <string.h>\n#include <sys/stat.h>\n#include <unistd.h>\n")
                f.writelines('#include "f%d.h"\n' % rng.randrange(files) for _ in range(8))
                for k in reversed(range(functions)):
                    f.write("int f%d_%d(int a, const char *s)\n{\n\tchar buf[64];\n\n"
                            "\tfor (int i = 0; i < a; i++) {\n\t\tsnprintf(buf, sizeof(buf), "
                            "\"%%d %%s\", a * %d, s);\n\t\ta += (int)strlen(buf) %% %d;\n\t}\n"
                            "\treturn a + %d;\n}\n" % (i, k, rng.randrange(99),
                                                       rng.randrange(2, 9), k))
        with open(os.path.join(to, "main.c"), "w") as f:
            f.write("int f0_0(int a, const char *s);\nint main(void) { return f0_0(0, \"\"); }\n")
        with open(os.path.join(to, "Makefile"), "w") as f:
            f.write("SRC := main.c %s\nOBJ := $(SRC:.c=.o)\n"
                    "prog: $(OBJ)\n\tcc -o $@ $^\n"
                    "%%.o: %%.c\n\tcc -O1 -g -MMD -c -o $@ $<\n-include $(OBJ:.o=.d)\n" %
                    " ".join("f%d.c" % i for i in range(files)))

    def prepare(self, m, at):
        remove(os.path.join(at, "c"))
        shutil.copytree(m.at("c"), os.path.join(at, "c"))

    def run(self, m, at):
        return {self.name: m.timed(["make", "-s", "-j%d" % os.cpu_count()],
                                   os.path.join(at, "c"))}


class Compileall(Row):
    name, title, limit = "compileall", "python -m compileall", None

    def material(self, m):
        m.once("pylib", lambda to: self.copy(m, to))

    @staticmethod
    def copy(m, to):
        library = os.path.dirname(os.__file__)
        names = [n for n in sorted(os.listdir(library)) if n.endswith(".py")]
        os.mkdir(to)
        for n in names[:m.size(10, 80)]:
            shutil.copyfile(os.path.join(library, n), os.path.join(to, n))

    def prepare(self, m, at):
        remove(os.path.join(at, "pylib"))
        shutil.copytree(m.at("pylib"), os.path.join(at, "pylib"))

    def run(self, m, at):
        return {self.name: m.timed([sys.executable, "-m", "compileall", "-q", "pylib"], at)}


class Venv(Row):
    name, title, limit = "venv", "python -m venv", None

    def material(self, m):
        # With pip, hundreds of files from a zip file; some Pythons come without its wheel.
        self.options = ["--without-pip"]
        try:
            import ensurepip
            if not m.quick and ensurepip.version():
                self.options = []
        except ImportError:
            pass

    def prepare(self, m, at):
        remove(os.path.join(at, "venv"))

    def run(self, m, at):
        return {self.name: m.timed([sys.executable, "-m", "venv"] + self.options + ["venv"], at)}


class Tests(Row):
    name, title, limit = "tests", "python unittest, second run", 1.15

    def material(self, m):
        m.once("pytests", lambda to: self.generate(to, m.size(5, 100)))

    @staticmethod
    def generate(to, modules):
        os.makedirs(os.path.join(to, "tests"))
        os.mkdir(os.path.join(to, "lib"))
        for d in ("lib", "tests"):
            open(os.path.join(to, d, "__init__.py"), "w").close()
        for i in range(modules):
            with open(os.path.join(to, "lib", "m%d.py" % i), "w") as f:
                f.writelines("def f%d(x):\n    return sorted(str(x + %d) * 9)\n\n\n" % (k, k)
                             for k in range(30))
            with open(os.path.join(to, "tests", "test_m%d.py" % i), "w") as f:
                f.write("import unittest\nfrom lib import m%d\n\n\nclass T(unittest.TestCase):\n" %
                        i)
                f.writelines("    def test_%d(self):\n        for i in range(200):\n"
                             "            self.assertTrue(m%d.f%d(i))\n\n" % (k, i, k)
                             for k in range(5))

    def prepare(self, m, at):
        if not os.path.isdir(os.path.join(at, "pytests")):
            shutil.copytree(m.at("pytests"), os.path.join(at, "pytests"))
        self.run(m, at)

    def run(self, m, at):
        return {self.name: m.timed([sys.executable, "-m", "unittest", "discover", "-q", "tests",
                                    "-t", "."], os.path.join(at, "pytests"))}


class Npm(Row):
    name, title, limit = "npm", "npm install, offline", 2

    def material(self, m):
        if not shutil.which("npm"):
            raise Unavailable("not installed: apt-get install npm")
        m.once("npm", lambda to: self.generate(to, m.size(3, 30), m.size(10, 60)))
        # The first install fills npm's cache, so that all runs have it.
        self.prepare(m, m.path)
        try:
            self.run(m, m.path)
        except RuntimeError as why:
            raise Unavailable(str(why).split("\n")[0])

    @staticmethod
    def generate(to, packages, files):
        """Packages as the registry would send them, made here: no network."""
        os.mkdir(to)
        for i in range(packages):
            top = os.path.join(to, "package")
            os.makedirs(os.path.join(top, "lib"))
            with open(os.path.join(top, "package.json"), "w") as f:
                json.dump({"name": "bench-p%d" % i, "version": "1.0.0", "main": "lib/f0.js"}, f)
            for k in range(files):
                with open(os.path.join(top, "lib", "f%d.js" % k), "w") as f:
                    f.write("module.exports = %d;\n" % k * (k + 5))
            with tarfile.open(os.path.join(to, "p%d.tgz" % i), "w:gz") as t:
                t.add(top, "package")
            shutil.rmtree(top)
        with open(os.path.join(to, "package.json"), "w") as f:
            json.dump({"name": "bench", "version": "1.0.0", "private": True, "dependencies": {
                "bench-p%d" % i: "file:" + os.path.join(to, "p%d.tgz" % i)
                for i in range(packages)}}, f)

    def prepare(self, m, at):
        remove(os.path.join(at, "project"))
        os.mkdir(os.path.join(at, "project"))
        shutil.copyfile(m.at("npm", "package.json"), os.path.join(at, "project", "package.json"))

    def run(self, m, at):
        return {self.name: m.timed(
            ["npm", "install", "--offline", "--no-audit", "--no-fund", "--ignore-scripts",
             "--silent", "--cache", m.at("npm-cache")], os.path.join(at, "project"))}


SQLITE = """
import sqlite3, sys, time
db = sqlite3.connect("db")
db.execute("pragma synchronous=" + sys.argv[2])
db.execute("create table t (i integer primary key, v text)")
db.commit()
begin = time.perf_counter()
for n in range(int(sys.argv[1])):
    db.executemany("insert into t (v) values (?)", [("row %d of %d" % (k, n) * 9,)
                                                    for k in range(10)])
    db.commit()
print(time.perf_counter() - begin)
assert db.execute("select count(*) from t").fetchone()[0] == 10 * int(sys.argv[1])
"""


class Sqlite(Row):
    """Each transaction waits for the disk, as by default; the floor has no disk to wait for."""
    name, title, limit, floor = "sqlite", "sqlite transactions, durable", 2, False
    synchronous, full = "full", 200

    def prepare(self, m, at):
        for n in os.listdir(at):
            os.unlink(os.path.join(at, n))

    def run(self, m, at):
        p = subprocess.run([sys.executable, "-c", SQLITE, str(m.size(20, self.full)),
                            self.synchronous], cwd=at, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise RuntimeError("sqlite: " + p.stderr.strip()[-500:])
        return {self.name: float(p.stdout)}


class SqliteFast(Sqlite):
    name, title, floor = "sqlite-nosync", "sqlite transactions, no sync", True
    synchronous, full = "off", 1500


class Remove(Row):
    name, title, limit = "rm", "rm -rf of the tree", 3

    def prepare(self, m, at):
        for i in range(SHORT):
            top = os.path.join(at, str(i))
            os.makedirs(top, exist_ok=True)
            if not os.path.isdir(os.path.join(top, "tree")):
                m.command(["tar", "xf", m.tar()], top)

    def run(self, m, at):
        seconds = sorted(m.timed(["rm", "-rf", "%d/tree" % i], at) for i in range(SHORT))
        return {self.name: seconds[SHORT // 2]}


ALL = [Untar, Stat, Open, Search, Write, Overwrite, Read, Reread, Pick, Storm, Storm2, Clone,
       Status, StatusAsked, Checkout, Git2, Build, Compileall, Venv, Tests, Npm, Sqlite, SqliteFast, Remove]


def parts_of(kind):
    """[(row, title, limit)]"""
    if hasattr(kind, "parts"):
        return [(name, *what) for name, what in kind.parts.items()]
    return [(kind.name, kind.title, kind.limit)]
