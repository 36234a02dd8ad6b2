#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 200
"""
The local kind of environment, through the C library: life, files, patterns, commands. Its checkpoints,
clones and views are env_local_view.py's; sessions and test reports have scripts of their own.
"""
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plylib
from plylib import FILES, Env, fails, local, plyfs_mounts


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
    ply.need_mount_namespaces()
    plylib.lib()  # or no caller has it
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
    r = env.run("echo out; printf err >&2; sleep 60", 2)
    assert (r.stdout, r.stderr) == ("out\n", "err\nCommand timed out")  # and what came before it


def test_a_timeout_kills_the_tree(t):
    env = local(t)
    env.run("(trap '' TERM HUP INT; setsid sh -c 'echo $$ >pid; sleep 77') & sleep 78", 2)
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


def test_cleanup_takes_the_view_down_without_its_keeper(t):
    """A command has killed it: nothing can be run any more, but what was done is written back."""
    env = local(t)
    env.write_file("made", "x")
    keeper = env.run("cut -d ' ' -f 4 /proc/$PPID/stat").stdout
    env.run("kill -9 %s; sleep 60" % keeper, 60)
    # Whether the request or only its answer fails is a matter of when its socket closes.
    fails("PLY_FAILED", "was killed", env.run, "true")
    env.cleanup()
    assert not plyfs_mounts(t)
    assert ply.read(t.at("work/made")) == "x"


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
    for status, sentence in refused:  # or it was about to begin just then
        assert status == "PLY_STATE" or sentence.endswith("its keeper was killed"), refused
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
    env = local(t, test_command="pwd; sleep 60", timeout="2")
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


if __name__ == "__main__":
    ply.main()
