# SPDX-License-Identifier: Apache-2.0
"""
bench snapshot: checkpoint and restore with ten edited files between, side by side in one run, for
several sizes of the tree and numbers of snapshots behind; then forks, their memory, and diffs.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import rivals

HERE = os.path.dirname(os.path.realpath(__file__))
BATCHES = 10
EDITED = 10  # files between checkpoint and restore: a usual step of an agent
ONLY = ["plyfs"] + [k.name for k in rivals.ALL]
# What is wanted on the machines this was made on (microseconds); shown beside what was measured.
WANTED = {"checkpoint": 60, "restore": 100, "command": 4000, "fork": 100, "mount": 3000,
          "diff": 5000, "ratio": 1.5}


def say(line):
    print(line, file=sys.stderr, flush=True)


def find_plyfs():
    for p in (os.environ.get("PLYFS"), os.path.join(HERE, "..", "plyfs"),
              os.path.join(HERE, "..", "..", "..", "bin", "plyfs"), shutil.which("plyfs")):
        if p and os.access(p, os.X_OK):
            return os.path.realpath(p)
    raise SystemExit("bench: the program plyfs is not found (set PLYFS)")


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]


def make_tree(top, files):
    """Text files of 100 to 4,000 bytes, 40 to a directory, three levels: like source code."""
    rng = random.Random(files)
    noise = rng.randbytes(1 << 16).hex()
    names = []
    for i in range(files):
        d = "d%02d/s%03d" % (i // 4000, i // 40)
        if i % 40 == 0:
            os.makedirs(os.path.join(top, d))
        name = "%s/f%d.txt" % (d, i)
        at = rng.randrange(len(noise) - 5000)
        with open(os.path.join(top, name), "w") as f:
            f.write("%d\n%s\n" % (i, noise[at:at + rng.randrange(100, 4000)]))
        names.append(name)
    return names


class Results:
    def __init__(self):
        self.rows = []

    def add(self, who, what, ns, **more):
        row = {"who": who, "what": what, **more}
        if ns:
            row.update(n=len(ns), p50_us=round(percentile(ns, 50) / 1e3, 1),
                       p99_us=round(percentile(ns, 99) / 1e3, 1), min_us=round(min(ns) / 1e3, 1))
        self.rows.append(row)
        return row

    def get(self, who, what, **more):
        for r in self.rows:
            if r["who"] == who and r["what"] == what and all(r.get(k) == v
                                                             for k, v in more.items()):
                return r
        return None


class Plyfs:
    """A store with one mounted view in a directory of its own."""

    def __init__(self, where):
        self.where = where
        self.plyfs = find_plyfs()
        self.env = dict(os.environ, PLYFS_STORE=os.path.join(where, "store"))
        self.view = os.path.join(where, "view")

    def run(self, *args, **kw):
        p = subprocess.run([self.plyfs, *args], env=self.env, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, **kw)
        if p.returncode:
            raise RuntimeError("plyfs %s: %s" % (" ".join(args), p.stderr.strip()))
        return p.stdout.strip()

    def start(self, source, *options):
        os.mkdir(self.view)
        self.run("init", self.env["PLYFS_STORE"])
        self.run("import", source)
        self.run("mount", "--at", self.view, *options)

    def watch(self, *args):
        """{name: [ns, ...]} of a run of the stopwatch."""
        p = subprocess.run([os.path.join(HERE, "stopwatch"), *map(str, args)], env=self.env,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise RuntimeError(p.stderr.strip())
        found = {}
        for line in p.stdout.splitlines():
            name, ns = line.split()
            found.setdefault(name, []).append(int(ns))
        return found

    def status(self, *args):
        return json.loads(self.run("status", "--json", *args))

    def pid(self):
        daemon = self.status().get("daemon")
        return int(daemon["pid"] if isinstance(daemon, dict) else daemon)

    def memory(self):
        with open("/proc/%d/smaps_rollup" % self.pid()) as f:
            return {k.rstrip(":"): int(v) for k, v, *_ in
                    (line.split() for line in f if line.endswith("kB\n"))}

    def ops(self):
        for v in self.status("--ops")["views"]:
            if v["mountpoint"] == self.view:
                return dict(v["ops"])
        return {}

    def close(self):
        prefix = os.path.realpath(self.where) + "/"
        with open("/proc/self/mountinfo") as f:
            mine = [line.split()[4] for line in f if line.split()[4].startswith(prefix)]
        for m in reversed(mine):
            p = subprocess.run([self.plyfs, "unmount", m], env=self.env, stderr=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)
            if p.returncode:
                subprocess.run(["umount", "-l", m], stderr=subprocess.DEVNULL)
        for _ in range(100):
            if not os.path.exists(os.path.join(self.env["PLYFS_STORE"], "sock")):
                break
            time.sleep(0.1)


def stat_all(top):
    for folder, dirs, names in os.walk(top):
        for n in names:
            os.lstat(os.path.join(folder, n))


def bench_plyfs(results, where, source, names, behind_steps, quick):
    files = len(names)
    p = Plyfs(where)
    try:
        p.start(source)
        rng = random.Random(1)
        edited = rng.sample(names, EDITED)
        rounds = 300 if quick else 1000
        behind = 1
        stat_all(p.view)
        for step in behind_steps:
            if step > behind:
                p.watch("behind", step - behind, p.view, names[0])
            behind = step
            p.watch("ioctl", 20, p.view, *edited)  # warm
            # In several processes: on which CPU client and reader meet is decided early in a
            # process' life and makes a factor of two.
            got = {}
            for _ in range(BATCHES):
                for name, ns in p.watch("ioctl", rounds // BATCHES, p.view, *edited).items():
                    got.setdefault(name, []).extend(ns)
            results.add("ioctl", "checkpoint", got["checkpoint"], files=files, behind=behind)
            results.add("ioctl", "restore", got.get("restore", []) + got.get("restore_epoch", []),
                        files=files, behind=behind, epochs=len(got.get("restore_epoch", [])))
            got = p.watch("command", 60 if quick else 200, p.plyfs, p.view, *edited)
            results.add("command", "checkpoint", got["checkpoint"], files=files, behind=behind)
            results.add("command", "restore", got["restore"], files=files, behind=behind)
            say("  plyfs, %d snapshots behind: done" % behind)

        # A stat storm after a small restore: requests for unchanged names should be none.
        stat_all(p.view)
        snap = p.run("checkpoint", p.view)
        for n in edited:
            with open(os.path.join(p.view, n), "a") as f:
                f.write("x")
        stat_all(p.view)
        p.run("restore", snap, p.view)
        before = p.ops()
        began = time.perf_counter_ns()
        stat_all(p.view)
        took = time.perf_counter_ns() - began
        after = p.ops()
        asked = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        # Reading the counters is a request or two itself.
        results.add("storm", "stat", [took], files=files, requests=asked,
                    total=sum(asked.values()))

        # Diff of two snapshots that differ in ten files.
        a = p.run("checkpoint", p.view)
        for n in edited:
            with open(os.path.join(p.view, n), "a") as f:
                f.write("diff")
        b = p.run("checkpoint", p.view)
        lines = p.run("diff", a, b).splitlines()
        if sorted(line.split("\t")[-1] for line in lines) != sorted(edited):
            raise RuntimeError("the diff names other files than were edited")
        ns = p.watch("spawn", 100, p.plyfs, "diff", a, b)["spawn"]
        results.add("command", "diff", ns, files=files)
        # A verb that does next to nothing costs the rest: process, socket, thread.
        ns = p.watch("spawn", 100, p.plyfs, "diff", a, a)["spawn"]
        results.add("command", "diff of equals", ns, files=files)

        # Forks: through the ioctl, and mounted.
        ns = p.watch("fork", 64, p.view, "bare")["fork"]
        results.add("ioctl", "fork", ns, files=files)
        alone = p.memory()
        os.mkdir(os.path.join(where, "forks"))
        for i in range(64):
            os.mkdir(os.path.join(where, "forks", str(i)))
        ns = p.watch("mount", 64, p.plyfs, p.view, "fork", os.path.join(where, "forks"))["mount"]
        results.add("command", "mounted fork", ns, files=files)
        mounted = p.memory()
        for i in range(64):
            f = os.path.join(where, "forks", str(i))
            with open(os.path.join(f, names[i]), "w") as out:
                out.write("fork %d\n" % i)
        stat_all(os.path.join(where, "forks", "0"))
        used = p.memory()
        results.add("memory", "64 forks", None, files=files, alone_kib=alone["Rss"],
                    mounted_kib=mounted["Rss"], written_kib=used["Rss"],
                    mounted_pss_kib=mounted["Pss"])
        say("  plyfs: diff, forks done")
    finally:
        with rivals.undisturbed():
            p.close()


def bench_side_by_side(results, where, trees, steps, quick):
    """The smallest and the largest tree in turn: minutes lie between them in the table, and on a
    machine with other work the same tree differs by more than the two do."""
    both = []
    try:
        for files, (source, names) in trees.items():
            at = os.path.join(where, "pair%d" % files)
            os.mkdir(at)
            p = Plyfs(at)
            both.append((files, p, random.Random(1).sample(names, EDITED)))
            p.start(source)
            stat_all(p.view)
        behind = 1
        for step in steps:
            for files, p, edited in both:
                if step > behind:
                    p.watch("behind", step - behind, p.view, edited[0])
                p.watch("ioctl", 20, p.view, *edited)  # warm
            behind = step
            got = {files: {"checkpoint": [], "restore": []} for files, _, _ in both}
            for _ in range(2 * BATCHES):
                for files, p, edited in both:
                    for name, ns in p.watch("ioctl", 20 if quick else 50, p.view,
                                            *edited).items():
                        got[files][name.replace("_epoch", "")].extend(ns)
            for files in got:
                for what, ns in got[files].items():
                    results.add("pair", what, ns, files=files, behind=behind)
        say("  both in turn: done")
    finally:
        with rivals.undisturbed():
            for _, p, _ in both:
                p.close()


def edit(tree, names, rng):
    for n in names:
        with open(os.path.join(tree, n), "w") as f:
            f.write("edit %d\n" % rng.randrange(1 << 30) * 60)


def bench_rival(results, kind, where, source, names, behind_steps, quick):
    files = len(names)
    r = kind(where)
    rng = random.Random(2)
    edited = rng.sample(names, EDITED)
    try:
        try:
            r.prepare(source)
            behind = 0
            for step in behind_steps:
                if step > r.limit or (step > 1 and (files > 1000 or quick)):
                    results.add(kind.name, "checkpoint", None, files=files, behind=step,
                                left_out=r.why)
                    continue
                while behind < step:
                    edit(r.tree, edited[:1], rng)
                    r.checkpoint()
                    behind += 1
                laps = {"checkpoint": [], "restore": []}
                # As many rounds as fit in a reasonable time, at least three.
                end = time.monotonic() + (6 if quick else 20)
                while len(laps["restore"]) < 3 or (time.monotonic() < end and
                                                   len(laps["restore"]) < 100):
                    edit(r.tree, edited, rng)
                    t = time.perf_counter_ns()
                    key = r.checkpoint()
                    laps["checkpoint"].append(time.perf_counter_ns() - t)
                    edit(r.tree, edited, rng)
                    t = time.perf_counter_ns()
                    r.restore(key)
                    laps["restore"].append(time.perf_counter_ns() - t)
                    r.forget(key)
                for what, ns in laps.items():
                    results.add(kind.name, what, ns, files=files, behind=step)
                say("  %s, %d behind: done" % (kind.title, step))
        except rivals.Unavailable as why:
            results.add(kind.name, "checkpoint", None, files=files, left_out=str(why))
            say("  %s: left out (%s)" % (kind.title, why))
    finally:
        with rivals.undisturbed():
            r.close()


def human(us):
    if us is None:
        return "-"
    if us < 1000:
        return "%.0f us" % us
    if us < 10000:
        return "%.2f ms" % (us / 1e3)
    if us < 1e6:
        return "%.0f ms" % (us / 1e3)
    return "%.1f s" % (us / 1e6)


def report(results, sizes, steps):
    titles = [("ioctl", "plyfs, ioctl"), ("command", "plyfs, command")] + \
        [(k.name, k.title) for k in rivals.ALL]
    for what in ("checkpoint", "restore"):
        print("\n%s, ten edited files between: p50 (p99)" % what)
        print("%-20s" % "" + "".join("%21s" % ("%s files" % format(n, ",")) for n in sizes))
        for step in steps:
            heading = "  %s snapshot%s behind" % (format(step, ","), "" if step == 1 else "s")
            for who, title in titles:
                cells = []
                for n in sizes:
                    r = results.get(who, what, files=n, behind=step)
                    cells.append("%s (%s)" % (human(r["p50_us"]), human(r["p99_us"]))
                                 if r and "p50_us" in r else "-")
                if any(c != "-" for c in cells):
                    if heading:
                        print(heading)
                        heading = None
                    print("%-20s" % title + "".join("%21s" % c for c in cells))
    left = {(r["who"], r["left_out"]) for r in results.rows if r.get("left_out")}
    for who, why in sorted(left):
        print("left out where '-': %s (%s)" % (who, why))

    if not results.get("ioctl", "checkpoint"):
        return
    print("\nwhat is wanted, what was measured")
    lines = []

    def line(text, got, limit, unit=human):
        lines.append((text, unit(got), unit(limit), got <= limit))
    for what in ("checkpoint", "restore"):
        rows = [r for r in results.rows if r["who"] == "ioctl" and r["what"] == what]
        line("%s through the ioctl, worst p50" % what, max(r["p50_us"] for r in rows),
             WANTED[what])
        at = {(r["files"], r["behind"]): r["p50_us"] for r in rows}
        ratio = lambda x: "%.2f" % x
        pair = {(r["files"], r["behind"]): r["p50_us"] for r in results.rows
                if r["who"] == "pair" and r["what"] == what}
        line("%s, largest tree over smallest, in turn" % what,
             max(pair[max(sizes), step] / pair[min(sizes), step] for step in steps),
             WANTED["ratio"], ratio)
        line("%s, most snapshots behind over fewest" % what,
             max(at[n, max(steps)] / at[n, min(steps)] for n in sizes), WANTED["ratio"], ratio)
        rows = [r for r in results.rows if r["who"] == "command" and r["what"] == what]
        line("%s as a command, worst p50" % what, max(r["p50_us"] for r in rows),
             WANTED["command"])
    top = max(sizes)
    line("fork, p50", results.get("ioctl", "fork", files=top)["p50_us"], WANTED["fork"])
    line("fork, mounted, as a command, p50",
         results.get("command", "mounted fork", files=top)["p50_us"], WANTED["mount"])
    diff = results.get("command", "diff", files=top)["p50_us"]
    line("diff of ten files as a command, p50", diff, WANTED["diff"])
    for text, got, limit, good in lines:
        print("  %-45s %10s   at most %-8s %s" % (text, got, limit, "" if good else "MISSED"))
    inner = diff - results.get("command", "diff of equals", files=top)["p50_us"]
    print("  %-45s %10s   over a diff of equal states" % ("diff itself", human(max(inner, 0))))
    for n in sizes:
        s = results.get("storm", "stat", files=n)
        print("  stat storm over %s files after a restore of ten: %d requests %s, %s" % (
            format(n, ","), s["total"], json.dumps(s["requests"]), human(s["p50_us"])))
    for n in sizes:
        m = results.get("memory", "64 forks", files=n)
        print("  daemon with %s files: %.1f MiB resident, with 64 forks mounted %.1f, "
              "each written to %.1f" % (format(n, ","), m["alone_kib"] / 1024,
                                        m["mounted_kib"] / 1024, m["written_kib"] / 1024))


def main(quick=False, only=None, dir=None, **options):
    only = only or ONLY
    sizes = [1000, 10000] if quick else [1000, 10000, 100000]
    steps = [1, 1000] if quick else [1, 1000, 10000]
    results, trees = Results(), {}
    base = tempfile.mkdtemp(prefix="plyfs-bench-", dir=dir or os.environ.get("TMPDIR") or "/tmp")
    try:
        for n in sizes:
            say("a tree of %d files" % n)
            source = os.path.join(base, "source%d" % n)
            names = make_tree(source, n)
            subprocess.run(["sync", "-f", base], check=False)
            for kind in ["plyfs"] + rivals.ALL:
                name = kind if kind == "plyfs" else kind.name
                if name not in only:
                    continue
                where = os.path.join(base, "%s%d" % (name, n))
                os.mkdir(where)
                if kind == "plyfs":
                    bench_plyfs(results, where, source, names, steps, quick)
                else:
                    bench_rival(results, kind, where, source, names, steps, quick)
                subprocess.run(["rm", "-rf", "--one-file-system", where])
            if "plyfs" in only and n in (min(sizes), max(sizes)):
                trees[n] = source, names
            else:
                shutil.rmtree(source)
        if trees:
            bench_side_by_side(results, base, trees, steps, quick)
        if options.get("json"):
            with open("/proc/cpuinfo") as f:
                cpu = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), "")
            print(json.dumps({"kernel": os.uname().release, "cpu": cpu, "cpus": os.cpu_count(),
                              "rows": results.rows}, indent=1))
        else:
            report(results, sizes, steps)
        return 0
    except RuntimeError as e:
        print("bench: %s" % e, file=sys.stderr)
        return 1
    finally:
        with rivals.undisturbed():
            subprocess.run(["rm", "-rf", "--one-file-system", base])
