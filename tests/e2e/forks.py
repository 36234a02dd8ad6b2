#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fork
# timeout: 400
"""Forks: isolated from their parent and from each other in both directions, many at once."""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

FORKS = 12 if ply.COLLIDE else 64


def test_64_forks_are_isolated_from_all_others_in_both_directions(t):
    source = ply.make_bulk(t.at("source"), 2000 if ply.COLLIDE else 100000, size=200)
    ply.write(os.path.join(source, "shared"), "parent\n")
    view = t.view(source)
    forks = [view.fork("f%02d" % i, t.at("m%02d" % i)) for i in range(FORKS)]
    assert len(view.store.status()["views"]) == FORKS + 1

    # Each writes its own thing into the same places; the parent as well, afterwards.
    for i, f in enumerate(forks):
        f.write("shared", "fork %d\n" % i)
        f.write("own-%d" % i, "x" * i)
        os.unlink(f.at("d000/s0000/f%03d.txt" % (i % 50)))
        os.rename(f.at("d000/s0001"), f.at("d000/moved-%d" % i))
    view.write("shared", "parent again\n")
    view.write("own-parent", "p")

    for i, f in enumerate(forks):
        assert f.read("shared") == "fork %d\n" % i
        assert [n for n in f.ls() if n.startswith("own-")] == ["own-%d" % i]
        gone = "d000/s0000/f%03d.txt" % (i % 50)
        assert not os.path.exists(f.at(gone)) and os.path.exists(view.at(gone))
        assert [n for n in f.ls("d000") if n.startswith("moved")] == ["moved-%d" % i]
    assert view.read("shared") == "parent again\n"
    assert [n for n in view.ls() if n.startswith("own-")] == ["own-parent"]

    # A restore in one shows in no other.
    for i, f in enumerate(forks):
        f.mine = f.checkpoint("mine-%d" % i)
    forks[3].write("shared", "changed\n")
    forks[3].restore(forks[3].mine)
    assert forks[3].read("shared") == "fork 3\n" and forks[4].read("shared") == "fork 4\n"
    # A fork may go to another's state, and stays itself.
    forks[5].restore(forks[6].mine)
    assert forks[5].read("shared") == "fork 6\n"
    forks[5].write("shared", "five in six\n")
    assert forks[6].read("shared") == "fork 6\n"

    pid = view.store.daemon()
    for line in open("/proc/%d/status" % pid):
        if line.startswith(("VmRSS", "Threads")):
            print("# with %d forks mounted: %s" % (FORKS, line.strip()))
    for f in forks:
        f.unmount()
    assert view.read("shared") == "parent again\n"
    view.store.ply("drop", *["f%02d" % i for i in range(FORKS)])


def test_a_restore_to_a_branch_says_when_it_has_more_than_its_last_snapshot(t):
    view = t.view({"a": "1\n"})
    view.store.ply("run", "--fork", "--name", "won", "--", "sh", "-c", "echo 2 >a", cwd=view.path)
    told = "plyfs restore $(plyfs checkpoint --branch won)"
    for words in ["won"], ["won", "--branch", "main"]:  # by ioctl, by the socket
        p = view.store.ply("restore", *words, cwd=view.path)
        assert p.stderr.count("\n") == 1 and told in p.stderr and view.read("a") == "1\n", p
    t.run(["sh", "-c", told], cwd=view.path, env=dict(
        t.env, PATH=os.path.dirname(ply.PLYFS) + ":" + t.env["PATH"]))
    assert view.read("a") == "2\n"
    view.write("a", "3\n")
    for words in ["won"], ["main"], ["won~1"]:  # the branch of the view has nothing more now
        assert not view.store.ply("restore", *words, cwd=view.path).stderr, words


def test_forks_written_at_the_same_time(t):
    view = t.view({"f": "0", "d/g": "0"})
    forks = [view.fork("w%d" % i) for i in range(8)]
    errors = []

    def work(i, f):
        try:
            for n in range(60):
                f.write("f", "%d-%d" % (i, n))
                f.write("d/n%d" % (n % 7), "%d" % i * 3000)
                if n % 10 == 0:
                    snap = f.checkpoint()
                    f.write("f", "wrong")
                    f.restore(snap)
                assert f.read("f") == "%d-%d" % (i, n)
                assert f.read("d/n%d" % (n % 7)) == "%d" % i * 3000
        except BaseException as e:
            errors.append((i, e))
    threads = [threading.Thread(target=work, args=a) for a in enumerate(forks)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    assert not errors, errors
    assert view.read("f") == "0" and view.ls("d") == ["g"]


def test_fork_at_mounts_in_one_go(t):
    view = t.view()
    os.mkdir(t.at("q"))
    out = view.store.out("fork", "quick", "--at", t.at("q"), cwd=view.path)
    assert out.splitlines()[-1] == t.at("q"), out
    assert ply.read(t.at("q/a.txt")) == "one\n"


def test_a_fork_from_an_old_snapshot(t):
    view = t.view({"f": "1"})
    old = view.checkpoint()
    view.write("f", "2")
    view.checkpoint()
    view.store.ply("fork", "--from", old, "past", cwd=view.path)
    past = view.store.mount(branch="past")
    assert past.read("f") == "1" and view.read("f") == "2"


def test_a_fork_of_a_fork_outlives_its_parents(t):
    view = t.view({"f": "1"})
    a = view.fork("a")
    a.write("f", "a")
    b = a.fork("b")
    a.unmount()
    view.store.ply("drop", "a")
    view.unmount()
    view.store.ply("drop", "main")
    view.store.ply("gc")
    assert b.read("f") == "a"
    b.write("g", "x")
    b.checkpoint()
    assert b.ls() == ["f", "g"]


def test_a_mounted_branch_is_not_dropped(t):
    view = t.view()
    view.store.fails("drop", "main", says="mounted|use")
    assert view.read("a.txt") == "one\n"


def test_a_view_that_is_mounted_while_another_is_unmounted_is_not_taken_for_it(t):
    """It gets the number of the device that the other had: the kernel gives them again at once."""
    if ply.sanitized():
        ply.skip("the sanitizer wants to be the first that is loaded")
    view = t.view({"a": "1"})
    for i in range(10):
        gone, new = view.fork("gone-%d" % i, t.at("gone-%d" % i)), t.at("new-%d" % i)
        number = os.stat(gone.path).st_dev
        os.mkdir(new)
        mount = "cd '%s' && '%s' fork new-%d --at '%s' >/dev/null" % (view.path, ply.PLYFS, i, new)
        view.store.ply("unmount", gone.path, env={
            "LD_PRELOAD": os.path.join(ply.BUILD, "tests", "bad_moments.so"), "PLYFS_UNMOUNTED": mount})
        assert os.path.ismount(new), "what was to come between did not"
        if os.stat(new).st_dev == number:
            return
    ply.skip("others were faster with the number")


def test_hard_links_and_open_files_across_a_fork(t):
    view = t.view({"f": "1"})
    os.link(view.at("f"), view.at("g"))
    with open(view.at("f"), "a") as f:
        fork = view.fork("b")
        f.write("2")
        f.flush()
        assert view.read("g") == "12"
        assert fork.read("f") == fork.read("g") == "1"
        fork.write("g", "x")
        assert fork.read("f") == "x" and view.read("f") == "12"


if __name__ == "__main__":
    ply.main()
