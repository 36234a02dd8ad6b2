# SPDX-License-Identifier: Apache-2.0
"""One persistent bash on a terminal of its own."""
from __future__ import annotations

import os
import threading
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Mapping, Sequence

from . import _api
from ._api import Text, call, decode, encode, take_text
from ._threads import waiting
from .errors import PlyTimeoutError, SessionGoneError
from .results import Observation

if TYPE_CHECKING:
    from typing import Self

    from .workspace import Workspace


def _free(handle: int, pid: int, workspace: object) -> None:
    # workspace is held so that it outlives its session.
    if os.getpid() == pid:
        _api.lib.ply_session_free(handle)


class Session:
    """
    A bash that stays: cwd, variables, functions and jobs are kept from command to command.

        with ws.session() as shell:
            shell.run("cd src; export CC=clang")
            print(shell.run("make", timeout=60).exit_code)
    """

    def __init__(self, name: str = "default", *, workspace: Workspace | None = None,
                 shell: Text | None = None, cwd: Text | None = None,
                 startup_source: Sequence[Text] = (), startup_timeout: float | None = None,
                 env: Mapping[str, str] | None = None) -> None:
        """
        workspace: where it lives; None: this machine, in the current directory. startup_source:
        files that it reads first. env: variables on top of the caller's.
        """
        handle = _api.handle()
        call("ply_session_new", workspace and workspace._handle, encode(name), byref(handle))
        self.name = name
        self._handle = handle.value or 0
        self._finalizer = weakref.finalize(self, _free, self._handle, os.getpid(), workspace)
        for option, value in (("shell", shell), ("cwd", cwd)):
            if value is not None:
                call("ply_session_set", self._handle, encode(option), encode(value))
        for path in startup_source:
            call("ply_session_set", self._handle, b"startup_source", encode(path))
        if startup_timeout is not None:
            call("ply_session_set", self._handle, b"startup_timeout",
                 repr(float(startup_timeout)).encode())
        for key, value in (env or {}).items():
            call("ply_session_set", self._handle, b"env", encode("%s=%s" % (key, value)))

    def start(self) -> str:
        """Starts the shell; returns what its startup files printed."""
        return decode(take_text("ply_session_start", self._handle))

    def close(self) -> None:
        """Ends the shell and its processes."""
        call("ply_session_end", self._handle)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Session %r%s>" % (self.name, "" if self.alive else ", not running")

    @property
    def alive(self) -> bool:
        """Whether its shell runs."""
        return bool(_api.lib.ply_session_alive(self._handle))

    def run(self, command: str | bytes, timeout: float | None = None, *, check: str = "silent",
            expect: Sequence[str] = (), interactive: bool = False,
            interactive_quit: bool = False) -> Observation:
        """
        Runs any bash text. check: "silent" (the exit code is told), "ignore" (not asked for),
        "raise" (CommandFailedError when it is not 0). expect: regular expressions that end the
        wait, too, for a program that asks (``interactive``); ``interactive_quit``: input that ends
        such a program. PlyTimeoutError when it takes longer than ``timeout``: it goes on, and
        :meth:`interrupt` ends it. BashSyntaxError: nothing was run. In the main thread Ctrl-C
        interrupts the command.
        """
        def run() -> Observation:
            return self._run(command, timeout, check, expect, interactive, interactive_quit)

        if threading.current_thread() is threading.main_thread():
            return waiting(run, self.interrupt)
        return run()

    def _run(self, command: str | bytes, timeout: float | None, check: str,
             expect: Sequence[str], interactive: bool, interactive_quit: bool) -> Observation:
        if check not in _api.CHECKS:
            raise ValueError("check is silent, ignore or raise, not %r" % check)
        raw = command.encode("utf-8", "surrogateescape") if isinstance(command, str) else command
        encode(raw)  # no NUL
        run = _api.ply_session_run(
            command=raw, len=len(raw), timeout=timeout or 0.0, check=_api.CHECKS[check],
            interactive=interactive, interactive_quit=interactive_quit,
            expect=_api.string_array(expect), n_expect=len(expect))
        o = _api.ply_observation()
        try:
            status = _api.lib.ply_session_run(self._handle, byref(run), byref(o))
            error = _api.last_error(status) if status < 0 else None
            seen = Observation(_api.text_bytes(o.output),
                               o.exit_code if o.exit_code_known else None,
                               o.matched if o.matched >= 0 and expect else None, o.truncated)
        finally:
            _api.lib.ply_observation_free(byref(o))
        if isinstance(error, (PlyTimeoutError, SessionGoneError)):
            error.output = seen.output
        if error is not None:
            if hasattr(error, "result"):
                error.result = seen
            raise error
        return seen

    def interrupt(self, timeout: float = 0.2, tries: int = 3) -> str:
        """
        Ctrl-C, up to ``tries`` times, then harder, until the shell can be used again; returns what
        was printed meanwhile. May be called while another thread runs something.
        """
        return decode(take_text("ply_session_interrupt", self._handle, timeout, tries))
