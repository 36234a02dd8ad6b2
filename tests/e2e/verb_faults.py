#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fault
# timeout: 240
"""
One call of the C library after the other fails while something larger is made: an import from git or
of an image, an environment, the answer to git's question, another daemon in place of the running
one. It is made, or words say why not and nothing of it stays; the same can be made right after.
"""
import errno
import glob
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ocilayout
import ply
from ocilayout import member, tar

PATIENCE = 60
LONG_IDLE = "600"  # s: a daemon that had no view, and ended for that before it was asked, has not died


def asked(run, faults, n, *args, kinds=3, fails_with=(1,), **kw):
    """The verb while its n-th call fails: (its output, or None; what it says)."""
    with faults.armed(n, (errno.EIO, errno.ENOSPC)[n % 2], kinds=kinds):
        p = run(*args, check=False, timeout=PATIENCE, **kw)
    shown = "%s: exit %d\n%s%s" % (args, p.returncode, p.stdout, p.stderr)
    assert p.returncode == 0 or p.returncode in fails_with, shown
    assert p.returncode == 0 or p.stderr.startswith("plyfs"), shown
    words = [w for w in p.stderr.splitlines() if not w.startswith("plyfs-keeper: ")]
    assert p.returncode == 0 or len(words) == 1, shown
    return p.stdout if p.returncode == 0 else None, p.stderr


def branches(store):
    return {b["name"] for b in store.json("tree")["branches"]}


def went_on(store):
    daemon = store.status()["daemon"]
    assert daemon and daemon["deaths"] == 0, "the daemon died\n" + store.log_tail()


# ---- transfers ----

def items_of(store, branch):
    """But for the names of chunks: one that could not be read may be there twice (store/README)."""
    return re.sub("[0-9a-f]{32}", "", store.out("dump", branch)).splitlines()[1:]


def faults_of(t, program, kinds):
    if program == "plyfs-git" and kinds != ply.Faults.KILLED and ply.sanitized():
        ply.skip("libgit2 follows NULL and frees twice where it has no memory: no finding of ours")
    # Now and then libarchive follows NULL, too: that process ends, and its daemon says so.
    spared = program == "plyfs-tar" and kinds != ply.Faults.KILLED and ply.sanitized()
    return ply.Faults(t, program, "libarchive" if spared else None)


def imports(t, program, some, *source, kinds=3):
    """With a daemon that has done nothing yet, each time."""
    faults = faults_of(t, program, kinds)
    t.env["PLYFSD_IDLE"] = LONG_IDLE
    store = t.store()
    store.ply("import", "--branch", "right", *source)
    right = items_of(store, "right")
    store.ply("drop", "--snapshot", *(s["id"] for s in store.json("log")))

    def attempt(n):
        store.stop()
        store.ply("log")
        out, words = asked(store.ply, faults, n, "import", "--branch", "new", *source, kinds=kinds)
        went_on(store)
        there = "new" in branches(store)
        # Or it is there, and was not durable at once.
        assert there == (out is not None) or "writing the store" in words, (there, out, words)
        if not there:
            store.ply("import", "--branch", "new", *source)
        assert items_of(store, "new") == right and store.out("diff", "right", "new") == ""
        store.ply("drop", "--branch", "--with-snapshots", "new")
        left = store.json("log")
        if left:  # layers that came before what failed
            assert out is None and "--oci" in source, left
            store.ply("drop", "--snapshot", *(s["id"] for s in left))
        return out is not None

    faults.tried(some, attempt)
    store.ply("gc")
    store.ply("check", "--read-data")


def repository(t):
    """With packed and loose objects."""
    ply.need_tool("git")
    t.tree({"a": "1\n" * 2000, "dir/sub/b": "2\n", "run.sh": "#!/bin/sh\n"}, "repo")
    t.sh("git init -q -b main . && ln -s a link && chmod +x run.sh && git add -A && git commit -qm one "
         "&& git gc -q && echo 3 >dir/c && git add -A && git commit -qm two", cwd=t.at("repo"))
    return t.at("repo") + "#main"


def test_a_git_revision_comes_or_does_not(t):
    imports(t, "plyfsd", 12, repository(t))


def test_so_it_is_when_the_program_that_asks_for_it_fails(t):
    imports(t, "plyfs", 3, repository(t))


ENV = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]


def image(t):
    base = tar(member("./"), member("etc"), member("etc/a", b"a\n"), member("dir/one", b"1" * 9000),
               member("lnk", symlink="etc/a"), member("hard", link="etc/a"))
    upper = tar(member("etc/.wh.a", b""), member("etc/new", b"n" * 100), member("dir/.wh..wh..opq", b""))
    layout = ocilayout.Layout(t.at("img"))
    layout.add(layout.manifest([(base, ""), (upper, "gzip")], run={"Env": ENV}), "latest")
    return layout.path


def test_an_image_comes_or_does_not(t):
    imports(t, "plyfsd", 12, "--oci", image(t))


def a_tar(t):
    path = t.at("some.tar")
    with open(path, "wb") as f:
        f.write(tar(member("./"), member("a", b"a" * 300000), member("dir/lnk", symlink="../a"),
                    member("hard", link="a"), member("dir/b", b"b")))
    return path


def test_a_tar_comes_or_does_not_when_what_reads_it_fails(t):
    imports(t, "plyfs-tar", 8, a_tar(t))


def test_or_when_that_is_killed(t):
    imports(t, "plyfs-tar", 8, a_tar(t), kinds=ply.Faults.KILLED)


def test_so_it_is_of_an_image_when_what_reads_it_fails(t):
    imports(t, "plyfs-tar", 8, "--oci", image(t))


def test_so_it_is_of_an_image_when_what_reads_it_is_killed(t):
    imports(t, "plyfs-tar", 8, "--oci", image(t), kinds=ply.Faults.KILLED)


def test_so_it_is_of_a_revision_when_what_reads_it_fails(t):
    imports(t, "plyfs-git", 8, repository(t))


def test_so_it_is_of_a_revision_when_what_reads_it_is_killed(t):
    imports(t, "plyfs-git", 8, repository(t), kinds=ply.Faults.KILLED)


def outputs(t, program, some, *verb, kinds=3, mend=lambda: None):
    """The verb's output is whole, or one line says why it ended. mend: what a person would do then."""
    faults = faults_of(t, program, kinds)
    t.env["PLYFSD_IDLE"] = LONG_IDLE
    store = t.store()
    store.import_(t.tree({"a": "1\n" * 5000, "b": "b\n", "dir/lnk": "2\n", "bin": "\0" * 9000}))
    view = store.mount()
    view.write("a", "3\n" + "1\n" * 4000)
    view.write("bin", "\0" * 9000 + "x" * 300)
    os.unlink(view.at("b"))
    view.write("new", "n\n")
    view.unmount()
    right = store.ply(*verb, text=False).stdout

    def attempt(n):
        store.stop()
        store.ply("log")
        with faults.armed(n, (errno.EIO, errno.ENOSPC)[n % 2], kinds=kinds):
            p = store.ply(*verb, check=False, timeout=PATIENCE, text=False)
        shown = "exit %d\n%s" % (p.returncode, p.stderr.decode())
        assert p.returncode in (0, 1) and p.stderr.count(b"\n") == p.returncode, shown
        assert p.returncode == 1 or p.stdout == right, p.stdout
        went_on(store)
        if p.returncode:
            mend()
        assert store.ply(*verb, text=False).stdout == right
        return p.returncode == 0

    faults.tried(some, attempt)
    store.ply("check", "--read-data")


def test_an_export_is_whole_or_told(t):
    outputs(t, "plyfsd", 8, "export", "main", "--tar", "-")


def test_so_it_is_when_what_writes_it_fails(t):
    outputs(t, "plyfs-tar", 8, "export", "main", "--tar", "-")


def test_so_it_is_when_what_writes_it_is_killed(t):
    outputs(t, "plyfs-tar", 8, "export", "main", "--tar", "-", kinds=ply.Faults.KILLED)


def to_git(t, program, some, kinds=3):
    ply.need_tool("git")
    t.sh("git init -q --bare repo")

    def unlock():
        # One call before the ref is renamed into its place, its lock stays, as git's own would.
        locks = glob.glob(t.at("repo/**/*.lock"), recursive=True)
        assert all(re.search(r"/refs/plyfs/[0-9a-f]{12}\.lock$", lock) for lock in locks), locks
        for lock in locks:
            os.unlink(lock)

    outputs(t, program, some, "export", "main~0", "--git", "repo", kinds=kinds, mend=unlock)
    t.sh("git -C repo fsck --strict && git -C repo gc -q --prune=now && ! ls repo/objects/tmp*")


def test_a_commit_is_whole_or_told(t):
    to_git(t, "plyfsd", 8)


def test_so_it_is_when_what_makes_it_fails(t):
    to_git(t, "plyfs-git", 8)


def test_so_it_is_when_what_makes_it_is_killed(t):
    to_git(t, "plyfs-git", 8, kinds=ply.Faults.KILLED)


def test_a_patch_is_whole_or_told(t):
    outputs(t, "plyfsd", 8, "diff", "main~0", "main", "--patch")


def test_so_it_is_when_what_compares_fails(t):
    outputs(t, "plyfs-git", 8, "diff", "main~0", "main", "--patch")


def test_so_it_is_when_what_compares_is_killed(t):
    outputs(t, "plyfs-git", 8, "diff", "main~0", "main", "--patch", kinds=ply.Faults.KILLED)


def test_so_it_is_of_numbers_of_lines(t):
    outputs(t, "plyfs-git", 6, "diff", "main~0", "main", "--stat")


# ---- environments ----

class Envs:
    def __init__(self, t, program):
        self.t = t
        t.surroundings()
        t.env.update(XDG_STATE_HOME=t.at("state"), SHELL="/bin/bash")
        # Who links libplyfs has libgit2, and that follows NULL where it gets no memory.
        self.faults = ply.Faults(t, program, but="libgit2")
        self.store = t.store()
        self.store.import_(t.tree({"f": "1", "dir/g": "2"}))
        self.view = self.store.mount()

    def __call__(self, *args, **kw):
        return self.t.run([ply.PLYFS, *args], **kw)

    def names(self):
        return [e["name"] for e in json.loads(self("env", "list", "--json").stdout)]

    def what_stays(self):
        where = self.t.at("run/plyfs/env")
        return {"environments": self.names(), "branches": branches(self.store) - {"main"},
                "mounts": set(ply.mounts_below(self.t.path, "fuse")) - {self.view.path},
                "directories": os.listdir(where) if os.path.exists(where) else []}

    def nothing_stays(self):
        stays = self.what_stays()
        assert not any(stays.values()), stays

    def over(self):
        self.view.unmount()
        self.store.stop()
        self.store.ply("check", "--read-data")


def forks(t, program, some, *more):
    env = Envs(t, program)

    def attempt(n):
        create = ("env", "create", "--store", env.store.path, *more, "new")
        path, _ = asked(env, env.faults, n, *create)
        good = path is not None
        if not good:
            env.nothing_stays()
            path = env(*create).stdout
        assert ply.read(path.strip() + "/dir/g") == "2"
        env("env", "destroy", "new")
        env.nothing_stays()
        went_on(env.store)
        return good

    env.faults.tried(some, attempt)
    env.over()


def over_a_directory(t, program):
    env = Envs(t, program)
    there = t.tree({"a": "1", "dir/b": "0"}, "work")
    env("env", "create", "w", there)
    t.adopt(there)
    env("env", "destroy", "w")
    return env, there


def made_over(t, program, some):
    env, there = over_a_directory(t, program)
    first = ply.treedigest(there)

    def attempt(n):
        path, _ = asked(env, env.faults, n, "env", "create", "w", there)
        if path is None:
            env.nothing_stays()
            assert ply.treedigest(there) == first
            env("env", "create", "w", there)
        assert ply.treedigest(there) == first
        env("env", "destroy", "w")
        env.nothing_stays()
        return path is not None

    env.faults.tried(some, attempt)
    env.over()


def written_back(t, program, some):
    env, there = over_a_directory(t, program)

    def attempt(n):
        env("env", "create", "w", there)
        ply.write(there + "/dir/b", str(n))
        out, _ = asked(env, env.faults, n, "env", "destroy", "--write-back", "w")
        if env.names():
            assert out is None
            env("env", "destroy", "--write-back", "w")
        env.nothing_stays()
        assert ply.read(there + "/dir/b") == str(n)
        return out is not None

    env.faults.tried(some, attempt)
    env.over()


def test_an_environment_is_made_or_nothing_of_it_stays(t):
    forks(t, "plyfs-env", 6)


def test_so_it_is_of_one_whose_checkpoints_are_commits(t):
    forks(t, "plyfs-env", 3, "--kind", "git")


def test_so_it_is_when_the_program_fails(t):
    forks(t, "plyfs", 6)


def test_so_it_is_when_the_daemon_fails(t):
    forks(t, "plyfsd", 6)


def test_so_it_is_when_what_watches_over_it_fails(t):
    forks(t, "plyfs-keeper", 4)


def test_over_a_directory_it_is_made_or_nothing_of_it_stays(t):
    made_over(t, "plyfs-env", 5)


def test_so_it_is_when_the_program_that_mounts_over_it_fails(t):
    made_over(t, "plyfs", 5)


def test_so_it_is_when_the_daemon_over_a_directory_fails(t):
    made_over(t, "plyfsd", 5)


def test_what_is_to_be_written_back_is_not_lost(t):
    written_back(t, "plyfs-env", 5)


def test_nor_is_it_when_the_program_fails(t):
    written_back(t, "plyfs", 5)


def test_nor_is_it_when_the_daemon_fails(t):
    written_back(t, "plyfsd", 5)


# ---- mounted forks ----

COULD_NOT_BE_STARTED = 126  # the command, as with env(1) and timeout(1); tools/client_run.c


def mounted_forks(t, program, some):
    faults = ply.Faults(t, program)
    view = t.view({"f": "1"})
    store, at, tmp = view.store, t.at("at"), t.at("tmp")
    os.mkdir(at)
    os.mkdir(tmp)
    t.env["TMPDIR"] = tmp

    def nothing_stays():
        assert branches(store) == {"main"}, branches(store)
        assert ply.mounts_below(t.path, "fuse") == [view.path] and os.listdir(at) == []
        assert os.listdir(tmp) == [], os.listdir(tmp)

    def fork(n):
        out, _ = asked(store.ply, faults, n, "fork", "--from", "main", "new", "--at", at)
        if out is None:
            nothing_stays()
            store.ply("fork", "--from", "main", "new", "--at", at)
        assert ply.read(at + "/f") == "1"
        store.ply("unmount", at)
        store.ply("drop", "--branch", "new")
        went_on(store)
        return out is not None

    def run(n):
        out, words = asked(store.ply, faults, n, "run", "--in", view.path, "--fork", "--name",
                           "new", "--drop", "--", "true", fails_with=(1, COULD_NOT_BE_STARTED))
        if "new" in branches(store):  # what was to be dropped stays, with a word
            assert "branch new stays" in words, (out, words)
            store.ply("drop", "--branch", "new")
        nothing_stays()
        went_on(store)
        return out is not None

    faults.tried(some, fork)
    faults.tried(some, run)
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")


def test_a_mounted_fork_is_made_or_nothing_of_it_stays(t):
    mounted_forks(t, "plyfs", 100)  # all there are: they are quick


def test_so_it_is_when_the_daemon_that_mounts_it_fails(t):
    mounted_forks(t, "plyfsd", 6)


# ---- git's question ----

def fsmonitor(t, program, some):
    faults = ply.Faults(t, program)
    view = t.view({"f": "1", "dir/g": "2"})
    made = 0

    def ask(token, n=None):
        run = lambda *args, **kw: t.run([ply.PLYFS, *args], cwd=view.path, **kw)
        if n is None:
            out = run("fsmonitor", "2", token).stdout
        else:
            try:
                out, _ = asked(run, faults, n, "fsmonitor", "2", token)
            except OSError as e:
                assert e.errno == errno.ENOMEM, e
                out = None  # our own way into the view
        words = out.split("\0") if out is not None else None
        return words and (words[0], set(words[1:-1]))

    token = ask("1")[0]
    view.write("f", "first")
    token = ask(token)[0]

    def attempt(n):
        nonlocal token, made
        made += 1
        view.write("f", str(made))
        os.mkdir(view.at("new%d" % made))
        answer = ask(token, n)
        changed = {"f", "new%d" % made}
        if answer:  # git would ask with the new token
            # "/" is everything; so is the answer of one that looked like no view
            assert answer[1] == changed or "/" in answer[1], answer
        again = ask(token)
        assert again[1] == changed or (again[1] > changed and "-" in again[1]), again
        token = again[0]
        assert ask(token)[1] == set()
        went_on(view.store)
        return answer is not None

    faults.tried(some, attempt)
    view.unmount()
    view.store.stop()
    view.store.ply("check", "--read-data")


def test_gits_question_is_answered_rightly_or_not(t):
    fsmonitor(t, "plyfsd", 15)


def test_so_it_is_when_the_program_that_git_runs_fails(t):
    fsmonitor(t, "plyfs", 4)


def test_mounting_with_fsmonitor_is_done_or_told(t):
    ply.need_tool("git")
    faults = ply.Faults(t, "plyfs")
    store = t.store()
    os.mkdir(t.at("src"))
    t.sh("git init -q -b main . && echo 1 >f && git add f", cwd=t.at("src"))
    store.ply("import", t.at("src"))
    os.mkdir(t.at("mnt"))

    def attempt(n):
        out, _ = asked(store.ply, faults, n, "mount", "--fsmonitor", "--at", t.at("mnt"))
        if out is not None:
            assert t.run(["git", "status", "--porcelain"], cwd=t.at("mnt")).stdout == "A  f\n"
            assert "fsmonitor" in t.run(["git", "config", "core.fsmonitor"], cwd=t.at("mnt")).stdout
        if os.path.ismount(t.at("mnt")):
            store.ply("unmount", t.at("mnt"))
        return out is not None

    faults.tried(6, attempt)


# ---- another daemon ----

def replace(t, program, some):
    t.deaths()
    faults = ply.Faults(t, program)
    view = t.view({"f": "1"})
    store, made, deaths = view.store, 0, 0

    def attempt(n):
        nonlocal made, deaths
        made += 1
        view.write("g", str(made))
        before = store.daemon()
        out, _ = asked(store.ply, faults, n, "daemon", "--replace")
        assert view.read("g") == str(made) and view.read("f") == "1"
        os.mkdir(view.at("d%d" % made))
        now = store.daemon()
        if out is not None:
            assert now != before
        return out is not None

    faults.tried(some, attempt)
    digest = view.digest()
    view.unmount()
    store.stop()
    store.ply("check", "--read-data")
    store.mount(at=view.path)
    assert view.digest() == digest


def test_a_daemon_is_replaced_and_nobody_sees_more_than_a_pause(t):
    replace(t, "plyfsd", 15)


def test_so_it_is_when_the_program_that_replaces_it_fails(t):
    replace(t, "plyfs", 4)


if __name__ == "__main__":
    ply.main(__name__)
