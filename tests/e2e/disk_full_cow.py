#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 180
# serial: yes
"""A full disk where even allocated blocks are written elsewhere (btrfs, or xfs once the store was copied).
A mapped page then meets it as SIGBUS; the view must say ENOSPC, and its daemon lives on with everything."""
import contextlib
import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

# Each failure may take btrfs a second: it looks for room in vain.
TRIES = 12


def take_all(path):
    """Leaves nothing for anybody, whatever btrfs finds when it looks again."""
    with contextlib.ExitStack() as ends:
        # On a full xfs no file can be made.
        files = [ends.enter_context(open("%s%d" % (path, n), "wb", 0)) for n in range(4)]
        for f in files:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        f.write(bytes(size))
                except OSError as e:
                    assert e.errno == errno.ENOSPC, e
            os.sync()


def try_all(view, files, prefix):
    """Makes files as far as there is room; what was made is added to `files`."""
    full = 0
    for n in range(TRIES):
        name = "%s%d" % (prefix, n)
        try:
            with open(view.at(name), "w") as f:
                files[name] = ""
                f.write(name)
            files[name] = name
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
            full += 1
    return full


def expect(view, files):
    assert {name: view.read(name) for name in os.listdir(view.path)} == files


def test_a_full_disk_is_enospc_and_not_the_daemons_end(t):
    ply.small_disk(t, 160, "btrfs")
    store = t.store("disk/store")
    view = store.mount()
    files = {}
    assert try_all(view, files, "before") == 0
    daemon = store.json("status")["daemon"]["pid"]
    os.sync()  # what was mapped and written is now clean: it needs room when it is written again
    take_all(t.at("disk/filler"))
    full = try_all(view, files, "during")
    os.sync()
    full += try_all(view, files, "later")
    expect(view, files)
    assert full > 0, "the disk was never full"
    for n in range(4):
        os.unlink(t.at("disk/filler%d" % n))
    os.sync()
    assert try_all(view, files, "after") == 0
    expect(view, files)
    assert store.json("status")["daemon"]["pid"] == daemon
    view.checkpoint("whole")
    store.ply("check", "--read-data")


def test_a_view_that_fills_its_disk_can_remove_what_it_wrote(t):
    """What is not written back yet btrfs does not count: the room that is kept for commits was gone."""
    ply.small_disk(t, 160, "btrfs")
    store = t.store("disk/store")
    view = store.mount()
    view.write("a", "precious")
    block = os.urandom(1 << 20)

    def write(megabytes):
        """How many there was room for."""
        n = 0
        try:
            with open(view.at("big"), "wb", 0) as f:
                while n < megabytes and f.write(block[n % 4096:] + block[:n % 4096]) == 1 << 20:
                    n += 1
        except OSError as e:
            assert e.errno == errno.ENOSPC, e
        return n

    for n in range(8):
        assert 30 < write(1000) < 1000, n
        os.unlink(view.at("big"))
        ply.wait_for("room", lambda: write(10) == 10)
        os.unlink(view.at("big"))
    assert view.read("a") == "precious"
    store.ply("check", "--read-data")


def test_nor_is_it_when_a_copy_shares_the_stores_blocks(t):
    ply.small_disk(t, 300, "xfs")  # mkfs makes no smaller one
    t.env["PLYFS_TEST_SEGMENT_BYTES"] = str(256 << 10)
    store = t.store("disk/store")
    view = store.mount()
    view.write("f", "1")

    def fill_the_journal(records):
        """Some 200 bytes each. How many found no room."""
        full = 0
        for n in range(records):
            try:
                os.utime(view.at("f"), (n, n))
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                full += 1
        return full

    for _ in range(8):  # its files are used again: all of their blocks are written
        assert fill_the_journal(1000) == 0
        store.ply("checkpoint", "--sync", view.path)
    os.sync()
    # (Not its socket.)
    t.run(["sh", "-c", "mkdir copy && cp -r --reflink=always store/journal store/stage copy"], cwd=t.at("disk"))
    daemon = store.daemon()
    take_all(t.at("disk/filler"))
    assert fill_the_journal(1000) > 0, "the disk was never full"  # xfs gives 128 KiB at once
    assert view.read("f") == "1"
    for n in range(4):
        os.unlink(t.at("disk/filler%d" % n))
    os.sync()
    assert fill_the_journal(200) == 0 and store.daemon() == daemon
    view.checkpoint("whole")
    store.ply("check", "--read-data")


if __name__ == "__main__":
    ply.main()
