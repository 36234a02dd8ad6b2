# SPDX-License-Identifier: Apache-2.0
"""
Chimera's Environment on plyfs: ``PlyEnvironment`` is a subclass of chimera.env.base.Environment
when chimera is installed (PyPI: chimera-run), else a class with the same interface.

    from plyfs.chimera import PlyEnvironment, register

    register()      # create_environment("plyfs", workdir=..., kind="git") gives one, too
    with PlyEnvironment("project") as env:
        before = env.checkpoint()

What differs from chimera's LocalEnvironment: a checkpoint holds everything (also .git, .venv and
what is ignored; ``exclude`` leaves directories alone), symlinks stay symlinks, a restore is atomic
and takes microseconds, a timeout ends the whole process tree, persistent shells need no tmux.
"""
from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .results import Result, parse_tests
from .workspace import Workspace

if TYPE_CHECKING:
    from typing import Self

__all__ = ["CommandResult", "PlyEnvironment", "TestResult", "register"]

try:
    from chimera.env.base import Environment as _Environment
    from chimera.types import CommandResult, TestResult
except ImportError:
    from abc import ABC
    from dataclasses import dataclass

    _Environment = ABC  # type: ignore[misc,assignment]

    @dataclass
    class CommandResult:  # type: ignore[no-redef]
        """What a command did."""

        stdout: str
        stderr: str
        exit_code: int

        @property
        def success(self) -> bool:
            """Exit code 0."""
            return self.exit_code == 0

    @dataclass
    class TestResult:  # type: ignore[no-redef]
        """What a test run did."""

        __test__ = False

        passed: int
        failed: int
        errors: int
        output: str

        @property
        def total(self) -> int:
            """All that ran."""
            return self.passed + self.failed + self.errors

        @property
        def pass_rate(self) -> float:
            """0.0 when nothing ran."""
            return self.passed / self.total if self.total else 0.0

        @property
        def all_passed(self) -> bool:
            """Also when nothing ran."""
            return self.failed == 0 and self.errors == 0


def _text(raw: bytes) -> str:
    """Text as Python's text mode: UTF-8 strictly, CRLF and CR become LF."""
    return io.TextIOWrapper(io.BytesIO(raw), "utf-8").read()


class PlyEnvironment(_Environment):
    """A workspace with chimera's interface. ``workspace`` is the :class:`Workspace` beneath."""

    def __init__(self, workdir: str | None = None, test_cmd: str = "python -m pytest",
                 timeout: int = 300, session: bool = False, *, kind: str = "local",
                 **options: Any) -> None:
        """
        workdir, test_cmd, timeout, session: as LocalEnvironment. kind: "local", "git" or
        "container" (or "remote", "cloud", with the options that they need). options: any of
        libplyfs's, such as exclude, test_rule, from_, network.
        """
        self.test_cmd = test_cmd
        self.timeout = timeout
        self.workspace = Workspace(workdir, kind=kind, test_command=test_cmd, timeout=timeout,
                                   session=session, **options)

    @property
    def workdir(self) -> Path:
        """As LocalEnvironment's."""
        return Path(self.workspace.workdir)

    def setup(self) -> None:
        """Mounts the workspace."""
        self.workspace.open()

    def cleanup(self) -> None:
        """Ends its processes; by default the files stay in workdir."""
        self.workspace.close()

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def read_file(self, path: str) -> str:
        """A file's text: UTF-8, line ends as LF."""
        return _text(self.workspace.read_bytes(path))

    def write_file(self, path: str, content: str) -> None:
        """Writes a file, makes its parents."""
        self.workspace.write(path, content)

    def list_files(self, pattern: str = "**/*") -> list[str]:
        """Regular files that match, sorted."""
        return self.workspace.list_files(pattern)

    def _result(self, result: Result) -> CommandResult:
        if result.timed_out:  # as upstream: nothing else is told
            return CommandResult(stdout="", stderr="Command timed out", exit_code=124)
        return CommandResult(stdout=_text(result.out), stderr=_text(result.err),
                             exit_code=result.exit_code)

    def run_command(self, cmd: str, timeout: int | None = None,
                    shell_name: str = "main") -> CommandResult:
        """
        Runs a line of shell; a timeout is exit code 124 and "Command timed out". None and 0: the
        environment's own; a negative one is over before it began.
        """
        return self._result(self.workspace.run(cmd, timeout and max(timeout, 1e-6), shell_name))

    def run_tests(self) -> TestResult:
        """
        Runs test_cmd and counts what its runner reports; where no runner is recognized, what
        upstream's three regular expressions find.
        """
        tests = self.workspace.test()
        output = tests.output.replace("\r\n", "\n").replace("\r", "\n")
        if not tests.runner:
            tests = parse_tests(output, rule="chimera")
        return TestResult(passed=tests.passed, failed=tests.failed, errors=tests.errors,
                          output=output)

    def checkpoint(self, label: str | None = None) -> str:
        """Keeps the present state; returns its id."""
        return self.workspace.checkpoint(label)

    def restore(self, checkpoint_id: str) -> None:
        """Back to a checkpoint. ValueError when there is none such."""
        self.workspace.restore(checkpoint_id)

    def clone(self) -> PlyEnvironment:
        """An environment of its own with the same files, already set up, without session."""
        other = type(self).__new__(type(self))
        other.test_cmd, other.timeout = self.test_cmd, self.timeout
        other.workspace = self.workspace.fork()
        return other

    def upload_file(self, local_path: str, remote_path: str) -> None:
        """Copies a file in."""
        self.workspace.upload(local_path, remote_path)

    def download_file(self, remote_path: str, local_path: str) -> None:
        """Copies a file out."""
        self.workspace.download(remote_path, local_path)

    # ---- persistent shells ----

    @property
    def has_session(self) -> bool:
        """Whether a persistent session is active."""
        return self.workspace.has_session

    def start_session(self, shell: str = "/bin/bash", isolate_history: bool = True) -> None:
        """Starts the session with the shell "main". No shell of it ever writes a history."""
        self.workspace.start_session(shell)

    def end_session(self) -> None:
        """Ends the session and its shells."""
        self.workspace.end_session()

    def create_shell(self, name: str) -> None:
        """A further shell."""
        self.workspace.create_shell(name)

    def list_shells(self) -> list[str]:
        """Names of the shells, in order."""
        return self.workspace.list_shells()

    def run_in_session(self, cmd: str, shell_name: str = "main",
                       timeout: int = 120) -> CommandResult:
        """
        Runs in a persistent shell; output merged, without the final newline. A timeout of 0 or less
        is over before it began.
        """
        return self._result(self.workspace.run_in_session(cmd, shell_name, max(timeout, 1e-6)))


def register(name: str = "plyfs") -> None:
    """Makes create_environment(name, workdir=..., kind=...) of chimera give a PlyEnvironment."""
    from chimera.env.factory import register_environment
    register_environment(name, PlyEnvironment)
