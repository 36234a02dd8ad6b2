#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 180
"""What filesystems do that a store may lie on, beside the one that the tests use anyway."""
import contextlib
import errno
import json
import os
import shutil
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def layered(t, lower):
    """An overlayfs with that directory as its lower layer: what a container has of its image."""
    ply.need_root()
    at = t.at("overlay")
    for name in ("upper", "work", "overlay"):
        os.mkdir(t.at(name))
    p = t.run(["mount", "-t", "overlay", "overlay", at, "-o", "redirect_dir=off,lowerdir=%s,upperdir=%s,workdir=%s" %
               (lower, t.at("upper"), t.at("work"))], check=False)
    if p.returncode:
        ply.skip("no overlay here: " + p.stderr.strip())


def test_a_store_that_came_with_an_image(t):
    os.mkdir(t.at("image"))
    old = t.store("image/store")
    files = {"f%d" % i: "%d\n" % i * 3000 for i in range(50)}
    old.import_(t.tree(files))
    view = old.mount()
    view.write("sealed", "1")
    first = view.checkpoint("first")
    view.unmount()
    old.stop()
    layered(t, t.at("image"))

    store = t.store("overlay/store", init=False)
    view = store.mount()
    assert view.read("sealed") == "1" and view.read("f7") == files["f7"]
    view.write("sealed", "2")
    os.unlink(view.at("f7"))
    second = view.checkpoint("second")
    view.restore(first)
    assert view.read("sealed") == "1" and view.read("f7") == files["f7"]
    store.kill()
    assert view.read("f8") == files["f8"]
    view.restore(second)
    digest = view.digest()
    view.unmount()
    store.ply("gc")
    store.ply("check", "--read-data")
    store.stop()
    view = store.mount()
    assert view.digest() == digest
    view.unmount()
    # The image is as it was.
    store.stop()
    ply.wait_for("the end of the supervisor, too",
                 lambda: t.run(["umount", t.at("overlay")], check=False).returncode == 0)
    old.ply("check", "--read-data")
    assert [s["label"] for s in old.json("log")][0] == "first"


def test_and_whose_index_is_damaged(t):
    """The directories of a lower layer are not renamed: EXDEV."""
    os.mkdir(t.at("image"))
    old = t.store("image/store")
    old.import_(t.tree({"a": "precious"}))
    old.stop()
    os.truncate(old.path + "/index/data.mdb", 8192)
    layered(t, t.at("image"))
    store = t.store("overlay/store", init=False)
    store.fails("log", says="salvage")
    for _ in range(2):
        store.ply("salvage")
        store.ply("check", "--read-data")
        view = store.mount()
        assert view.read("a") == "precious"
        view.unmount()
        store.stop()
    assert {"index.damaged", "index.damaged.1"} <= set(os.listdir(store.path)), os.listdir(store.path)
    assert os.path.getsize(store.path + "/index.damaged/data.mdb") == 8192
    assert "salvage" not in os.listdir(store.path)
    os.unlink(store.path + "/index/data.mdb")
    store.ply("salvage")
    store.ply("check", "--read-data")


def a_killed_daemon_is_followed(t, megabytes, kind):
    ply.need_followed_daemon()
    ply.small_disk(t, megabytes, kind)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious"}))
    view = store.mount()
    view.write("b", "new")
    os.sync()
    with contextlib.ExitStack() as ends:
        # Once the disk is full xfs makes no more.
        fillers = [ends.enter_context(open(t.at("disk/filler%d" % n), "wb", 0)) for n in range(3)]
        for f in fillers:
            for size in (1 << 20, 4096, 512):
                with contextlib.suppress(OSError):
                    while True:
                        f.write(bytes(size))
            os.sync()
        ply.raises(errno.ENOSPC, fillers[0].write, bytes(1 << 16))
    pids = [store.daemon()]  # later it may have no socket to be asked by
    supervisor = int(ply.read("/proc/%d/stat" % pids[0]).rsplit(")", 1)[1].split()[1])
    for n in range(3):
        os.kill(pids[-1], signal.SIGKILL)
        assert view.read("a") == "precious" and view.read("b") == "new"
        with contextlib.suppress(OSError):  # ENOSPC, if it is
            view.write("c%d" % n, "x")
        pids.append(int(ply.read("/proc/%d/task/%d/children" % (supervisor, supervisor))))
    assert len(set(pids)) == 4, pids
    for n in range(3):
        os.unlink(t.at("disk/filler%d" % n))
    os.sync()
    view.write("d", "later")
    ply.wait_for("sealing, which is tried each second",
                 lambda: store.ply("checkpoint", "--sync", view.path, check=False).returncode == 0)
    store.ply("check", "--read-data")


def test_a_killed_daemon_is_followed_on_a_full_ext4(t):
    a_killed_daemon_is_followed(t, 96, "ext4")


def test_and_on_a_full_xfs_which_makes_no_file_then(t):
    a_killed_daemon_is_followed(t, 300, "xfs")


def test_and_on_a_full_btrfs(t):
    a_killed_daemon_is_followed(t, 160, "btrfs")


def test_on_a_full_xfs_what_is_deleted_makes_room(t):
    """It keeps blocks behind the end of files that are appended to, and did for good."""
    ply.small_disk(t, 300, "xfs")  # mkfs makes no smaller one
    store = t.store("disk/store")
    view = store.mount()
    block = os.urandom(1 << 20)

    def write(megabytes):
        """Whether there is room for so many."""
        with contextlib.suppress(OSError), open(view.at("f"), "wb", 0) as f:
            for i in range(megabytes):
                n = f.write(block[i:] + block[:i])
                if n < 1 << 20:
                    return False
            return True
        return False

    for n in range(6):
        assert not write(1000)
        os.unlink(view.at("f"))
        ply.wait_for("room", lambda: write(10))  # what gc unlinked it frees a moment later
        os.unlink(view.at("f"))
    store.ply("check", "--read-data")


def test_a_store_that_was_removed_says_so(t):
    store = t.store()
    store.import_(t.tree({"kept": "1"}))
    view = store.mount()
    view.write("written", "1")
    shutil.rmtree(store.path)
    said = "the store's directory was removed"
    fd = os.open(view.at("late"), os.O_RDWR | os.O_CREAT)
    ply.raises(errno.EIO, os.fsync, fd)
    os.close(fd)
    store.fails("checkpoint", "--sync", cwd=view.path, says=said)
    out = t.run([ply.PLYFS, "status"], cwd=view.path).stdout
    assert "REMOVED %s" % said in out, out
    assert json.loads(t.run([ply.PLYFS, "status", "--json"], cwd=view.path).stdout)["sizes"]["failed"]
    assert view.read("kept") == "1" and view.read("written") == "1", "to be copied"
    with open(view.at("large"), "wb") as f:
        ply.raises(errno.EIO, f.write, os.urandom(40 << 20))
    p = t.run([ply.PLYFS, "unmount", view.path], check=False)
    assert p.returncode == 1 and "what is in its view cannot be kept" in p.stderr, p
    assert view.read("written") == "1", "it is there to be copied still"
    t.run([ply.PLYFS, "unmount", "--no-sync", view.path])


def test_passthrough_wants_a_disk_and_no_program_below(t):
    """A program would empty the copy for an open with O_TRUNC that is refused afterwards."""
    ply.need_root()
    ply.need_tool("bindfs")
    for name in ("below", "bound", "at"):
        os.mkdir(t.at(name))
    t.run(["bindfs", t.at("below"), t.at("bound")])
    store = t.store("bound/store")
    snap = store.import_(t.tree({"a": b"x" * (2 << 20)}))
    says = store.fails("mount", "--snapshot", snap, "--passthrough", "--at", t.at("at"))
    if "does not offer" in says or "root on the machine" in says:
        ply.skip(says.strip())
    assert "lies on an overlay or on FUSE" in says, says
    view = store.mount(snapshot=snap)
    assert len(view.read("a")) == 2 << 20
    view.unmount()


def test_a_disk_that_becomes_read_only_is_said_to_be(t):
    where = ply.small_disk(t)
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious"}))
    view = store.mount()
    view.write("b", "answered")
    # As after an error of the disk.
    if t.run(["mount", "-o", "remount,abort", where], check=False).returncode:
        ply.skip("this ext4 cannot be told to give up")
    store.fails("checkpoint", "--sync", view.path, says="the store's disk is read-only now")
    assert (view.read("a"), view.read("b")) == ("precious", "answered")


if __name__ == "__main__":
    ply.main()
