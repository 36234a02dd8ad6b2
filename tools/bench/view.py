# SPDX-License-Identifier: Apache-2.0
"""
bench view: real work in a plyfs view and, in the same run, on the underlying filesystem, overlayfs,
fuse-overlayfs and the floor (view_places.py); what the work is stands in view_rows.py.

A round does each row in every place, one right after the other, in an order that changes from row
to row and from round to round. A ratio is the median over the rounds of the ratios within one
round, so a machine that gets slower for some minutes moves both sides.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import view_places
import view_rows
from rivals import Unavailable, undisturbed
from snapshot import say

FLOOR_LIMIT = 1.2  # of any row, in times of the floor
FUSE_OVERLAY_LIMIT = 1.0
MEAN_LIMIT = 1.8  # geometric mean over the rows, in times of the underlying filesystem
TICK = os.sysconf("SC_CLK_TCK")
KEPT_REQUESTS = 4  # kinds of requests shown for a row
ONLY = [k.name for k in view_rows.ALL]


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident_kib(pid):
    with open("/proc/%d/status" % pid) as f:
        return {line.split(":")[0]: int(line.split()[1]) for line in f
                if line.startswith(("VmRSS", "VmHWM"))}


class Run:
    """One measurement of one row in one place."""

    def __init__(self, m, row, place):
        at = os.path.join(place.dir, row.name)
        os.makedirs(at, exist_ok=True)
        m.plyfs = place.plyfs()
        row.prepare(m, at)
        place.settle()
        place.begin()
        before, pid = place.requests(), place.pid()
        cpu = cpu_seconds(pid) if pid else None
        self.seconds = row.run(m, at)
        self.cpu = cpu_seconds(pid) - cpu if pid else None
        self.requests = None
        if before is not None:
            after = place.requests()
            self.requests = {k: n - before.get(k, 0) for k, n in after.items()
                             if n > before.get(k, 0)}
        place.settle()


class Bench:
    def __init__(self, base, quick, rounds, only, mode):
        self.base, self.quick = base, quick
        self.beside = mode if mode in view_places.BESIDE else None
        self.kinds, self.limit = view_places.BESIDE.get(
            mode, (view_places.URING if mode == "io_uring" else view_places.ALL, None))
        self.first = self.kinds[0].name
        self.rounds = rounds or (1 if quick else 5)
        self.material = view_rows.Material(os.path.join(base, "material"), quick)
        self.rows, self.places, self.left_out, self.runs = [], [], [], {}
        self.memory = {}
        kinds = [k for k in view_rows.ALL
                 if (k.name in only if only else k.several or mode != "io_uring")]
        self.whole = len(kinds) == len(view_rows.ALL)
        for kind in kinds:
            row = kind()
            try:
                row.material(self.material)
                self.rows.append(row)
            except Unavailable as why:
                self.left_out.append((row.title, str(why)))
        say("material for %d rows is there" % len(self.rows))

    def start(self):
        for kind in self.kinds:
            where = os.path.join(self.base, kind.name)
            os.mkdir(where)
            place = kind(where)
            self.places.append(place)  # before start: close also what started half
            try:
                place.start()
            except Unavailable as why:
                place.close()
                self.places.remove(place)
                self.left_out.append((place.name, str(why)))

    def close(self):
        for place in self.places:
            place.close()

    def measure(self):
        for r in range(self.rounds):
            for i, row in enumerate(self.rows):
                turn = (r + i) % len(self.places)
                order = self.places[turn:] + self.places[:turn]
                for place in order[::-1] if r % 2 else order:
                    run = Run(self.material, row, place)
                    self.runs.setdefault((row.name, place.name), []).append(run)
            say("  round %d of %d: done" % (r + 1, self.rounds))
        for place in self.places:
            if place.pid():
                self.memory[place.name] = resident_kib(place.pid())

    # ---- what was found ----

    def row_of(self, row, name, title, limit):
        times = {p.name: [run.seconds[name] for run in self.runs[row.name, p.name]]
                 for p in self.places}
        ratio = {other: median([b / a if self.beside else a / b
                                for a, b in zip(times[self.first], times[other])])
                 for other in times if other != self.first}
        limits = dict.fromkeys(ratio, self.limit) if self.limit else {}
        if limit and not self.beside:
            limits["disk"] = limit
        if "fuse-overlayfs" in ratio:
            limits["fuse-overlayfs"] = FUSE_OVERLAY_LIMIT
        if row.floor and "floor" in ratio:
            limits["floor"] = FLOOR_LIMIT
        return {
            "row": name, "title": title, "group": row.name,
            "ms": {p: round(median(t) * 1e3, 3) for p, t in times.items()},
            "all_ms": {p: [round(s * 1e3, 3) for s in t] for p, t in times.items()},
            "ratio": {p: round(x, 3) for p, x in ratio.items()},
            "limits": limits,
            "missed": [p for p, most in limits.items() if ratio[p] > most],
        }

    def results(self):
        rows, groups = [], []
        for row in self.rows:
            for part in view_rows.parts_of(type(row)):
                rows.append(self.row_of(row, *part))
            last = {p.name: self.runs[row.name, p.name][-1] for p in self.places}
            groups.append({
                "group": row.name,
                "requests": {p: run.requests for p, run in last.items()
                             if run.requests is not None},
                "daemon_cpu_ms": {p.name: round(1e3 * median(
                    [run.cpu for run in self.runs[row.name, p.name]]))
                    for p in self.places if p.pid()},
            })
        means = {p: round(math.exp(sum(math.log(r["ratio"][p]) for r in rows) / len(rows)), 3)
                 for p in rows[0]["ratio"]}
        with open("/proc/cpuinfo") as f:
            cpu = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), "")
        return {"kernel": os.uname().release, "cpu": cpu, "cpus": os.cpu_count(),
                "rounds": self.rounds, "quick": self.quick,
                "places": {p.name: p.title for p in self.places}, "rows": rows,
                "groups": groups, "memory_kib": self.memory,
                "beside": self.beside, "first": self.first, "geometric_means": means,
                "geometric_mean_limits": {"disk": MEAN_LIMIT} if self.whole and not self.beside
                else {},
                "left_out": self.left_out}


def human(ms):
    return "%.2f ms" % ms if ms < 10 else "%.0f ms" % ms if ms < 1e4 else "%.1f s" % (ms / 1e3)


def report(found):
    places = found["places"]
    others = [p for p in places if p != found["first"]]
    print("\nmedians of %d round%s; then %s, with what is wanted" % (
        found["rounds"], "" if found["rounds"] == 1 else "s",
        "each in times of the first" if found["beside"] else
        "%s in times of each other" % places[found["first"]]))
    print("%-31s" % "" + "".join("%11s" % t for t in places.values()) + "  |" +
          "".join("%12s" % (("" if found["beside"] else "/ ") + places[p]) for p in others))
    for r in found["rows"]:
        cells = []
        for p in others:
            limit = r["limits"].get(p)
            cells.append("%12s" % ("%.2f%s" % (
                r["ratio"][p], "" if limit is None else " (%g)%s" % (
                    limit, "!" if p in r["missed"] else ""))))
        print("%-31s" % r["title"] + "".join("%11s" % human(r["ms"][p]) for p in places) + "  |" +
              "".join(cells))
    missed = [r for r in found["rows"] if r["missed"]]
    print("\n%d of %d rows hold all limits; missed (!): %s" % (
        len(found["rows"]) - len(missed), len(found["rows"]), "; ".join(
            "%s: %s" % (r["row"], ", ".join("%.2f of %g x %s" % (
                r["ratio"][p], r["limits"][p], places[p]) for p in r["missed"]))
            for r in missed) or "none"))
    for p, mean in found["geometric_means"].items():
        most = found["geometric_mean_limits"].get(p)
        print("geometric mean over the rows, %s: %.2f%s" % (
            places[p] if found["beside"] else "%s / %s" % (places[found["first"]], places[p]), mean,
            "" if most is None else ", at most %g wanted%s" % (
                most, "" if mean <= most else ": MISSED")))

    print("\nrequests of the last round, and the daemons' CPU time (median)")
    for g in found["groups"]:
        print("%-16s %s" % (g["group"], "; ".join("%s %d ms" % (p, ms) for p, ms in
                                                   g["daemon_cpu_ms"].items())))
        for p, asked in g["requests"].items():
            top = sorted(asked.items(), key=lambda x: -x[1])
            print("%16s %-6s %7d%s" % ("", p, sum(asked.values()), "".join(
                "  %s %d" % x for x in top[:KEPT_REQUESTS]) + (
                    "  ..." if len(top) > KEPT_REQUESTS else "")))
    print("\nmemory of the daemons: %s" % ", ".join("%s %.1f MiB (at most %.1f)" % (
        p, m["VmRSS"] / 1024, m["VmHWM"] / 1024) for p, m in found["memory_kib"].items()))
    for what, why in found["left_out"]:
        print("left out: %s (%s)" % (what, why))


def main(quick=False, only=None, dir=None, plot=None, rounds=None, **options):
    if rounds and (not rounds.isdigit() or not 1 <= int(rounds) <= 1000):
        print("bench: --rounds wants a number from 1 to 1000, not '%s'" % rounds, file=sys.stderr)
        return 2
    modes = [mode for mode in ("io_uring", *view_places.BESIDE) if options.get(mode)]
    if len(modes) + bool(plot) > 1:
        print("bench: one of --history, --io-uring, --journal and --plot, which draws times of the "
              "underlying filesystem", file=sys.stderr)
        return 2
    base = tempfile.mkdtemp(prefix="plyfs-bench-", dir=dir or os.environ.get("TMPDIR") or "/tmp")
    try:
        b = Bench(base, quick, int(rounds or 0), only, modes[0] if modes else None)
        try:
            b.start()
            if not any(p.name == b.first for p in b.places) or not b.rows:
                raise RuntimeError("nothing to measure: " + "; ".join(
                    "%s: %s" % x for x in b.left_out))
            b.measure()
            found = b.results()
        finally:
            with undisturbed():
                b.close()
        if plot:
            import view_plot
            view_plot.write(plot, found)
        if options.get("json"):
            print(json.dumps(found, indent=1))
        else:
            report(found)
        return 0
    except (RuntimeError, OSError) as e:
        print("bench: %s" % e, file=sys.stderr)
        return 1
    finally:
        with undisturbed():
            subprocess.run(["rm", "-rf", "--one-file-system", base])
