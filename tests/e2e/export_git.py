#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
"""
plyfs export --git, seen through git itself: the tree of the commit, what names it, what is left alone,
and what becomes of it when the program that writes it is killed.
"""
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def git(t, *args, at="repo", **kw):
    return t.run(["git", "-C", t.at(at), *args], **kw).stdout.strip()


def repository(t, *more, at="repo"):
    ply.need_tool("git")
    t.sh("git init -q -b main %s '%s'" % (" ".join(more), at))
    return t.at(at)


def refs(t, at="repo"):
    return dict(reversed(line.split()) for line in
                git(t, "for-each-ref", "--format=%(objectname) %(refname)", at=at).splitlines())


def whole(t, at="repo"):
    """git finds nothing wrong with it, and nothing half made."""
    assert "error" not in git(t, "fsck", "--strict", "--full", at=at)


SOME = {"a": "1\n" * 3000, "dir/sub/b": "2\n", "dir/c": "3", "empty": "", "with space": "s", "new\nline": "l", "\udcff\udcfe": "bytes", "\u00fcml\u00e4ut": "u",
        "a.b/c": "x", "a-b": "x", "-dash": "d", ".gitignore": "*\n", ".gitmodules": "", "back\\slash": "b"}


def some_repository(t):
    """As git has it, with all that git can hold; names whose order is not that of a walk."""
    repository(t, at="from")
    t.tree(SOME, "from")
    t.sh("ln -s nowhere/at/all link && ln -s ../.. dir/up && echo '#!/bin/sh' >run.sh && chmod +x run.sh"
         " && seq 200000 >large && head -c 300000 /dev/urandom >random && truncate -s 1M hole &&"
         " echo end >>hole && git add -Af && git commit -qm one", cwd=t.at("from"))
    return t.at("from")


def test_what_came_from_git_is_the_same_tree_there_again(t):
    source = some_repository(t)
    repository(t, "--bare")
    store = t.store()
    snap = store.out("import", source + "#main")
    commit = store.out("export", snap, "--git", "repo#back")
    assert git(t, "rev-parse", commit + "^{tree}") == git(t, "rev-parse", "main^{tree}", at="from")
    assert refs(t) == {"refs/heads/back": commit}
    git(t, "fetch", "-q", t.at("repo"), "back", at="from")
    assert git(t, "diff", "main", "FETCH_HEAD", at="from") == ""
    whole(t)


def test_a_view_is_the_tree_that_git_itself_would_make_of_it(t):
    rng = random.Random(7)
    view = t.view({"f": "1"})
    for i in range(300):
        where = "/".join(rng.choice("abcd.-") * rng.randint(1, 2) + "x" for _ in range(rng.randint(0, 4)))
        os.makedirs(view.at(where), exist_ok=True)
        path = view.at(where, "%d" % i)
        if i % 5:
            ply.write(path, rng.randbytes(rng.choice((0, 1, 4096, 70000))), "wb")
            os.chmod(path, rng.choice((0o644, 0o755, 0o100, 0o677)))
        else:
            os.symlink(rng.choice(("f", "..", "/etc", "x" * 4000)), path)
    repository(t)
    commit = view.store.out("export", "main", "--git", "repo")
    t.sh("GIT_DIR='%s/.git' git --work-tree=. add -Af . && GIT_DIR='%s/.git' git write-tree >'%s'"
         % (t.at("repo"), t.at("repo"), t.at("tree")), cwd=view.path)
    assert git(t, "rev-parse", commit + "^{tree}") == ply.read(t.at("tree")).strip()
    whole(t)


def test_without_a_branch_only_a_ref_of_our_own_is_made(t):
    view = t.view({"f": "1"})
    snap = view.checkpoint("the label")
    where = repository(t)
    ply.write(t.at("repo/f"), "mine")
    t.sh("git add f && git commit -qm one && echo staged >g && git add g && echo more >>f", cwd=where)
    before = (git(t, "status", "--porcelain"), git(t, "rev-parse", "HEAD"), refs(t),
              open(t.at("repo/.git/index"), "rb").read())

    commit = view.store.out("export", snap, "--git", where)
    now = refs(t)
    assert now.pop("refs/plyfs/" + snap) == commit
    assert before == (git(t, "status", "--porcelain"), git(t, "rev-parse", "HEAD"), now,
                      open(t.at("repo/.git/index"), "rb").read())
    told = t.run(["git", "cat-file", "commit", commit], cwd=where).stdout.splitlines(keepends=True)
    assert told[3:] == ["\n", "the label\n"] and told[1].startswith("author plyfs <plyfs@localhost> "), told
    assert git(t, "show", commit + ":f") == "1"
    # The same snapshot is the same commit, and a branch's present state replaces the one before.
    assert view.store.out("export", "@the label", "--git", where) == commit
    first = view.store.out("export", "main", "--git", where)
    view.write("f", "2")
    second = view.store.out("export", "main", "--git", where)
    assert refs(t)["refs/plyfs/main"] == second != first
    assert git(t, "log", "--format=%s|%P", second) == "plyfs main|"
    whole(t)


def test_a_branch_grows(t):
    view = t.view({"f": "1"})
    where = repository(t, "--bare") + "#side"
    first = view.store.out("export", "main", "--git", where)
    snap = view.checkpoint()
    view.write("f", "2")
    second = view.store.out("export", view.checkpoint("two"), "--git", where)
    assert git(t, "log", "--format=%H %P %s", "side").splitlines() == [
        "%s %s two" % (second, first), "%s  plyfs main" % first]
    snap = next(s for s in view.store.json("log") if s["id"] == snap)
    view.store.ply("export", snap["id"], "--git", where)
    assert git(t, "log", "-1", "--format=%s", "side") == "plyfs " + snap["id"]
    time = git(t, "log", "-1", "--format=%cd %ad", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "side",
               env=dict(t.env, TZ="UTC"))
    assert time.split() == 2 * [snap["time"][:19] + "Z"], (time, snap)


def test_the_author_is_the_users_or_the_repositorys(t):
    store = t.store()
    store.import_(t.tree({"f": "1"}))
    where = repository(t)
    who = lambda: git(t, "log", "-1", "--format=%an <%ae>", store.out("export", "main", "--git", where))
    for name, email, told in (("A \u00fc", "a@b", "A \u00fc <a@b>"), ("A", "", "plyfs <plyfs@localhost>"),
                              ("<<>>", "x", "plyfs <plyfs@localhost>")):
        t.sh("git config --global user.name '%s' && git config --global user.email '%s'" % (name, email))
        assert who() == told
    t.sh("git config user.name R && git config user.email r@r", cwd=where)
    assert who() == "R <r@r>"


def test_an_empty_state_is_an_empty_tree(t):
    store = t.store()
    store.import_(t.tree({}))
    repository(t)
    p = store.ply("export", "main", "--git", "repo#b")
    assert git(t, "rev-parse", "b^{tree}") == EMPTY_TREE and p.stderr == "", p
    whole(t)


def test_what_git_cannot_hold_is_left_out_and_counted(t):
    view = t.view({"f": "1", "dir/g": "2", "only/deep/.git/x": "3", "dir/.GIT": "4", "h/.git./i/j": "5",
                   "GIT~1": "6", "\u200c.git": "7"})
    os.mkfifo(view.at("dir/fifo"))
    s = socket.socket(socket.AF_UNIX)
    s.bind(view.at("sock"))
    os.makedirs(view.at("e/m/p/ty"))
    os.symlink("f", view.at(".gitmodules"))
    os.link(view.at("f"), view.at("twin"))
    os.setxattr(view.at("f"), "user.x", b"1")
    repository(t)
    p = view.store.ply("export", "main", "--git", "repo", "--json")
    assert git(t, "ls-tree", "-r", "--name-only", "refs/plyfs/main").split() == ["dir/g", "f", "twin"]
    assert p.stderr == (
        "plyfs export: warning: left out what git cannot hold: .git or like it (5), "
        "symlinks named .gitmodules (1), directories without files (7), fifos, sockets and devices (2); "
        "the first is '.gitmodules'\n"), p.stderr
    assert json.loads(p.stdout) == {
        "files": 3, "directories": 2, "others": 0, "bytes": 3, "skipped": 15,
        "commit": refs(t)["refs/plyfs/main"], "ref": "refs/plyfs/main"}, p.stdout
    whole(t)


def test_what_is_refused_changes_nothing(t):
    view = t.view({"f": "1"})
    store = view.store
    store.ply("fork", "a..b")
    where = repository(t)
    fails = lambda *args, says, **kw: store.fails("export", *args, says=says, **kw)
    fails("main", "--git", "repo#main", says="branch 'main' is checked out in a working tree")  # unborn
    t.sh("echo 1 >f && git add f && git commit -qm one && git branch other && git branch free"
         " && git worktree add -q ../tree other", cwd=where)
    before = refs(t)
    fails("main", "--git", "repo#main", says="branch 'main' is checked out in a working tree; name another one$")
    fails("main", "--git", "repo#other", says="branch 'other' is checked out in a working tree")
    fails("main", "--git", "tree#main", says="branch 'main' is checked out in a working tree")
    for name in ("a..b", "x.lock", "-x", "HEAD", "a b", "x/", "free/x"):
        fails("main", "--git", "repo#" + name, says="refs/heads/" + name)
    fails("a..b", "--git", "repo", says="git takes no ref of the name 'refs/plyfs/a..b'$")
    fails("main", "--git", "nowhere",
          says="'nowhere': no git repository is there; 'git init --bare' makes one$")
    fails("main", "--git", "nowhere#b", says="no git repository is there")
    fails("main", "--git", "source", says="no git repository is there")
    fails("main", "--git", "repo/.git/objects", says="no git repository is there")
    fails("nosuch", "--git", "repo", says="no snapshot or branch is called so")
    for args in (("--git", "repo", "--dir", "d"), ("--git", "repo", "--tar", "-"), ()):
        fails("main", *args, code=2, says="wants one of --dir D, --tar F and --git REPO")
    assert refs(t) == before and not os.path.exists(t.at("nowhere"))
    store.ply("export", "main", "--git", "repo#free")  # not checked out: fine
    whole(t)


def test_a_repository_of_somebody_else_is_not_written(t):
    ply.need_root()
    store = t.store()
    store.import_(t.tree({"f": "1"}))
    repository(t)
    t.sh("chown -R 12345 repo && chmod a+rx .")
    store.fails("export", "main", "--git", "repo", says="belongs to somebody else; if you trust it: git config")
    t.sh("git config --global --add safe.directory '%s'" % t.at("repo"))
    store.ply("export", "main", "--git", "repo")


def test_root_writes_for_the_owner_of_a_store_as_that_one(t):
    ply.need_root()
    if t.run(["test", "-x", ply.PLYFSD], check=False, user=12345, group=12345).returncode:
        ply.skip("the programs lie where only root may go")  # a clone in /root
    store = t.store()
    t.tree({"f": "1"})
    some_repository(t)
    repository(t, "--bare")
    t.sh("chown -R 12345 store repo from && chmod a+rx . && chmod -R a+rX source && chmod 700 home &&"
         " git config --global user.name root && git config --global user.email root@here")
    store.ply("import", t.at("source"))
    commit = store.out("export", "main", "--git", "repo")
    assert {os.stat(f).st_uid for f in glob.glob(t.at("repo/**"), recursive=True)} == {12345}
    author = t.run(["git", "-c", "safe.directory=*", "-C", t.at("repo"), "log", "-1", "--format=%an", commit])
    assert author.stdout == "plyfs\n", author
    store.ply("import", "--branch", "back", "from#main")


def test_programs_that_the_owner_of_a_store_cannot_reach_are_no_half_installation(t):
    ply.need_root()
    there = t.at("installed")
    os.mkdir(there)
    for program in ("tools/plyfs", "tools/plyfsd", "env/formats/plyfs-git"):
        shutil.copy(os.path.join(ply.BUILD, program), there)
    store = t.store()
    t.tree({"f": "1"})
    repository(t, "--bare")
    t.sh("chown -R 12345 store repo && chmod a+rx . && chmod 700 installed")
    store.ply("import", t.at("source"))
    store.stop()
    p = store.bench.run([os.path.join(there, "plyfs"), "export", "main", "--git", "repo"], check=False,
                        env=dict(t.env, PLYFS_STORE=store.path), cwd=t.path)
    assert p.returncode == 1 and p.stderr.count("\n") == 1, p
    assert "user 12345 cannot reach plyfs-git in '%s'" % there in p.stderr, p.stderr


def test_files_are_made_with_the_callers_umask(t):
    store = t.store()
    store.import_(t.tree({"f": "1"}))
    for mask, mode in ((0o22, 0o444), (0o77, 0o400)):
        name = "repo%o" % mask
        repository(t, "--bare", at=name)
        before = set(ply.run(["find", t.at(name), "-type", "f"]).stdout.split())
        old = os.umask(mask)
        try:
            store.ply("export", "main", "--git", name)
        finally:
            os.umask(old)
        made = set(ply.run(["find", t.at(name, "objects"), "-type", "f"]).stdout.split()) - before
        assert len(made) == 3 and {os.stat(f).st_mode & 0o777 for f in made} == {mode}, made


# ---- meanwhile ----

def children(daemon):
    """Those of all its threads, as text."""
    found = ""
    for path in glob.glob("/proc/%d/task/*/children" % daemon):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has ended
            found += ply.read(path)
    return found


def writing(t, store, *args):
    """An export whose plyfs-git writes a large object, and is stopped: (its result's place, the pid)."""
    said = []
    export = threading.Thread(target=lambda: said.append(store.ply("export", *args, check=False)))
    export.start()
    daemon, objects = store.daemon(), t.at("repo/objects")

    def helper():
        found = []
        for p in children(daemon).split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                found += [int(p)] * (ply.read("/proc/%s/comm" % p) == "plyfs-git\n")
        return found and glob.glob(objects + "/tmp*") and found[0]

    pid = ply.wait_for("plyfs-git to write", helper)
    os.kill(pid, signal.SIGSTOP)
    assert not said
    return export, said, pid


def large_view(t):
    view = t.view({"f": "1"})
    repository(t, "--bare")
    view.store.ply("export", "main", "--git", "repo#b")
    ply.write(view.at("large"), os.urandom(60 << 20), "wb")
    return view


def test_a_tip_that_moves_meanwhile_is_not_lost(t):
    view = large_view(t)
    export, said, pid = writing(t, view.store, "main", "--git", "repo#b")
    mine = git(t, "commit-tree", "-p", "b", "-m", "mine", "b^{tree}")
    git(t, "update-ref", "refs/heads/b", mine)
    os.kill(pid, signal.SIGCONT)
    export.join()
    assert said[0].returncode == 1 and "'refs/heads/b': " in said[0].stderr, said
    assert refs(t) == {"refs/heads/b": mine}
    view.store.ply("export", "main", "--git", "repo#b")
    assert git(t, "rev-parse", "b^") == mine


def test_killed_it_leaves_objects_that_nothing_names(t):
    view = large_view(t)
    before = refs(t)
    export, said, pid = writing(t, view.store, "main", "--git", "repo#b")
    os.kill(pid, signal.SIGKILL)
    export.join()
    assert said[0].returncode == 1 and said[0].stderr == (
        "plyfs export: 'repo#b': plyfs-git was ended by signal 9 (Killed): Input/output error\n"), said
    assert refs(t) == before and view.store.status()["daemon"]["deaths"] == 0
    whole(t)
    view.store.ply("export", "main", "--git", "repo#b")
    git(t, "gc", "-q", "--prune=now")
    assert not glob.glob(t.at("repo/objects/tmp*"))
    whole(t)


def test_what_finds_no_room_takes_none(t):
    where = ply.small_disk(t, 4)
    view = t.view({"small": "s", "z": os.urandom(16 << 20)})
    repository(t, "--bare", at="disk/repo")
    says = view.store.fails("export", "main", "--git", where + "/repo#b")
    assert "No space left" in says, says
    assert not glob.glob(where + "/repo/objects/tmp*")


def test_so_it_is_of_an_export_that_is_interrupted(t):
    view = large_view(t)
    before = refs(t)
    p = subprocess.Popen([ply.PLYFS, "export", "main", "--git", "repo#b"], cwd=t.path,
                         env=dict(t.env, PLYFS_STORE=view.store.path))
    ply.wait_for("an object", lambda: glob.glob(t.at("repo/objects/tmp*")))
    p.send_signal(signal.SIGINT)
    assert p.wait() == -signal.SIGINT
    daemon = view.store.daemon()
    ply.wait_for("the end of plyfs-git", lambda: not children(daemon))
    assert refs(t) == before and not glob.glob(t.at("repo/objects/tmp*"))
    whole(t)


if __name__ == "__main__":
    ply.main(__name__)
