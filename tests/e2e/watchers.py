#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: live
"""Views with --inotify: who watches is told by a restore, and nothing changes by that."""
import ctypes
import errno
import os
import shutil
import signal
import struct
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)
ATTRIB, CREATE, DELETE, DELETE_SELF, IGNORED, ISDIR = 0x4, 0x100, 0x200, 0x400, 0x8000, 0x40000000
KINDS = {ATTRIB: "", CREATE: "+", DELETE: "-"}
EXCHANGE, CLONE3 = 2, 435  # of renameat2, and a system call's number
MADE, GONE, GONE_DIR, NOTHING = ("system.plyfs." + s for s in ("made", "gone", "gone-dir", "nothing"))


class Watch:
    """inotify on some directories of a view."""

    def __init__(self, view, *dirs):
        self.view, self.fd, self.dirs = view, libc.inotify_init1(os.O_CLOEXEC), {}
        for d in dirs:
            wd = libc.inotify_add_watch(self.fd, view.at(d).encode(), ATTRIB | CREATE | DELETE)
            assert wd > 0, d
            self.dirs[wd] = d

    def told(self):
        """What came until now: "+NAME", "-NAME", and attributes as "NAME"; a directory's own as "DIR/"."""
        end = self.view.at(self.dirs[1], "the end")
        os.mkdir(end)
        got = set()
        while True:
            buf = os.read(self.fd, 65536)
            while buf:
                wd, mask, _, size = struct.unpack_from("iIII", buf)
                name = buf[16:16 + size].rstrip(b"\0").decode()
                buf = buf[16 + size:]
                if mask & IGNORED or (name == "the end" and mask & DELETE):
                    continue
                if name == "the end":
                    os.rmdir(end)
                    return got
                kind = KINDS[mask & 0xfff]
                got.add(kind + os.path.normpath(os.path.join(self.dirs[wd], name)) +
                        "/" * (not name or bool(kind and mask & ISDIR)))

    def close(self):
        os.close(self.fd)


FILES = {"w/same": "1", "w/edited": "1", "w/removed": "1", "w/d/inner": "1", "w/away/deep/file": "1",
         "w/away/file": "1", "other/x": "1"}


def spoil(view):
    view.write("w/edited", "2")
    os.unlink(view.at("w/removed"))
    view.write("w/new", "1")
    view.write("w/more/deep/new", "1")
    view.write("w/d/inner", "2")
    os.unlink(view.at("w/away/deep/file"))
    os.rmdir(view.at("w/away/deep"))
    os.unlink(view.at("w/away/file"))
    os.rmdir(view.at("w/away"))


def watched(t, *more):
    store = t.store()
    store.import_(t.tree(FILES))
    view = store.mount(None, None, None, *more)
    return view, view.checkpoint()


# All of what differs that is there, and names that came or went; "d" is w/d as w tells it.
RESTORED = {"w/edited", "+w/removed", "w/removed", "-w/new", "w/d/inner", "+w/away/", "w/away", "-w/more/"}
UNDONE = {"w/edited", "-w/removed", "+w/new", "w/new", "w/d/inner", "-w/away/", "+w/more/", "w/more"}


def test_a_restore_and_an_undo_tell_who_watches(t):
    view, snap = watched(t, "--inotify")
    before = view.digest()
    restore = {
        "in the view": lambda *words: view.store.ply(*words, cwd=view.path),
        "through the socket": lambda *words: view.store.ply(words[0], "--branch", "main", *words[1:])}
    for how, do in restore.items():
        spoil(view)
        after = view.digest()
        watch = Watch(view, "w", "w/d", "other")
        do("restore", snap)
        assert view.digest() == before, "telling changes nothing"
        do("undo")
        assert view.digest() == after
        got = watch.told()
        assert RESTORED | UNDONE <= got <= RESTORED | UNDONE | {"w/d", "w/d/"}, (how, got)
        watch.close()

        watch = Watch(view, "w", "w/d", "other")
        do("restore", snap)
        got = watch.told()
        assert RESTORED <= got <= RESTORED | {"w/d", "w/d/"}, (how, got)
        do("restore", snap)
        assert watch.told() == set(), "this test's directory came and went: times"
        watch.close()


def test_a_restore_that_finds_nothing_to_change_tells_nothing(t):
    view, snap = watched(t, "--inotify")
    spoil(view)
    view.store.ply("restore", snap, cwd=view.path)
    for where in ["restore", snap], ["restore", "--branch", "main", snap]:
        watch = Watch(view, "w", "w/d", "other")
        view.store.ply(*where, cwd=t.path if "--branch" in where else view.path)
        assert watch.told() == set()
        view.store.ply("restore", snap, cwd=view.path)  # this test's directory came and went: times
        watch.close()


def test_telling_changes_nothing(t):
    view, snap = watched(t, "--inotify")
    spoil(view)
    view.store.ply("restore", snap, cwd=view.path)
    assert view.info()["changes"] == 0
    assert not view.store.out("diff", snap, "main")
    for name in ("w/edited", "w", "."):
        assert os.listxattr(view.at(name)) == []
        ply.raises(errno.EOPNOTSUPP, os.getxattr, view.at(name), "system.plyfs.restored")
        ply.raises(errno.EOPNOTSUPP, os.setxattr, view.at(name), "system.plyfs.other", b"")
    os.setxattr(view.at("w/edited"), "system.plyfs.restored", b"value")
    assert view.info()["changes"] == 0 and os.listxattr(view.at("w/edited")) == []


def test_it_is_told_after_the_daemon_was_followed(t):
    ply.need_followed_daemon()
    view, snap = watched(t, "--inotify")
    spoil(view)
    watch = Watch(view, "w", "w/d", "other")
    view.store.kill()
    view.store.ply("restore", snap, cwd=view.path)
    got = watch.told()
    assert RESTORED <= got, got
    view.store.ply("daemon", "--replace")
    view.store.ply("undo", cwd=view.path)
    got = watch.told()
    assert UNDONE <= got, got
    watch.close()
    assert ", inotify\n" in view.store.out("status") + "\n"


def test_who_watches_a_file_itself_is_told_that_it_is_gone(t):
    view, snap = watched(t, "--inotify")
    os.link(view.at("w/edited"), view.at("w/second"))
    snap = view.checkpoint()
    spoil(view)
    fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    names = {libc.inotify_add_watch(fd, view.at(name).encode(), DELETE_SELF): name
             for name in ("w/edited", "w/d/inner", "w/new", "w/same", "other/x")}

    def gone():
        try:
            buf = os.read(fd, 65536)
        except BlockingIOError:
            return set()
        found = set()
        while buf:
            wd, mask, _, size = struct.unpack_from("iIII", buf)
            assert mask in (DELETE_SELF, IGNORED), mask
            found.add(names[wd])
            buf = buf[16 + size:]
        return found

    with open(view.at("w/d/inner")) as f:
        view.store.ply("restore", snap, cwd=view.path)
        assert gone() == {"w/edited", "w/new"}
        assert f.read() == "2", "who has it open has what it was"
        assert view.read("w/d/inner") == "1"
    ply.wait_for("the last of a file that was open", lambda: gone() == {"w/d/inner"})
    assert view.read("w/second") == "1" and os.stat(view.at("w/edited")).st_nlink == 2
    view.store.ply("undo", cwd=view.path)
    assert view.read("w/second") == "2" and os.stat(view.at("w/edited")).st_nlink == 2
    assert gone() == set(), "nothing watches the new ones"
    os.close(fd)


def test_names_of_all_types_are_told(t):
    view, snap = watched(t, "--inotify")
    os.symlink("edited", view.at("w/link"))
    os.symlink("nowhere", view.at("w/dangling"))
    os.mkfifo(view.at("w/fifo"))
    os.link(view.at("w/same"), view.at("w/hard"))
    os.mkdir(view.at("w/empty"), 0o111)
    view.write("w/with a\nnewline", "")
    os.mkdir(view.at("w/" + "n" * 255))
    after = view.digest()
    names = {"link", "dangling", "hard", "with a\nnewline"}
    dirs = {"empty", "n" * 255}
    watch = Watch(view, "w")
    view.store.ply("restore", snap, cwd=view.path)
    got = watch.told()
    assert got == {"-w/" + n for n in names} | {"-w/%s/" % n for n in dirs} | {"-w/fifo"}, got
    view.store.ply("undo", cwd=view.path)
    assert view.digest() == after, "and nothing is made anew"
    got = watch.told()
    assert got >= {"+w/" + n for n in names} | {"+w/%s/" % n for n in dirs}, got
    assert "w/fifo" in got and "w/" in got and "+w/fifo" not in got, "what it is cannot be said: listed again"
    watch.close()


def test_what_is_mounted_in_a_directory_that_moved_stays(t):
    ply.need_root()
    view, snap = watched(t, "--inotify")
    os.rename(view.at("w/d"), view.at("other/moved"))
    os.mkdir(view.at("other/moved/below"))
    snap = view.checkpoint()
    os.rename(view.at("other/moved"), view.at("w/d"))
    t.run(["mount", "-t", "tmpfs", "none", view.at("w/d/below")])
    try:
        view.write("w/d/below/mounted", "1")
        view.store.ply("restore", snap, cwd=view.path)
        assert view.ls("other/moved/below") == ["mounted"]
        view.store.ply("undo", cwd=view.path)
        assert view.ls("w/d/below") == ["mounted"]
    finally:
        for at in ("w/d/below", "other/moved/below"):
            t.run(["umount", "-l", view.at(at)], check=False)


def watched_without(view, snap):
    """A state without w/d, which was not removed through the view."""
    at = view.store.bench.at("without")
    os.mkdir(at)
    view.store.ply("fork", "--from", snap, "without", "--at", at)
    fork = ply.View(view.store, at)
    shutil.rmtree(fork.at("w/d"))
    without = fork.checkpoint()
    fork.unmount()
    return without


def test_directories_that_somebody_has_are_told_as_well(t):
    view, snap = watched(t, "--inotify")
    view.write("w/d/deep/x", "1")
    snap = view.checkpoint()
    held = [os.open(view.at(d), os.O_RDONLY) for d in ("w/d", "w/d/deep", "w/away")]
    os.rename(view.at("w/d"), view.at("other/moved"))
    os.rename(view.at("other/moved/deep"), view.at("w/deep"))
    moved = view.checkpoint()
    watch = Watch(view, "w", "other", "other/moved", "w/deep", "w/away")
    for _ in range(3):
        view.store.ply("restore", snap, cwd=view.path)
        got = watch.told()
        assert got >= {"w/d", "w/", "-other/moved/", "-w/deep/"} and "+w/d/" not in got, got
        assert {os.readlink("/proc/self/fd/%d" % fd) for fd in held} == {
            view.at(d) for d in ("w/d", "w/d/deep", "w/away")}
        view.store.ply("restore", moved, cwd=view.path)
        got = watch.told()
        assert got >= {"-w/d/", "other/moved", "other/", "w/deep", "w/"} and "+w/deep/" not in got, got
        assert {os.readlink("/proc/self/fd/%d" % fd) for fd in held} == {
            view.at(d) for d in ("other/moved", "w/deep", "w/away")}
    for fd in held:
        os.close(fd)
    watch.close()


def test_a_directory_that_was_away_is_told_to_who_still_watches_it(t):
    view, with_it = watched(t, "--inotify")
    view.write("w/d/deep/x", "1")
    with_it = view.checkpoint()
    fd = os.open(view.at("w/d/deep"), os.O_RDONLY)
    without = watched_without(view, with_it)
    watch = Watch(view, "w", "w/d", "w/d/deep")
    for _ in range(3):
        view.store.ply("restore", without, cwd=view.path)
        got = watch.told()
        assert "-w/d/" in got, got
        view.store.ply("restore", with_it, cwd=view.path)
        got = watch.told()
        assert got >= {"w/d", "w/", "+w/d/inner"}, got
        assert os.readlink("/proc/self/fd/%d" % fd) == view.at("w/d/deep")
    os.close(fd)
    watch.close()


def test_what_is_announced_changes_nothing(t):
    view, snap = watched(t, "--inotify")
    had, d = view.digest(), view.at("w")
    new, same, sub = view.at("w/new"), view.at("w/same"), view.at("w/d")
    gone, gone_dir = view.at("w/gone"), view.at("w/gone-dir")

    def announce(what, at=d):
        assert os.getxattr(at, what) == b""

    def ghost(kind, name):
        announce(kind)
        assert os.lstat(name).st_ino == 2 ** 64 - 2
        assert os.path.basename(name) not in os.listdir(d)

    def ended(work):
        assert ply.ended_well(ply.child(work))

    ghost(GONE, gone)
    os.unlink(gone)
    ply.raises(errno.ENOENT, os.unlink, gone)
    ghost(GONE_DIR, gone_dir)
    os.rmdir(gone_dir)
    ply.raises(errno.ENOENT, os.rmdir, gone_dir)
    seen = view.at("w/seen")
    for _ in range(5):  # as somebody may have the kernel forget all names in between (drop_caches)
        ghost(GONE, seen)
        ended(lambda: ply.raises(errno.ENOENT, os.lstat, seen))
        try:
            os.unlink(seen)
        except FileNotFoundError:
            break
    else:
        raise AssertionError("who asked before us was told for good: no event of it")
    announce(MADE)
    os.mknod(same)
    ply.raises(errno.EEXIST, os.mknod, same)
    announce(MADE)
    ply.raises(errno.EEXIST, os.mkdir, sub)  # the kernel has it, and maybe a mount in it
    announce(MADE)
    ply.raises(errno.ENOENT, os.mknod, new)
    announce(MADE)
    ply.raises(errno.EEXIST, os.mkdir, same)
    assert view.digest() == had and view.info()["changes"] == 0

    # Somebody made the name meanwhile.
    for here, call in ((GONE, os.unlink), (GONE_DIR, os.rmdir)):
        announce(here)
        ended(lambda: os.mkdir(new) if call is os.rmdir else view.write("w/new", "x"))
        ply.raises(errno.EEXIST, call, new)
        call(new)
    announce(GONE)
    ply.raises(errno.EEXIST, os.unlink, same)
    assert sorted(os.listdir(d)) == ["away", "d", "edited", "removed", "same"]

    # Another directory, another call, another thread's, or taken back: as ever.
    announce(GONE)
    view.write("other/y", "1")
    os.unlink(view.at("other/y"))
    announce(NOTHING)
    ply.raises(errno.ENOENT, os.lstat, new)
    announce(MADE)
    os.unlink(same)
    view.write("w/same", "1")
    announce(MADE)
    ended(lambda: ply.raises(errno.EEXIST, os.mknod, same))
    announce(NOTHING)
    os.mknod(new)
    os.unlink(new)
    view.store.ply("restore", snap, cwd=view.path)
    assert view.digest() == had


def test_more_callers_than_there_is_room_for_lose_events_alone(t):
    view, _ = watched(t, "--inotify")
    had, d, n = view.digest(), view.at("w"), 20
    barrier, failed = threading.Barrier(n), []

    def call(i):
        try:
            for j in range(20):
                name = view.at("w/no%d-%d" % (i, j))
                barrier.wait(60)
                if i == 0:
                    os.getxattr(d, GONE)
                barrier.wait(60)
                if i > 0:
                    os.getxattr(d, GONE)
                barrier.wait(60)
                if i == 0:  # is lost by now, and what is taken back is nobody else's
                    os.getxattr(d, NOTHING)
                barrier.wait(60)
                try:
                    os.unlink(name)
                except FileNotFoundError:
                    failed.append(i)
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=call, args=(i,)) for i in range(n)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    assert not barrier.broken
    assert len(failed) == 20 * (n - 8), (len(failed), "8 have room")
    assert view.digest() == had


def test_a_large_restore_tells_its_directories(t):
    view, snap = watched(t, "--inotify")
    ply.make_bulk(view.at("w/bulk"), 5000, size=100)
    full = view.checkpoint()
    watch = Watch(view, "w", "other")
    view.store.ply("restore", snap, cwd=view.path)
    assert watch.told() == {"-w/bulk/"}
    view.store.ply("restore", full, cwd=view.path)
    got = watch.told()
    assert got == {"w/", "+w/bulk/", "w/bulk"}, got
    last = sorted(os.listdir(view.at("w/bulk")))[-1]
    deep = Watch(view, "w/bulk/" + last)
    view.store.ply("restore", snap, cwd=view.path)
    view.store.ply("restore", full, cwd=view.path)
    deep.close()
    watch.close()


def test_a_fork_may_be_mounted_so(t):
    view, snap = watched(t)
    at = t.at("fork")
    os.mkdir(at)
    view.store.ply("fork", "--from", "main", "idea", "--at", at, "--inotify")
    fork = ply.View(view.store, at)
    spoil(fork)
    watch = Watch(fork, "w", "w/d", "other")
    view.store.ply("restore", snap, cwd=at)
    assert RESTORED <= watch.told()
    watch.close()


def test_other_views_tell_nothing_and_snapshots_are_refused(t):
    view, snap = watched(t)
    spoil(view)
    watch = Watch(view, "w", "w/d", "other")
    view.store.ply("restore", snap, cwd=view.path)
    assert watch.told() == set()
    watch.close()
    ply.raises(errno.EOPNOTSUPP, os.setxattr, view.at("w"), "system.plyfs.restored", b"")
    ply.raises(errno.EOPNOTSUPP, os.getxattr, view.at("w"), GONE)
    view.store.fails("mount", "--snapshot", snap, "--inotify", "--at", t.at("no"), code=2,
                     says="--inotify is for branches")
    view.store.fails("fork", "x", "--inotify", code=2, says="--inotify goes with --at")


def test_others_may_not(t):
    ply.need_root()
    view, _ = watched(t, "--inotify")
    os.chmod(t.path, 0o755)

    def other():
        os.setgid(65534)
        os.setuid(65534)
        ply.raises(errno.EOPNOTSUPP, os.setxattr, view.at("w"), "system.plyfs.restored", b"")
        for name in (MADE, GONE, GONE_DIR, NOTHING):
            ply.raises(errno.EOPNOTSUPP, os.getxattr, view.at("w"), name)

    assert ply.ended_well(ply.child(other))


def test_a_symlink_in_place_of_a_directory_leads_nobody_out_of_the_view(t):
    if ply.sanitized():
        ply.skip("the sanitizer wants to be the first that is loaded")
    store = t.store()
    store.import_(t.tree({"w/name": "1", "v/x": "1"}))
    view = store.mount(None, None, None, "--inotify")
    outside = t.at("outside")
    os.mkdir(outside)
    os.symlink(outside, view.at("link"))
    snap = view.checkpoint()
    os.unlink(view.at("w/name"))
    swap = {"LD_PRELOAD": os.path.join(ply.BUILD, "tests", "bad_moments.so"),
            "PLYFS_SWAP": view.at("w"), "PLYFS_SWAP_FOR": view.at("link")}

    def swapped_by(*words):
        store.ply(*words, cwd=view.path, env=swap)
        assert os.path.islink(view.at("w")), "it was told"
        libc.renameat2(-100, view.at("w").encode(), -100, view.at("link").encode(), EXCHANGE)

    swapped_by("restore", snap)
    assert os.listdir(outside) == [], "the name was made there"
    open(os.path.join(outside, "name"), "w").close()
    swapped_by("undo")
    assert os.listdir(outside) == ["name"], "it was removed there"


def child_numbered(pid, work):
    """As ply.child, with a number that is free."""
    number = ctypes.c_int32(pid)
    args = struct.pack("=11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(number), 1, 0)
    pid = ctypes.PyDLL(None, use_errno=True).syscall(ctypes.c_long(CLONE3), args, ctypes.c_size_t(len(args)))
    if pid < 0:
        ply.skip("numbers of processes cannot be chosen: " + os.strerror(ctypes.get_errno()))
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def test_an_announcement_is_not_taken_for_that_of_who_gets_the_number_next(t):
    ply.need_root()
    view, _ = watched(t, "--inotify")
    d = view.at("w")
    one, two = (os.path.join(d, name) for name in ("one", "two"))

    def announced_and_killed(kind):
        pid = ply.child(lambda: (os.getxattr(d, kind), os.kill(os.getpid(), signal.SIGKILL)))
        os.waitpid(pid, 0)
        time.sleep(0.02)  # no number comes back within 10 ms
        return pid

    def absent(what, name):  # what nobody has asked for before: the kernel knows it then
        ply.raises(errno.ENOENT, what, os.path.join(d, name))

    for kind, work in ((MADE, lambda: view.read("w/same")),
                       (MADE, lambda: os.mkdir(one)),
                       (GONE_DIR, lambda: os.rmdir(one)),
                       (GONE, lambda: absent(os.stat, "three")),
                       (GONE, lambda: absent(os.unlink, "four")),
                       (GONE_DIR, lambda: absent(os.rmdir, "five")),
                       (GONE, lambda: view.write("w/two", "1")),
                       (GONE, lambda: os.unlink(two)),
                       (MADE, lambda: os.symlink("x", view.at("w/link")))):
        assert ply.ended_well(child_numbered(announced_and_killed(kind), work)), kind
    assert os.readlink(view.at("w/link")) == "x"
    assert sorted(os.listdir(d)) == ["away", "d", "edited", "link", "removed", "same"]


if __name__ == "__main__":
    ply.main(__name__)
