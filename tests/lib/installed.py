# SPDX-License-Identifier: Apache-2.0
"""What users get: the build, installed below a test's directory, and the surroundings to use it in."""
import os
import shutil
import subprocess

import ply
import plypy


class Installed:
    """The build, installed below a directory that it was not configured for."""

    def __init__(self, t):
        self.t = t
        plypy.surroundings(t)
        self.top = t.at("stage")
        t.run(["meson", "install", "-C", ply.BUILD, "--no-rebuild", "--quiet", "--destdir",
               self.top], env=os.environ, timeout=120)
        found = subprocess.run(["find", self.top, "-name", "libplyfs.pc"], text=True,
                               stdout=subprocess.PIPE, check=True).stdout.split()
        assert len(found) == 1, found
        self.lib = os.path.dirname(os.path.dirname(found[0]))
        self.prefix = self.lib[:self.lib.rindex("/lib")] if self.lib.endswith("/lib") else \
            os.path.dirname(os.path.dirname(self.lib))
        self.env = dict(t.env, PKG_CONFIG_PATH=os.path.dirname(found[0]),
                        PKG_CONFIG_SYSROOT_DIR=self.top,
                        PATH=os.path.join(self.prefix, "bin") + ":" + t.env["PATH"])
        self.examples = os.path.join(self.prefix, "share", "doc", "plyfs", "examples")
