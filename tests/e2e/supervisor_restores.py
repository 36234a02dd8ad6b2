#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: crash
# timeout: 240
"""
Checkpoints and restores under way when a daemon dies are over when they are answered, and what was open
of any state goes on.
"""
import errno
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
from deaths import Killer, kill, over, seed_of_run, supervised


def test_checkpoints_under_way_are_made_once(t):
    view, seed = supervised(t), seed_of_run()
    count = 150
    with Killer(view, seed) as killer:
        ids = []
        for n in range(count):
            view.write("n", str(n))
            ids.append(view.checkpoint("c%d" % n))
    print("# %d kills" % killer.kills)
    assert len(set(ids)) == count
    log = {s["label"]: s["id"] for s in view.store.json("log")}
    assert [log["c%d" % n] for n in range(count)] == ids
    made = [s for s in view.store.json("log") if (s["label"] or "").startswith("c")]
    assert len(made) == count, len(made)


def restored_under_kills(t, rounds, imports=0):
    """Among four states, of which some are of other lineages: those are told by epoch."""
    view, seed = supervised(t), seed_of_run()
    rng = random.Random(seed)
    states, trees = [], []
    for n in range(4):
        for i in range(6):
            view.write("f%d" % i, "state %d of f%d\n" % (n, i))
        view.write("only%d/x" % n, str(n))
        if n:
            os.rename(view.at("only%d" % (n - 1)), view.at("was%d" % (n - 1)))
        states.append(view.checkpoint("s%d" % n))
        trees.append(ply.treelist(view.path))
        if n < imports:
            copy = t.at("copy%d" % n)
            ply.run(["cp", "-a", view.path, copy])
            states[n] = view.store.import_(copy, "--branch", "copy%d" % n)
    at, modes = 3, set()
    here = os.open(view.at("dir/sub"), os.O_RDONLY | os.O_DIRECTORY)
    with Killer(view, seed) as killer, open(view.at("f0")) as first:
        for n in range(rounds):
            to = rng.randrange(4)
            if rng.random() < 0.2 and to != at:
                before = ply.treelist(view.path)
                view.restore(states[to])
                view.undo()
                assert ply.treelist(view.path) == before
            answer = view.restore(states[to])
            assert answer["id"] == states[to], answer
            at = to
            modes.add(answer["mode"])
            for i in range(6):
                assert view.read("f%d" % i) == "state %d of f%d\n" % (to, i)
            assert os.path.exists(view.at("only%d" % to))
            if rng.random() < 0.3:
                assert ply.treelist(view.path) == trees[to]
            assert os.listdir(here) == ["c.txt"]
        assert os.fstat(first.fileno()).st_ino
    os.close(here)
    print("# %d kills" % killer.kills)
    assert (1 in modes) == bool(imports), modes
    view.store.ply("check", "--read-data")


def test_restores_by_names_under_way_are_over_when_answered(t):
    restored_under_kills(t, 400 if ply.LONG else 40)


def test_restores_by_epoch_under_way_are_over_when_answered(t):
    restored_under_kills(t, 400 if ply.LONG else 40, imports=2)


def test_descriptors_of_what_a_restore_replaced_keep_their_bytes(t):
    view = supervised(t)
    first = view.checkpoint()
    view.write("a.txt", "later\n")
    view.write("new", "new\n")
    with open(view.at("a.txt")) as changed, open(view.at("new")) as vanished, \
            open(view.at("dir/b.txt"), "a+") as same, open(view.at("new"), "a+") as lost:
        view.restore(first)
        lost.write("nobody will read this\n")
        lost.flush()
        kill(view)
        for f, want in ((changed, "later\n"), (same, "two\n")):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            f.seek(0)
            assert f.read() == want, want
        same.write("appended\n")
        same.flush()
        assert view.read("dir/b.txt") == "two\nappended\n"
        assert view.read("a.txt") == "one\n"
        # What was written to a replaced file after the restore was nowhere but in the daemon.
        os.posix_fadvise(vanished.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            vanished.read()
            assert False, "bytes of which some are wrong"
        except OSError as e:
            assert e.errno == errno.EIO, e


def test_of_what_has_no_name_no_older_bytes_are_read(t):
    """No snapshot is made of a state that only such files tell from the one before."""
    view = supervised(t)
    first = view.checkpoint()
    old = os.open(view.at("old"), os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink(view.at("old"))
    os.write(old, b"one")
    second = view.checkpoint()
    os.pwrite(old, b"two", 0)
    new = os.open(view.path, os.O_RDWR | os.O_TMPFILE, 0o600)
    os.write(new, b"new")
    assert view.restore(first)["left"] == second
    kill(view)
    for fd in old, new:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        ply.raises(errno.EIO, os.pread, fd, 3, 0)
        os.close(fd)


def descriptors_live_through_restores(t, many, ends):
    """
    Restores leave states that no undo wants any more; who has files of them open reads what was in
    them, also those that all states have alike and that nobody looked at since.
    """
    view = supervised(t)
    first = view.checkpoint()
    held = [(open(view.at(name)), ply.read(view.at(name))) for name in ("a.txt", "dir/b.txt")]
    for i in range(3):
        for n in range(many):
            view.write("many%d" % n, "%d\n" % i)
        view.write("c.txt", "state %d\n" % i)
        held.append((open(view.at("c.txt")), "state %d\n" % i))
        assert view.restore(first)["mode"] == (many > 2000), "names 0, epoch 1"
    assert [s["auto"] for s in view.store.json("log")].count(True) == 1
    last = view.checkpoint()
    view.write("c.txt", "at last\n")
    held.append((open(view.at("c.txt")), "at last\n"))
    dropped = view.checkpoint("dropped")
    view.restore(last)
    view.store.ply("drop", dropped)
    for _ in range(2):
        ends(view)
        assert dropped not in [s["id"] for s in view.store.json("log")]
        view.store.fails("restore", "@dropped", view.path, says="no snapshot")
        for f, want in held:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            f.seek(0)
            assert f.read() == want, want
    for f, _ in held:
        f.close()
    assert {s["id"] for s in view.store.json("log") if not s["auto"]} == {first, last}
    view.unmount()
    assert view.store.ply("check", "--read-data").returncode == 0


def test_descriptors_live_through_several_restores_and_a_death(t):
    descriptors_live_through_restores(t, 20, kill)


def test_and_through_large_ones(t):
    descriptors_live_through_restores(t, 2500, kill)


def test_and_through_another_program(t):
    descriptors_live_through_restores(t, 2500, lambda view: view.store.ply("daemon", "--replace"))


def test_a_snapshot_that_is_shown_goes_on_and_so_does_a_second_branch(t):
    view = supervised(t)
    first = view.checkpoint()
    fork = view.fork("idea")
    fork.write("b", "idea")
    view.write("a.txt", "x")
    old = view.store.mount(snapshot=first)
    with open(old.at("dir/b.txt")) as f:
        kill(view)
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert f.read() == "two\n"
    assert old.read("a.txt") == "one\n" and fork.read("b") == "idea" and view.read("a.txt") == "x"
    os.mkdir(t.at("twice"))
    view.store.fails("mount", "--at", t.at("twice"), says="mounted already")
    over(view, old, fork)


def test_a_view_goes_on_though_the_state_before_its_restore_is_gone(t):
    view = supervised(t, {"%d" % i: "" for i in range(3000)})  # more than are told by name
    first = view.checkpoint()
    for name in os.listdir(view.path):
        os.unlink(view.at(name))
    view.write("late", "x")
    restored = view.restore(first)
    assert restored["mode"] == 1  # by epoch
    view.store.ply("drop", restored["left"])
    kill(view)
    assert len(os.listdir(view.path)) == 3000


if __name__ == "__main__":
    ply.main(__name__)
