#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 200
"""
The local kind of environment, through the C library: what an Environment has to do (life, files,
patterns, commands, checkpoints, clones), what a view adds to it, and that nothing is left behind.
Sessions and test reports have scripts of their own.
"""
import json
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plylib
from plylib import Env

FILES = {"a.txt": "one\n", "dir/b.py": "two\n", "dir/sub/c.txt": "three\n", ".env": "h\n"}


def local(t, files=FILES, name="work", **options):
    """An environment over an ordinary directory, set up."""
    t.surroundings()
    if files is not None:
        t.tree(files, name)
    return Env(bench=t, workdir=t.at(name), **options).setup()


def fails(status, says, function, *args, **kw):
    try:
        got = function(*args, **kw)
    except plylib.Error as e:
        assert e.status == status, e
        assert says in e.sentence, e
        return e
    raise AssertionError("it worked: %r; wanted %s" % (got, status))


def plyfs_mounts(t):
    return ply.mounts_below(t.path, "fuse.plyfs")


# ---- life ----

def test_setup_makes_the_workdir_with_parents(t):
    env = local(t, None, "not/yet/there")
    assert os.path.isdir(t.at("not/yet/there")) and env.workdir == t.at("not/yet/there")
    assert env.list_files() == []


def test_cleanup_leaves_the_files(t):
    env = local(t)
    env.write_file("dir/new", "x")
    os.unlink(os.path.join(env.workdir, "a.txt"))
    env.cleanup()
    assert not plyfs_mounts(t)
    assert ply.read(t.at("work/dir/new")) == "x" and not os.path.exists(t.at("work/a.txt"))
    assert ply.read(t.at("work/dir/b.py")) == "two\n"
    env.cleanup()  # once more is nothing
    env.free()


def test_it_may_be_set_up_again_and_sees_what_the_directory_has_now(t):
    env = local(t)
    env.write_file("mine", "1")
    env.cleanup()
    ply.write(t.at("work/theirs"), "2")
    os.unlink(t.at("work/a.txt"))
    env.setup()
    assert env.list_files("*") == [".env", "mine", "theirs"]
    env.write_file("theirs", "3")
    env.cleanup()
    assert ply.read(t.at("work/theirs")) == "3"


def test_what_was_not_written_back_is_not_lost(t):
    env = local(t, at_cleanup="unmount")
    env.write_file("mine", "1")
    env.cleanup()
    assert not os.path.exists(t.at("work/mine"))
    ply.write(t.at("work/late"), "2")
    again = Env(bench=t, workdir=t.at("work")).setup()
    assert again.read_file("mine") == b"1"  # the view goes on
    again.cleanup()
    assert ply.read(t.at("work/mine")) == "1" and ply.read(t.at("work/late")) == "2"


def test_workdir_is_absolute_and_resolved(t):
    t.surroundings()
    t.tree(FILES, "work")
    os.symlink("work", t.at("link"))
    cwd = os.getcwd()
    try:
        os.chdir(t.path)
        env = Env(bench=t, workdir="link")
    finally:
        os.chdir(cwd)
    assert env.workdir == t.at("work")  # before setup, too
    env.setup()
    assert env.workdir == t.at("work") and env.run("pwd").stdout == t.at("work") + "\n"


def test_nothing_works_before_setup(t):
    t.surroundings()
    env = Env(bench=t, workdir=t.at("work"))
    for call in (lambda: env.checkpoint(), lambda: env.restore("0"), lambda: env.run("true"),
                 lambda: env.read_file("a"), lambda: env.write_file("a", "b"),
                 lambda: env.list_files(), lambda: env.clone(), lambda: env.undo()):
        fails("PLY_STATE", "not set up", call)
    env.cleanup()
    assert not os.path.exists(t.at("work"))


def test_set_up_twice_is_refused(t):
    env = local(t)
    fails("PLY_STATE", "set up already", env.setup)
    fails("PLY_STATE", "before setup", env.set, "timeout", "3")
    assert env.read_file("a.txt") == b"one\n"


def test_options_are_checked_when_they_are_set(t):
    t.surroundings()
    env = Env(bench=t)
    for name, value, says in (
            ("timeout", "0", "above 0"), ("timeout", "-1", "above 0"), ("timeout", "x", "above 0"),
            ("timeout", "nan", "above 0"), ("timeout", "", "above 0"), ("session", "yes", "0 or 1"),
            ("at_cleanup", "burn", "keep write-back unmount drop"), ("branch", "a/b", "no name of"),
            ("exclude", "a/b", "without '/'"), ("exclude", "a::b", "without '/'"),
            ("output_limit", "1M", "whole number"), ("output_limit", "-1", "whole number"),
            ("workdir", "", "empty"), ("test_rule", "mine", "chimera"),
            ("no_such", "1", "no option is called 'no_such'"),
            ("port", "80", "for remote environments, not for local")):
        fails("PLY_INVALID", says, env.set, name, value)
    fails("PLY_INVALID", "kind of environment", Env, "lokal")
    fails("PLY_INVALID", "'workdir'", env.setup)
    env.set("timeout", "0.5")
    assert env.get("timeout") == "0.5"
    env.set("timeout", None)
    assert (env.get("timeout"), env.get("test_command"), env.get("session"), env.get("branch")) == \
        ("300", "python -m pytest", "0", "")
    fails("PLY_INVALID", "no option", env.get, "no_such")


def test_a_file_is_no_workdir(t):
    t.surroundings()
    ply.write(t.at("file"), "x")
    fails("PLY_NOT_FOUND", "file", Env(bench=t, workdir=t.at("file")).setup)
    fails("PLY_NOT_FOUND", "file", Env(bench=t, workdir=t.at("file/below")).setup)
    fails("PLY_DENIED", "/", Env(bench=t, workdir="/").setup)
    assert not plyfs_mounts(t) and os.listdir(t.at("run")) == []


def test_where_nothing_can_be_mounted_the_doctor_is_named(t):
    """/dev/fuse is not there, or is something else, in a mount namespace of its own."""
    ply.need_root()
    ply.need_tool("unshare")
    t.surroundings()
    script = ("import sys; sys.path.insert(0, %r); import plylib\n"
              "try: plylib.Env(workdir=%r).setup()\n"
              "except plylib.Error as e: print(e)\n"
              % (os.path.dirname(plylib.__file__), t.at("work")))
    for hide in ("mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3",
                 "mount --bind /dev/null /dev/fuse"):
        p = t.run(["unshare", "-m", "sh", "-euc", hide + "; exec \"$0\" -c \"$1\"",
                   sys.executable, script], check=False,
                  env=dict(t.env, PLYFS_BUILD=ply.BUILD, PLYFS_SOURCE=ply.SOURCE))
        assert "PLY_NOT_HERE" in p.stdout and "plyfs doctor" in p.stdout, (p.stdout, p.stderr)
    assert not plyfs_mounts(t)


# ---- files ----

def test_read_file_and_write_file(t):
    env = local(t)
    env.write_file("new/deep/file", b"\x00\xff\r\n")
    assert env.read_file("new/deep/file") == b"\x00\xff\r\n"
    env.write_file("new/deep/file", "short")
    assert env.read_file(os.path.join(env.workdir, "new/deep/file")) == b"short"
    assert ply.read(os.path.join(env.workdir, "new/deep/file")) == "short"
    fails("PLY_NOT_FOUND", "File not found: no/such", env.read_file, "no/such")
    fails("PLY_IS_DIRECTORY", "dir", env.read_file, "dir")
    fails("PLY_IS_DIRECTORY", "dir", env.write_file, "dir", "x")


def test_write_file_follows_symlinks_that_stay_inside(t):
    env = local(t)
    os.symlink("dir/b.py", os.path.join(env.workdir, "link"))
    env.write_file("link", "through")
    assert env.read_file("dir/b.py") == b"through"
    assert os.path.islink(os.path.join(env.workdir, "link"))


def test_paths_that_escape_are_denied(t):
    env = local(t)
    ply.write(t.at("outside"), "secret")
    os.symlink(t.at("outside"), os.path.join(env.workdir, "out"))
    os.symlink("..", os.path.join(env.workdir, "up"))
    for path in ("../outside", "/etc/passwd", "dir/../../outside", "out", "up/outside"):
        fails("PLY_DENIED", "Path escapes workdir: " + path, env.read_file, path)
        fails("PLY_DENIED", "Path escapes workdir: " + path, env.write_file, path, "x")
    fails("PLY_DENIED", "Path escapes workdir", env.upload, t.at("outside"), "../x")
    fails("PLY_DENIED", "Path escapes workdir", env.download, "out", t.at("x"))
    assert ply.read(t.at("outside")) == "secret"


def test_list_files_finds_regular_files_in_order(t):
    env = local(t, dict(FILES, **{"B": "", "dir/.dot/x": "", "\u00fc": ""}))
    os.symlink("a.txt", os.path.join(env.workdir, "to-file"))
    os.symlink("dir", os.path.join(env.workdir, "to-dir"))
    os.symlink("none", os.path.join(env.workdir, "broken"))
    everything = [".env", "B", "a.txt", "dir/.dot/x", "dir/b.py", "dir/sub/c.txt", "to-file", "\u00fc"]
    assert env.list_files() == everything
    assert env.list_files("**/*.txt") == ["a.txt", "dir/sub/c.txt"]
    assert env.list_files("*.txt") == ["a.txt"]
    assert env.list_files("dir/[!s]*") == ["dir/b.py"]
    assert env.list_files("?") == ["B", "\u00fc"]
    assert env.list_files("none*") == []
    fails("PLY_INVALID", "pattern", env.list_files, "")
    fails("PLY_UNSUPPORTED", "pattern", env.list_files, "/etc/*")
    fails("PLY_DENIED", "Path escapes workdir", env.list_files, "../*")


def test_chimera_checkpoints_are_hidden_and_outside_of_checkpoints(t):
    env = local(t, dict(FILES, **{".chimera_checkpoints/0/a.txt": "old", ".chimera/checkpoints/1/x": "",
                                  ".chimera/config.toml": ""}))
    assert env.list_files("**/*") == [".chimera/config.toml", ".env", "a.txt", "dir/b.py",
                                      "dir/sub/c.txt"]
    first = env.checkpoint()
    env.write_file(".chimera_checkpoints/2/y", "made later")
    env.write_file("a.txt", "changed")
    env.restore(first)
    assert env.read_file("a.txt") == b"one\n"
    assert env.read_file(".chimera_checkpoints/2/y") == b"made later"
    assert not os.listdir(t.at("run"))


def test_upload_and_download(t):
    env = local(t)
    ply.write(t.at("in"), b"\x00\x01" * 100000)
    os.chmod(t.at("in"), 0o755)
    env.upload(t.at("in"), "up/file")
    assert os.stat(os.path.join(env.workdir, "up/file")).st_mode & 0o100
    env.download("up/file", t.at("out"))
    with open(t.at("in"), "rb") as a, open(t.at("out"), "rb") as b:
        assert a.read() == b.read()
    fails("PLY_NOT_FOUND", "File not found: none", env.download, "none", t.at("out"))


def test_a_file_copied_onto_itself_keeps_its_content(t):
    env = local(t)
    same = os.path.join(env.workdir, "a.txt")
    os.link(same, os.path.join(env.workdir, "link"))
    fails("PLY_INVALID", "are the same file", env.download, "a.txt", same)
    fails("PLY_INVALID", "are the same file", env.upload, same, "link")
    assert env.read_file("a.txt") == b"one\n"


# ---- commands ----

def test_run_tells_output_and_exit_code(t):
    env = local(t)
    r = env.run("echo out; echo err >&2; exit 3")
    assert (r.out, r.err, r.exit_code, r.timed_out) == (b"out\n", b"err\n", 3, False)
    assert env.run("kill -9 $$").exit_code == -9
    assert env.run("printf '\\000\\377\\r\\n'").out == b"\x00\xff\r\n"  # bytes as they are
    assert env.run("no-such-command").exit_code == 127
    assert env.run("").exit_code == 0


def test_each_command_is_a_fresh_shell_in_workdir(t):
    env = local(t)
    assert env.run("cd dir; X=1; pwd").stdout == os.path.join(env.workdir, "dir") + "\n"
    assert env.run("pwd; echo ${X-none}", shell="other").stdout == env.workdir + "\nnone\n"
    os.environ["PLY_TEST_INHERITED"] = "yes"
    again = Env(bench=t, workdir=env.workdir).setup()
    assert again.run("echo $PLY_TEST_INHERITED").stdout == "yes\n"


def test_a_timeout_is_a_result(t):
    env = local(t, timeout="0.3")
    for timeout in (0, -1, 0.2):
        r = env.run("sleep 60 & echo started; sleep 61", timeout)
        assert (r.exit_code, r.stderr, r.timed_out) == (124, "Command timed out", True), vars(r)
    r = env.run("sleep 0.5; echo slow", 30)
    assert (r.exit_code, r.stdout) == (0, "slow\n")
    r = env.run("echo out; printf err >&2; sleep 60", 0.2)
    assert (r.stdout, r.stderr) == ("out\n", "err\nCommand timed out")  # and what came before it


def test_a_timeout_kills_the_tree(t):
    env = local(t)
    env.run("(trap '' TERM HUP INT; setsid sh -c 'echo $$ >pid; sleep 77') & sleep 78", 0.5)
    pid = int(env.read_file("pid"))
    ply.wait_for("the end of what a command had started", lambda: not ply.alive(pid))


def test_merge_and_output_limit(t):
    env = local(t, merge="1", output_limit="1000")
    r = env.run("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert r.stdout == "o1\ne1\no2\ne2\no3\ne3\n" and r.stderr == ""
    r = env.run("head -c 5000000 /dev/zero; exit 4")
    assert (len(r.out), r.truncated, r.exit_code) == (1000, True, 4)


def test_commands_run_side_by_side(t):
    env = local(t)
    seen = []
    threads = [threading.Thread(target=lambda i=i: seen.append(
        env.run("echo %d >f%d; while [ $(ls f* | wc -l) -lt 8 ]; do sleep 0.01; done" % (i, i),
                60).exit_code)) for i in range(8)]
    [x.start() for x in threads]
    [x.join() for x in threads]
    assert seen == [0] * 8


def test_cleanup_ends_what_runs(t):
    env = local(t)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(env.run("echo $$ >pid; sleep 60", 60)))
    thread.start()
    ply.wait_for("the command", lambda: os.path.exists(t.at("work/pid")) and env.read_file("pid"))
    env.cleanup()
    thread.join()
    assert seen[0].exit_code == -9


def test_cleanup_lets_nothing_new_begin(t):
    """However many threads go on: they are refused, and do not keep it waiting."""
    env = local(t)
    refused = []

    def go_on():
        for _ in range(300):  # a minute, if nobody stops it
            try:
                env.run("sleep 0.2")
            except plylib.Error as e:
                refused.append((e.status, e.sentence))
                break

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    env.cleanup()
    [thread.join() for thread in threads]
    assert len(refused) == 4, refused
    assert all(status == "PLY_STATE" for status, _ in refused), refused
    assert not plyfs_mounts(t)


# ---- test runs ----

def test_run_tests_counts_what_the_command_printed(t):
    env = local(t, test_rule="chimera",
                test_command="echo '== 2 passed, 1 failed, 3 errors =='; echo more >&2; exit 1")
    r = env.run_tests()
    assert (r.passed, r.failed, r.errors, r.total, r.all_passed) == (2, 1, 3, 6, False), vars(r)
    assert abs(r.pass_rate - 2 / 6) < 1e-9 and r.exit_code == 1
    assert r.output == b"== 2 passed, 1 failed, 3 errors ==\nmore\n"  # stdout, then stderr


def test_no_tests_have_all_passed_at_a_rate_of_zero(t):
    env = local(t, test_command="no-such-runner")
    r = env.run_tests()
    assert (r.total, r.pass_rate, r.all_passed) == (0, 0.0, True), vars(r)


def test_tests_run_in_workdir_with_the_environments_timeout(t):
    env = local(t, test_command="pwd; sleep 60", timeout="0.5")
    r = env.run_tests()
    assert r.timed_out and r.output == (env.workdir + "\nCommand timed out").encode(), r.output


# ---- sessions: what an Environment promises; session.py has the rest ----

def test_there_is_no_session_at_first(t):
    env = local(t)
    assert not env.has_session and env.list_shells() == []
    fails("PLY_STATE", "No active session", env.create_shell, "x")
    fails("PLY_STATE", "No active session", env.run_in_session, "true")
    env.end_session()  # nothing


def test_a_session_is_started_once_and_ended_any_number_of_times(t):
    env = local(t)
    env.start_session()
    assert env.has_session and env.list_shells() == ["main"]
    fails("PLY_STATE", "Session already active", env.start_session)
    env.end_session()
    env.end_session()
    assert not env.has_session
    env.start_session()
    assert env.run_in_session("echo again").stdout == "again"


def test_the_session_option_starts_one_with_setup(t):
    env = local(t, session="1")
    assert env.has_session
    env.run("export X=kept; cd dir")
    r = env.run("echo $X; basename $PWD; echo err >&2; (exit 4)")
    assert (r.stdout, r.stderr, r.exit_code) == ("kept\ndir\nerr", "", 4), vars(r)
    env.cleanup()
    assert not env.has_session


def test_shells_are_named_and_independent(t):
    env = local(t)
    env.start_session()
    env.create_shell("second")
    fails("PLY_EXISTS", "Shell 'second' already exists", env.create_shell, "second")
    assert env.list_shells() == ["main", "second"]
    env.run_in_session("X=1; cd dir", "main")
    assert env.run_in_session("echo ${X-none}; pwd", "second").stdout == "none\n" + env.workdir
    assert env.run_in_session("echo ${X-none}; pwd", "main").stdout == "1\n%s/dir" % env.workdir


def test_a_timeout_leaves_the_shell_usable(t):
    env = local(t)
    env.start_session()
    env.run_in_session("X=still")
    r = env.run_in_session("sleep 60", None, 0.5)
    assert (r.exit_code, r.stderr, r.timed_out) == (124, "Command timed out", True), vars(r)
    assert env.run_in_session("echo $X").stdout == "still"


def test_a_session_lives_through_a_restore(t):
    env = local(t, session="1")
    snap = env.checkpoint()
    env.run("mkdir late; cd late; Y=1")
    env.run("cd ../dir")
    env.restore(snap)
    r = env.run("echo $Y; echo *")
    assert r.stdout == "1\nb.py sub", vars(r)


def test_a_clone_has_no_session(t):
    env = local(t, session="1")
    copy = env.clone()
    assert env.has_session and not copy.has_session
    assert copy.run("X=1; echo $X").stdout == "1\n" and copy.run("echo ${X-none}").stdout == "none\n"


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
    fails("PLY_COMMAND_FAILED", "nope", env.diff, "nope")


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


def test_an_excluded_directory_whose_place_is_taken_stays_in_the_left_state(t):
    env = local(t, {"d": "a file"}, exclude="build")
    first = env.checkpoint()
    env.run("rm d; mkdir -p d/build; echo 1 >d/build/x")
    fails("PLY_EXISTS", "'d/build' could not be left as it was", env.restore, first)
    assert env.read_file("d") == b"a file"
    env.undo()
    assert not os.listdir(t.at("run")) and len(plyfs_mounts(t)) == 1


def test_commands_and_shells_live_through_a_restore(t):
    env = local(t)
    snap = env.checkpoint()
    shell = subprocess.Popen(["bash"], cwd=os.path.join(env.workdir, "dir"), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    env.write_file("dir/late", "x")
    env.restore(snap)
    out, _ = shell.communicate("ls; pwd\n")
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
    fails("PLY_FAILED", "nowhere", Env(bench=t, store=store.path, **{"from": "nowhere"}).setup)
    fails("PLY_FAILED", "no", Env(bench=t, store=t.at("no")).setup)
    fails("PLY_FAILED", "main", Env(bench=t, store=store.path, branch="main").setup)
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
        assert "mount it again" in e.sentence or "stays mounted" in e.sentence, e
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
        assert env.run("echo x >f; sleep 100 & exit 0").exit_code == 0
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
