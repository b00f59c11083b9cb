#!/usr/bin/env python3
"""Draws docs/generated/samplers_order.svg from the errors that golden/samplers_order_test.cpp measures:

    DITTO_SAMPLERS_ORDER=errors.csv build/release/tests/ditto_golden_tests --source-file='*samplers_order_test.cpp'
    python3 tests/golden/samplers_order.py errors.csv docs/generated/samplers_order.svg
"""

import csv
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 60, 200, 20, 50
COLOURS = ("#1f77b4", "#aec7e8", "#2ca02c", "#98df8a", "#d62728", "#ff9896", "#9467bd", "#c5b0d5", "#8c564b", "#e377c2", "#111111")
MOST_EVALUATIONS, LEAST_ERROR, MOST_ERROR = 4096, 1e-13, 1.0


def x_of(evaluations):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(evaluations / 8) / math.log2(MOST_EVALUATIONS / 8)


def y_of(error):
    share = math.log10(min(max(error, LEAST_ERROR), MOST_ERROR) / LEAST_ERROR) / math.log10(MOST_ERROR / LEAST_ERROR)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def text(x, y, words, anchor="middle", colour="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def line(x1, y1, x2, y2):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def main(source, target):
    curves = {}
    with open(source, newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault(row["sampler"], []).append((int(row["evaluations"]), float(row["error"])))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(3, 13):
        x = x_of(2**power)
        parts += [line(x, TOP, x, HEIGHT - BOTTOM), text(x, HEIGHT - BOTTOM + 16, 2**power)]
    for power in range(-13, 1, 2):
        y = y_of(10.0**power)
        parts += [line(LEFT, y, WIDTH - RIGHT, y), text(LEFT - 6, y + 4, f"1e{power}", "end")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "evaluations of the model; the axis upwards is the largest error"))
    for i, (name, points) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        shown = [(e, error) for e, error in points if 8 <= e <= MOST_EVALUATIONS and error >= LEAST_ERROR]
        path = " ".join(f"{x_of(e):.1f},{y_of(error):.1f}" for e, error in shown)
        dash = ' stroke-dasharray="5 4"' if i % 2 else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = TOP + 14 + 18 * i
        parts.append(f'<line x1="{WIDTH - RIGHT + 14}" y1="{y - 4}" x2="{WIDTH - RIGHT + 38}" y2="{y - 4}" stroke="{colour}" '
                     f'stroke-width="2"{dash}/>')
        parts.append(text(WIDTH - RIGHT + 44, y, name, "start"))
    with open(target, "w") as file:
        file.write("\n".join(parts + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
