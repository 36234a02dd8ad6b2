#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bench
# timeout: 240
# serial: yes
"""
The bench runs, and what it finds is of the right order. Limits here are far above what is wanted
(plyfs bench snapshot shows that): machines of all kinds run this, busy with other things.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_the_quick_bench(t):
    p = t.run([ply.PLYFS, "bench", "snapshot", "--quick", "--json", "--only", "plyfs",
               "--dir", t.path], timeout=230)
    rows = json.loads(p.stdout)["rows"]
    sanitized = "asan" in ply.run(["ldd", ply.PLYFSD]).stdout or \
        "tsan" in ply.run(["ldd", ply.PLYFSD]).stdout
    slack = 20 if sanitized else 1

    def p50(who, what):
        found = [r["p50_us"] for r in rows if r["who"] == who and r["what"] == what]
        print("# %s, %s: %s us" % (who, what, found))
        return found
    for what, limit in (("checkpoint", 600), ("restore", 1500), ("fork", 1000)):
        assert max(p50("ioctl", what)) < limit * slack
    for what, limit in (("checkpoint", 40e3), ("restore", 40e3), ("mounted fork", 60e3),
                        ("diff", 50e3)):
        assert max(p50("command", what)) < limit * slack
    for r in rows:
        if r["who"] == "storm":
            print("# %s" % r["requests"])
            # Ten changed files in at most ten directories; thousands of others are not asked for.
            assert r["requests"].get("LOOKUP", 0) + r["requests"].get("GETATTR", 0) <= 25, r
    assert not ply.mounts_below(t.path)


def test_every_rival_keeps_its_promise(t):
    # A rival that restores wrongly would make a cheap bar to jump: check what each gives back.
    sys.path.insert(0, os.path.join(os.path.dirname(ply.PLYFS), "bench"))
    sys.dont_write_bytecode = True
    import rivals
    source = ply.make_bulk(t.at("source"), 300)
    for kind in rivals.ALL:
        os.mkdir(t.at(kind.name))
        r = kind(t.at(kind.name))
        try:
            r.prepare(source)
            ply.write(os.path.join(r.tree, "d000/s0000/f000.txt"), "edited")
            key = r.checkpoint()
            ply.write(os.path.join(r.tree, "d000/s0000/f000.txt"), "again")
            ply.write(os.path.join(r.tree, "later"), "x")
            os.unlink(os.path.join(r.tree, "d000/s0001/f001.txt"))
            r.restore(key)
            assert ply.read(os.path.join(r.tree, "d000/s0000/f000.txt")) == "edited", kind.name
            assert not os.path.exists(os.path.join(r.tree, "later")), kind.name
            assert os.path.exists(os.path.join(r.tree, "d000/s0001/f001.txt")), kind.name
        except rivals.Unavailable as why:
            print("# %s is left out: %s" % (kind.name, why))
        finally:
            r.close()


if __name__ == "__main__":
    ply.main()
