# SPDX-License-Identifier: Apache-2.0
"""
bench scale: how much a daemon takes, and whether mounting costs more where there is more.

    idle      one empty view that nobody uses
    million   a tree of a million small files: mounting it, with and without a daemon there,
              walking it with a stat of each file, and what the daemon keeps for each
    views     256 forks of one state, each mounted, in one daemon

Each part has a store and a daemon of its own. Memory is what the daemon holds privately (its page
cache is the kernel's, and pages of the programs are shared with others).
"""
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

from snapshot import Plyfs, say

HERE = os.path.dirname(os.path.realpath(__file__))
# What is wanted on the machines this was made on.
WANTED = {"idle MiB": 30, "mount ms": 100, "bytes per file": 400}
PER_DIR = 100
# A daemon gives memory back and ends its spare threads a second after it was used.
REST_S = 2.5


def private_bytes(p):
    m = p.memory()
    return (m["Private_Clean"] + m["Private_Dirty"]) * 1024


def threads(p):
    return len(os.listdir("/proc/%d/task" % p.pid()))


def median(values):
    return sorted(values)[len(values) // 2]


class Scale:
    def __init__(self, base, quick):
        self.base, self.quick, self.rows = base, quick, []

    def add(self, part, what, value, unit, wanted=None):
        self.rows.append({"part": part, "what": what, "value": round(value, 1), "unit": unit,
                          "wanted": wanted, "missed": wanted is not None and value > wanted})

    def place(self, part):
        where = os.path.join(self.base, part)
        os.mkdir(where)
        return Plyfs(where)

    # ---- parts ----

    def idle(self, p):
        empty = os.path.join(p.where, "empty")
        os.mkdir(empty)
        p.start(empty)
        time.sleep(REST_S)
        self.add("idle", "memory, with pages of libraries", p.memory()["Rss"] / 1024, "MiB",
                 WANTED["idle MiB"])
        self.add("idle", "memory of its own", private_bytes(p) / 2**20, "MiB")
        self.add("idle", "threads", threads(p), "")

    @staticmethod
    def import_files(p, count):
        """Files of some bytes, PER_DIR to a directory, as a tar file that is never there."""
        load = subprocess.Popen([p.plyfs, "import", "-"], env=p.env, stdin=subprocess.PIPE,
                                stdout=subprocess.DEVNULL)
        with tarfile.open(fileobj=load.stdin, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(count):
                content = b"%d\n" % i
                info = tarfile.TarInfo("d%03d/s%02d/f%d.txt" % (
                    i // PER_DIR // PER_DIR, i // PER_DIR % PER_DIR, i))
                info.size, info.mtime = len(content), 1700000000
                tar.addfile(info, io.BytesIO(content))
        load.stdin.close()
        if load.wait():
            raise RuntimeError("plyfs import failed")

    @staticmethod
    def mount(p):
        begin = time.perf_counter()
        p.run("mount", "--at", p.view)
        return 1e3 * (time.perf_counter() - begin)

    @staticmethod
    def end_daemon(p):
        """It ends by itself when nobody needs it."""
        end = time.monotonic() + 60
        while os.path.exists(os.path.join(p.env["PLYFS_STORE"], "sock")):
            if time.monotonic() > end:
                raise RuntimeError("the daemon does not end")
            time.sleep(0.05)

    def million(self, p):
        count = 20000 if self.quick else 1000000
        os.mkdir(p.view)
        p.run("init", p.env["PLYFS_STORE"])
        self.import_files(p, count)
        say("  %d files are there" % count)
        cold, warm, beside = [], [], os.path.join(p.where, "beside")
        os.mkdir(beside)
        for i in range(1 if self.quick else 5):
            self.end_daemon(p)
            cold.append(self.mount(p))
            p.run("fork", "beside%d" % i, "--at", beside)
            p.run("unmount", p.view)
            warm.append(self.mount(p))
            p.run("unmount", p.view)
            p.run("unmount", beside)
        self.add("million", "files", count, "")
        self.add("million", "mount, and start of the daemon", median(cold), "ms",
                 WANTED["mount ms"])
        self.add("million", "mount, with a daemon there", median(warm), "ms", WANTED["mount ms"])

        self.end_daemon(p)
        self.mount(p)
        time.sleep(REST_S)
        before = private_bytes(p)
        self.add("million", "walk with stat, first", walk(p), "s")
        time.sleep(REST_S)
        after = private_bytes(p)
        self.add("million", "memory before", before / 2**20, "MiB")
        self.add("million", "memory after", after / 2**20, "MiB")
        self.add("million", "memory for each file visited", (after - before) / count, "bytes",
                 WANTED["bytes per file"])
        self.add("million", "walk with stat, again", walk(p), "s")

    def views(self, p):
        count = 16 if self.quick else 256
        empty = os.path.join(p.where, "small")
        os.mkdir(empty)
        for i in range(100):
            with open(os.path.join(empty, "f%d" % i), "w") as f:
                f.write("%d\n" % i)
        p.start(empty)
        time.sleep(REST_S)
        memory, before = private_bytes(p), threads(p)
        forks = os.path.join(p.where, "forks")
        os.mkdir(forks)
        times = []
        for i in range(count - 1):
            at = os.path.join(forks, str(i))
            os.mkdir(at)
            begin = time.perf_counter()
            p.run("fork", "f%d" % i, "--at", at)
            times.append(1e3 * (time.perf_counter() - begin))
        for i in range(count - 1):
            if len(os.listdir(os.path.join(forks, str(i)))) != 100:
                raise RuntimeError("fork %d is not what it was made of" % i)
        time.sleep(REST_S)
        self.add("views", "views", count, "")
        self.add("views", "fork and mount, as a command", median(times), "ms")
        self.add("views", "memory for each view", (private_bytes(p) - memory) / 1024 / (count - 1),
                 "KiB")
        self.add("views", "threads with one view", before, "")
        self.add("views", "threads with all of them", threads(p), "")


PARTS = ("idle", "million", "views")


def walk(p):
    """Seconds of one walk over the view."""
    done = subprocess.run([os.path.join(HERE, "filework"), "stat", p.view, "1"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return int(done.stdout.split()[1]) / 1e9


def report(rows):
    for r in rows:
        value = "%d" % r["value"] if r["value"] == int(r["value"]) else "%.1f" % r["value"]
        print("%-8s %-32s %10s %-5s %s" % (
            r["part"], r["what"], value, r["unit"],
            "" if r["wanted"] is None else "(at most %g)%s" % (
                r["wanted"], "!" if r["missed"] else "")))


def main(quick=False, only=None, dir=None, **options):
    only = only.split(",") if only else PARTS
    for name in only:
        if name not in PARTS:
            print("bench: there is no part '%s' (there are: %s)" % (name, ", ".join(PARTS)),
                  file=sys.stderr)
            return 2
    signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))
    base = tempfile.mkdtemp(prefix="plyfs-bench-", dir=dir or os.environ.get("TMPDIR") or "/tmp")
    scale = Scale(base, quick)
    try:
        for part in only:
            p = scale.place(part)
            try:
                getattr(scale, part)(p)
            finally:
                p.close()
            say("%s: done" % part)
        if options.get("json"):
            print(json.dumps({"rows": scale.rows, "quick": quick}, indent=1))
        else:
            report(scale.rows)
        return 0
    except (RuntimeError, OSError) as e:
        print("bench: %s" % e, file=sys.stderr)
        return 1
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", base])
