#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: bad-input
# timeout: 120
"""Hostile archives and repositories: nothing lands outside the tree, nothing is half imported."""
import io
import os
import re
import subprocess
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def tar(t, members, name="bad.tar"):
    """members: (name, type, data or link target)"""
    path = t.at(name)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as f:
        for member, kind, data in members:
            info = tarfile.TarInfo("placeholder")
            info.name = member
            info.type = kind
            info.mtime = 1e9
            info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = data
                f.addfile(info)
            elif kind == tarfile.REGTYPE:
                info.size = len(data)
                f.addfile(info, io.BytesIO(data))
            else:
                f.addfile(info)
    return path


FILE, DIR, SYM, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE

UNSAFE = {
    "dot-dot": [("../escape", FILE, b"x")],
    "dot-dot inside": [("a", DIR, None), ("a/../../escape", FILE, b"x")],
    "dot-dot at the end": [("a/..", DIR, None)],
    "hard link to outside": [("h", HARD, "../../etc/passwd")],
    "hard link to absolute": [("h", HARD, "/etc/passwd")],
    "through a symlink": [("l", SYM, "/tmp"), ("l/escape", FILE, b"x")],
    "through a relative symlink": [("d", DIR, None), ("d/l", SYM, ".."),
                                   ("d/l/escape", FILE, b"x")],
    "hard link through a symlink": [("l", SYM, "/etc"), ("h", HARD, "l/passwd")],
}


def test_hostile_members_are_refused_and_named(t):
    store = t.store()
    for what, members in UNSAFE.items():
        path = tar(t, members)
        p = store.ply("import", path, check=False)
        assert p.returncode == 1, (what, p)
        named = members[-1][0]
        assert named.split("/")[-1] in p.stderr, (what, p.stderr)
    assert not os.path.exists("/tmp/escape") and not os.path.exists(t.at("escape"))
    assert "main" not in store.out("tree", check=False)


def test_absolute_names_are_refused_or_taken_relative_like_tar_does(t):
    store = t.store()
    p = store.ply("import", tar(t, [("/abs/file", FILE, b"x")]), check=False)
    if p.returncode == 0:
        assert store.mount().read("abs/file") == "x"
    else:
        assert "abs" in p.stderr, p.stderr


def raw(t, *members, name="raw.tar", **how):
    """members: (TarInfo's fields, content)"""
    path = t.at(name)
    with tarfile.open(path, "w", **how) as f:
        for fields, data in members:
            info = tarfile.TarInfo()
            for key, value in dict(fields, size=len(data)).items():
                setattr(info, key, value)
            f.addfile(info, io.BytesIO(data))
    return path


def test_owners_and_devices_that_linux_does_not_have_are_refused_and_named(t):
    store = t.store()
    for owner in ("uid", "gid"):
        for value, how in ((1 << 32, tarfile.PAX_FORMAT), ((1 << 32) - 1, tarfile.PAX_FORMAT),
                           (-1, tarfile.GNU_FORMAT)):
            if value < 0 and ply.libarchive() >= 3007005:  # takes it for 0
                continue
            path = raw(t, ({"name": "odd", owner: value}, b"x"), format=how)
            store.fails("import", path, says=["member 'odd'", str(value)])
    for device in ({"devmajor": 1 << 12}, {"devminor": 1 << 20}):
        path = raw(t, (dict(device, name="odd", type=tarfile.CHRTYPE), b""))
        store.fails("import", path, says=["member 'odd'", str(max(device.values()))])
    store.import_(raw(t, ({"name": "last", "uid": (1 << 32) - 2}, b"x"), format=tarfile.PAX_FORMAT))
    assert os.stat(store.mount().at("last")).st_uid == (1 << 32) - 2


def test_a_header_that_makes_no_sense_is_told_though_its_member_comes(t):
    store = t.store()
    for i, header in enumerate([b"99 path=x\n", b"0 path=x\n", b"10 path=xy", b"9999999 path=x\n"]):
        path = raw(t, ({"name": "h", "type": tarfile.XHDTYPE}, header), ({"name": "named"}, b"x"))
        told = store.ply("import", path, "--branch", "b%d" % i).stderr
        assert "'named'" in told and "pax" in told, (header, told)
    path = raw(t, ({"name": "a"}, b"x"), ({"name": "b"}, b"x"))
    with open(path, "r+b") as f:
        f.seek(1024 + 148)  # the second one's checksum
        f.write(b"000000")
    store.fails("import", path, "--branch", "x", says="[Dd]amaged")


def test_a_symlink_with_too_long_a_target_is_refused_for_that(t):
    path = raw(t, ({"name": "l", "type": SYM, "linkname": "x" * 4096}, b""), format=tarfile.PAX_FORMAT)
    t.store().fails("import", path, says=["member 'l'", "too long"])


def test_symlinks_have_the_mode_that_linux_gives_them(t):
    store = t.store()
    store.import_(raw(t, ({"name": "l", "type": SYM, "linkname": "x", "mode": 0o640}, b"")))
    assert os.lstat(store.mount().at("l")).st_mode & 0o7777 == 0o777


def test_a_name_in_a_message_cannot_write_on_the_terminal(t):
    store = t.store()
    for name in ("../\033]0;owned\007\033[2J", "../a\nplyfs import: all is well"):
        p = store.ply("import", tar(t, [(name, FILE, b"x")]), check=False)
        assert p.returncode == 1 and p.stderr.count("\n") == 1 and p.stderr.endswith("\n"), p
        assert not re.search("[\0-\x09\x0b-\x1f\x7f]", p.stderr), p.stderr


def test_odd_but_harmless_archives_are_taken(t):
    store = t.store()
    members = [("./", DIR, None), ("a//b/./c", FILE, b"deep"), ("twice", FILE, b"first"),
               ("twice", FILE, b"second"), ("out", SYM, "/etc/passwd"), ("up", SYM, "../../x"),
               ("h", HARD, "twice"), ("x" * 255, FILE, b"long")]
    store.import_(tar(t, members))
    view = store.mount()
    assert view.read("a/b/c") == "deep"
    assert view.read("twice") == "second" == view.read("h")
    assert os.readlink(view.at("out")) == "/etc/passwd"
    assert os.stat(view.at("a")).st_mode & 0o777 == 0o755


def plumbing(t, repo, name, mode="100644", content=b"x\n"):
    """A commit whose tree holds one entry of any name, which porcelain would refuse."""
    git = lambda *a, **k: subprocess.run(["git", "-C", repo, *a], check=True, env=t.env,
                                         stdout=subprocess.PIPE, **k).stdout.strip()
    blob = git("hash-object", "-w", "--stdin", input=content)
    if mode == "40000":
        inner = b"100644 inside\0" + bytes.fromhex(blob.decode())
        blob = git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", input=inner)
    raw = mode.encode() + b" " + name + b"\0" + bytes.fromhex(blob.decode())
    tree = git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", input=raw)
    return git("commit-tree", "-m", "bad", tree.decode()).decode()


def test_hostile_git_trees_are_refused(t):
    store = t.store()
    repo = t.at("repo")
    t.run(["git", "init", "-q", "-b", "main", repo])
    for name in (b"..", b".", b".git", b".GIT", b"git~1", ".g\u200cit".encode(), b".git ", b"a/b",
                 b".git::$INDEX_ALLOCATION", b""):
        for mode in ("100644", "40000"):
            try:
                commit = plumbing(t, repo, name, mode)
            except subprocess.CalledProcessError:
                continue
            p = store.ply("import", repo + "#" + commit, check=False)
            assert p.returncode == 1, (name, mode, p)
            assert p.stderr.strip(), name
    assert "main" not in store.out("tree", check=False)
    assert not os.path.exists(t.at("inside"))


def test_links_out_of_a_git_tree_are_only_links(t):
    store = t.store()
    repo = t.at("repo")
    t.run(["git", "init", "-q", "-b", "main", repo])
    commit = plumbing(t, repo, b"link", "120000", b"/etc/passwd")
    store.import_(repo + "#" + commit)
    assert os.readlink(store.mount().at("link")) == "/etc/passwd"


def test_an_export_never_leaves_its_directory(t):
    # The view may hold links anywhere; exporting recreates them and follows none.
    view = t.view({"d/f": "inside"})
    os.symlink(t.at("outside"), view.at("l"))
    os.mkdir(t.at("outside"))
    view.store.ply("export", "main", "--dir", t.at("out"))
    assert os.readlink(t.at("out/l")) == t.at("outside")
    assert os.listdir(t.at("outside")) == []


if __name__ == "__main__":
    ply.main()
