# SPDX-License-Identifier: Apache-2.0
# Renders what ./run paper measured beside the paper's numbers: one HTML page without external links, and the section of
# docs/benchmarks.md. What is not there is "not measured"; why, stands at the end.
import html as escape_html
import math
import re
import statistics

import gpu_report

BEGIN, END = '<!-- paper: begin -->', '<!-- paper: end -->'
NONE = 'not measured'
DISTURBED = 0.1  # part of the cores that other programs had
COLOURS = {'amp': '#e69f00', 'comp': 'var(--accent)', 'fp32': 'var(--ink);stroke-dasharray:5 3'}
STAGES = {'baseline': 'baseline', 'epochs': 'losses', 'batches': 'times', 'contest': 'contest'}
ABLATION = ('stage 1 alone', 'stage 2 alone', 'both stages', 'comp')


# --- figures

def number(value):
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def figures(pair, kind, way='', seed=1):
    return pair.results.get((kind, way, seed), {}).get('figures')


def mark(pair, kind, way=''):
    return ' †' if pair.results.get((kind, way, 1), {}).get('others', 0) > DISTURBED else ''


def times(ratio):
    """1.20x (1.10 to 1.30), of {"ratio", "interval_95"}."""
    if not ratio or number(ratio['ratio']) is None:
        return NONE
    low, high = (number(bound) for bound in ratio['interval_95'])
    return f"{ratio['ratio']:.2f}x ({f'{low:.2f} to {high:.2f}' if low is not None and high is not None else 'too noisy for an interval'})"


def over_seeds(values, text):
    """Median, least and most of the finite ones."""
    known, values = list(values), [v for v in values if number(v) is not None]
    if not values:
        return 'not finite' if known else NONE
    spread = f' ({text(min(values))} to {text(max(values))})' if len(values) > 1 else ''
    return text(statistics.median(values)) + spread + (f', {len(known) - len(values)} not finite' if len(known) > len(values) else '')


def speeds(pair):
    """comp over FP32, over AMP, over AMP by hand, and AMP over FP32: of LibTorch's own autocast, else of AMP's rules in the contest."""
    if race := figures(pair, 'race'):
        return [race['speedup'].get(name) for name in ('comp_over_fp32', 'comp_over_autocast', 'comp_over_by_hand', 'autocast_over_fp32')], mark(pair, 'race')
    if (comp := figures(pair, 'search', 'comp')) and pair.about['backend'] != 'libtorch':
        ratios = comp['summary']['ratios']
        return [ratios.get(name) for name in ('comp_over_fp32', 'comp_over_rule_based', '', 'rule_based_over_fp32')], mark(pair, 'search', 'comp')
    return [None] * 4, ''


def peaks(pair):
    """Bytes of FP32, AMP and comp."""
    if race := figures(pair, 'race'):
        return [number(race['step'][way]['peak_bytes']) for way in ('fp32', 'autocast', 'comp')]
    if (comp := figures(pair, 'search', 'comp')) and pair.about['backend'] != 'libtorch':
        rows = {row['label']: number(row['peak_bytes']) for row in comp['summary']['contest']}
        return [rows.get(comp['summary'].get(role)) for role in ('fp32', 'rule_based', 'comp')]
    return [None] * 3


def over(pair, kind, way):
    """Figures of all seeds, by seed."""
    return {seed: result['figures'] for (k, w, seed), result in pair.results.items() if (k, w) == (kind, way) and result.get('figures')}


def scores(pair, way):
    """After the last epoch, by seed; what is not finite is text."""
    return {seed: of['epochs'][-1]['score'] for seed, of in over(pair, 'train', way).items() if of['epochs'][-1]['score'] is not None}


def verdict(pair):
    """Whether comp's scores reached FP32's, whose spread over seeds is the noise."""
    fp32, comp = scores(pair, 'fp32'), scores(pair, 'comp')
    both = [s for s in fp32.keys() & comp.keys() if number(fp32[s]) is not None]
    if not both:
        return NONE
    if wrong := [s for s in both if number(comp[s]) is None]:
        return f'NOT reached: not finite with {len(wrong)} of {len(both)} seeds'
    lost = statistics.median(fp32[s] for s in both) - statistics.median(comp[s] for s in both)
    if len(both) == 1:
        return f'{lost:.4f} below; one seed does not tell noise' if lost > 0 else 'not below, with one seed'
    if lost <= 0:
        return 'reached'
    if statistics.median(comp[s] for s in both) >= min(fp32[s] for s in both):
        return f"reached within FP32's spread ({lost:.4f} below)"
    return f'NOT reached: {lost:.4f} below, FP32 varies by {max(fp32[s] for s in both) - min(fp32[s] for s in both):.4f}'


def given_up(pair, way):
    """; AMP's plan given up 2 times, of trainings that went on with a more conservative one."""
    times_given_up = sum(len(of['fallbacks']) for of in over(pair, 'train', way).values())
    return f"; {way}'s plan given up {times_given_up} times" if times_given_up else ''


# --- tables: (title, words, header, rows)

def paper_says(facts, pair, title, **wanted):
    """The paper's numbers of this model and data; pair None: its averages."""
    wanted |= {'model': pair.about['name'], 'data': pair.set['title']} if pair else {'model': 'average'}
    form = {'speed': '{:.2f}x', 'saving': '{:.2%}', 'cost': '{:.2%}', 'both stages': '{:.2f}x'}.get(wanted.get('what'), '{:.2f}')
    found = [n for n in facts['numbers'] if title in n['in'] + ' and 5' * n['in'].startswith('Tables') and all(n.get(k) == v for k, v in wanted.items())]
    return ', '.join(form.format(n['value']) + (f" {n['unit']}" if 'unit' in n else '') + (f" ({n['machine']})" if 'machine' in n else '')
                     + (f" {n['way']}" if 'way' in n else '') for n in found) or '–'


def shown(pairs, facts, what):
    """Those that were measured in part, and those of which the paper's text has such a number."""
    return [p for p in pairs if p.results or (p.about['backend'] == 'libtorch' and any(
        n['what'].startswith(what) and (n['model'], n.get('data')) == (p.about['name'], p.set['title']) for n in facts['numbers']))]


def speed_table(facts, pairs):
    rows = []
    for pair in shown(pairs, facts, 'speed'):
        ratios, dagger = speeds(pair)
        ours = [times(r) + (dagger if r else '') for r in ratios]
        rows.append([str(pair), paper_says(facts, pair, 'Table', what='speed', over='FP32'), ours[0],
                     paper_says(facts, pair, 'Table', what='speed', over='AMP'), *ours[1:]])
    for backend in dict.fromkeys(p.about['backend'] for p in pairs):
        known = [speeds(p)[0][:2] for p in pairs if p.about['backend'] == backend and p.about['name'] in facts['models']]
        if known := [both for both in known if all(r and number(r['ratio']) for r in both)]:
            means = [f'{statistics.mean(r[i]["ratio"] for r in known):.2f}x' for i in (0, 1)]
            rows.append([f"average, {backend} ({len(known)} of the paper's)", paper_says(facts, None, 'Table', what='speed', over='FP32'), means[0],
                         paper_says(facts, None, 'Table', what='speed', over='AMP'), means[1], '', ''])
    return ('Tables 4 and 5: training speed', 'Times as fast: medians of steps in turns, with their 95% interval. In LibTorch comp has its fused optimizer pass and keeps '
            'freed memory, AMP is its own autocast as it is, and by hand with those two and channels-last; on host and cuda AMP is the plan of PyTorch\'s rules. † Other programs had more than 10% of the cores meanwhile.',
            ['', 'paper, over FP32', 'ours, over FP32', 'paper, over AMP', 'ours, over AMP', 'over AMP by hand', 'AMP over FP32'], rows)


def memory_table(facts, pairs):
    def saving(of, comp):
        return f'{1 - comp / of:.1%}' if of and comp else NONE

    def size(value):
        return f'{value / 2**20:.0f} MiB' if value else NONE
    rows = []
    for pair in [*shown(pairs, facts, 'saving'), *(p for p in shown(pairs, facts, 'memory') if p not in shown(pairs, facts, 'saving'))]:
        fp32, amp, comp = peaks(pair)
        absolute = paper_says(facts, pair, 'Table 6', what='memory')
        rows.append([str(pair), paper_says(facts, pair, 'Table 6', what='saving', over='FP32'), saving(fp32, comp),
                     paper_says(facts, pair, 'Table 6', what='saving', over='AMP'), saving(amp, comp), absolute, ', '.join(map(size, (fp32, amp, comp))) if fp32 else NONE])
    rows.append(['average in the paper', paper_says(facts, None, 'Table 6', what='saving', over='FP32'), '', paper_says(facts, None, 'Table 6', what='saving', over='AMP'), '', '', ''])
    return ('Table 6: peak memory', 'What comp saves, and the peak of a step. The memory of a native training that searches holds the search\'s states too.',
            ['', "paper, of FP32's", "ours, of FP32's", "paper, of AMP's", "ours, of AMP's", 'paper, peak', 'ours, peak of FP32, AMP, comp'], rows)


def score_table(facts, pairs):
    rows = []
    for pair in (p for p in pairs if p.results):
        cells = [over_seeds(scores(pair, way).values(), '{:.4f}'.format) for way in ('fp32', 'amp', 'comp')]
        search = figures(pair, 'search', 'comp')
        amount = f"{pair.epochs} epochs of {search['summary']['of']['model']}" if search else NONE
        rows.append([str(pair), pair.about.get('score', 'accuracy'), amount, *cells, verdict(pair) + given_up(pair, 'comp') + given_up(pair, 'amp')])
    return ('Table 7: scores after training', 'Median over seeds (least to most), same weights and order each way; the paper trains 100 epochs on all data. Its text gives no '
            'score: ' + ' '.join(s['text'] for s in facts['statements'] if s['in'] == 'Table 7'),
            ['', 'score', 'trained', 'FP32', 'AMP', 'comp', "comp against FP32"], rows)


def cost_table(facts, pairs):
    rows = []
    for pair in (p for p in pairs if p.results):
        seeds = [of['summary']['overhead'] for of in over(pair, 'search', 'comp').values()]
        stages = '; '.join(f"{words} {seeds[0]['stages'][name]['seconds']:.1f} s" for name, words in STAGES.items() if name in seeds[0]['stages']) if seeds else NONE
        rows.append([str(pair), paper_says(facts, pair, 'Figure 6', what='cost'), over_seeds([s['share_of_100_epochs'] for s in seeds], '{:.1%}'.format) + mark(pair, 'search', 'comp'),
                     over_seeds([s['search_seconds'] for s in seeds], '{:.1f} s'.format), stages])
    rows.append(['average in the paper', paper_says(facts, None, 'Figure 6', what='cost'), '', '', ''])
    return ('Figure 6: what the search costs', 'As a part of a training of 100 epochs with the found plan; with fewer examples epochs are shorter, and the part is larger than on all.',
            ['', 'paper', 'ours', 'whole search', 'its stages (seed 1)'], rows)


def ablation_table(facts, pairs):
    def score(pair, way):
        return over_seeds([value for seed, value in scores(pair, way).items() if seed == 1], '{:.4f}'.format)

    def cell(pair, way):
        of = figures(pair, 'search', way)
        return f"{times(of['summary']['ratios'].get('comp_over_fp32'))}{mark(pair, 'search', way)}; {score(pair, way)}" if of else NONE
    rows = [[str(pair), paper_says(facts, pair, 'Figure 7', what='both stages'), score(pair, 'fp32'), *(cell(pair, way) for way in ABLATION)]
            for pair in pairs if pair.results]
    return ('Figures 7 and 8: stage 1 alone, stage 2 alone, both', 'Speed over FP32; score after training (seed 1). Stage 1 is greedy by losses of whole epochs, the paper\'s '
            'criterion, stage 2 greedy by times. ' + ' '.join(s['text'] for s in facts['statements'] if s['in'] in ('Figure 7', 'Figure 8')),
            ['', 'paper, both', "FP32's score", *ABLATION[:3], "guided (comp's default)"], rows)


def plan_table(facts, pairs):
    rows = []
    for pair in (p for p in pairs if p.results):
        for seed, of in over(pair, 'search', 'comp').items():
            plan = of['plans']['comp'].partition('@')[0]
            rows.append([str(pair) if seed == 1 else '', str(seed), f"{len(plan) - plan.count('1')} of {len(plan)}", plan])
    return ('The found plans', 'A letter for each operator: 1 FP32, b BF16, 0 FP16, t TF32.', ['', 'seed', 'low', 'plan'], rows)


def missing(pairs):
    for why in dict.fromkeys(pair.why for pair in pairs if pair.why):
        yield f"{'; '.join(str(pair) for pair in pairs if pair.why == why)}: {why}"
    for pair in pairs:
        for result in pair.results.values():
            if result['status'] != 'ok':
                yield f"{result['name']}: {result['status']}: {result['why']}"


def tables(facts, pairs):
    return [make(facts, pairs) for make in (speed_table, memory_table, score_table, cost_table, ablation_table, plan_table)]


# --- pages

def chart(pair, what):
    """Loss or score by epoch, a line for each way and seed; empty for fewer than two epochs."""
    lines = [(way, [number(e[what]) for e in of['epochs']]) for way in COLOURS for of in over(pair, 'train', way).values()]
    values = [v for _, line in lines for v in line if v is not None]
    most = max((len(line) for _, line in lines), default=0)
    if most < 2 or not values:
        return ''
    low, high = min(values), max(values)
    high = high if high > low else low + 1

    def place(i, v):
        return f'{56 + 374 * i / (most - 1):.1f} {12 + 190 * (high - v) / (high - low):.1f}'
    drawn = [f'<path class="line" style="stroke:{COLOURS[kind]}" d="M'
             + 'L'.join(place(i, v) for i, v in enumerate(line) if v is not None) + '"/>' for kind, line in lines if any(v is not None for v in line)]
    return (f'<svg class="chart" viewBox="0 0 440 236" role="img" aria-label="{what} by epoch of {escape_html.escape(str(pair))}">'
            f'<path class="axis" fill="none" d="M56 12V202H430"/><text x="50" y="20" text-anchor="end">{high:.3g}</text>'
            f'<text x="50" y="202" text-anchor="end">{low:.3g}</text><text x="56" y="222">epoch 1</text>'
            f'<text x="430" y="222" text-anchor="end">{most}</text><text x="243" y="222" text-anchor="middle">{what}</text>{"".join(drawn)}</svg>')


def html(facts, pairs, about, root):
    text = escape_html.escape
    style = re.search(r'R"css\((.*?)\)css"', (root / 'include/comp/observe/html_template.hpp').read_text(), re.S)[1]
    quick = '<p class="warn"><b>A quick run</b>: small batches, few epochs, one seed. It shows that all runs; its figures are no result.</p>' if about['quick'] else ''
    parts = [f'<p class="eyebrow">comp {text(about["version"])}</p><h1>The CoMP paper\'s tables, and this machine\'s</h1><p class="about soft"><span>{text(about["machine"])}</span>'
             f'<span>{about["date"]}</span><span><code>{text(about["command"])}</code></span></p>{quick}<p>The paper ({text(facts["source"])}) measured on an A100 and an RTX 4090 '
             f'with PyTorch 2.3.1; “–” where its text states no number (its printed tables have more). Ratios compare, times do not.</p>']
    for title, words, header, rows in tables(facts, pairs):
        head = ''.join(f'<th scope="col">{text(h)}</th>' for h in header)
        body = ''.join('<tr>' + ''.join(f'<td class="{"e" if i and header[i] != "plan" else "t"}">{f"<code>{text(c)}</code>" if header[i] == "plan" else text(c)}</td>' for i, c in enumerate(row)) + '</tr>\n' for row in rows)
        parts.append(f'<section><h2>{text(title)}</h2><p class="soft">{text(words)}</p><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>')
    curves = ''.join(f'<h3>{text(str(pair))}</h3><div class="charts">{losses}{chart(pair, "score")}</div>' for pair in pairs if (losses := chart(pair, 'loss')))
    keys = ''.join(f'<span><svg width="26" height="12"><path class="line" style="stroke:{colour}" d="M0 6h26"/></svg>{kind}</span>' for kind, colour in COLOURS.items())
    parts.append(f'<section><h2>Losses and scores by epoch</h2><div class="legend">{keys}</div>{curves or NONE}</section>')
    parts.append('<section><h2>Not measured</h2><ul>' + ''.join(f'<li>{text(line)}</li>' for line in missing(pairs)) + '</ul><p class="soft">'
                 + ' '.join(text(f'{p}: {p.about["note"]}.') for p in pairs if 'note' in p.about and p.results) + '</p></section>')
    parts.append('<section><h2>All tables and figures of the paper</h2><dl>' + ''.join(f'<dt>{text(k)}</dt><dd>{text(v)}</dd>' for k, v in facts['exhibits'].items()) + '</dl></section>')
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>The CoMP paper, reproduced</title>'
            f'<style>{style}</style></head><body><main>{"".join(parts)}</main></body></html>\n')


def write_section(page, facts, pairs, about):
    lines = [BEGIN, f'{about["machine"]}; comp {about["version"]}; {about["date"]}; `{about["command"]}`.']
    for title, words, header, rows in tables(facts, pairs)[:-1]:
        lines += ['', f'**{title}.** {words}', '', *gpu_report.table(header, rows)]
    lines += ['', 'Not measured:', '', *(f'- {line}' for line in missing(pairs)), END]
    page.write_text(gpu_report.with_section(page.read_text(), '\n'.join(lines), BEGIN, END, "## The paper's tables\n\n`./run paper`."))
