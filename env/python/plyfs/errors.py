# SPDX-License-Identifier: Apache-2.0
"""
What can go wrong: one class per status of plyfs.h. Each is a :class:`PlyError` and also the
built-in exception that Python people expect, so ``except FileNotFoundError`` works, too.

``str(error)`` is libplyfs's sentence, ``error.status`` the number, ``error.status_name`` its name.
"""
from __future__ import annotations

import errno
from typing import Any, ClassVar

__all__ = [
    "BashSyntaxError", "CancelledError", "CommandFailedError", "DeniedError", "EncodingError",
    "ExistsError", "InvalidError", "IsDirectoryError", "NoExitCodeError", "NoMemoryError",
    "NotFoundError", "NotHereError", "PlyError", "PlyTimeoutError", "RemoteError",
    "SessionGoneError", "StateError", "UnknownIdError", "UnsupportedError"]


class PlyError(Exception):
    """Any failure that libplyfs reports; as itself: one that is none of the others."""

    status: ClassVar[int] = -1
    status_name: ClassVar[str] = "PLY_FAILED"


class NoMemoryError(PlyError, MemoryError):
    """There was no memory for it."""

    status, status_name = -2, "PLY_NO_MEMORY"


class _OsError(PlyError, OSError):
    _errno: ClassVar[int] = errno.EIO

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.errno is None:
            self.errno = self._errno


class NotFoundError(_OsError, FileNotFoundError):
    """There is no such file."""

    status, status_name, _errno = -3, "PLY_NOT_FOUND", errno.ENOENT


class IsDirectoryError(_OsError, IsADirectoryError):
    """A file was wanted, this is a directory."""

    status, status_name, _errno = -4, "PLY_IS_DIRECTORY", errno.EISDIR


class DeniedError(_OsError, PermissionError):
    """No permission; also for a path that leads out of the workspace."""

    status, status_name, _errno = -5, "PLY_DENIED", errno.EACCES


class InvalidError(PlyError, ValueError):
    """An argument or an option makes no sense."""

    status, status_name = -6, "PLY_INVALID"


class UnknownIdError(PlyError, ValueError):
    """There is no such checkpoint."""

    status, status_name = -7, "PLY_UNKNOWN_ID"


class StateError(PlyError, RuntimeError):
    """Not now: the workspace is not open, the session is already active, ..."""

    status, status_name = -8, "PLY_STATE"


class PlyTimeoutError(_OsError, TimeoutError):
    """It took too long, where that is not a result. ``output``: what was printed so far."""

    status, status_name, _errno = -9, "PLY_TIMEOUT", errno.ETIMEDOUT
    output: str = ""


class BashSyntaxError(PlyError, RuntimeError):
    """bash would not parse the command; nothing of it was run."""

    status, status_name = -10, "PLY_SYNTAX"


class SessionGoneError(PlyError, RuntimeError):
    """The session's shell has died. ``output``: its last words."""

    status, status_name = -11, "PLY_SESSION_GONE"
    output: str = ""


class NoExitCodeError(PlyError, RuntimeError):
    """The command was run; its exit code could not be told."""

    status, status_name = -12, "PLY_NO_EXIT_CODE"


class UnsupportedError(PlyError, NotImplementedError):
    """This kind of environment cannot do it."""

    status, status_name = -13, "PLY_UNSUPPORTED"


class CommandFailedError(PlyError, RuntimeError):
    """A command that had to succeed did not. ``result``: what it did, when that is known."""

    status, status_name = -14, "PLY_COMMAND_FAILED"
    result: Any = None


class EncodingError(PlyError, ValueError):
    """Text was asked for, and the bytes are not UTF-8."""

    status, status_name = -15, "PLY_ENCODING"


class RemoteError(_OsError, ConnectionError):
    """What the other machine answered, or that it did not."""

    status, status_name, _errno = -16, "PLY_REMOTE", errno.EREMOTEIO


class ExistsError(_OsError, FileExistsError, ValueError):
    """The name is taken."""

    status, status_name, _errno = -17, "PLY_EXISTS", errno.EEXIST


class NotHereError(_OsError):
    """This machine's kernel, or our privileges on it, do not allow that."""

    status, status_name, _errno = -18, "PLY_NOT_HERE", errno.EPERM


class CancelledError(_OsError, InterruptedError):
    """The command was ended on the caller's wish."""

    status, status_name, _errno = -19, "PLY_CANCELLED", errno.EINTR


def _subclasses(cls: type[PlyError]) -> list[type[PlyError]]:
    return [c for s in cls.__subclasses__() for c in [s, *_subclasses(s)]]


#: Status to class.
BY_STATUS: dict[int, type[PlyError]] = {
    -1: PlyError, **{c.status: c for c in _subclasses(PlyError) if "status" in vars(c)}}


def error_for(status: int, sentence: str) -> PlyError:
    """The exception for a negative status; for one that is newer than this file, a PlyError."""
    return BY_STATUS.get(status, PlyError)(sentence or "failed without a word")
