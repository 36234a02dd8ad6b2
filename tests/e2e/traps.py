#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: traps
# timeout: 180
"""Where other ways to go back (timestamps, git, copies, overlays) fail: each trap a test."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def test_an_edit_of_the_same_size_within_the_same_second_is_not_missed(t):
    view = t.view({"f": "aaaa"})
    when = os.stat(view.at("f")).st_mtime_ns
    first = view.checkpoint()
    ids = [first]
    for i in range(20):
        with open(view.at("f"), "r+") as f:
            f.write("%04d" % i)
        os.utime(view.at("f"), ns=(when, when))  # not even the time shows it
        ids.append(view.checkpoint())
    assert len(set(ids)) == 21
    for i in reversed(range(20)):
        view.restore(ids[i + 1])
        assert view.read("f") == "%04d" % i
    view.restore(first)
    assert view.read("f") == "aaaa"
    assert view.store.out("diff", ids[1], ids[2]) == "M\tf"


def test_a_restore_removes_what_came_later(t):
    view = t.view({"keep": "1"})
    first = view.checkpoint()
    view.write("late/deep/er/file", "x")
    view.write(".hidden", "x")
    os.mkdir(view.at("empty"))
    os.mkfifo(view.at("fifo"))
    os.symlink("nowhere", view.at("dangling"))
    view.restore(first)
    assert view.ls() == ["keep"], view.ls()


def git(t, view, *args):
    return t.run(["git", *args], cwd=view.path).stdout


def test_ignored_and_untracked_files_and_dot_git_come_back(t):
    view = t.view({".gitignore": "build/\n*.o\n", "a.c": "int a;\n"})
    git(t, view, "init", "-q", "-b", "main")
    git(t, view, "add", ".")
    git(t, view, "commit", "-q", "-m", "first")
    view.write("build/out.bin", "ignored")
    view.write("x.o", "ignored")
    view.write("untracked", "u")
    os.mkdir(view.at("emptydir"))
    before = view.digest()
    snap = view.checkpoint()
    head = git(t, view, "rev-parse", "HEAD")
    git(t, view, "clean", "-fdxq")
    view.write("a.c", "int b;\n")
    git(t, view, "commit", "-qam", "second")
    git(t, view, "checkout", "-q", "-b", "elsewhere")
    git(t, view, "gc", "-q")
    subprocess.run(["rm", "-rf", view.at(".git/refs")], check=True)
    view.restore(snap)
    assert view.digest() == before
    assert git(t, view, "rev-parse", "HEAD") == head
    assert git(t, view, "status", "--porcelain") == "?? untracked\n"
    git(t, view, "fsck", "--strict")


def test_a_parents_later_writes_never_show_in_a_fork(t):
    view = t.view({"f": "original", "d/g": "original"})
    snap = view.checkpoint()
    fork = view.fork("child")
    view.write("f", "parent")
    view.write("new", "parent")
    os.unlink(view.at("d/g"))
    assert fork.read("f") == "original" and fork.ls() == ["d", "f"]
    assert fork.read("d/g") == "original"
    fork.write("f", "child")
    assert view.read("f") == "parent"
    view.restore(snap)
    assert view.read("f") == "original" and fork.read("f") == "child"


def test_a_fork_of_changed_but_unsaved_state_holds_the_changes(t):
    view = t.view({"f": "1"})
    view.checkpoint()
    view.write("f", "unsaved")
    fork = view.fork("child")
    assert fork.read("f") == "unsaved"


def test_times_never_read_1970(t):
    view = t.view()
    os.mkdir(view.at("newdir"))
    view.write("newdir/f", "1")
    os.symlink("f", view.at("newdir/l"))
    snap = view.checkpoint()
    view.write("newdir/g", "2")
    view.restore(snap)
    fork = view.fork("b")
    for v in (view, fork, view.store.mount(snapshot=snap)):
        for folder, dirs, files in os.walk(v.path):
            for name in [".", *dirs, *files]:
                s = os.lstat(os.path.join(folder, name))
                for when in (s.st_atime, s.st_mtime, s.st_ctime):
                    assert when > 1e9, (folder, name, when)


def test_no_host_file_per_chunk_and_no_descriptor_per_inode(t):
    view = t.view(ply.make_bulk(t.at("source"), 8000, size=9000))
    for folder, dirs, files in os.walk(view.path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                f.read(1)
    view.checkpoint()
    for i in range(300):
        view.write("d000/s0000/f%03d.txt" % (i % 50), "x" * i)
        view.checkpoint()
    view.store.ply("checkpoint", "--sync", view.path)
    files = sum(len(f) for _, _, f in os.walk(view.store.path))
    assert files < 40, "%d files in the store" % files
    pid = view.store.daemon()
    fds = len(os.listdir("/proc/%d/fd" % pid))
    assert fds < 120, "the daemon holds %d descriptors" % fds


def test_many_open_files_do_not_cost_descriptors_in_the_daemon(t):
    view = t.view(ply.make_bulk(t.at("source"), 800))
    pid = view.store.daemon()
    before = len(os.listdir("/proc/%d/fd" % pid))
    open_files = [open(os.path.join(folder, n), "rb")
                  for folder, _, names in os.walk(view.path) for n in names]
    for f in open_files:
        f.read(1)
    after = len(os.listdir("/proc/%d/fd" % pid))
    for f in open_files:
        f.close()
    assert after - before < 70, (before, after)


def test_nothing_changed_gives_the_same_id(t):
    view = t.view()
    first = view.checkpoint()
    view.read("a.txt")
    view.ls("dir")
    assert view.checkpoint() == first
    view.write("a.txt", "x")
    assert view.checkpoint() != first


def test_make_sees_exactly_what_is_out_of_date_after_a_restore(t):
    ply.need_tool("make")
    view = t.view({"Makefile": "out: in\n\tcp in out\n", "in": "1\n"})
    make = lambda: t.run(["make"], cwd=view.path).stdout
    assert "cp in out" in make()
    built = view.checkpoint()
    assert "up to date" in make()
    view.write("in", "2\n")
    edited = view.checkpoint()
    assert "cp in out" in make()
    view.restore(built)
    assert "up to date" in make()
    view.restore(edited)
    assert "cp in out" in make()
    assert view.read("out") == "2\n"


if __name__ == "__main__":
    ply.main()
