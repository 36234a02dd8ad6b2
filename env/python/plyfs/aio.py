# SPDX-License-Identifier: Apache-2.0
"""
The same for asyncio. Each call runs in a thread of its own. Cancelling a task that waits for a
command kills that command (a session's is interrupted) and returns when it has ended; cancelling
something short (a checkpoint, a read) lets it end first.
"""
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ._api import Text
from ._threads import command_in_thread, in_thread
from .results import Observation, Result, Tests
from .session import Session
from .workspace import Command, Workspace

if TYPE_CHECKING:
    from typing import Self, Unpack

    from .workspace import Options


class AsyncWorkspace:
    """
    A :class:`Workspace` whose verbs are coroutines.

        async with AsyncWorkspace("project") as ws:
            results = await asyncio.gather(*(try_out(await ws.fork()) for _ in range(8)))
    """

    def __init__(self, workdir: Text | None = None, *, kind: str = "local",
                 **options: Unpack[Options]) -> None:
        """As :class:`Workspace`. Nothing is touched before it is opened."""
        self.sync = Workspace(workdir, kind=kind, **options)

    @classmethod
    def wrap(cls, workspace: Workspace) -> Self:
        """One that works on an existing workspace (``sync``)."""
        self = cls.__new__(cls)
        self.sync = workspace
        return self

    async def open(self) -> Self:
        """See :meth:`Workspace.open`."""
        await in_thread(self.sync.open)
        return self

    async def close(self) -> None:
        """See :meth:`Workspace.close`."""
        await in_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self if self.sync._is_open else await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return "<%s %s %r>" % (type(self).__name__, self.sync.kind, self.sync.workdir)

    @property
    def workdir(self) -> str:
        """Its directory, absolute."""
        return self.sync.workdir

    async def read_bytes(self, path: Text) -> bytes:
        """See :meth:`Workspace.read_bytes`."""
        return await in_thread(lambda: self.sync.read_bytes(path))

    async def read(self, path: Text) -> str:
        """See :meth:`Workspace.read`."""
        return await in_thread(lambda: self.sync.read(path))

    async def write(self, path: Text, data: str | bytes) -> None:
        """See :meth:`Workspace.write`."""
        await in_thread(lambda: self.sync.write(path, data))

    async def list_files(self, pattern: str = "**/*") -> list[str]:
        """See :meth:`Workspace.list_files`."""
        return await in_thread(lambda: self.sync.list_files(pattern))

    async def upload(self, local: Text, path: Text) -> None:
        """See :meth:`Workspace.upload`."""
        await in_thread(lambda: self.sync.upload(local, path))

    async def download(self, path: Text, local: Text) -> None:
        """See :meth:`Workspace.download`."""
        await in_thread(lambda: self.sync.download(path, local))

    async def run(self, command: Command, timeout: float | None = None,
                  shell: str | None = None) -> Result:
        """See :meth:`Workspace.run`. Cancellation kills the command."""
        return await command_in_thread(lambda: self.sync._run(command, timeout, shell))

    async def test(self) -> Tests:
        """See :meth:`Workspace.test`. Cancellation kills the run."""
        return await command_in_thread(self.sync._test)

    async def checkpoint(self, label: str | None = None) -> str:
        """See :meth:`Workspace.checkpoint`."""
        return await in_thread(lambda: self.sync.checkpoint(label))

    async def restore(self, checkpoint: str) -> None:
        """See :meth:`Workspace.restore`."""
        await in_thread(lambda: self.sync.restore(checkpoint))

    async def undo(self) -> None:
        """See :meth:`Workspace.undo`."""
        await in_thread(self.sync.undo)

    async def fork(self, workdir: Text | None = None) -> Self:
        """See :meth:`Workspace.fork`."""
        return self.wrap(await in_thread(lambda: self.sync.fork(workdir)))

    async def diff(self, a: str | None = None, b: str | None = None,
                   form: str = "name-status") -> str:
        """See :meth:`Workspace.diff`."""
        return await in_thread(lambda: self.sync.diff(a, b, form))

    def session(self, name: str = "default", **options: Any) -> AsyncSession:
        """See :meth:`Workspace.session`."""
        return AsyncSession(name, workspace=self, **options)


class AsyncSession:
    """A :class:`Session` whose verbs are coroutines."""

    def __init__(self, name: str = "default", *, workspace: AsyncWorkspace | None = None,
                 shell: Text | None = None, cwd: Text | None = None,
                 startup_source: Sequence[Text] = (), startup_timeout: float | None = None,
                 env: Mapping[str, str] | None = None) -> None:
        """As :class:`Session`."""
        self.sync = Session(
            name, workspace=workspace.sync if workspace else None, shell=shell, cwd=cwd,
            startup_source=startup_source, startup_timeout=startup_timeout, env=env)

    @property
    def alive(self) -> bool:
        """Whether its shell runs."""
        return self.sync.alive

    async def start(self) -> str:
        """See :meth:`Session.start`."""
        return await in_thread(self.sync.start)

    async def close(self) -> None:
        """See :meth:`Session.close`."""
        await in_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def run(self, command: str | bytes, timeout: float | None = None, *,
                  check: str = "silent", expect: Sequence[str] = (), interactive: bool = False,
                  interactive_quit: bool = False) -> Observation:
        """See :meth:`Session.run`. Cancellation interrupts the command; the shell stays usable."""
        return await in_thread(functools.partial(
            self.sync._run, command, timeout, check, expect, interactive, interactive_quit),
            self.sync.interrupt)

    async def interrupt(self, timeout: float = 0.2, tries: int = 3) -> str:
        """See :meth:`Session.interrupt`."""
        return await in_thread(lambda: self.sync.interrupt(timeout, tries))
