# SPDX-License-Identifier: Apache-2.0
"""A directory that is a plyfs view, with commands, tests, checkpoints and forks."""
from __future__ import annotations

import os
import shlex
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Any, Sequence, TypedDict, Union

from . import _api
from ._api import Text, call, decode, encode, take_list, take_text
from ._threads import interruptible
from .results import Result, Tests

if TYPE_CHECKING:
    from typing import Self, Unpack

    from .session import Session

#: A line for /bin/sh, or the words of one command.
Command = Union[str, bytes, Sequence[str]]


class Options(TypedDict, total=False):
    """
    The options of ply_env_set (plyfs.h says what each does). Booleans become "1" and "0", lists are
    joined with ":"; ``from_`` is the option ``from``, which Python does not let one write.
    """

    store: Text
    from_: str
    branch: str
    at_cleanup: str
    test_command: str
    test_report: str
    test_rule: str
    timeout: float
    session: bool
    merge: bool
    output_limit: int
    exclude: str | Sequence[str]
    commit: str
    ref: str
    runtime: str
    root: bool
    at: str
    network: bool
    memory: int
    processes: int
    cpu_time: int
    host: str
    port: int
    api_key: str
    tls: bool
    working_dir: str
    url: str
    image: str
    keep_alive: bool
    init_timeout: float
    sandbox_id: str


def _option(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"1" if value else b"0"
    if isinstance(value, (int, float)):  # not as a subclass writes itself (numpy's, an enum)
        return repr(float(value) if isinstance(value, float) else int(value)).encode()
    if isinstance(value, (list, tuple, set, frozenset)):
        return b":".join(encode(v) or b"" for v in value)
    return encode(value) or b""


def _free(handle: int, pid: int) -> None:
    # In a child of os.fork() it is the parent's: nothing of it may be ended there.
    if os.getpid() == pid:
        _api.lib.ply_env_free(handle)


class Workspace:
    """
    A workspace: ``workdir`` as a copy-on-write view, in which commands and tests run.

        with Workspace("project", test_command="python -m pytest") as ws:
            good = ws.checkpoint("good")
            ws.write("a.py", "raise SystemExit\\n")
            if not ws.test().all_passed:
                ws.restore(good)

    Entering it opens it (makes ``workdir`` where there is none, as Chimera's environments do, and
    mounts what has to be mounted), leaving it ends its processes and does what the option
    ``at_cleanup`` says: by default a directory that was mounted over gets the changes. Without
    ``with``, use :meth:`open` and :meth:`close`; one that is dropped unclosed is closed when it is
    collected, at the latest when the interpreter ends, and its processes end even when the
    interpreter is killed. All methods may be called from several threads at once.
    """

    def __init__(self, workdir: Text | None = None, *, kind: str = "local",
                 **options: Unpack[Options]) -> None:
        """
        kind: "local", "git" (each checkpoint is a commit, too), "container", "remote", "cloud".
        Nothing is touched before it is opened. ValueError for an option that makes no sense.
        """
        handle = _api.handle()
        call("ply_env_new", encode(kind), byref(handle))
        self._adopt(handle.value or 0, kind, is_open=False)
        if workdir is not None:
            call("ply_env_set", self._handle, b"workdir", encode(workdir))
        for name, value in options.items():
            if value is not None:
                call("ply_env_set", self._handle, encode(name.rstrip("_")), _option(value))

    def _adopt(self, handle: int, kind: str, *, is_open: bool) -> None:
        self._handle = handle
        self._is_open = is_open
        self._finalizer = weakref.finalize(self, _free, handle, os.getpid())
        self.kind = kind

    @classmethod
    def mount(cls, workdir: Text | None = None, *, kind: str = "local",
              **options: Unpack[Options]) -> Self:
        """A workspace that is open."""
        return cls(workdir, kind=kind, **options).open()

    def open(self) -> Self:
        """Mounts what has to be mounted; returns itself. A closed one can be opened again."""
        interruptible(lambda: call("ply_env_setup", self._handle))
        self._is_open = True
        return self

    def close(self) -> None:
        """Ends its processes and does what ``at_cleanup`` says. When it is not open: nothing."""
        call("ply_env_cleanup", self._handle)
        self._is_open = False

    def __enter__(self) -> Self:
        return self if self._is_open else self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<%s %s %r>" % (type(self).__name__, self.kind, self.workdir)

    @property
    def workdir(self) -> str:
        """Its directory, absolute."""
        return os.fsdecode(_api.lib.ply_env_workdir(self._handle) or b"")

    def option(self, name: str) -> str:
        """The value in use of an option, "" if there is none; KeyError if there is no such."""
        value = _api.lib.ply_env_get(self._handle, encode(name.rstrip("_")))
        if value is None:
            raise KeyError(name)
        return os.fsdecode(value)

    # ---- files: paths are relative to workdir, or absolute and inside ----

    def read_bytes(self, path: Text) -> bytes:
        """A file's content."""
        return take_text("ply_env_read_file", self._handle, encode(path))

    def read(self, path: Text) -> str:
        """A file's text; UnicodeDecodeError (a ValueError) when it is not UTF-8."""
        return self.read_bytes(path).decode()

    def write(self, path: Text, data: str | bytes) -> None:
        """Writes a whole file (text as UTF-8), makes its parents."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        call("ply_env_write_file", self._handle, encode(path), raw, len(raw))

    def list_files(self, pattern: str = "**/*") -> list[str]:
        """
        Regular files that match, sorted, relative to workdir: ``*``, ``?`` and ``[...]`` within a
        segment, ``**`` for any number of them; names with a dot match like others.
        """
        return take_list("ply_env_list_files", self._handle, encode(pattern))

    def upload(self, local: Text, path: Text) -> None:
        """Copies a file in."""
        call("ply_env_upload", self._handle, encode(local), encode(path))

    def download(self, path: Text, local: Text) -> None:
        """Copies a file out."""
        call("ply_env_download", self._handle, encode(path), encode(local))

    # ---- commands ----

    def run(self, command: Command, timeout: float | None = None,
            shell: str | None = None) -> Result:
        """
        Runs a command in workdir; in its shell (``shell``, else "main") when there is a session.
        As subprocess.run it waits for all output, that of background processes as well.
        A timeout is a result, with exit code 124; every process of the command is then gone. So
        they are after Ctrl-C, which is raised as KeyboardInterrupt.
        """
        return interruptible(lambda: self._run(command, timeout, shell))

    def _run(self, command: Command, timeout: float | None, shell: str | None) -> Result:
        line = command if isinstance(command, (str, bytes)) else shlex.join(command)
        return Result._take("ply_env_run", self._handle, encode(line), timeout or 0.0,
                            encode(shell))

    def test(self) -> Tests:
        """Runs the test command and reads its report."""
        return interruptible(self._test)

    def _test(self) -> Tests:
        return Tests._take("ply_env_run_tests", self._handle)

    # ---- states ----

    def checkpoint(self, label: str | None = None) -> str:
        """Keeps the present state; returns its id (40 hex digits for kind "git")."""
        return take_text("ply_env_checkpoint", self._handle, encode(label)).decode()

    def restore(self, checkpoint: str) -> None:
        """Back to a checkpoint, exactly. ValueError when there is none such."""
        call("ply_env_restore", self._handle, encode(checkpoint))

    def undo(self) -> None:
        """Back to what the last restore left."""
        call("ply_env_undo", self._handle)

    def fork(self, workdir: Text | None = None) -> Self:
        """
        An open workspace of its own that begins with the present state. ``workdir``: an empty
        directory; default: a new one.
        """
        handle = _api.handle()
        call("ply_env_clone", self._handle, encode(workdir), byref(handle))
        other = type(self).__new__(type(self))
        other._adopt(handle.value or 0, self.kind, is_open=True)
        return other

    def diff(self, a: str | None = None, b: str | None = None,
             form: str = "name-status") -> str:
        """
        What changed from checkpoint ``a`` (default: the last) to ``b`` (default: the present
        state), as "name-status", "stat", "patch" or "json".
        """
        return decode(take_text("ply_env_diff", self._handle, encode(a), encode(b), encode(form)))

    # ---- persistent shells ----

    def session(self, name: str = "default", **options: Any) -> Session:
        """A persistent bash of its own in workdir, not started; see :class:`Session`."""
        from .session import Session
        return Session(name, workspace=self, **options)

    @property
    def has_session(self) -> bool:
        """Whether :meth:`run` goes to persistent shells."""
        return bool(_api.lib.ply_env_has_session(self._handle))

    def start_session(self, shell: str | None = None) -> None:
        """From now on :meth:`run` goes to persistent shells; "main" is the first."""
        call("ply_env_start_session", self._handle, encode(shell))

    def end_session(self) -> None:
        """Ends the shells and what runs in them. Without a session: nothing."""
        call("ply_env_end_session", self._handle)

    def create_shell(self, name: str) -> None:
        """A further shell. RuntimeError without a session, ValueError for a name that is taken."""
        call("ply_env_create_shell", self._handle, encode(name))

    def list_shells(self) -> list[str]:
        """Names of the shells, in order."""
        return take_list("ply_env_list_shells", self._handle)

    def run_in_session(self, command: str, shell: str | None = None,
                       timeout: float | None = None) -> Result:
        """Runs in a shell: output merged, without the final newline; 124 after a timeout."""
        return interruptible(lambda: Result._take(
            "ply_env_run_in_session", self._handle, encode(command), encode(shell),
            timeout or 0.0))
