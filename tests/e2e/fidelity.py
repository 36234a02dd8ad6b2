#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: fidelity
# timeout: 420
"""
Fidelity: a tree of at least 50,000 real files with everything odd that a filesystem allows has
the same digest (content, mode, owner, ns times, links, xattrs, ACLs, targets, holes) at the
source, in the view, and after export to a directory and to a tar file.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import trees

# A tar holds no sockets; and libarchive reads a second between -1 and 0 without its sign.
NOT_THROUGH_A_TAR = ["--exclude", "odd/socket", "--exclude", "odd/times/1969*"]
if ply.libarchive() >= 3007005:
    # Nor do attributes come whose names have more than 128 bytes, nor is there a major number to a minor one that
    # is beyond 18 bits.
    NOT_THROUGH_A_TAR += ["--exclude", "odd/xattr", "--exclude", "odd/block"]


def test_50000_real_files_are_the_same_at_the_source_in_the_view_and_after_export(t):
    source = t.at("source")
    wanted = 3000 if ply.COLLIDE else 50000
    n = trees.real_tree(source, wanted)
    print("# %d files" % n)
    assert n >= wanted, "this machine has only %d files to copy" % n
    odd = trees.add_odd_things(os.path.join(source, "odd"))
    print("# odd things: " + ", ".join(odd))
    wanted = ply.treedigest(source)

    store = t.store()
    snap = store.import_(source)
    assert ply.treedigest(source) == wanted, "the import changed its source"
    view = store.mount()
    if view.digest() != wanted:
        ply.assert_same_tree(source, view.path)

    store.ply("export", snap, "--dir", t.at("dir"), timeout=400)
    if ply.treedigest(t.at("dir")) != wanted:
        ply.assert_same_tree(source, t.at("dir"))
    ply.remove(t.at("dir"))

    # Through a tar and back. A tar has no holes of trees' own making; libarchive keeps them.
    store.ply("export", snap, "--tar", t.at("t.tar"), timeout=400)
    store.import_(t.at("t.tar"), "--branch", "tar")
    os.unlink(t.at("t.tar"))
    again = store.mount(branch="tar")
    without = list(NOT_THROUGH_A_TAR)
    if again.digest(*without) != ply.treedigest(source, *without):
        ply.assert_same_tree(source, again.path, *without)

    # And once more from a fresh daemon: what is on disk, not what is in memory.
    view.unmount()
    again.unmount()
    store.stop()
    assert store.mount().digest() == wanted


def test_a_tar_made_by_tar_is_taken_as_tar_would_extract_it(t):
    ply.need_root()
    ply.need_tool("tar")
    source = ply.make_bulk(t.at("source"), 300)
    trees.add_odd_things(os.path.join(source, "odd"))
    t.sh("""
tar --format=posix --xattrs --xattrs-include='*' --acls --sparse -cf t.tar -C source . 2>/dev/null
mkdir extracted
tar --xattrs --xattrs-include='*' --acls -xpf t.tar -C extracted
gzip -k t.tar
""")
    store = t.store()
    store.import_(t.at("t.tar"))
    store.import_(t.at("t.tar.gz"), "--branch", "gz")
    view = store.mount()
    # tar makes holes where it finds zeros at another granularity.
    ply.assert_same_tree(t.at("extracted"), view.path, "--no-holes", *NOT_THROUGH_A_TAR)
    ply.assert_same_tree(view.path, store.mount(branch="gz").path)


def test_an_exported_tar_is_extracted_by_tar(t):
    ply.need_root()
    ply.need_tool("tar")
    source = ply.make_bulk(t.at("source"), 300)
    trees.add_odd_things(os.path.join(source, "odd"))
    for name in os.listdir(os.path.join(source, "odd")):
        if name == "socket":
            os.unlink(os.path.join(source, "odd", name))
    store = t.store()
    store.import_(source)
    t.sh("'%s' --store '%s' export main --tar - | (mkdir out && cd out && "
         "tar --xattrs --xattrs-include='*' --acls -xpf -)" % (ply.PLYFS, store.path))
    ply.assert_same_tree(source, t.at("out"), "--no-holes", *NOT_THROUGH_A_TAR)


def test_a_git_revision_is_imported_as_git_checks_it_out(t):
    repo = t.at("repo")
    ply.make_bulk(repo, 200)
    ply.write(os.path.join(repo, "run.sh"), "#!/bin/sh\n")
    os.chmod(os.path.join(repo, "run.sh"), 0o755)
    os.symlink("run.sh", os.path.join(repo, "link"))
    t.sh("""
git init -q -b main . && git add -A && git commit -qm one
echo two >d000/s0000/f000.txt && git rm -q run.sh && git commit -qam two
git archive --format=tar HEAD~1 -o ../one.tar
""", cwd=repo)
    store = t.store()
    store.import_(repo + "#HEAD~1")
    view = store.mount()
    os.mkdir(t.at("wanted"))
    t.sh("tar -xf one.tar -C wanted")
    assert ply.run(["diff", "-r", "--no-dereference", t.at("wanted"), view.path]).stdout == ""
    assert os.stat(view.at("run.sh")).st_mode & 0o111 == 0o111
    assert os.stat(view.at("run.sh")).st_mtime > 1e9
    store.import_(repo + "#main", "--branch", "two")
    two = store.mount(branch="two")
    assert "run.sh" not in two.ls() and two.read("d000/s0000/f000.txt") == "two\n"
    # The repository as a directory is imported with its .git and what is not committed.
    store.import_(repo, "--branch", "dir")
    assert ".git" in store.mount(branch="dir").ls()


def test_a_tree_deeper_than_a_path_may_be_long(t):
    source = t.at("source")
    os.mkdir(source)
    fd = os.open(source, os.O_RDONLY)
    name = "n" * 200
    for _ in range(60):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    f = os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(f, b"deep")
    os.close(f)
    os.close(fd)
    store = t.store()
    store.import_(source)
    view = store.mount()
    fd = os.open(view.path, os.O_RDONLY)
    for _ in range(60):
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    f = os.open("bottom", os.O_RDONLY, dir_fd=fd)
    assert os.read(f, 10) == b"deep"
    os.close(f)
    os.close(fd)
    store.ply("export", "main", "--dir", t.at("out"))
    found = t.run(["find", t.at("out"), "-name", "bottom", "-size", "4c"]).stdout
    assert found.count("bottom") == 1


def test_the_form_in_which_xfs_shows_root_an_acl_once_more_is_not_kept(t):
    ply.need_root()
    ply.need_tool("setfacl")
    source = t.tree({"d/f": "1\n"})
    t.run(["setfacl", "-m", "u:1:rwx,d:u:1:rwx", source + "/d"])
    for name in "trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT":
        if name not in os.listxattr(source + "/d"):  # not on an xfs
            os.setxattr(source + "/d", name, b"ACL")
    view = t.view(source)
    assert sorted(os.listxattr(view.at("d"))) == ["system.posix_acl_access",
                                                  "system.posix_acl_default"]


def test_an_attribute_of_the_top_itself_that_is_left_out_is_told_of_a_dot(t):
    disk = ply.small_disk(t, 160, "btrfs")
    os.setxattr(disk, "btrfs.compression", b"zstd")  # a setting of that filesystem alone
    store = t.store()
    told = store.ply("import", disk).stderr
    assert "attribute 'btrfs.compression' of '.' cannot be kept" in told, told
    view = store.mount()
    os.setxattr(view.path, "user.big", b"x" * 60000)  # a btrfs takes a quarter of that
    os.mkdir(os.path.join(disk, "out"))
    told = store.ply("export", "main", "--dir", os.path.join(disk, "out")).stderr
    assert "attribute 'user.big' of '.' cannot be set here" in told, told


if __name__ == "__main__":
    ply.main()
