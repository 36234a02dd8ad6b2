# SPDX-License-Identifier: Apache-2.0
"""The table of `bench view` as a picture: each row's times in times of the underlying filesystem."""
import math
from xml.sax.saxutils import escape

COLOURS = {"plyfs": "#1f6feb", "overlayfs": "#8c959f", "fuse-overlayfs": "#d4a72c",
           "floor": "#57ab5a"}
BAR, GAP, LEFT, WIDTH, TOP = 9, 10, 230, 560, 60  # pixels
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def write(path, found):
    shown = [p for p in found["places"] if p in COLOURS]
    step = BAR * len(shown) + GAP
    height = TOP + step * len(found["rows"]) + 40
    relative = [{p: r["ms"][p] / r["ms"]["disk"] for p in shown} for r in found["rows"]]
    top = max(2, *(x for r in relative for x in r.values()))
    low = min(0.5, *(x for r in relative for x in r.values()))

    def x(value):
        return LEFT + WIDTH * math.log(value / low) / math.log(top / low)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
           'font-family="sans-serif" font-size="12">' % (LEFT + WIDTH + 70, height),
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="10" y="20" font-size="15">Time in times of %s (log scale; less is better; '
           'line: what is wanted)</text>' % escape(found["places"]["disk"])]
    for i, p in enumerate(shown):
        out.append('<rect x="%d" y="32" width="12" height="12" fill="%s"/><text x="%d" y="43">%s'
                   '</text>' % (LEFT + 130 * i, COLOURS[p], LEFT + 130 * i + 17, escape(p)))
    for t in TICKS:
        if low <= t <= top:
            out.append('<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="{3}"/><text '
                       'x="{0:.1f}" y="{4}" text-anchor="middle" fill="#57606a">{5:g}</text>'.format(
                           x(t), TOP - 5, height - 30, "#57606a" if t == 1 else "#d0d7de",
                           height - 14, t))
    for n, (row, values) in enumerate(zip(found["rows"], relative)):
        y = TOP + n * step
        out.append('<text x="%d" y="%d" text-anchor="end">%s</text>' % (
            LEFT - 8, y + BAR * len(shown) / 2 + 4, escape(row["title"])))
        for i, p in enumerate(shown):
            a, b = sorted((x(1), x(values[p])))
            out.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>' % (
                a, y + i * BAR, max(b - a, 1), BAR - 1, COLOURS[p]))
        wanted = row["limits"].get("disk")
        if wanted and wanted <= top:
            out.append('<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}" stroke="#cf222e" '
                       'stroke-width="2"/>'.format(x(wanted), y - 2, y + BAR + 1))
    out.append("</svg>")
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")
