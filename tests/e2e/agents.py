#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 200
"""
Coding agents, as their users have them, on an installed plyfs: env/examples/demo.sh with
mini-swe-agent (its source archive on PyPI) and with SWE-agent. PyPI has no SWE-agent that can be used
(0.0.1 is a placeholder): PLYFS_TEST_SWEAGENT names a checkout of it with an environment of its own:
`python3 -m venv .venv && .venv/bin/pip install -e .` in there.
"""
import json
import os
import re
import shlex
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import plypy
import server
import venv

PYTHON = venv.python()
plypy.need_plain_build()

MINI = "2.4.6"
ACTIONS = ['grep -n "^def', "cat -n clock.py", "python3 -m unittest", "sed -i", "python3 -m unittest"]


def demo(t, *args, program, env):
    """demo.sh, installed; program is in PATH. What it prints after the agent's last words."""
    ply.need_tool("unshare")
    i = installed.Installed(t)
    os.makedirs(t.at("bin"))
    for name, text in program.items():
        ply.write(t.at("bin", name), text)
        os.chmod(t.at("bin", name), 0o755)
    env = dict(i.env, PATH=t.at("bin") + ":" + i.env["PATH"], TMPDIR=t.path, TERM="dumb", **env)
    p = t.run([os.path.join(i.examples, "demo.sh"), *args], env=env, timeout=150, check=False,
              stdin=-3)
    assert p.returncode == 0, p.stdout[-6000:] + p.stderr[-6000:]
    assert not ply.mounts_below(t.path, "fuse")
    return p


def solved(p, label):
    """A checkpoint for each step and before the first; the fix and nothing else."""
    tree = re.findall(r"(?m)^([0-9a-f]{12})[ *]+\S+  main(?:  (.*?))?$", p.stdout)
    assert [name for _, name in tree] == ["", *(label % {"n": n} for n in range(7))], p.stdout
    assert len({snap for snap, _ in tree}) == 8, tree
    assert re.findall(r"(?m)^[MADRTC]\t.*", p.stdout) == ["M\tclock.py"], p.stdout
    assert "what was submitted is what differs between step 0 and step 5" in p.stdout
    snapshots = [snap for snap, _ in tree[1:]]
    assert re.findall("at ([0-9a-f]{12}):", p.stdout) == [snapshots[0], snapshots[5]], p.stdout
    verdicts = re.findall(r"timed out|\d+ passed, \d+ failed", p.stderr)
    assert verdicts[-1] == "3 passed, 0 failed" and verdicts[0] == "timed out", p.stderr
    return snapshots


def test_mini_swe_agent_solves_a_bug_with_a_checkpoint_per_step(t):
    source = server.sdist("mini-swe-agent", MINI, PYTHON)
    if not source:
        ply.skip("no source archive of mini-swe-agent")
    mini = "#!/bin/sh\nexec %s -m minisweagent.run.mini \"$@\"\n" % shlex.quote(PYTHON)
    p = demo(t, "mini-swe-agent", program={"mini": mini},
             env={"PYTHONPATH": os.path.join(source, "src"), "MSWEA_SILENT_STARTUP": "1",
                  "MSWEA_GLOBAL_CONFIG_DIR": t.at("mini")})
    solved(p, "main/%(n)d step %(n)d")
    steps = re.findall(r"(?m)^(\d) (.*)", p.stdout)
    assert [n for n, _ in steps] == list("12345"), p.stdout
    assert all(s.startswith(a) for (_, s), a in zip(steps, ACTIONS, strict=True)), steps


EXAMPLE = os.path.join(ply.SOURCE, "env", "examples", "mini-swe-agent")
BESIDE = """
import json, sys
from minisweagent.environments.local import LocalEnvironment
from plyfs_mini import PlyfsEnvironment
url, beside, steps = json.load(sys.stdin)
envs = LocalEnvironment(cwd=beside, timeout=5), PlyfsEnvironment(url=url, timeout=5)
keys = ("output", "returncode", "exception_info")
print(json.dumps([[{**{k: r[k] for k in keys}, "type": r.get("extra", {}).get("exception_type")}
                   for r in (e.execute({"command": c}) for e in envs)] for c in steps]))
"""
STEPS = [
    "echo a; echo b >&2; echo c", "exit 7", "kill -9 $$", "", "echo 'unterminated", "tty", "cat",
    "cat <<'EOF' >f\n$one\n\ttab\nEOF\ncat f; pwd | sed 's|.*/||'", "ls -l f | cut -c1-10; rm f",
    "printf 'a\\r\\nb\\rc\\n\\r'", "printf 'no newline'", "printf '\\n\\n x \\n\\n'", "seq 300000",
    "echo part; sleep 60", "trap '' TERM INT HUP; sleep 60", "sleep 60 >/dev/null 2>&1 & echo on",
    "cd / && pwd", "pwd | sed 's|.*/||'", "bash -c 'ulimit -a'", "grep Sig[BIC] /proc/self/status",
]


def test_a_step_of_mini_swe_agent_is_what_it_is_in_its_own_environment(t):
    source = server.sdist("mini-swe-agent", MINI, PYTHON)
    if not source:
        ply.skip("no source archive of mini-swe-agent")
    view = t.view()
    s = server.serve(t, view)
    beside = t.at("beside", os.path.basename(view.path))
    os.makedirs(beside)
    env = dict(s.env, PYTHONPATH=os.path.join(source, "src") + ":" + EXAMPLE, PLYFS_TOKEN=s.token,
               MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=t.at("mini"))
    p = t.run([PYTHON, "-c", BESIDE], input=json.dumps([s.url, beside, STEPS]), env=env, timeout=100)
    results = json.loads(p.stdout)
    for step, (its, ours) in zip(STEPS, results, strict=True):
        assert ours == its, (step, its, ours)


REFUSED = """
import json, os, signal, sys
from minisweagent.environments.local import LocalEnvironment
from plyfs_mini import PlyfsEnvironment
url, beside, pid = json.load(sys.stdin)
envs = LocalEnvironment(cwd=beside, timeout=5), PlyfsEnvironment(url=url, timeout=5)
def step(env, **kw):
    r = env.execute({"command": "echo here"}, **kw)
    return {**{k: r[k] for k in ("output", "returncode")}, "told": r["exception_info"][:18]}
print(json.dumps([[step(e, cwd="/nowhere") for e in envs], [step(e) for e in envs],
                  [os.kill(pid, signal.SIGKILL), step(envs[1])]]))
"""


def test_what_the_server_refuses_ends_no_run_of_mini_swe_agent(t):
    source = server.sdist("mini-swe-agent", MINI, PYTHON)
    if not source:
        ply.skip("no source archive of mini-swe-agent")
    s = server.serve(t, t.view())
    env = dict(s.env, PYTHONPATH=os.path.join(source, "src") + ":" + EXAMPLE, PLYFS_TOKEN=s.token,
               MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=t.at("mini"))
    p = t.run([PYTHON, "-c", REFUSED], input=json.dumps([s.url, t.at(), s.process.pid]), env=env,
              timeout=100)
    (its, ours), (fine, too), (_, gone) = json.loads(p.stdout)
    assert its == ours == gone == {"output": "", "returncode": -1, "told": "An error occurred "}, p.stdout
    assert fine == too == {"output": "here\n", "returncode": 0, "told": ""}, p.stdout


def test_swe_agent_solves_a_bug_with_a_checkpoint_per_step(t):
    checkout = os.environ.get("PLYFS_TEST_SWEAGENT")
    if not checkout:
        ply.skip("PyPI's sweagent is a placeholder; PLYFS_TEST_SWEAGENT may name a checkout")
    own = os.path.join(checkout, ".venv", "bin", "sweagent")
    if not os.path.exists(own):
        ply.skip("no .venv/bin/sweagent in " + checkout)
    p = demo(t, "swe-agent", checkout, env={},
             program={"sweagent": "#!/bin/sh\nexec %s \"$@\"\n" % shlex.quote(own)})
    snapshots = solved(p, "step %(n)d")
    steps = re.findall(r"(?m)^([0-9a-f]{12}) ([a-z].*)", p.stdout)
    assert [snap for snap, _ in steps] == snapshots[1:], p.stdout
    assert all(s.startswith(a) for (_, s), a in zip(steps, [*ACTIONS, "submit"], strict=True)), steps


ply.main(__name__)
