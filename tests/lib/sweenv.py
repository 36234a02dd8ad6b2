# SPDX-License-Identifier: Apache-2.0
"""
What the tests of SWEEnv share: a script of calls, servers to make them on, each with the machine's
files under it and nothing that it writes getting there, and running the script in SWE-agent's own
class, or in a stand-in that makes the same requests (real_swe.py).
"""
import json
import os
import socket
import subprocess
import sys

import ply

# Root, files and processes of its own: an overlay whose upper layer is in memory, a PID namespace
# that ends with whoever made it.
CAGE = """set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
cage=$1
shift
exec chroot "$cage/root" "$@"
"""

CALLS = [
    ["start", [], {}],
    ["communicate", ["pwd; echo $ROOT"], {}],
    ["communicate", ["echo $LANG $LC_ALL $PIP_PROGRESS_BAR $PAGER $STARTED"], {}],
    ["communicate", ["echo out; echo err >&2; false"], {}],
    ["communicate", ["false"], {"check": "warn"}],
    ["communicate", ["printf '\\n  x \\n\\n'"], {}],
    ["communicate", ["a=1\nb=2\n\necho $a$b"], {"check": "raise"}],
    ["communicate", ["cat <<'EOF'\nquoted $a\nEOF"], {}],
    ["communicate", ["cat <<EOF\nplain $a\nEOF"], {}],
    ["communicate", ["[[ x == x ]] && echo yes"], {}],
    ["communicate", ["for i in 1 2 3; do\n  echo $i\ndone"], {}],
    ["communicate", ["f() {\n  echo f $1\n}"], {}],
    ["communicate", ["f 5; cd src; pwd"], {}],
    ["communicate", ["# a comment"], {}],
    ["communicate", [""], {}],
    ["communicate", ["seq 1 2000"], {}],
    ["communicate", ["printf 'a\\tb\\033[31mred\\033[0m\\n'"], {}],
    ["communicate", ["(a"], {"check": "raise"}],
    ["communicate", ["echo 'it'\"'\"'s'"], {}],
    ["communicate", ["nosuchcommand"], {}],
    ["communicate", ["ls -1A .."], {}],
    ["communicate", ["git status --porcelain; git log --format=%s; git branch"], {}],
    ["communicate", ["stat -c '%a %U:%G %n' ../run.sh; cat ../link"], {}],
    ["set_env_variables", [{"X": "two words", "Y": "it's"}], {}],
    ["set_env_variables", [{}], {}],
    ["communicate", ["echo \"$X\" \"$Y\"; sh -c 'echo $X'"], {}],
    ["write_file", ["/lrepo/new/f.txt", "text\nsecond"], {}],
    ["read_file", ["/lrepo/new/f.txt"], {}],
    ["read_file", ["/lrepo/calc.py"], {}],
    ["read_file", ["/lrepo/nope"], {}],
    ["read_file", ["/lrepo/src"], {}],
    ["communicate", ["cat $ROOT/new/f.txt"], {}],
    ["execute_command", ["true"], {}],
    ["execute_command", ["exit 3"], {}],
    ["execute_command", ["exit 3"], {"check": True}],
    ["execute_command", ["test \"$V\" = 1 && test -f calc.py"],
     {"check": True, "env": {"V": "1"}, "cwd": "/lrepo"}],
    ["execute_command", ["pwd"], {"cwd": "/lrepo/nope"}],
    ["communicate", ["sleep 20"], {"timeout": 0.5}],
    ["interrupt_session", [], {}],
    ["communicate", ["echo after"], {}],
    ["communicate", ["cd ..; echo changed >calc.py; echo u >untracked; git rm -q src/a.txt"], {}],
    ["communicate", ["export KEPT=1"], {}],
    ["reset", [], {}],
    ["communicate", ["pwd; echo $ROOT $KEPT $X"], {}],
    ["communicate", ["git status --porcelain; cat calc.py src/a.txt; ls"], {}],
    ["communicate", ["git rev-parse HEAD"], {}],
    ["communicate", ["true\nfalse 'a'"], {"check": "raise", "error_msg": "no luck"}],
]


class Recorder:
    """A hook of a SWEEnv, SWE-agent's or ours: which of its methods were called."""

    def __init__(self):
        self.seen = []

    def on_init(self, *, env):
        self.seen.append("init")

    def on_start_deployment(self):
        self.seen.append("start_deployment")

    def on_copy_repo_started(self, repo):
        self.seen.append("copy_repo")

    def on_install_env_started(self):
        self.seen.append("install_env")

    def on_environment_startup(self):
        self.seen.append("environment_startup")

    def on_close(self):
        self.seen.append("close")


def repository(t):
    """The same to the commit's id each time."""
    top = t.tree({"calc.py": "x = 1\n", "src/a.txt": "one\n", ".gitignore": "*.o\n",
                  "run.sh": "#!/bin/sh\n"}, "lrepo")
    os.chmod(os.path.join(top, "run.sh"), 0o755)
    os.symlink("src/a.txt", os.path.join(top, "link"))
    t.sh("cd %s && git init -q -b main && git add -A && git commit -qm first" % top, env=dict(
        t.env, GIT_AUTHOR_DATE="2020-01-01T00:00:00Z", GIT_COMMITTER_DATE="2020-01-01T00:00:00Z"))
    return top


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def caged(t, name, argv, env=None):
    """Runs a server there until the test ends; "PORT" in argv is a free port. That port."""
    ply.need_root()
    where, number = t.at("cage-" + name), free_port()
    os.mkdir(where)
    cage = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CAGE, "cage", where]
    p = t.run([*cage, "true"], check=False)
    if p.returncode:
        ply.skip("no overlay or namespaces here: " + p.stderr.strip())
    log = open(t.at(name + ".log"), "w+")
    server = subprocess.Popen(
        [*cage, *(word.replace("PORT", str(number)) for word in argv)],
        env=dict(t.env, TERM="dumb", HOME="/root", **(env or {})), stdin=subprocess.DEVNULL,
        stdout=log, stderr=log)
    t.clean.append(lambda: (server.kill(), server.wait()))

    def listens():
        assert server.poll() is None, ply.read(log.name)[-2000:]
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", number)) == 0
    ply.wait_for("the server " + name, listens, 60)
    return number


def reference(t, python=sys.executable):
    """swe-rex's own server."""
    return caged(t, "reference", [python, "-m", "swerex.server", "--host", "127.0.0.1",
                                  "--port", "PORT", "--auth-token", "t"])


def run(t, calls, config, checkout=None, python=sys.executable):
    """The script over SWE-agent's class of that checkout, or over the stand-in: [kind, result or
    message] for each call; the hooks that were called."""
    env = dict(t.env, SWE_AGENT_LOG_STREAM_LEVEL="CRITICAL", SWE_REX_LOG_STREAM_LEVEL="CRITICAL")
    if checkout:
        env["PYTHONPATH"] = checkout
    p = t.run([python, os.path.join(ply.SOURCE, "tests", "lib", "real_swe.py")], env=env,
              input=json.dumps({"calls": calls, "config": config}), timeout=200)
    answer = json.loads(p.stdout)
    return answer["results"], answer["hooks"]
