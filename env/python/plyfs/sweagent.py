# SPDX-License-Identifier: Apache-2.0
"""
plyfs for SWE-agent: a deployment and a runtime of SWE-ReX (PyPI: swe-rex, which this needs) that
live in this process, without a server and without Docker.

    SWEEnv(deployment=PlyDeployment(workdir="/src/project"), repo=..., post_startup_commands=[])

or from a SWE-agent configuration, as ``env.deployment: {type: plyfs, workdir: /src/project}``. Its
models know a fixed list of types, so ours has to be added before sweagent is imported: call
``plyfs.sweagent.register()`` first, or start sweagent as ``python -m plyfs.sweagent run ...``. In a
batch (``run-batch``) each instance begins with the branch or snapshot that its image_name is.

With kind "local" or "git" paths are this machine's, as for SWE-ReX's own LocalDeployment; with kind
"container" and the option root, the view is the root directory, and all of it comes back with a
restore. What differs from SWE-ReX's LocalRuntime: calls run at the same time (an interrupt reaches
a session that is busy), every here-document and every && works, a timeout's partial output is in
the exception's ``extra_info``, what a command has started ends with it, close frees the names.
"""
from __future__ import annotations

import io
import logging
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict
from swerex import exceptions as rex
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.runtime.abstract import (
    AbstractRuntime, BashInterruptAction, BashObservation, CloseBashSessionResponse, CloseResponse,
    Command, CommandResponse, CreateBashSessionResponse, IsAliveResponse, ReadFileRequest,
    ReadFileResponse, UploadRequest, UploadResponse, WriteFileRequest, WriteFileResponse)
from swerex.utils.log import get_logger

from . import errors
from ._threads import command_in_thread, in_thread
from .aio import AsyncSession, AsyncWorkspace
from .workspace import Workspace

__all__ = ["PlyDeployment", "PlyDeploymentConfig", "PlyRuntime", "register"]

#: What SWE-ReX calls the end of a command where no other expectation was met.
PROMPT = "SHELLPS1PREFIX"
#: No timeout: longer than anything (a year).
FOREVER = 365 * 86400.0


def _clean(output: str) -> str:
    """Without terminal controls, line ends as LF: as SWE-ReX gives a session's output."""
    return re.sub(r"\x1B[@-_][0-?]*[ -/]*[@-~]", "", output).replace("\r\n", "\n")


def _prefixed(message: str, words: str) -> str:
    return "%s: %s" % (message, words) if message else words


def _gone(error: errors.SessionGoneError) -> Exception:
    """The shell is dead: what SWE-ReX's clients know for that."""
    from pexpect.exceptions import EOF
    raised = EOF("End Of File (EOF). %s" % error)
    raised.extra_info = {"partial_output": _clean(error.output)}
    return raised  # type: ignore[no-any-return]


class PlyRuntime(AbstractRuntime):
    """SWE-ReX's runtime on an open workspace, which stays its owner's."""

    def __init__(self, workspace: Workspace, *, logger: logging.Logger | None = None) -> None:
        self.workspace = workspace
        self.logger = logger or get_logger("plyfs-runtime")
        self._sessions: dict[str, AsyncSession] = {}

    @property
    def _inside(self) -> bool:
        """Whether paths are the environment's own, not this machine's."""
        return self.workspace.kind not in ("local", "git")

    def _path(self, path: str) -> Path:
        return Path(self.workspace.workdir, path)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether there is a workspace."""
        return IsAliveResponse(is_alive=True)

    # ---- sessions ----

    async def create_session(self, request: Any) -> CreateBashSessionResponse:
        """Starts a shell. SessionExistsError; pexpect's TIMEOUT when it does not come up."""
        name = request.session
        if name in self._sessions:
            raise rex.SessionExistsError("session %s already exists" % name)
        session = AsyncSession(
            name, workspace=AsyncWorkspace.wrap(self.workspace),
            startup_source=request.startup_source, startup_timeout=request.startup_timeout)
        self._sessions[name] = session  # at once: another call may ask for the same name
        try:
            output = await session.start()
        except BaseException as e:
            del self._sessions[name]
            if isinstance(e, errors.PlyTimeoutError):
                from pexpect.exceptions import TIMEOUT
                raise TIMEOUT("Timeout exceeded. %s" % e) from e
            raise
        return CreateBashSessionResponse(output=_clean(output))

    def _session(self, name: str) -> AsyncSession:
        try:
            return self._sessions[name]
        except KeyError:
            raise rex.SessionDoesNotExistError("session %r does not exist" % name) from None

    async def run_in_session(self, action: Any) -> BashObservation:
        """Runs or interrupts. The exceptions of SWE-ReX's LocalRuntime, with its words."""
        session = self._session(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(session, action)
        interactive = action.is_interactive_command or action.is_interactive_quit
        try:
            seen = await session.run(
                action.command, action.timeout,
                check="ignore" if action.check == "ignore" else "silent", expect=action.expect,
                interactive=action.is_interactive_command,
                interactive_quit=action.is_interactive_quit)
        except errors.PlyError as e:
            self._raise(e, action)
        output = _clean(seen.output)
        if action.is_interactive_command:
            output = output.lstrip().removeprefix(action.command).strip()
        elif not interactive and action.check == "raise" and seen.exit_code != 0:
            if seen.exit_code is None:
                raise rex.NoExitCodeError("failed to parse exit code from output %r" % output)
            raise rex.NonZeroExitCodeError(_prefixed(
                action.error_msg, "Command %r failed with exit code %d. Here is the output:\n%r"
                % (action.command, seen.exit_code, output)))
        return BashObservation(
            output=output, exit_code=0 if interactive else seen.exit_code,
            expect_string=PROMPT if seen.matched is None else action.expect[seen.matched])

    def _raise(self, error: errors.PlyError, action: Any) -> NoReturn:
        raised: Exception = error
        if isinstance(error, errors.PlyTimeoutError):
            raised = rex.CommandTimeoutError("timeout after %s seconds while running command %r"
                                             % (action.timeout, action.command))
            raised.extra_info = {  # type: ignore[attr-defined]
                "partial_output": _clean(error.output), "reason": str(error)}
        elif isinstance(error, errors.BashSyntaxError):
            raised = rex.BashIncorrectSyntaxError(
                "Error (exit code 2) while checking bash command \n%r\n---- Stderr ----\n%s\n"
                "---- Stdout ----\n" % (action.command, error),
                extra_info={"bash_stdout": "", "bash_stderr": str(error)})
        elif isinstance(error, errors.NoExitCodeError):
            raised = rex.NoExitCodeError(str(error))
        elif isinstance(error, errors.SessionGoneError):
            raised = _gone(error)
        raise raised from error

    async def _interrupt(self, session: AsyncSession,
                         action: BashInterruptAction) -> BashObservation:
        try:
            output = await session.interrupt(action.timeout, action.n_retry)
        except errors.SessionGoneError as e:
            raise _gone(e) from e
        except errors.PlyTimeoutError as e:
            from pexpect.exceptions import TIMEOUT
            raise TIMEOUT("Failed to interrupt session") from e
        return BashObservation(output=_clean(output).strip(), exit_code=0, expect_string=PROMPT)

    async def close_session(self, request: Any) -> CloseBashSessionResponse:
        """Ends a shell and what runs in it."""
        session = self._session(request.session)
        del self._sessions[request.session]
        await session.close()
        return CloseBashSessionResponse()

    # ---- commands beside the sessions ----

    async def execute(self, command: Command) -> CommandResponse:
        """As subprocess.run, in workdir unless cwd is given. env replaces the environment."""
        argv = command.command
        words = [argv] if isinstance(argv, str) else list(argv)
        if command.shell:
            words = ["/bin/sh", "-c", *words]
        elif not words:
            raise IndexError("list index out of range")
        if any("\0" in word for word in words):
            raise ValueError("embedded null byte")
        if not self._inside:
            self._must_start(words[0], command)
        line = "exec " + shlex.join(words)
        if command.env is not None:
            pairs = ["%s=%s" % item for item in command.env.items()]
            line = "exec env -i %s" % shlex.join([*pairs, *words])
        if command.cwd is not None:
            line = "cd -- %s && %s" % (shlex.quote(command.cwd), line)
        line += " 2>&1" if command.merge_output_streams else ""
        result = await command_in_thread(
            lambda: self.workspace._run(line, command.timeout or FOREVER, None))
        if result.timed_out:
            error = rex.CommandTimeoutError("Timeout (%ss) exceeded while running command"
                                            % command.timeout)
            error.extra_info = {"partial_output": result.stdout}  # type: ignore[attr-defined]
            raise error
        if command.check and result.exit_code != 0:
            raise rex.NonZeroExitCodeError(_prefixed(
                command.error_msg, "Command %r failed with exit code %d. Stdout:\n%r\nStderr:\n%r"
                % (argv, result.exit_code, result.stdout, result.stderr)))
        return CommandResponse(stdout=result.stdout, stderr=result.stderr,
                               exit_code=result.exit_code)

    def _must_start(self, program: str, command: Command) -> None:
        """What subprocess.run raises for a program or a directory that is not there."""
        if command.cwd is not None and not os.path.isdir(self._path(command.cwd)):
            raise FileNotFoundError(2, os.strerror(2), command.cwd)
        if program == "":
            raise PermissionError(13, os.strerror(13), "")
        search = os.environ if command.env is None else command.env
        where = program
        if "/" in program:
            where = str(self._path(command.cwd or "") / program)
        if shutil.which(where, path=search.get("PATH", os.defpath)) is None:
            code = 13 if "/" in program and os.path.exists(where) else 2
            raise (PermissionError if code == 13 else FileNotFoundError)(
                code, os.strerror(code), program)

    # ---- files ----

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """A file's text, decoded as asked, line ends as LF."""
        def read() -> str:
            if not self._inside:
                return self._path(request.path).read_text(request.encoding, request.errors)
            return io.TextIOWrapper(io.BytesIO(self.workspace.read_bytes(request.path)),
                                    request.encoding or "utf-8", request.errors).read()
        return ReadFileResponse(content=await in_thread(read))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Writes a file, makes its parents."""
        def write() -> None:
            if self._inside:
                self.workspace.write(request.path, request.content)
                return
            path = self._path(request.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(request.content.encode())
        await in_thread(write)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """A file, or a directory with all that it holds, which is merged with what is there."""
        source, target = Path(request.source_path), request.target_path

        def upload() -> None:
            if not source.exists():
                raise ValueError("Source path %s does not exist" % source)
            if not self._inside:
                path = self._path(target)
                path.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy(source, path)
            elif source.is_dir():
                for top, _, names in os.walk(source):
                    for name in names:
                        file = Path(top, name)
                        self.workspace.upload(file, "%s/%s" % (target, file.relative_to(source)))
            else:
                self.workspace.upload(source, target)
        await in_thread(upload)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Ends every session. May be called again; new sessions may be created after it."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()
        return CloseResponse()


class PlyDeployment(AbstractDeployment):
    """A workspace as a deployment; ``workspace`` is there after start, for checkpoints."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:
        """kwargs: the fields of :class:`PlyDeploymentConfig`."""
        self._config = PlyDeploymentConfig(**kwargs)
        self._runtime: PlyRuntime | None = None
        self._hooks = CombinedDeploymentHook()
        self.logger = logger or get_logger("plyfs-deploy")

    @classmethod
    def from_config(cls, config: PlyDeploymentConfig) -> PlyDeployment:
        """One for a configuration."""
        return cls(**config.model_dump())

    def __del__(self) -> None:
        """The workspace goes by itself; nothing to do with an event loop that may be gone."""

    def add_hook(self, hook: DeploymentHook) -> None:
        """Is told "Starting runtime"."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether it was started."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="Runtime is None.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Mounts the workspace. DeploymentStartupError says why it does not work."""
        self._hooks.on_custom_step("Starting runtime")
        try:
            options = dict(self._config.options)
            if self._config.image:
                options["from"] = self._config.image
            workspace = Workspace(self._config.workdir, kind=self._config.kind, **options)
            await in_thread(workspace.open)
        except errors.PlyError as e:
            raise rex.DeploymentStartupError(str(e)) from e
        self._runtime = PlyRuntime(workspace, logger=self.logger)

    async def stop(self) -> None:
        """Ends the sessions and the workspace. When it is not started: nothing."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            try:
                await runtime.close()
            finally:
                await in_thread(runtime.workspace.close)

    @property
    def runtime(self) -> PlyRuntime:
        """The runtime; DeploymentNotStartedError before start."""
        if self._runtime is None:
            raise rex.DeploymentNotStartedError()
        return self._runtime

    @property
    def workspace(self) -> Workspace:
        """The workspace; DeploymentNotStartedError before start."""
        return self.runtime.workspace


class PlyDeploymentConfig(BaseModel):
    """``env.deployment`` of a SWE-agent configuration."""

    kind: Literal["local", "git", "container"] = "local"
    workdir: str | None = None
    #: Further options of libplyfs: {"root": true, "store": ..., "from": ...}
    options: dict[str, Any] = {}
    #: The state to begin with, in place of the option "from". SWE-agent's run-batch sets it: the
    #: image_name of each instance. Empty: none.
    image: str = ""
    type: Literal["plyfs"] = "plyfs"

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        """The deployment that it describes."""
        return PlyDeployment.from_config(self)


def register() -> None:
    """Makes ``type: plyfs`` known to SWE-agent's configurations. Before sweagent is imported."""
    from swerex.deployment import config
    if "sweagent.environment.swe_env" in sys.modules:
        raise RuntimeError("plyfs.sweagent.register() comes before the import of sweagent")
    if PlyDeploymentConfig not in config.DeploymentConfig.__args__:
        config.DeploymentConfig = config.DeploymentConfig | PlyDeploymentConfig


def main() -> None:
    """sweagent's command line, with ours among the deployments."""
    register()
    from sweagent.run.run import main as sweagent_main
    sweagent_main()


if __name__ == "__main__":
    main()
