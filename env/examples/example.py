# SPDX-License-Identifier: Apache-2.0
"""python3 example.py REPOSITORY"""
import sys

import plyfs

with plyfs.Workspace(sys.argv[1], test_command="python3 -m unittest") as ws:
    def test(when):
        tests = ws.test()
        print("%s: %d passed, %d failed" % (when, tests.passed, tests.failed))

    test("as it is")
    good = ws.checkpoint("good")
    ws.write("calc.py", "add = max\n")
    test("broken")
    ws.restore(good)
    test("restored")
