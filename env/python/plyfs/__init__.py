# SPDX-License-Identifier: Apache-2.0
"""
plyfs: workspaces with checkpoints that cost microseconds.

    import plyfs

    with plyfs.Workspace("project") as ws:
        before = ws.checkpoint()
        ws.run("rm -rf src")
        ws.restore(before)

:class:`Workspace` and :class:`AsyncWorkspace` are the way in; :class:`Session` is a persistent
bash; :class:`SweEnv` is SWE-agent's environment. ``plyfs.chimera`` and ``plyfs.sweagent`` plug into
those projects. Every failure is a :class:`PlyError` and the fitting built-in exception.
"""
from . import errors
from ._api import lib as _lib
from .aio import AsyncSession, AsyncWorkspace
from .errors import *  # noqa: F403
from .results import Observation, Result, Tests, parse_tests
from .session import Session
from .swe import CombinedSweHook, SweEnv, SweHook, quote
from .workspace import Options, Workspace

#: The library's version.
__version__: str = _lib.ply_version().decode()

__all__ = errors.__all__ + [
    "AsyncSession", "AsyncWorkspace", "CombinedSweHook", "Observation", "Options",
    "Result", "Session", "SweEnv", "SweHook", "Tests", "Workspace", "errors", "parse_tests",
    "quote"]
