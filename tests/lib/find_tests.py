#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
find_tests.py unit|e2e: one line per test, for tests/meson.build: name;file;group;timeout;serial.

A test is found by existing. Its head comment may say (within the first 12 lines):
    # group: live         a second suite name beside e2e
    # timeout: 120        seconds on a quiet 2-core machine, generous
    # serial: yes         measures time or fills disks: nothing else runs beside it
"""
import os
import re
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def header(path):
    found = {"group": "", "timeout": "", "serial": "no"}
    with open(path, encoding="utf-8") as f:
        for _, line in zip(range(12), f):
            m = re.match(r"(?:#|//| \*|/\*)\s*(group|timeout|serial):\s*(\S+)", line)
            if m:
                found[m[1]] = m[2]
    return found


def main():
    kind = sys.argv[1]
    folder = os.path.join(TESTS, kind)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if kind == "unit" and re.fullmatch(r"test_\w+\.c", name):
            group, timeout, label = "unit", "300", name[5:-2]
        elif kind == "unit" and re.fullmatch(r"test_\w+\.(py|sh)", name):
            group, timeout, label = "project", "60", re.sub(r"^test_|\.\w+$", "", name)
        elif kind == "e2e" and os.path.isfile(path) and os.access(path, os.X_OK):
            group, timeout, label = "e2e", "120", re.sub(r"\.\w+$", "", name)
        else:
            continue
        h = header(path)
        serial = "true" if h["serial"] == "yes" else "false"
        print(";".join([label, name, h["group"] or group, h["timeout"] or timeout, serial]))


main()
