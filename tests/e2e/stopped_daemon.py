#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# timeout: 240
# serial: yes (each doctor on this machine looks at the view that does not answer)
"""
A daemon that is stopped (SIGSTOP): no verb that asks it waits for ever, each says in one line what is
wrong and what to do. When it goes on, so does everything. (checkpoint and restore in a view wait as any
file operation there.)
"""
import contextlib
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply

LONG_ENOUGH = 100  # a verb's patience is 20 s


@contextlib.contextmanager
def stopped(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def start(t, argv, cwd=None, store=None, stdin=subprocess.DEVNULL):
    env = dict(t.env)
    if store:
        env["PLYFS_STORE"] = store.path
    p = subprocess.Popen(argv, env=env, cwd=cwd or t.path, stdin=stdin,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    t.clean.append(p.kill)
    return p


def verb(t, *args, **kw):
    return start(t, [ply.PLYFS, *args], **kw)


def inside(t, view, *args):
    """The verb in a process that is in the view already, and waits for a line."""
    script = 'read go; exec "$0" "$@"'
    return start(t, ["sh", "-c", script, ply.PLYFS, *args], cwd=view.path, stdin=subprocess.PIPE)


def ends(p, code, says):
    out, err = p.communicate(timeout=LONG_ENOUGH)
    shown = "%s: exit %d\n%s%s" % (p.args, p.returncode, out, err)
    assert p.returncode == code, shown
    assert re.search(says, out + err), "%s\ndoes not say %r" % (shown, says)
    if code:
        assert len(err.splitlines()) == 1, shown


def test_a_view_whose_daemon_dies_while_it_is_asked_is_a_dead_one(t):
    t.unsupervised()
    view = t.view()
    pid = view.store.daemon()
    view.write("new", "x")  # who opens the directory asks for its attributes again
    os.kill(pid, signal.SIGSTOP)
    p = verb(t, "unmount", view.path)
    # It asks in a child, which has nothing else to wait for.
    ply.wait_for("its request", lambda: subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(p.pid)], capture_output=True, text=True).stdout[:1] in ("S", "D"))
    os.kill(pid, signal.SIGKILL)
    out, err = p.communicate(timeout=LONG_ENOUGH)
    # Who stands by the daemon may be faster.
    assert "daemon had ended" in err if p.returncode == 0 else "no plyfs view is mounted" in err, err
    ply.wait_for("the mount to vanish", lambda: not os.path.ismount(view.path))


def test_no_verb_waits_for_ever(t):
    """All at once, as some of them are patient for 20 s."""
    ply.need_tool("bash", "timeout")
    view = t.view()
    store, pid = view.store, view.store.daemon()
    os.mkdir(t.at("other"))
    store.json("tree")
    taken_off, walked = view.fork("taken-off"), view.fork("walked")
    for n in range(6):
        view.fork("more-%d" % n)  # who asks all of them is no more patient for that
    views = ply.mounts_below(t.path)
    # Requests that the daemon has read cannot be given up, not even by who is killed.
    walk = start(t, ["sh", "-c", "while :; do ls -lR . /dev/null; mkdir d; rmdir d; done"],
                 cwd=walked.path)
    walk.stdout.close()
    walk.stderr.close()
    t.env["PATH"] = os.path.dirname(ply.PLYFS) + ":" + t.env["PATH"]
    complete = ["bash", "-c", ". <(plyfs completion bash)\nCOMP_WORDS=(plyfs drop '')\n"
                "COMP_CWORD=2\n_plyfs\necho \"got: ${COMPREPLY[*]}\""]
    socket = "stopped; kill -CONT %d" % pid
    silent = "does not answer; .*kill -CONT"
    in_view = [inside(t, view, verb) for verb in ("status", "log", "diff")]
    with stopped(pid):
        asked = [
            (verb(t, "status", store=store), 1, socket),
            (verb(t, "status", "--json", store=store), 1, socket),
            (verb(t, "log", store=store), 1, socket),
            (verb(t, "gc", store=store), 1, socket),
            (verb(t, "daemon", "--replace", store=store), 1, socket),
            (verb(t, "mount", "--at", t.at("other"), store=store), 1, socket),
            (verb(t, "mount", "--at", view.path, store=store), 1, silent),
            (verb(t, "mount", view.path), 1, silent),
            (verb(t, "unmount", view.path), 1, silent),
            (verb(t, "unmount", walked.path), 1, silent),
            (verb(t, "unmount", "--lazy", taken_off.path), 0, ""),
            (verb(t, "doctor"), 0, "'%s' is a view that does not answer" % view.path),
            (start(t, complete, store=store), 0, "got: $"),
        ] + [(p, 1, silent) for p in in_view]
        for p in in_view:
            p.stdin.write("go\n")
            p.stdin.flush()
        for p, code, says in asked:
            ends(p, code, says)
        assert sorted(ply.mounts_below(t.path)) == sorted(set(views) - {taken_off.path})
    assert view.read("a.txt") == "one\n"
    view.checkpoint()
    walked.info()
    walk.kill()
    walk.wait()
    assert store.mount(branch="taken-off", at=taken_off.path).read("a.txt") == "one\n"
    assert store.status()["daemon"]["pid"] == pid
    assert "does not answer" not in store.out("doctor")
    ends(start(t, complete, store=store), 0, "got: .*walked")
    view.unmount()


if __name__ == "__main__":
    ply.main(__name__)
