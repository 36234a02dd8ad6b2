# SPDX-License-Identifier: Apache-2.0
"""
bench scale: how much a daemon takes, and whether mounting costs more where there is more.

    idle      one empty view that nobody uses
    million   a tree of a million small files: mounting it, with and without a daemon there,
              walking it with a stat of each file, and what the daemon keeps for each
    views     256 forks of one state, each mounted, in one daemon
    large     a file of 256 MiB in two views of one snapshot, with mount --passthrough and without,
              in turn: reading it, mapping it, opening it and a small one; as root

Each part has a store and a daemon of its own. Memory is what the daemon holds privately (its page
cache is the kernel's, and pages of the programs are shared with others).
"""
import io
import json
import mmap
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time

from rivals import undisturbed
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


    def large(self, p):
        mib, pages, opens = (16, 200, 50) if self.quick else (256, 20000, 2000)
        source = os.path.join(p.where, "source")
        os.mkdir(source)
        for name, size in (("large", mib << 20), ("small", 4096)):
            with open(os.path.join(source, name), "wb") as f:
                for at in range(0, size, 1 << 20):
                    f.write(os.urandom(min(size - at, 1 << 20)))
        p.run("init", p.env["PLYFS_STORE"])
        snap = p.run("import", source)
        sides = {"plain": [], "passed": ["--passthrough"]}
        for side, options in sides.items():
            at = os.path.join(p.where, side)
            os.mkdir(at)
            try:
                p.run("mount", "--snapshot", snap, "--at", at, *options)
            except RuntimeError as why:
                say("large: left out: %s" % why)
                return
        rng = random.Random(1)
        picks = [rng.randrange(mib << 8) for _ in range(pages)]
        times = {}
        for i in range(1 if self.quick else 5):
            for side in list(sides)[::-1 if i % 2 else 1]:
                at = os.path.join(p.where, side)
                file, small = os.path.join(at, "large"), os.path.join(at, "small")

                def note(what, seconds):
                    times.setdefault((what, side), []).append(seconds)
                if i == 0:
                    drop_pages(p)
                    note("read for the first time", read_file(file))
                drop_pages(p, file)
                note("read, nothing cached", read_file(file))
                note("read again", read_file(file))
                note("4 KiB pages of a mapping, again", read_mapped(file, picks))
                drop_pages(p, file)
                note("4 KiB pages, nothing cached", read_mapped(file, picks))
                note("open and close it", open_close(file, opens))
                note("open and close a small one", open_close(small, opens))
        for (what, side), found in times.items():
            each = 1e6 if "open" in what else 1e3
            self.add("large", "%s, %s" % (what, side), each * median(found),
                     "us" if "open" in what else "ms")


ONLY = ("idle", "million", "views", "large")


def drop_pages(p, *files):
    """Of these files, and of what their bytes come from in the store."""
    store = p.env["PLYFS_STORE"]
    behind = [os.path.join(top, name) for top, _, names in os.walk(store) for name in names
              if os.path.basename(top) in ("packs", "copies")]
    for path in (*behind, *files):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)  # what is not written yet would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_file(path):
    """Seconds, from the open on."""
    buf = bytearray(1 << 20)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as f:
        while f.readinto(buf):
            pass
    return time.perf_counter() - begin


def read_mapped(path, pages):
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        m.madvise(mmap.MADV_RANDOM)
        begin = time.perf_counter()
        for page in pages:
            m[page << 12]
        return time.perf_counter() - begin


def open_close(path, count):
    """Seconds for one."""
    begin = time.perf_counter()
    for _ in range(count):
        os.close(os.open(path, os.O_RDONLY))
    return (time.perf_counter() - begin) / count


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
        print("%-8s %-48s %10s %-5s %s" % (
            r["part"], r["what"], value, r["unit"],
            "" if r["wanted"] is None else "(at most %g)%s" % (
                r["wanted"], "!" if r["missed"] else "")))


def main(quick=False, only=None, dir=None, **options):
    base = tempfile.mkdtemp(prefix="plyfs-bench-", dir=dir or os.environ.get("TMPDIR") or "/tmp")
    scale = Scale(base, quick)
    try:
        for part in only or ONLY:
            p = scale.place(part)
            try:
                getattr(scale, part)(p)
            finally:
                with undisturbed():
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
        with undisturbed():
            subprocess.run(["rm", "-rf", "--one-file-system", base])
