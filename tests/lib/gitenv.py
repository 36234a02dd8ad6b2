# SPDX-License-Identifier: Apache-2.0
"""
Environments of kind "git" on a real mount: one on a directory of files, and git's view of what is there.
"""
import contextlib
import os
import subprocess

import ply
import plylib
from plylib import Env


class Place:
    """A working tree and git's view of it."""

    def __init__(self, t, path):
        self.t, self.path = t, path

    def at(self, *names):
        return os.path.join(self.path, *names)

    def git(self, *args, check=True, **kw):
        return self.t.run(["git", "-C", self.path, *args], check=check, **kw).stdout.strip()

    def write(self, name, data, mode=None):
        ply.write(self.at(name), data)
        if mode is not None:
            os.chmod(self.at(name), mode)

    def read(self, name):
        return ply.read(self.at(name))

    def files(self):
        found = []
        for top, dirs, names in os.walk(self.path):
            if top == self.path:
                dirs.remove(".git") if ".git" in dirs else None
            found += [os.path.relpath(os.path.join(top, n), self.path) for n in names]
        return sorted(found)

    def state(self):
        """Bytes of HEAD, index, config and hooks: what nobody may touch."""
        found = {}
        for name in ("HEAD", "index", "config"):
            with contextlib.suppress(FileNotFoundError), open(self.at(".git", name), "rb") as f:
                found[name] = f.read()
        for name in os.listdir(self.at(".git/hooks")):
            with open(self.at(".git/hooks", name), "rb") as f:
                found["hooks/" + name] = f.read()
        found["heads"] = self.git("for-each-ref", "refs/heads", "refs/tags")
        return found

    def git_tree(self, *add):
        """The tree that git makes of these files; add: words for `git add`."""
        index = self.t.at("oracle.index")
        env = dict(self.t.env, GIT_INDEX_FILE=index)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(index)
        if add == ("-u",):
            env["GIT_INDEX_FILE"] = index
            subprocess.run(["cp", self.at(".git/index"), index], check=True)
        self.git("add", *(add or ("-A", "-f")), ".", env=env)
        return self.git("write-tree", env=env)

    def tree(self, commit):
        return self.git("rev-parse", commit + "^{tree}")

    def history(self, ref="refs/plyfs/main"):
        """Newest first; [] when there is no such ref."""
        if not self.git("for-each-ref", ref):
            return []
        return self.git("log", "--format=%H", ref).split()

    def fsck(self):
        p = self.t.run(["git", "-C", self.path, "fsck", "--full", "--strict"], check=False)
        assert p.returncode == 0, p.stdout + p.stderr
        for line in (p.stdout + p.stderr).splitlines():
            assert line.startswith(("dangling", "notice")), line

    def wait_for(self, commit, ref="refs/plyfs/main"):
        ply.wait_for("%s at %s" % (ref, commit), lambda: self.git(
            "rev-parse", "-q", "--verify", ref, check=False) == commit)


def use_environment(t):
    plylib.lib()  # or skip
    t.surroundings()


@contextlib.contextmanager
def env(t, files=None, repo=False, name="work", **options):
    """An environment on a directory of these files; repo: with a repository of one commit."""
    use_environment(t)
    place = Place(t, t.at(name))
    ply.make_tree(place.path, files if files is not None else {"a": "one\n", "dir/b": "two\n"})
    if repo:
        place.git("init", "-q", "-b", "trunk")
        place.git("config", "user.name", "Somebody")
        place.git("config", "user.email", "some@body")
        place.git("add", ".")
        place.git("commit", "-q", "-m", "first")
    e = Env("git", workdir=place.path, **options)
    e.setup()
    e.place = place
    e.store = ply.Store(t, init=False)
    e.store.path = t.run(["find", t.at("home"), "-name", "commits.git"]).stdout.strip()
    e.store.path = os.path.dirname(e.store.path.splitlines()[0])
    t.stores.append(e.store)
    e.store.daemon()
    try:
        yield e
    finally:
        e.cleanup()
        e.free()
