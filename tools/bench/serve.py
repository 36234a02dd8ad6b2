# SPDX-License-Identifier: Apache-2.0
"""
bench serve: the SWE-ReX protocol as `plyfs serve` on a view, our swerex-remote and the reference
(the server of the package swe-rex) serve it, side by side in one run: the same requests from the
same client, the servers in turn.
"""
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile

from rivals import undisturbed
from snapshot import HERE, Plyfs, find_plyfs, human, make_tree, percentile, say

REFERENCE = "swe-rex==1.4.0"
TOKEN = "bench"
CLIENTS = 64
OUTPUT = 20_000_000
# The reference is asked so many times less often: most of its calls take 0.1 s and more.
SLOWER = 25
# The medians that are wanted on the machines this was made on (microseconds), and the throughput
# of all clients as a multiple of the reference's; shown beside what was measured.
WANTED = {"command": 1500, "create": 15000, "interrupt": 20000, "execute": 3000, "output": 1e6}
WANTED_TIMES = 50

TITLES = [
    ("alive", "GET /is_alive"),
    ("command", "session command (echo)"),
    ("anew", "  on a new connection"),
    ("create", "create session"),
    ("close", "close session"),
    ("interrupt", "interrupt (of a sleep)"),
    ("execute", "execute (echo)"),
    ("write", "write 1 MB"),
    ("read", "read 1 MB"),
    ("upload", "upload 10 MB (as zip)"),
    ("output", "20 MB of output"),
]


class Failed(Exception):
    pass


# ---- the servers ----


class Server:
    """One that runs, of ours or not."""

    def __init__(self, name, title, ours):
        self.name, self.title, self.ours, self.process = name, title, ours, None

    def start(self, argv, cwd, env, port=0):
        self.cwd = cwd
        self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL if port else subprocess.PIPE,
                                        stderr=subprocess.DEVNULL if port else None, text=True)
        self.port = port or self.said_port()
        self.wait_alive()

    def said_port(self):
        line = self.process.stdout.readline()  # "listening at ..."
        words = line.replace(",", " ").replace(":", " ").split()
        numbers = [w for w in words if w.isdigit()]
        if not numbers:
            raise Failed("%s does not start" % self.title)
        return int(numbers[0])

    def wait_alive(self):
        ask = urllib.request.Request("http://127.0.0.1:%d/is_alive" % self.port,
                                     headers={"X-API-Key": TOKEN})
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(ask, timeout=5) as answer:
                    answer.read()
                return
            except OSError as e:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise Failed("%s does not start: %s" % (self.title, e))
                time.sleep(0.05)

    def stop(self, kill=False):
        if not self.process or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_script(path):
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def find_reference():
    """One on PATH; ours, which may be there under the same name, is no script."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, "swerex-remote")
        if os.access(path, os.X_OK) and is_script(path):
            return path
    return None


def make_reference(where):
    path = os.path.join(where, "bin", "swerex-remote")
    if os.path.exists(path):
        return path
    for argv in ([sys.executable, "-m", "venv", where],
                 [os.path.join(where, "bin", "pip"), "install", "--quiet",
                  "--disable-pip-version-check", REFERENCE]):
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if p.returncode:
            raise Failed("%s: %s" % (" ".join(argv), p.stdout.strip()[-300:]))
    return path


def find_ours():
    beside = os.path.join(os.path.dirname(find_plyfs()), "swerex-remote")
    return beside if os.access(beside, os.X_OK) else None


# ---- the requests ----


class Requests:
    """Files for the client `load`, as they go over the wire; their heads are those that the real
    client sends."""

    def __init__(self, where):
        self.where, self.n = where, 0

    def add(self, name, method, path, body=b"", status=200, text="", fresh=False,
            kind="application/json"):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = ["%s %s HTTP/1.1" % (method, path), "Host: 127.0.0.1", "X-API-Key: " + TOKEN]
        if method == "POST" and path != "/upload":
            head.append("X-Request-ID: @@REQUEST-ID@@@@")
        head += ["Accept: */*", "Accept-Encoding: gzip, deflate", "User-Agent: plyfs-bench"]
        if method == "POST":
            head += ["Content-Length: %d" % len(body), "Content-Type: " + kind]
        self.n += 1
        file = os.path.join(self.where, "%03d-%s" % (self.n, name))
        with open(file, "wb") as f:
            f.write(("%s %d%s\n%s\n" % (name, status, " fresh" if fresh else "", text)).encode())
            f.write("\r\n".join(head + ["", ""]).encode() + body)
        return file

    def session(self, name, command, session="s@@CLIENT@@", timeout=60.0, **kw):
        return self.add(name, "POST", "/run_in_session", {
            "command": command, "session": session, "timeout": timeout, "check": "raise",
            "is_interactive_command": False, "is_interactive_quit": False, "error_msg": "",
            "expect": [], "action_type": "bash"}, **kw)

    def create(self, name, session):
        return self.add(name, "POST", "/create_session", {
            "startup_source": [], "session": session, "session_type": "bash",
            "startup_timeout": 30.0})

    def interrupt(self, name, session="s@@CLIENT@@"):
        return self.add(name, "POST", "/run_in_session", {
            "session": session, "timeout": 0.2, "n_retry": 3, "expect": [],
            "action_type": "bash_interrupt"})

    def execute(self, name, command, **kw):
        return self.add(name, "POST", "/execute", {
            "command": command, "timeout": 60.0, "shell": True, "check": True, "error_msg": "",
            "env": None, "cwd": None, "merge_output_streams": False}, **kw)

    def write(self, name, path, content):
        return self.add(name, "POST", "/write_file", {"content": content, "path": path})

    def read(self, name, path, **kw):
        return self.add(name, "POST", "/read_file",
                        {"path": path, "encoding": None, "errors": None}, **kw)

    def upload(self, name, archive, target):
        line = b"--" + b"0" * 32
        part = b"\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n"
        body = line + b"\r\nContent-Type: application/zip\r\nContent-Disposition: form-data; " \
            b"name=\"file\"; filename=\"zipped_transfer.zip\"\r\n\r\n" + archive + b"\r\n" + \
            line + part % (b"target_path", target.encode()) + line + part % (b"unzip", b"true") + \
            line + b"--\r\n"
        return self.add(name, "POST", "/upload", body,
                        kind="multipart/form-data; boundary=" + "0" * 32)


def text_of(size):
    """Lines as in source code."""
    rng = random.Random(size)
    words = [rng.randbytes(rng.randrange(1, 6)).hex() for _ in range(500)]
    lines, total = [], 0
    while total < size:
        line = " " * rng.randrange(0, 12) + " ".join(rng.choices(words, k=8))
        lines.append(line)
        total += len(line) + 1
    return "\n".join(lines)[:size - 1] + "\n"


def archive():
    """A directory of 10 MB, packed as Python packs one (which is what the real client does)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as z:
        content = text_of(10_000_000)
        for i in range(500):
            z.writestr("d%02d/f%03d.txt" % (i // 20, i), content[i * 20000:(i + 1) * 20000])
    return packed.getvalue()


# ---- measuring ----


class Bench:
    def __init__(self, base, quick):
        self.base, self.quick = base, quick
        self.servers, self.rows = [], []
        self.requests = {}

    def load(self, server, files, clients=1, rounds=0, seconds=0, limit=120):
        """[(name, ns, bytes)] of a run of the client, and its processor time."""
        p = subprocess.run([os.path.join(HERE, "load"), str(server.port), str(clients),
                            str(rounds), str(seconds), str(limit), *files],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise Failed("%s: %s" % (server.title, p.stderr.strip()))
        laps = [(name, int(ns), int(size)) for name, ns, size in
                (line.split() for line in p.stdout.splitlines())]
        return laps[:-1], laps[-1][1]

    def add(self, server, what, ns, **more):
        row = {"server": server.name, "what": what, **more}
        if ns:
            row.update(n=len(ns), p50_us=round(percentile(ns, 50) / 1e3, 1),
                       p99_us=round(percentile(ns, 99) / 1e3, 1), min_us=round(min(ns) / 1e3, 1))
        self.rows.append(row)

    def get(self, server, what):
        return next((r for r in self.rows if r["server"] == server.name and r["what"] == what),
                    None)

    def prepare(self, zipped):
        """The requests of each server: those with paths have its own directory in them."""
        for s in self.servers:
            where = os.path.join(self.base, "requests-" + s.name)
            os.mkdir(where)
            q = Requests(where)
            text, at = text_of(1_000_000), s.cwd
            self.requests[s.name] = {
                "session": [q.create("-", "s@@CLIENT@@"),
                            q.write("-", at + "/file@@CLIENT@@", text[:4000])],
                "file": [q.write("-", at + "/megabyte", text)],
                "alive": [q.add("alive", "GET", "/is_alive", text="true")],
                "command": [q.session("command", "echo hello", text="hello")],
                "anew": [q.session("anew", "echo hello", text="hello", fresh=True)],
                "create": [q.create("create", "another"),
                           q.add("close", "POST", "/close_session",
                                 {"session": "another", "session_type": "bash"})],
                # The reference does one request at a time, so that the sleep has to be one whose
                # client was told of a timeout: it goes on, in front of the shell.
                "interrupt": [q.session("-", "sleep 600", timeout=0.3, status=511,
                                        text="CommandTimeoutError"),
                              q.interrupt("interrupt")],
                "execute": [q.execute("execute", "echo hello", text="hello")],
                # New files: ext4 waits for the disk when one that was truncated is closed.
                "write": [q.write("write", at + "/@@REQUEST-ID@@@@", text)],
                "read": [q.read("read", at + "/megabyte", text="content")],
                "upload": [q.upload("upload", zipped, at + "/@@REQUEST-ID@@@@")],
                "output": [q.session("output", "yes '%s' | head -c %d; echo the end" % (
                    "0123456789" * 7, OUTPUT), timeout=None, text="the end")],
                # A client among many: what an agent does between two thoughts.
                "mixed": [q.session("mixed", "echo hello", text="hello"),
                          q.session("mixed", "cd /usr && ls | wc -l; cd - >/dev/null"),
                          q.write("mixed", at + "/file@@CLIENT@@", text[:4000]),
                          q.session("mixed", "wc -l <<'EOF'\na\nb\nEOF", text="2"),
                          q.read("mixed", at + "/file@@CLIENT@@", text="content"),
                          q.session("mixed", "test -n \"$HOME\"\nX=$((X + 1))"),
                          q.execute("mixed", "echo hello", text="hello")],
            }

    # Everything but `output`: how often in a batch, for a server of ours.
    TIMES = [("alive", 300), ("command", 100), ("anew", 100), ("create", 10), ("interrupt", 5),
             ("execute", 100), ("write", 10), ("read", 10), ("upload", 1)]

    def latencies(self):
        batches = 1 if self.quick else 10
        for what, times in self.TIMES:
            found = {}
            for batch in range(-1, batches):
                # Each is first, second, ... as often as the others.
                for i in range(len(self.servers)):
                    s = self.servers[(i + batch) % len(self.servers)]
                    n = max(1, times // (1 if s.ours else SLOWER) // (2 if self.quick else 1))
                    laps, _ = self.load(s, self.requests[s.name][what],
                                        rounds=1 if batch < 0 else n)
                    for name, ns, _ in laps if batch >= 0 else []:
                        found.setdefault((name, s), []).append(ns)
            for (name, s), ns in found.items():
                if name != "-":
                    self.add(s, name, ns)
            say("  %s: done" % what)

    def output(self):
        """The last one for the reference, which does not come back from it."""
        for s in self.servers:
            limit = 3 if self.quick and not s.ours else 60
            found = []
            for _ in range(2 if self.quick or not s.ours else 6):
                laps, _ = self.load(s, self.requests[s.name]["output"], rounds=1, limit=limit)
                _, ns, size = laps[0]
                if not size:
                    self.add(s, "output", None, unfinished_s=limit)
                    s.stop(kill=True)
                    break
                if size < OUTPUT:
                    raise Failed("%s: %d bytes of output instead of %d" % (s.title, size, OUTPUT))
                found.append(ns)
            else:
                self.add(s, "output", found[1:] or found)
        say("  output: done")

    def many(self):
        """All clients at once, each with a session; the servers in turn, then the other way."""
        clients = 8 if self.quick else CLIENTS
        turns = [list(self.servers)] if self.quick else [list(self.servers),
                                                         list(reversed(self.servers))]
        found = {s: [] for s in self.servers}
        seconds, cpu = {}, {}
        for s in self.servers:
            self.load(s, self.requests[s.name]["session"], clients=clients, rounds=1)
        for turn in turns:
            for s in turn:
                # The reference needs longer for as much of each call as makes a figure.
                window = (1 if self.quick else 10) * (1 if s.ours else 3)
                self.load(s, self.requests[s.name]["mixed"], clients=clients, seconds=1)
                laps, used = self.load(s, self.requests[s.name]["mixed"], clients=clients,
                                       seconds=window)
                found[s] += [ns for _, ns, _ in laps]
                seconds[s] = seconds.get(s, 0) + window
                cpu[s] = cpu.get(s, 0) + used
        for s, ns in found.items():
            self.add(s, "many", ns, clients=clients, seconds=seconds[s],
                     per_second=round(len(ns) / seconds[s], 1),
                     client_cpu=round(cpu[s] / 1e9 / seconds[s], 3))
        say("  %d clients: done" % clients)


# ---- words ----


def cell(row):
    if not row:
        return "-"
    if "unfinished_s" in row:
        return "not in %d s" % row["unfinished_s"]
    return "%s (%s)" % (human(row["p50_us"]), human(row["p99_us"]))


def times(theirs, ours):
    if not theirs or not ours:
        return "-"
    if "unfinished_s" in theirs:
        return "> %.0f" % (theirs["unfinished_s"] * 1e6 / ours["p50_us"])
    return "%.1f" % (theirs["p50_us"] / ours["p50_us"])


def report(b, notes):
    ours = [s for s in b.servers if s.ours]
    reference = next((s for s in b.servers if not s.ours), None)
    print("\np50 (p99). One client, in C, on one connection to 127.0.0.1 that is kept alive; the "
          "servers in\nturn, after a warm-up each. What the client costs is within the first line.")
    print("%-26s" % "" + "".join("%21s" % s.title for s in b.servers) +
          ("%9s" % "times" if reference else ""))
    for what, title in TITLES:
        line = "%-26s" % title + "".join("%21s" % cell(b.get(s, what)) for s in b.servers)
        if reference:
            line += "%9s" % times(b.get(reference, what), b.get(ours[0], what))
        print(line)
    many = {s: b.get(s, "many") for s in b.servers}
    first = many[ours[0]]
    print("\n%d clients at once, each with a session: of 7 calls 4 are session commands, one each "
          "of\nexecute, read and write (4 kB)" % first["clients"])
    rates = {s: many[s]["per_second"] for s in b.servers}
    print("%-26s" % "requests a second" + "".join("%21s" % rates[s] for s in b.servers) +
          ("%9.1f" % (rates[ours[0]] / max(rates[reference], 0.1)) if reference else ""))
    print("%-26s" % "each" + "".join("%21s" % cell(many[s]) for s in b.servers))
    print("%-26s" % "processors, the client's" + "".join(
        "%21.2f" % many[s]["client_cpu"] for s in b.servers))
    for note in notes:
        print(note)

    print("\nwhat is wanted, what was measured: the slower of ours, p50")
    for what, limit in WANTED.items():
        got = max(b.get(s, what).get("p50_us", 1e12) for s in ours)
        print("  %-45s %10s   at most %-8s %s" % (dict(TITLES)[what], human(got), human(limit),
                                                 "" if got <= limit else "MISSED"))
    if reference:
        got = min(rates[s] for s in ours) / max(rates[reference], 0.1)
        print("  %-45s %10.1f   at least %-7d %s" % (
            "%d clients, times the reference's throughput" % first["clients"], got, WANTED_TIMES,
            "" if got >= WANTED_TIMES else "MISSED"))


def servers_of(b, plyfs, reference):
    """Starts them; appended to b.servers at once, so that whatever happens they are stopped."""
    runtime = os.path.join(b.base, "run")
    os.mkdir(runtime, mode=0o700)
    # A home of its own: what a user's startup files do is no server's affair.
    env = dict(os.environ, TERM="dumb", HOME=runtime, XDG_RUNTIME_DIR=runtime)
    options = ["--host", "127.0.0.1", "--auth-token", TOKEN, "--port"]
    source = os.path.join(b.base, "source")
    make_tree(source, 1000)
    plyfs.start(source)

    def add(name, title, argv, cwd, ours=True):
        s, port = Server(name, title, ours), 0 if ours else free_port()
        b.servers.append(s)
        s.start([*argv, *options, str(port)], cwd, env, port)
    add("serve", "plyfs serve", [plyfs.plyfs, "serve", "--in", plyfs.view], plyfs.view)
    for name, title, program in (("swerex", "swerex-remote", find_ours()),
                                 ("reference", "the reference", reference)):
        if program:
            where = os.path.join(b.base, name)
            shutil.copytree(source, where)
            add(name, title, [program], where, ours=name != "reference")


def main(quick=False, reference=None, install_reference=None, dir=None, **options):
    base = tempfile.mkdtemp(prefix="plyfs-bench-", dir=dir or os.environ.get("TMPDIR") or "/tmp")
    b, plyfs = Bench(base, quick), Plyfs(os.path.join(base, "plyfs"))
    notes = []
    os.mkdir(plyfs.where)
    try:
        if install_reference:
            reference = make_reference(os.path.abspath(install_reference))
        reference = reference or find_reference()
        if reference and not os.access(reference, os.X_OK):
            raise Failed("there is no program '%s'" % reference)
        if reference:
            version = subprocess.run([reference, "--version"], stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True).stdout.strip()
            notes.append("the reference: swe-rex %s" % version)
        else:
            notes.append("no reference: python3 -m venv DIR && DIR/bin/pip install %s, and then\n"
                         "--reference DIR/bin/swerex-remote; or --install-reference DIR does both"
                         % REFERENCE)
        servers_of(b, plyfs, reference)
        b.prepare(archive())
        for s in b.servers:
            b.load(s, b.requests[s.name]["session"] + b.requests[s.name]["file"], rounds=1)
        b.latencies()
        for s in b.servers:
            b.load(s, [Requests(base).add("-", "POST", "/close_session", {
                "session": "s0000000000", "session_type": "bash"})], rounds=1)
        b.many()
        b.output()
        if options.get("json"):
            with open("/proc/cpuinfo") as f:
                cpu = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), "")
            print(json.dumps({"kernel": os.uname().release, "cpu": cpu, "cpus": os.cpu_count(),
                              "notes": notes, "rows": b.rows}, indent=1))
        else:
            report(b, notes)
        return 0
    except (Failed, RuntimeError) as e:
        print("bench: %s" % e, file=sys.stderr)
        return 1
    finally:
        with undisturbed():
            for s in b.servers:
                s.stop(kill=not s.ours)
            plyfs.close()
            subprocess.run(["rm", "-rf", "--one-file-system", base])
