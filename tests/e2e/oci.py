#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 60
"""
OCI image layouts: each layer a snapshot, whiteouts, layers stored once, and nothing believed that
was not verified.
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ocilayout
import ply
from ocilayout import Layout, member, tar

BASE = tar(member("./"), member("etc"), member("etc/a", b"a\n"), member("etc/b", b"b\n", uid=7, gid=8),
           member("dir"), member("dir/one", b"1"), member("dir/sub"), member("dir/sub/deep", b"2"),
           member("keep", b"k" * 9000), member("lnk", symlink="etc/a"))


def image(t, *layers, how="", name="img", **more):
    layout = Layout(t.at(name))
    layout.add(layout.manifest([(data, how) for data in layers], **more), "latest")
    return layout


def tree_of(view):
    found = []
    for d, dirs, files in os.walk(view.path):
        found += [os.path.relpath(os.path.join(d, n), view.path) for n in dirs + files]
    return sorted(found)


def test_layers_become_a_chain_of_snapshots_and_the_configuration_an_attribute(t):
    second = tar(member("etc/c", b"c\n"), member("etc/.wh.a", b""))
    run = {"Env": ["A=1"], "WorkingDir": "/dir", "Cmd": ["sh"]}
    layout = image(t, BASE, second, run=run)
    store = t.store()
    snap = store.out("import", "--oci", layout.path + ":latest")
    log = store.json("log")
    by_id = {s["id"]: s for s in log}
    top = by_id[snap]
    upper = by_id[top["parent"]]
    lower = by_id[upper["parent"]]
    chain = ocilayout.sha256((ocilayout.sha256(BASE) + " " + ocilayout.sha256(second)).encode())
    assert lower["label"] == "oci:" + ocilayout.sha256(BASE), lower
    assert upper["label"] == "oci:" + chain, upper
    assert len(log) == 3, log
    view = store.mount()
    assert json.loads(os.getxattr(view.path, "user.plyfs.oci")) == run
    assert "etc/a" not in tree_of(view) and view.read("etc/c") == "c\n"
    assert os.path.islink(view.at("lnk")) and os.stat(view.at("etc/b")).st_uid == 7
    first = store.mount(snapshot=lower["id"])
    assert first.read("etc/a") == "a\n" and "user.plyfs.oci" not in os.listxattr(first.path)


def test_whiteouts_hide_what_is_below_and_nothing_of_their_own_layer(t):
    # A whiteout and an opaque mark before and after what the same layer brings.
    layers = [BASE,
              tar(member("dir/sub/new", b"n"), member("dir/.wh..wh..opq", b""), member("dir/two", b"2"),
                  member("etc/.wh.b", b""), member("etc/b/x", b"now a directory"),
                  member(".wh.nothing", b""), member(".wh..wh.plnk", b""), member("nowhere/.wh.x", b"")),
              tar(member("keep"), member("keep/x", b"a file was here"), member("etc", b"a file, a directory"))]
    store = t.store()
    store.out("import", "--oci", image(t, *layers[:2], name="two").path)
    view = store.mount()
    assert tree_of(view) == sorted(["dir", "dir/sub", "dir/sub/new", "dir/two", "etc", "etc/a", "etc/b",
                                    "etc/b/x", "keep", "lnk"]), tree_of(view)
    store.out("import", "--oci", image(t, *layers, name="three").path, "--branch", "b")
    view = store.mount(branch="b")
    assert tree_of(view) == sorted(["dir", "dir/sub", "dir/sub/new", "dir/two", "etc", "keep",
                                    "keep/x", "lnk"]), tree_of(view)
    store.ply("check", "--read-data")


def test_whiteouts_below_what_is_no_directory_hide_nothing(t):
    # As umoci tells that a directory became something else: that, and a whiteout of all it had.
    second = tar(member("dir", b"a file"), member("dir/.wh.one", b""), member("dir/sub/.wh.deep", b""),
                 member("etc/there", symlink="../keep"), member("etc/there/.wh.x", b""),
                 member("lnk/.wh.x", b""))
    third = tar(member("dir", symlink="etc"), member("dir/.wh.a", b""), member("dir/.wh..wh..opq", b""))
    store = t.store()
    store.out("import", "--oci", image(t, BASE, second, third).path)
    view = store.mount()
    assert tree_of(view) == ["dir", "etc", "etc/a", "etc/b", "etc/there", "keep", "lnk"], tree_of(view)
    assert os.readlink(view.at("dir")) == "etc"


def test_hard_links_reach_into_lower_layers(t):
    second = tar(member("etc/again", link="etc/a"), member("more", link="keep"), member(".wh.keep", b""))
    store = t.store()
    store.out("import", "--oci", image(t, BASE, second).path)
    view = store.mount()
    a, again = os.stat(view.at("etc/a")), os.stat(view.at("etc/again"))
    assert a.st_ino == again.st_ino and a.st_nlink == 2 and a.st_mtime == 1000
    assert view.read("more") == "k" * 9000 and os.stat(view.at("more")).st_nlink == 1
    assert "keep" not in tree_of(view)


def test_every_compression_gives_the_same_states_and_known_layers_are_not_read_again(t):
    ply.need_tool("zstd")
    second = tar(member("etc/c", b"c\n"))
    store = t.store()
    for how in ("", "gzip", "zstd"):
        layout = image(t, BASE, second, how=how, name="img" + how)
        store.out("import", "--oci", layout.path, "--branch", "b" + how)
    labels = [s["label"] for s in store.json("log") if s["label"].startswith("oci:")]
    assert len(labels) == 2, labels
    # Another image on the same base: only its own layer is made, and the base's blob not needed.
    layout = image(t, BASE, tar(member("other", b"o")), name="third")
    os.unlink(layout.blob_path(ocilayout.sha256(BASE)))
    stats = store.json("import", "--oci", layout.path, "--branch", "third")
    assert (stats["files"], stats["directories"]) == (1, 0), stats
    view = store.mount(branch="third")
    assert view.read("etc/a") == "a\n" and view.read("other") == "o"
    # Back and forth between the two images' states: numbers that both dealt out are told apart.
    two = store.out("import", "--oci", t.at("img"), "--branch", "two")
    mine = view.checkpoint()
    view.restore(two)
    assert view.read("etc/c") == "c\n" and not os.path.exists(view.at("other"))
    view.restore(mine)
    assert view.read("other") == "o" and not os.path.exists(view.at("etc/c"))


def test_a_label_of_someone_elses_is_not_taken_for_a_layer(t):
    store = t.store()
    store.import_(t.tree({"evil": "x"}))
    view = store.mount()
    view.write("evil", "more")
    view.checkpoint("oci:" + ocilayout.sha256(BASE))
    store.out("import", "--oci", image(t, BASE).path, "--branch", "b")
    assert "evil" not in tree_of(store.mount(branch="b"))


def test_the_image_is_chosen_by_tag_digest_and_platform(t):
    layout = Layout(t.at("img"))
    one = layout.add(layout.manifest([(tar(member("one", b"")), "")]), "one")
    layout.add(layout.manifest([(tar(member("two", b"")), "")]), "v:2")
    alien = layout.manifest([(tar(member("alien", b"")), "")], arch="pdp11")
    both = layout.blob({"schemaVersion": 2, "manifests": [
        dict(alien, platform={"os": "linux", "architecture": "pdp11"}),
        dict(one, platform={"os": "linux", "architecture": ocilayout.ARCH})]}, ocilayout.INDEX)
    layout.add(both, "many")
    layout.add(alien, "alien", platform={"os": "linux", "architecture": "pdp11"})
    store = t.store()

    def names(ref, branch):
        store.out("import", "--oci", layout.path + ref, "--branch", branch)
        return tree_of(store.mount(branch=branch))

    assert names(":one", "a") == ["one"]
    assert names(":v:2", "b") == ["two"]
    assert names(":many", "c") == ["one"]
    assert names("@" + one["digest"], "d") == ["one"]
    store.fails("import", "--oci", layout.path, "--branch", "e", says=["several", "DIR:TAG"])
    store.fails("import", "--oci", layout.path + ":no", "--branch", "e", says=["no image 'no'", "v:2"])
    store.fails("import", "--oci", layout.path + ":alien", "--branch", "e", says="none for linux/")
    store.fails("import", "--oci", layout.path + "@" + alien["digest"], "--branch", "e",
                says="linux/pdp11")
    store.fails("import", "--oci", t.at("nowhere"), "--branch", "e", says="no such file")
    store.fails("import", "--oci", t.tree({"x": "y"}), "--branch", "e", says="no OCI image layout")
    store.fails("import", "--oci", "--rev", "x", layout.path, code=2)
    assert not any(b["name"] == "e" for b in store.json("tree")["branches"])


def test_what_is_not_as_its_digest_says_is_refused_and_leaves_nothing(t):
    store = t.store()
    base = ocilayout.sha256(BASE)

    def refused(layout, says):
        store.fails("import", "--oci", layout.path, "--branch", "x", says=says)
        assert store.json("log") == [], says

    layout = image(t, BASE, name="bad-bytes")
    with open(layout.blob_path(base), "r+b") as f:
        f.seek(600)
        f.write(b"!")
    refused(layout, ["damaged", base])

    layout = image(t, BASE, name="short")
    os.truncate(layout.blob_path(base), len(BASE) - 512)
    refused(layout, "bytes, not the")

    layout = image(t, BASE, name="gone")
    os.unlink(layout.blob_path(base))
    refused(layout, "no such file")

    layout = image(t, BASE, name="bad-config", diff_ids=[ocilayout.sha256(b"else")])
    refused(layout, ["unpacks to", base])
    layout = image(t, BASE, name="short-config", diff_ids=[base, base])
    refused(layout, ["1 layer, the configuration 2"])

    # Digests are right, what is in the blob is not.
    packed = ocilayout.pack(BASE, "gzip")
    layout = Layout(t.at("truncated-gzip"))
    layout.add(layout.manifest([(packed[:-40], "")], diff_ids=[base]))
    refused(layout, "gzip|truncated")
    layout = Layout(t.at("no-tar"))
    layout.add(layout.manifest([(b"hello", "")]))
    refused(layout, "archive")
    layout = Layout(t.at("no-json"))
    ply.write(os.path.join(layout.path, "index.json"), "{")
    refused(layout, "index.json")
    layout = Layout(t.at("artifact"))
    m = layout.blob({"config": {}, "layers": [layout.blob(b"x", "application/x-thing")]},
                    ocilayout.MANIFEST)
    layout.add(m)
    refused(layout, "no tar")
    layout = Layout(t.at("bad-digest"))
    layout.add({"mediaType": ocilayout.MANIFEST, "digest": "sha256:../../x", "size": 1})
    refused(layout, "no sha256 digest")

    layout = Layout(t.at("indices"))  # a small one that would fill the daemon's memory
    inner = layout.blob({"manifests": [], "filler": "x" * (1 << 20)}, ocilayout.INDEX)
    for _ in range(20):
        layout.add(inner)
    refused(layout, "too large together")
    layout = Layout(t.at("values"))  # three bytes each, and seventy times as many when it was read
    layout.add(layout.blob({"manifests": [], "filler": [{}] * 300000}, ocilayout.INDEX))
    refused(layout, "too many values")
    layout = Layout(t.at("nothing"))
    layout.add(layout.blob({"manifests": []}, ocilayout.INDEX))
    refused(layout, "no image is in it$")

    layout = image(t, BASE, name="symlinked")
    os.rename(layout.blob_path(base), t.at("outside"))
    os.symlink(t.at("outside"), layout.blob_path(base))
    refused(layout, "out of the layout")


def test_symlinks_of_lower_layers_are_followed_within_the_tree(t):
    base = tar(member("usr/lib"), member("usr/lib/old", b"o"), member("lib", symlink="usr/lib"),
               member("abs", symlink="/usr/../usr/lib"), member("up", symlink="../../../usr"),
               member("loop", symlink="loop"))
    second = tar(member("lib/one", b"1"), member("abs/two", b"2"), member("up/lib/three", b"3"),
                 member("lib/.wh.old", b""), member("four", link="lib/one"))
    store = t.store()
    store.out("import", "--oci", image(t, base, second).path)
    view = store.mount()
    assert tree_of(view) == sorted(["abs", "four", "lib", "loop", "up", "usr", "usr/lib",
                                    "usr/lib/one", "usr/lib/three", "usr/lib/two"]), tree_of(view)
    for i, bad in enumerate([tar(member("loop/x", b"")),
                             tar(member("new", symlink="usr"), member("new/x", b""))]):
        store.fails("import", "--oci", image(t, base, bad, name="bad%d" % i).path, "--branch", "x",
                    says="loop|symlink|symbolic")


def test_names_from_the_root_are_names_in_the_tree(t):
    # As images have them that kaniko and ko made: Docker, containerd and umoci take them so.
    second = tar(member("/", mode=0o750), member("/app", b"program"), member("/etc/again", link="/etc/a"),
                 member("/dir/.wh.one", b""), member("//dir//sub/new", b"n"))
    store = t.store()
    store.out("import", "--oci", image(t, BASE, second).path)
    view = store.mount()
    assert tree_of(view) == sorted(["app", "dir", "dir/sub", "dir/sub/deep", "dir/sub/new", "etc", "etc/a",
                                    "etc/again", "etc/b", "keep", "lnk"]), tree_of(view)
    assert view.read("app") == "program" and os.stat(view.path).st_mode & 0o777 == 0o750
    assert os.stat(view.at("etc/again")).st_ino == os.stat(view.at("etc/a")).st_ino


def test_a_symlink_that_a_whiteout_hid_is_followed_no_more(t):
    base = tar(member("usr/lib"), member("lib", symlink="usr/lib"))
    second = tar(member("lib/before", b""), member(".wh.lib", b""), member("lib/after", b""))
    store = t.store()
    store.out("import", "--oci", image(t, base, second).path)
    assert tree_of(store.mount()) == ["lib", "lib/after", "usr", "usr/lib", "usr/lib/before"]


def test_hostile_layers_are_refused_like_hostile_tars(t):
    store = t.store()
    for i, bad in enumerate([
            member("../x", b""), member("/../x", b""), member("etc/../../x", b""),
            member("lnk/x", b""), member("etc/.wh...", b""), member("etc/.wh..", b""),
            member("etc/.wh.", b""), member("x", link="../../etc/passwd"),
            member("x", link="lnk/a")]):
        layout = image(t, BASE, tar(bad), name="bad%d" % i)
        store.fails("import", "--oci", layout.path, "--branch", "x")
    assert store.json("log") == []


if __name__ == "__main__":
    ply.main()
