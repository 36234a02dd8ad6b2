#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: live
# timeout: 240
"""
What processes living in a view see when it is restored under them: each sentence of the contract
(a regular file that differs is like one replaced by rename, everything else stays the same
object) is a test here.
"""
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

DEEP = {"one/two/three/here.txt": "old\n", "one/two/other.txt": "o\n", "same.txt": "same\n",
        "top.txt": "t\n"}


def shell(t, cwd):
    """An interactive-like shell; ask(command) gives its output lines."""
    p = subprocess.Popen(["sh"], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, bufsize=1, env=t.env)
    t.clean.append(lambda: (p.kill(), p.wait()))

    def ask(command):
        p.stdin.write(command + "\necho '<end>'\n")
        p.stdin.flush()
        lines = []
        for line in p.stdout:
            if line == "<end>\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError("the shell ended: " + "".join(lines))
    assert ask(":") == ""  # it says so if its directory is gone when it begins: that is over
    return ask


def all_know_where(view, asks):
    """Shells, by the path in the view that each sits in."""
    for where, ask in asks.items():
        told = ask("readlink /proc/self/cwd")
        assert told == view.at(where) + "\n", told


def bulk_change(view, n):
    """n more files that differ between the states."""
    if n:
        ply.make_bulk(view.at("bulk"), n, size=40)


def cases(base):
    """Makes two facts of one: with few changes and with many between the states."""
    def wrap(f):
        g = globals()
        g["test_%s_after_few_changes" % base] = lambda t: f(t, 0)
        g["test_%s_after_many_changes" % base] = lambda t: f(t, 3000)
        return f
    return wrap


@cases("a_shell_three_levels_down_stays_where_it_is")
def _(t, n):
    view = t.view(DEEP)
    ask = shell(t, view.at("one/two/three"))
    first = view.checkpoint()
    assert ask("cat here.txt") == "old\n"
    view.write("one/two/three/here.txt", "new\n")
    view.write("one/two/three/more.txt", "m\n")
    bulk_change(view, n)
    assert ask("cat here.txt; ls") == "new\nhere.txt\nmore.txt\n"
    view.restore(first)
    assert ask("cat here.txt; ls") == "old\nhere.txt\n"
    assert ask("pwd -P").strip() == os.path.realpath(view.at("one/two/three"))
    assert ask("cat ../other.txt; cd .. && ls && cd three && cat here.txt") == \
        "o\nother.txt\nthree\nold\n"
    assert ask("echo x > made.txt && cat made.txt") == "x\n"
    assert view.read("one/two/three/made.txt") == "x\n"


@cases("a_shell_in_a_directory_that_was_moved_stays_in_it")
def _(t, n):
    view = t.view(DEEP)
    ask = shell(t, view.at("one/two/three"))
    first = view.checkpoint()
    os.rename(view.at("one/two"), view.at("one/moved"))
    bulk_change(view, n)
    assert ask("/bin/pwd -P").strip() == view.at("one/moved/three")
    view.restore(first)
    assert ask("cat here.txt ../other.txt") == "old\no\n"
    # getcwd(2) asks nobody: what it tells follows when the name is walked by.
    os.stat(view.at("one/two/three"))
    assert ask("/bin/pwd -P").strip() == view.at("one/two/three")


@cases("a_shell_in_a_directory_that_was_moved_is_told_where_it_is")
def _(t, n):
    """By getcwd(2), which asks nobody: whoever restores has walked by the names before."""
    view = t.view({**DEEP, "a/in": "a\n", "b/in": "b\n"})
    three, a, b = (shell(t, view.at(d)) for d in ("one/two/three", "a", "b"))
    first = view.checkpoint()
    os.makedirs(view.at("far/away"))
    os.rename(view.at("one/two"), view.at("far/away/moved"))
    os.rename(view.at("a"), view.at("c"))
    os.rename(view.at("b"), view.at("a"))
    os.rename(view.at("c"), view.at("b"))
    bulk_change(view, n)
    moved = view.checkpoint()

    def told(deep, at_a, at_b):
        assert three("/bin/pwd -P; cat here.txt") == view.at(deep) + "/three\nold\n", three("/bin/pwd -P")
        assert a("/bin/pwd -P; cat in") == view.at(at_a) + "\na\n", a("/bin/pwd -P")
        assert b("/bin/pwd -P; cat in") == view.at(at_b) + "\nb\n", b("/bin/pwd -P")

    before, after = ("one/two", "a", "b"), ("far/away/moved", "b", "a")
    told(*after)
    view.store.ply("restore", first, cwd=view.at("one"))
    told(*before)
    view.store.ply("undo", view.path)
    told(*after)
    # From a directory that moves itself.
    view.store.ply("restore", first, cwd=view.at("far/away/moved/three"))
    told(*before)
    # From outside, through the store's socket.
    view.store.ply("restore", "--branch", "main", moved)
    told(*after)
    view.store.ply("undo", "--branch", "main")
    told(*before)
    assert three("%s restore %s 2>&1" % (ply.PLYFS, moved)) == ""
    told(*after)


def test_a_part_of_a_view_that_is_mounted_elsewhere_tells_where_a_moved_directory_is(t):
    ply.need_root()
    view = t.view({**DEEP, "top/a/in": "a\n"})
    part = t.at("part")
    os.mkdir(part)
    t.run(["mount", "--bind", view.at("top"), part])
    t.clean.append(lambda: t.run(["umount", part]))
    first = view.checkpoint()
    above, ask = shell(t, view.at("one/two")), shell(t, part + "/a")
    os.rename(view.at("top/a"), view.at("top/b"))
    os.rename(view.at("one"), view.at("uno"))
    view.store.ply("restore", first, cwd=part + "/b")
    assert ask("/bin/pwd -P; cat in") == part + "/a\na\n"
    # Whom nobody can look at from there is told when somebody walks by.
    assert above("cat other.txt") == "o\n"
    assert os.path.isdir(view.at("one/two")) and above("/bin/pwd -P") == view.at("one/two") + "\n"


def test_all_moved_directories_are_listed_to_who_asks(t):
    names = ["%03d%s" % (i, "n" * 252) for i in range(100)]  # 25 KB: one answer has 12
    view = t.view({"in/%s/f" % name: "f" for name in names})
    first = view.checkpoint()
    for name in names:
        os.rename(view.at("in", name), view.at("in", name[:3]))
    view.restore(first)
    view.write("more", "m")
    view.restore(first)  # somebody else does, before it was asked what the first one moved
    with view.fd() as fd:
        assert sorted(ply.ioctl_moved(fd)) == ["in/" + name for name in names]
    os.rename(view.at("in", names[0]), view.at("later"))
    os.unlink(view.at("in", names[1], "f"))
    os.rmdir(view.at("in", names[1]))
    for where, want in ("", ["in/" + name for name in names[2:]] + ["later"]), ("in", names[2:]), ("later", []), ("later/f", []):
        fd = os.open(view.at(where), os.O_RDONLY)
        try:
            assert sorted(ply.ioctl_moved(fd)) == want, where
        finally:
            os.close(fd)
    view.write("in/more", "m")
    second = view.checkpoint()
    view.write("in/more", "n")
    view.restore(second)
    with view.fd() as fd:
        assert ply.ioctl_moved(fd) == []


@cases("a_cwd_that_the_target_lacks_is_a_removed_directory")
def _(t, n):
    view = t.view(DEEP)
    first = view.checkpoint()
    os.makedirs(view.at("one/late/deeper"))
    view.write("one/late/deeper/f", "f\n")
    bulk_change(view, n)
    ask = shell(t, view.at("one/late/deeper"))
    assert ask("cat f") == "f\n"
    view.restore(first)
    assert "late" not in view.ls("one")
    assert "No such file" in ask("cat f"), "a removed directory has no entries"
    out = ask("echo x > new")
    assert "No such file" in out or "cannot create" in out or "nonexistent" in out, out
    assert ask("ls") == "", "a removed directory lists nothing"
    # The shell goes on elsewhere.
    assert ask("cd %s && cat same.txt" % view.path) == "same\n"


@cases("a_cwd_that_comes_back_is_told_where_it_is")
def _(t, n):
    """By getcwd(2) itself: who asks it gets no path of a directory whose name the kernel threw out."""
    view = t.view(DEEP)
    first = view.checkpoint()
    os.makedirs(view.at("one/late/deeper"))
    view.write("one/late/f", "f\n")
    bulk_change(view, n)
    late = view.checkpoint()
    asks = {where: shell(t, view.at(where)) for where in ("one/late", "one/late/deeper")}
    for back in (lambda: view.store.ply("restore", late, view.path), lambda: view.store.ply("undo", view.path),
                 lambda: view.store.ply("restore", "--branch", "main", late)):
        view.store.ply("restore", first, view.path)
        assert "late" not in view.ls("one") and not os.path.exists(view.at("one/late"))
        back()
        all_know_where(view, asks)


def test_a_cwd_that_went_by_names_and_comes_back_by_epoch_is_told_where_it_is(t):
    """The kernel has thrown out the name of each directory, not the highest one's alone."""
    view = t.view(DEEP)
    first = view.checkpoint()
    os.makedirs(view.at("one/late/deeper"))
    late = view.checkpoint()
    asks = {where: shell(t, view.at(where)) for where in ("one/late", "one/late/deeper")}
    view.store.ply("restore", first, view.path)
    bulk_change(view, 3000)
    view.store.ply("restore", late, view.path)
    all_know_where(view, asks)


def test_a_cwd_that_was_looked_for_while_it_was_gone_is_told_where_it_is(t):
    """By epoch the kernel throws out the name that somebody looked for, wherever that lies."""
    view = t.view(DEEP)
    first = view.checkpoint()
    os.makedirs(view.at("one/late/deeper"))
    bulk_change(view, 3000)
    late = view.checkpoint()
    asks = {where: shell(t, view.at(where)) for where in ("one/late", "one/late/deeper")}
    view.store.ply("restore", first, view.path)
    assert "No such file" in asks["one/late"]("ls deeper")
    view.store.ply("restore", late, view.path)
    all_know_where(view, asks)


@cases("a_cwd_in_a_directory_that_was_removed_meanwhile_is_told_where_it_is")
def _(t, n):
    """The kernel has it in the removed one for ever, whose number another one has."""
    view = t.view(DEEP)
    zero = view.checkpoint()
    os.mkdir(view.at("build"))
    bulk_change(view, n)
    first = view.checkpoint()
    os.makedirs(view.at("build/x/y"))
    if n:
        ply.make_bulk(view.at("more"), n, size=40)
    late = view.checkpoint()
    asks = {where: shell(t, view.at(where)) for where in ("build/x", "build/x/y")}
    view.store.ply("restore", first, view.path)
    os.rename(view.at("build"), view.at("old"))
    os.rmdir(view.at("old"))
    view.store.ply("restore", first, view.path)
    assert view.ls("build") == []
    view.store.ply("restore", zero, view.path)
    view.store.ply("restore", late, view.path)
    all_know_where(view, asks)


@cases("a_cwd_that_comes_back_elsewhere_is_told_where_it_is")
def _(t, n):
    """With the directory that it was in before a state lacked both."""
    view = t.view({**DEEP, "p/f": "f\n"})
    first = view.checkpoint()
    os.makedirs(view.at("q/d/deeper"))
    bulk_change(view, n)
    in_q = view.checkpoint()
    asks = {where: shell(t, view.at(where)) for where in ("q", "q/d", "q/d/deeper")}
    os.rename(view.at("q/d"), view.at("p/d"))
    view.store.ply("restore", first, view.path)
    view.store.ply("restore", in_q, view.path)
    all_know_where(view, asks)


@cases("a_directory_that_was_removed_under_a_shell_comes_back")
def _(t, n):
    """The kernel calls a directory that it removed dead for good: another one has to come back."""
    view = t.view(DEEP)
    first = view.checkpoint()
    ask = shell(t, view.at("one/two/three"))
    again = shell(t, view.at("one/two"))
    assert ask("rm -rf ../../two; ls; stat -c %h .").split() == ["0"]
    gone = view.checkpoint()
    bulk_change(view, n)
    for i in range(3):
        view.restore(first)
        assert view.ls("one/two") == ["other.txt", "three"], view.ls("one/two")
        assert view.read("one/two/three/here.txt") == "old\n"
        view.write("one/two/three/made.txt", "m")
        assert view.ls("one/two/three") == ["here.txt", "made.txt"]
        # Those in it are in a removed directory until they go there again.
        assert again("ls") == ""
        assert i == 1 or ask("ls") == ""
        assert ask("cd %s && cat here.txt" % view.at("one/two/three")) == "old\n"
        if i:
            ask("rm -rf ../../two")
        else:
            view.restore(gone)
        assert "two" not in view.ls("one")
        bulk_change(view, n)


@cases("an_unchanged_open_file_goes_on_working")
def _(t, n):
    view = t.view({"log": "0\n", "other": "x"})
    with open(view.at("log"), "a+") as log:
        log.write("before checkpoint\n")
        log.flush()
        first = view.checkpoint()
        ino = os.fstat(log.fileno()).st_ino
        view.write("other", "y")
        bulk_change(view, n)
        view.restore(first)
        log.write("after restore\n")
        log.flush()
        assert os.fstat(log.fileno()).st_ino == ino == os.stat(view.at("log")).st_ino
        log.seek(0)
        assert log.read() == "0\nbefore checkpoint\nafter restore\n"
    assert view.read("log") == "0\nbefore checkpoint\nafter restore\n"
    view.restore(first)
    assert view.read("log") == "0\nbefore checkpoint\n"


@cases("an_open_changed_file_keeps_its_bytes_until_closed")
def _(t, n):
    view = t.view({"f": "target state\n"})
    first = view.checkpoint()
    view.write("f", "left state, longer\n")
    bulk_change(view, n)
    with open(view.at("f"), "r+b", buffering=0) as f:
        ino = os.fstat(f.fileno()).st_ino
        view.restore(first)
        assert f.read() == b"left state, longer\n"
        assert os.stat(view.at("f")).st_ino == ino, "st_ino comes from the tree"
        assert view.read("f") == "target state\n"
        # Writes to the replaced file are its own and go with it.
        f.seek(0)
        f.write(b"LEFT")
        f.seek(0)
        assert f.read() == b"LEFT state, longer\n"
        assert view.read("f") == "target state\n"
        f.truncate(3)
        os.fsync(f.fileno())
        assert os.fstat(f.fileno()).st_size == 3
        assert os.stat(view.at("f")).st_size == 13
    assert view.read("f") == "target state\n"


@cases("a_file_that_the_target_lacks_keeps_its_bytes_until_closed")
def _(t, n):
    view = t.view({"f": "1"})
    first = view.checkpoint()
    view.write("late", "late bytes" * 1000)
    bulk_change(view, n)
    with open(view.at("late"), "r+b", buffering=0) as f:
        view.restore(first)
        assert not os.path.exists(view.at("late"))
        assert f.read() == b"late bytes" * 1000
        f.write(b"more")
        assert os.fstat(f.fileno()).st_size == 10004
    assert view.ls() == ["f"]


@cases("never_a_mixture_of_old_and_new_bytes")
def _(t, n):
    # A reader that opens the file afresh sees one state or the other, whole.
    view = t.view({"f": "A" * 200000})
    first = view.checkpoint()
    view.write("f", "B" * 150000)
    bulk_change(view, n)
    second = view.checkpoint()
    seen, stop = set(), threading.Event()

    def reader():
        while not stop.is_set():
            with open(view.at("f"), "rb", buffering=0) as f:
                data = b"".join(iter(lambda: f.read(4096), b""))
            seen.add((data[:1], len(data), len(set(data))))
    th = threading.Thread(target=reader)
    th.start()
    try:
        for i in range(6 if n else 60):
            view.restore(first if i % 2 else second)
    finally:
        stop.set()
        th.join()
    assert seen <= {(b"A", 200000, 1), (b"B", 150000, 1)}, seen


@cases("a_shared_mapping_of_a_changed_file_keeps_its_bytes")
def _(t, n):
    view = t.view({"m": "M" * 8192})
    first = view.checkpoint()
    with open(view.at("m"), "r+b") as f:
        m = mmap.mmap(f.fileno(), 8192)
        m[0:4] = b"left"
        bulk_change(view, n)
        view.restore(first)
        assert m[0:4] == b"left" and m[4096:4100] == b"MMMM"
        m[0:4] = b"late"
        m.flush()
        assert view.read("m") == "M" * 8192
        m.close()
    assert view.read("m") == "M" * 8192


@cases("a_shared_mapping_of_an_unchanged_file_goes_on")
def _(t, n):
    view = t.view({"m": "M" * 8192, "f": "1"})
    first = view.checkpoint()
    with open(view.at("m"), "r+b") as f:
        m = mmap.mmap(f.fileno(), 8192)
        assert m[0:4] == b"MMMM"
        view.write("f", "2")
        bulk_change(view, n)
        view.restore(first)
        m[0:4] = b"live"
        m.flush()
        assert view.read("m")[:8] == "liveMMMM"
        m.close()


def test_a_checkpoint_holds_what_was_stored_through_a_mapping(t):
    view = t.view({"m": "M" * 8192})
    with open(view.at("m"), "r+b") as f:
        m = mmap.mmap(f.fileno(), 8192)
        m[4096:4100] = b"dirt"
        snap = view.store.out("checkpoint", view.path)
        m[4096:4100] = b"more"
        m.flush()
        m.close()
    old = view.store.mount(snapshot=snap)
    assert old.read("m")[4096:4100] == "dirt"


@cases("tail_f_goes_on_behind_a_restore")
def _(t, n):
    # An unchanged log: tail's descriptor is the live file, appends after the restore show.
    view = t.view({"log": "first\n", "f": "1"})
    out = open(t.at("tail.out"), "w")
    # Polling instead of inotify: two clients of one mount are on one machine, both ways work;
    # polling shows that attributes are right as well.
    p = subprocess.Popen(["tail", "-n", "+1", "-s", "0.1", "---disable-inotify", "-f",
                          view.at("log")], stdout=out, stderr=subprocess.STDOUT)
    t.clean.append(lambda: (p.kill(), p.wait()))
    ply.wait_for("the first line", lambda: ply.read(t.at("tail.out")) == "first\n")
    snap = view.checkpoint()
    view.write("f", "2")
    bulk_change(view, n)
    view.restore(snap)
    with open(view.at("log"), "a") as f:
        f.write("second\n")
    ply.wait_for("the line after the restore",
                 lambda: ply.read(t.at("tail.out")) == "first\nsecond\n")


def test_tail_f_of_a_changed_file_stays_with_the_old_bytes(t):
    # Its descriptor is the replaced file's. (tail -F compares inode numbers, which a restore keeps
    # on purpose, and stays as well.)
    view = t.view({"log": "first\n"})
    snap = view.checkpoint()
    with open(view.at("log"), "a") as f:
        f.write("to be undone\n")
    out = open(t.at("tail.out"), "w")
    p = subprocess.Popen(["tail", "-n", "+1", "-s", "0.1", "---disable-inotify", "-f",
                          view.at("log")], stdout=out, stderr=subprocess.STDOUT)
    t.clean.append(lambda: (p.kill(), p.wait()))
    ply.wait_for("two lines", lambda: "undone" in ply.read(t.at("tail.out")))
    view.restore(snap)
    with open(view.at("log"), "a") as f:
        f.write("after\n")
    time.sleep(0.5)
    assert p.poll() is None
    assert ply.read(t.at("tail.out")) == "first\nto be undone\n"
    assert view.read("log") == "first\nafter\n"


def test_a_compile_in_progress_ends_or_fails_as_on_replaced_files(t):
    ply.need_tool("cc", "make")
    files = {"Makefile": "OBJS=$(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJS)\n"
             "%.o: %.c\n\t$(CC) -O2 -c -o $@ $<\n"}
    for i in range(40):
        files["f%02d.c" % i] = "int f%d(int x){return x*%d;}\n" % (i, i) * 1
    view = t.view(files)
    first = view.checkpoint()
    p = subprocess.Popen(["make", "-k", "-j2"], cwd=view.path, env=t.env,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(0.4)
    view.restore(first)
    text, _ = p.communicate(timeout=120)
    # Objects made before the restore are gone; what make makes afterwards is whole. Nothing
    # hangs, and a fresh make from the restored state builds everything.
    assert p.returncode in (0, 2), text
    p = t.run(["make"], cwd=view.path)
    assert len([n for n in view.ls() if n.endswith(".o")]) == 40
    view.restore(first)
    assert view.ls() == sorted(files), "the restored state has no objects"


def test_directory_descriptors_follow(t):
    view = t.view(DEEP)
    first = view.checkpoint()
    fd = os.open(view.at("one/two"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        view.write("one/two/late", "l")
        assert sorted(os.listdir(fd)) == ["late", "other.txt", "three"]
        view.restore(first)
        assert sorted(os.listdir(fd)) == ["other.txt", "three"]
        f = os.open("other.txt", os.O_RDONLY, dir_fd=fd)
        assert os.read(f, 10) == b"o\n"
        os.close(f)
        try:
            os.stat("late", dir_fd=fd)
            raise AssertionError("late is still there")
        except FileNotFoundError:
            pass
    finally:
        os.close(fd)


def test_a_listing_of_a_directory_that_was_gone_is_not_kept(t):
    view = t.view({"keep": "k"})
    without = view.checkpoint("without")
    os.mkdir(view.at("d"))
    view.write("d/f", "f")
    whole = view.checkpoint("whole")
    fd = os.open(view.at("d"), os.O_RDONLY)
    for _ in range(2):
        view.restore(without)
        assert os.listdir(fd) == []
        view.restore(whole)
        assert view.ls("d") == os.listdir(fd) == ["f"]
    os.close(fd)


def test_directories_of_two_imports_that_share_numbers(t):
    store = t.store()
    trees = ({"x/f": "1", "x/sub/g": "2"}, {"y/z/f": "1", "k": "2", "y/z/q/e": "4"})
    snaps = [store.import_(t.tree(tree, "source%d" % i), "--branch", "b%d" % i)
             for i, tree in enumerate(trees)]
    view = store.mount(branch="b0")

    def walk():  # the kernel gets to know everything
        return {os.lstat(os.path.join(d, n)).st_ino for d, ds, fs in os.walk(view.path)
                for n in ds + fs}

    here = [walk()]
    fds = [{n: os.open(view.at(n), os.O_RDONLY) for n in ("x", "x/sub")}]
    view.restore(snaps[1])
    here.append(walk())
    assert here[0] & here[1], here  # what this is about
    fds.append({n: os.open(view.at(n), os.O_RDONLY) for n in ("y", "y/z", "y/z/q")})
    for turn in range(6):
        gone, back = turn % 2 == 0, turn % 2
        view.restore(snaps[back])
        if turn > 1:
            assert walk() == here[back]
        for name, fd in fds[back].items():
            assert sorted(os.listdir(fd)) == sorted(view.ls(name)) != [], (turn, name)
            assert os.fstat(fd).st_ino == os.stat(view.at(name)).st_ino, (turn, name)
        for name, fd in fds[gone].items():
            assert os.listdir(fd) == [], (turn, name)
    view.write("x/new" if not back else "y/new", "n")
    for each in fds:
        for fd in each.values():
            os.close(fd)
    view.unmount()
    store.ply("check")


def test_negative_names_come_back_to_life(t):
    view = t.view({"d/f": "1"})
    first = view.checkpoint()
    shutil.rmtree(view.at("d"))
    assert not os.path.exists(view.at("d/f")) and not os.path.exists(view.at("d"))
    view.restore(first)
    assert view.read("d/f") == "1"


def test_symlinks_and_their_targets_follow(t):
    view = t.view({"a": "A", "b": "B"})
    os.symlink("a", view.at("l"))
    first = view.checkpoint()
    os.unlink(view.at("l"))
    os.symlink("b", view.at("l"))
    assert view.read("l") == "B"
    second = view.checkpoint()
    for _ in range(20):
        view.restore(first)
        assert os.readlink(view.at("l")) == "a" and view.read("l") == "A"
        view.restore(second)
        assert os.readlink(view.at("l")) == "b" and view.read("l") == "B"


def test_types_change_under_a_name(t):
    view = t.view({"x": "file"})
    first = view.checkpoint()
    os.unlink(view.at("x"))
    os.mkdir(view.at("x"))
    view.write("x/y", "in a directory")
    second = view.checkpoint()
    shutil.rmtree(view.at("x"))
    os.mkfifo(view.at("x"))
    third = view.checkpoint()
    import stat
    for _ in range(5):
        view.restore(first)
        assert view.read("x") == "file"
        view.restore(second)
        assert view.read("x/y") == "in a directory"
        view.restore(third)
        assert stat.S_ISFIFO(os.lstat(view.at("x")).st_mode)


def test_attributes_and_xattrs_follow(t):
    view = t.view({"f": "1", "d/x": ""})
    os.setxattr(view.at("f"), "user.k", b"old")
    os.utime(view.at("f"), ns=(1, 123456789))
    first = view.checkpoint()
    st, sd = os.stat(view.at("f")), os.stat(view.at("d"))
    os.chmod(view.at("f"), 0o400)
    os.chmod(view.at("d"), 0o700)
    os.setxattr(view.at("f"), "user.k", b"new")
    os.setxattr(view.at("d"), "user.d", b"new")
    os.link(view.at("f"), view.at("f2"))
    os.utime(view.at("f"))
    view.restore(first)
    s2, d2 = os.stat(view.at("f")), os.stat(view.at("d"))
    for field in ("st_mode", "st_mtime_ns", "st_ctime_ns", "st_nlink", "st_ino", "st_size"):
        assert getattr(st, field) == getattr(s2, field), field
        assert getattr(sd, field) == getattr(d2, field), "directory " + field
    assert os.getxattr(view.at("f"), "user.k") == b"old"
    assert os.listxattr(view.at("d")) == []


def test_a_running_program_keeps_its_text(t):
    view = t.view({"f": "1"})
    shutil.copy(shutil.which("sleep"), view.at("prog"))
    first = view.checkpoint()
    shutil.copy(shutil.which("cat"), view.at("prog2"))
    os.rename(view.at("prog2"), view.at("prog"))
    p = subprocess.Popen([view.at("prog")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    t.clean.append(p.kill)
    view.restore(first)
    out, _ = p.communicate(b"still cat", timeout=60)
    assert out == b"still cat"
    assert t.run([view.at("prog"), "0"]).returncode == 0


def test_file_locks_do_not_hinder(t):
    import fcntl
    view = t.view({"f": "1", "g": "1"})
    first = view.checkpoint()
    view.write("f", "2")
    with open(view.at("f")) as f, open(view.at("g")) as g:
        fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.flock(g, fcntl.LOCK_EX)
        view.restore(first)
        with open(view.at("f")) as f2:
            fcntl.flock(f2, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another file now
        with open(view.at("g")) as g2:
            try:
                fcntl.flock(g2, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise AssertionError("an unchanged file lost its lock")
            except BlockingIOError:
                pass


def test_undo_brings_the_left_state_back_and_can_be_undone(t):
    view = t.view({"f": "1"})
    first = view.checkpoint()
    view.write("f", "2")
    view.write("g", "unsaved")
    view.restore(first)
    assert view.ls() == ["f"]
    view.undo()
    assert view.read("f") == "2" and view.read("g") == "unsaved"
    view.undo()
    assert view.ls() == ["f"] and view.read("f") == "1"


def test_restores_while_many_processes_work_in_the_view(t):
    # Nobody may hang, crash or see an error other than "not there".
    view = t.view(ply.make_bulk(t.at("source"), 400))
    first = view.checkpoint()
    stop = t.at("stop")
    script = """
while [ ! -e %s ]; do
    for f in d*/s*/f*.txt; do [ -e "$f" ] && cat "$f"; done >/dev/null 2>&1
    find . -type f | wc -l >/dev/null
    mkdir -p w$1 2>/dev/null && echo x > w$1/f 2>/dev/null; rm -rf w$1 2>/dev/null
done
exit 0
""" % stop
    workers = [subprocess.Popen(["sh", "-c", script, "sh", str(i)], cwd=view.path,
                                stderr=subprocess.PIPE, env=t.env) for i in range(4)]
    t.clean.append(lambda: [w.kill() for w in workers])
    end = time.monotonic() + (60 if ply.LONG else 6)
    rounds = 0
    while time.monotonic() < end or rounds <= 5:
        view.write("d000/s0000/f000.txt", "round %d" % rounds)
        view.restore(first)
        rounds += 1
    ply.write(stop, "")
    for w in workers:
        assert w.wait(timeout=120) == 0
    view.restore(first)
    ply.assert_same_tree(t.at("source"), view.path)


if __name__ == "__main__":
    ply.main()
