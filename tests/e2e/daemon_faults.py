#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 180
"""
One call of the C library after the other fails in a running daemon, and in the plyfs program, while
a verb runs: the verb does what it should or says in words why not, the daemon goes on, and the
store stays whole.
What the disk loses before it was saved costs its file and nothing else.
"""
import errno
import json
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

PATIENCE = 60


def asked(store, faults, n, *args):
    """The verb while its n-th call fails: 0 and its output, or 1 and words."""
    with faults.armed(n, (errno.EIO, errno.ENOSPC)[n % 2]):
        p = store.ply(*args, check=False, timeout=PATIENCE)
    shown = "%s, call %d (%s): exit %d\n%s%s" % (args, n, faults.what, p.returncode, p.stdout,
                                                 p.stderr)
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


def log(store):
    return ply.read(os.path.join(store.path, "daemon.log"))


def same(args, out, calm):
    if "--json" in args:
        out, calm = json.loads(out), json.loads(calm)
    if args[0] == "status":
        return shape(out) == shape(calm) if "--json" in args else len(out.splitlines()) > 3
    if args[0] == "check":
        out, calm = (re.sub(r"\d", "", x) for x in (out, calm))
    return out == calm


def tell(t, program, questions):
    faults = ply.Faults(t, program)
    view, store = made(t)
    failed, calls, wrong = 0, [], []
    for args in questions:
        calm = asked(store, faults, -1, *args)
        assert calm is not None, args
        ticks = faults.ticks
        calls.append("%s %d" % (" ".join(args), ticks))
        for n in range(ticks):
            try:
                out = asked(store, faults, n, *args)
                failed += out is None
                assert out is None or same(args, out, calm), (args, n, faults.what, out, calm)
            except AssertionError as e:
                wrong.append(str(e))
    print("# calls: " + ", ".join(calls))
    print("# %d told; %s" % (failed, faults.told()))
    assert not wrong, "\n".join(wrong)
    assert view.read("f3") == "xxx"
    assert store.status()["daemon"]["deaths"] == 0, store.log_tail()
    store.ply("check", "--read-data")


QUESTIONS = (("log", "--json"), ("tree", "--json"), ("status", "--json"), ("log",), ("tree",),
             ("status",), ("diff", "@c3", "main"), ("diff", "--patch", "@c3", "main"),
             ("diff", "--stat", "@c3", "main"), ("dump", "@c3"), ("check",),
             ("check", "--read-data"))


def test_an_answer_is_whole_or_an_error(t):
    tell(t, "plyfsd", QUESTIONS)


def test_so_it_is_when_the_program_fails(t):
    tell(t, "plyfs", QUESTIONS)


def changes(t, view, source, n):
    fork, new = "fork%d" % n, "import%d" % n
    return (("checkpoint", "--branch", "main"), ("fork", "--from", "main", fork),
            ("mount", "--branch", fork, "--at", t.at("other")), ("unmount", t.at("other")),
            ("import", "--branch", new, source), ("import", "--branch", new + "t", t.at("tar")),
            ("restore", "--branch", "main", "@c3"), ("undo", "--branch", "main"), ("drop", fork),
            ("gc",), ("export", "main", "--tar", t.at("tar%d" % n)),
            ("export", "main", "--dir", t.at("dir%d" % n)))


def change(t, program, numbers):
    faults = ply.Faults(t, program)
    view, store = made(t)
    source = ply.make_tree(t.at("source"), {"a/b": "1", "c": "2"})
    os.mkdir(t.at("other"))
    store.ply("export", "main", "--tar", t.at("tar"))
    outcomes, wrong = [], []
    for n in numbers:
        view.write("n", str(n))
        for args in changes(t, view, source, n):
            if args[0] == "unmount" and not os.path.ismount(args[1]):
                continue
            try:
                outcomes.append(asked(store, faults, n, *args) is None)
            except AssertionError as e:
                wrong.append(str(e))
        if os.path.ismount(t.at("other")):
            store.ply("unmount", t.at("other"))
        for name in ("tar%d", "dir%d"):
            ply.remove(t.at(name % n))
        if store.status()["sizes"]["failed"]:
            store.ply("check", "--read-data")
            view.unmount()  # it writes nothing more until it is opened again
            store.stop()
            view = store.mount(at=view.path)
        assert view.read("f3") == "xxx"
        view.write("still", str(n))
        assert store.status()["daemon"]["deaths"] == 0, log(store)
    print("# %d of %d failed; %s" % (sum(outcomes), len(outcomes), faults.told()))
    assert not wrong, "\n".join(wrong)
    store.ply("check", "--read-data")
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")


def test_what_changes_is_done_or_not_done(t):
    rng = ply.seeded()
    change(t, "plyfsd", range(400) if ply.LONG else sorted(rng.sample(range(250), 12)))


def test_so_it_is_when_the_program_that_asks_fails(t):
    change(t, "plyfs", range(60))


SIZE = 20000


def cut_stage(store, text):
    """Nothing from `text` on can be read of the stage any more. False: it is saved already."""
    end = time.monotonic() + 1
    while time.monotonic() < end:  # what was answered may be copied there some ms later
        for name in os.listdir(os.path.join(store.path, "stage")):
            if name == "behind":
                continue
            path = os.path.join(store.path, "stage", name)
            at = ply.read(path).find(text)
            if at >= 0:
                os.truncate(path, at)
                return True
        time.sleep(0.001)
    return False


def expect_unreadable(view, name):
    try:
        view.read(name)
    except OSError as e:
        assert e.errno == errno.EIO, e
    else:
        raise AssertionError("%s can be read" % name)


def test_slots_that_the_disk_lost_cost_a_request_each_at_most(t):
    view = t.view({"keep": "k"})
    store, big, lost, files = view.store, "b" * (1 << 20), 0, {}
    for n in range(8):  # a reader that has much to do has a slot
        view.write("warm", big)
    store.ply("checkpoint", "--sync", view.path)  # what is still in a slot would be lost with it
    pid = store.daemon()
    os.truncate(os.path.join(store.path, "stage", "behind"), 0)
    for n in range(30):
        try:
            view.write("f%d" % n, big)
            files["f%d" % n] = big
        except OSError as e:
            assert e.errno == errno.EIO, e
            lost += 1
    assert lost <= 4, lost
    for name, data in files.items():
        assert view.read(name) == data
    view.checkpoint("whole")
    assert store.daemon() == pid
    store.ply("check", "--read-data")


def test_a_file_that_the_disk_lost_is_named_and_holds_up_no_other(t):
    view = t.view({"keep": "k"})
    store = view.store
    for i in range(10):  # the sealer may come first
        good, bad, mark = "good%d" % i, "bad%d" % i, "<bad %d>" % i
        view.write(good, "g" * SIZE)
        view.write(bad, mark + "b" * SIZE)
        if not cut_stage(store, mark):
            continue
        p = store.ply("checkpoint", "--sync", view.path, check=False)
        if p.returncode:
            break
    else:
        raise AssertionError("each time the sealer came first")

    def expect_named():
        for args in ([view.path], ["--branch", "main"]):
            words = store.fails("checkpoint", "--sync", *args, says=["'%s'" % bad])
            assert len(words.splitlines()) == 1, words

    expect_named()
    ply.wait_for("what cannot be read to be given up", lambda: "are given up" in store.log_tail(), 60)
    expect_named()
    view.write("later", "l" * SIZE)
    expect_named()
    log = ply.read(os.path.join(store.path, "daemon.log"))
    assert log.count("are given up") == 1 and log.count("saving failed") == 1, log

    store.kill()
    view.unmount()
    view = store.mount(at=view.path)
    assert view.read(good) == "g" * SIZE and view.read("later") == "l" * SIZE
    expect_unreadable(view, bad)
    store.ply("checkpoint", "--sync", view.path)  # nothing was lost since this start
    out = store.out("check", "--read-data")
    assert bad in out and "lost" in out, out
    os.unlink(os.path.join(view.path, bad))
    store.ply("checkpoint", "--sync", view.path)


if __name__ == "__main__":
    ply.main(__name__)
