#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: diff
# timeout: 180
"""diff says what `diff -r` finds, and its patches are git's."""
import json
import os
import random
import re
import shutil
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def brute(a, b):
    """{path: letter} of files and links, by looking at both trees."""
    def scan(top):
        found = {}
        for d, dirs, names in os.walk(top):
            for n in names + [x for x in dirs if os.path.islink(os.path.join(d, x))]:
                p = os.path.join(d, n)
                s = os.lstat(p)
                if stat.S_ISLNK(s.st_mode):
                    what = os.readlink(p)
                elif stat.S_ISREG(s.st_mode):
                    what = open(p, "rb").read()
                else:
                    what = None
                found[os.path.relpath(p, top)] = (stat.S_IFMT(s.st_mode), s.st_mode, what)
        return found
    x, y = scan(a), scan(b)
    out = {}
    for p in x.keys() | y.keys():
        if p not in y:
            out[p] = "D"
        elif p not in x:
            out[p] = "A"
        elif x[p][0] != y[p][0]:
            out[p] = "T"
        elif x[p] != y[p]:
            out[p] = "M"
    return out


def name_status(store, *args):
    raw = store.ply("diff", "--name-status", "--no-renames", "-z", *args).stdout
    fields = raw.split("\0")[:-1]
    return dict(zip(fields[1::2], fields[::2]))


def mutate(view, rng, paths, n):
    for i in range(n):
        p = view.at(rng.choice(paths))
        kind = rng.randrange(8)
        try:
            if kind == 0:
                os.unlink(p)
            elif kind == 1:
                with open(p, "a") as f:
                    f.write("appended %d\n" % i)
            elif kind == 2:
                with open(p, "r+b") as f:
                    f.write(b"%d" % i)
            elif kind == 3:
                os.chmod(p, 0o755)
            elif kind == 4:
                os.rename(p, p + ".moved")
            elif kind == 5:
                view.write("new/%d/x" % i, "new %d\n" % i)
            elif kind == 6:
                os.unlink(p)
                os.symlink("target %d" % i, p)
            elif kind == 7:
                d = os.path.dirname(p)
                os.rename(d, d + "-%d" % i)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            pass


def test_random_changes_are_what_looking_finds(t):
    source = ply.make_bulk(t.at("source"), 1200, size=3000)
    view = t.view(source)
    first = view.checkpoint()
    before = view.store.mount(snapshot=first)
    paths = sorted(os.path.relpath(os.path.join(d, n), source)
                   for d, _, ns in os.walk(source) for n in ns)
    for seed in range(4):
        rng = random.Random(seed)
        view.restore(first)
        mutate(view, rng, paths, 60)
        wanted = brute(before.path, view.path)
        assert name_status(view.store, first, "main") == wanted, "seed %d" % seed
        second = view.checkpoint()
        assert name_status(view.store, first, second) == wanted, "seed %d" % seed
        turned = {p: {"A": "D", "D": "A"}.get(c, c) for p, c in wanted.items()}
        assert name_status(view.store, second, first) == turned, "seed %d" % seed
        # The count of `diff -r` itself: no line where we have none, and the other way round.
        lines = t.run(["diff", "-rq", "--no-dereference", before.path, view.path],
                      check=False).stdout
        assert bool(lines.strip()) == bool([c for c in wanted.values()])


def test_ten_edited_files_of_many(t):
    view = t.view(ply.make_bulk(t.at("source"), 5000))
    first = view.checkpoint()
    names = ["d%03d/s%04d/f%03d.txt" % (i // 2, i * 10, i) for i in range(10)]
    for n in names:
        view.write(n, "edited\n")
    second = view.checkpoint()
    assert view.store.out("diff", first, second) == "\n".join("M\t" + n for n in sorted(names))
    assert view.store.ply("diff", first, first).stdout == ""


def test_without_a_second_state_the_view_is_meant(t):
    view = t.view()
    first = view.checkpoint()
    view.write("a.txt", "changed\n")
    view.write("new.txt", "n\n")
    os.unlink(view.at("dir/b.txt"))
    out = view.store.out("diff", first, cwd=view.path)
    assert out == "M\ta.txt\nD\tdir/b.txt\nA\tnew.txt", out


def test_renames_are_seen(t):
    view = t.view({"a/long-name": "some content\n" * 30, "b": "other\n"})
    first = view.checkpoint()
    os.rename(view.at("a/long-name"), view.at("moved"))
    out = view.store.out("diff", first, "main")
    assert re.fullmatch(r"R\d*\ta/long-name\tmoved", out), out
    assert view.store.out("diff", "--no-renames", first, "main") == "D\ta/long-name\nA\tmoved"


def test_directories_are_told_by_what_they_hold_or_by_themselves(t):
    view = t.view({"old/deep/x": "1", "old/y": "1", "stays/z": "1"})
    first = view.checkpoint()
    shutil.rmtree(view.at("old"))
    view.write("new/sub/x", "1")
    os.mkdir(view.at("new/empty"))
    held = "A\tnew/empty/\nA\tnew/sub/x\nD\told/deep/x\nD\told/y"
    every = "A\tnew/\nA\tnew/empty/\nA\tnew/sub/\nA\tnew/sub/x\nD\told/\nD\told/deep/\nD\told/deep/x\nD\told/y"
    assert view.store.out("diff", first, "main") == held
    assert view.store.out("diff", "--directories", first, "main") == every
    paths = [c["path"] for c in json.loads(view.store.out("diff", "--directories", "--json", first, "main"))]
    assert paths == [line[2:].rstrip("/") for line in every.splitlines()], paths
    view.store.fails("diff", "--directories", "--stat", first, "main", code=2,
                     says="--directories goes with --name-status and --json")


def test_modes_owners_times_and_xattrs(t):
    view = t.view({"m": "1", "o": "1", "t": "1", "x": "1", "same": "1"})
    first = view.checkpoint()
    os.chmod(view.at("m"), 0o755)
    os.utime(view.at("t"), (1, 1))
    os.setxattr(view.at("x"), "user.k", b"v")
    wanted = ["m", "x"]
    if os.geteuid() == 0:
        os.chown(view.at("o"), 5, 5)
        wanted = ["m", "o", "x"]
    with open(view.at("same"), "w") as f:
        f.write("1")
    out = view.store.out("diff", first, "main")
    assert out == "\n".join("M\t" + n for n in wanted), out


def test_exit_codes(t):
    view = t.view()
    first = view.checkpoint()
    assert view.store.ply("diff", "--exit-code", first, "main").returncode == 0
    view.write("a.txt", "x")
    assert view.store.ply("diff", "--exit-code", first, "main", check=False).returncode == 1
    assert view.store.ply("diff", first, "main").returncode == 0


HARD = {
    "text": "".join("line %d\n" % i for i in range(200)),
    "noeol": "no newline at the end",
    "crlf": "a\r\nb\r\n",
    "binary": bytes(range(256)) * 40,
    "empty": "",
    "del": "to be deleted\n",
    "dir/exec.sh": "#!/bin/sh\n",
    "with space": "s\n",
    "tab\there": "t\n",
    "quote\"d": "q\n",
    "umlaut-\u00fc": "u\n",
    "moved/a": "move me\n" * 20,
    "becomes-link": "file\n",
    "big": b"".join(b"%d\n" % (i * i) for i in range(60000)),
}


def change_hard(view):
    lines = HARD["text"].splitlines(True)
    lines[10] = "changed\n"
    del lines[100:105]
    lines.append("more\n")
    view.write("text", "".join(lines))
    view.write("noeol", "still no newline")
    view.write("crlf", "a\r\nc\r\n")
    data = bytearray(HARD["binary"])
    data[5000:5003] = b"\0\xff\0"
    view.write("binary", bytes(data))
    view.write("empty", "no longer\n")
    os.unlink(view.at("del"))
    os.chmod(view.at("dir/exec.sh"), 0o755)
    view.write("with space", "s2\n")
    view.write("tab\there", "t2\n")
    view.write("quote\"d", "q2\n")
    view.write("umlaut-\u00fc", "u2\n")
    os.mkdir(view.at("elsewhere"))
    os.rename(view.at("moved/a"), view.at("elsewhere/b"))
    os.unlink(view.at("becomes-link"))
    os.symlink("text", view.at("becomes-link"))
    view.write("new/empty", "")
    view.write("new/file", "new\n")
    view.write("new/bin", os.urandom(3000))
    os.symlink("../text", view.at("new/link"))
    big = bytearray(HARD["big"])
    big[100000:100010] = b"0123456789"
    view.write("big", bytes(big))


def git_tree(t, directory):
    """The id of the tree that git makes of a directory: content, modes, links."""
    env = dict(t.env, GIT_DIR=t.at("count.git"), GIT_INDEX_FILE=t.at("index-" + str(len(
        os.listdir(t.path)))), GIT_WORK_TREE=directory)
    if not os.path.isdir(t.at("count.git")):
        t.run(["git", "init", "-q", "--bare", t.at("count.git")])
    t.run(["git", "-c", "core.bare=false", "-c", "core.autocrlf=false", "add", "-A", "-f", "."],
          env=env, cwd=directory)
    return t.run(["git", "write-tree"], env=env, cwd=directory).stdout.strip()


def test_git_apply_takes_the_patch(t):
    view = t.view({k: v for k, v in HARD.items()})
    first = view.checkpoint()
    change_hard(view)
    for args in ([], ["--no-renames"]):
        patch = view.store.ply("diff", "--patch", *args, first, "main", text=False).stdout
        with open(t.at("p.patch"), "wb") as f:
            f.write(patch)
        work = t.at("work" + "".join(args))
        view.store.ply("export", first, "--dir", work)
        t.run(["git", "init", "-q", "-b", "main", work])
        t.run(["git", "apply", "--check", t.at("p.patch")], cwd=work)
        t.run(["git", "apply", "--whitespace=nowarn", t.at("p.patch")], cwd=work)
        shutil.rmtree(os.path.join(work, ".git"))
        assert git_tree(t, work) == git_tree(t, view.path)
        # And back again.
        t.run(["git", "init", "-q", "-b", "main", work])
        t.run(["git", "apply", "-R", "--whitespace=nowarn", t.at("p.patch")], cwd=work)
        shutil.rmtree(os.path.join(work, ".git"))
        assert git_tree(t, work) == git_tree(t, t.at("source"))


def test_the_patch_is_the_one_that_git_prints(t):
    view = t.view({k: v for k, v in HARD.items() if k not in ("becomes-link", "moved/a")})
    first = view.checkpoint()
    for k in ("text", "noeol", "crlf", "with space"):
        view.write(k, HARD[k] + "tail\n")
    os.chmod(view.at("dir/exec.sh"), 0o755)
    os.unlink(view.at("del"))
    view.write("new/file", "new\n")
    ours = view.store.ply("diff", "--patch", first, "main").stdout
    repo = t.at("repo")
    view.store.ply("export", first, "--dir", repo)
    t.run(["git", "init", "-q", "-b", "main", "."], cwd=repo)
    t.run(["git", "-c", "core.autocrlf=false", "add", "-A", "."], cwd=repo)
    t.run(["git", "commit", "-qm", "a"], cwd=repo)
    t.sh("find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +", cwd=repo)
    t.run(["cp", "-a", view.at("."), repo])
    t.run(["git", "-c", "core.autocrlf=false", "add", "-A", "."], cwd=repo)
    theirs = t.run(["git", "diff", "--cached", "--binary", "HEAD"], cwd=repo).stdout
    assert ours == theirs, "ours:\n%s\ngit's:\n%s" % (ours[:3000], theirs[:3000])


def test_a_commit_in_the_view_is_not_part_of_its_patch(t):
    view = t.view({"a.txt": "one\n", "sub/b.txt": "two\n", "z.txt": "same\n" * 9})
    for where in (view.path, view.at("sub")):
        t.run(["git", "init", "-q", where])
    first = view.checkpoint()
    for where, name in ((view.path, "a.txt"), (view.at("sub"), "b.txt")):
        ply.write(os.path.join(where, name), "changed\n")
        t.run(["git", "add", name], cwd=where)
        t.run(["git", "commit", "-qm", "c"], cwd=where)
    view.write(".gitignore", "x\n")
    p = view.store.ply("diff", "--patch", first, "main")
    assert re.fullmatch(r"plyfs diff: warning: \d+ changes of \.git, .*, ignoring\n", p.stderr), p
    work = t.at("work")
    view.store.ply("export", first, "--dir", work)
    t.run(["git", "apply"], cwd=work, input=p.stdout)
    assert ply.read(work + "/a.txt") == ply.read(work + "/sub/b.txt") == "changed\n"
    assert ply.read(work + "/.gitignore") == "x\n"


def test_stat_adds_up(t):
    view = t.view({k: v for k, v in HARD.items()})
    first = view.checkpoint()
    view.write("text", HARD["text"] + "one\ntwo\n")
    os.unlink(view.at("del"))
    out = view.store.out("diff", "--stat", first, "main")
    assert re.search(r"^ ?text +\| +2 \+\+$", out, re.M), out
    assert re.search(r"2 files changed, 2 insertions\(\+\), 1 deletion\(-\)", out), out


def test_json(t):
    view = t.view()
    first = view.checkpoint()
    view.write("a.txt", "changed\n")
    got = view.store.json("diff", first, "main")
    changes = got["changes"] if isinstance(got, dict) else got
    assert len(changes) == 1 and "a.txt" in str(changes[0]), got


def test_across_lineages(t):
    # Two imports share no objects: compared by path and content.
    store = t.store()
    store.import_(t.tree({"a": "same\n", "b": "old\n", "d/c": "gone\n", "m": "x\n"}))
    other = t.tree({"a": "same\n", "b": "new\n", "d/e": "came\n", "m": "x\n"}, "other")
    os.chmod(os.path.join(other, "m"), 0o755)
    store.import_(other, "--branch", "other")
    assert name_status(store, "main", "other") == {"b": "M", "d/c": "D", "d/e": "A", "m": "M"}


def test_a_program_that_fails_is_one_line(t):
    # What libgit2 may do to the process that it is in, it does to plyfs-git.
    fake = t.at("libexec/plyfs-git")
    os.mkdir(os.path.dirname(fake))
    with open(fake, "w") as f:
        f.write("#!/bin/sh\nkill -9 $$\n")
    os.chmod(fake, 0o755)
    t.env["PLYFS_LIBEXEC"] = os.path.dirname(fake)
    view = t.view({"f": "one\n"})
    first = view.checkpoint()
    view.write("f", "two\n")
    for how in ("--patch", "--stat"):
        p = view.store.ply("diff", how, first, "main", check=False)
        assert p.returncode == 1 and p.stderr == (
            "plyfs diff: comparing %s and branch main: plyfs-git was ended by signal 9 (Killed): "
            "Input/output error\n" % first), (p.returncode, p.stderr)
    os.unlink(fake)  # then the true one is found, by the same daemon
    assert "\n-one\n+two\n" in view.store.ply("diff", "--patch", first, "main").stdout


if __name__ == "__main__":
    ply.main()
