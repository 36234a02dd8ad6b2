#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: daemon
# timeout: 180
"""A container's memory limit (a cgroup's), in which the daemon lives together with who works in its views."""
import io
import os
import re
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def anonymous_mib(pid):
    return int(re.search("RssAnon: *(\\d+)", ply.read("/proc/%d/status" % pid).replace("\t", " "))[1]) // 1024


def many_files(path, count):
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            entry = tarfile.TarInfo("d%d/a_name_of_some_length_%d" % (i // 100, i))
            entry.size = 80
            tar.addfile(entry, io.BytesIO(b"%080d" % i))
    return path


def test_what_was_let_go_of_is_given_back(t):
    """Malloc would keep it."""
    t.env["PLYFSD_NODE_MEMORY"] = "4"
    view = t.view(many_files(t.at("many.tar"), 60000))
    pid = view.store.daemon()
    for folder, _, files in os.walk(view.path):
        for name in files:
            os.stat(os.path.join(folder, name))
    most = anonymous_mib(pid)
    # Of 18 MiB of nodes and what they are made of; the kernel still knows the names.
    ply.wait_for("memory to be given back", lambda: anonymous_mib(pid) < most - 6, 20)


if __name__ == "__main__":
    ply.main()
