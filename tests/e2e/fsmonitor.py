#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: git
"""git asks plyfs what has changed (core.fsmonitor): the answers, and that git is right with them."""
import os
import random
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

NAMES = ["a", "b", "c", "d e", "ü", "f.o", "x.tmp"]


def ask(t, token, cwd):
    """(new token, set of paths); "/" is everything."""
    out = t.run([ply.PLYFS, "fsmonitor", "2", token], cwd=cwd).stdout
    words = out.split("\0")
    assert words[-1] == "", out
    return words[0], set(words[1:-1])


def settle(t, cwd):
    """A token whose answer names just what changed: the first one ever knows nothing."""
    token, all_of_it = ask(t, "1234567890", cwd)
    assert all_of_it == {"/"}
    write = os.path.join(cwd, "settled")
    with open(write, "w") as f:
        f.write("1")
    token, directories = ask(t, token, cwd)
    assert {"settled", "-"} <= directories and "/" not in directories, directories
    same, nothing = ask(t, token, cwd)
    assert (same, nothing) == (token, set())
    return token


def repository(t, files=40):
    """A view with a repository at its top, whose git asks plyfs."""
    view = t.view({"top": "1\n"})
    git = lambda *words: t.run(["git", *words], cwd=view.path).stdout
    git("init", "-q", "-b", "main")
    for i in range(files):
        view.write("dir%d/sub/file%d" % (i % 7, i), "line %d\n" % i)
    view.write(".gitignore", "*.tmp\n")
    git("add", "-A")
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "first")
    t.run([ply.PLYFS, "fsmonitor", "--install"], cwd=view.path)
    return view, git


def test_the_answer_is_what_changed_since_the_token(t):
    view = t.view({"keep": "1", "old": "1", "d/x": "1"})
    token = settle(t, view.path)
    view.write("keep", "2")
    view.write("new/deep/file", "1")
    os.unlink(view.at("old"))
    os.rename(view.at("d"), view.at("e"))
    after, paths = ask(t, token, view.path)
    assert paths == {"keep", "new", "new/deep", "new/deep/file", "old", "d", "d/x", "e", "e/x"}
    assert ask(t, after, view.path)[1] == set()
    assert ask(t, token, view.path)[1] == paths, "an older token is good, too"


def test_a_token_that_is_asked_with_stays_good(t):
    """git keeps one while nothing changes that concerns it, and its own lock is a new state."""
    view = t.view({"f": "1", "r/.git/index": "1"})
    token = settle(t, view.at("r"))
    for i in range(40):  # more than there are states kept
        view.write("f", str(i))
        other, paths = ask(t, token, view.at("r"))
        assert other != token and paths == set(), (i, paths)


def test_a_token_moves_on_while_nothing_concerns_its_work_tree(t):
    view = t.view({"f": "1", "r/a": "1"})
    token = settle(t, view.at("r"))
    first = view.checkpoint()
    for i in range(5):  # after two restores at once nobody would know
        view.write("f", str(i))
        view.restore(first)
        assert ask(t, token, view.at("r"))[1] == set(), i
    view.write("r/a", "2")
    for _ in range(2):
        assert ask(t, token, view.at("r"))[1] == {"a"}
    view.restore(first)
    assert ask(t, token, view.at("r"))[1] == {"a"}, "git may have read it in between"


def test_a_copied_work_tree_is_not_taken_for_its_model(t):
    """The copy has the index, and so the token, that the other one goes on with."""
    view = t.view({"r/a": "1"})
    token = settle(t, view.at("r"))
    shutil.copytree(view.at("r"), view.at("copy"))
    assert ask(t, token, view.at("r"))[1] == set()
    view.write("copy/a", "2")
    assert ask(t, token, view.at("r"))[1] == set()
    assert ask(t, token, view.at("copy"))[1] == {"/"}


def test_git_status_walks_once_however_often_it_is_asked(t):
    view, git = repository(t)
    time.sleep(1.1)  # while files have the index's second, git writes it anew each time
    for _ in range(5):
        git("status")
    ops = lambda: next(v["ops"] for v in view.store.json("status", "--ops")["views"])
    listed = lambda: sum(ops().get(name, 0) for name in ("OPENDIR", "READDIR", "READDIRPLUS"))
    with ply.caches_stay():
        git("status")  # what was forgotten before
        written = os.stat(view.at(".git/index")).st_mtime_ns
        before = listed()
        for _ in range(40):
            git("status")
        assert os.stat(view.at(".git/index")).st_mtime_ns == written, "git looked at everything"
        assert listed() == before


def test_what_was_changed_back_is_told(t):
    view = t.view({"f": "1"})
    token = settle(t, view.path)
    times = os.stat(view.at("f"))
    view.write("f", "2")
    view.write("f", "1")
    os.utime(view.at("f"), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert ask(t, token, view.path)[1] == {"f"}, "git may have read it in between"


def test_what_a_restore_brought_back_is_told(t):
    view = t.view({"f": "1", "g": "1"})
    token = settle(t, view.path)
    first = view.checkpoint()
    view.write("f", "2")  # git may have read this
    view.restore(first)
    after, paths = ask(t, token, view.path)
    assert paths == {"f"}
    assert ask(t, after, view.path)[1] == set()
    for content in "34":
        view.write("g", content)
        view.restore(first)
    assert ask(t, after, view.path)[1] == {"/"}, "after two restores nobody knows"


def test_a_work_tree_below_the_top_gets_paths_of_its_own(t):
    view = t.view({"repo/f": "1", "repo2/f": "1", "repo/.git/index": "1", "repo/sub/.git": "1"})
    token = settle(t, view.at("repo"))
    for path in "repo/f", "repo2/f", "repo/.git/index", "repo/sub/.git", "repo/.gitignore":
        view.write(path, "2")
    assert ask(t, token, view.at("repo"))[1] == {"f", "sub", ".gitignore"}
    os.rename(view.at("repo"), view.at("moved"))
    assert {"f", "sub"} <= ask(t, token, view.at("moved"))[1]


def test_where_nothing_is_known_git_looks_itself(t):
    os.mkdir(t.at("plain"))
    assert ask(t, "", t.at("plain"))[1] == {"/"}
    view = t.view({"f": "1"})
    token = settle(t, view.path)
    assert ask(t, token + "1", view.path)[1] == {"/"}
    view.unmount()
    view = view.store.mount()
    assert ask(t, token, view.path)[1] == {"/"}, "the view's memory went with it"
    p = t.run([ply.PLYFS, "fsmonitor", "1", "123"], cwd=view.path, check=False)
    assert p.returncode == 2 and "fsmonitorHookVersion 2" in p.stderr


def test_gc_gives_back_what_git_could_have_asked_about(t):
    view = t.view({"f": "1"})
    view.checkpoint()
    token = settle(t, view.path)
    t.run([ply.PLYFS, "gc"], cwd=view.path)
    assert ask(t, token, view.path)[1] == {"/"}


def test_git_is_as_right_as_without(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED", random.randrange(1 << 30)))
    print("# PLYFS_TEST_SEED=%d" % seed)
    r = random.Random(seed)
    view, git = repository(t)
    states = [view.checkpoint()]

    def somewhere(of):
        found = [os.path.join(top, n) for top, dirs, files in os.walk(view.path)
                 if ".git" not in top.split("/") for n in (files if of == "file" else dirs)
                 if n != ".git"]
        return r.choice(sorted(found)) if found else None

    def directory():
        return r.choice([view.path, somewhere("dir") or view.path])

    def step():
        what = r.choice("write write new new unlink rename move copy rmtree mkdir chmod link add"
                        " commit reset restore restore checkpoint undo stash nested".split())
        f, d = somewhere("file"), directory()
        name = os.path.join(d, r.choice(NAMES))
        if what == "write" and f and not os.path.islink(f):
            with open(f, "a") as out:
                out.write("more\n")
        elif what == "new" and not os.path.isdir(name) and not os.path.islink(name):
            with open(name, "w") as out:
                out.write("new\n")
        elif what == "unlink" and f:
            os.unlink(f)
        elif what == "rename" and f and not os.path.isdir(name):
            os.rename(f, name)
        elif what == "move" and d != view.path and not os.path.exists(name) \
                and not name.startswith(d + "/"):
            os.rename(d, name)
        elif what == "copy" and d != view.path and not os.path.exists(view.at("copy")):
            shutil.copytree(d, view.at("copy"), symlinks=True)
        elif what == "rmtree" and d != view.path:
            shutil.rmtree(d)
        elif what == "mkdir" and not os.path.lexists(name):
            os.mkdir(name)
        elif what == "chmod" and f and not os.path.islink(f):
            os.chmod(f, r.choice([0o644, 0o755]))
        elif what == "link" and not os.path.lexists(name):
            os.symlink(r.choice(NAMES), name)
        elif what == "add":
            t.run(["git", "add", "-A"], cwd=view.path, check=False)  # not an empty repository
        elif what == "commit":
            git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qam", "m", "--allow-empty")
        elif what == "reset":
            git("reset", "-q", "--hard")
        elif what == "restore":
            view.restore(r.choice(states))
        elif what == "checkpoint":
            states.append(view.checkpoint())
        elif what == "undo":
            t.run([ply.PLYFS, "undo"], cwd=view.path, check=False)
        elif what == "nested" and not os.path.exists(os.path.join(d, ".git")):
            t.run(["git", "init", "-q", d])

    rounds = 600 if ply.LONG else 60
    index = view.at(".git/index")
    for i in range(rounds):
        for _ in range(r.randrange(1, 4)):
            step()
        shutil.copy(index, t.at("index"))
        plain = t.run(["git", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false",
                       "status", "--porcelain"], cwd=view.path,
                      env=dict(t.env, GIT_INDEX_FILE=t.at("index"))).stdout
        # The index that git has marked stays as it is for the plain one: it forgets the marks.
        asked = git("status", "--porcelain")
        assert asked == plain, "round %d, seed %d:\n%s\nwithout:\n%s" % (i, seed, asked, plain)


def test_mount_sets_it_up(t):
    store = t.store()
    os.mkdir(t.at("src"))
    t.sh("git init -q -b main . && echo 1 >f && git add f", cwd=t.at("src"))
    store.ply("import", t.at("src"))
    os.mkdir(t.at("mnt"))
    t.sh("git init -q other")
    hook = {"GIT_DIR": t.at("other/.git"), "GIT_CONFIG": t.at("other/.git/config")}  # as a hook of that one's has them
    store.ply("mount", "--fsmonitor", "--at", t.at("mnt"), env=hook)
    try:
        assert "fsmonitor" not in ply.read(t.at("other/.git/config"))
        get = lambda name: t.run(["git", "config", name], cwd=t.at("mnt")).stdout.strip()
        assert get("core.fsmonitor").endswith("/plyfs-fsmonitor")
        assert get("core.untrackedCache") == "true"
        assert get("fsmonitor.allowRemote") == "true", "git 2.55 takes FUSE for remote"
        p = t.run(["git", "status", "--porcelain"], cwd=t.at("mnt"),
                  env=dict(t.env, GIT_TRACE_FSMONITOR="1"))
        assert p.stdout == "A  f\n" and "returned success" in p.stderr, p.stderr
    finally:
        store.ply("unmount", t.at("mnt"))


def test_git_calls_it_without_a_shell_where_its_path_is_plain(t):
    """A shell takes as long to start as all the rest; elsewhere it has to be there, and quotes."""
    view, git = repository(t, 3)
    processes = lambda: t.run(["git", "status", "--porcelain"], cwd=view.path,
                              env=dict(t.env, GIT_TRACE_FSMONITOR="1", GIT_TRACE="1")).stderr
    said = processes()
    assert "returned success" in said and "/bin/sh" not in said, said
    there = t.at("with a space")
    os.mkdir(there)
    for name in os.listdir(os.path.dirname(ply.PLYFS)):
        if name.startswith("plyfs"):
            os.symlink(os.path.join(os.path.dirname(ply.PLYFS), name), os.path.join(there, name))
    # A program is where its file is, not where a link to it is: this one is a file of its own.
    os.unlink(os.path.join(there, "plyfs"))
    shutil.copy(ply.PLYFS, there)
    t.run([os.path.join(there, "plyfs"), "fsmonitor", "--install"], cwd=view.path)
    assert git("config", "core.fsmonitor") == "'%s/plyfs-fsmonitor'\n" % there
    assert "returned success" in processes()


def test_what_cannot_be_set_up_is_told(t):
    view = t.view({"f": "1"})
    ask = lambda *words: t.run([ply.PLYFS, "fsmonitor", *words], cwd=view.path, check=False)
    p = ask("--install")
    assert p.returncode == 1 and "no git repository" in p.stderr, p.stderr
    assert ask("--install", "a", "b").returncode == 2
    os.mkdir(t.at("again"))
    view.store.ply("fork", "--from", "main", "new")
    p = view.store.ply("mount", "--fsmonitor", "--branch", "new", "--at", t.at("again"),
                       check=False)
    assert p.returncode == 1 and "mounted, but" in p.stderr, p.stderr
    assert ply.read(t.at("again/f")) == "1"
    assert ask().returncode == 2 and ask("2").returncode == 2


if __name__ == "__main__":
    ply.main()
