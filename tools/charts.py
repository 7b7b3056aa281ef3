#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/benchmarks from the tables there, so that picture and table cannot disagree.

Usage: charts.py [--check]   (--check: names the first picture that its table does not give, and writes nothing)"""
import csv
import html
import math
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'docs/benchmarks'
CHARTS = {  # picture: title, file of its table, columns that label a row, columns to draw, ticks of the axis, a line to compare with
    'libtorch.svg': ('Speed of found plans in LibTorch, with 95% intervals (right of 1: comp is faster)', 'tables/libtorch.csv', ['model, batch'],
                     ['speed over autocast (95%)', 'speed over by hand (95%)'], [0.8, 1, 1.4, 2, 3, 6], 1),
    'kernels.svg': ("Speed of found plans with comp's kernels, with 95% intervals (right of 1: comp is faster)", 'tables/kernels_avx512.csv', ['model, batch'],
                    ['speed over autocast (95%)', 'speed over by hand (95%)'], [0.8, 1, 1.2, 1.5, 2], 1),
    'native.svg': ("Speed of the native trainer, as a multiple of LibTorch's, with 95% intervals", 'tables/native.csv', ['job'],
                   ["FP32: native's speed (95%)", "BF16: native's speed (95%)"], [1, 2, 5, 10, 20, 60], 1),
    'attention.svg': ("Speed of comp's attention over LibTorch's, forward and backward, with 95% intervals", 'tables/attention_libtorch.csv', ['batch x tokens'],
                      ["FP32: comp's speed (95%)", "BF16: comp's speed (95%)"], [1, 1.5, 2, 3, 5, 7], 1),
    'paper.svg': ("Speed over AMP of the paper's models, as it is and tuned by hand, with 95% intervals (right of 1: comp is faster)", 'tables/paper_speed.csv', [''],
                  ['ours, over AMP', 'over AMP by hand'], [0.8, 1, 1.4, 2, 4, 8], 1),
    'python.svg': ('Training steps per second with the found plan, over torch.autocast, with 95% intervals (right of 1: comp is faster)', 'tables/python.csv',
                   ['training'], ['plan over autocast'], [0.8, 1, 1.2, 1.4, 1.7], 1),
    'python_compiled.svg': ('Speed of plans over autocast, as it is and both compiled by Inductor, with 95% intervals', 'tables/python_compiled.csv', ['training'],
                            ['plan over autocast', 'compiled plan over compiled autocast'], [0.8, 1, 1.2, 1.5, 1.9], 1),
    'cost.svg': ('Cost of the search, in percent of a training of so many epochs x batches (lines end at the worst)', 'tables/search_cost.csv',
                 ['training', 'epochs x batches'], ['cost, of the training'], [0.2, 0.5, 1, 2, 5, 10, 20, 40], 1)}
PLOT, STEP = 400, 16  # pixels: width of the axis, height of a figure
SHAPES = ['M-4-4h8v8h-8z', 'M0-5.5L5.5 0 0 5.5-5.5 0z']
STYLE = '''<style>text{font:13px system-ui,sans-serif;fill:#1f2328}.soft{fill:#59636e}.page{fill:#fff}path{fill:none;stroke-width:2}
.axis{stroke:#d1d9e0;stroke-width:1}.line{stroke:#59636e;stroke-width:1.5}.s0{stroke:#0969da}.s1{stroke:#bc4c00}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}.page{fill:#0d1117}.axis{stroke:#3d444d}.line{stroke:#9198a1}
.s0{stroke:#58a6ff}.s1{stroke:#f0883e}}</style>'''


def rows_of(file, columns):
    """The rows, by column."""
    with (FOLDER / file).open(encoding='utf-8', newline='') as table:
        header, *rows = csv.reader(table)
    if not set(columns) <= set(header):
        sys.exit(f'charts.py: docs/benchmarks/{file} has not the columns {", ".join(columns)}: say in CHARTS what they are called')
    return [dict(zip(header, row)) for row in rows]


def figure_of(cell):
    """Value, least, most and words of a cell such as 1.30 (1.05 to 1.39), 0.37 to 0.59%, 1.0% (worst 1.8%); None if it has none."""
    if not re.match(r'\d', cell):
        return None
    value = float(re.match(r'[\d.]+', cell)[0])
    spread = re.search(r'([\d.]+)%? to ([\d.]+)', cell) or re.search(r'()worst ([\d.]+)', cell)
    low, high = (float(end or value) for end in spread.groups()) if spread else (value, value)
    return value, low, high, re.split(r' \(', cell)[0]


def drawn(title, file, labels, columns, ticks, compared):
    rows = [(', '.join(row[label] for label in labels), row) for row in rows_of(file, labels + columns)]
    left = 40 + 6.5 * max(len(label) for label, _ in rows)

    def x(value):
        return left + PLOT * math.log(min(max(value, ticks[0]), ticks[-1]) / ticks[0]) / math.log(ticks[-1] / ticks[0])

    def mark(series, at, height):
        return f'<path class="s{series}" transform="translate({at:.1f} {height})" d="{SHAPES[series]}"/>'

    def text(at, height, words, more=''):
        return f'<text x="{at:.1f}" y="{height}"{more}>{html.escape(words)}</text>'
    top = 66 if len(columns) > 1 else 46  # a legend is between title and axis
    body, y, longest = [], top, 0
    for label, row in rows:
        known = [(i, figure) for i, figure in enumerate(figure_of(row[column]) for column in columns) if figure]
        body.append(text(left - 14, y + 4 + STEP * (len(known) - 1) / 2, label, ' text-anchor="end"'))
        for i, (value, low, high, words) in known:
            body.append(f'<path class="s{i}" d="M{x(low):.1f} {y}H{x(high):.1f}"/>' if high > low else '')
            body += [text(x(end), y + 4, sign, f' class="soft" text-anchor="{anchor}"') for end, sign, anchor, beyond in
                     ((ticks[0], '‹', 'end', low < ticks[0]), (ticks[-1], '›', 'start', high > ticks[-1])) if beyond]
            body += [mark(i, x(value), y), text(left + PLOT + 14, y + 4, words)]
            y, longest = y + STEP, max(longest, len(words))
        y += STEP // 2
    grid = [f'<path class="{"line" if t == compared else "axis"}" d="M{x(t):.1f} {top - 12}V{y - 8}"/>' + text(x(t), y + 8, f'{t:g}', ' class="soft" text-anchor="middle"')
            for t in ticks]
    legend, at = [], 20
    for i, column in enumerate(columns if len(columns) > 1 else []):
        legend += [mark(i, at, 40), text(at + 12, 44, column)]
        at += 44 + 7 * len(column)
    width, height = round(max(left + PLOT + 28 + 7 * longest, at, 28 + 7 * len(title))), y + 20
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(title)}">\n{STYLE}\n'
            f'<path class="page" d="M0 0h{width}v{height}H0z"/>{text(14, 22, title)}\n' + '\n'.join(part for part in [*legend, *grid, *body] if part) + '\n</svg>\n')


for name, chart in CHARTS.items():
    if sys.argv[1:] != ['--check']:
        (FOLDER / name).write_text(drawn(*chart), encoding='utf-8')
    elif not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding='utf-8') != drawn(*chart):
        sys.exit(f'docs/benchmarks/{name} is not what the table in {chart[1]} says: run tools/charts.py')
