# SPDX-License-Identifier: Apache-2.0
"""
Where libplyfs is, in the order in which it is looked for:

1. ``PLYFS_LIBRARY``, a path. If it does not load, nothing else is tried.
2. Beside this package: a wheel that brought it along.
3. The build directory that ``PLYFS_BUILD`` names, else ``build``, when this package lies in the
   source tree.
4. ``libplyfs.so.0``, wherever the system's loader finds it (ldconfig, ``LD_LIBRARY_PATH``).
5. The prefix of the ``plyfs`` in ``PATH``, and the usual ones, which not every loader's
   configuration names.
"""
from __future__ import annotations

import ctypes
import glob
import os
import shutil

#: The interface that this package was written for: libplyfs's soname.
SONAME = "libplyfs.so.0"


def candidates() -> list[str]:
    """Paths and names to try, best first."""
    named = os.environ.get("PLYFS_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.path.join(here, SONAME)]
    source = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    if os.path.exists(os.path.join(source, "env", "plyfs.h")):
        build = os.environ.get("PLYFS_BUILD") or os.path.join(source, "build")
        found.append(os.path.join(build, "env", SONAME))
    found = [path for path in found if os.path.exists(path)] + [SONAME]
    prefixes = ["/usr/local", "/usr", "/opt/plyfs"]
    program = shutil.which("plyfs")
    if program:
        prefixes.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(program))))
    for prefix in prefixes:
        found += glob.glob(prefix + "/lib*/" + SONAME) + glob.glob(prefix + "/lib/*/" + SONAME)
    return found


def load() -> ctypes.CDLL:
    """The library; ``ImportError`` that says what to do when there is none."""
    tried = []
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as e:
            tried.append(str(e))
    raise ImportError(
        "libplyfs was not found: install plyfs (meson install) with its bin in PATH, or name the "
        "library in PLYFS_LIBRARY. Tried: " + "; ".join(tried))
