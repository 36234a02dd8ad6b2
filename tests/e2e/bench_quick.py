#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bench
# timeout: 360
# serial: yes
"""
The bench runs and finds all that it is to find; what is counted (requests, memory, threads) is what it is to
be. How long things take is shown by plyfs bench: machines of all kinds run this, busy with other things.
"""
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import venv

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


def test_a_bench_says_in_one_line_why_it_does_not_run(t):
    for words, code, says in (([], 2, "one of: snapshot, view"), (["nonsense"], 2, "nonsense"),
                              (["scale", "--dir", "absent"], 1, "absent/")):
        p = t.run([ply.PLYFS, "bench", *words], check=False)
        assert p.returncode == code and p.stderr.count("\n") == 1 and says in p.stderr, (words, p)


def test_a_bench_leaves_the_view_alone_in_which_it_is_called(t):
    view = t.view({"f": "1"})
    before = view.store.ply("log").stdout
    p = t.run([ply.PLYFS, "bench", "scale", "--quick", "--json", "--only", "idle", "--dir", t.path],
              cwd=view.path, timeout=60 * SLACK)
    assert json.loads(p.stdout), p
    assert view.store.ply("log").stdout == before


def test_a_bench_that_is_asked_twice_to_end_unmounts(t):
    p = subprocess.Popen([ply.PLYFS, "bench", "view", "--quick", "--dir", t.path],
                         stderr=subprocess.PIPE, text=True)
    ply.wait_for("its view", lambda: ply.mounts_below(t.path, "fuse.plyfs"), 60 * SLACK)
    p.send_signal(signal.SIGINT)
    # Again while it cleans up, as timeout(1) does, and who presses Ctrl-C once more.
    ply.wait_for("a mount less", lambda: p.poll() is not None or
                 not ply.mounts_below(t.path, "fuse.plyfs"), 60 * SLACK)
    p.send_signal(signal.SIGTERM)
    p.send_signal(signal.SIGTERM)
    err = p.communicate(timeout=60 * SLACK)[1]
    assert p.returncode == 128 + signal.SIGINT and "Traceback" not in err, (p.returncode, err)
    left = ply.mounts_below(t.path) + [n for n in os.listdir(t.path) if "bench" in n]
    assert not left, left


def test_the_quick_bench_of_the_servers(t):
    # Our own stands for the reference, which takes its time and is not always to be had.
    reference = os.path.join(ply.BUILD, "tools", "swerex-remote")
    real = os.path.join(venv.place(), "bin", "swerex-remote")
    if ply.LONG and os.path.exists(real):
        reference = real
    p = t.run([ply.PLYFS, "bench", "serve", "--quick", "--json", "--dir", t.path,
               "--reference", reference], timeout=230 * SLACK)
    found = {(r["server"], r["what"]): r for r in json.loads(p.stdout)["rows"]}
    for what in ("alive", "command", "anew", "create", "close", "interrupt", "execute", "write", "read",
                 "upload", "output"):
        print("# %s: %s us" % (what, [found[s, what].get("p50_us") for s in
                                      ("serve", "swerex", "reference")]))
        for server in ("serve", "swerex"):
            assert found[server, what]["p50_us"] > 0, (server, what)
    for server in ("serve", "swerex"):
        assert found[server, "many"]["per_second"] > 0
    assert not ply.mounts_below(t.path)


def test_a_bench_without_its_reference_says_so(t):
    p = t.run([ply.PLYFS, "bench", "serve", "--quick", "--dir", t.path,
               "--reference", t.at("nowhere")], check=False)
    assert p.returncode == 1
    assert p.stderr == "bench: there is no program '%s'\n" % t.at("nowhere"), p.stderr


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
    found = view_bench(t, "--only", rows, "--plot", t.at("table.svg"))
    for place, why in found["left_out"]:
        print("# %s is left out: %s" % (place, why))
    assert {"plyfs", "disk", "floor"} <= set(found["places"]), found["left_out"]
    groups = {g["group"]: g for g in found["groups"]}
    assert set(groups) == set(rows.split(","))
    for r in found["rows"]:
        print("# %s: %s ms, %s" % (r["row"], r["ms"], r["ratio"]))
        assert all(r["ms"][place] > 0 for place in found["places"]), r
    # What is warm asks for nothing. Unless somebody has the machine forget its files meanwhile
    # (drop_caches, too little memory): not every time.
    cold = not_warm(found)
    for _ in range(2):
        if cold:
            print("# not warm: %s" % cold)
            cold = not_warm(view_bench(t, "--only", ",".join(WARM)))
    assert not cold, cold
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


def test_the_quick_view_bench_with_and_without_a_journal(t):
    p = t.run([ply.PLYFS, "bench", "view", "--quick", "--json", "--journal", "--only",
               "overwrite,storm", "--dir", t.path], timeout=200 * SLACK)
    found = json.loads(p.stdout)
    assert list(found["places"]) == ["journalless", "plyfs"]
    for r in found["rows"]:
        print("# %s: %s" % (r["row"], r["ratio"]))
        assert set(r["ratio"]) == set(r["limits"]) == {"plyfs"}
        (with_it,), (without,) = r["all_ms"]["plyfs"], r["all_ms"]["journalless"]
        assert abs(r["ratio"]["plyfs"] * without / with_it - 1) < 0.02  # all are rounded


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


def test_an_unknown_row_or_option_is_named(t):
    for words, what in ((["view", "--only", "stat,nosuch"], "nosuch"), (["view", "--rounds", "many"], "--rounds"),
                        (["snapshot", "--quick", "--only", "nosuch"], "nosuch"),
                        (["scale", "--only", "idle,"], "no ''"),
                        (["view", "--frobnicate"], "--frobnicate"), (["view", "--plot"], "--plot")):
        p = t.run([ply.PLYFS, "bench", *words], check=False)
        assert p.returncode == 2 and what in p.stderr, p
        assert not p.stdout


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
