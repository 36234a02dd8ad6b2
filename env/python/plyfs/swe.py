# SPDX-License-Identifier: Apache-2.0
"""SWE-agent's environment (one deployment, one repository, one session) over libplyfs."""
from __future__ import annotations

import io
import json
import os
import shlex
import weakref
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, Mapping

from . import _api, errors
from ._api import Text, call, decode, encode, take_text
from ._threads import interruptible
from .results import Result

if TYPE_CHECKING:
    from typing import Self


class SweHook:
    """
    What is told at each point of a SweEnv's life: subclass it and override what is wanted. An
    exception ends the call that was under way, and is what that call raises.
    """

    def on_init(self, *, env: SweEnv) -> None:
        """It was added to env."""

    def on_start_deployment(self) -> None:
        """Before the deployment starts."""

    def on_copy_repo_started(self, repo: str) -> None:
        """Before the repository (its name) is copied; not when it is there already."""

    def on_install_env_started(self) -> None:
        """Never called; upstream has it."""

    def on_environment_startup(self) -> None:
        """At the end of every reset."""

    def on_close(self) -> None:
        """After the deployment was stopped."""


class CombinedSweHook(SweHook):
    """Several as one, in order."""

    def __init__(self, hooks: list[SweHook] | None = None) -> None:
        self.hooks = list(hooks or [])

    def on_init(self, *, env: SweEnv) -> None:
        for hook in self.hooks:
            hook.on_init(env=env)

    def on_start_deployment(self) -> None:
        for hook in self.hooks:
            hook.on_start_deployment()

    def on_copy_repo_started(self, repo: str) -> None:
        for hook in self.hooks:
            hook.on_copy_repo_started(repo)

    def on_environment_startup(self) -> None:
        for hook in self.hooks:
            hook.on_environment_startup()

    def on_close(self) -> None:
        for hook in self.hooks:
            hook.on_close()


def _free(handle: int, pid: int, kept: object) -> None:
    # kept: the callbacks, which on_close still needs.
    if os.getpid() == pid:
        _api.lib.ply_swe_free(handle)


class SweEnv:
    """
    An environment as SWE-agent's SWEEnv, whose reset is one restore of a prepared snapshot.

        env = SweEnv({"deployment": {"type": "local"}, "repo": {"type": "local", "path": "."}})
        env.start()
        print(env.communicate("git status", check="raise"))
    """

    def __init__(self, config: Mapping[str, Any] | str | bytes,
                 hooks: list[SweHook] | None = None) -> None:
        """config: the fields of EnvironmentConfig, as a mapping or as YAML or JSON text."""
        if isinstance(config, Mapping):
            config = json.dumps(config)
        raw = config.encode() if isinstance(config, str) else config
        handle = _api.handle()
        call("ply_swe_from_config", raw, len(raw), byref(handle))
        self._adopt(handle.value or 0, hooks)

    def _adopt(self, handle: int, hooks: list[SweHook] | None) -> None:
        self._handle = handle
        self._raised: list[BaseException] = []
        self._callbacks: list[Any] = []
        self._finalizer = weakref.finalize(self, _free, handle, os.getpid(), self._callbacks)
        for hook in hooks or []:
            self.add_hook(hook)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | bytes) -> Self:
        """As the constructor; upstream's name for it."""
        return cls(config)

    @classmethod
    def from_file(cls, path: Text, hooks: list[SweHook] | None = None) -> Self:
        """From a YAML or JSON file."""
        handle = _api.handle()
        call("ply_swe_from_file", encode(path), byref(handle))
        self = cls.__new__(cls)
        self._adopt(handle.value or 0, hooks)
        return self

    def add_hook(self, hook: SweHook) -> None:
        """Calls hook.on_init, and from now on its other methods."""
        me = weakref.ref(self)  # the callbacks live as long as the handle: they must not hold us
        raised = self._raised

        def guarded(function: Callable[[], Any]) -> int:
            try:
                function()
            except BaseException as e:
                raised.append(e)
                return -1
            return 0

        def on_init(arg: Any, swe: Any) -> int:
            return guarded(lambda: hook.on_init(env=me()))  # type: ignore[arg-type]

        def on_copy(arg: Any, name: bytes) -> int:
            return guarded(lambda: hook.on_copy_repo_started(os.fsdecode(name)))

        def plain(function: Callable[[], None]) -> Any:
            return _api.SweCallback(lambda arg: guarded(function))

        hooks = _api.ply_swe_hooks(
            on_init=_api.SweInitCallback(on_init),
            on_start_deployment=plain(hook.on_start_deployment),
            on_copy_repo_started=_api.SweRepoCallback(on_copy),
            on_install_env_started=plain(hook.on_install_env_started),
            on_environment_startup=plain(hook.on_environment_startup),
            on_close=plain(hook.on_close))
        self._callbacks.append(hooks)
        self._told(lambda: call("ply_swe_add_hook", self._handle, byref(hooks)))

    def _told(self, function: Callable[[], Any]) -> Any:
        """function(); what a hook raised meanwhile, instead of what libplyfs says of it."""
        self._raised.clear()
        try:
            result = function()
        except errors.PlyError:
            if not self._raised:
                raise
        if self._raised:
            raise self._raised.pop(0)
        return result

    def start(self) -> None:
        """Starts the deployment, resets, runs the post-startup commands."""
        self._told(lambda: interruptible(lambda: call("ply_swe_start", self._handle)))

    def reset(self) -> None:
        """The repository as it was prepared; variables and jobs of the session stay."""
        self._told(lambda: interruptible(lambda: call("ply_swe_reset", self._handle)))

    def hard_reset(self) -> None:
        """close, then start."""
        self._told(lambda: interruptible(lambda: call("ply_swe_hard_reset", self._handle)))

    def close(self) -> None:
        """Stops the deployment."""
        self._told(lambda: call("ply_swe_close", self._handle))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def communicate(self, input: str, timeout: float = 25, *, check: str = "ignore",
                    error_msg: str = "Command failed", set_last_action: bool = False,
                    keep_open: bool = False) -> str:
        """
        Runs input in the session and returns its output. check: "ignore", "warn", "raise": then
        CommandFailedError (a RuntimeError), and the environment is closed first unless keep_open.
        After a timeout (PlyTimeoutError, its output is what there was) the command goes on.
        """
        if check not in _api.SWE_CHECKS:
            raise ValueError("check is ignore, warn or raise, not %r" % check)
        options = _api.ply_swe_communicate(
            timeout=timeout, check=_api.SWE_CHECKS[check], error_msg=encode(error_msg),
            set_last_action=set_last_action, keep_open=keep_open)

        def run() -> str:
            text = _api.ply_text()
            try:
                call("ply_swe_communicate", self._handle, encode(input), byref(options),
                     byref(text))
                return decode(_api.text_bytes(text))
            except errors.PlyTimeoutError as e:
                e.output = decode(_api.text_bytes(text))
                raise
            finally:
                _api.lib.ply_text_free(byref(text))

        return self._told(run)  # type: ignore[no-any-return]

    def interrupt_session(self) -> None:
        """Interrupts what the session runs; from another thread, or after a timeout."""
        call("ply_swe_interrupt", self._handle)

    def read_file(self, path: Text, encoding: str | None = None, errors: str | None = None) -> str:
        """A file's text; a relative path is below the repository (ValueError without one)."""
        raw = take_text("ply_swe_read_file", self._handle, encode(path))
        return io.TextIOWrapper(io.BytesIO(raw), encoding or "utf-8", errors).read()

    def write_file(self, path: Text, content: str | bytes) -> None:
        """Writes a whole file, makes its parents."""
        raw = content.encode() if isinstance(content, str) else content
        call("ply_swe_write_file", self._handle, encode(path), raw, len(raw))

    def set_env_variables(self, env_variables: Mapping[str, Any]) -> None:
        """Exports variables in the session."""
        pairs = [str(x) for item in env_variables.items() for x in item]
        call("ply_swe_set_env", self._handle, _api.string_array(pairs), len(env_variables))

    def execute_command(self, command: str | list[str], shell: bool = True, check: bool = False,
                        env: Mapping[str, str] | None = None, cwd: Text | None = None) -> Result:
        """Runs a command beside the session. env replaces the environment."""
        line = command if isinstance(command, str) else shlex.join(command)
        if not shell and isinstance(command, str):
            line = shlex.quote(command)
        words = None if env is None else _api.string_array(
            ["%s=%s" % item for item in env.items()])
        return Result._take("ply_swe_execute", self._handle, encode(line), check, words,
                            len(env or ()), encode(cwd))

    def checkpoint(self, label: str | None = None) -> str:
        """Keeps the state of everything beneath; returns its id."""
        return take_text("ply_env_checkpoint", self._env(), encode(label)).decode()

    def restore(self, checkpoint: str) -> None:
        """Back to a checkpoint."""
        call("ply_env_restore", self._env(), encode(checkpoint))

    def _env(self) -> int:
        env: int | None = _api.lib.ply_swe_env(self._handle)
        if env is None:
            raise errors.StateError("there is nothing to checkpoint before start, "
                                         "and on another machine")
        return env


def quote(word: Text) -> str:
    """A word for the shell, as shlex.quote."""
    return os.fsdecode(take_text("ply_quote", encode(word)))
