#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bench
# timeout: 360
# serial: yes (it counts what the kernel asks, and others make that forget)
"""
What the bench counts (requests, memory, threads) is what it is to be, with nothing beside it. How long
things take is shown by plyfs bench: machines of all kinds run this.
"""
import json
import os
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

SANITIZED = ply.sanitized()
SLACK = 20 if SANITIZED else 1


def test_the_quick_bench(t):
    p = t.run([ply.PLYFS, "bench", "snapshot", "--quick", "--json", "--only", "plyfs",
               "--dir", t.path], timeout=230 * SLACK)
    rows = json.loads(p.stdout)["rows"]

    def p50(who, what):
        found = [r["p50_us"] for r in rows if r["who"] == who and r["what"] == what]
        print("# %s, %s: %s us" % (who, what, found))
        return found
    for who, whats in (("ioctl", ("checkpoint", "restore", "fork")),
                       ("command", ("checkpoint", "restore", "mounted fork", "diff"))):
        for what in whats:
            assert min(p50(who, what), default=0) > 0, (who, what)
    for r in rows:
        if r["who"] == "storm":
            print("# %s" % r["requests"])
            # Ten changed files in at most ten directories; thousands of others are not asked for.
            assert r["requests"].get("LOOKUP", 0) + r["requests"].get("GETATTR", 0) <= 25, r
    assert not ply.mounts_below(t.path)


def asked(requests):
    """How many; but what the kernel forgets when memory is short is no question."""
    return sum(n for kind, n in requests.items() if "FORGET" not in kind)


def view_bench(t, *more):
    p = t.run([ply.PLYFS, "bench", "view", "--quick", "--json", "--dir", t.path, *more],
              timeout=200 * SLACK)
    return json.loads(p.stdout)


WARM = ("stat", "open", "read")


def not_warm(found):
    """The groups that asked the daemon (a walk may want the directory's free space)."""
    return [g for g in found["groups"] if g["group"] in WARM and asked(g["requests"]["plyfs"]) > 2]


def test_the_quick_view_bench(t):
    # Once, and tiny. What takes seconds anywhere (npm, make, venv, git) is left to real runs.
    rows = "untar,stat,open,search,overwrite,read,storm,sqlite-nosync,rm"
    # What is warm asks for nothing. Unless somebody has the machine forget its files meanwhile
    # (drop_caches, too little memory), when no group counts: not every time.
    for _ in range(3):
        found = view_bench(t, "--only", rows, "--plot", t.at("table.svg"))
        cold = not_warm(found)
        if not cold:
            break
        print("# not warm: %s" % cold)
    assert not cold, cold
    for place, why in found["left_out"]:
        print("# %s is left out: %s" % (place, why))
    assert {"plyfs", "disk", "floor"} <= set(found["places"]), found["left_out"]
    groups = {g["group"]: g for g in found["groups"]}
    assert set(groups) == set(rows.split(","))
    for r in found["rows"]:
        print("# %s: %s ms, %s" % (r["row"], r["ms"], r["ratio"]))
        assert all(r["ms"][place] > 0 for place in found["places"]), r
    # The floor has our flags, so the kernel asks it for as much as it asks us.
    for name, g in groups.items():
        ours, floor = (asked(g["requests"][place]) for place in ("plyfs", "floor"))
        print("# %s: %d requests, the floor %d" % (name, ours, floor))
        assert ours <= floor * 1.1 + 20, g
    picture = xml.etree.ElementTree.parse(t.at("table.svg")).getroot()
    assert len([e for e in picture.iter() if e.tag.endswith("rect")]) > len(found["rows"])


def test_the_quick_view_bench_with_a_history(t):
    p = t.run([ply.PLYFS, "bench", "view", "--quick", "--json", "--history", "--only",
               "stat,write", "--dir", t.path], timeout=200 * SLACK)
    found = json.loads(p.stdout)
    assert set(found["places"]) == {"plyfs", "behind", "restored"}
    for r in found["rows"]:
        print("# %s: %s" % (r["row"], r["ratio"]))
        assert set(r["ratio"]) == set(r["limits"]) == {"behind", "restored"}
    # What did not change stays in the kernel, whatever came before and whatever was restored.
    requests = next(g["requests"] for g in found["groups"] if g["group"] == "stat")
    assert all(asked(n) <= 2 for n in requests.values()), requests


def test_the_quick_bench_of_scale(t):
    p = t.run([ply.PLYFS, "bench", "scale", "--quick", "--json", "--dir", t.path],
              timeout=200 * SLACK)
    rows = {(r["part"], r["what"]): r["value"] for r in json.loads(p.stdout)["rows"]}
    print("# %s" % rows)
    assert rows["idle", "threads"] <= 8
    if not SANITIZED:
        assert rows["idle", "memory, with pages of libraries"] < 30
        assert rows["million", "memory for each file visited"] < 600
        # Beside what each takes: the requests' buffers of a dozen threads, 1 MiB each.
        views = rows["views", "views"] - 1
        assert rows["views", "memory for each view"] < 200 + 16 * 1024 / views
    # A thread waits at each view, and a few more work.
    assert rows["views", "threads with all of them"] <= rows["views", "views"] + 8
    p = t.run([ply.PLYFS, "bench", "scale", "--only", "idle,nosuch"], check=False)
    assert p.returncode == 2 and "nosuch" in p.stderr, p


if __name__ == "__main__":
    ply.main()
