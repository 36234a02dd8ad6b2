#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 120
"""
Tests of the project itself: who may include whom, licences, stray files, widths, exported names.
They hold for every file that exists, so a new one is covered from its first day.
"""
import ast
import os
import re
import subprocess
import unittest

TOP = os.environ.get("PLYFS_SOURCE") or os.path.dirname(os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PLYFS_BUILD") or os.path.join(TOP, "build")

# Each room and what it may include: nothing points upwards.
ROOMS = {
    "store/base": ["store/base"],
    "store": ["store", "store/base"],
    "fs": ["fs", "store", "store/base"],
    "env": ["env", "fs", "store/base"],  # of fs the ioctl header, of store/base util.h only
    "env/serve": ["env/serve", "env", "fs", "store/base"],  # of fs the ioctl header
    "env/formats": ["env/formats", "env", "fs", "store/base"],  # of env dotgit.h, of fs inode.h only
    "env/transfer": ["env/transfer", "env/formats", "env", "fs", "store", "store/base"],  # of env dotgit.h
    "env/examples": [],  # <plyfs.h>, as users have it
    "tools": ["tools", "env", "env/serve", "env/transfer", "fs", "store", "store/base"],
    "tools/bench": ["tools/bench", "fs", "store/base"],  # ioctl.h; floor.c: the adapter
    "tests/unit": ["tests/unit", "tests/lib", "tools", "env", "env/serve", "env/formats", "env/transfer",
                   "fs", "store", "store/base"],
    "tests/lib": ["tests/lib", "fs"],  # of fs the ioctl header only
    "tests/fuzz": ["tests/fuzz", "tools", "env", "env/serve", "env/formats", "env/transfer", "fs", "store",
                   "store/base"],
}
# A foreign header has one home.
HOMES = {
    "xxhash.h": {"store/hash.c", "tests/lib/treedigest.c"},
    "xxh_x86dispatch.h": {"store/hash.c"},
    "lmdb.h": {"store/index_internal.h"},
    "fuse_lowlevel.h": {"fs/fuse.c"},
    "git2.h": {"env/formats/git.h", "env/repo_internal.h"},  # plyfs-git and libplyfs
    "archive.h": {"env/formats/tar.h", "env/zip.c", "tests/unit/test_tar.c"},
    "curl/curl.h": {"env/http_client.c"},
    "microhttpd.h": {"env/serve/http.c"},
    "minizip/unzip.h": {"env/serve/rex_upload.c"},
    "yaml.h": {"env/swe_config.c"},
    "pcre2.h": {"env/expect.c"},
    "expat.h": {"env/junit.c"},
    "openssl/sha.h": {"env/formats/digest.c"},
}
AT_THE_TOP = {"fs", "store", "env", "tools", "tests", "meson.build", "meson_options.txt",
              "meson.options", "README.md", "LICENSE", ".ci", ".gitignore", ".gitattributes",
              ".clang-format", ".clang-tidy", ".editorconfig", ".git", "subprojects"}


def files():
    """Paths of the project's files: what git knows or would take, else what is there."""
    p = subprocess.run(["git", "-c", "safe.directory=*", "-C", TOP, "ls-files", "-co",
                        "--exclude-standard"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                       text=True)
    if p.returncode == 0 and p.stdout:
        return [f for f in p.stdout.splitlines() if os.path.isfile(os.path.join(TOP, f))]
    found = []
    for d, dirs, names in os.walk(TOP):
        dirs[:] = [x for x in dirs if not x.startswith((".git", "build", "__pycache__"))]
        found += [os.path.relpath(os.path.join(d, n), TOP) for n in names]
    return found


FILES = sorted(files())


def text(name):
    with open(os.path.join(TOP, name), encoding="utf-8") as f:
        return f.read()


def sources(*ends):
    return [f for f in FILES if f.endswith(ends)]


class Project(unittest.TestCase):
    def none(self, wrong):
        if wrong:
            self.fail("\n" + "\n".join(wrong))

    def test_includes_never_point_upwards(self):
        wrong = []
        for name in sources(".c", ".h"):
            room = os.path.dirname(name)
            self.assertIn(room, ROOMS, "%s lies in no known room" % name)
            for inc in re.findall(r'^#include "([^"]+)"', text(name), re.M):
                if os.path.dirname(inc) not in ROOMS[room]:
                    wrong.append("%s includes %s" % (name, inc))
                elif not os.path.exists(os.path.join(TOP, inc)):
                    wrong.append("%s includes %s, which is not in the project" % (name, inc))
        self.none(wrong)

    def test_each_foreign_header_has_one_home(self):
        wrong = []
        for name in sources(".c", ".h"):
            for inc in re.findall(r"^#\s*include <([^>]+)>", text(name), re.M):
                if inc in HOMES and name not in HOMES[inc]:
                    wrong.append("%s includes <%s>" % (name, inc))
        self.none(wrong)

    def test_whoever_uses_libgit2_includes_its_errors(self):
        # git_error_clear and its like: since libgit2 1.8 (Debian 13) git2.h does not bring them.
        for name in sorted(HOMES["git2.h"]):
            self.assertRegex(text(name), "#if __has_include\\(<git2/sys/errors.h>\\)\n"
                                         "#include <git2/sys/errors.h>", name)

    def test_every_source_names_its_licence_at_once(self):
        ends = (".c", ".h", ".py", ".sh", "meson.build")
        for name in sources(*ends) + [f for f in FILES if f.startswith(("tools/", ".ci/")) and
                                      "." not in os.path.basename(f)]:
            head = "\n".join(text(name).splitlines()[:2])
            self.assertIn("SPDX-License-Identifier: Apache-2.0", head, name)
        self.assertIn("Apache License", text("LICENSE"))

    def test_headers_guard_themselves(self):
        for name in sources(".h"):
            self.assertIn("#pragma once", "\n".join(text(name).splitlines()[:4]), name)

    def test_no_stray_files_at_the_top(self):
        tops = {f.split("/")[0] for f in FILES}
        self.assertEqual(tops - AT_THE_TOP, set())

    def test_every_room_explains_itself(self):
        for room in ("store", "fs", "env", "tools", "tests"):
            self.assertTrue(os.path.exists(os.path.join(TOP, room, "README.md")), room)

    def test_c_lines_fit_and_tabs_indent(self):
        wrong = []
        for name in sources(".c", ".h"):
            for i, line in enumerate(text(name).split("\n"), 1):
                if len(line.expandtabs(8)) > 100:
                    wrong.append("%s:%d is %d wide" % (name, i, len(line.expandtabs(8))))
                if line != line.rstrip():
                    wrong.append("%s:%d ends with white space" % (name, i))
                if re.match(r" {8}", line):
                    wrong.append("%s:%d is indented with spaces" % (name, i))
        self.none(wrong)

    def test_readmes_fit_120_columns(self):
        wrong = []
        for name in sources("README.md"):
            for i, line in enumerate(text(name).split("\n"), 1):
                if len(line) > 120:
                    wrong.append("%s:%d is %d wide" % (name, i, len(line)))
        self.none(wrong)

    def test_results_that_must_be_used_are_left_with_a_bang(self):
        # gcc does not take (void) for a use. Ubuntu's fortifies by itself, and then libc marks these.
        must = ("asprintf|chdir|chown|chroot|dup|fchdir|fchown|fchownat|fgets|fread|freopen|ftruncate|"
                "getcwd|link|linkat|mkdtemp|mkstemp|nice|pipe|pipe2|pread|pwrite|read|readlink|"
                "readlinkat|realpath|sete?uid|sete?gid|setres[ug]id|setre[ug]id|symlink|"
                "symlinkat|system|truncate|vasprintf|write")
        wrong = []
        for name in sources(".c", ".h"):
            for i, line in enumerate(text(name).split("\n"), 1):
                for call in re.findall(r"\(void\)((?:%s)\()" % must, line):
                    wrong.append("%s:%d: (void)!%s" % (name, i, call))
        self.none(wrong)

    def test_no_machine_paths(self):
        words = ["/" + "work/", "/" + "farm/"]
        wrong = []
        for name in FILES:
            with open(os.path.join(TOP, name), errors="replace") as f:
                content = f.read()
            if any(w in content for w in words):
                wrong.append(name)
        self.none(wrong)

    def test_no_source_is_forgotten_by_its_build_file(self):
        for name in sources(".c"):
            room = os.path.dirname(name)
            if not room.startswith("tests/") and room in ROOMS:
                self.assertIn("'%s'" % os.path.basename(name), text(room + "/meson.build"), name)

    def test_only_public_names_are_exported(self):
        for program in ("plyfs", "plyfsd"):
            path = os.path.join(BUILD, "tools", program)
            if not os.path.exists(path):
                self.skipTest("not built")
            out = subprocess.run(["nm", "-D", "--defined-only", path], stdout=subprocess.PIPE,
                                 text=True).stdout
            if "asan" in out or "tsan" in out:
                self.skipTest("a sanitizer exports its own")
            names = [line.split()[-1] for line in out.splitlines()]
            # What the loader itself puts there is not ours.
            ours = [n for n in names if not n.startswith("_") and "@" not in n and
                    n not in ("environ", "stdin", "stdout", "stderr", "optarg", "optind")]
            self.assertEqual(ours, [], program)

    def test_the_client_is_thin(self):
        # Start-up of a command is most of its time: the client links nothing but libc.
        path = os.path.join(BUILD, "tools", "plyfs")
        if not os.path.exists(path):
            self.skipTest("not built")
        out = subprocess.run(["readelf", "-d", path], stdout=subprocess.PIPE, text=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", out)
        extra = [n for n in needed if not n.startswith(("libc.", "libasan", "libubsan", "libtsan",
                                                        "ld-", "libm.", "libgcc_s"))]
        self.assertEqual(extra, [])

    def test_help_fits_80_columns(self):
        path = os.path.join(BUILD, "tools", "plyfs")
        if not os.path.exists(path):
            self.skipTest("not built")
        for words in (["--help"], ["bench", "view", "--help"]):
            out = subprocess.run([path, *words], stdout=subprocess.PIPE, text=True).stdout
            self.assertTrue(out)
            self.assertLessEqual(max(map(len, out.splitlines())), 80, words)

    def test_no_test_stands_twice_in_a_script(self):
        # The second would take the place of the first without a word.
        for name in sources(".py"):
            if not name.startswith("tests/"):
                continue
            for node in ast.walk(ast.parse(text(name))):
                if isinstance(node, (ast.Module, ast.ClassDef)):
                    names = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
                    twice = {n for n in names if n.startswith("test_") and names.count(n) > 1}
                    self.assertEqual(twice, set(), name)

    def test_scripts_are_executable(self):
        for name in FILES:
            if name.endswith("/requirements.txt"):
                continue
            if name.startswith(("tests/e2e/", ".ci/")) or name in (
                    "tools/setup", "tools/test", "tools/quickstart", "tools/bench/bench"):
                self.assertTrue(os.access(os.path.join(TOP, name), os.X_OK), name)


if __name__ == "__main__":
    unittest.main(verbosity=1)
