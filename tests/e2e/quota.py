#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 120
# serial: yes
"""A quota that is reached, of which statfs does not tell. It is as a full disk: what is written is refused before
nothing can be saved any more, so removing, dropping and gc make room. lib/quota.c plays a group's on a small disk, and
with it what an xfs says of root, whom none holds."""
import errno
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

MEGABYTES = 96


def begin(t):
    if ply.sanitized():
        ply.skip("the sanitizer wants to be the first that is loaded")
    ply.small_disk(t, MEGABYTES)
    t.env["LD_PRELOAD"] = os.path.join(ply.BUILD, "tests", "quota.so")
    store = t.store("disk/store")
    store.import_(t.tree({"a": "precious"}))
    return store, store.mount()


def fill(view, size):
    """Files of that size until three are refused; their names."""
    names, refused = [], 0
    while refused < 3:
        names.append("d%d/%d" % (len(names) % 9, len(names)))
        try:
            view.write(names[-1], os.urandom(size))
        except OSError as e:
            assert e.errno in (errno.ENOSPC, errno.EDQUOT), e
            refused += 1
    return names


def empties(store, view, names):
    """They can be removed, and the room comes back."""
    for name in filter(os.path.exists, map(view.at, names)):
        os.unlink(name)
    store.ply("checkpoint", "--sync", view.path)
    store.ply("gc")
    view.write("again", os.urandom(20 << 20))
    store.ply("checkpoint", "--sync", view.path)
    store.ply("check", "--read-data")
    assert view.read("a") == "precious"


def test_df_tells_what_the_quota_leaves(t):
    _, view = begin(t)
    assert 0 < ply.room(view.path) < MEGABYTES << 20


def test_large_files_can_be_removed_when_it_is_reached(t):
    store, view = begin(t)
    empties(store, view, fill(view, 4 << 20))


def test_small_files_can_be_removed_when_it_is_reached(t):
    store, view = begin(t)
    empties(store, view, fill(view, 50000))


def test_who_follows_a_daemon_that_is_killed_there_can_go_on(t):
    t.deaths()
    store, view = begin(t)
    names = fill(view, 4 << 20)
    store.kill()
    empties(store, view, names)


def test_a_store_that_is_opened_there_can_be_emptied(t):
    store, view = begin(t)
    names = fill(view, 4 << 20)
    before = view.digest()
    view.unmount()
    store.stop()
    view = store.mount()
    assert view.digest() == before
    empties(store, view, names)


if __name__ == "__main__":
    ply.main()
