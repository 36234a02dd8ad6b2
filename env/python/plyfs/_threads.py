# SPDX-License-Identifier: Apache-2.0
"""
Calls that wait, so that they can be given up: by Ctrl-C in the main thread, by the cancellation of
an asyncio task. The call runs in a thread of its own (not in asyncio's pool, which has a few
threads for everybody: a hundred commands that wait would keep out the one that interrupts them).
Whoever gives up asks the call to end, and waits until it has: nothing goes on behind the caller's
back.
"""
from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from typing import Any, Callable, TypeVar

from . import _api
from .errors import PlyError

T = TypeVar("T")


class Cancel:
    """What a command can be told to end by (ply_cancel_on). For one run."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def run(self, function: Callable[[], T]) -> T:
        """function(), whose commands end when this is called."""
        _api.lib.ply_cancel_on(self._fd)
        try:
            return function()
        finally:
            _api.lib.ply_cancel_on(-1)
            with self._lock:
                os.close(self._fd)
                self._fd = -1


class _Call:
    """One call in a thread of its own."""

    def __init__(self, function: Callable[[], Any], done: Callable[[], None]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function, self._done = function, done
        self._lock = threading.Lock()
        self._begun = self._given_up = False
        # A daemon thread: an interpreter that is ending does not wait for it.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give_up(self) -> bool:
        """Whether it has begun; else it never does. Ctrl-C may come anywhere within start."""
        with self._lock:
            self._given_up = True
            return self._begun

    def _work(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._begun = True
        try:
            self.result = self._function()
        except BaseException as e:  # for the caller, whatever it is
            self.error = e
        finally:
            self._done()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def waiting(function: Callable[[], T], cancel: Callable[[], Any]) -> T:
    """function() for the main thread: Ctrl-C calls cancel, waits for its end, and is raised."""
    ended = threading.Event()
    call = _Call(function, ended.set)
    try:
        call.start()
        ended.wait()
    except BaseException:
        if call.give_up():
            with contextlib.suppress(PlyError):  # the shell is gone, say: then the call is over
                cancel()
            ended.wait()
        raise
    return call.outcome()  # type: ignore[no-any-return]


def interruptible(function: Callable[[], T]) -> T:
    """function(); in the main thread, so that Ctrl-C ends its commands and is raised at once."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    cancel = Cancel()
    return waiting(lambda: cancel.run(function), cancel)


def _begin(function: Callable[[], Any]) -> tuple[_Call, asyncio.Event]:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def done() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    call = _Call(function, done)
    call.start()
    return call, ended


async def in_thread(function: Callable[[], T], cancel: Callable[[], Any] | None = None) -> T:
    """
    function(), without holding up the event loop. When the task is cancelled, ``cancel`` is called
    (for something short: no cancel, it ends by itself), and its end is waited for.
    """
    call, ended = _begin(function)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        # In a thread, too: an interrupt takes as long as the command resists. Where it fails (the
        # shell is gone) the call is over; that it was given up is what the task has to say.
        for event in [_begin(cancel)[1], ended] if cancel else [ended]:
            while not event.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await event.wait()
        raise
    return call.outcome()  # type: ignore[no-any-return]


async def command_in_thread(function: Callable[[], T]) -> T:
    """in_thread for what runs a command: cancellation kills it."""
    cancel = Cancel()
    return await in_thread(lambda: cancel.run(function), cancel)
