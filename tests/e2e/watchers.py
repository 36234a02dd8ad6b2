#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: live
"""Views with --inotify: who watches is told by a restore, and nothing changes by that."""
import ctypes
import errno
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

libc = ctypes.CDLL(None, use_errno=True)
ATTRIB, CREATE, DELETE_SELF, IGNORED = 0x4, 0x100, 0x400, 0x8000


class Watch:
    """inotify on some directories of a view."""

    def __init__(self, view, *dirs):
        self.view, self.fd, self.dirs = view, libc.inotify_init1(os.O_CLOEXEC), {}
        for d in dirs:
            wd = libc.inotify_add_watch(self.fd, view.at(d).encode(), ATTRIB | CREATE)
            assert wd > 0, d
            self.dirs[wd] = d

    def told(self):
        """What came until now; a directory's own event as "DIR/"."""
        end = self.view.at(self.dirs[1], "the end")
        os.mkdir(end)
        got = set()
        while True:
            buf = os.read(self.fd, 65536)
            while buf:
                wd, mask, _, size = struct.unpack_from("iIII", buf)
                name = buf[16:16 + size].rstrip(b"\0").decode()
                buf = buf[16 + size:]
                if name == "the end":
                    os.rmdir(end)
                    return got
                assert mask & ATTRIB, (mask, name)
                got.add(os.path.normpath(os.path.join(self.dirs[wd], name)) + "/" * (not name))

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


# All of what differs that is there, and directories whose names differ; "d" is w/d as w tells it.
RESTORED = {"w/edited", "w/removed", "w/d/inner", "w/", "w/away"}
UNDONE = {"w/edited", "w/new", "w/d/inner", "w/", "w/more"}


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
    assert {"w/edited", "w/d/inner", "w/"} <= got, got
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


def test_a_large_restore_tells_its_directories(t):
    view, snap = watched(t, "--inotify")
    ply.make_bulk(view.at("w/bulk"), 5000, size=100)
    full = view.checkpoint()
    watch = Watch(view, "w", "other")
    view.store.ply("restore", snap, cwd=view.path)
    assert watch.told() == {"w/"}
    view.store.ply("restore", full, cwd=view.path)
    got = watch.told()
    assert {"w/", "w/bulk"} == got, got
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

    assert ply.ended_well(ply.child(other))


if __name__ == "__main__":
    ply.main(__name__)
