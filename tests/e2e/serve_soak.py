#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# group: serve
# timeout: 300
"""
Days' worth of requests of every kind at `plyfs serve` and swerex-remote, from 64 clients that cut
them off, write them slowly, or send what is none (lib/soak.c). After each tenth everybody goes, and
nothing may be left: no descriptor, thread, process, session, sandbox, mount or file; at the end no
more memory is in use than after the first tenth.

    serve_soak.py [REQUESTS] [FACT...]      how many, of each of the two (2000000 takes an hour or two)
"""
import os
import random
import re
import sys
import time
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ply
import server

SOAK = os.path.join(ply.BUILD, "tests", "soak")
REQUESTS = 200000 if ply.LONG else 3000
if len(sys.argv) > 1 and sys.argv[1].isdigit():
    REQUESTS = int(sys.argv.pop(1))
CLIENTS = 64
ROUNDS = 10
SEED = int(os.environ.get("PLYFS_TEST_SEED") or random.randrange(1 << 32))
MAX_BODY = 1 << 20  # soak_env.c knows it, too
IDLE_SECONDS = 75  # http.c

# The allocator's own memory: fragments in its arenas (serve.c says how many). It grows ever more
# slowly; what is lost with each request does not, and is more than this after a while (5 bytes a
# request in two millions).
FRAGMENTS = 2 << 20
ARENAS = 4


def sanitized(program):
    out = ply.run(["ldd", program], check=False).stdout
    return "asan" in out or "tsan" in out


def process_state(pid):
    with open("/proc/%d/status" % pid) as f:
        status = dict(line.split(":", 1) for line in f)
    return {"memory": int(status["RssAnon"].split()[0]) << 10, "threads": int(status["Threads"]),
            "descriptors": len(os.listdir("/proc/%d/fd" % pid))}


class Soak:
    def __init__(self, t, s, directory, protocols, store=None):
        self.t, self.s, self.directory, self.protocols, self.store = t, s, directory, protocols, store
        self.tmp = t.at("tmp")
        self.archive = t.at("archive.zip")
        with zipfile.ZipFile(self.archive, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("zipped/one", "from the archive")
        os.makedirs(directory, exist_ok=True)
        if store:  # from its first checkpoint on the server has the file of their numbers open
            assert self.s.post("/v1/checkpoint").status == 200
        self.mounts = len(ply.mounts_below(t.path))
        self.branches = self.branch_names()
        self.first = self.begin = None
        self.begin = self.state()

    def branch_names(self):
        return sorted(b["name"] for b in self.store.json("tree")["branches"]) if self.store else []

    def metric(self, name):
        text = self.s.get("/v1/metrics").body.decode()
        found = re.search(r"^%s (\d+)$" % name, text, re.M)
        return int(found[1]) if found else 0

    def is_quiet(self):
        return (self.metric("plyfs_connections") == 1 and self.metric("plyfs_sessions") == 0 and
                self.metric("plyfs_sandboxes") == 0 and len(self.s.children()) <= 2)

    def state(self):
        """What is in use when nobody is there."""
        ply.wait_for("quiet; %s" % self.s.children(), self.is_quiet, 90)
        # A connection's thread and descriptor are there a little longer than it counts.
        end = time.monotonic() + 30
        while not self.is_as_before() and time.monotonic() < end:
            time.sleep(0.05)
        found = {"server": process_state(self.s.process.pid)}
        for pid, line in self.s.children():
            if pid != self.s.process.pid:
                found["keeper" if "keeper" in line else line] = process_state(pid)
        if self.store:
            found["daemon"] = process_state(self.store.daemon())
        return found

    def is_as_before(self):
        now = process_state(self.s.process.pid)
        was = self.begin["server"] if self.begin else {"threads": 3, "descriptors": 99}
        return now["threads"] <= was["threads"] and now["descriptors"] <= was["descriptors"]

    def round(self, number, requests):
        words = [SOAK, self.s.port, self.s.token, self.directory, self.archive, self.protocols,
                 SEED + number, requests, CLIENTS]
        p = ply.run(list(map(str, words)), check=False, timeout=7200)
        assert p.returncode == 0 and self.s.process.poll() is None, \
            "seed %d, round %d:\n%s%s\nthe server: %s" % (
                SEED, number, p.stdout[-6000:], p.stderr, self.s.process.poll())
        now = self.state()
        self.first = self.first or now
        print("# %s; %s" % (p.stdout.strip(), ", ".join(
            "%s %.1f MiB %d fds %d threads" % (name, x["memory"] / (1 << 20), x["descriptors"],
                                               x["threads"]) for name, x in now.items())))
        assert now.keys() == self.begin.keys(), now.keys()
        for name, x in now.items():
            # The daemon opens packs as there are more of them; the server and the keeper nothing.
            if name != "daemon":
                was = self.begin[name]
                assert x["descriptors"] <= was["descriptors"] and x["threads"] <= was["threads"], \
                    "%s: was %s, is %s" % (name, was, x)
                # The first look may have met a connection that was going: each round is held to
                # the fewest seen.
                self.begin[name] = x
        assert os.listdir(self.tmp) == [], os.listdir(self.tmp)
        assert len(ply.mounts_below(self.t.path)) == self.mounts, ply.mounts_below(self.t.path)
        assert self.branch_names() == self.branches, self.branch_names()
        return now

    def run(self):
        print("# seed %d" % SEED)
        for number in range(ROUNDS):
            last = self.round(number, max(REQUESTS // ROUNDS, 1))
        for name in last:
            if name != "daemon" and not sanitized("/proc/%d/exe" % self.s.process.pid):
                more = last[name]["memory"] - self.first[name]["memory"]
                assert more <= FRAGMENTS * ARENAS, "%s: %d more bytes" % (name, more)
        self.s.stop(60)
        ply.wait_for("the end of what it started", lambda: not self.s.children())


def start(t, which, *options, **kw):
    os.mkdir(t.at("tmp"))
    return which(t, *options, env={"TMPDIR": t.at("tmp")}, **kw)


def test_swerex_remote(t):
    s = start(t, server.rex)
    Soak(t, s, t.at("files"), "rex").run()


def test_plyfs_serve(t):
    view = t.view({"a.txt": "one\n"})
    s = start(t, server.serve, view, "--cloud", "--max-body", str(MAX_BODY))
    Soak(t, s, os.path.join(view.path, "files"), "all", view.store).run()


def test_who_says_nothing_is_closed(t):
    """Half a request, and then nothing, from more clients than most servers have."""
    if not ply.LONG:
        ply.skip("takes longer than the %d s that such a client has" % IDLE_SECONDS)
    s = start(t, server.rex)
    heads = [b"", b"GET /is_al", b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Le",
             b"POST /execute HTTP/1.1\r\nHost: x\r\nX-API-Key: a token\r\nContent-Length: 90\r\n\r\n{\"co"]
    silent = []
    for i in range(500):
        c = s.connection(200)
        c.connect()
        c.sock.sendall(heads[i % len(heads)])
        silent.append(c)
    assert s.get("/is_alive").status == 200
    began = time.monotonic()
    for c in silent:
        while c.sock.recv(4096):  # perhaps it is told why
            pass
        assert s.get("/is_alive").status == 200
    print("# closed after %.0f s" % (time.monotonic() - began))
    s.stop()


if __name__ == "__main__":
    ply.main(__name__)
