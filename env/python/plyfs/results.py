# SPDX-License-Identifier: Apache-2.0
"""What commands and test runs did, as plain values."""
from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from typing import Any

from . import _api
from .errors import CommandFailedError, SessionGoneError


@dataclass(frozen=True)
class Result:
    """What a command did."""

    #: Its standard output, byte for byte; both streams in order where they were merged.
    out: bytes
    err: bytes
    #: -SIGNAL when a signal ended it, 124 after a timeout.
    exit_code: int
    timed_out: bool = False
    #: The output limit was reached; what came later is lost.
    truncated: bool = False
    #: Its memory limit ended it.
    out_of_memory: bool = False
    #: It ran into its limit of processes.
    too_many_processes: bool = False

    @property
    def stdout(self) -> str:
        """``out`` as text; bytes that are not UTF-8 appear as ``\\xNN``."""
        return _api.decode(self.out)

    @property
    def stderr(self) -> str:
        """``err`` as text."""
        return _api.decode(self.err)

    @property
    def success(self) -> bool:
        """Exit code 0."""
        return self.exit_code == 0

    def check(self) -> Result:
        """Itself, or :class:`CommandFailedError` when the exit code is not 0."""
        if not self.success:
            words = (self.stderr or self.stdout).strip().splitlines()
            error = CommandFailedError("the command failed with exit code %d%s" % (
                self.exit_code, ": " + words[-1] if words else ""))
            error.result = self
            raise error
        return self

    @classmethod
    def _take(cls, name: str, *arguments: Any) -> Result:
        """Calls a function whose last argument is a struct ply_result to fill."""
        raw = _api.ply_result()
        try:
            status = getattr(_api.lib, name)(*arguments, byref(raw))
            error = _api.last_error(status) if status < 0 else None
            result = cls(_api.text_bytes(raw.out), _api.text_bytes(raw.err), raw.exit_code,
                         raw.timed_out, raw.truncated, raw.out_of_memory, raw.too_many_processes)
        finally:
            _api.lib.ply_result_free(byref(raw))
        if isinstance(error, CommandFailedError):
            error.result = result
        if isinstance(error, SessionGoneError):
            error.output = result.stdout
        if error:
            raise error
        return result


@dataclass(frozen=True)
class Tests:
    """What a test run did."""

    __test__ = False  # pytest: this is not a test class

    passed: int
    failed: int
    errors: int
    skipped: int = 0
    #: Whose report was understood: "pytest", "go", "junit-xml", ...; "" if none.
    runner: str = ""
    exit_code: int = 0
    timed_out: bool = False
    #: Standard output, then standard error.
    output: str = ""

    @property
    def total(self) -> int:
        """passed, failed and errors together."""
        return self.passed + self.failed + self.errors

    @property
    def pass_rate(self) -> float:
        """passed / total; 0.0 when nothing ran."""
        return self.passed / self.total if self.total else 0.0

    @property
    def all_passed(self) -> bool:
        """None failed, none in error; also when nothing ran."""
        return self.failed == 0 and self.errors == 0

    def __str__(self) -> str:
        counts = "%d passed, %d failed, %d errors" % (self.passed, self.failed, self.errors)
        return counts if self.total or not self.exit_code else counts + ", exit code %d" % self.exit_code

    @classmethod
    def _take(cls, name: str, *arguments: Any) -> Tests:
        raw = _api.ply_tests()
        try:
            _api.call(name, *arguments, byref(raw))
            return cls(raw.passed, raw.failed, raw.errors, raw.skipped, _api.decode(raw.runner),
                       raw.exit_code, raw.timed_out, _api.decode(_api.text_bytes(raw.output)))
        finally:
            _api.lib.ply_tests_free(byref(raw))


def parse_tests(output: str | bytes, xml: str | bytes | None = None,
                rule: str | None = None) -> Tests:
    """
    Reads a test run's output, and the JUnit XML that it wrote, as :meth:`Workspace.test` does.
    ``rule="chimera"``: only what Chimera's three regular expressions find.
    """
    raw = output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
    raw_xml = xml.encode() if isinstance(xml, str) else xml
    return Tests._take("ply_tests_parse", raw, len(raw), raw_xml, len(raw_xml or b""),
                       _api.encode(rule))


@dataclass(frozen=True)
class Observation:
    """What a session's command did."""

    #: Both streams as the terminal saw them, byte for byte.
    raw: bytes
    #: None where it was not asked for or could not be told.
    exit_code: int | None
    #: Which of ``expect`` ended the wait; None: the command's end.
    matched: int | None = None
    #: It printed more than the limit; ``raw`` is the beginning.
    truncated: bool = False

    @property
    def output(self) -> str:
        """``raw`` as text; bytes that are not UTF-8 appear as ``\\xNN``."""
        return _api.decode(self.raw)
