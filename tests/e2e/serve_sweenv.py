#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 300
"""
SWE-agent's SWEEnv over the installed swerex-remote and over the installed `plyfs serve` on a view, beside
the same calls over swe-rex's own server (PyPI): start, reset, hard_reset, communicate, interrupt,
files, close, on a git repository. PyPI has no SWE-agent that can be used: without PLYFS_TEST_SWEAGENT, a
checkout of it, a stand-in makes its requests by swe-rex's client (tests/lib/real_swe.py); with it,
that the stand-in makes the same ones is tested as well.
"""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import installed
import ply
import plypy
import server
import smallroot
import sweenv
import venv

PYTHON = venv.python()
plypy.need_plain_build()

CHECKOUT = os.environ.get("PLYFS_TEST_SWEAGENT")
# Store, view and server are all in the cage, and the repository lies where SWEEnv looks for it.
ON_A_VIEW = """set -e
export XDG_RUNTIME_DIR=/run PLYFS_STORE=/run/store
mkdir /lrepo
plyfs init /run/store
plyfs import "$1"
plyfs mount --at /lrepo
exec plyfs serve --in /lrepo --port "$2" --auth-token t
"""
# Ends and new beginnings, with what each is to give. swe-rex's own server keeps the session's name
# when it is closed, so that hard_reset fails there.
ENDS = [
    ("start", [], {}, ["ok", None]),
    ("communicate", ["export GONE=1; echo u >untracked; echo changed >calc.py"], {}, ["ok", ""]),
    ("hard_reset", [], {}, ["ok", None]),
    ("communicate", ["echo [$GONE] $STARTED; pwd; git status --porcelain; cat calc.py"], {},
     ["ok", "[] 1\n/lrepo\nx = 1\n"]),
    ("communicate", ["sleep 100"], {"timeout": 0.5}, ["CommandTimeoutError", "timeout after 0.5"]),
    ("interrupt_session", [], {}, ["ok", None]),
    ("communicate", ["exit 3"], {}, ["EOF", "End Of File"]),
    ("communicate", ["echo dead"], {}, ["EOF", "End Of File"]),
    ("hard_reset", [], {}, ["ok", None]),
    ("communicate", ["echo alive"], {}, ["ok", "alive\n"]),
    ("communicate", ["false"], {"check": "raise", "error_msg": "ends it"},
     ["RuntimeError", "Command 'false' failed (r.exit_code=1): ends it"]),
    ("communicate", ["echo ended"], {}, ["DeploymentNotStartedError", "Deployment not started"]),
    ("start", [], {}, ["ok", None]),
    ("communicate", ["echo again"], {}, ["ok", "again\n"]),
    ("close", [], {}, ["ok", None]),
    ("close", [], {}, ["DeploymentNotStartedError", "Deployment not started"]),
    ("read_file", ["/lrepo/calc.py"], {}, ["DeploymentNotStartedError", "Deployment not started"]),
]
PREPARED = {"type": "preexisting", "repo_name": "lrepo"}


def config(t, port, repo=None):
    return {"repo": repo or {"type": "local", "path": t.at("lrepo")},
            "deployment": {"type": "remote", "auth_token": "t", "port": port},
            "post_startup_commands": ["export STARTED=1"]}


def run(t, port, calls, repo=None, checkout=CHECKOUT):
    return sweenv.run(t, calls, config(t, port, repo), checkout, PYTHON)


def swerex_remote(t, i, name="swerex-remote"):
    return sweenv.caged(t, name, [
        os.path.join(i.prefix, "bin", "swerex-remote"), "--host", "127.0.0.1", "--port", "PORT",
        "--auth-token", "t"])


def plyfs_serve(t, i):
    return sweenv.caged(t, "plyfs", ["sh", "-c", ON_A_VIEW, "sh", t.at("lrepo"), "PORT"],
                        {"PATH": i.env["PATH"]})


THEIRS = []  # over swe-rex's own server: once for all tests, it is slow


def compare(t, results, hooks):
    """With the reference's."""
    if not THEIRS:
        THEIRS.extend(run(t, sweenv.reference(t, PYTHON), sweenv.CALLS))
    same(THEIRS[0], results)
    assert THEIRS[1] == hooks, (THEIRS[1], hooks)


def same(theirs, ours):
    wrong = []
    before = None
    for call, x, y in zip(sweenv.CALLS, theirs, ours, strict=True):
        # After an interrupt the reference may leave a piece of "^C".
        late = before == "interrupt_session" and x[0] == y[0] == "ok" and x[1].endswith(y[1])
        if x != y and not late:
            wrong.append("%s\n  theirs: %r\n  ours:   %r" % (call, x, y))
        before = call[0]
    assert not wrong, "\n" + "\n".join(wrong)


def check_ends(t, port, repo=None):
    results, hooks = run(t, port, [e[:3] for e in ENDS], repo)
    for (name, args, _, (kind, says)), got in zip(ENDS, results, strict=True):
        same = got == [kind, says] if kind == "ok" else got[0] == kind and got[1].startswith(says)
        assert same, (name, args, got, kind, says)
    assert hooks.count("start_deployment") == 4 and hooks.count("close") == 4, hooks


def test_over_swerex_remote_it_is_what_it_is_over_the_reference(t):
    i = installed.Installed(t)
    sweenv.repository(t)
    port = swerex_remote(t, i)
    compare(t, *run(t, port, sweenv.CALLS))
    check_ends(t, port)


def test_on_a_view_it_is_what_it_is_over_the_reference(t):
    i = installed.Installed(t)
    sweenv.repository(t)
    port = plyfs_serve(t, i)
    compare(t, *run(t, port, sweenv.CALLS, PREPARED))
    check_ends(t, port, PREPARED)


def test_in_a_container_whose_root_is_a_view(t):
    i = installed.Installed(t)
    sweenv.repository(t)
    smallroot.small_root(t.at("root"), ["git"])
    ply.write(t.at("root", "etc", "group"), "root:x:0:\n")
    if os.path.isdir("/usr/lib/locale/C.utf8"):
        shutil.copytree("/usr/lib/locale/C.utf8", t.at("root", "usr", "lib", "locale", "C.utf8"))
    env = dict(i.env, PLYFS_STORE=t.at("store"), XDG_STATE_HOME=t.at("state"))
    plyfs = os.path.join(i.prefix, "bin", "plyfs")
    t.run([plyfs, "init", t.at("store")], env=env)
    t.run([plyfs, "import", t.at("root")], env=env)
    made = t.run([plyfs, "env", "create", "--kind", "container", "--root", "1", "--store",
                  t.at("store"), "--from", "main", "box"], check=False, env=env)
    if made.returncode and "no container can run" in made.stderr:
        ply.skip(made.stderr.strip())
    assert made.returncode == 0, made
    t.clean.append(lambda: t.run([plyfs, "env", "destroy", "--force", "box"], env=env))
    where = made.stdout.strip()
    s = server.Server(t, [plyfs, "serve", "--in", where], token="t")
    compare(t, *run(t, s.port, sweenv.CALLS))
    check_ends(t, s.port)
    # All of it was in the view.
    assert ply.read(os.path.join(where, "lrepo/calc.py")) == "x = 1\n" and \
        not os.path.exists("/lrepo")
    s.stop()


def test_the_stand_in_makes_the_calls_of_swe_agents_own_class(t):
    if not CHECKOUT:
        ply.skip("PyPI's sweagent is a placeholder; PLYFS_TEST_SWEAGENT may name a checkout")
    i = installed.Installed(t)
    sweenv.repository(t)
    real = run(t, swerex_remote(t, i), sweenv.CALLS)
    stand_in = run(t, swerex_remote(t, i, "again"), sweenv.CALLS, checkout=None)
    same(real[0], stand_in[0])
    assert real[1] == stand_in[1], (real[1], stand_in[1])


ply.main(__name__)
