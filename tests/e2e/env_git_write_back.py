#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 120
"""
What is written back of an environment of kind "git": its commits come along, or it says where they are.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply  # noqa: E402
from gitenv import Place, env, use_environment  # noqa: E402
from plylib import Env, Error  # noqa: E402

ply.need_tool("git")


def test_written_back_without_its_environment_it_says_that_it_needs_the_store(t):
    with env(t, at_cleanup="keep") as e:
        c = e.checkpoint()
        p = e.place
    told = t.run([ply.PLYFS, "unmount", "--write-back", p.path]).stderr
    assert p.git("rev-parse", "refs/plyfs/main") == c
    assert "commits" in told and "env destroy --write-back" in told, told
    t.run([ply.PLYFS, "env", "create", "--kind", "git", "again", p.path])
    told = t.run([ply.PLYFS, "env", "destroy", "--write-back", "again"]).stderr
    assert "commits" not in told and not os.path.exists(p.at(".git/objects/info/alternates"))
    assert p.git("rev-parse", "refs/plyfs/main") == c
    p.fsck()


def test_written_back_it_says_that_it_could_not_see_whether_it_needs_the_store(t):
    with env(t, at_cleanup="keep") as e:
        e.checkpoint()
        p = e.place
    os.rename(p.at(".git/objects"), p.at(".git/elsewhere"))
    os.symlink("elsewhere", p.at(".git/objects"))
    told = t.run([ply.PLYFS, "unmount", "--write-back", p.path]).stderr
    assert ".git/objects/info/alternates" in told and "commits" in told, told


def test_written_back_the_repository_needs_no_store(t):
    with env(t) as e:
        e.write_file("a", "changed")
        c = e.checkpoint()
        p, store = e.place, e.store
    store.stop()
    ply.remove(store.path)
    assert not os.path.exists(p.at(".git/objects/info/alternates"))
    assert p.history() == [c] and p.git("show", c + ":a") == "changed"
    p.fsck()
    # Life goes on: the next environment continues the line.
    e = Env("git", workdir=p.path)
    e.setup()
    try:
        again = e.checkpoint()
        p.wait_for(again)
        assert p.history() == [again, c]
        e.write_file("a", "later")
        e.restore(c)  # of a store that is gone: the files
        assert e.read_file("a") == b"changed"
    finally:
        e.cleanup()
        e.free()
    p.fsck()


def fails_to_write_back(t, spoil):
    """What the end of an environment says whose repository was spoilt; its files are written back."""
    use_environment(t)
    p = Place(t, t.at("work"))
    ply.make_tree(p.path, {"a": "one\n"})
    e = Env("git", workdir=p.path)
    e.setup()
    try:
        spoil(p)
        p.write("a", "two\n")
        e.checkpoint()
        e.cleanup()
        raise AssertionError("nothing was said")
    except Error as why:
        assert not os.path.ismount(p.path) and p.read("a") == "two\n", why
        return str(why)
    finally:
        e.free()


def test_a_write_back_says_which_commits_it_left_in_the_store(t):
    told = fails_to_write_back(t, lambda p: os.unlink(p.at(".git/HEAD")))
    assert t.at("work") in told and "commits.git" in told, told


def test_a_write_back_says_that_nothing_leads_to_its_commits(t):
    told = fails_to_write_back(t, lambda p: p.write(".git/refs/plyfs", "in the way"))
    assert "refs/plyfs/main" in told, told


ply.main(__name__)
