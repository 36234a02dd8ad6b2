# SPDX-License-Identifier: Apache-2.0
"""What users get: the build, installed below a test's directory, and the surroundings to use it in."""
import contextlib
import os
import sys
import tempfile

import ply
import server


def install(top):
    """The build, below a directory that it was not configured for. Gives its prefix and libdir."""
    # The meson that configured it: an environment of Python packages may have another one.
    mine = os.path.join(sys.prefix, "bin") if sys.prefix != sys.base_prefix else None
    path = os.pathsep.join(d for d in os.environ["PATH"].split(os.pathsep) if d != mine)
    ply.run(["meson", "install", "-C", ply.BUILD, "--no-rebuild", "--quiet", "--destdir", top],
            env=dict(os.environ, PATH=path), timeout=120)
    found = ply.run(["find", top, "-name", "libplyfs.pc"]).stdout.split()
    assert len(found) == 1, found
    lib = os.path.dirname(os.path.dirname(found[0]))
    prefix = lib[:lib.rindex("/lib")] if lib.endswith("/lib") else \
        os.path.dirname(os.path.dirname(lib))
    return prefix, lib


@contextlib.contextmanager
def programs():
    """All tests within it run the installed programs, not those of the build directory."""
    with tempfile.TemporaryDirectory(prefix="plyfs-installed-") as top:
        prefix, _ = install(top)
        ply.PLYFS = os.path.join(prefix, "bin", "plyfs")
        server.SWEREX_REMOTE = os.path.join(prefix, "bin", "swerex-remote")
        yield


class Installed:
    """The build, installed below a directory that it was not configured for."""

    def __init__(self, t):
        self.t = t
        t.surroundings()
        self.top = t.at("stage")
        self.prefix, self.lib = install(self.top)
        self.env = dict(t.env, PKG_CONFIG_PATH=os.path.join(self.lib, "pkgconfig"),
                        PKG_CONFIG_SYSROOT_DIR=self.top,
                        PATH=os.path.join(self.prefix, "bin") + ":" + t.env["PATH"])
        self.examples = os.path.join(self.prefix, "share", "doc", "plyfs", "examples")
