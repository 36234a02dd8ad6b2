#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""
Environments of kind "git" on a real mount: checkpoints that are commits, restores of any commit.
What a commit's tree should be is asked of git itself, in a repository of its own.
"""
import contextlib
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply  # noqa: E402
import plylib  # noqa: E402
from gitenv import Place, env, use_environment  # noqa: E402
from plylib import Env, Error  # noqa: E402

ply.need_tool("git")


# ---- what every environment promises ----

def test_setup_makes_a_repository_where_there_is_none(t):
    with env(t) as e:
        p = e.place
        assert os.path.isdir(p.at(".git"))
        assert p.git("log", "--format=%s|%an|%ae") == "initial|Chimera|chimera@local"
        assert p.git("config", "--local", "user.name") == "Chimera"
        assert p.git("config", "--local", "user.email") == "chimera@local"
        assert p.read(".gitkeep") == ""
        assert p.git("status", "--porcelain") == ""
        p.fsck()


def test_setup_of_an_empty_directory_commits_gitkeep(t):
    with env(t, files={}) as e:
        assert e.place.git("ls-tree", "--name-only", "HEAD") == ".gitkeep"


def test_a_setup_that_fails_leaves_no_workdir_behind(t):
    """Of a fork: its directory has gone."""
    use_environment(t)
    view = t.view({"a": "1"})
    e = Env("git", bench=t, store=view.store.path, branch="b.lock")
    try:
        e.setup()
        raise AssertionError("git takes a ref that ends in .lock")
    except Error as failed:
        assert failed.status == "PLY_INVALID" and "b.lock" in failed.sentence, failed
    assert e.workdir == "", e.workdir
    e.set("branch", "b")
    with e:
        assert e.read_file("a") == b"1"


def test_setup_leaves_an_existing_repository_alone(t):
    use_environment(t)
    p = Place(t, t.tree({"a": "1"}, "work"))
    p.git("init", "-q", "-b", "trunk")
    p.git("add", ".")
    p.git("commit", "-q", "-m", "first")
    before = p.state()
    e = Env("git", workdir=p.path)
    e.setup()
    try:
        assert p.state() == before
        assert p.git("log", "--format=%s") == "first"
        assert not os.path.exists(p.at(".gitkeep"))
    finally:
        e.cleanup()
        e.free()
    assert p.state() == before


def test_a_checkpoint_is_forty_hex_digits(t):
    with env(t) as e:
        one = e.checkpoint()
        assert len(one) == 40 and set(one) <= set("0123456789abcdef"), one
        # The same state again: a commit all the same.
        assert e.checkpoint() != one


def test_restore_reverts_content(t):
    with env(t) as e:
        c = e.checkpoint()
        e.write_file("a", "changed")
        e.restore(c)
        assert e.read_file("a") == b"one\n"


def test_of_three_versions_the_first_then_the_second_comes_back(t):
    with env(t) as e:
        ids = []
        for v in ("v1", "v2", "v3"):
            e.write_file("a", v)
            ids.append(e.checkpoint())
        e.restore(ids[0])
        assert e.read_file("a") == b"v1"
        e.restore(ids[1])
        assert e.read_file("a") == b"v2"


def test_a_file_made_after_the_checkpoint_is_gone(t):
    with env(t) as e:
        c = e.checkpoint()
        e.write_file("new/file", "x")
        later = e.checkpoint()  # upstream keeps a file that a later checkpoint committed
        e.restore(c)
        assert not os.path.exists(e.place.at("new"))
        e.restore(later)
        assert e.read_file("new/file") == b"x"


def test_ignored_files_and_empty_directories_are_restored(t):
    with env(t, {"a": "1", ".gitignore": "*.o\n", "x.o": "object", "empty": None}) as e:
        c = e.checkpoint()
        os.unlink(e.place.at("x.o"))
        os.rmdir(e.place.at("empty"))
        e.restore(c)
        assert e.place.read("x.o") == "object" and os.path.isdir(e.place.at("empty"))


def test_an_unknown_id_touches_nothing(t):
    with env(t) as e:
        e.place.wait_for(e.checkpoint())
        e.write_file("untracked", "x")
        before = ply.treedigest(e.place.path)
        for bad in ("0" * 40, "deadbeef", "nobody", "", "HEAD~7", "-x"):
            try:
                e.restore(bad)
                raise AssertionError("restored " + bad)
            except Error as why:
                assert why.status == "PLY_UNKNOWN_ID", why
        assert ply.treedigest(e.place.path) == before


def test_has_session_is_false_by_default(t):
    with env(t) as e:
        assert not e.has_session


def test_a_clone_has_the_files_and_the_history(t):
    with env(t) as e:
        one = e.checkpoint("first")
        e.write_file("a", "changed")
        two = e.checkpoint()
        copy = e.clone()
        try:
            p = Place(t, copy.workdir)
            ref = "refs/plyfs/" + [r for r in p.git(
                "for-each-ref", "--format=%(refname:lstrip=2)").split() if "env-" in r][0]
            assert p.history() == p.history(ref) == [two, one]
            copy.write_file("a", "of the copy")
            three = copy.checkpoint()
            p.wait_for(three, ref)
            assert p.history(ref) == [three, two, one]
            assert e.read_file("a") == b"changed"
            copy.restore(one)
            assert copy.read_file("a") == b"one\n"
            # The first one finds what the copy did.
            e.restore(three)
            assert e.read_file("a") == b"of the copy"
            p.fsck()
        finally:
            copy.cleanup()
            copy.free()
        e.place.fsck()


# ---- what is never touched ----

HOOKS = ("pre-commit post-commit prepare-commit-msg commit-msg post-checkout post-index-change "
         "reference-transaction pre-auto-gc post-rewrite post-merge").split()


def test_head_index_and_hooks_are_bytewise_untouched_and_no_hook_runs(t):
    with env(t, repo=True) as e:
        p = e.place
        for h in HOOKS:
            p.write(".git/hooks/" + h, "#!/bin/sh\necho %s >>%s\n" % (h, t.at("ran")), 0o755)
        p.write("a", "staged")
        p.git("add", "a")
        p.write("a", "and changed")
        before = p.state()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(t.at("ran"))
        one = e.checkpoint()
        e.checkpoint("label")
        p.wait_for(e.checkpoint())
        assert p.state() == before
        e.restore(one)
        assert p.state() == before
        assert not os.path.exists(t.at("ran")), ply.read(t.at("ran"))
        assert p.git("diff", "--cached", "--name-only") == "a"


def test_the_users_configuration_does_not_matter(t):
    use_environment(t)
    ply.write(t.at("home/.gitconfig"), "[broken\n")
    ply.write(t.at("home/.config/git/ignore"), "*\n")
    with env(t, commit="untracked") as e:
        c = e.checkpoint()
        os.unlink(t.at("home/.gitconfig"))
        e.place.wait_for(c)
        assert e.place.git("ls-tree", "-r", "--name-only", c).split() == [".gitkeep", "a", "dir/b"]


def test_the_authors_name_is_the_repositorys_own(t):
    with env(t, repo=True) as e:
        c = e.checkpoint("what happened")
        e.place.wait_for(c)
        assert e.place.git("log", "-1", "--format=%an <%ae>|%s", c) == \
            "Somebody <some@body>|what happened"
        trailer = e.place.git("log", "-1", "--format=%(trailers:key=Plyfs-Snapshot,valueonly)", c)
        assert ply.ID.match(trailer), trailer


# ---- trees ----

def test_the_tree_holds_modes_symlinks_and_odd_names(t):
    with env(t) as e:
        p = e.place
        p.write("run.sh", "#!/bin/sh\n", 0o755)
        p.write("group only", "x", 0o654)
        os.symlink("a", p.at("link"))
        os.symlink("nowhere/at/all", p.at("broken"))
        os.symlink("dir", p.at("to-dir"))
        for name in ("with\nnewline", "a.b", "a-b", "a0", "a\xe9", "-dash", "\\", "*"):
            p.write(os.path.join("odd", name), name)
        p.write("odd/%s/deep" % ("n" * 255), "x")
        p.write("a.d/x", "sorts after a.b")
        p.write("empty file", "")
        os.mkfifo(p.at("fifo"))
        os.makedirs(p.at("empty/below"))
        c = e.checkpoint()
        p.wait_for(c)
        os.unlink(p.at("fifo"))
        assert p.tree(c) == p.git_tree()
        p.fsck()


def test_each_choice_of_files_is_what_git_add_makes_of_it(t):
    files = {"tracked": "1", "dir/tracked": "1", ".gitignore": "*.o\nbuild/\n!keep.o\n",
             "dir/.gitignore": "local\n", "forced.o": "forced"}
    for mode, add in (("all", ("-A", "-f")), ("untracked", ("-A",)), ("tracked", ("-u",))):
        with env(t, files, repo=True, name="work-" + mode, commit=mode) as e:
            p = e.place
            p.git("add", "-f", "forced.o")
            p.git("commit", "-q", "-m", "forced")

            def same():
                c = e.checkpoint()
                p.wait_for(c)
                if mode == "untracked":  # what is tracked stays, though it is ignored
                    index = t.at("oracle.index")
                    subprocess.run(["cp", p.at(".git/index"), index], check=True)
                    more = dict(t.env, GIT_INDEX_FILE=index)
                    p.git("add", "-A", ".", env=more)
                    want = p.git("write-tree", env=more)
                else:
                    want = p.git_tree(*add)
                assert p.tree(c) == want, (mode, p.git("ls-tree", "-r", "--name-only", c),
                                           p.git("ls-tree", "-r", "--name-only", want))

            same()
            p.write("untracked", "2")
            p.write("x.o", "2")
            p.write("keep.o", "2")
            p.write("dir/local", "2")
            p.write("build/deep/out", "2")
            same()
            p.write(".gitignore", "untracked\n")
            same()
            p.write("tracked", "changed")
            os.unlink(p.at("dir/tracked"))
            same()
            p.git("add", "-f", "untracked", "x.o")
            same()
            os.unlink(p.at("untracked"))
            same()
            p.write("untracked", "again")
            same()
            p.git("rm", "-q", "--cached", "tracked")
            same()


def change(rng, top, names):
    """One random change of a tree."""
    name = os.path.join(top, rng.choice(names))
    what = rng.randrange(8)
    with contextlib.suppress(OSError):
        if what < 3:
            ply.write(name, "%d" % rng.randrange(50))
        elif what == 3:
            subprocess.run(["rm", "-rf", name], stderr=subprocess.DEVNULL)
        elif what == 4:
            os.symlink(rng.choice(names), name)
        elif what == 5:
            if not os.path.islink(name):
                os.chmod(name, rng.choice([0o644, 0o755, 0o700, 0o600]))
        elif what == 6:
            os.rename(name, os.path.join(top, rng.choice(names)))
        else:
            os.makedirs(name)


def test_random_changes_give_the_trees_that_git_gives_and_come_back_in_any_order(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED", time.time_ns() % 1000000))
    print("# seed %d" % seed)
    rng = random.Random(seed)
    names = [os.path.join(*rng.choices(["a", "b", "c.d", "c", "e-"], k=rng.randrange(1, 5)))
             for _ in range(30)]
    with env(t) as e:
        p, seen = e.place, []
        for step in range(200 if ply.LONG else 40):
            for _ in range(rng.randrange(6)):
                change(rng, p.path, names)
            if seen and rng.random() < 0.3:
                commit, tree = rng.choice(seen)
                e.restore(commit)
                assert p.git_tree() == tree, step
                continue
            c = e.checkpoint()
            tree = p.git_tree()
            seen.append((c, tree))
        p.wait_for(seen[-1][0])
        for commit, tree in seen:
            assert p.tree(commit) == tree
        assert p.history() == [s[0] for s in reversed(seen)]
        p.fsck()


def test_the_tree_is_the_snapshots_whatever_is_going_on(t):
    with env(t, {"d%d/f%d" % (i % 7, i): "0" for i in range(60)}) as e:
        p, stop = e.place, threading.Event()
        rng = random.Random(1)
        names = ["d%d/f%d" % (i % 7, i) for i in range(60)] + ["d1", "d2/new/deep", "e"]

        def busy():
            while not stop.is_set():
                change(rng, p.path, names)

        thread = threading.Thread(target=busy)
        thread.start()
        try:
            commits = [e.checkpoint() for _ in range(15)]
        finally:
            stop.set()
            thread.join()
        p.wait_for(commits[-1])
        for c in commits[::3]:
            snap = p.git("log", "-1", "--format=%(trailers:key=Plyfs-Snapshot,valueonly)", c)
            view = e.store.mount(snapshot=snap)
            shown = Place(t, view.path)
            index = t.at("oracle.index")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(index)
            more = dict(t.env, GIT_INDEX_FILE=index, GIT_DIR=p.at(".git"), GIT_WORK_TREE=view.path)
            shown.git("add", "-A", "-f", ".", env=more)
            assert shown.git("write-tree", env=more) == p.tree(c)
            view.unmount()


def test_nested_repositories_and_submodules(t):
    use_environment(t)
    lib = Place(t, t.tree({"lib.c": "1"}, "lib"))
    lib.git("init", "-q")
    lib.git("add", ".")
    lib.git("commit", "-q", "-m", "lib")
    with env(t, repo=True) as e:
        p = e.place
        p.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", lib.path, "sub")
        p.git("commit", "-q", "-m", "submodule")
        inner = Place(t, t.tree({"own": "1", "deep/own": "2"}, "work/inner"))
        inner.git("init", "-q")
        inner.git("add", ".")
        inner.git("commit", "-q", "-m", "inner")
        c = e.checkpoint()
        p.wait_for(c)
        listing = p.git("ls-tree", "-r", c).splitlines()
        assert any(line.startswith("160000 commit " + lib.git("rev-parse", "HEAD"))
                   for line in listing), listing
        files = [line.split("\t")[1] for line in listing]
        assert files == [".gitmodules", "a", "dir/b", "inner/deep/own", "inner/own", "sub"], files
        # The submodule moves on: its commit is what is recorded, without a word in our own index.
        sub = Place(t, p.at("sub"))
        sub.write("lib.c", "2")
        sub.git("commit", "-q", "-a", "-m", "next")
        moved = e.checkpoint()
        p.wait_for(moved)
        assert p.git("rev-parse", moved + ":sub") == sub.git("rev-parse", "HEAD")
        # The snapshot has all of both.
        subprocess.run(["rm", "-rf", p.at("inner"), p.at("sub")], check=True)
        e.restore(c)
        assert inner.git("status", "--porcelain") == "" and sub.read("lib.c") == "1"
        p.fsck()


def test_an_index_that_is_not_understood_is_done_without(t):
    """libgit2 knows neither a split nor a sparse one, and anybody may have damaged it."""
    with env(t, {"a": "1", "dir/b": "2", "other/c": "3"}, repo=True) as e:
        p, inner = e.place, Place(t, t.tree({"own": "1"}, "work/sub"))
        inner.git("init", "-q")
        inner.git("add", ".")
        inner.git("commit", "-q", "-m", "inner")
        p.git("-c", "advice.addEmbeddedRepo=false", "add", "sub")
        p.git("status")  # or what is not up to date stays outside of the sparse directories
        first = e.checkpoint()
        for make in (lambda: p.git("sparse-checkout", "set", "--cone", "--sparse-index", "dir"),
                     lambda: p.git("-c", "index.sparse=false", "update-index", "--split-index"),
                     lambda: os.truncate(p.at(".git/index"), 100),
                     lambda: p.write(".git/index", "")):
            make()
            p.write("a", p.read("a") + "2")
            inner.git("commit", "-q", "--allow-empty", "-m", "next")
            c = e.checkpoint()
            p.wait_for(c)
            # What a submodule is was said by the last index that could be read.
            assert p.git("rev-parse", c + ":sub") == inner.git("rev-parse", "HEAD")
            assert p.tree(c) == p.git_tree("-A", "-f", "--sparse"), p.git("ls-tree", "-r", c)
        e.restore(first)
        assert p.git("status", "--porcelain") == "A  sub"
    with env(t, repo=True, name="tracked", commit="tracked") as e:
        e.place.git("update-index", "--split-index")
        plylib.fails("PLY_FAILED", "set option 'commit' to 'all'", e.checkpoint)


# ---- commits of others ----

def outside_commit(p, files, branch="other"):
    """A commit on a branch of its own, made without the working tree."""
    index = p.t.at("outside.index")
    more = dict(p.t.env, GIT_INDEX_FILE=index)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(index)
    for name, data in files.items():
        blob = p.git("hash-object", "-w", "--stdin", input=data)
        p.git("update-index", "--add", "--cacheinfo", "100755," + blob + "," + name, env=more)
    tree = p.git("write-tree", env=more)
    c = p.git("commit-tree", "-m", "outside", tree)
    if branch:
        p.git("update-ref", "refs/heads/" + branch, c)
    return c


def test_a_commit_made_outside_becomes_the_working_tree(t):
    with env(t, {"a": "1", "old/deep/x": "2", ".gitignore": "*.o\n", "same": "s"}, repo=True) as e:
        p = e.place
        p.write("x.o", "ignored")
        p.write("untracked/y", "y")
        os.makedirs(p.at("empty"))
        os.mkfifo(p.at("old/fifo"))
        os.chmod(p.at("same"), 0o644)
        c = outside_commit(p, {"a": "new", "same": "s", "old/deep": "a file now", "n/e/w": "n"})
        before, digest = p.state(), ply.treedigest(p.path)
        inode = os.stat(p.at("same")).st_ino
        e.restore(c)
        assert p.state() == before
        assert p.files() == ["a", "n/e/w", "old/deep", "same"], p.files()
        assert not os.path.exists(p.at("empty")) and not os.path.exists(p.at("untracked"))
        assert p.git_tree() == p.tree(c)
        assert os.stat(p.at("same")).st_ino == inode, "an equal file is not written again"
        assert os.stat(p.at("same")).st_mode & stat.S_IXUSR
        e.undo()
        assert ply.treedigest(p.path) == digest
        e.restore("other")  # any name that rev-parse takes
        assert p.read("a") == "new"
        e.restore("other~0^{commit}")
        e.restore(c[:12])


def test_a_restore_that_finds_nothing_to_change_keeps_what_undo_brings_back(t):
    with env(t, {"a": "1"}, repo=True) as e:
        p = e.place
        c = outside_commit(p, {"a": "2"})
        digest = ply.treedigest(p.path)
        e.restore(c)
        e.restore(e.store.out("checkpoint", p.path).strip())  # a snapshot: no commit is written meanwhile
        e.undo()
        assert ply.treedigest(p.path) == digest


def test_restoring_outside_commits_spares_what_is_not_committed(t):
    with env(t, {"a": "1", ".gitignore": "*.o\n"}, repo=True, commit="untracked") as e:
        p = e.place
        c = outside_commit(p, {"b": "2", ".gitignore": "*.o\n"})
        p.write("x.o", "kept")
        p.write("d/x.o", "kept")
        p.write("d/gone", "x")
        e.restore(c)
        assert p.files() == [".gitignore", "b", "d/x.o", "x.o"], p.files()
    with env(t, {"a": "1"}, repo=True, commit="tracked", name="work2") as e:
        p = e.place
        c = outside_commit(p, {"b": "2"})
        p.write("untracked", "kept")
        os.makedirs(p.at("empty"))
        e.restore(c)
        assert p.files() == ["b", "untracked"] and os.path.isdir(p.at("empty"))


def test_outside_commits_survive_restores_of_older_states(t):
    with env(t, repo=True) as e:
        p = e.place
        old = e.checkpoint()
        p.write("a", "by hand")
        p.git("commit", "-q", "-a", "-m", "by hand")
        mine = p.git("rev-parse", "HEAD")
        lost = outside_commit(p, {"z": "nobody points here"}, branch=None)
        p.git("gc", "-q")  # and what it packs
        e.restore(old)
        assert p.git("log", "--format=%s") == "first"
        assert p.read("a") == "one\n"
        e.restore(mine)
        assert p.read("a") == "by hand" and p.git("log", "--format=%s") == "first"
        e.restore(lost)
        assert p.files() == ["z"]
        e.restore(old)
        e.undo()
        e.restore(mine)
        assert p.read("a") == "by hand"
        p.fsck()


def test_a_copy_of_a_checkpoint_is_not_taken_for_its_snapshot(t):
    with env(t, repo=True) as e:
        p = e.place
        p.write("x", "checkpointed")
        c = e.checkpoint()
        p.wait_for(c)
        p.write("only in the copy", "1")
        p.git("add", "only in the copy")
        p.git("commit", "-q", "-C", c)
        copy = p.git("rev-parse", "HEAD")
        assert "Plyfs-Snapshot" in p.git("log", "-1", "--format=%B", copy)
        e.restore(copy)
        assert p.files() == ["a", "dir/b", "only in the copy"], p.files()


def test_a_commit_whose_snapshot_was_dropped_gives_its_files(t):
    with env(t) as e:
        p = e.place
        p.write("x.sh", "1", 0o755)
        c = e.checkpoint()
        p.wait_for(c)
        snap = p.git("log", "-1", "--format=%(trailers:key=Plyfs-Snapshot,valueonly)", c)
        p.write("x.sh", "2")
        p.write("y", "2")
        later = e.checkpoint()
        e.store.ply("drop", snap)
        e.restore(c)
        assert p.read("x.sh") == "1" and p.git_tree() == p.tree(c)
        assert not os.path.exists(p.at("y"))
        after = e.checkpoint()
        p.wait_for(after)
        assert p.tree(after) == p.tree(c) and p.history() == [after, later, c]
        p.fsck()


def test_a_tree_with_unsafe_names_is_refused_and_nothing_is_touched(t):
    with env(t, repo=True) as e:
        p = e.place
        blob = p.git("hash-object", "-w", "--stdin", input="x")
        digest = p.git_tree()
        for name in ("..", ".git", ".GIT", "git~1", "a/b", "."):
            raw = b"100644 zz-fine\0" + bytes.fromhex(blob) + b"100644 " + name.encode() + \
                b"\0" + bytes.fromhex(blob)
            tree = p.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", input=raw,
                         text=False).decode()
            c = p.git("commit-tree", "-m", "hostile", tree)
            try:
                e.restore(c)
                raise AssertionError("took " + name)
            except Error as why:
                assert why.status == "PLY_DENIED", why
            assert p.git_tree() == digest
        assert p.files() == ["a", "dir/b"]


# ---- history ----

def test_the_history_is_there_clean_and_survives_gc(t):
    with env(t) as e:
        p, ids = e.place, []
        for i in range(25):
            p.write("a", "version %d" % i)
            ids.append(e.checkpoint("step %d" % i))
            if i % 5 == 4:
                e.restore(ids[i // 2])
        p.wait_for(ids[-1])
        assert p.git("log", "--format=%s", "refs/plyfs/main").splitlines() == \
            ["step %d" % i for i in reversed(range(25))]
        packs = [n for n in os.listdir(os.path.join(e.store.path, "commits.git/objects/pack"))
                 if n.endswith(".pack")]
        assert len(packs) < 25, packs
        p.git("gc", "-q", "--prune=now")
        p.git("pack-refs", "--all")
        p.git("prune")
        p.fsck()
        for i in (24, 0, 12):
            e.restore(ids[i])
            assert p.read("a") == "version %d" % i
            assert p.history() == ids[::-1]
        p.fsck()
        t.run(["git", "-C", os.path.join(e.store.path, "commits.git"), "fsck", "--strict"])


def test_a_ref_of_ones_own_choice(t):
    with env(t, ref="refs/notes-of-mine/x") as e:
        c = e.checkpoint()
        e.place.wait_for(c, "refs/notes-of-mine/x")
    for bad in ("main", "refs/heads/main", "refs/plyfs/a..b", "HEAD"):
        e = Env("git", workdir=t.at("work"), ref=bad)
        try:
            e.setup()
            raise AssertionError("took " + bad)
        except Error as why:
            assert why.status == "PLY_INVALID", why
        e.free()


def test_two_environments_on_one_view_lose_no_commit(t):
    with env(t) as e:
        other = Env("git", workdir=e.place.path)
        other.setup()
        try:
            ids = set()
            for i in range(6):
                e.write_file("a", "e%d" % i)
                ids.add(e.checkpoint())
                other.write_file("a", "o%d" % i)
                ids.add(other.checkpoint())
            ply.wait_for("all of them", lambda: ids <= set(e.place.history()))
        finally:
            other.cleanup()
            other.free()
        e.place.fsck()


def test_without_a_git_directory_checkpoints_go_on(t):
    with env(t) as e:
        p = e.place
        one = e.checkpoint()
        subprocess.run(["rm", "-rf", p.at(".git")], check=True)
        p.write("a", "2")
        two = e.checkpoint()
        e.restore(one)
        assert p.read("a") == "one\n" and os.path.isdir(p.at(".git"))
        p.wait_for(two)
        e.restore(two)
        assert p.read("a") == "2" and not os.path.exists(p.at(".git"))
        e.restore(one)
        p.fsck()


def test_a_working_directory_inside_a_view_is_the_repositorys_top(t):
    use_environment(t)
    view = t.view({"one/a": "1", "two/b": "2"})
    p = Place(t, view.at("one"))
    with Env("git", workdir=p.path) as e:
        c = e.checkpoint()
        p.write("a", "changed")
        view.write("two/b", "changed")
        two = e.checkpoint()
        p.wait_for(two)
        assert p.git("ls-tree", "-r", "--name-only", two).split() == [".gitkeep", "a"]
        assert p.git("show", c + ":a") == "1" and p.git("show", two + ":a") == "changed"
        e.restore(c)
        assert p.read("a") == "1" and view.read("two/b") == "2"


def test_diff_takes_commits(t):
    with env(t) as e:
        one = e.checkpoint()
        e.write_file("a", "2")
        two = e.checkpoint()
        lines = e.diff(one, two).splitlines()
        assert "M\ta" in lines, lines
        assert "M\ta" not in e.diff(two).splitlines()


# ---- what a kill leaves ----

LOOP = """
import os, sys
sys.path.insert(0, sys.argv[1])
import plylib
e = plylib.Env("git", workdir=sys.argv[2], at_cleanup="keep")
e.setup()
for i in range(100000):
    e.write_file("a", "round %d" % i)
    print(i, e.checkpoint("round %d" % i), flush=True)
"""


def test_a_killed_caller_loses_the_last_commits_at_most(t):
    use_environment(t)
    view = t.view({"a": "0", "b": "1"})
    p = Place(t, view.path)
    lib = os.path.join(ply.SOURCE, "tests", "lib")
    rng = random.Random(3)
    total = 0
    for _ in range(6 if ply.LONG else 3):
        child = subprocess.Popen([sys.executable, "-c", LOOP, lib, view.path],
                                 stdout=subprocess.PIPE, text=True)
        lines = [child.stdout.readline() for _ in range(rng.randrange(1, 8))]
        time.sleep(rng.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.wait()
        total += len(lines)
        ply.wait_for("no mount of a snapshot", lambda: ply.mounts_below(view.store.path) == [])
        ply.wait_for("no directory for one", lambda: not [
            n for n in os.listdir(os.path.join(view.store.path, "commits.git"))
            if n.startswith("at-")])
        p.fsck()
        e = Env("git", workdir=view.path, at_cleanup="keep")
        e.setup()
        history = p.history()
        assert e.read_file("a")[:6] in (b"round ", b"")  # killed when it had just truncated it
        c = e.checkpoint()
        p.wait_for(c)
        assert p.history() == [c] + history
        for lost in history[:2]:  # what has a commit has its snapshot, too
            e.restore(lost)
        e.cleanup()
        e.free()
    assert total >= 3


def test_locks_that_a_killed_writer_left_are_broken(t):
    with env(t) as e:
        p = e.place
        p.wait_for(e.checkpoint())
        for lock in (p.at(".git/refs/plyfs/main.lock"),
                     os.path.join(e.store.path, "commits.git/refs/plyfs/main.lock")):
            for age in (0, 3600):
                ply.write(lock, "")
                os.utime(lock, (time.time() - age,) * 2)
                p.wait_for(e.checkpoint())
                assert not os.path.exists(lock)


def test_what_a_dead_process_left_is_swept(t):
    use_environment(t)
    view = t.view({"a": "0"})
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = os.path.join(view.store.path, "commits.git", "at-%d-abcdef" % gone.pid)
    snap = view.checkpoint()
    os.makedirs(left)
    view.store.ply("mount", "--snapshot", snap, "--at", left)
    assert ply.mounts_below(view.store.path)
    # The directory is there before the vault is, too.
    with Env("git", workdir=view.path, at_cleanup="keep"):
        assert ply.mounts_below(view.store.path) == []
        assert not os.path.exists(left)


# ---- costs ----

def test_what_a_checkpoint_costs_in_a_large_repository(t):
    use_environment(t)
    count = 10000 if ply.LONG else 3000
    p = Place(t, ply.make_bulk(t.at("work"), count))
    e = Env("git", workdir=p.path)

    def took(what, f):
        began = time.monotonic()
        f()
        print("# %-52s %8.1f ms" % (what, (time.monotonic() - began) * 1000))

    took("%d files: import, mount, git init, first commit" % count, e.setup)
    try:
        took("the first checkpoint (hashes all)", e.checkpoint)
        rng = random.Random(5)
        files = p.files()
        ids = []

        def step():
            for name in rng.sample(files, 10):
                p.write(name, "%d" % rng.getrandbits(60))
            began = time.monotonic()
            ids.append(e.checkpoint())
            return (time.monotonic() - began) * 1000

        took("until it is written", e.diff)
        times = sorted(step() for _ in range(30))
        print("# %-52s %8.1f ms" % ("ten files changed: a checkpoint, median", times[15]))
        for _ in range(10):
            step()
        took("a restore", lambda: e.restore(ids[3]))
        took("git add -A, git commit, for comparison",
             lambda: (p.git("add", "-A"), p.git("-c", "gc.auto=0", "commit", "-q",
                                                            "-m", "x")))
        p.wait_for(ids[-1])
        assert len(p.history()) == 41
        p.fsck()
    finally:
        e.cleanup()
        e.free()


ply.main(__name__)
