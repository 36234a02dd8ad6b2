#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bench
# timeout: 240
"""The bench runs, says in one line why it does not, and leaves nothing behind; its rivals do what they are for."""
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import venv

SLACK = 20 if ply.sanitized() else 1


def test_a_bench_says_in_one_line_why_it_does_not_run(t):
    for words, code, says in (([], 2, "one of: snapshot, view"), (["nonsense"], 2, "nonsense"),
                              (["scale", "--dir", "absent"], 1, "absent/")):
        p = t.run([ply.PLYFS, "bench", *words], check=False)
        assert p.returncode == code and p.stderr.count("\n") == 1 and says in p.stderr, (words, p)


def test_an_unknown_row_or_option_is_named(t):
    for words, what in ((["view", "--only", "stat,nosuch"], "nosuch"), (["view", "--rounds", "many"], "--rounds"),
                        (["snapshot", "--quick", "--only", "nosuch"], "nosuch"),
                        (["scale", "--only", "idle,"], "no ''"),
                        (["view", "--frobnicate"], "--frobnicate"), (["view", "--plot"], "--plot")):
        p = t.run([ply.PLYFS, "bench", *words], check=False)
        assert p.returncode == 2 and what in p.stderr, p
        assert not p.stdout


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


def test_a_bench_that_is_asked_to_end_while_it_unmounts_goes_on_with_that(t):
    p = subprocess.Popen([ply.PLYFS, "bench", "scale", "--quick", "--only", "views", "--dir", t.path],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    views = lambda: len(ply.mounts_below(t.path, "fuse.plyfs"))
    ply.wait_for("all its views", lambda: views() == 16, 60 * SLACK)
    ply.wait_for("some less", lambda: views() < 15, 60 * SLACK)
    assert views(), "it was faster than we"
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60 * SLACK)
    assert p.returncode == 128 + signal.SIGINT and not out and "Traceback" not in err, (p.returncode, out, err)
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
