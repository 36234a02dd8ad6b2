#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 60
"""
The Python package says in ctypes what plyfs.h says in C. This reads the header and holds each
function, struct field, status and option against its counterpart, so that they cannot drift apart.
Layouts are asked of the compiler.
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import unittest
from enum import IntEnum

TOP = os.environ.get("PLYFS_SOURCE") or os.path.dirname(os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("PLYFS_BUILD") or os.path.join(TOP, "build")
LIBRARY = os.path.join(BUILD, "env", "libplyfs.so.0")
PACKAGE = os.path.join(TOP, "env", "python")


def header():
    with open(os.path.join(TOP, "env", "plyfs.h"), encoding="utf-8") as f:
        return f.read()


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def functions():
    """name: (result type, parameter types), as words of C without parameter names."""
    found = {}
    text = without_comments(header())
    for m in re.finditer(r"^PLY_API\s+([^;]*?)(ply_\w+)\(([^;]*)\);", text, re.M):
        result, name, parameters = m[1].strip(), m[2], " ".join(m[3].split())
        types = []
        for p in [] if parameters == "void" else parameters.split(","):
            types.append(re.sub(r"\s*\b\w+$", "", p.strip()))
        found[name] = (result, types)
    return found


def structs():
    """name: names of the fields, of every struct that the header defines."""
    found = {}
    for m in re.finditer(r"struct (\w+) \{(.*?)\n\};", without_comments(header()), re.S):
        fields = []
        for line in m[2].split(";"):
            line = " ".join(line.split())
            if not line:
                continue
            pointer = re.match(r".*\(\*(\w+)\)\(", line)
            if pointer:
                fields.append(pointer[1])
                continue
            for part in line.split(","):
                fields.append(re.search(r"(\w+)(\[\d+\])?$", part.strip())[1])
        found[m[1]] = fields
    return found


def enum(name):
    body = re.search(r"enum %s \{(.*?)\};" % name, without_comments(header()), re.S)[1]
    found, value = {}, 0
    for item in body.split(","):
        m = re.match(r"\s*(\w+)(?:\s*=\s*(-?\d+))?\s*$", item)
        if m:
            value = int(m[2]) if m[2] else value
            found[m[1]] = value
            value += 1
    return found


class PythonApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(LIBRARY):
            raise unittest.SkipTest("not built")
        if sys.version_info < (3, 11):
            raise unittest.SkipTest("the package needs Python 3.11")
        with open(LIBRARY, "rb") as f:
            if re.search(b"__[at]san_init", f.read()) or os.environ.get("LD_PRELOAD"):
                raise unittest.SkipTest("a sanitizer does not load into Python")
        os.environ["PLYFS_LIBRARY"] = LIBRARY
        sys.dont_write_bytecode = True
        sys.path.insert(0, PACKAGE)
        import plyfs._api
        import plyfs.workspace
        cls.api = plyfs._api
        cls.errors = plyfs.errors
        cls.plyfs = plyfs

    def test_numbers_of_other_types_are_numbers(self):
        class Other(float):  # as numpy's
            def __repr__(self):
                return "np.float64(%s)" % float(self)

        ws = self.plyfs.Workspace(".", timeout=Other(3.5), output_limit=IntEnum("E", "ONE").ONE)
        self.assertEqual((ws.option("timeout"), ws.option("output_limit")), ("3.5", "1"))

    def ctype(self, word):
        """The ctypes type for a type in C."""
        api, c = self.api, " ".join(word.replace("*", " * ").split())
        simple = {"int": ctypes.c_int, "double": ctypes.c_double, "size_t": ctypes.c_size_t,
                  "bool": ctypes.c_bool, "uint64_t": ctypes.c_uint64, "void": None,
                  "const char *": ctypes.c_char_p, "const void *": ctypes.c_char_p,
                  "const char * const *": ctypes.POINTER(ctypes.c_char_p)}
        if c in simple:
            return simple[c]
        m = re.fullmatch(r"(?:const )?struct (\w+) ((?:\* )*\*)", c)
        self.assertTrue(m, "a type that this test does not know: " + word)
        opaque = not hasattr(api, m[1])
        stars = m[2].count("*")
        if opaque:
            return api.handle if stars == 1 else ctypes.POINTER(api.handle)
        self.assertEqual(stars, 1, word)
        return ctypes.POINTER(getattr(api, m[1]))

    def test_every_function_is_declared_with_its_types(self):
        wanted = functions()
        self.assertGreater(len(wanted), 50)
        self.assertEqual(sorted(self.api.FUNCTIONS), sorted(wanted))
        for name, (result, parameters) in wanted.items():
            have, arguments = self.api.FUNCTIONS[name]
            if have is self.api.STATUS:
                have = ctypes.c_int
            self.assertEqual(have, self.ctype(result), name)
            self.assertEqual(arguments, [self.ctype(p) for p in parameters], name)

    def test_every_function_is_exported_by_the_library(self):
        out = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], stdout=subprocess.PIPE,
                             text=True, check=True).stdout
        exported = {line.split()[-1] for line in out.splitlines()}
        self.assertEqual({n for n in exported if not n.startswith("_")}, set(functions()))

    def test_every_struct_has_its_fields_where_the_compiler_puts_them(self):
        wanted = structs()
        self.assertGreaterEqual(len(wanted), 8)
        lines, have = [], []
        for name, fields in wanted.items():
            struct = getattr(self.api, name)
            self.assertEqual([f[0] for f in struct._fields_], fields, name)
            lines.append('printf("%s %%zu\\n", sizeof(struct %s));' % (name, name))
            have.append("%s %d" % (name, ctypes.sizeof(struct)))
            for f in fields:
                lines.append('printf("%s.%s %%zu %%zu\\n", offsetof(struct %s, %s), '
                             'sizeof(((struct %s *)0)->%s));' % (name, f, name, f, name, f))
                field = getattr(struct, f)
                have.append("%s.%s %d %d" % (name, f, field.offset, field.size))
        with tempfile.TemporaryDirectory() as d:
            source = os.path.join(d, "layout.c")
            with open(source, "w") as f:
                f.write('#include <stdio.h>\n#include "plyfs.h"\nint main(void)\n{\n%s\n}\n'
                        % "\n".join(lines))
            program = os.path.join(d, "layout")
            subprocess.run(["cc", "-I", os.path.join(TOP, "env"), source, "-o", program],
                           check=True)
            out = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(out.splitlines(), have)

    def test_every_status_is_an_exception_of_its_own(self):
        wanted = enum("ply_status")
        self.assertEqual(self.api.STATUSES, wanted)
        for name, status in wanted.items():
            self.assertEqual(self.api.lib.ply_status_name(status).decode(), name)
            if status:
                e = self.errors.error_for(status, "a sentence")
                self.assertEqual((e.status, e.status_name, str(e)), (status, name, "a sentence"))

    def test_statuses_are_the_builtin_exceptions_that_the_header_promises(self):
        promised = {}
        for line in re.search(r"enum ply_status \{(.*?)\n\};", header(), re.S)[1].split("\n"):
            m = re.search(r"(PLY_\w+) = (-\d+),.*?(?:Python: |; )?(\w+Error)\b", line)
            if m:
                promised[int(m[2])] = m[3]
        self.assertGreaterEqual(len(promised), 6)
        import builtins
        for status, name in promised.items():
            self.assertTrue(issubclass(self.errors.BY_STATUS[status], getattr(builtins, name)),
                            (status, name))

    def test_enums_have_their_numbers(self):
        for name, have, prefix in (("ply_check", self.api.CHECKS, "PLY_CHECK_"),
                                   ("ply_swe_check", self.api.SWE_CHECKS, "PLY_SWE_")):
            self.assertEqual({prefix + k.upper(): v for k, v in have.items()}, enum(name))

    def test_every_option_is_one_that_python_knows(self):
        with open(os.path.join(TOP, "env", "env_internal.h"), encoding="utf-8") as f:
            wanted = set(re.findall(r"X\((\w+)\)", re.search(
                r"#define ENV_OPTIONS\(X\)(.*?)\n\n", f.read(), re.S)[1]))
        have = {n.rstrip("_") for n in self.plyfs.Options.__annotations__}
        self.assertEqual(have | {"workdir"}, wanted)

    def test_every_name_of_the_package_exists_and_is_explained(self):
        for name in self.plyfs.__all__:
            thing = getattr(self.plyfs, name)
            self.assertTrue(thing.__doc__, name)
            for k, v in vars(thing).items() if isinstance(thing, type) else ():
                if callable(v) and not k.startswith("_") and k not in dir(Exception):
                    inherited = any(getattr(getattr(b, k, None), "__doc__", None)
                                    for b in thing.__mro__)
                    self.assertTrue(inherited, "%s.%s" % (name, k))

    def test_versions_agree(self):
        def version(path):
            with open(os.path.join(TOP, path), encoding="utf-8") as f:
                return re.search(r"version: '([^']+)'", f.read())[1]
        self.assertEqual(version("meson.build"), version("env/python/meson.build"))
        self.assertEqual(self.plyfs.__version__, version("meson.build"))

    def test_the_wheel_forgets_no_file(self):
        with open(os.path.join(PACKAGE, "meson.build"), encoding="utf-8") as f:
            named = set(re.findall(r"'plyfs/([\w.]+)'", f.read()))
        there = {n for n in os.listdir(os.path.join(PACKAGE, "plyfs")) if n != "__pycache__"}
        self.assertEqual(named, there)


if __name__ == "__main__":
    unittest.main(verbosity=1)
