#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 200
"""
The local kind of environment and its view, through the C library: checkpoints, clones, what a view adds,
and that nothing is left behind.
"""
import json
import os
import pwd
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plylib
from plylib import FILES, Env, fails, local, plyfs_mounts


# ---- checkpoints ----

def test_ids_are_decimal_and_grow(t):
    env = local(t)
    ids = [env.checkpoint()]
    ids.append(env.checkpoint())  # nothing has changed: a checkpoint all the same
    env.write_file("a.txt", "2")
    ids.append(env.checkpoint("a label"))
    env.restore("0")
    ids.append(env.checkpoint())
    assert ids == ["0", "1", "2", "3"]


def test_ids_survive_restarts(t):
    env = local(t)
    env.checkpoint()
    env.write_file("a.txt", "two")
    env.checkpoint()
    env.cleanup()
    again = Env(bench=t, workdir=t.at("work")).setup()
    again.restore("1")
    assert again.read_file("a.txt") == b"two"
    again.restore("0")
    assert again.read_file("a.txt") == b"one\n"
    assert again.checkpoint() == "2"


def test_ids_survive_the_loss_of_the_memo(t):
    env = local(t)
    for _ in range(3):
        env.checkpoint()
    store = t.stores[0].path
    env.cleanup()
    os.unlink(os.path.join(store, "numbers", "main"))
    assert env.setup().checkpoint() == "3"


def test_a_number_that_cannot_be_noted_is_not_given(t):
    env = local(t)
    other = Env(bench=t, workdir=env.workdir).setup()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        fails("PLY_FAILED", "writing the next checkpoint's number: File too large", env.checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert other.checkpoint() == "0" and env.checkpoint() == "1"


def test_where_numbers_cannot_be_noted_none_is_given(t):
    env = local(t)
    numbers = os.path.join(t.stores[0].path, "numbers")
    assert env.checkpoint() == "0"
    os.rename(numbers, numbers + ".aside")
    ply.write(numbers, "in the way")
    other = Env(bench=t, workdir=env.workdir).setup()
    fails("PLY_NOT_FOUND", "numbers': Not a directory", other.checkpoint)
    os.unlink(numbers)
    os.rename(numbers + ".aside", numbers)
    assert other.checkpoint() == "1" and env.checkpoint() == "2"


def test_a_restore_brings_the_tree_back_exactly(t):
    env = local(t)
    top = env.workdir
    os.chmod(os.path.join(top, "a.txt"), 0o640)
    os.link(os.path.join(top, "a.txt"), os.path.join(top, "hard"))
    os.symlink("nowhere", os.path.join(top, "link"))
    os.mkfifo(os.path.join(top, "fifo"))
    os.mkdir(os.path.join(top, "empty"))
    os.utime(os.path.join(top, "dir"), ns=(5, 7))
    snap = env.checkpoint()
    before = ply.treedigest(top)
    env.run("rm -rf dir a.txt link fifo empty; mkdir -p late/er; echo x >late/er/f; chmod 777 hard;"
            "echo more >>hard")
    assert ply.treedigest(top) != before
    env.restore(snap)
    assert ply.treedigest(top) == before


def test_any_checkpoint_may_be_restored_in_any_order_and_again(t):
    env = local(t)
    for i in range(4):
        env.write_file("v", str(i))
        assert env.checkpoint() == str(i)
    for i in (0, 3, 1, 1, 2, 0):
        env.restore(str(i))
        assert env.read_file("v") == b"%d" % i
    assert env.checkpoint() == "4"


def test_an_unknown_id_changes_nothing(t):
    env = local(t)
    env.checkpoint()
    env.write_file("a.txt", "kept")
    for bad in ("7", "", "zzz", "@none", "-1", "00", "0x", "123456789012", "a" * 300, "0/../0"):
        e = fails("PLY_UNKNOWN_ID", "", env.restore, bad)
        assert e.sentence == "Checkpoint %s not found" % bad or len(bad) > 200, e
    assert env.read_file("a.txt") == b"kept"


def test_labels_are_possible_and_findable(t):
    env = local(t)
    assert env.checkpoint("before the fire") == "0"
    env.write_file("a.txt", "burnt")
    env.checkpoint("after")
    env.restore("@before the fire")
    assert env.read_file("a.txt") == b"one\n"
    labels = [s["label"] for s in json.loads(t.run(
        [ply.PLYFS, "log", "--json"], cwd=env.workdir).stdout) if s["label"]]
    assert labels[:2] == ["main/1 after", "main/0 before the fire"], labels
    fails("PLY_INVALID", "too long: 249 bytes, 248 fit", env.checkpoint, "x" * 249)
    assert env.checkpoint("x" * 248) == "2"


def test_whatever_the_program_takes_may_be_restored(t):
    env = local(t)
    snap = t.run([ply.PLYFS, "checkpoint", "-m", "mine"], cwd=env.workdir).stdout.strip()
    env.write_file("a.txt", "2")
    env.checkpoint()
    env.restore(snap)
    assert env.read_file("a.txt") == b"one\n"
    env.restore("@main/0")
    assert env.read_file("a.txt") == b"2"
    env.restore("@mine")
    assert env.read_file("a.txt") == b"one\n"


def test_the_beginning_of_an_id_may_be_all_digits(t):
    t.surroundings()
    view = t.view(FILES)
    env = Env(bench=t, workdir=view.path).setup()
    for n in range(2000):  # one id in 48 is such a one
        snap = view.checkpoint("n%d" % n)
        if snap[:7].isdigit() and snap[0] != "0":
            break
    env.write_file("a.txt", "2")
    env.restore(snap[:7])
    assert env.read_file("a.txt") == b"one\n"
    fails("PLY_UNKNOWN_ID", "Checkpoint 4711 not found", env.restore, "4711")


def test_a_number_with_a_zero_in_front_is_not_the_beginning_of_an_id(t):
    t.surroundings()
    view = t.view(FILES)
    env = Env(bench=t, workdir=view.path).setup()
    for n in range(2000):  # one id in 41 is such a one
        snap = view.checkpoint("n%d" % n)
        if snap[0] == "0" and snap[:3].isdigit():
            break
    env.write_file("a.txt", "2")
    fails("PLY_UNKNOWN_ID", "Checkpoint %s not found" % snap[:3], env.restore, snap[:3])
    assert env.read_file("a.txt") == b"2"


def test_a_dropped_checkpoint_is_not_found(t):
    env = local(t)
    env.checkpoint()
    snap = json.loads(t.run([ply.PLYFS, "log", "--json", "-n", "1"], cwd=env.workdir).stdout)[0]["id"]
    env.write_file("a.txt", "2")
    env.checkpoint()
    t.run([ply.PLYFS, "drop", snap], cwd=env.workdir)
    fails("PLY_UNKNOWN_ID", "Checkpoint 0 not found", env.restore, "0")


def test_restore_refuses_home(t):
    t.surroundings()
    home = t.at("elsewhere")
    t.tree(FILES, "elsewhere")
    env = Env(bench=t, workdir=home).setup()
    snap = env.checkpoint()
    env.write_file("a.txt", "kept")
    os.environ["HOME"] = home
    fails("PLY_DENIED", "Refusing to restore: workdir %s is root or HOME" % home, env.restore, snap)
    assert env.read_file("a.txt") == b"kept"
    if os.geteuid() == 0:  # without the variable it is what the user's record says
        record = pwd.getpwuid(0).pw_dir
        t.run(["mount", "--bind", home, record])
        try:
            del os.environ["HOME"]
            fails("PLY_DENIED", "is root or HOME", env.restore, snap)
        finally:
            t.run(["umount", "--lazy", record])
    os.environ["HOME"] = t.at("home")
    env.restore(snap)


def test_undo_brings_back_what_the_last_restore_left(t):
    env = local(t)
    snap = env.checkpoint()
    fails("PLY_STATE", "no restore", env.undo)
    env.write_file("a.txt", "left")
    env.restore(snap)
    env.undo()
    assert env.read_file("a.txt") == b"left"
    env.undo()
    assert env.read_file("a.txt") == b"one\n"


def test_diff_tells_what_changed(t):
    env = local(t)
    first = env.checkpoint()
    env.write_file("a.txt", "two\n")
    env.write_file("new", "")
    assert env.diff() == "M\ta.txt\nA\tnew\n"
    second = env.checkpoint()
    assert env.diff() == "" and env.diff(first) == "M\ta.txt\nA\tnew\n"
    assert env.diff(second, first) == "M\ta.txt\nD\tnew\n"
    assert "-one\n+two\n" in env.diff(first, second, "patch")
    assert [x["path"] for x in json.loads(env.diff(first, second, "json"))] == ["a.txt", "new"]
    assert "a.txt" in env.diff(first, second, "stat")
    fails("PLY_INVALID", "form", env.diff, first, second, "html")
    fails("PLY_UNKNOWN_ID", "Checkpoint 9 not found", env.diff, "9")
    for unknown in ("nope",), ("nope~1",), ("@nope",), (first, "nope"), (None, "nope"):
        fails("PLY_UNKNOWN_ID", "nope", env.diff, *unknown)


def test_a_checkpoint_holds_what_was_stored_through_a_mapping(t):
    import mmap
    env = local(t, {"m": "0" * 4096})
    with open(os.path.join(env.workdir, "m"), "r+b") as f:
        with mmap.mmap(f.fileno(), 4096) as m:
            m[:4] = b"1111"
            snap = env.checkpoint()
            m[:4] = b"2222"
            env.restore(snap)
    assert env.read_file("m")[:4] == b"1111"


def test_excluded_directories_survive_a_restore_untouched(t):
    env = local(t, {"src/a": "1", "node_modules/m/x": "1", "src/.venv/bin/python": "1",
                    "build": "a file called so", "src/deep/dist/o": "1"},
                exclude="node_modules:.venv:build:dist:target")
    top = env.workdir
    first = env.checkpoint()
    env.run("echo 2 >src/a; echo 2 >node_modules/m/x; ln node_modules/m/x node_modules/m/hard;"
            "ln -s x node_modules/m/link; mkfifo node_modules/m/fifo; echo changed >build;"
            "mkdir -p new/target/o; echo 1 >new/target/o/f; echo gone >new/file;"
            "chmod 600 node_modules/m/x; setfattr -n user.x -v y node_modules/m 2>/dev/null;"
            "truncate -s 1M node_modules/m/hole; rm -rf src/.venv; touch -d @5 node_modules")
    kept = ply.treelist(os.path.join(top, "node_modules"))
    target = ply.treelist(os.path.join(top, "new/target"))
    env.restore(first)
    assert env.read_file("src/a") == b"1"
    assert env.read_file("build") == b"a file called so"  # files are like others
    assert ply.treelist(os.path.join(top, "node_modules")).splitlines()[1:] == kept.splitlines()[1:]
    assert ply.treelist(os.path.join(top, "new/target")) == target
    assert not os.path.exists(os.path.join(top, "new/file"))
    assert not os.path.exists(os.path.join(top, "src/.venv"))  # it was not there when we left
    assert env.read_file("src/deep/dist/o") == b"1"
    env.undo()
    assert env.read_file("src/a") == b"2\n" and not os.path.exists(os.path.join(top, "src/.venv"))
    assert not os.listdir(t.at("run")) and len(plyfs_mounts(t)) == 1


def test_a_restore_that_finds_nothing_to_change_leaves_excluded_directories_alone(t):
    """It left no state; what undo would bring back is older."""
    env = local(t, {"a": "1", "node_modules/x": "1"}, exclude="node_modules")
    first = env.checkpoint()
    env.run("echo 2 >a; echo 2 >node_modules/x")
    env.restore(first)
    env.run("echo 3 >node_modules/x")
    with tempfile.TemporaryFile(dir=t.at("work")) as f:  # a program's, which nobody sees
        f.write(b"x" * 5000)
        f.flush()
        now = env.checkpoint()
    time.sleep(0.2)  # it is gone once the kernel has told so
    for _ in range(2):
        env.restore(now)
        assert env.read_file("node_modules/x") == b"3\n"


def test_an_excluded_directory_whose_place_is_taken_stays_in_the_left_state(t):
    env = local(t, {"d": "a file", "e": "a file", "z/build/x": "0"}, exclude="build")
    first = env.checkpoint()
    env.run("rm d e; mkdir -p d/build e/build; echo 1 | tee d/build/x e/build/x z/build/x")
    fails("PLY_EXISTS", "'d/build' could not be left as it was", env.restore, first)
    assert env.read_file("d") == b"a file"
    assert env.read_file("z/build/x") == b"1\n", "the others are left as they were all the same"
    env.undo()
    assert not os.listdir(t.at("run")) and len(plyfs_mounts(t)) == 1


def test_commands_and_shells_live_through_a_restore(t):
    env = local(t)
    snap = env.checkpoint()
    shell = subprocess.Popen(["bash"], cwd=os.path.join(env.workdir, "dir"), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    env.write_file("dir/late", "x")
    os.rename(os.path.join(env.workdir, "dir"), os.path.join(env.workdir, "moved"))
    env.restore(snap)
    out, _ = shell.communicate("ls; /bin/pwd -P\n")
    assert out == "b.py\nsub\n%s/dir\n" % env.workdir


# ---- clones ----

def test_a_clone_has_the_files_and_goes_its_own_way(t):
    env = local(t, test_command="true", timeout="7", exclude="x")
    env.checkpoint()
    env.write_file("a.txt", "not yet kept")
    copy = env.clone()
    assert copy.workdir.startswith(t.at("run") + "/")
    assert copy.read_file("a.txt") == b"not yet kept"
    assert (copy.get("timeout"), copy.get("test_command"), copy.has_session) == ("7", "true", False)
    copy.write_file("a.txt", "copy")
    env.write_file("a.txt", "first")
    assert (copy.read_file("a.txt"), env.read_file("a.txt")) == (b"copy", b"first")
    assert copy.checkpoint() == "0"  # ids of its own
    fails("PLY_UNKNOWN_ID", "Checkpoint 1 not found", copy.restore, "1")
    copy.write_file("a.txt", "later")
    copy.restore("0")
    assert copy.read_file("a.txt") == b"copy" and env.read_file("a.txt") == b"first"
    assert copy.run("pwd").stdout == copy.workdir + "\n"


def test_a_clone_goes_with_everything_that_was_its_own(t):
    env = local(t)
    env.checkpoint()
    before = t.run([ply.PLYFS, "tree", "--json"], cwd=env.workdir).stdout
    copy = env.clone()
    copy.write_file("x", "1")
    copy.checkpoint()
    copy.write_file("x", "2")
    copy.restore("0")
    copy.free()
    assert plyfs_mounts(t) == [env.workdir] and os.listdir(t.at("run")) == []
    after = json.loads(t.run([ply.PLYFS, "tree", "--json"], cwd=env.workdir).stdout)
    assert [b["name"] for b in after["branches"]] == ["main"]
    assert [s["id"] for s in after["snapshots"]] == [s["id"] for s in json.loads(before)["snapshots"]]
    assert os.listdir(os.path.join(t.stores[0].path, "numbers")) == ["main"]


def test_a_clone_may_be_mounted_where_the_caller_says(t):
    env = local(t)
    copy = env.clone(t.at("here/it/is"))
    assert copy.workdir == t.at("here/it/is") and copy.read_file("a.txt") == b"one\n"
    fails("PLY_INVALID", "not empty", env.clone, t.at("home"))
    second = copy.clone()  # a clone's clone
    copy.free()
    assert second.read_file("a.txt") == b"one\n"
    assert plyfs_mounts(t) == sorted([env.workdir, second.workdir], key=len, reverse=True)


# ---- views ----

def test_an_existing_view_is_used_as_it_is_and_stays(t):
    t.surroundings()
    view = t.view(FILES)
    with Env(bench=t, workdir=view.path) as env:
        env.write_file("a.txt", "2")
        env.checkpoint("kept")
    assert view.read("a.txt") == "2"
    env = Env(bench=t, workdir=view.path, at_cleanup="unmount").setup()
    env.cleanup()
    assert not os.path.ismount(view.path)
    again = view.store.mount(at=view.path)
    assert again.read("a.txt") == "2"
    fails("PLY_COMMAND_FAILED", "short-form", Env(bench=t, workdir=view.path,
                                                  at_cleanup="write-back").setup().cleanup)


def test_a_subdirectory_of_a_view_has_checkpoints_of_the_whole_view(t):
    t.surroundings()
    view = t.view(FILES)
    env = Env(bench=t, workdir=view.at("dir")).setup()
    assert env.list_files() == ["b.py", "sub/c.txt"] and env.run("pwd").stdout == view.at("dir\n")
    fails("PLY_DENIED", "escapes", env.read_file, "../a.txt")
    snap = env.checkpoint()
    view.write("a.txt", "2")
    env.write_file("b.py", "2")
    assert env.diff() == "M\ta.txt\nM\tdir/b.py\n"
    env.restore(snap)
    assert view.read("a.txt") == "one\n" and env.read_file("b.py") == b"two\n"
    copy = env.clone()
    assert copy.workdir.endswith("/dir") and copy.list_files() == ["b.py", "sub/c.txt"]


def test_two_environments_on_one_view_share_ids(t):
    t.surroundings()
    view = t.view(FILES)
    a, b = (Env(bench=t, workdir=view.path).setup() for _ in range(2))
    ids = []
    for i in range(20):
        a.write_file("v", str(i))
        ids.append((a if i % 3 else b).checkpoint())
    assert ids == [str(i) for i in range(20)]
    b.restore("7")
    assert a.read_file("v") == b"7"
    a.restore("12")
    assert b.read_file("v") == b"12"
    seen = []
    threads = [threading.Thread(target=lambda e=e: seen.extend(
        e.checkpoint() for _ in range(50))) for e in (a, b, a, b)]
    [x.start() for x in threads]
    [x.join() for x in threads]
    assert sorted(map(int, seen)) == list(range(20, 220))


def test_a_snapshot_view_is_refused_with_what_to_do(t):
    t.surroundings()
    store = t.store()
    snap = store.import_(t.tree(FILES))
    view = store.mount(snapshot=snap)
    fails("PLY_INVALID", "'from' to '%s'" % snap, Env(bench=t, workdir=view.path).setup)
    with Env(bench=t, store=store.path, **{"from": snap}) as env:
        assert env.read_file("a.txt") == b"one\n"


def test_from_a_store_a_fork_is_mounted_and_dropped(t):
    t.surroundings()
    store = t.store()
    snap = store.import_(t.tree(FILES))
    before = store.json("tree")
    env = Env(bench=t, store=store.path, **{"from": "main"}).setup()
    assert env.workdir.startswith(t.at("run") + "/plyfs-env-")
    env.write_file("a.txt", "2")
    assert env.checkpoint() == "0"
    env.write_file("a.txt", "3")
    env.restore("0")
    env.cleanup()
    after = store.json("tree")
    assert after == before, (before, after)
    assert not os.path.exists(env.workdir) and not plyfs_mounts(t)
    with Env(bench=t, store=store.path, branch="mine", workdir=t.at("at"), at_cleanup="unmount",
             **{"from": snap}) as env:
        assert env.workdir == t.at("at")
        env.write_file("a.txt", "kept")
    assert "mine" in [b["name"] for b in store.json("tree")["branches"]]
    with Env(bench=t, store=store.path, **{"from": "mine"}) as env:
        assert env.read_file("a.txt") == b"kept"


def test_what_cannot_be_forked_is_told(t):
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    fails("PLY_UNKNOWN_ID", "nowhere", Env(bench=t, store=store.path, **{"from": "nowhere"}).setup)
    fails("PLY_FAILED", "no", Env(bench=t, store=t.at("no")).setup)
    fails("PLY_EXISTS", "main: a branch of this name exists", Env(bench=t, store=store.path, branch="main").setup)
    fails("PLY_INVALID", "not empty", Env(bench=t, store=store.path, workdir=t.at("source")).setup)
    fails("PLY_INVALID", "PLYFS_STORE", Env(bench=t, **{"from": "main"}).setup)
    fails("PLY_INVALID", "'branch'", Env(bench=t, workdir=t.at("x"), branch="b").setup)
    fails("PLY_INVALID", "write-back", Env(bench=t, store=store.path, at_cleanup="write-back").setup)
    assert os.listdir(t.at("run")) == [] and not plyfs_mounts(t)
    assert [b["name"] for b in store.json("tree")["branches"]] == ["main"]


def test_a_fork_that_fails_as_the_caller_is_killed_drops_nobodys_branch(t):
    """The branch's name is taken, and the caller dies before it knows."""
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    store.mount()  # so that the daemon stays
    Env(bench=t, store=store.path, branch="mine", at_cleanup="unmount").setup().cleanup()
    ply.write(t.at("plyfs"), """#!/bin/sh
case "$*" in
*" fork "*) kill -9 $(cat '%s'); exec %s "$@" ;;
esac
%s "$@"; echo "$@" >>'%s'
""" % (t.at("pid"), ply.PLYFS, ply.PLYFS, t.at("done")))
    os.chmod(t.at("plyfs"), 0o755)
    script = ("import os, sys; sys.path.insert(0, %r)\nfrom plylib import Env\n"
              "open(%r, 'w').write(str(os.getpid()))\nEnv(store=%r, branch='mine').setup()\n" % (
                  os.path.dirname(plylib.__file__), t.at("pid"), store.path))
    subprocess.run([sys.executable, "-c", script], check=False, env=dict(
        os.environ, PLYFS_BUILD=ply.BUILD, PLYFS_SOURCE=ply.SOURCE, PLYFS_PROGRAM=t.at("plyfs")))
    ply.wait_for("the place to go", lambda: os.path.exists(t.at("done")) and
                 "unmount" in ply.read(t.at("done")) and os.listdir(t.at("run")) == [])
    assert [b["name"] for b in store.json("tree")["branches"]] == ["main", "mine"]


def test_the_program_may_be_named_by_a_relative_path(t):
    t.surroundings()
    t.tree(FILES, "work")
    env = Env(bench=t, workdir=t.at("work"))
    cwd = os.getcwd()
    os.chdir(os.path.dirname(ply.PLYFS))
    os.environ["PLYFS_PROGRAM"] = "./" + os.path.basename(ply.PLYFS)
    try:
        env.setup()
        env.checkpoint()
        assert env.diff() == ""
        env.cleanup()
    finally:
        del os.environ["PLYFS_PROGRAM"]
        os.chdir(cwd)


def test_a_view_that_is_in_use_stays_mounted_and_nothing_is_lost(t):
    env = local(t)
    env.write_file("new", "x")
    user = subprocess.Popen(["sleep", "60"], cwd=env.workdir)
    try:
        fails("PLY_COMMAND_FAILED", "is in use by %d" % user.pid, env.cleanup)
    finally:
        user.kill()
        user.wait()
    assert os.path.ismount(t.at("work")) and ply.read(t.at("work/new")) == "x"
    t.run([ply.PLYFS, "unmount", "--write-back", t.at("work")])
    assert ply.read(t.at("work/new")) == "x"


def test_a_view_that_is_unmounted_and_not_written_back_does_not_stay_mounted(t):
    env = local(t)
    env.cleanup()
    beneath = os.open(t.at("work"), os.O_RDONLY | os.O_DIRECTORY)
    env.setup()
    env.write_file("a.txt", "in the view")
    with open("a.txt", "w", opener=lambda name, how: os.open(name, how, dir_fd=beneath)) as f:
        f.write("by somebody else")
    e = fails("PLY_COMMAND_FAILED", "the view on '%s' is unmounted: 'a.txt' changed in " % t.at("work"), env.cleanup)
    assert "writeback --force" in e.sentence, e
    assert not plyfs_mounts(t)
    assert ply.read(t.at("work/a.txt")) == "by somebody else"
    t.run([ply.PLYFS, "writeback", "--force", t.at("work")])
    assert ply.read(t.at("work/a.txt")) == "in the view"
    os.close(beneath)


def test_of_a_view_that_only_others_hold_its_place_is_free(t):
    """It is unmounted, which takes long then, and its branch cannot be dropped yet."""
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    held = "is unmounted, but its view is still held by 7 (sleep)"
    ply.write(t.at("plyfs"), """#!/bin/sh
%s "$@" || exit
[ "$1" != unmount ] || { echo "plyfs unmount: '/x' %s" >&2; exit 1; }
""" % (ply.PLYFS, held))
    os.chmod(t.at("plyfs"), 0o755)
    env = Env(bench=t, store=store.path, branch="mine", **{"from": "main"}).setup()
    place, os.environ["PLYFS_PROGRAM"] = env.workdir, t.at("plyfs")
    try:
        fails("PLY_COMMAND_FAILED", "branch 'mine' stays, 'plyfs --store %s drop --with-snapshots mine' "
              "ends it: '/x' %s" % (store.path, held), env.cleanup)
    finally:
        del os.environ["PLYFS_PROGRAM"]
    assert not os.path.exists(place)
    store.ply("drop", "--with-snapshots", "mine")


def test_an_environment_outlives_the_daemon(t):
    env = local(t)
    first = env.checkpoint()
    env.write_file("x", "y")
    t.stores[0].kill()
    assert env.run("test y = $(cat x)").exit_code == 0
    assert env.checkpoint() != first
    t.stores[0].kill()
    env.restore(first)
    assert env.run("ls x").exit_code != 0
    env.cleanup()


def test_after_the_daemons_death_it_is_told_and_can_be_set_up_again(t):
    t.unsupervised()
    env = local(t)
    env.checkpoint()
    t.run([ply.PLYFS, "checkpoint", "--sync"], cwd=env.workdir)
    t.stores[0].kill()
    e = fails("PLY_FAILED", "the view on '%s' has " % env.workdir, env.checkpoint)
    assert "daemon" in e.sentence  # "has lost its daemon", until the mount is taken off
    ply.wait_for("the dead view to go", lambda: not plyfs_mounts(t))
    for call in (env.checkpoint, lambda: env.restore("0"), env.undo, env.diff, env.clone,
                 lambda: env.read_file("a.txt"), env.list_files, lambda: env.run("true"),
                 lambda: env.write_file("x", "y")):  # never the directory beneath
        fails("PLY_FAILED", "the view on '%s' has gone" % env.workdir, call)
    try:
        env.cleanup()
    except plylib.Error as e:
        assert "mount it again" in e.sentence or "plyfs writeback DIR" in e.sentence, e
    env.free()
    again = Env(bench=t, workdir=t.at("work")).setup()
    assert again.read_file("a.txt") == b"one\n" and again.checkpoint() == "1"
    again.cleanup()
    assert ply.read(t.at("work/a.txt")) == "one\n"


def test_the_programs_of_a_caller_do_not_disturb(t):
    """A handler of SIGCHLD, an ignored SIGCHLD, other children: nothing is taken from the caller."""
    env = local(t)
    got = []
    old = signal.signal(signal.SIGCHLD, lambda *a: got.append(a))
    child = subprocess.Popen(["sleep", "60"])
    try:
        other = Env(workdir=env.workdir).setup()
        other.checkpoint()
        assert other.run("true").exit_code == 0 and other.diff() == ""
        other.clone().free()
        other.free()
        assert got == [] and child.poll() is None, (got, child.returncode)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        copy = env.clone()
        assert copy.run("exit 3").exit_code == 3
        copy.free()
        env.cleanup()
    finally:
        signal.signal(signal.SIGCHLD, old)
        child.kill()
        child.wait()


# ---- nothing is left ----

KILLED = """
import os, sys
sys.path.insert(0, %r)
from plylib import Env
a = Env(workdir=%r).setup()
a.write_file("kept", "x")
a.run("setsid sleep 97 >/dev/null 2>&1 &")
b = a.clone()
b.write_file("gone", "x")
c = Env(store=%r).setup()
c.checkpoint()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_caller_leaves_nothing_mounted_and_loses_nothing(t):
    plylib.lib()  # or no caller has it
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    before = store.json("tree")
    t.tree(FILES, "work")
    p = subprocess.Popen([sys.executable, "-c", KILLED % (
        os.path.dirname(plylib.__file__), t.at("work"), store.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=dict(os.environ, PLYFS_BUILD=ply.BUILD, PLYFS_SOURCE=ply.SOURCE))
    assert p.stdout.readline() == "ready\n"
    p.kill()
    p.wait()
    ply.wait_for("the views to go", lambda: not plyfs_mounts(t))
    ply.wait_for("the directory's file", lambda: os.path.exists(t.at("work/kept")))
    ply.wait_for("the places to go", lambda: os.listdir(t.at("run")) == [])
    ply.wait_for("the fork to go", lambda: store.json("tree") == before)
    assert os.listdir(os.path.join(store.path, "numbers")) == []
    assert not os.path.exists(t.at("work/gone"))


def test_a_caller_killed_at_any_moment_leaves_nothing_mounted(t):
    plylib.lib()  # or no caller has it
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    view = store.mount()  # so that the daemon stays
    script = ("import sys; sys.path.insert(0, %r)\nfrom plylib import Env\nprint(1, flush=True)\n"
              "while True:\n e = Env(store=%r).setup(); e.run('true'); c = e.clone(); c.free(); "
              "e.cleanup()\n" % (os.path.dirname(plylib.__file__), store.path))
    for i in range(60 if ply.LONG else 12):
        p = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                             env=dict(os.environ, PLYFS_BUILD=ply.BUILD, PLYFS_SOURCE=ply.SOURCE))
        p.stdout.readline()
        time.sleep(0.003 * i)
        p.kill()
        p.wait()
    ply.wait_for("the views to go", lambda: plyfs_mounts(t) == [view.path])
    ply.wait_for("the places to go", lambda: os.listdir(t.at("run")) == [])
    ply.wait_for("the forks to go",
                 lambda: [b["name"] for b in store.json("tree")["branches"]] == ["main"])


def test_many_rounds_leak_nothing(t):
    t.surroundings()
    store = t.store()
    store.import_(t.tree(FILES))
    view = store.mount()
    before = None

    def state():
        return (sorted(os.readlink("/proc/self/fd/" + f) for f in os.listdir("/proc/self/fd")
                       if os.path.islink("/proc/self/fd/" + f)), os.listdir(t.at("run")),
                plyfs_mounts(t), store.json("tree"))

    for i in range(1000 if ply.LONG else 40):
        env = Env(store=store.path)
        env.setup()
        assert env.run("echo x >f; sleep 100 >/dev/null 2>&1 & exit 0").exit_code == 0
        assert env.checkpoint() == "0"
        if i % 10 == 0:
            env.clone().free()
        if i % 2:
            env.cleanup()
        env.free()
        if i == 0:
            before = state()
    assert state() == before and view.path in plyfs_mounts(t)


if __name__ == "__main__":
    ply.main()
