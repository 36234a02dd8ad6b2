# SPDX-License-Identifier: Apache-2.0
"""
plyfs.h in ctypes: each struct, each function, written by hand and held against the header by
tests/unit/test_python_api.py. Nothing else in the package touches ctypes' types.

``call`` raises a status as an exception; who needs what came with a failure calls ``lib`` itself.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_int,
                    c_size_t, c_uint64, c_void_p)
from typing import Any, Sequence, Union

from . import _library, errors

#: What may be given where libplyfs takes a string.
Text = Union[str, bytes, "os.PathLike[str]"]


class ply_text(Structure):
    _fields_ = [("data", c_void_p), ("len", c_size_t)]


class ply_list(Structure):
    _fields_ = [("items", POINTER(c_char_p)), ("n", c_size_t)]


class ply_result(Structure):
    _fields_ = [("out", ply_text), ("err", ply_text), ("exit_code", c_int), ("timed_out", c_bool),
                ("truncated", c_bool), ("out_of_memory", c_bool), ("too_many_processes", c_bool)]


class ply_tests(Structure):
    _fields_ = [("passed", c_uint64), ("failed", c_uint64), ("errors", c_uint64),
                ("skipped", c_uint64), ("runner", c_char * 32), ("exit_code", c_int),
                ("timed_out", c_bool), ("output", ply_text)]


class ply_session_run(Structure):
    _fields_ = [("command", c_char_p), ("len", c_size_t), ("timeout", c_double), ("check", c_int),
                ("interactive", c_bool), ("interactive_quit", c_bool),
                ("expect", POINTER(c_char_p)), ("n_expect", c_size_t)]


class ply_observation(Structure):
    _fields_ = [("output", ply_text), ("exit_code", c_int), ("exit_code_known", c_bool),
                ("truncated", c_bool), ("matched", c_int)]


SweCallback = CFUNCTYPE(c_int, c_void_p)
SweInitCallback = CFUNCTYPE(c_int, c_void_p, c_void_p)
SweRepoCallback = CFUNCTYPE(c_int, c_void_p, c_char_p)


class ply_swe_hooks(Structure):
    _fields_ = [("arg", c_void_p), ("on_init", SweInitCallback),
                ("on_start_deployment", SweCallback), ("on_copy_repo_started", SweRepoCallback),
                ("on_install_env_started", SweCallback), ("on_environment_startup", SweCallback),
                ("on_close", SweCallback)]


class ply_swe_communicate(Structure):
    _fields_ = [("timeout", c_double), ("check", c_int), ("error_msg", c_char_p),
                ("set_last_action", c_bool), ("keep_open", c_bool)]


#: enum ply_status, but for PLY_OK: the classes of errors.py.
STATUSES = {"PLY_OK": 0, **{c.status_name: s for s, c in errors.BY_STATUS.items()}}
CHECKS = {"silent": 0, "ignore": 1, "raise": 2}  # enum ply_check
SWE_CHECKS = {"ignore": 0, "warn": 1, "raise": 2}  # enum ply_swe_check

STATUS = object()  # as a result type: an int that is raised when it is negative

handle = c_void_p  # struct ply_env *, ply_session *, ply_swe *
text_p, list_p = POINTER(ply_text), POINTER(ply_list)
result_p, tests_p, observation_p = POINTER(ply_result), POINTER(ply_tests), POINTER(ply_observation)
strings = POINTER(c_char_p)  # const char *const *

FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ply_error": (c_char_p, []),
    "ply_status_name": (c_char_p, [c_int]),
    "ply_version": (c_char_p, []),
    "ply_cancel_on": (None, [c_int]),

    "ply_text_free": (None, [text_p]),
    "ply_list_free": (None, [list_p]),
    "ply_result_free": (None, [result_p]),
    "ply_tests_free": (None, [tests_p]),
    "ply_tests_pass_rate": (c_double, [tests_p]),
    "ply_tests_all_passed": (c_bool, [tests_p]),
    "ply_tests_parse": (STATUS, [c_char_p, c_size_t, c_char_p, c_size_t, c_char_p, tests_p]),

    "ply_env_new": (STATUS, [c_char_p, POINTER(handle)]),
    "ply_env_set": (STATUS, [handle, c_char_p, c_char_p]),
    "ply_env_get": (c_char_p, [handle, c_char_p]),
    "ply_env_setup": (STATUS, [handle]),
    "ply_env_cleanup": (STATUS, [handle]),
    "ply_env_free": (None, [handle]),
    "ply_env_workdir": (c_char_p, [handle]),
    "ply_env_read_file": (STATUS, [handle, c_char_p, text_p]),
    "ply_env_write_file": (STATUS, [handle, c_char_p, c_char_p, c_size_t]),
    "ply_env_list_files": (STATUS, [handle, c_char_p, list_p]),
    "ply_env_run": (STATUS, [handle, c_char_p, c_double, c_char_p, result_p]),
    "ply_env_run_tests": (STATUS, [handle, tests_p]),
    "ply_env_checkpoint": (STATUS, [handle, c_char_p, text_p]),
    "ply_env_restore": (STATUS, [handle, c_char_p]),
    "ply_env_undo": (STATUS, [handle]),
    "ply_env_clone": (STATUS, [handle, c_char_p, POINTER(handle)]),
    "ply_env_diff": (STATUS, [handle, c_char_p, c_char_p, c_char_p, text_p]),
    "ply_env_upload": (STATUS, [handle, c_char_p, c_char_p]),
    "ply_env_download": (STATUS, [handle, c_char_p, c_char_p]),
    "ply_env_has_session": (c_bool, [handle]),
    "ply_env_start_session": (STATUS, [handle, c_char_p]),
    "ply_env_end_session": (STATUS, [handle]),
    "ply_env_create_shell": (STATUS, [handle, c_char_p]),
    "ply_env_list_shells": (STATUS, [handle, list_p]),
    "ply_env_run_in_session": (STATUS, [handle, c_char_p, c_char_p, c_double, result_p]),

    "ply_session_new": (STATUS, [handle, c_char_p, POINTER(handle)]),
    "ply_session_set": (STATUS, [handle, c_char_p, c_char_p]),
    "ply_session_start": (STATUS, [handle, text_p]),
    "ply_observation_free": (None, [observation_p]),
    "ply_session_run": (STATUS, [handle, POINTER(ply_session_run), observation_p]),
    "ply_session_interrupt": (STATUS, [handle, c_double, c_int, text_p]),
    "ply_session_alive": (c_bool, [handle]),
    "ply_session_end": (STATUS, [handle]),
    "ply_session_free": (None, [handle]),

    "ply_swe_from_config": (STATUS, [c_char_p, c_size_t, POINTER(handle)]),
    "ply_swe_from_file": (STATUS, [c_char_p, POINTER(handle)]),
    "ply_swe_free": (None, [handle]),
    "ply_swe_add_hook": (STATUS, [handle, POINTER(ply_swe_hooks)]),
    "ply_swe_start": (STATUS, [handle]),
    "ply_swe_reset": (STATUS, [handle]),
    "ply_swe_hard_reset": (STATUS, [handle]),
    "ply_swe_close": (STATUS, [handle]),
    "ply_swe_communicate": (STATUS, [handle, c_char_p, POINTER(ply_swe_communicate), text_p]),
    "ply_swe_interrupt": (STATUS, [handle]),
    "ply_swe_read_file": (STATUS, [handle, c_char_p, text_p]),
    "ply_swe_write_file": (STATUS, [handle, c_char_p, c_char_p, c_size_t]),
    "ply_swe_set_env": (STATUS, [handle, strings, c_size_t]),
    "ply_swe_execute": (STATUS, [handle, c_char_p, c_bool, strings, c_size_t, c_char_p, result_p]),
    "ply_swe_env": (handle, [handle]),
    "ply_quote": (STATUS, [c_char_p, text_p]),
}


def _bind(lib: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise ImportError("%s has no %s: it is older than this package"
                              % (lib._name, name)) from None
        function.argtypes = arguments
        function.restype = c_int if result is STATUS else result
    return lib


lib = _bind(_library.load())


def last_error(status: int) -> errors.PlyError:
    """The exception for a status that this thread's last call returned."""
    return errors.error_for(status, lib.ply_error().decode("utf-8", "backslashreplace"))


def call(name: str, *arguments: Any) -> int:
    """Calls a function whose result is a status; raises when it is negative."""
    status: int = getattr(lib, name)(*arguments)
    if status < 0:
        raise last_error(status)
    return status


def encode(value: Text | None) -> bytes | None:
    """A string for libplyfs; ValueError for one with a NUL in it, which would be cut there."""
    if value is None:
        return None
    raw = os.fsencode(value)
    if b"\0" in raw:
        raise errors.InvalidError("embedded null byte")
    return raw


def decode(raw: bytes) -> str:
    """Output for people: bytes that are not UTF-8 become \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def text_bytes(text: ply_text) -> bytes:
    """A copy of its bytes."""
    return ctypes.string_at(text.data, text.len) if text.len else b""


def take_text(name: str, *arguments: Any) -> bytes:
    """Calls a function whose last argument is a struct ply_text to fill."""
    text = ply_text()
    try:
        call(name, *arguments, byref(text))
        return text_bytes(text)
    except (errors.PlyTimeoutError, errors.SessionGoneError) as e:
        e.output = decode(text_bytes(text))
        raise
    finally:
        lib.ply_text_free(byref(text))


def take_list(name: str, *arguments: Any) -> list[str]:
    """Calls a function whose last argument is a struct ply_list to fill."""
    found = ply_list()
    try:
        call(name, *arguments, byref(found))
        return [os.fsdecode(found.items[i] or b"") for i in range(found.n)]
    finally:
        lib.ply_list_free(byref(found))


def string_array(values: Sequence[Text]) -> Any:
    """n strings as const char *const *; ctypes keeps them alive with the array."""
    return (c_char_p * len(values))(*[encode(v) for v in values])
