# SPDX-License-Identifier: Apache-2.0
"""A root made of what this machine has: programs with the libraries that ldd names."""
import os
import re
import shutil

import ply

PROGRAMS = ("bash", "sh", "ls", "cat", "rm", "mkdir", "touch", "sleep", "env", "id", "grep", "ln",
            "chown", "tail", "head", "true", "readlink", "hostname", "mount", "wc", "seq", "stat")


def small_root(top, more=()):
    """At top, which is there afterwards; more: further programs."""
    for d in ("usr/bin", "usr/lib", "etc", "tmp", "root"):
        os.makedirs(os.path.join(top, d))
    needed = set()
    for name in (*PROGRAMS, *more):
        path = shutil.which(name, path="/usr/bin:/bin")
        if not path:
            continue
        shutil.copy2(os.path.realpath(path), os.path.join(top, "usr/bin", name))
        needed.update(re.findall(r"(/\S+) \(0x", ply.run(["ldd", path], check=False).stdout))
    for lib in needed:
        at = os.path.join(top, "usr/lib", os.path.basename(lib))
        shutil.copy2(os.path.realpath(lib), at)
        if os.path.basename(lib).startswith("ld-"):  # named in the programs with its directory
            real = top + lib
            if not os.path.exists(os.path.dirname(real)):
                os.symlink("usr/lib", os.path.dirname(real))
    os.symlink("usr/bin", os.path.join(top, "bin"))
    with open(os.path.join(top, "etc/ld.so.conf"), "w") as f:
        f.write("/usr/lib\n")
    ply.run([shutil.which("ldconfig", path="/sbin:/usr/sbin"), "-r", top])
    ply.write(os.path.join(top, "etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")
    return top
