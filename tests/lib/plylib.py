# SPDX-License-Identifier: Apache-2.0
"""
libplyfs through ctypes, as thin as it gets: for tests of the library itself, so that they do not
depend on the Python package. Bytes in, bytes out; a failure is an Error with the status's name.
"""
import ctypes
import os

import ply

LIBRARY = os.path.join(ply.BUILD, "env", "libplyfs.so")
LOADS = os.path.exists(LIBRARY) and ply.loads(LIBRARY)


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t)]

    def take(self):
        value = ctypes.string_at(self.data, self.len) if self.data else b""
        lib().ply_text_free(ctypes.byref(self))
        return value


class List(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(ctypes.c_char_p)), ("n", ctypes.c_size_t)]

    def take(self):
        assert self.items and self.items[self.n] is None  # also of an empty one
        value = [self.items[i] for i in range(self.n)]
        lib().ply_list_free(ctypes.byref(self))
        return value


class Result(ctypes.Structure):
    _fields_ = [("out", Text), ("err", Text), ("exit_code", ctypes.c_int),
                ("timed_out", ctypes.c_bool), ("truncated", ctypes.c_bool),
                ("out_of_memory", ctypes.c_bool), ("too_many_processes", ctypes.c_bool)]


class Tests(ctypes.Structure):
    _fields_ = [("passed", ctypes.c_uint64), ("failed", ctypes.c_uint64),
                ("errors", ctypes.c_uint64), ("skipped", ctypes.c_uint64),
                ("runner", ctypes.c_char * 32), ("exit_code", ctypes.c_int),
                ("timed_out", ctypes.c_bool), ("output", Text)]


class Error(Exception):
    def __init__(self, status, sentence):
        super().__init__("%s: %s" % (status, sentence))
        self.status, self.sentence = status, sentence


_lib = None


def lib():
    global _lib
    if _lib is None:
        if not LOADS:
            ply.skip("this sanitizer's library does not load into Python")
        _lib = ctypes.CDLL(LIBRARY)
        for name in ("ply_error", "ply_status_name", "ply_env_get", "ply_env_workdir"):
            getattr(_lib, name).restype = ctypes.c_char_p
        _lib.ply_env_has_session.restype = ctypes.c_bool
        _lib.ply_tests_pass_rate.restype = ctypes.c_double
        _lib.ply_tests_all_passed.restype = ctypes.c_bool
        _lib.ply_env_free.restype = _lib.ply_text_free.restype = None
        _lib.ply_list_free.restype = _lib.ply_result_free.restype = None
        _lib.ply_tests_free.restype = None
    return _lib


def check(status):
    if status < 0:
        raise Error(lib().ply_status_name(status).decode(), lib().ply_error().decode(
            errors="surrogateescape"))
    return status


def raw(value):
    return None if value is None else os.fsencode(value) if not isinstance(value, bytes) else value


class Env:
    """
    Options as keyword arguments; set up by `with`, or by setup(). With `bench` it is freed with the
    test, and its store's daemon ends with it.
    """

    def __init__(self, kind="local", bench=None, **options):
        self.bench = bench
        if bench:
            bench.clean.append(self.free)
        self.p = ctypes.c_void_p()
        check(lib().ply_env_new(raw(kind), ctypes.byref(self.p)))
        for name, value in options.items():
            self.set(name, value)

    def set(self, name, value):
        check(lib().ply_env_set(self.p, raw(name), raw(value)))

    def get(self, name):
        value = lib().ply_env_get(self.p, raw(name))
        if value is None:
            raise Error("PLY_INVALID", lib().ply_error().decode())
        return value.decode()

    def setup(self):
        check(lib().ply_env_setup(self.p))
        if self.bench:
            self.bench.adopt(self.workdir)
        return self

    def cleanup(self):
        check(lib().ply_env_cleanup(self.p))

    def free(self):
        p, self.p = self.p, None
        lib().ply_env_free(p)

    def __enter__(self):
        return self.setup()

    def __exit__(self, *exc):
        self.cleanup()
        self.free()

    @property
    def workdir(self):
        return os.fsdecode(lib().ply_env_workdir(self.p))

    def read_file(self, path):
        t = Text()
        check(lib().ply_env_read_file(self.p, raw(path), ctypes.byref(t)))
        return t.take()

    def write_file(self, path, data):
        data = data.encode() if isinstance(data, str) else data
        check(lib().ply_env_write_file(self.p, raw(path), data, ctypes.c_size_t(len(data))))

    def list_files(self, pattern="**/*"):
        names = List()
        check(lib().ply_env_list_files(self.p, raw(pattern), ctypes.byref(names)))
        return [os.fsdecode(n) for n in names.take()]

    def _result(self, status, r):
        check(status)
        got = (r.out.take(), r.err.take(), r.exit_code, r.timed_out, r.truncated, r.out_of_memory,
               r.too_many_processes)
        return Command(*got)

    def run(self, command, timeout=0, shell=None):
        r = Result()
        return self._result(lib().ply_env_run(self.p, raw(command), ctypes.c_double(timeout),
                                              raw(shell), ctypes.byref(r)), r)

    def run_in_session(self, command, shell=None, timeout=0):
        r = Result()
        return self._result(lib().ply_env_run_in_session(
            self.p, raw(command), raw(shell), ctypes.c_double(timeout), ctypes.byref(r)), r)

    def run_tests(self):
        t = Tests()
        check(lib().ply_env_run_tests(self.p, ctypes.byref(t)))
        got = TestRun()
        got.passed, got.failed, got.errors = t.passed, t.failed, t.errors
        got.skipped, got.runner = t.skipped, t.runner.decode()
        got.pass_rate = lib().ply_tests_pass_rate(ctypes.byref(t))
        got.all_passed = lib().ply_tests_all_passed(ctypes.byref(t))
        got.total = t.passed + t.failed + t.errors
        got.exit_code, got.timed_out, got.output = t.exit_code, t.timed_out, t.output.take()
        return got

    def checkpoint(self, label=None):
        t = Text()
        check(lib().ply_env_checkpoint(self.p, raw(label), ctypes.byref(t)))
        return t.take().decode()

    def restore(self, snap):
        check(lib().ply_env_restore(self.p, raw(snap)))

    def undo(self):
        check(lib().ply_env_undo(self.p))

    def clone(self, workdir=None):
        copy = Env.__new__(Env)
        copy.p, copy.bench = ctypes.c_void_p(), self.bench
        check(lib().ply_env_clone(self.p, raw(workdir), ctypes.byref(copy.p)))
        if self.bench:
            self.bench.clean.append(copy.free)
        return copy

    def diff(self, a=None, b=None, form="name-status"):
        t = Text()
        check(lib().ply_env_diff(self.p, raw(a), raw(b), raw(form), ctypes.byref(t)))
        assert t.data  # bytes and a NUL, where nothing differs, too
        return t.take().decode(errors="surrogateescape")

    def upload(self, local, path):
        check(lib().ply_env_upload(self.p, raw(local), raw(path)))

    def download(self, path, local):
        check(lib().ply_env_download(self.p, raw(path), raw(local)))

    @property
    def has_session(self):
        return lib().ply_env_has_session(self.p)

    def start_session(self, shell=None):
        check(lib().ply_env_start_session(self.p, raw(shell)))

    def end_session(self):
        check(lib().ply_env_end_session(self.p))

    def create_shell(self, name):
        check(lib().ply_env_create_shell(self.p, raw(name)))

    def list_shells(self):
        names = List()
        check(lib().ply_env_list_shells(self.p, ctypes.byref(names)))
        return [os.fsdecode(n) for n in names.take()]


class Command:
    """What a command did: bytes, and text for those that have it."""

    def __init__(self, out, err, exit_code, timed_out, truncated, out_of_memory=False,
                 too_many_processes=False):
        self.out_of_memory, self.too_many_processes = out_of_memory, too_many_processes
        self.out, self.err, self.exit_code = out, err, exit_code
        self.timed_out, self.truncated = timed_out, truncated
        self.stdout, self.stderr = out.decode(errors="replace"), err.decode(errors="replace")


class TestRun:
    pass


# ---- an environment over an ordinary directory ----

FILES = {"a.txt": "one\n", "dir/b.py": "two\n", "dir/sub/c.txt": "three\n", ".env": "h\n"}


def local(t, files=FILES, name="work", **options):
    """An environment over an ordinary directory, set up."""
    t.surroundings()
    if files is not None:
        t.tree(files, name)
    return Env(bench=t, workdir=t.at(name), **options).setup()


def fails(status, says, function, *args, **kw):
    try:
        got = function(*args, **kw)
    except Error as e:
        assert e.status == status, e
        assert says in e.sentence, e
        return e
    raise AssertionError("it worked: %r; wanted %s" % (got, status))


def plyfs_mounts(t):
    return ply.mounts_below(t.path, "fuse.plyfs")
