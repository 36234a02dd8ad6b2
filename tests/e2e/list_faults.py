#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 180
"""
One call of the C library after the other fails where a shorter answer would be believed: what cannot
be listed is not empty, and what cannot be read is not taken for something that is not there.
"""
import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

PATIENCE = 60
CALLS = ply.Faults.CALLS


def every(faults, attempt, after=lambda: None):
    """attempt() while each call fails, with an error that says nothing of what is there."""
    with faults.armed(-1, kinds=CALLS):
        attempt()
    calls = faults.ticks
    after()
    for n in range(calls):
        with faults.armed(n, errno.EIO, kinds=CALLS):
            attempt()
        after()
    print("# %d calls; %s" % (calls, faults.told()))


def short_view(t):
    t.tree({"a": "1\n", "dir/b": "2\n"}, "work")
    t.run([ply.PLYFS, "mount", t.at("work")])
    store = ply.Store(t, init=False)
    with ply.View(store, t.at("work")).fd() as fd:
        store.path = ply.ioctl_info(fd)["store"]
    t.stores.append(store)
    return ply.View(store, t.at("work"))


def refused(run, *args):
    p = run(*args, check=False, timeout=PATIENCE)
    assert p.returncode == 1 and p.stderr.startswith("plyfs "), p
    assert p.stderr.count("\n") == 1, p


def test_nothing_is_exported_into_a_directory_that_holds_something(t):
    faults = ply.Faults(t)
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    t.tree({"other": "2"}, "full")
    every(faults, lambda: refused(store.ply, "export", "main", "--dir", t.at("full")))
    assert os.listdir(t.at("full")) == ["other"]


def test_nothing_is_mounted_over_a_directory_that_holds_something(t):
    faults = ply.Faults(t, "plyfs")
    store = t.store()
    store.import_(t.tree({"a": "1"}))
    t.tree({"other": "2"}, "full")
    every(faults, lambda: refused(store.ply, "mount", "--at", t.at("full")))
    assert os.listdir(t.at("full")) == ["other"]


def test_what_a_write_back_compares_with_stays(t):
    faults = ply.Faults(t)
    view = short_view(t)
    base = view.store.json("log")[0]["id"]
    view.write("a", "changed\n")
    view.checkpoint()
    every(faults, lambda: refused(view.store.ply, "drop", base))
    assert base in [s["id"] for s in view.store.json("log")]


def test_a_directory_is_not_imported_over_what_its_view_holds(t):
    faults = ply.Faults(t, "plyfs")
    view = short_view(t)
    view.write("a", "changed\n")
    t.run([ply.PLYFS, "unmount", view.path])

    def attempt():
        p = t.run([ply.PLYFS, "mount", view.path], check=False, timeout=PATIENCE)
        if os.path.ismount(view.path):
            assert view.read("a") == "changed\n", p
        else:
            assert p.returncode == 1, p

    def take_off():
        if os.path.ismount(view.path):
            t.run([ply.PLYFS, "unmount", view.path])

    every(faults, attempt, take_off)


if __name__ == "__main__":
    ply.main(__name__)
