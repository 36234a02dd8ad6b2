#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: run
# timeout: 180
"""plyfs run: commands on a view, their exit codes, limits and forks."""
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply


def nap(seconds):
    """What a sleep is asked for, by this run of the script alone."""
    return "%d.%d" % (seconds, os.getpid())


def living(seconds, begin="^"):
    """Processes that are asleep for nap(seconds); begin="": those who started them, too."""
    return subprocess.run(["pgrep", "-f", r"%ssleep %s\b" % (begin, re.escape(nap(seconds)))],
                          stdout=subprocess.PIPE, text=True).stdout.split()


def test_the_commands_own_exit_code(t):
    view = t.view()
    for code in (0, 1, 3, 77, 124):
        p = view.store.ply("run", "--", "sh", "-c", "exit %d" % code, cwd=view.path, check=False)
        assert p.returncode == code, p
    assert view.store.ply("run", "--", "nosuchcommand", cwd=view.path,
                          check=False).returncode == 127
    assert view.store.ply("run", "--", "./a.txt", cwd=view.path, check=False).returncode == 126


def test_in_a_directory_that_was_removed_it_is_told_to_go_elsewhere(t):
    view = t.view()
    for verb in ("run", "test", "session start"):
        p = t.run(["sh", "-c", "mkdir d; cd d; rmdir ../d; exec '%s' %s true" % (ply.PLYFS, verb)], cwd=view.path,
                  check=False, stdin=subprocess.DEVNULL)
        assert p.returncode == 1 and p.stderr.count("\n") == 1, p
        assert "'.' was removed; cd into a directory that is there" in p.stderr, p


def test_a_line_for_the_shell_is_told_how(t):
    view = t.view()
    said = view.store.fails("run", "ls | wc", cwd=view.path, code=127, says="No such file")
    assert said.endswith("plyfs run -- sh -c 'ls | wc'\n"), said
    said = view.store.fails("run", "no such", "|", cwd=view.path, code=127)
    assert said.endswith("No such file or directory\n"), said


def test_output_and_input_are_passed_through(t):
    view = t.view()
    p = view.store.ply("run", "sh", "-c", "cat; echo out; echo err >&2", cwd=view.path,
                       input="in\n")
    assert p.stdout == "in\nout\n" and p.stderr == "err\n"


def test_options_after_the_command_are_its_own(t):
    view = t.view()
    p = view.store.ply("run", "echo", "--timeout", "--fork", cwd=view.path)
    assert p.stdout == "--timeout --fork\n"


def test_a_timeout_kills_the_whole_group(t):
    view = t.view()
    p = view.store.ply("run", "--timeout", "0.5", "--", "sh", "-c",
                       "sh -c 'trap \"\" TERM; sleep {0}' & sleep {0}".format(nap(61)), cwd=view.path,
                       check=False, timeout=60)
    assert p.returncode == 124, p
    assert not living(61, "")


def limited(view, *args):
    """plyfs run with limits; whether a control group keeps them is said."""
    p = view.store.ply("run", *args, cwd=view.path, check=False, timeout=120)
    return p, "no control group" not in p.stderr


def test_a_limit_of_memory_holds(t):
    view = t.view()
    p, group = limited(view, "--memory", "64M", "--", "python3", "-c", "bytearray(400 << 20)")
    assert p.returncode != 0, p
    assert ("limit of memory" if group else "MemoryError") in p.stderr, p
    p, _ = limited(view, "--memory", "1G", "--", "python3", "-c", "print(len(bytearray(99 << 20)))")
    assert (p.returncode, p.stdout) == (0, "%d\n" % (99 << 20)), p
    assert "limit of" not in p.stderr, p


def test_a_limit_of_processes_holds_and_what_is_left_ends(t):
    view = t.view()
    start = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep %s & done" % nap(71)
    p, group = limited(view, "--processes", "8", "--", "sh", "-c", start)
    assert not living(71, "")
    if group:
        assert "limit of processes" in p.stderr, p


def test_a_limit_of_cpu_time_holds(t):
    view = t.view()
    p, _ = limited(view, "--cpu-time", "1", "--", "sh", "-c", "while :; do :; done")
    assert p.returncode == 128 + signal.SIGXCPU, p
    for given, wanted in (("5m", "300\n"), ("1.5", "2\n"), ("0", "unlimited\n")):
        p, _ = limited(view, "--cpu-time", given, "--", "sh", "-c", "ulimit -t")
        assert p.stdout == wanted, (given, p)


def test_a_limit_that_is_none_is_refused(t):
    p, _ = limited(t.view(), "--memory", "much", "--", "true")
    assert p.returncode == 2 and "512M" in p.stderr, p


def test_a_signal_shows_as_shells_show_it(t):
    view = t.view()
    p = t.run(["sh", "-c", "'%s' run -- sh -c 'kill -TERM $$'; echo $?" % ply.PLYFS],
              cwd=view.path)
    assert p.stdout.strip() == str(128 + signal.SIGTERM), p


def test_fork_leaves_the_view_alone_and_keeps_a_branch(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--", "sh", "-c", "echo changed >a.txt; pwd; cat a.txt",
                       cwd=view.path)
    assert p.stdout.splitlines()[-1] == "changed"
    assert view.read("a.txt") == "one\n"
    where = p.stdout.splitlines()[0]
    assert not os.path.ismount(where)
    assert len(view.store.status()["views"]) == 1
    text = view.store.json("tree")
    names = [b["name"] for b in text["branches"]]
    assert len(names) == 2, names
    other = next(n for n in names if n != "main")
    assert view.store.mount(branch=other).read("a.txt") == "changed\n"


def test_a_fork_that_fails_is_told_by_the_verb_that_was_called(t):
    view = t.view()
    view.store.ply("fork", "taken")
    p = view.store.ply("run", "--fork", "--name", "taken", "true", cwd=view.path, check=False)
    assert p.returncode == 1 and p.stderr.startswith("plyfs run: taken: a branch of this"), p


def test_a_fork_is_worked_in_where_the_view_was(t):
    """Also where a mount shows a part of the view: of bound it is the root, of the view a directory."""
    ply.need_mount_namespaces()
    view = t.view()
    os.mkdir(t.at("bound"))
    script = 'mount --bind "$1/dir" "$2" && cd "$2/$3" && exec "$0" run --fork --drop -- pwd'
    for below in "", "sub":
        p = t.run(["unshare", "--mount", "sh", "-euc", script, ply.PLYFS, view.path, t.at("bound"), below])
        assert p.stdout.strip().endswith(os.path.join("/dir", below).rstrip("/")), p
        p = view.store.ply("run", "--fork", "--drop", "pwd", cwd=os.path.join(view.path, "dir", below))
        assert p.stdout.strip().endswith(os.path.join("/dir", below).rstrip("/")), p


def test_forks_of_other_pid_namespaces_have_names_of_their_own(t):
    """In each the front is process 1, and they start in the same second."""
    ply.need_mount_namespaces()
    view = t.view()
    runs = [subprocess.Popen(["unshare", "--pid", "--fork", "--mount", ply.PLYFS, "run", "--fork", "--", "true"],
                             cwd=view.path, env=t.env, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for run in runs:
        said = run.communicate()[1]
        assert run.returncode == 0 and "the command's state is branch run-" in said, said
    assert len(view.store.json("tree")["branches"]) == 4


def test_a_fork_lies_where_there_is_a_place(t):
    view = t.view()
    os.mkdir(t.at("tmp"))
    for run, tmp, wanted in (("", "", "/tmp"), (t.at("gone"), t.at("tmp"), t.at("tmp")),
                             ("tmp", "", "/tmp"), (t.at("tmp"), "/", t.at("tmp"))):
        p = view.store.ply("run", "--fork", "--drop", "pwd", cwd=view.path,
                           env={"XDG_RUNTIME_DIR": run, "TMPDIR": tmp})
        assert os.path.dirname(p.stdout.strip()) == wanted, (run, tmp, p)
    p = view.store.ply("session", "list", env={"XDG_RUNTIME_DIR": t.at("gone")})
    assert not p.stdout and not p.stderr, p


def test_fork_with_drop_leaves_nothing(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--drop", "--", "sh", "-c", "rm -rf *; exit 4",
                       cwd=view.path, check=False)
    assert p.returncode == 4, p
    assert len(view.store.json("tree")["branches"]) == 1
    assert view.ls() == ["a.txt", "dir"]


def test_a_fork_with_a_timeout_is_cleaned_up(t):
    view = t.view()
    p = view.store.ply("run", "--fork", "--drop", "--timeout", "0.3", "--", "sleep", "30",
                       cwd=view.path, check=False)
    assert p.returncode == 124, p
    assert len(view.store.status()["views"]) == 1
    assert len(view.store.json("tree")["branches"]) == 1


# ---- interrupted, killed, stopped ----

def children(pid):
    return [int(p) for p in ply.read("/proc/%d/task/%d/children" % (pid, pid)).split()]


def is_stopped(pid):
    return ply.read("/proc/%d/stat" % pid).rsplit(")", 1)[1].split()[0] == "T"


def left_of_forks(t):
    """Mounts and directories of run --fork."""
    return [w for w in ply.mounts_below(t.at("tmp")) if w != t.at("tmp")], os.listdir(t.at("tmp"))


def test_an_interrupted_fork_leaves_nothing(t):
    view = t.view()
    os.mkdir(t.at("tmp"))
    for n in range(96):
        sig = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)[n % 4]
        p = subprocess.Popen([ply.PLYFS, "run", "--fork", "--drop", "--", "sleep", nap(81)],
                             cwd=view.path, env=dict(t.env, XDG_RUNTIME_DIR=t.at("tmp")))
        time.sleep(n / 4000)
        p.send_signal(sig)
        p.wait(timeout=60)
        ply.wait_for("the end of what was begun (%d)" % n,
                     lambda: not living(81) and left_of_forks(t) == ([], []))
        ply.wait_for("the fork's end (%d)" % n, lambda: len(view.store.json("tree")["branches"]) == 1)
    assert len(view.store.status()["views"]) == 1


def test_who_kills_plyfs_ends_the_command(t):
    view = t.view()
    os.mkdir(t.at("tmp"))
    script = "sh -c 'trap \"\" TERM HUP; sleep {0}' & setsid sleep {0} & sleep {0}".format(nap(82))
    for words in (["--fork"], ["--fork", "--drop"], ["--timeout", "90"], ["--memory", "1G"]):
        for guard in (False, True):
            begun = len(view.store.json("tree")["branches"])
            p = subprocess.Popen([ply.PLYFS, "run", *words, "--", "sh", "-c", script],
                                 cwd=view.path, env=dict(t.env, XDG_RUNTIME_DIR=t.at("tmp")),
                                 stderr=subprocess.DEVNULL)
            ply.wait_for("the command", lambda: len(living(82)) == 3)
            os.kill(children(p.pid)[0] if guard else p.pid, signal.SIGKILL)
            assert p.wait(timeout=60) == (1 if guard else -signal.SIGKILL), words
            ply.wait_for("its end %s" % words, lambda: not living(82))
            # Whoever is left of the two takes it off; the front has done so when it ends.
            if not guard:
                ply.wait_for("the end of its mount", lambda: left_of_forks(t) == ([], []))
            assert left_of_forks(t) == ([], []), words
            branches = begun + (words == ["--fork"])
            ply.wait_for("the drop", lambda: len(view.store.json("tree")["branches"]) == branches)


def test_a_guard_killed_before_its_fork_is_made_takes_no_older_branch_along(t):
    view = t.view({"a": "1"})
    view.store.ply("fork", "older")
    os.mkdir(t.at("tmp"))
    for n in range(30):
        p = subprocess.Popen([ply.PLYFS, "run", "--fork", "--drop", "--name", "older", "--", "true"],
                             cwd=view.path, env=dict(t.env, XDG_RUNTIME_DIR=t.at("tmp")),
                             stderr=subprocess.DEVNULL)
        # The name is refused when the daemon is asked, and it is mounted before that.
        while not ply.mounts_below(t.at("tmp"), "fuse.plyfs") and p.poll() is None:
            pass
        for guard in [] if p.poll() is not None else children(p.pid):
            with contextlib.suppress(ProcessLookupError):  # it was over just then
                os.kill(guard, signal.SIGKILL)
        assert p.wait(timeout=60) == 1
        assert left_of_forks(t) == ([], [])
        assert len(view.store.json("tree")["branches"]) == 2, n


def test_all_of_plyfs_killed_at_once_ends_the_command_itself(t):
    view = t.view()
    p = subprocess.Popen([ply.PLYFS, "run", "--timeout", "90", "--", "sleep", nap(83)], cwd=view.path)
    ply.wait_for("the command", lambda: living(83))
    pids = [*children(p.pid), p.pid]
    os.kill(p.pid, signal.SIGSTOP)  # or it would see the other's end
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    p.wait(timeout=60)
    ply.wait_for("its end", lambda: not living(83))


class Terminal:
    """A program on a terminal of its own: an interactive bash, if none is named."""

    def __init__(self, t, path, *words):
        words = words or ("bash", "--norc", "--noprofile", "-i")
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(path)
            os.execvpe(words[0], words, dict(t.env, PS1="PROMPT> ", TERM="dumb", HISTFILE=""))
        self.seen = ""
        t.clean.append(self.end)

    def send(self, text):
        self.seen = ""
        os.write(self.fd, text.encode())

    def until(self, wanted, seconds=60):
        end = time.monotonic() + seconds
        while not re.search(wanted, self.seen):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise AssertionError("no %r in %r" % (wanted, self.seen))
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:
                raise AssertionError("ended, with no %r in %r" % (wanted, self.seen)) from None

    def says(self, text, wanted):
        self.send(text)
        self.until(wanted)

    def is_lent(self):
        """
        Waits until the shell has given it away: before, its modes are the line editor's, and so would
        be what is typed.
        """
        ply.wait_for("somebody else on the terminal", lambda: os.tcgetpgrp(self.fd) != self.pid)

    def stops(self):
        self.says("\x1a", "Stopped.*\n(.*\n)*PROMPT> ")

    def continues(self):
        self.send("fg\n")
        self.is_lent()

    def end(self):
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def test_a_stopped_command_gives_the_terminal_back(t):
    view = t.view()
    for words in (["--timeout", "100"], ["--fork", "--drop"], ["--memory", "1G"], []):
        tty = Terminal(t, view.path)
        tty.until("PROMPT> ")
        run = "%s run %s -- " % (ply.PLYFS, " ".join(words))
        tty.says(run + "sh -c 'echo up; read x; echo got $x; sleep %s'\n" % nap(84), "\r\nup\r\n")
        tty.stops()
        tty.continues()
        tty.says("word\n", "got word\r\n")
        ply.wait_for("the command", lambda: living(84))
        tty.stops()
        # In the background it goes on, but has no terminal.
        tty.says("bg; sleep 0.3; jobs\n", "Running.*\n(.*\n)*PROMPT> ")
        tty.continues()
        tty.says("\x03", "PROMPT> ")
        tty.says("echo code $?\n", "code 130\r\n")
        # Begun behind, it stops as it reads.
        tty.says(run + "cat &\n", "PROMPT> ")
        ply.wait_for("its stop", lambda: any(map(is_stopped, children(tty.pid))))
        tty.says("jobs\n", "Stopped.*\n(.*\n)*PROMPT> ")
        tty.continues()
        tty.says("again\n", "again\r\nagain\r\n")
        tty.stops()
        tty.says("kill %1; while kill -0 %1 2>/dev/null; do sleep 0.1; done; jobs\n",
                 "(Exit 143|Terminated).*\n(.*\n)*PROMPT> ")
        # A script stops with it.
        tty.send("sh -c '%s sleep %s; echo after' | cat\n" % (run, nap(84)))
        ply.wait_for("the command", lambda: living(84))
        tty.stops()
        tty.continues()
        tty.says("\x03", "PROMPT> ")
        ply.wait_for("the end %s" % words, lambda: not living(84))


def test_who_kills_plyfs_gets_the_terminal_back(t):
    view = t.view()
    tty = Terminal(t, view.path)
    tty.until("PROMPT> ")
    tty.says("%s run --timeout 100 -- sh -c 'echo up; sleep %s'\n" % (ply.PLYFS, nap(85)), "\r\nup\r\n")
    os.kill(children(tty.pid)[0], signal.SIGKILL)
    tty.until("Killed.*\n(.*\n)*PROMPT> ")
    ply.wait_for("the command's end", lambda: not living(85))
    tty.send("cat\n")
    tty.is_lent()
    tty.says("word\n", "word\r\nword\r\n")


def test_where_no_shell_could_continue_it_a_command_is_not_stopped(t):
    view = t.view()
    tty = Terminal(t, view.path, ply.PLYFS, "run", "--timeout", "100", "--", "sh", "-c",
                   "echo up; read x; echo got $x")
    tty.until("up\r\n")
    tty.send("\x1a")
    time.sleep(0.3)
    tty.says("word\n", "got word\r\n")


def test_a_command_that_is_stopped_without_a_terminal_stops_nobody(t):
    view = t.view()
    for limit in (2, 8, 32):  # on a slow machine it may be over before it is seen
        p = subprocess.Popen([ply.PLYFS, "run", "--timeout", str(limit), "--", "sleep", nap(86)],
                             cwd=view.path)
        found = ply.wait_for("the command", lambda: p.poll() is not None or living(86))
        if p.poll() is None:
            break
    pid = int(found[0])
    with contextlib.suppress(ProcessLookupError):  # its time was over just then
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    assert not is_stopped(p.pid)
    assert p.wait(timeout=60) == 124  # the time goes on
    assert not living(86)


if __name__ == "__main__":
    ply.main()
