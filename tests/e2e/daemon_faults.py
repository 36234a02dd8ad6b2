#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 120
"""
In a running daemon one call of the system or allocation after the other fails while a verb runs: the
verb does what it should or says in words why not, the daemon goes on, and the store stays whole.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

CALLS = range(3000) if ply.LONG else range(0, 1500, 11)  # which of them fail, in each verb
PATIENCE = 60


def asked(store, n, *args):
    """The verb while its n-th call fails: 0 and its output, or 1 and words."""
    p = store.ply(*args, check=False, env={"PLYFS_TEST_FAULT": str(n)}, timeout=PATIENCE)
    shown = "%s, call %d: exit %d\n%s%s" % (args, n, p.returncode, p.stdout, p.stderr)
    assert p.returncode in (0, 1), shown
    assert p.returncode == 0 or p.stderr.startswith("plyfs "), shown
    assert not p.stderr or len(p.stderr.splitlines()) == 1, shown
    return p.stdout if p.returncode == 0 else None


def made(t):
    view = t.view()
    for i in range(8):
        view.write("f%d" % i, "x" * i)
        view.checkpoint("c%d" % i)
    view.store.ply("checkpoint", "--sync", view.path)
    return view, view.store


def shape(value):
    """What of a status does not change by asking."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return [shape(v) for v in value] if isinstance(value, list) else type(value).__name__


def test_json_is_whole_or_an_error(t):
    view, store = made(t)
    failed = 0
    for args in (("log", "--json"), ("tree", "--json"), ("status", "--json")):
        calm = store.json(*args[:-1])
        for n in CALLS:
            out = asked(store, n, *args)
            failed += out is None
            if out is None:
                continue
            got = json.loads(out)
            if args[0] == "status":
                assert shape(got) == shape(calm), (n, out)
            else:
                assert got == calm, (args, n, out)
    if not failed:
        ply.skip("a release build: nothing fails on demand")
    print("# %d failed" % failed)
    assert view.read("f3") == "xxx"
    store.ply("check", "--read-data")


def test_what_changes_is_done_or_not_done(t):
    view, store = made(t)
    source = ply.make_tree(t.at("source"), {"a/b": "1", "c": "2"})
    numbers = range(400) if ply.LONG else [*range(12), *range(12, 160, 13)]
    outcomes = []
    for n in numbers:
        view.write("n", str(n))
        for args in (("checkpoint", "--branch", "main"), ("fork", "--from", "main", "fork%d" % n),
                     ("diff", "@c3", "main"), ("import", "--branch", "import%d" % n, source),
                     ("restore", "--branch", "main", "@c3"), ("undo", "--branch", "main"),
                     ("drop", "fork%d" % n), ("gc",),
                     ("export", "main", "--tar", t.at("tar%d" % n))):
            outcomes.append(asked(store, n, *args) is None)
        status = store.status()
        assert status["daemon"]["deaths"] == 0, store.log_tail()
        if status["sizes"]["failed"]:
            store.ply("unmount", view.path)  # it writes nothing more until it is opened again
            store.stop()
            view = store.mount(at=view.path)
        assert view.read("f3") == "xxx"
        view.write("still", str(n))
    print("# %d of %d failed" % (sum(outcomes), len(outcomes)))
    store.ply("check", "--read-data")
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")


if __name__ == "__main__":
    ply.main(__name__)
