#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: short-form
# timeout: 120
"""plyfs mount DIR on an ordinary directory: a store of its own, the view over the directory."""
import contextlib
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def mounted(t, files=None):
    t.tree(files or {"a.txt": "one\n", "d/b.txt": "two\n"}, "work")
    env = dict(t.env)
    t.run([ply.PLYFS, "mount", t.at("work")], env=env)
    store = ply.Store(t, init=False)
    with ply.View(store, t.at("work")).fd() as fd:
        store.path = ply.ioctl_info(fd)["store"]
    t.stores.append(store)
    store.daemon()
    return ply.View(store, t.at("work"))


def ply_(t, *args, **kw):
    return t.run([ply.PLYFS, *args], **kw)


def test_the_directory_is_covered_by_its_own_content(t):
    view = mounted(t)
    assert view.ls() == ["a.txt", "d"] and view.read("d/b.txt") == "two\n"
    assert view.store.path.startswith(t.env["XDG_DATA_HOME"] + "/plyfs/"), view.store.path
    view.write("a.txt", "changed\n")
    snap = view.checkpoint()
    view.write("a.txt", "again\n")
    ply_(t, "restore", snap, cwd=view.path)
    assert view.read("a.txt") == "changed\n"


def test_a_store_has_no_half_character_in_its_name(t):
    """So its path is text where the directory's is: in JSON, and in an environment's record."""
    for name in "漢" * 14, "a" * 40 + "ä", "a" * 39 + "ä", "\U00010348" * 11:
        os.mkdir(t.at(name))
        ply_(t, "mount", t.at(name))
        store = json.loads(ply_(t, "status", "--json", cwd=t.at(name)).stdout)["store"]
        assert os.path.isfile(store + "/origin"), store
        part = os.path.basename(store).rpartition("-")[0]
        assert name.startswith(part) and 36 < len(os.fsencode(part)) <= 40, part
        ply_(t, "unmount", t.at(name))


def test_unmount_writes_nothing_back_and_says_what_would_differ(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.write("new", "n\n")
    p = ply_(t, "unmount", view.path)
    assert "a.txt" in p.stderr and "writeback" in p.stderr, p
    assert ply.read(t.at("work/a.txt")) == "one\n"
    assert sorted(os.listdir(t.at("work"))) == ["a.txt", "d"]


def test_a_view_that_is_detached_says_what_differs_so_far(t):
    view = mounted(t)
    view.write("new", "n\n")
    with subprocess.Popen(["sleep", "60"], cwd=view.path) as inside:
        p = ply_(t, "unmount", "--lazy", view.path)
        assert p.stderr.count("\n") == 1 and "so far (A new)" in p.stderr, p
        p = ply_(t, "writeback", view.path, check=False)
        assert p.returncode == 1 and "something is still in it" in p.stderr, p
        inside.kill()
    ply.wait_for("the view's end", lambda: not view.store.status()["views"])
    assert ply_(t, "writeback", "--dry-run", view.path).stdout == "A new\n"


def test_a_view_that_is_mounted_elsewhere_too_is_not_taken_off_for_a_write_back(t):
    view = mounted(t)
    view.write("new", "n\n")
    os.mkdir(t.at("bound"))
    t.run(["mount", "--bind", view.path, t.at("bound")])
    try:
        p = ply_(t, "unmount", "--write-back", view.path, check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1 and t.at("bound") in p.stderr, p
        assert view.read("new") == "n\n" and os.path.ismount(view.path)
    finally:
        t.run(["umount", t.at("bound")])
    ply_(t, "unmount", "--write-back", view.path)
    assert ply.read(t.at("work/new")) == "n\n"


def test_write_back_makes_the_directory_what_the_view_was(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.write("new/deep", "n\n")
    os.unlink(view.at("d/b.txt"))
    os.rmdir(view.at("d"))
    os.symlink("a.txt", view.at("link"))
    os.chmod(view.at("a.txt"), 0o600)
    ply_(t, "unmount", "--write-back", view.path)
    assert sorted(os.listdir(t.at("work"))) == ["a.txt", "link", "new"]
    assert ply.read(t.at("work/a.txt")) == "changed\n"
    assert os.stat(t.at("work/a.txt")).st_mode & 0o777 == 0o600
    assert os.readlink(t.at("work/link")) == "a.txt"
    assert ply.read(t.at("work/new/deep")) == "n\n"


def test_write_back_after_a_restore_to_what_was_written_back_before(t):
    view = mounted(t, {"f": "0\n"})
    file = t.at("work/f")
    marks = []
    for content, back in ("1\n", False), ("2\n", False), ("1\n", True), ("2\n", False), \
            ("2\n", True), ("1\n", True), ("2\n", False):
        if back:
            ply_(t, "restore", marks[int(content) - 1], view.path)
        else:
            view.write("f", content)
        ply_(t, "unmount", "--write-back", view.path)
        assert ply.read(file) == content
        assert ply_(t, "writeback", "--dry-run", view.path).stdout == ""
        ply_(t, "mount", view.path)
        marks.append(view.checkpoint())
    ply_(t, "unmount", view.path)


def test_what_write_back_compares_with_is_not_dropped(t):
    view = mounted(t)
    first = view.store.json("log")[0]["id"]
    view.write("a.txt", "changed\n")
    last = view.checkpoint()
    for dry in [], ["--dry-run"]:
        p = ply_(t, "drop", *dry, first, cwd=view.path, check=False)
        assert p.returncode == 1 and "write-back" in p.stderr and p.stderr.count("\n") == 1, p
    ply_(t, "unmount", "--write-back", view.path)
    assert ply.read(t.at("work/a.txt")) == "changed\n"
    view.store.ply("drop", first, last)


def test_a_view_whose_branch_was_dropped_begins_anew(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    ply_(t, "unmount", view.path)
    for words, more in (["main"], []), (["main", "--with-snapshots"], ["--update"]):
        view.store.ply("drop", *words)
        p = ply_(t, "mount", *more, view.path)
        assert p.stderr == "" and view.ls() == ["a.txt", "d"] and view.read("a.txt") == "one\n", (words, p)
        view.write("new", "n\n")
        assert "differ" in ply_(t, "unmount", view.path).stderr
    ply_(t, "mount", view.path)
    assert view.ls() == ["a.txt", "d", "new"]


def test_a_branch_that_took_the_dropped_ones_place_goes_on(t):
    view = mounted(t)
    ply_(t, "fork", "idea", cwd=view.path)
    view.write("a.txt", "changed\n")
    view.store.ply("checkpoint", "--branch", "idea", "-m", "idea")
    ply_(t, "unmount", view.path)
    view.store.ply("drop", "main")
    view.store.ply("fork", "--from", "idea", "main")
    p = ply_(t, "mount", view.path)
    assert "goes on" in p.stderr and view.read("a.txt") == "one\n", p
    view.write("a.txt", "idea\n")
    ply_(t, "unmount", "--write-back", view.path)
    assert ply.read(t.at("work/a.txt")) == "idea\n"


def test_write_back_below_directories_that_are_gone(t):
    view = mounted(t, {"d/e/f": "1\n", "d/e/same": "1\n", "g/x": "1\n", "m/y": "1\n", "z": "1\n"})
    work = t.at("work")
    view.write("d/e/f", "22\n")
    view.write("d/e/new", "n\n")
    os.chmod(view.at("d/e"), 0o750)
    os.chmod(view.at("m"), 0o700)
    view.write("g/x", "22\n")
    view.write("z", "22\n")
    ply_(t, "unmount", view.path)
    for name in "d", "g", "m":
        shutil.rmtree(os.path.join(work, name))
    ply.write(work + "/g", "a file\n")
    p = ply_(t, "writeback", work, check=False)
    assert p.returncode == 1 and "'g/x' changed" in p.stderr, p
    assert ply.read(work + "/z") == "1\n" and sorted(os.listdir(work)) == ["g", "z"]

    os.unlink(work + "/g")
    ply_(t, "writeback", work)
    # What the view changed; not what was only removed.
    assert sorted(os.listdir(work + "/d/e")) == ["f", "new"] and os.listdir(work + "/m") == []
    assert [ply.read(os.path.join(work, f)) for f in ("d/e/f", "g/x", "z")] == ["22\n"] * 3
    assert os.stat(work + "/d/e").st_mode & 0o777 == 0o750
    assert os.stat(work + "/m").st_mode & 0o777 == 0o700


def test_write_back_links_what_the_view_linked(t):
    view = mounted(t, {"d/old": "1\n", "edited": "1\n", "mine": "1\n", "theirs": "1\n"})
    work = t.at("work")
    os.mkdir(view.at("new"))
    os.link(view.at("d/old"), view.at("new/old"))
    os.link(view.at("edited"), view.at("edited2"))
    view.write("edited", "2\n")
    os.link(view.at("theirs"), view.at("theirs2"))
    os.symlink("x", view.at("s"))
    os.link(view.at("s"), view.at("s2"), follow_symlinks=False)
    ply_(t, "unmount", view.path)
    ply.write(work + "/theirs", "changed beneath\n")
    ply_(t, "writeback", work)

    def ino(name):
        return os.lstat(os.path.join(work, name)).st_ino
    assert ino("d/old") == ino("new/old") and ino("edited") == ino("edited2") and ino("s") == ino("s2")
    assert ply.read(work + "/edited2") == "2\n" and os.stat(work + "/mine").st_nlink == 1
    assert ply.read(work + "/theirs2") == "1\n" and ply.read(work + "/theirs") == "changed beneath\n"


def swap(d, victim):
    """What a hostile owner of the directory does while root writes back: a link instead of what is made."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.chdir(d)
    for n in range(1 << 30):
        os.symlink(victim, "s%d" % n)
        while not os.path.lexists(".plyfs-writeback"):
            pass
        with contextlib.suppress(OSError):
            os.rename("s%d" % n, ".plyfs-writeback")


def test_write_back_changes_no_mode_outside_of_the_directory(t):
    """Else a fifo of mode 4777 in the view was a way to root. What is won in the race is the fifo's name."""
    ply.need_root()
    os.chmod(t.path, 0o755)
    view = mounted(t, {"a": "1\n"})
    for n in range(300):
        os.mkfifo(view.at("fifo%d" % n))
        os.chmod(view.at("fifo%d" % n), 0o4777)
    view.unmount()
    os.chown(view.path, 65534, 65534)
    ply.write(t.at("victim"), "root's\n")
    os.chmod(t.at("victim"), 0o600)
    pid = ply.child(swap, view.path, t.at("victim"))
    ply.wait_for("the first link", lambda: os.path.lexists(view.at("s0")))
    ply_(t, "writeback", "--force", view.path, check=False)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert os.stat(t.at("victim")).st_mode & 0o7777 == 0o600, oct(os.stat(t.at("victim")).st_mode)


def test_write_back_takes_away_what_attributes_were_removed(t):
    ply.need_tool("setfacl")
    t.tree({"d/f": "1\n", "d/own": "1\n"}, "work")
    work = t.at("work")
    os.setxattr(work + "/d", "user.gone", b"1")
    t.run(["setfacl", "-m", "u:1:rwx,d:u:1:rwx", work + "/d"])
    view = mounted(t, {"g": "1\n"})
    os.removexattr(view.at("d"), "user.gone")
    os.setxattr(view.at("d"), "user.new", b"2")
    t.run(["setfacl", "-b", view.at("d")])
    view.write("d/f", "2\n")
    view.write("d/new", "2\n")
    ply_(t, "unmount", "--write-back", view.path)
    assert os.listxattr(work + "/d") == ["user.new"], os.listxattr(work + "/d")
    # Written while the directory beneath still had its ACL.
    for name in "d/f", "d/new", "d/own":
        assert os.listxattr(t.at("work", name)) == [], name


def test_write_back_says_where_attributes_could_not_be_looked_at(t):
    work = t.at("work")
    ply.need_root()
    os.mkdir(work)
    t.run(["mount", "-t", "tmpfs", "tmpfs", work])
    t.clean.append(lambda: t.run(["umount", work]))
    beneath = os.open(work, os.O_RDONLY)
    view = mounted(t, {"d/f": "1\n"})
    os.chmod(view.at("d"), 0o700)
    t.run([ply.PLYFS, "unmount", view.path])
    d = os.open("d", os.O_RDONLY, dir_fd=beneath)
    try:
        for n in range(300):  # of 240 bytes: a list of more than 64 KiB is E2BIG in Linux
            os.setxattr(d, "user.%0235d" % n, b"")
    except OSError as why:
        ply.skip("this tmpfs has no room for such attributes: %s" % why)
    finally:
        os.close(d)
        os.close(beneath)
    told = ply_(t, "writeback", "--force", work).stderr
    assert "'d': listing the attributes" in told and told.count("\n") == 1, told
    assert os.stat(work + "/d").st_mode & 0o777 == 0o700


def test_write_back_keeps_what_changed_in_the_directory_meanwhile(t):
    view = mounted(t, {"f": "base\n", "g": "base\n", "h": "base\n", "same": "base\n", "d/x": "base\n"})
    work = t.at("work")
    for name in ("f", "h", "same"):
        view.write(name, "view\n")
    os.unlink(view.at("g"))
    os.unlink(view.at("d/x"))
    os.rmdir(view.at("d"))
    view.write("d", "a file now\n")
    view.write("new", "view\n")
    view.write("made/n", "view\n")
    view.unmount()
    ply.write(t.at("work/f"), "precious\n")
    ply.write(t.at("work/g"), "precious\n")
    ply.write(t.at("work/new"), "precious\n")
    ply.write(t.at("work/aside"), "precious\n")  # not in the way
    os.utime(t.at("work/same"))  # what it holds did not change
    os.mkdir(t.at("work/made"))  # of a directory only the type matters
    os.unlink(t.at("work/h"))
    before = ply.treedigest(work)

    for words in (("--dry-run",), ()):
        p = view.store.ply("writeback", *words, work, check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p
        assert "'f' (and 2 more)" in p.stderr and "--force" in p.stderr, p
        assert ply.treedigest(work) == before
    view.store.ply("writeback", "--dry-run", "--force", work)
    assert ply.treedigest(work) == before
    view.store.ply("writeback", "--force", work)
    assert sorted(os.listdir(work)) == ["aside", "d", "f", "h", "made", "new", "same"]
    assert {ply.read(os.path.join(work, name)) for name in ("f", "h", "new", "same")} == {"view\n"}
    assert ply.read(t.at("work/d")) == "a file now\n"

    # unmount tells it as well, and can be told.
    for words, code in ((), 1), (("--force",), 0):
        ply_(t, "mount", work)
        view.write("aside", "view\n")
        view.unmount()
        ply.write(t.at("work/aside"), "precious\n")
        ply_(t, "mount", work)
        p = ply_(t, "unmount", "--write-back", *words, work, check=False)
        assert p.returncode == code and ("'aside'" in p.stderr) == bool(code), p
        assert ply.read(t.at("work/aside")) == ("precious\n" if code else "view\n")
    assert ply_(t, "unmount", "--force", work, check=False).returncode == 2


def test_a_mount_that_fails_leaves_no_import_behind(t):
    ply.need_mount_namespaces()
    t.tree({"a.txt": "old\n"}, "work")
    # No device: told before anything is imported. Then one that does not do.
    for hide, began in (("mount -t tmpfs none /dev", False),
                        ("mount --bind /dev/null /dev/fuse", True)):
        p = t.run(["unshare", "-m", "sh", "-euc", hide + '; exec "$@"', "sh", ply.PLYFS, "mount",
                   t.at("work")], check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p
        assert os.path.exists(t.at("home/data")) == began, p
    ply.write(t.at("work/a.txt"), "new\n")
    view = mounted(t, {"a.txt": "new\n"})
    assert view.read("a.txt") == "new\n"
    view.unmount()


def test_fresh_takes_the_directory_anew_and_keeps_what_was_checkpointed(t):
    view = mounted(t)
    view.write("a.txt", "in the view\n")
    snap = view.checkpoint()
    view.unmount()
    ply.write(t.at("work/a.txt"), "in the directory\n")
    p = ply_(t, "mount", t.at("work"))
    assert "--fresh" in p.stderr and view.read("a.txt") == "in the view\n", p
    view.unmount()
    ply_(t, "mount", "--fresh", t.at("work"))
    assert view.read("a.txt") == "in the directory\n"
    view.restore(snap)
    assert view.read("a.txt") == "in the view\n"


def test_the_directory_of_a_write_back_tells_the_store(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.unmount()
    assert ply_(t, "writeback", "--dry-run", "work", cwd=t.path).stdout == "M a.txt\n"
    ply_(t, "writeback", ".", cwd=t.at("work"))
    assert ply.read(t.at("work/a.txt")) == "changed\n"
    p = ply_(t, "writeback", t.path, check=False)
    assert p.returncode == 1 and "'%s' has no short-form view" % t.path in p.stderr, p
    os.mkdir(t.at("fork"))
    ply_(t, "--store", view.store.path, "fork", "idea", "--at", t.at("fork"))
    p = ply_(t, "writeback", t.path, cwd=t.at("fork"), check=False)
    assert p.returncode == 1 and "has no short-form view" in p.stderr, p
    assert ply_(t, "writeback", "--dry-run", t.at("work"), cwd=t.at("fork")).stdout == ""
    ply_(t, "unmount", t.at("fork"))
    p = ply_(t, "writeback", "nowhere", check=False)
    assert p.returncode == 1 and "'nowhere': No such file" in p.stderr, p
    del t.env["XDG_DATA_HOME"], t.env["HOME"]
    p = ply_(t, "writeback", t.at("work"), check=False)
    assert p.returncode == 1 and "XDG_DATA_HOME" in p.stderr and "--store" in p.stderr, p


def test_a_write_back_never_takes_another_store_because_the_environment_names_one(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.unmount()
    other = t.store()
    other.import_(t.tree({"x": "x\n"}, "elsewhere"))
    theirs = other.mount()
    theirs.write("not of this directory", "")
    theirs.unmount()
    t.env["PLYFS_STORE"] = other.path
    p = ply_(t, "writeback", t.at("elsewhere"), check=False)
    assert p.returncode == 1 and "no short-form view" in p.stderr and "--store" in p.stderr, p
    ply_(t, "writeback", t.at("work"))
    assert sorted(os.listdir(t.at("work"))) == ["a.txt", "d"] and ply.read(t.at("work/a.txt")) == "changed\n"
    p = ply_(t, "unmount", "--write-back", t.at("work"), check=False)
    assert p.returncode == 1 and "plyfs writeback" in p.stderr, p
    ply_(t, "--store", other.path, "writeback", t.at("elsewhere"))  # who says so
    assert sorted(os.listdir(t.at("elsewhere"))) == ["not of this directory", "x"]


def test_an_interrupted_write_back_goes_on(t):
    view = mounted(t, {"a": "one\n", "b": "one\n", "to-dir": "one\n", "to-file/x": "one\n"})
    view.write("a", "two\n")
    view.write("b", "two\n")
    os.unlink(view.at("to-dir"))
    view.write("to-dir/x", "two\n")
    os.unlink(view.at("to-file/x"))
    os.rmdir(view.at("to-file"))
    os.symlink("a", view.at("to-file"))
    view.write("zz/f", "two\n")
    view.unmount()
    os.symlink(t.path, t.at("work/zz"))
    # A symlink is not followed: the last of them fails when the others are written.
    p = view.store.ply("writeback", "--force", t.at("work"), check=False)
    assert p.returncode == 1 and "zz" in p.stderr, p
    assert ply.read(t.at("work/a")) == "two\n" and os.path.islink(t.at("work/to-file"))
    os.unlink(t.at("work/zz"))
    view.store.ply("writeback", t.at("work"))
    assert sorted(os.listdir(t.at("work"))) == ["a", "b", "to-dir", "to-file", "zz"]
    assert ply.read(t.at("work/to-dir/x")) == ply.read(t.at("work/zz/f")) == "two\n"


def test_what_may_not_be_on_the_disk_yet_is_not_written_back(t):
    ply.need_tool("strace")
    if ply.is_sanitized(ply.PLYFS):
        ply.skip("the leak sanitizer does not work under strace")
    t.env["PLYFSD_IDLE"] = "0.1"
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.unmount()
    view.store.stop()
    # The daemon is this one's child. strace waits for its end, too.
    p = t.run(["strace", "-f", "-o", t.at("trace"), "-e", "trace=syncfs", "-e",
               "inject=syncfs:error=EIO", ply.PLYFS, "writeback", view.path], check=False)
    assert p.returncode == 1 and p.stderr == "plyfs writeback: syncing the directory: Input/output error\n", p
    assert ply_(t, "writeback", "--dry-run", view.path).stdout == "M a.txt\n"
    ply_(t, "writeback", view.path)
    assert ply_(t, "writeback", "--dry-run", view.path).stdout == ""


def test_a_dry_run_writes_nothing(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    p = ply_(t, "unmount", "--write-back", "--dry-run", view.path)
    assert "a.txt" in p.stdout + p.stderr
    if os.path.ismount(view.path):
        view.unmount()
    assert ply.read(t.at("work/a.txt")) == "one\n"


def test_names_are_listed_as_diff_lists_them(t):
    view = mounted(t)
    view.write("two\nD a.txt", "n\n")
    p = ply_(t, "unmount", "--write-back", "--dry-run", view.path)
    assert p.stdout == 'A "two\\nD a.txt"\n', p
    p = ply_(t, "unmount", view.path)
    assert p.stderr.count("\n") == 1 and '(A "two\\nD a.txt")' in p.stderr, p


def test_the_root_directory_is_no_place_for_a_view(t):
    p = ply_(t, "mount", "/", check=False)
    assert p.returncode == 1 and "no view covers the whole system; name a directory below" in p.stderr, p


def test_a_store_that_would_lie_in_the_directory_is_found_out_whatever_link_leads_there(t):
    t.tree({"f": "1"}, "work")
    os.symlink(t.at("work"), t.at("link"))
    for data in (t.at("work/data"), t.at("link/data"), t.at("home/../link/a/b")):
        p = ply_(t, "mount", t.at("work"), check=False, env=dict(t.env, XDG_DATA_HOME=data))
        assert p.returncode == 1 and "would lie below '%s'" % t.at("work") in p.stderr, p
    assert os.listdir(t.at("work")) == ["f"]


def test_a_dry_run_is_an_array_for_programs(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    view.write("two\nlines", "n\n")
    os.unlink(os.path.join(view.path, "d/b.txt"))
    view.unmount()
    p = ply_(t, "writeback", "--dry-run", "--json", view.path)
    listed = [{"status": s, "path": p} for s, p in (("M", "a.txt"), ("D", "d/b.txt"), ("A", "two\nlines"))]
    assert sorted(json.loads(p.stdout), key=lambda o: o["path"]) == listed, p
    p = ply_(t, "writeback", "--json", view.path, check=False)
    assert p.returncode == 2 and "--json goes with --dry-run" in p.stderr, p
    assert ply.read(t.at("work/a.txt")) == "one\n"


def test_what_fails_on_the_way_is_said_by_the_verb_that_was_called(t):
    ply.need_root()
    ply.need_tool("setpriv")
    t.tree({"a.txt": "one\n"}, "work")
    os.chmod(t.at("work/a.txt"), 0)
    # Root who may not read everything: his daemon may not, either.
    bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    first = t.run([*bound, ply.PLYFS, "mount", t.at("work")], check=False)
    assert first.returncode == 1, first
    lines = first.stderr.splitlines()
    assert lines[0] == "plyfs mount: '%s': opening 'a.txt': Permission denied" % t.at("work"), first
    # The store that it made is no riddle, and the next try takes it.
    store = shlex.split(lines[1])[-1]
    assert lines[1].startswith("plyfs mount: nothing is mounted; ") and len(lines) == 2, first
    assert os.listdir(t.at("home/data/plyfs")) == [os.path.basename(store)], first
    again = t.run([*bound, ply.PLYFS, "mount", t.at("work")], check=False)
    assert again.returncode == 1 and again.stderr == lines[0] + "\n", again
    os.chmod(t.at("work/a.txt"), 0o644)
    view = mounted(t, {"a.txt": "one\n"})
    assert view.store.path == store
    view.write("a.txt", "two\n")
    view.unmount()
    ply.write(t.at("work/a.txt"), "in the directory\n")
    p = ply_(t, "writeback", t.at("work"), check=False)
    assert p.returncode == 1 and p.stderr.startswith("plyfs writeback: 'a.txt' changed in "), p
    ply_(t, "mount", t.at("work"))
    p = ply_(t, "unmount", "--write-back", t.at("work"), check=False)
    assert p.returncode == 1 and p.stderr.startswith("plyfs unmount: 'a.txt' changed in "), p


def test_mounting_again_continues_or_says_so(t):
    view = mounted(t)
    view.write("a.txt", "changed\n")
    ply_(t, "unmount", view.path)
    p = ply_(t, "mount", t.at("work"), check=False)
    # Never silently the old or the new content: it works and says which, or asks.
    assert p.returncode == 0 and (p.stderr or view.read("a.txt")) or p.returncode == 1, p


def test_of_two_that_mount_at_once_the_second_finds_a_view(t):
    for n in range(8):
        work = t.tree({"a.txt": "one\n", "d/b.txt": "two\n"}, "work%d" % n)
        both = [subprocess.Popen([ply.PLYFS, "mount", work], env=t.env, cwd=t.path, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        said = [p.communicate(timeout=60) for p in both]
        codes = [p.returncode for p in both]
        t.adopt(work)
        assert sorted(codes) == [0, 1], (codes, said)
        assert said[codes.index(0)][0] == work + "\n", said
        assert "'%s' is a mounted plyfs view already (branch main)" % work in said[codes.index(1)][1], said
        assert ply.mounts_below(work) == [work] and sorted(os.listdir(work)) == ["a.txt", "d"]


def test_update_imports_anew_when_nothing_would_be_lost(t):
    view = mounted(t)
    view.write("a.txt", "mine\n")
    ply_(t, "unmount", "--write-back", view.path)
    ply.write(t.at("work/late"), "theirs\n")
    ply_(t, "mount", "--update", t.at("work"))
    assert view.read("late") == "theirs\n" and view.read("a.txt") == "mine\n"
    view.write("a.txt", "not written back\n")
    ply_(t, "unmount", view.path)
    ply.write(t.at("work/later"), "theirs\n")
    p = ply_(t, "mount", "--update", t.at("work"))
    assert "goes on where it was" in p.stderr
    assert view.read("a.txt") == "not written back\n" and not os.path.exists(view.at("later"))
    p = ply_(t, "mount", "--update", "--at", t.at("x"), check=False)
    assert p.returncode == 2 and "--update" in p.stderr, p


def test_an_origin_that_tells_nothing_is_not_taken_for_none(t):
    """Else the directory would be imported over what its view holds."""
    view = mounted(t)
    view.write("new", "work\n")
    origin = view.store.path + "/origin"
    good = ply.read(origin)
    for bad in (lambda: open(origin, "w").close(), lambda: os.mkfifo(origin), lambda: os.mkdir(origin)):
        os.unlink(origin)
        bad()
        for words in (["unmount", view.path], ["unmount", "--lazy", view.path], ["mount", view.path],
                      ["writeback", view.path]):
            p = ply_(t, *words, check=False)  # and does not wait for who writes into a fifo
            assert p.returncode == (0 if "--lazy" in words else 1), p
            assert "--lazy" in words or (p.stderr.count("\n") == 1 and "'%s" % origin in p.stderr), p
        (os.rmdir if os.path.isdir(origin) else os.unlink)(origin)
        ply.write(origin, good + "\n")  # as the message wants it written, by echo
        ply_(t, "mount", view.path)
        assert view.read("new") == "work\n"
    assert "origin" in os.listdir(view.store.path) and "origin.new" not in os.listdir(view.store.path)


def test_what_may_be_a_view_is_not_taken_for_none(t):
    told = ply.Faults(t)
    view = t.view({"d/f": "1\n"})
    asked = ply.Faults(t, "plyfs")
    dark = []

    def fails(*args):
        p = ply_(t, *args, check=False)
        dark.append(p.stderr)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p
        assert "not in a plyfs view" not in p.stderr, p

    # Whatever fails: a view that lies in a view is never made.
    for n in range(1000):
        with asked.armed(n, errno.EAGAIN):
            fails("mount", view.at("d"))
        assert view.read("d/f") == "1\n", n
        if not asked.failed:
            break
    for n in range(1000):
        with told.armed(n, errno.EAGAIN, where=told.IN_REQUESTS):
            fails("mount", view.at("d"))
        assert view.read("d/f") == "1\n", n  # who reads may be the one who is told
        if not told.failed:
            break
    # Each of these asks the view first; what it says then is of no use to the others.
    for args in (("checkpoint", view.path), ("run", "--in", view.path, "true"),
                 ("env", "create", "x", view.path), ("unmount", view.path)):
        # Nothing is to be forgotten meanwhile: FORGET is a request, too, and might be the one that fails.
        with ply.caches_stay(), \
                told.armed(0, errno.EAGAIN, kinds=told.ALLOCATIONS, where=told.IN_REQUESTS):
            fails(*args)
        assert told.failed and view.read("d/f") == "1\n", args
    print("# " + ", ".join(sorted(set(said.split(": ")[-1].strip() for said in dark))))


if __name__ == "__main__":
    ply.main()
