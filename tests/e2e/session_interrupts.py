#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: env
# timeout: 600
"""
Whatever a session's command does with its signals, its terminal and its prompt, and however often it
was interrupted before: once nothing holds it up an interrupt gets the shell back, and the next commands
give what they print and nothing else.

PLYFS_TEST_LONG=1: 1,000 rounds. PLYFS_TEST_SEED=n repeats a run's commands and steps, not its times.
"""
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import plypy

plyfs = plypy.package()

ROUNDS = 1000 if ply.LONG else 25
PER_SESSION = 40

GOES = "[[ ! -e stop ]]"
BUSY = [
    # The shell itself is busy, and deaf.
    "trap '' INT; while %s; do :; done; trap - INT" % GOES,
    "trap '' INT; while %s; do sleep 0.01; done; trap - INT" % GOES,
    "trap '' INT TERM; while %s; do /bin/true; done; trap - INT TERM" % GOES,
    "trap 'echo int' INT; while %s; do sleep 0.05; done; trap - INT" % GOES,
    "trap : CHLD; while %s; do /bin/true; done; trap - CHLD" % GOES,
    "while %s; do kill -INT $$; done" % GOES,
    "stty -echo; trap '' INT; while %s; do read -t 0.01 x; done; trap - INT" % GOES,
    "trap '' INT; cat; trap - INT",
    # Ctrl-C is a key.
    "stty -isig; while %s; do :; done" % GOES,
    "stty -icanon -isig; while %s; do :; done; stty sane -echo" % GOES,
    "stty raw -echo; sleep 1000",
    "stty -isig; cat >/dev/null",
    "stty -icanon min 0 time 1; sleep 1000",
    "stty intr undef; sleep 1000",
    # Programs that bear it, pipelines, what runs in the shell's own group.
    "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(1000)'",
    "sh -c 'trap \"\" INT TERM; while :; do sleep 1; done'",
    "bash -c 'trap \"echo caught\" INT; sleep 100; echo after; sleep 100'",
    "cat | cat | cat",
    "sleep 1000 & wait",
    "(sleep 1000; echo no); echo rest",
    "x=$(sleep 1000); echo $x",
    "cat <(sleep 1000)",
    "f() { sleep 1000; }; f; f",
    "source <(echo sleep 1000)",
    "for ((i = 0; i < 100000; i++)); do /bin/true; done",
    # Who reads the terminal. (A bash with the session's PS1 is a shell in its place: session_inner.c.)
    "read x", "read -s x", "select i in a b; do echo $i; done", "env -u PS1 bash --norc", "python3 -q -i",
    # Much output, slow prompts, a shell that stops itself.
    "while :; do echo x; done",
    "yes | head -c 30000000",
    "PS1='$(sleep 0.1)$ '; sleep 1000",
    "PROMPT_COMMAND='sleep 0.1'; sleep 1000",
    "PS1=; sleep 1000",
    "kill -STOP $$; sleep 100",
]
# What a round left is no other round's.
AGAIN = ("trap - INT TERM CHLD; stty isig icanon -echo intr ^C; PS1='$ '; unset PROMPT_COMMAND; "
         "x=$(jobs -p); [[ -z $x ]] || { kill -9 $x; wait $x; } 2>/dev/null; rm -f stop")


def session(t):
    s = plyfs.Session("busy", cwd=t.path, startup_timeout=60, env={"HOME": t.path})
    s.start()
    return s


def attempt(said, what, fn):
    try:
        said.append("%s: %r" % (what, fn()))
    except plyfs.PlyError as e:
        said.append("%s: %r" % (what, e))


def interrupt_often(s, rng, said):
    for _ in range(rng.randrange(4)):
        window, tries = rng.choice([0.02, 0.05, 0.1, 0.3]), rng.randrange(5)
        attempt(said, "interrupt(%s, %d)" % (window, tries), lambda: s.interrupt(window, tries))
        if rng.random() < 0.2:
            attempt(said, "run", lambda: s.run("echo between", timeout=0.1))


def gives(s, command, output, ends=False):
    o = s.run(command, timeout=30)
    assert o.exit_code == 0 and (o.output.endswith(output) if ends else o.output == output), o


def one(t, s, rng, said):
    command, moment = rng.choice(BUSY), rng.choice([0.01, 0.02, 0.05, 0.1, 0.2, 0.35])
    said.append("%s, for %s s" % (command, moment))
    waiting = None
    if rng.random() < 0.4:  # interrupted while another thread waits for it
        waiting = threading.Thread(target=attempt, args=(
            said, "its run", lambda: s.run(command, timeout=60)))
        waiting.start()
    else:
        attempt(said, "its run", lambda: s.run(command, timeout=moment))
    interrupt_often(s, rng, said)
    open(t.at("stop"), "w").close()
    attempt(said, "the last interrupt", s.interrupt)
    while waiting and waiting.is_alive():  # it may not have begun by then
        waiting.join(0.1)
        attempt(said, "the very last", s.interrupt)
    gives(s, "echo one", "one\n", ends=True)  # before it stands what a killed one printed
    gives(s, "echo two", "two\n")
    s.run(AGAIN, timeout=30)
    gives(s, "echo three", "three\n")


def test_a_shell_comes_back_from_anything(t):
    seed = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(10 ** 9))
    rng = random.Random(seed)
    s = None
    for i in range(ROUNDS):
        if i % PER_SESSION == 0:
            if s:
                s.close()
            s = session(t)
        said = []
        try:
            one(t, s, rng, said)
        except (AssertionError, plyfs.PlyError) as e:
            raise AssertionError("seed %d, round %d: %r\n%s" % (seed, i, e, "\n".join(said)))
    s.close()


ply.main(__name__)
