#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
summary.py TESTLOG.json SECONDS: the closing words of a test run; exit 1 on failures, and where nothing
could be mounted: most of the tests say so and skip, which is no success.
"""
import json
import re
import sys

GOOD = {"OK", "EXPECTEDFAIL"}
NO_FUSE = "skip: /dev/fuse cannot be opened"  # ply.main

# What says in a failed test's output which of its facts failed, and why: of ply.main and Python, of Check
# (file:line:F:…), of an inner meson test, of a sanitizer. The first few: the rest is in the log above.
TELLING = re.compile(r"^FAILED |^\w*(Error|Timeout\w*|Exit): |:\d+:[FE]:|^ *\d+/\d+ .* (FAIL|TIMEOUT|ERROR) |"
                     r"^SUMMARY: |^stderr: ")
TOLD = 12


def main():
    try:
        with open(sys.argv[1]) as f:
            tests = [json.loads(line) for line in f if line.strip()]
    except OSError:
        tests = []
    passed = [t for t in tests if t["result"] in GOOD]
    skipped = [t for t in tests if t["result"] == "SKIP"]
    failed = [t for t in tests if t not in passed and t not in skipped]

    print()
    print("slowest: " + ", ".join(
        "%s %.0f s" % (t["name"].split(" / ")[-1], t["duration"])
        for t in sorted(tests, key=lambda t: -t["duration"])[:5]))
    for t in skipped:
        lines = (t.get("stdout") or "").strip().splitlines()
        why = next((line for line in reversed(lines) if line.startswith("skip")), "")
        print("skipped: %s %s" % (t["name"], why))
    for t in passed:
        for line in (t.get("stdout") or "").splitlines():
            if line.startswith("skip "):
                print("skipped in %s: %s" % (t["name"], line[len("skip "):]))
    for t in failed:
        print("FAILED: %s (%s after %.0f s)" % (t["name"], t["result"].lower(), t["duration"]))
        lines = (t.get("stdout") or "").splitlines() + (t.get("stderr") or "").splitlines()
        for line in [x for x in lines if TELLING.search(x)][:TOLD]:
            print("    " + line[:300])
    print("%d passed, %d failed%s in %d min %02d s" % (
        len(passed), len(failed), ", %d skipped" % len(skipped) if skipped else "",
        int(sys.argv[2]) // 60, int(sys.argv[2]) % 60))
    unmounted = sum(NO_FUSE in (t.get("stdout") or "") for t in skipped)
    if unmounted:
        print("%d of those skipped need /dev/fuse, which cannot be opened here: modprobe fuse; in a "
              "container: --device /dev/fuse --cap-add SYS_ADMIN" % unmounted)
    return 1 if failed or unmounted or not passed else 0


sys.exit(main())
