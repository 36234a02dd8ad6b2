#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 180
# serial: yes
"""A full disk: ENOSPC is said, and nothing else is lost. The store lies on a small loop file."""
import errno
import json
import mmap
import os
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def fill(view, name, megabytes):
    """Writes until it is enough or the disk is full; returns (bytes written, errno or 0)."""
    done = 0
    block = os.urandom(1 << 20)
    fd = os.open(view.at(name), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for i in range(megabytes):
            n = os.pwrite(fd, block[i:] + block[:i], done)
            done += n
    except OSError as e:
        return done, e.errno
    finally:
        os.close(fd)
    return done, 0


def view_on_a_small_disk(t, megabytes, files):
    ply.small_disk(t, megabytes)
    store = t.store("disk/store")
    store.import_(t.tree(files))
    return store.mount()


def test_a_store_that_finds_no_room_leaves_nothing(t):
    ply.small_disk(t)
    os.mkdir(t.at("disk/there"))
    with open(t.at("disk/fill"), "wb", 0) as f:
        try:
            while True:
                f.write(b"x" * 1024)
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
    for name in ("store", "there"):
        store = t.store("disk/" + name, init=False)
        said = store.fails("init", store.path, says="No space left on device")
        assert said.count("\n") == 1, said
    assert sorted(os.listdir(t.at("disk"))) == ["fill", "lost+found", "there"]
    assert os.listdir(t.at("disk/there")) == []


def test_what_finds_no_room_when_a_store_is_opened_is_named(t):
    ply.need_root()
    os.mkdir(t.at("disk"))
    t.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=100", "none", t.at("disk")])
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious"}))
    store.stop()
    names = [t.at("disk/%d" % i) for i in range(100)]
    try:
        for name in names:
            ply.write(name, "")
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
    says = store.fails("log")
    assert says == ("plyfs log: listening on '%s/sock': No space left on device\n" % store.path), says
    for name in filter(os.path.exists, names):
        os.unlink(name)
    store.ply("check", "--read-data")


def test_disk_full_during_an_import_leaves_the_store_as_it_was(t):
    ply.small_disk(t)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious"}))
    ply.make_tree(t.at("big"), {"f%d" % i: os.urandom(10 << 20) for i in range(12)})
    p = store.ply("import", "--branch", "big", t.at("big"), check=False, timeout=170)
    said, _, cure = p.stderr.rstrip("\n").partition(": plyfs ")
    assert p.returncode == 1 and "the store's disk is full; " in said and cure, p
    store.ply("check", "--read-data")
    view = store.mount()
    assert view.read("a") == "precious"
    # What the failed import wrote comes back as it says, wherever one is.
    assert "dropped" in t.run(["sh", "-c", "cd / && '%s' %s" % (ply.PLYFS, cure)]).stdout
    view.write("b", "x" * (5 << 20))
    store.ply("checkpoint", "--sync", view.path)
    store.ply("check", "--read-data")


def test_fallocate_refuses_what_the_disk_cannot_hold(t):
    view = view_on_a_small_disk(t, 96, {"old": os.urandom(20 << 20)})
    free = ply.room(view.path)
    with open(view.at("f"), "w+b") as f:
        try:
            os.posix_fallocate(f.fileno(), 0, free + (8 << 20))
            raise AssertionError("there is no room for it")
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
        assert os.fstat(f.fileno()).st_size == 0
        os.posix_fallocate(f.fileno(), 0, free - (8 << 20))
        assert os.fstat(f.fileno()).st_size == free - (8 << 20)
    # What is there already takes no room.
    with open(view.at("old"), "r+b") as f:
        os.posix_fallocate(f.fileno(), 0, free + (8 << 20))
        assert os.fstat(f.fileno()).st_size == free + (8 << 20)


def test_a_fast_writer_gets_what_df_promises(t):
    view = view_on_a_small_disk(t, 192, {"a": "precious"})
    free = ply.room(view.path)
    done, code = fill(view, "f", 192)
    assert code == errno.ENOSPC and done > free * 0.85, (done, free, code)
    assert view.read("a") == "precious"


def test_what_was_deleted_makes_room_by_itself(t):
    view = view_on_a_small_disk(t, 192, {"a": "precious"})
    for i in range(12):
        assert fill(view, "f", 40) == (40 << 20, 0), i
        os.unlink(view.at("f"))
    for i in range(4):  # at once, when not a byte is left
        assert fill(view, "f", 192)[1] == errno.ENOSPC
        os.unlink(view.at("f"))
        assert fill(view, "g", 60) == (60 << 20, 0), i
        os.unlink(view.at("g"))
    assert view.read("a") == "precious"
    view.store.ply("check", "--read-data")
    assert "gc: freed" in ply.read(t.at("disk/store/daemon.log"))


def long_acl(i):
    """of 4,060 bytes (FUSE takes a page), another for each i"""
    users = [(2, 7, 1000 * i + n) for n in range(503)]
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in [(1, 7, 0xFFFFFFFF), *users, (4, 5, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 5, 0xFFFFFFFF)])


def test_nor_are_long_attributes_and_targets_refused_before(t):
    view = view_on_a_small_disk(t, 64, {"a": "precious"})
    give_attribute = lambda i: os.setxattr(view.at("a"), "user.%d" % i, os.urandom(60000))
    give_target = lambda i: os.symlink(os.urandom(2000).hex(), view.at("link%d" % i))
    give_mode = lambda i: os.chmod(view.at("listed%d" % i), 0o640)  # changes the list's mask
    for i in range(300):
        view.write("listed%d" % i, "")
        os.setxattr(view.at("listed%d" % i), "system.posix_acl_access", long_acl(i))
    for give, size in (give_attribute, 60000), (give_target, 4000), (give_mode, 4000):
        assert fill(view, "f", 64)[1] == errno.ENOSPC
        os.unlink(view.at("f"))
        for i in range((1 << 20) // size + 1):  # more than the room in which there was none for a write
            give(i)


def test_who_is_refused_again_and_again_does_no_harm(t):
    view = view_on_a_small_disk(t, 96, {"a": "precious"})
    assert fill(view, "f", 96)[1] == errno.ENOSPC
    view.store.ply("drop", view.store.ply("checkpoint", "--sync", view.path).stdout.strip())
    log = t.at("disk/store/daemon.log")
    fd = os.open(view.at("g"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def is_refused():
        try:
            os.write(fd, os.urandom(1 << 20))
        except OSError as e:
            return e.errno == errno.ENOSPC
        return False

    # Sealing and gc may have given back the room for a few.
    ply.wait_for("a refusal", is_refused)
    before, free = os.path.getsize(log), ply.room(t.at("disk"))
    refused = sum(is_refused() for _ in range(500))
    try:
        os.posix_fallocate(fd, 0, 1 << 40)
    except OSError as e:
        refused += e.errno == errno.ENOSPC
    os.close(fd)
    assert refused == 501
    assert os.path.getsize(log) - before < 1000, ply.read(log)
    assert ply.room(t.at("disk")) > free - (1 << 20)
    os.unlink(view.at("f"))
    assert fill(view, "g", 30) == (30 << 20, 0)


def foreign_file(t):
    """Another program takes what is left of the disk."""
    with open(t.at("disk/foreign"), "wb", 0) as f:
        for size in (1 << 20, 1024):
            try:
                while True:
                    f.write(b"x" * size)
            except OSError as e:
                assert e.errno == errno.ENOSPC


def test_a_daemon_that_follows_on_a_full_disk_lets_names_be_removed(t):
    """What it has of the disk is what the one before had set aside."""
    view = view_on_a_small_disk(t, 64, {"d/%d" % i: "x" for i in range(300)})
    view.write("new", "x")
    foreign_file(t)
    view.store.kill()
    for i in range(300):
        os.unlink(view.at("d/%d" % i))
    view.write("new", "y")
    snap = view.checkpoint()
    view.write("new", "z")
    view.restore(snap)
    assert os.listdir(view.at("d")) == [] and view.read("new") == "y"
    os.unlink(t.at("disk/foreign"))
    view.store.ply("checkpoint", "--sync", view.path)
    view.store.ply("check", "--read-data")


def test_while_nothing_can_be_saved_names_are_removed_all_the_same(t):
    """Each used to wait for the sealer, which tries again each second: the limit of time is the test's."""
    view = view_on_a_small_disk(t, 256, {"d/%d" % i: "x" for i in range(300)})
    for i in range(6):
        view.write("big%d" % i, os.urandom(1 << 20).hex()[:1 << 20])
    foreign_file(t)
    assert fill(view, "refused", 8)[1] == errno.ENOSPC
    for i in range(300):
        os.unlink(view.at("d/%d" % i))
    # What cannot be saved is nothing that a check can look at.
    view.checkpoint()
    p = view.store.ply("check")
    assert "1 snapshot is not durable yet, and was not checked" in p.stdout, p
    assert json.loads(view.store.out("check", "--json"))["unsealed_snapshots"] == 1
    for words in (["checkpoint", "--sync", view.path], ["checkpoint", "--sync", "--branch", "main"]):
        view.store.fails(*words, says="No space left on device; the store's disk is full: make room there")
    os.unlink(t.at("disk/foreign"))
    assert os.listdir(view.at("d")) == []
    ply.wait_for("sealing", lambda: view.store.ply("checkpoint", "--sync", view.path,
                                                   check=False).returncode == 0)
    assert "durable" not in view.store.out("check")


def test_an_export_that_finds_no_room_leaves_the_archive_that_was_there(t):
    ply.small_disk(t, 24)
    view = t.view({"big": os.urandom(30 << 20)})
    archive = t.at("disk/a.tar")
    ply.write(archive, "precious")
    os.chmod(archive, 0o640)
    before = sorted(os.listdir(t.at("disk")))
    os.symlink("disk/a.tar", t.at("way"))
    os.symlink("way", t.at("link"))
    for to in archive, t.at("link"):
        p = view.store.ply("export", "main", "--tar", to, check=False)
        assert p.returncode == 1 and "'%s': " % to in p.stderr and "No space" in p.stderr, p
        assert ply.read(archive) == "precious" and sorted(os.listdir(t.at("disk"))) == before, to
    # With room it is replaced, and a link to it goes on leading there.
    os.truncate(view.at("big"), 1 << 20)
    view.store.ply("export", "main", "--tar", archive)
    assert os.stat(archive).st_mode & 0o777 == 0o640 and os.path.getsize(archive) > 1 << 20
    os.truncate(archive, 0)
    view.store.ply("export", "main", "--tar", t.at("link"))
    assert os.path.islink(t.at("link")) and os.path.getsize(archive) > 1 << 20
    assert os.stat(archive).st_mode & 0o777 == 0o640
    assert sorted(os.listdir(t.at("disk"))) == before


def test_disk_full_during_writes_in_the_view(t):
    ply.small_disk(t)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious", "b": "old" * 1000}))
    view = store.mount()
    view.write("kept", "written before")
    snap = view.checkpoint("before")
    done, error = fill(view, "big", 300)
    assert error == errno.ENOSPC, (done, error)
    assert done > 20 << 20, "only %d bytes before ENOSPC" % done
    # Everything acknowledged is there.
    assert os.stat(view.at("big")).st_size == done
    assert view.read("kept") == "written before" and view.read("a") == "precious"
    # Going back and throwing the big file away makes room again.
    view.restore(snap)
    assert view.ls() == ["a", "b", "kept"]
    store.ply("log")
    log = store.json("log")
    auto = [s["id"] for s in (log["snapshots"] if isinstance(log, dict) else log)
            if s.get("auto")]
    if auto:
        store.ply("drop", *auto)
    store.ply("gc", timeout=120)
    view.write("after", "y" * (4 << 20))
    assert view.read("after") == "y" * (4 << 20)
    store.ply("checkpoint", "--sync", view.path)
    digest = view.digest()
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")
    assert store.mount().digest() == digest


def test_what_a_mapping_could_not_save_is_not_seen_as_if_it_were_there(t):
    ply.small_disk(t)
    store, old = t.store("disk/store"), os.urandom(140000)
    store.import_(t.tree({"f": old}))
    view = store.mount()
    snap = view.checkpoint()
    done, error = fill(view, "big", 300)
    assert error == errno.ENOSPC, (done, error)
    while True:  # the rest, in small pieces
        with open(view.at("small"), "ab", buffering=0) as f:
            try:
                f.write(os.urandom(512))
            except OSError as e:
                assert e.errno == errno.ENOSPC
                break
    with open(view.at("f"), "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        assert m[:] == old
        m[85857:105857] = b"10" * 10000
        ply.raises(errno.ENOSPC, m.flush)
        ply.wait_for("the kernel to forget it", lambda: m[:] == old)
    with open(view.at("f"), "rb") as f:
        assert f.read() == old
    store.ply("restore", snap, cwd=view.path)
    with open(view.at("f"), "rb") as f:
        assert f.read() == old
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            assert m[:] == old


def test_df_does_not_promise_what_is_kept_back(t):
    ply.small_disk(t, 40)
    store = t.store("disk/store")
    view = store.mount()
    reserve = 16 << 20  # store/stage.c
    room = ply.room(store.path)  # first: a commit of the daemon's may come between
    assert 0 < ply.room(view.path) <= room - reserve
    with open(t.at("disk/other"), "wb") as f:
        f.write(os.urandom(ply.room(store.path) - reserve - (1 << 20)))
    assert ply.room(view.path) <= 1 << 20
    assert fill(view, "f", 2)[1] == errno.ENOSPC
    os.unlink(t.at("disk/other"))
    assert ply.room(view.path) > 0 and fill(view, "g", 2) == (2 << 20, 0)


def test_what_was_answered_as_the_disk_filled_up_outlives_an_unmount(t):
    where = t.at("disk")
    os.mkdir(where)
    t.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", where])
    t.clean.append(lambda: t.run(["umount", where], check=False))
    store = t.store("disk/store")
    store.import_(t.tree({"a": "1"}))
    view = store.mount()
    megabyte = b"\xaa" * (1 << 20)
    fds = [os.open(view.at("f%d" % i), os.O_CREAT | os.O_RDWR, 0o644) for i in range(20)]
    for round in range(3):
        answered = []
        os.pwrite(fds[0], megabyte, 0)
        time.sleep(0.3)
        store.ply("gc")  # what the stage keeps for later goes
        os.pwrite(fds[1], b"w" * 5000, 0)  # who asks for the room now hears of it for 50 ms
        st = os.statvfs(where)
        used = (st.f_blocks - st.f_bfree) * st.f_frsize // 1024
        t.run(["mount", "-o", "remount,size=%dk" % (used + 1536), where])
        for i in range(2, 20):
            try:
                os.pwrite(fds[i], bytes([round]) * (1 << 20), 0)
                answered.append(i)
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                break
        for fd in fds:
            os.close(fd)
        view.unmount()
        store.stop()
        t.run(["mount", "-o", "remount,size=200m", where])
        view = store.mount()
        for i in answered:
            with open(view.at("f%d" % i), "rb") as f:
                assert f.read(1 << 20) == bytes([round]) * (1 << 20), (round, i)
        fds = [os.open(view.at("f%d" % i), os.O_RDWR) for i in range(20)]
    for fd in fds:
        os.close(fd)
    store.ply("check", "--read-data")


def test_a_store_that_is_opened_on_a_full_disk_can_be_emptied(t):
    """Its journal had no place for a drop, wanting one of 4 MiB; and gc alone finds nothing."""
    view = view_on_a_small_disk(t, 96, {"a": "precious"})
    assert fill(view, "big", 30) == (30 << 20, 0)
    snap = view.checkpoint()
    os.unlink(view.at("big"))
    view.store.ply("checkpoint", "--sync", view.path)
    view.unmount()
    view.store.stop()
    with open(t.at("disk/other"), "wb", 0) as f:
        while ply.room(t.at("disk")) > 512 << 10:  # what a change would do with
            f.write(os.urandom(64 << 10))
    view = view.store.mount()
    ply.raises(errno.ENOSPC, os.mkdir, view.at("d"))
    assert view.read("a") == "precious"
    view.store.ply("drop", snap)
    view.store.ply("gc")
    ply.wait_for("room", lambda: ply.room(t.at("disk")) > 30 << 20)
    os.mkdir(view.at("d"))


def test_what_the_stage_keeps_for_later_goes_before_saving_finds_no_room(t):
    """The sealer found none for a minute when others had filled the disk: only who wrote data had it given back."""
    view = view_on_a_small_disk(t, 96, {"a": "precious"})
    assert fill(view, "big", 20) == (20 << 20, 0)
    view.store.ply("checkpoint", "--sync", view.path)
    with open(t.at("disk/other"), "wb", 0) as f:
        ply.raises(errno.ENOSPC, lambda: [f.write(os.urandom(64 << 10)) for _ in range(96 << 4)])
    os.mkdir(view.at("d"))
    view.store.ply("checkpoint", "--sync", view.path)


def test_truncating_works_on_a_full_disk(t):
    ply.small_disk(t)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "1"}))
    view = store.mount()
    done, error = fill(view, "big", 300)
    assert error == errno.ENOSPC
    os.truncate(view.at("big"), 0)
    os.unlink(view.at("big"))
    done, error = fill(view, "again", 10)
    assert (done, error) == (10 << 20, 0)


if __name__ == "__main__":
    ply.main()
