# SPDX-License-Identifier: Apache-2.0
# ./run demo: four small trainings, each of which finds its plan while it trains, then a table and a sentence on each, on
# the terminal and in OUT/report.html. The sentences follow from the figures (OUT/NAME/summary.json) of this machine. On a
# CPU without a fast format below FP32 one of them is searched once more, for a modelled GPU.
# Usage: demo.py TEXT [OUT [TRAIN]]      (TEXT: what the transformer reads)
import html as escape_html
import json
import math
import os
import pathlib
import signal
import subprocess
import sys

import paper_page
from paper_page import NONE, number, times

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = ['training', 'plain batch', 'rules over plain', 'found over plain', 'found plan', "loss over plain's", 'search cost']
GPU = 'H100'
RIGHT = 1.05  # a found plan that may be so much faster than the rules does not show them to be right
NOTE = ('Plain is the training without a plan: FP32, and FP64 of the potential. "Over plain" is how many times as fast a batch is,\n'
        'with its 95% interval. '
        "The search's cost is what it took beyond the training that it did, in brackets as a part of 100 epochs.")


def trainings(text):
    """Name, what is trained, and options of `train`: a model of which the rules are expected to be right, one of which they
    are expected to lose to FP32, and one of which the best plan is another. The last is in FP64, a program of its own
    without options, so that there is something to gain on any CPU."""
    return [('mlp', 'perceptron, digits',
             ['--model', 'mlp', '--data', 'examples/data/optdigits.csv.gz', '--batch', 256, '--epochs', 200]),
            ('gat', 'graph attention, made-up graph', ['--model', 'gat', '--epochs', 100]),
            ('transformer', 'narrow transformer, text',
             ['--model', 'transformer', '--data', text, '--width', 64, '--heads', 2, '--context', 64, '--batch', 128,
              '--limit', 12800, '--epochs', 5]),
            ('potential', 'potential in FP64, made-up clusters', [])]


def modelled(name, title, options):
    """The same training on a GPU that is not here, of one epoch (the last option): the CPU's own line has trained it."""
    return (f'{name}_{GPU}', f"{title.partition(',')[0]}, modelled {GPU}",
            [*options[:-1], 1, '--target', GPU, '--precisions', 'bf16'])


def lacks_fast_format(folder):
    """True if a training says that no format below FP32 is faster than FP32 on this CPU (host::accelerated)."""
    try:
        return not any(name.endswith('_bf16') for name in json.loads((folder / 'summary.json').read_text())['hardware']['isa'])
    except (OSError, ValueError, LookupError, TypeError):
        return False



# --- figures of a summary

def ratio(summary, name):
    """A ratio and its bounds, infinite if there are too few figures for them; nothing of what was not measured."""
    of = summary['ratios'][name]
    if of is None or number(of['ratio']) is None:
        return None
    low, high = (number(bound) for bound in of['interval_95'])
    return of['ratio'], -math.inf if low is None else low, math.inf if high is None else high


def contestant(summary, role):
    return next((c for c in summary['contest'] if c['label'] == summary[role]), None)


def loss_in_words(of):
    if of['loss_against_fp32'] is None:
        return '-'
    difference, radius = (number(of['loss_against_fp32'][key]) for key in ('difference', 'radius'))
    return NONE if difference is None else f'{difference:+.2%}' + (f' +- {radius:.2%}' if radius is not None else '')


def row(title, summary):
    fp32, found = contestant(summary, 'fp32'), contestant(summary, 'comp')
    batch = number(fp32['seconds_per_batch']['median'])
    share = number(summary['overhead']['share_of_100_epochs'])
    return [title, NONE if batch is None else f'{1e3 * batch:.3g} ms', times(ratio(summary, 'rule_based_over_fp32')),
            '1.00x' if found is fp32 else times(ratio(summary, 'comp_over_fp32')), summary['plan_name'], loss_in_words(found),
            f"{summary['overhead']['seconds']:.2g} s" + (f' ({share:.1%})' if share is not None else '')]


def verdict(summary):
    """What the figures say of the rules, of the plain training and of the found plan: only what their intervals show."""
    said = sentence(summary).replace('FP32', 'FP64' if summary['fp32'] == 'as written' else 'FP32')
    others = [c['plan_name'] for c in summary['contest'] if c.get('rule_based') and c['label'] != summary['rule_based']
              and c['loss_against_fp32'] and not c['loss_against_fp32']['accepted']]
    if others:
        said += f" Other rules' loss was not accepted: {', '.join(others)}."
    if summary['hardware']['name'].startswith('modelled for '):
        said += f' No {GPU} ran: its times are modelled, and the losses are those of this CPU.'
    return said


def sentence(summary):
    rules, found, beside = (ratio(summary, name) for name in ('rule_based_over_fp32', 'comp_over_fp32', 'comp_over_rule_based'))
    fp32_kept = summary['comp'] == summary['fp32']
    if rules is None:
        return 'FP32 is kept: no other plan was better.' if fp32_kept else f'The found plan runs at {times(found)} of the speed of FP32; no rules were timed.'
    loss = contestant(summary, 'rule_based')['loss_against_fp32']
    refused = ', but their loss was not accepted' if loss and not loss['accepted'] else ''
    if fp32_kept:
        if rules[2] < 1:
            return f'The rules lose to FP32: their plan runs at {times(rules)} of its speed{refused}. The search keeps FP32.'
        if rules[1] > 1:
            return f'The rules are faster than FP32, {times(rules)}{refused}. The search keeps FP32.'
        return f'The rules gain nothing that can be shown over FP32, {times(rules)}{refused}. The search keeps FP32.'
    if summary['comp'] == summary['rule_based']:
        said = 'The rules are right: the search finds their plan' if rules[1] > 1 else 'The search finds the plan of the rules'
        return f"{said}, {times(rules)} of FP32's speed."
    lost = ' The rules lose to FP32.' if rules[2] < 0.995 else ''
    if beside is None or beside[1] <= 1 <= beside[2]:
        if beside and beside[2] < RIGHT and rules[1] > 1 and not refused:
            return f'The rules are right: the found plan is as fast within noise, {times(beside)} of their speed.'
        return f'No difference between the speeds of the found plan and of the rules is shown, {times(beside)}{refused}.{lost}'
    if beside[2] < 1:
        return f'The rules are faster than the found plan, which runs at {times(beside)} of their speed{refused}.{lost}'
    than = 'FP32 and the rules' if found[1] > 1 else 'the rules, and not shown to be faster than FP32'
    return f"The found plan is faster than {than}: {times(beside)} of the rules' speed, {times(found)} of FP32's.{lost}"


# --- the three together

def read(title, folder):
    """A row of the table and a verdict."""
    try:
        summary = json.loads((folder / 'summary.json').read_text())
        return row(title, summary), verdict(summary)
    except FileNotFoundError:
        fault = 'it is missing'
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as damage:
        fault = f'it is damaged: {type(damage).__name__}, {damage}'
    return [title] + [NONE] * (len(HEADER) - 1), f'{folder / "summary.json"} says nothing of this training ({fault}): see {folder / "train.txt"}'


def text_table(rows):
    """Columns as wide as their longest cell, the first flush left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return '\n'.join('  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in rows)


def page(names, rows, verdicts):
    text = escape_html.escape
    said = ''.join(f'<li><b>{text(cells[0])}</b>: {text(words)}</li>' for cells, words in zip(rows, verdicts))
    reports = ''.join(f'<section><h2><a href="{name}/report.html">{text(cells[0])}</a></h2><p>{text(words)}</p>'
                      f'<iframe src="{name}/report.html" title="{text(cells[0])}" loading="lazy" style="width:100%;height:70vh;border:0"></iframe></section>'
                      for name, cells, words in zip(names, rows, verdicts))
    return paper_page.page(ROOT, 'What a search finds', '<h1>Four trainings, and what their searches found</h1>'
                           f'<section>{paper_page.table(HEADER, rows)}<p class="soft">{text(NOTE)}</p><ul>{said}</ul></section>{reports}')


def main(text, out='out/demo', programs='build/release/examples'):
    out, jobs, failed = pathlib.Path(out), trainings(text), 0
    for number_of, (name, title, options) in enumerate(jobs, 1):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'summary.json').unlink(missing_ok=True)
        print(f'{number_of} of {len(jobs)}: {title}', flush=True)
        with (folder / 'train.txt').open('w') as said:
            status = subprocess.run([str(word) for word in (pathlib.Path(programs) / ('train' if options else name), *options, '--out', folder)], stdout=said).returncode
        if status > 128 or status < 0:
            print('The demo was stopped; ./run demo begins anew.')
            return status if status > 0 else 128 - status
        failed += status != 0
        if name == 'transformer' and lacks_fast_format(folder):
            jobs.append(modelled(name, title, options))
    rows, verdicts = zip(*(read(title, out / name) for name, title, _ in jobs))
    (out / 'report.html').write_text(page([name for name, _, _ in jobs], rows, verdicts))
    print(f'\n{text_table([HEADER, *rows])}\n{NOTE}\n')
    for cells, words in zip(rows, verdicts):
        print(f'{cells[0]}: {words}')
    print(f'\nwritten: {out / "report.html"} (open it), and of each training plan.json, search.jsonl and what its program says in {out}/*/')
    print(f'{len(jobs) - failed} passed, {failed} failed')
    return int(failed > 0)


if __name__ == '__main__':
    os.chdir(ROOT)
    signal.signal(signal.SIGINT, lambda *_: None)  # the training gets it too, and ends in good order
    sys.exit(main(*sys.argv[1:]))
