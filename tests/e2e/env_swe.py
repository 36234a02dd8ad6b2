#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 600
"""
SWEEnv on real views and real git repositories. Facts are named after the rows of the tables that
describe upstream's class: m_ methods, c_ communicate, s_ start and reset, r_ repositories, d_
deployments, u_ upstream's own tests of its environment (tests/test_env.py).
"""
import os
import shutil
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy
import server
import sweenv
from plypy import raises

plyfs = plypy.package()

FILES = {"calc.py": "x = 1\n", "src/a.txt": "one\n", ".gitignore": "*.o\nbuild/\n"}


def git(t, path, *words):
    return t.run(["git", "-C", path, *words]).stdout.strip()


def repository(t, name="lrepo", files=FILES):
    """A repository with one commit; executable files, links and ignored files are in it."""
    top = t.tree(files, name)
    if files is FILES:
        ply.write(os.path.join(top, "run.sh"), "#!/bin/sh\necho run\n")
        os.chmod(os.path.join(top, "run.sh"), 0o755)
        os.symlink("src/a.txt", os.path.join(top, "link"))
    git(t, t.path, "init", "-q", "-b", "main", top)
    git(t, top, "add", "-A")
    git(t, top, "commit", "-qm", "first")
    return top


class Hook(sweenv.Recorder, plyfs.SweHook):
    def on_copy_repo_started(self, repo):
        self.seen.append("copy_repo %s" % repo)


def new(t, repo="lrepo", hooks=(), deployment=None, **config):
    """Not started. repo: a name for one of ours, a mapping, or None."""
    t.surroundings()
    if isinstance(repo, str):
        top = t.at(repo)
        if not os.path.exists(top):
            repository(t, repo)
        repo = {"type": "local", "path": top}
    deployment = {"type": "local", "workdir": t.at("root"), **(deployment or {})}
    swe = plyfs.SweEnv({"deployment": deployment, "repo": repo, **config}, list(hooks))
    t.clean.append(swe.close)
    return swe


def started(t, *args, **kw):
    swe = new(t, *args, **kw)
    swe.start()
    return swe


def root(t, *names):
    return t.at("root", *names)


def status(t, path):
    return git(t, path, "status", "--porcelain", "--ignored")


# ---- methods ----

def test_m_add_hook_calls_on_init_at_once(t):
    hook = Hook()
    swe = new(t, None)
    swe.add_hook(hook)
    assert hook.seen == ["init"]


def test_m_start_resets_and_runs_post_startup_commands_in_the_agents_session(t):
    swe = started(t, post_startup_commands=["export FROM_STARTUP=1", "cd src", "echo x >new"])
    assert swe.communicate("echo $FROM_STARTUP; pwd") == "1\n%s\n" % root(t, "lrepo", "src")
    assert ply.read(root(t, "lrepo", "src", "new")) == "x\n"
    with raises(plyfs.StateError, says="started already"):
        swe.start()


def test_m_start_a_failed_post_startup_command_raises_and_closes(t):
    hook = Hook()
    swe = new(t, hooks=[hook], post_startup_commands=["false"])
    with raises(plyfs.CommandFailedError, RuntimeError,
                says="Command 'false' failed (r.exit_code=1): Command failed"):
        swe.start()
    assert hook.seen[-1] == "close"
    with raises(plyfs.StateError, says="not started"):
        swe.communicate("ls")


def test_m_start_post_startup_command_timeout_applies_to_each(t):
    swe = new(t, post_startup_commands=["sleep 0.6", "sleep 0.6", "sleep 30"],
              post_startup_command_timeout=1)
    with raises(TimeoutError):
        swe.start()
    swe.interrupt_session()  # a timeout does not close
    assert swe.communicate("echo here") == "here\n"


def test_m_reset_undoes_everything_in_the_files(t):
    swe = started(t)
    top = root(t, "lrepo")
    before = ply.treedigest(root(t))
    swe.communicate("echo changed >calc.py; rm src/a.txt; echo o >x.o; mkdir build; echo b >build/b;"
                    "git checkout -qb agent; git add -A; git commit -qm agent; git tag t;"
                    "git config user.name agent; echo hook >.git/hooks/pre-commit; git stash -q;"
                    "git init -q nested; echo n >nested/n; echo out >../outside; chmod 600 run.sh",
                    check="raise")
    assert git(t, top, "branch", "--show-current") == "agent"
    swe.reset()
    assert ply.treedigest(root(t)) == before
    assert git(t, top, "log", "--oneline").endswith("first") and not status(t, top)
    assert not os.path.exists(root(t, "outside"))


def test_m_reset_ends_in_the_repository_with_root_exported(t):
    for mode in ("snapshot", "commands"):
        swe = started(t, reset=mode)
        swe.communicate("cd /; unset ROOT")
        swe.reset()
        assert swe.communicate("pwd; echo $ROOT; env | grep -c ^ROOT=") == \
            "%s\n%s\n1\n" % (root(t, "lrepo"), root(t, "lrepo"))
        assert swe.communicate("git rev-parse HEAD").strip() == \
            git(t, t.at("lrepo"), "rev-parse", "HEAD")
        assert swe.communicate("git status --porcelain") == ""
        swe.close()
        shutil.rmtree(root(t))


def test_m_reset_keeps_variables_functions_and_jobs(t):
    swe = started(t)
    swe.communicate("export KEPT=1; f() { echo f; }; sleep 100 & job=$!")
    swe.reset()
    assert swe.communicate("echo $KEPT; f; kill -0 $job && echo runs") == "1\nf\nruns\n"


def test_m_reset_does_not_repeat_post_startup_commands_and_keeps_what_they_installed(t):
    swe = started(t, post_startup_commands=["echo once >>../installed", "echo i >x.o",
                                            "echo u >untracked", "echo c >calc.py"])
    top = root(t, "lrepo")
    assert ply.read(os.path.join(top, "calc.py")) == "c\n"
    for _ in range(2):
        swe.communicate("echo bad >x.o; rm ../installed; echo more >more")
        swe.reset()
        # As upstream's git commands do: tracked and untracked files are clean, ignored and
        # outside ones as start left them.
        assert ply.read(root(t, "installed")) == "once\n"
        assert ply.read(os.path.join(top, "x.o")) == "i\n"
        assert ply.read(os.path.join(top, "calc.py")) == FILES["calc.py"]
        assert status(t, top) == "!! x.o"


def test_m_reset_before_start_says_so(t):
    with raises(plyfs.StateError, says="not started"):
        new(t).reset()


def test_m_hard_reset_begins_anew(t):
    hook = Hook()
    swe = started(t, hooks=[hook])
    swe.communicate("export GONE=1; echo bad >../outside; rm -rf .git")
    swe.hard_reset()
    assert swe.communicate("echo [$GONE]; pwd") == "[]\n%s\n" % root(t, "lrepo")
    assert not os.path.exists(root(t, "outside"))
    once = ["start_deployment", "copy_repo lrepo", "environment_startup"]
    assert hook.seen == ["init", *once, "close", *once], hook.seen


def test_m_close_ends_processes_and_calls_on_close_last(t):
    hook = Hook()
    swe = started(t, hooks=[hook])
    pid = int(swe.communicate("sleep 1000 >/dev/null & echo $!").split()[-1])
    assert ply.alive(pid)
    swe.close()
    assert hook.seen[-1] == "close"
    ply.wait_for("the job's end", lambda: not ply.alive(pid))
    swe.close()
    assert hook.seen.count("close") == 1


def test_m_close_without_a_workdir_leaves_nothing(t):
    """Nothing but one small store for all of them, also when the caller is killed."""
    def left():
        return os.listdir(t.at("run")), ply.mounts_below(t.at("run"), "fuse")

    t.surroundings()
    for i in range(2):
        with plyfs.SweEnv({"repo": {"type": "local", "path": repository(t, "lrepo%d" % i)}}) as swe:
            assert swe.communicate("head -c 8M /dev/urandom >big; cat calc.py") == "x = 1\n"
        assert left() == ([], []), left()
    pid = os.fork()
    if pid == 0:
        plyfs.SweEnv({}).start()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    ply.wait_for("the keeper's work", lambda: left() == ([], []))
    data = t.at("home", "data", "plyfs")
    assert sorted(os.listdir(data)) == ["scratch", "scratch.made"]
    size = int(t.run(["du", "-sk", data]).stdout.split()[0])
    # 16 MiB were written in all; a daemon that is about to end has a journal segment and slots, 4 MiB each.
    assert size < 8192 + 2048, "%d KiB" % size
    shutil.rmtree(data)
    with plyfs.SweEnv({}) as swe:
        assert swe.communicate("echo again") == "again\n"


def test_m_interrupt_session_stops_what_runs(t):
    swe = started(t, None)
    with raises(TimeoutError):
        swe.communicate("echo before; sleep 100", timeout=0.5)
    swe.interrupt_session()
    assert swe.communicate("echo after") == "after\n"


def test_m_interrupt_session_from_another_thread(t):
    swe = started(t, None)

    def interrupt():
        ply.wait_for("the command", lambda: os.path.exists(root(t, "begun")))
        swe.interrupt_session()
    thread = threading.Thread(target=interrupt)
    thread.start()
    # TimeoutError, had it not been interrupted.
    swe.communicate("sh -c ': >begun; exec sleep 100'", timeout=60)
    thread.join()
    assert swe.communicate("echo after") == "after\n"


def test_m_read_file_absolute(t):
    swe = started(t)
    assert swe.read_file("/lrepo/calc.py") == "x = 1\n"
    assert swe.read_file(root(t, "lrepo", "calc.py")) == "x = 1\n"
    with raises(FileNotFoundError):
        swe.read_file("/lrepo/nope")
    with raises(IsADirectoryError):
        swe.read_file("/lrepo/src")
    with raises(PermissionError):
        swe.read_file("/../../etc/passwd")


def test_m_read_file_seed_relative_to_the_repository(t):
    swe = started(t)
    assert swe.read_file("src/a.txt") == "one\n"
    with raises(FileNotFoundError):  # upstream's seed returns cat's complaint as content
        swe.read_file("nope")
    swe.close()
    shutil.rmtree(root(t))
    with raises(ValueError, says="Repository not set, cannot read file"):
        started(t, None).read_file("a")


def test_m_write_file_makes_parents(t):
    swe = started(t)
    swe.write_file("/lrepo/new/dir/f", "text\r\n")
    swe.write_file("/root/state.json", "{}")
    assert swe.communicate("cat new/dir/f") == "text\r\n"
    assert swe.read_file("/root/state.json") == "{}"


def test_m_set_env_variables_quotes_values(t):
    swe = started(t, None)
    swe.set_env_variables({})
    swe.set_env_variables({"A": "it's $HOME", "B": 5})
    assert swe.communicate('echo "$A" "$B"; sh -c "echo \\$B"') == "it's $HOME 5\n5\n"
    with raises(ValueError, says="no name of a variable"):
        swe.set_env_variables({"A;B": "x"})


def test_m_execute_command_is_beside_the_session(t):
    swe = started(t)
    swe.communicate("export IN_SESSION=1")
    r = swe.execute_command("pwd; echo [$IN_SESSION] >&2; exit 3")
    assert (r.stdout, r.stderr, r.exit_code) == (root(t) + "\n", "[]\n", 3), r
    r = swe.execute_command("pwd; env", env={"ONLY": "1"}, cwd="/lrepo/src")
    assert r.stdout.splitlines()[0] == root(t, "lrepo", "src") and "ONLY=1\n" in r.stdout
    assert "HOME=" not in r.stdout
    with raises(plyfs.CommandFailedError, says="Command 'exit 2' failed with exit code 2"):
        swe.execute_command("exit 2", check=True)
    with raises(FileNotFoundError, says="/nope"):
        swe.execute_command("pwd", cwd="/nope")
    assert swe.communicate("echo open") == "open\n"


# ---- communicate ----

def test_c1_the_exit_code_is_always_taken_so_the_next_status_is_zero(t):
    swe = started(t, None)
    assert swe.communicate("false") == ""
    assert swe.communicate("(exit 7); echo $?") == "7\n"


def test_c2_output_is_untouched(t):
    swe = started(t, None)
    assert swe.communicate("printf '\\n  x \\n\\n'") == "\n  x \n\n"
    assert swe.communicate("echo out; echo err >&2") == "out\nerr\n"


def test_c3_warn_goes_on(t):
    swe = started(t, None)
    assert swe.communicate("echo x; false", check="warn") == "x\n"
    assert swe.communicate("echo open") == "open\n"


def test_c3_raise_closes_first(t):
    hook = Hook()
    swe = started(t, None, hooks=[hook])
    with raises(RuntimeError, says="Command \"false 'a'\" failed (r.exit_code=1): no luck"):
        swe.communicate("false 'a'", check="raise", error_msg="no luck")
    assert hook.seen[-1] == "close"


def test_c3_raise_may_keep_open(t):
    swe = started(t, None)
    with raises(plyfs.CommandFailedError, says="Command '(exit 3)' failed (r.exit_code=3): m"):
        swe.communicate("(exit 3)", check="raise", error_msg="m", keep_open=True)
    assert swe.communicate("echo open") == "open\n"


def test_c4_syntax_errors_propagate_and_do_not_close(t):
    swe = started(t, None)
    with raises(plyfs.BashSyntaxError):
        swe.communicate("(a", check="raise")
    assert swe.communicate("echo open") == "open\n"


def test_c4_a_dead_shell_is_told_and_a_hard_reset_brings_another(t):
    swe = started(t)
    with raises(plyfs.SessionGoneError):
        swe.communicate("exit 3")
    with raises(plyfs.SessionGoneError):
        swe.reset()
    swe.hard_reset()
    assert swe.communicate("pwd") == root(t, "lrepo") + "\n"


def test_c5_a_timeout_leaves_the_command_running(t):
    swe = started(t, None)
    with raises(TimeoutError) as e:
        swe.communicate("echo begun; sleep 4; echo late >late", timeout=2, check="raise")
    assert e.value.output == "begun\n"
    ply.wait_for("the command's end", lambda: os.path.exists(root(t, "late")))


def test_c5_a_remote_timeout_tells_what_was_printed(t):
    t.surroundings()
    s = server.rex(t, token="t")
    swe = plyfs.SweEnv({"deployment": {"type": "remote", "auth_token": "t", "port": s.port},
                        "repo": None})
    t.clean.append(swe.close)
    swe.start()
    with raises(plyfs.PlyTimeoutError) as e:
        swe.communicate("echo begun; sleep 60", timeout=2)
    assert e.value.output == "begun\n"
    swe.interrupt_session()
    assert swe.communicate("echo fine") == "fine\n"


def test_c_set_last_action(t):
    swe = started(t, None)
    swe.communicate("  echo 'a b'\n", set_last_action=True)
    assert swe.communicate('echo "[$LAST_ACTION]"') == "[echo 'a b']\n"


# ---- start and reset ----

def test_s41_locale_pager_and_progress_are_set(t):
    swe = started(t, None)
    assert swe.communicate("echo $LANG $LC_ALL $PIP_PROGRESS_BAR $PAGER") == \
        "C.UTF-8 C.UTF-8 off cat\n"


def test_s42_presence_is_a_matter_of_the_directory_not_of_ls(t):
    hook = Hook()
    t.surroundings()
    for i in range(30):  # so that ls prints columns
        ply.write(root(t, "a-long-name-%02d" % i), "x")
    swe = started(t, hooks=[hook], reset="commands")
    swe.communicate("echo o >x.o")
    swe.reset()
    assert hook.seen.count("copy_repo lrepo") == 1
    assert os.path.exists(root(t, "lrepo", "x.o"))  # by commands ignored files stay


def test_s42_a_missing_repository_is_copied_again(t):
    hook = Hook()
    swe = started(t, hooks=[hook], reset="commands")
    swe.communicate("cd ..; rm -rf lrepo")
    swe.reset()
    assert hook.seen.count("copy_repo lrepo") == 2
    assert swe.communicate("cat calc.py") == "x = 1\n"


def test_s43_a_failed_reset_raises_and_closes(t):
    swe = new(t, {"type": "local", "path": repository(t), "base_commit": "nope"})
    with raises(RuntimeError, says="failed (r.exit_code=1): Failed to clean repository"):
        swe.start()
    with raises(plyfs.StateError):
        swe.reset()


def test_s43_base_commit_branch_tag_and_hash(t):
    top = repository(t)
    first = git(t, top, "rev-parse", "HEAD")
    git(t, top, "tag", "v1")
    git(t, top, "branch", "old")
    ply.write(os.path.join(top, "calc.py"), "x = 2\n")
    git(t, top, "commit", "-qam", "second")
    for base in ("old", "v1", first, first[:10]):
        swe = started(t, {"type": "local", "path": top, "base_commit": base})
        for _ in range(2):
            assert swe.communicate("git rev-parse HEAD").strip() == first, base
            assert swe.read_file("calc.py") == "x = 1\n"
            swe.communicate("echo y >calc.py; git commit -qam agent")
            swe.reset()
        swe.close()
        shutil.rmtree(root(t))


def test_s44_hooks_in_order(t):
    hook = Hook()
    swe = started(t, hooks=[hook])
    swe.reset()
    swe.close()
    assert hook.seen == ["init", "start_deployment", "copy_repo lrepo", "environment_startup",
                         "environment_startup", "close"]


def test_s44_a_hooks_exception_ends_the_start(t):
    class Bad(Hook):
        def on_copy_repo_started(self, repo):
            raise KeyError("from the hook")
    with raises(KeyError, says="from the hook"):
        started(t, hooks=[Bad()])


def test_s45_an_agents_tools_can_be_installed(t):
    swe = started(t)
    swe.write_file("/root/tools/T/bin/tool", "#!/bin/sh\necho tool\n")
    tools = root(t, "root", "tools", "T")
    swe.communicate("export PATH=%s/bin:$PATH && chmod +x %s/bin/*" % (tools, tools), check="raise")
    assert swe.communicate("tool") == "tool\n"
    swe.execute_command("git add -A && git diff --cached > %s" % root(t, "root", "model.patch"),
                        check=True, cwd="/lrepo")
    assert swe.read_file("/root/model.patch", encoding="utf-8", errors="backslashreplace") == ""


# All but times, holes, and what in .git tells times and inodes: the index and the logs.
ALIKE = ("--no-times", "--no-holes", "--exclude", ".git/index", "--exclude", ".git/logs")


def test_s43_reset_of_a_large_repository_equals_copy_and_git_reset(t):
    n = 50000 if ply.LONG else 5000
    top = t.at("lrepo")
    ply.make_bulk(top, n)
    ply.write(os.path.join(top, ".gitignore"), "*.pyc\n__pycache__/\n")
    git(t, t.path, "init", "-q", "-b", "main", top)
    git(t, top, "config", "gc.auto", "0")  # a commit would pack the objects in the background
    git(t, top, "add", "-A")
    git(t, top, "commit", "-qm", "first")

    # What upstream does, on an ordinary filesystem.
    reference = t.at("reference")
    t.run(["cp", "-a", top, reference], timeout=600)
    began = time.monotonic()
    t.sh("cd %s && git fetch && git status && git restore . && git reset --hard && "
         "git checkout HEAD && git clean -fdq" % reference)
    by_git = time.monotonic() - began

    began = time.monotonic()
    swe = started(t)
    start = time.monotonic() - began
    here = root(t, "lrepo")
    whole = ply.treedigest(root(t))
    ply.assert_same_tree(here, reference, *ALIKE)

    files = sorted(os.path.relpath(os.path.join(d, f), here)
                   for d, dirs, names in os.walk(here) for f in names if ".git" not in d)
    times = []
    for round in range(3):
        touched = files[round::len(files) // 400][:400]
        for i, name in enumerate(touched):  # as a test run and an agent do
            if i % 4 == 0:
                os.unlink(os.path.join(here, name))
            elif i % 4 == 1:
                os.rename(os.path.join(here, name), os.path.join(here, name + ".orig"))
            else:
                ply.write(os.path.join(here, name), "changed %d\n" % i)
        for i in range(100):
            ply.write(os.path.join(here, "pkg%d" % (i % 7), "__pycache__", "m%d.pyc" % i), b"\0" * 99)
        swe.communicate("git add -A && git commit -qm 'agent'", timeout=300, check="raise")
        began = time.monotonic()
        swe.reset()
        times.append(time.monotonic() - began)
        ply.assert_same_tree(here, reference, *ALIKE)
        assert ply.treedigest(root(t)) == whole  # times, inodes' links and all
        assert not status(t, here)
    print("# reset of %d files after 500 were touched: %s ms (git alone: %.0f ms; start: %.1f s)"
          % (n, ", ".join("%.1f" % (1e3 * x) for x in times), 1e3 * by_git, start))


# ---- repositories ----

def test_r_local_copies_modes_links_and_ignored_files(t):
    top = repository(t)
    ply.write(os.path.join(top, "kept.o"), "ignored\n")
    ply.write(os.path.join(top, "untracked"), "u\n")
    swe = started(t)
    here = root(t, "lrepo")
    assert os.access(os.path.join(here, "run.sh"), os.X_OK)
    assert os.readlink(os.path.join(here, "link")) == "src/a.txt"
    assert ply.read(os.path.join(here, "kept.o")) == "ignored\n"
    assert not os.path.exists(os.path.join(here, "untracked"))  # git clean
    assert git(t, here, "rev-parse", "HEAD") == git(t, top, "rev-parse", "HEAD")
    swe.communicate("echo x >calc.py; git commit -qam agent")
    assert ply.read(os.path.join(top, "calc.py")) == FILES["calc.py"]
    assert git(t, top, "log", "--format=%s") == "first"
    if os.geteuid() == 0:
        assert os.stat(os.path.join(here, "calc.py")).st_uid == 0


def test_r_local_refuses_a_dirty_tree(t):
    top = repository(t)
    ply.write(os.path.join(top, "calc.py"), "dirty\n")
    swe = new(t)
    with raises(ValueError, says="Local git repository %s is dirty. Please commit or stash "
                                 "changes." % top):
        swe.start()


def test_r_local_refuses_what_is_no_repository(t):
    plain = t.tree({"a": "1"}, "plain")
    with raises(ValueError, says="Could not find git repository at self.path="):
        started(t, {"type": "local", "path": plain})
    with raises(ValueError, says="Could not find git repository at self.path="):
        started(t, {"type": "local", "path": t.at("nowhere")}, deployment={"workdir": t.at("r2")})


def test_r_local_refuses_a_part_of_a_repository_and_a_linked_work_tree(t):
    top = repository(t)
    with raises(ValueError, says="lies inside the git repository"):
        started(t, {"type": "local", "path": os.path.join(top, "src")})
    git(t, top, "worktree", "add", "-q", t.at("linked"))
    with raises(ValueError, says="give a clone of it"):
        started(t, {"type": "local", "path": t.at("linked")}, deployment={"workdir": t.at("r2")})


def test_r_local_name_without_spaces_and_quotes(t):
    top = repository(t, "it's my repo", {"a": "1"})
    swe = started(t, {"type": "local", "path": top})
    assert swe.communicate("pwd") == root(t, "its-my-repo") + "\n"


def test_r_github_clones_from_a_url(t):
    top = repository(t, "origin")
    git(t, top, "tag", "v1")
    os.makedirs(t.at("github.com", "owner"))
    git(t, t.path, "clone", "-q", "--bare", top, t.at("github.com", "owner", "name.git"))
    url = "file://" + t.at("github.com", "owner", "name.git")
    for base in ("HEAD", "main", "v1", git(t, top, "rev-parse", "HEAD")):
        swe = started(t, {"type": "github", "github_url": url, "base_commit": base})
        here = root(t, "owner__name")
        assert swe.communicate("pwd") == here + "\n"
        assert git(t, here, "rev-parse", "HEAD") == git(t, top, "rev-parse", "HEAD")
        assert git(t, here, "remote", "get-url", "origin") == url
        assert ply.read(os.path.join(here, "calc.py")) == "x = 1\n" and not status(t, here)
        swe.communicate("rm -rf * .git")
        swe.reset()
        assert git(t, here, "rev-parse", "HEAD") == git(t, top, "rev-parse", "HEAD")
        swe.close()
        shutil.rmtree(root(t))
    with raises(plyfs.PlyError, says="nope"):
        started(t, {"type": "github", "github_url": url, "base_commit": "nope"})


def test_r_github_invalid_url(t):
    with raises(ValueError, says="Invalid GitHub repository URL: https://gitlab.com/a/b"):
        new(t, {"type": "github", "github_url": "https://gitlab.com/a/b"})


def preexisting(t):
    """A view that holds a repository already."""
    t.surroundings()
    repository(t, "root/testbed")
    return {"type": "preexisting", "repo_name": "testbed"}


def test_r_preexisting_is_reset(t):
    repo = preexisting(t)
    ply.write(root(t, "testbed", "calc.py"), "dirty\n")
    hook = Hook()
    swe = started(t, repo, hooks=[hook])
    assert swe.communicate("cat calc.py; pwd") == "x = 1\n%s\n" % root(t, "testbed")
    assert not [s for s in hook.seen if s.startswith("copy")]


def test_r_preexisting_with_reset_false_is_left_alone(t):
    repo = preexisting(t)
    ply.write(root(t, "testbed", "calc.py"), "dirty\n")
    swe = started(t, dict(repo, reset=False))
    swe.communicate("echo more >more; cd /")
    swe.reset()
    assert swe.communicate("cat calc.py more; echo $ROOT") == \
        "dirty\nmore\n%s\n" % root(t, "testbed")


def test_r_preexisting_that_does_not_exist(t):
    with raises(RuntimeError, says="Failed to clean repository"):
        started(t, {"type": "preexisting", "repo_name": "testbed"})


def test_r_swesmith_fetches_its_commit_from_the_mirror(t):
    repo = preexisting(t)
    mirror = repository(t, "mirror")
    git(t, mirror, "checkout", "-qb", "bug")
    ply.write(os.path.join(mirror, "calc.py"), "bug\n")
    git(t, mirror, "commit", "-qam", "bug")
    swe = started(t, {"type": "swesmith_preexisting", "repo_name": repo["repo_name"],
                      "mirror_url": "file://" + mirror, "base_commit": "bug"})
    assert swe.read_file("calc.py") == "bug\n"
    swe.communicate("echo x >calc.py; echo y >y")
    swe.reset()
    assert swe.read_file("calc.py") == "bug\n" and not status(t, root(t, "testbed"))


# ---- deployments ----

def test_d_local_from_a_snapshot_of_a_store(t):
    t.surroundings()
    store = t.store()
    repository(t, "source/testbed")
    store.import_(t.at("source"))
    swe = plyfs.SweEnv({"deployment": {"type": "local", "store": store.path, "from": "main"},
                        "repo": "testbed"})
    t.clean.append(swe.close)
    swe.start()
    swe.communicate("echo x >calc.py")
    swe.hard_reset()
    assert swe.communicate("cat calc.py") == "x = 1\n"
    swe.close()
    assert not ply.mounts_below(t.at("run"))


def test_d_container_has_the_repository_in_its_folder(t):
    ply.need_tool("bwrap")
    hook = Hook()
    top = repository(t)
    git(t, top, "remote", "add", "origin", "https://example.invalid/x")  # no fetch without network
    try:
        swe = started(t, hooks=[hook], deployment={"type": "container"})
    except plyfs.NotHereError as e:
        ply.skip(str(e))
    here = "/workspace/lrepo"
    assert swe.communicate("pwd; echo $ROOT; git status --porcelain; id -u") == \
        "%s\n%s\n0\n" % (here, here)
    assert swe.read_file(here + "/calc.py") == swe.read_file("/lrepo/calc.py") == "x = 1\n"
    swe.communicate("echo bad >calc.py; rm -rf .git; touch ../outside; export KEPT=1")
    r = swe.execute_command("pwd; cat calc.py; echo $V", env={"V": "1"}, cwd="/lrepo")
    assert r.stdout == here + "\nbad\n1\n", r
    swe.reset()
    assert swe.communicate("git status --porcelain; cat calc.py; ls ..; echo $KEPT") == \
        "x = 1\nlrepo\n1\n"
    swe.hard_reset()
    assert swe.communicate("pwd; echo [$KEPT]") == here + "\n[]\n"
    assert hook.seen.count("copy_repo lrepo") == 2


def test_d_checkpoints_of_the_agent_survive_a_reset(t):
    swe = started(t)
    swe.communicate("echo idea >idea")
    point = swe.checkpoint("idea")
    swe.reset()
    assert not os.path.exists(root(t, "lrepo", "idea"))
    swe.restore(point)
    assert ply.read(root(t, "lrepo", "idea")) == "idea\n"


def test_d_dummy_answers_blanks(t):
    swe = plyfs.SweEnv({"deployment": {"type": "dummy"}, "repo": "testbed"})
    with swe:
        assert swe.communicate("ls", check="raise") == ""
        assert swe.read_file("x") == ""
        swe.write_file("x", "y")
        swe.execute_command("false", check=True)
        swe.reset()
        swe.hard_reset()


def test_d_from_file_reads_yaml(t):
    t.surroundings()
    ply.write(t.at("config.yaml"), "deployment:\n  type: local\n  root: %s\nname: x\n" % root(t))
    swe = plyfs.SweEnv.from_file(t.at("config.yaml"))
    with swe:
        assert swe.communicate("pwd") == root(t) + "\n"
    ply.write(t.at("config.yaml"), "deployment: {type: local, rot: x}\n")
    with raises(ValueError, says="config.yaml: deployment.rot is not known"):
        plyfs.SweEnv.from_file(t.at("config.yaml"))


# ---- upstream's own tests ----

def test_u_init_swe_env(t):
    with new(t):
        pass


def test_u_startup_commands(t):
    with new(t, post_startup_commands=["echo 'hello world'", "HELLO=world"]) as swe:
        assert swe.communicate("echo $HELLO") == "world\n"


def test_u_read_file(t):
    repository(t, files={"tests/filetoread.txt": "1\nSWEEnv.read_file\n"})
    with new(t) as swe:
        assert swe.read_file("tests/filetoread.txt").splitlines()[-1] == "SWEEnv.read_file"


def test_u_env_with_hook(t):
    with new(t) as swe:
        swe.add_hook(plyfs.SweHook())
        swe.reset()


def test_u_env_communicate_with_handling(t):
    with new(t, None) as swe:
        swe.communicate("echo 'hello world'", check="raise", error_msg="Failed to echo")


def test_u_env_communicate_with_handling_timeout(t):
    with new(t, None) as swe:
        with raises(TimeoutError):
            swe.communicate("sleep 10", check="raise", error_msg="Failed to sleep", timeout=0.2)


def test_u_env_interrupt_session(t):
    with new(t, None) as swe:
        swe.interrupt_session()


ply.main(__name__)
