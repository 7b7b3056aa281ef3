# SPDX-License-Identifier: Apache-2.0
# Renders what ./run paper measured beside the paper's numbers: one HTML page without external links, and the section of
# docs/benchmarks/paper.md, with its tables. What is not there is "not measured"; why, stands at the end.
import csv
import html as escape_html
import math
import re
import statistics

import gpu_report

BEGIN, END = '<!-- paper: begin -->', '<!-- paper: end -->'
NONE = 'not measured'
DISTURBED = 0.1  # part of the cores that other programs had
COLOURS = {'amp': '#e69f00', 'comp': 'var(--accent)', 'fp32': 'var(--ink);stroke-dasharray:5 3'}
STAGES = ('baseline', 'losses', 'times', 'contest')
ABLATION = ('stage 1 alone', 'stage 2 alone', 'both stages', 'comp')
# Of the table of claims: pairs of which backend, and what their ways end with (FP16 and no scaling, as the paper's).
COLUMNS = {'host': ('host', ''), 'LibTorch': ('libtorch', ''), 'A100': ('host', '/off')}


# --- figures

def number(value):
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def figures(pair, kind, way='', seed=1):
    return pair.results.get((kind, way, seed), {}).get('figures')


def mark(pair, kind, way=''):
    return ' †' if pair.results.get((kind, way, 1), {}).get('others', 0) > DISTURBED else ''


def times(ratio):
    """1.20x (1.10 to 1.30), of a ratio and its bounds; nothing of (), which is not asked for."""
    if ratio == ():
        return ''
    value, low, high = map(number, ratio or [None] * 3)
    return NONE if value is None else f"{value:.2f}x ({f'{low:.2f} to {high:.2f}' if low is not None and high is not None else 'too noisy for an interval'})"


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
        return [race['ratios'].get(name) for name in ('comp_over_fp32', 'comp_over_autocast', 'comp_over_by_hand', 'autocast_over_fp32')], mark(pair, 'race')
    if (comp := figures(pair, 'search', 'comp')) and pair.about['backend'] != 'libtorch':
        ratios = comp['ratios']
        return [ratios.get('comp_over_fp32'), ratios.get('comp_over_rule_based'), (), ratios.get('rule_based_over_fp32')], mark(pair, 'search', 'comp')
    return [None] * 4, ''


def peaks(pair):
    """Bytes of FP32, AMP and comp."""
    of = figures(pair, 'race') if pair.about['backend'] == 'libtorch' else figures(pair, 'search', 'comp')
    return [number(of['peaks'][way]) for way in ('fp32', 'amp', 'comp')] if of else [None] * 3


def over(pair, kind, way):
    """Figures of all seeds, by seed."""
    return {seed: result['figures'] for (k, w, seed), result in pair.results.items() if (k, w) == (kind, way) and result.get('figures')}


def scores(pair, way):
    """After the last epoch, by seed; what is not finite is text."""
    return {seed: of['epochs'][-1]['score'] for seed, of in over(pair, 'train', way).items() if of['epochs'][-1]['score'] is not None}


def verdict(pair):
    """Whether comp's scores reached FP32's. They did not if each seed's is below all of FP32's: of three and three equally
    good ones that is so once in twenty times, a median below the least of three four times."""
    fp32, comp = scores(pair, 'fp32'), scores(pair, 'comp')
    both = [s for s in fp32.keys() & comp.keys() if number(fp32[s]) is not None]
    if not both:
        return NONE
    if wrong := [s for s in both if number(comp[s]) is None]:
        return f'NOT reached: not finite with {len(wrong)} of {len(both)} seeds'
    lost = statistics.median(fp32[s] for s in both) - statistics.median(comp[s] for s in both)
    if len(both) < 3:
        seeds, do = [('one seed', 'does'), ('two seeds', 'do')][len(both) - 1]
        return f'{lost:.4f} below; {seeds} {do} not tell noise' if lost > 0 else f'not below, with {seeds}'
    if lost <= 0:
        return 'reached'
    if max(comp[s] for s in both) >= min(fp32[s] for s in both):
        return f'reached within the noise ({lost:.4f} below)'
    return f'NOT reached: {lost:.4f} below, FP32 varies by {max(fp32[s] for s in both) - min(fp32[s] for s in both):.4f}'


def saved(pair):
    """Parts of FP32's and of AMP's peak."""
    fp32, amp, comp = peaks(pair)
    return [1 - comp / of if of and comp else None for of in (fp32, amp)]


def cost(pair, way='comp'):
    shares = [number(of['share_of_100_epochs']) for of in over(pair, 'search', way).values()]
    return statistics.median(known) if (known := [share for share in shares if share is not None]) else None


def does_not_converge(pair, way):
    """Whether the training gave its plan up, or ended without a loss; None where there was none."""
    of = figures(pair, 'train', way)
    return of and bool(of['fallbacks'] or number(of['epochs'][-1]['loss']) is None)


def averages(facts, pairs, backend, of):
    """How many of the paper's models have all figures of `of`, and the mean of each."""
    known = [of(p) for p in pairs if p.about['backend'] == backend and p.about['name'] in facts['models']]
    known = [each for each in known if all(number(f) is not None for f in each)]
    return len(known), [statistics.mean(column) for column in zip(*known)] or [None]


def average_rows(facts, pairs, of, row):
    for backend in dict.fromkeys(p.about['backend'] for p in pairs):
        count, means = averages(facts, pairs, backend, of)
        if count:
            yield row(f"average, {backend} ({count} of the paper's)", means)


def given_up(pair, way):
    """; AMP's plan given up 2 times, of trainings that went on with a more conservative one."""
    times_given_up = sum(len(of['fallbacks']) for of in over(pair, 'train', way).values())
    return f"; {way}'s plan given up {times_given_up} times" if times_given_up else ''


# --- tables; their titles, words and heads are in paper.json

def paper_says(facts, pair, **wanted):
    """The paper's numbers of this model and data; pair None: its averages."""
    wanted |= {'model': pair.about['name'], 'data': pair.set['title']} if pair else {'model': 'average'}
    form = {'saving': '{:.2%}', 'cost': '{:.2%}', 'memory': '{:.2f}'}.get(wanted['what'], '{:.2f}x')
    found = [n for n in facts['numbers'] if all(n.get(key) == value for key, value in wanted.items())]
    return ', '.join(' '.join([form.format(n['value']), *(n[key] for key in ('unit', 'way') if key in n), *([f"({n['machine']})"] if 'machine' in n else [])])
                     for n in found) or '–'


def shown(facts, pairs, what):
    """Those that were measured in part, and those of which the paper's text has such a number."""
    named = {(n['model'], n.get('data')) for n in facts['numbers'] if n['what'] in what}
    return [p for p in pairs if p.results or (p.about['backend'] == 'libtorch' and (p.about['name'], p.set['title']) in named)]


def speed_rows(facts, pairs):
    def row(name, pair, ours):
        return [name, paper_says(facts, pair, what='speed', over='FP32'), ours[0], paper_says(facts, pair, what='speed', over='AMP'), *ours[1:]]
    for pair in shown(facts, pairs, ['speed']):
        ratios, dagger = speeds(pair)
        yield row(str(pair), pair, [times(r) + (dagger if r else '') for r in ratios])
    yield from average_rows(facts, pairs, lambda p: [r and r[0] for r in speeds(p)[0][:2]],
                            lambda name, means: row(name, None, [*(f'{mean:.2f}x' for mean in means), '', '']))


def memory_rows(facts, pairs):
    def row(name, pair, parts, peak):
        return [name, paper_says(facts, pair, what='saving', over='FP32'), parts[0], paper_says(facts, pair, what='saving', over='AMP'), parts[1], *peak]

    def texts(parts):
        return [NONE if part is None else f'{part:.1%}' for part in parts]
    for pair in shown(facts, pairs, ['saving', 'memory']):
        fp32, amp, comp = peaks(pair)
        ours = ', '.join(f'{peak / 2**20:.0f}' if peak else NONE for peak in (fp32, amp, comp)) + ' MiB' if fp32 else NONE
        yield row(str(pair), pair, texts(saved(pair)), [paper_says(facts, pair, what='memory'), ours])
    yield from average_rows(facts, pairs, saved, lambda name, means: row(name, None, texts(means), ['', '']))


def scratch(pair):
    return ', from scratch' * pair.from_scratch


def score_rows(facts, pairs):
    for pair in (p for p in pairs if p.results):
        search = figures(pair, 'search', 'comp')
        if pair.made_up:
            yield [str(pair), pair.about.get('score', 'accuracy'), search['model'] if search else NONE, *['made-up pictures'] * 4]
            continue
        cells = [over_seeds(scores(pair, way).values(), '{:.4f}'.format) + scratch(pair) for way in ('fp32', 'amp', 'comp')]
        amount = f"{pair.epochs} epochs of {search['model']}" if search else NONE
        yield [str(pair), pair.about.get('score', 'accuracy'), amount, *cells, verdict(pair) + scratch(pair) + given_up(pair, 'comp') + given_up(pair, 'amp')]


def plan_of(search):
    return search['plans']['comp'].partition('@')[0]


def lowered(searches):
    """24, 30, 30 of 61: how many operators the plan of each seed lowers."""
    plans = [plan_of(search) for search in searches]
    return f"{', '.join(str(len(p) - p.count('1')) for p in plans)} of {len(plans[0])}" if plans else NONE


def cost_rows(facts, pairs):
    for pair in (p for p in pairs if p.results):
        seeds = list(over(pair, 'search', 'comp').values())
        stages = seeds[0]['stages'] if seeds else {}
        yield [str(pair), paper_says(facts, pair, what='cost'),
               over_seeds([s['share_of_100_epochs'] for s in seeds], '{:.1%}'.format) + mark(pair, 'search', 'comp'),
               over_seeds([s['search_seconds'] for s in seeds], '{:.1f} s'.format),
               '; '.join(f"{name} {stages[name]:.1f} s" for name in STAGES if name in stages) or NONE, lowered(seeds)]
    yield from average_rows(facts, pairs, lambda p: [cost(p)], lambda name, means: [name, paper_says(facts, None, what='cost'), f'{means[0]:.1%}', '', '', ''])


def ablation_rows(facts, pairs):
    def score(pair, way):
        return over_seeds([value for seed, value in scores(pair, way).items() if seed == 1], '{:.4f}'.format) + scratch(pair)

    def cell(pair, way):
        of = figures(pair, 'search', way)
        return f"{times(of['ratios'].get('comp_over_fp32'))}{mark(pair, 'search', way)}; {score(pair, way)}" if of else NONE
    for pair in (p for p in pairs if p.results and not p.made_up):
        yield [str(pair), paper_says(facts, pair, what='both stages'), score(pair, 'fp32'), *(cell(pair, way) for way in ABLATION)]


def found_speed(pair, way):
    of = figures(pair, 'search', way)
    return of and number((of['ratios'].get('comp_over_fp32') or [None])[0])


def fp16_rows(facts, pairs):
    def trained(pair, way):
        of = figures(pair, 'train', way)
        if not of:
            return NONE
        if of['fallbacks']:
            first = of['fallbacks'][0]
            return f"{'NaN' if first['why'] == 'not_finite' else first['why']} in epoch {first['epoch']}"
        last = of['epochs'][-1]
        return f"{over_seeds([last['score']], '{:.4f}'.format)}{scratch(pair)}, loss {over_seeds([last['loss']], '{:.4f}'.format)}"

    def cell(pair, way):
        speed, listed = found_speed(pair, way), figures(pair, 'enumeration', way) or {}
        by = 'guided' if way.startswith('comp') else 'enumerated' if 'plans' in listed else 'greedy'
        return f'{speed:.2f}x, {by}; {trained(pair, way)}' if speed else NONE
    for pair in (p for p in pairs if p.results and p.about.get('fp16')):
        for scaling in ('off', 'pytorch'):
            yield [str(pair), scaling, trained(pair, 'fp32'), *(cell(pair, f'{way}/{scaling}') for way in ABLATION)]


def speed_over(pair, ending, which):
    """comp's speed over FP32 (0) or AMP (1), with its bounds."""
    if not ending:
        return speeds(pair)[0][which]
    of = figures(pair, 'search', f'comp{ending}')
    return of and of['ratios'].get(('comp_over_fp32', 'comp_over_rule_based')[which])


def not_slower(pair, ending):
    ratio = speed_over(pair, ending, 0)
    return ratio and float(max(r for r in ratio if number(r) is not None) >= 1)


def gain_of_stage_2(pair, ending):
    both, first = (found_speed(pair, way + ending) for way in ('both stages', 'stage 1 alone'))
    return both and first and both / first


def needs_stage_1(pair, ending):
    lost = [does_not_converge(pair, way + ending) for way in ('stage 2 alone', 'both stages')]
    return None if None in lost or pair.about['model'] not in ('gan', 'bert') else float(lost == [True, False])


def keeps_score(pair, ending):
    said = '' if ending or pair.from_scratch or pair.made_up else verdict(pair)
    return float(said.startswith('reached')) if 'eached' in said else None


# Of one pair; None where nothing was measured. Memory on a GPU is not modelled, and one seed does not tell scores.
CLAIMS = {'over_fp32': lambda pair, ending: (speed_over(pair, ending, 0) or [None])[0],
          'over_amp': lambda pair, ending: (speed_over(pair, ending, 1) or [None])[0],
          'memory_of_fp32': lambda pair, ending: None if ending else saved(pair)[0],
          'memory_of_amp': lambda pair, ending: None if ending else saved(pair)[1],
          'cost': lambda pair, ending: cost(pair, f'comp{ending}'), 'not_slower': not_slower, 'keeps_score': keeps_score,
          'gain_of_stage_2': gain_of_stage_2, 'needs_stage_1': needs_stage_1}


def claim_rows(facts, pairs):
    """A claim about an average holds where the mean reaches it, one about each model where all do."""
    for claim in facts['claims']:
        cells, held = [], {True: [], False: []}
        for column, (backend, ending) in COLUMNS.items():
            count, [mean] = averages(facts, pairs, backend, lambda p: [CLAIMS[claim['of']](p, ending)])
            if not count:
                cells.append(NONE)
                continue
            each = claim['form'] == 'each'
            cells.append(f'{mean * count:.0f} of {count}' if each else f"{claim['form'].format(mean)}, mean of {count}")
            held[claim.get('least', -math.inf) <= mean <= claim.get('most', math.inf)].append(column)
        words = [word + f": {', '.join(columns)}" * all(held.values()) for word, columns in (('held', held[True]), ('not held', held[False])) if columns]
        yield [claim['text'], *cells, '; '.join(words) or NONE, claim['because']]


def plan_rows(facts, pairs):
    for pair in pairs:
        for seed, of in over(pair, 'search', 'comp').items():
            yield [str(pair), str(seed), lowered([of]), plan_of(of)]


TABLES = (claim_rows, speed_rows, memory_rows, score_rows, cost_rows, ablation_rows, fp16_rows)


def tables(facts, pairs, makers=TABLES):
    """(title, words, header, rows) of each."""
    for make in makers:
        of = facts['tables'][make.__name__.removesuffix('_rows')]
        said = [s['text'] for s in facts['statements'] if s['in'] in of.get('said', [])]
        yield of['title'], ' '.join([of['words'], *said]), of['header'], list(make(facts, pairs))


def missing(pairs):
    for why in dict.fromkeys(pair.why for pair in pairs if pair.why):
        yield f"{'; '.join(str(pair) for pair in pairs if pair.why == why)}: {why}"
    lacking = {}  # (status, why, jobs of a pair): pairs
    for pair in pairs:
        jobs = {}
        for result in (r for r in pair.results.values() if r['status'] != 'ok'):
            jobs.setdefault((result['status'], result['why']), []).append(result['name'].removeprefix(f'{pair}: '))
        for because, names in jobs.items():
            lacking.setdefault((*because, '; '.join(names)), []).append(str(pair))
    for (status, why, names), of in lacking.items():
        yield f"{'; '.join(of)}: {names}: {status}: {why}"


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


def table(header, rows):
    """With the first column and plans as text, the others as figures."""
    text = escape_html.escape
    head = ''.join(f'<th scope="col">{text(h)}</th>' for h in header)

    def cell(i, words):
        return f'<td class="{"t" if i == 0 or header[i] in ("plan", "because") else "e"}">{f"<code>{text(words)}</code>" if header[i] == "plan" else text(words)}</td>'
    body = '\n'.join('<tr>' + ''.join(cell(i, words) for i, words in enumerate(row)) + '</tr>' for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def page(root, title, body):
    """A whole page in the style of comp's reports."""
    style = re.search('<style>(.*?)</style>', (root / 'include/comp/observe/report_page.inc').read_text(), re.S)[1]
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<title>{escape_html.escape(title)}</title><style>{style}</style></head><body><main>{body}</main></body></html>\n')


def html(facts, pairs, about, root):
    text = escape_html.escape
    sections = [(title, f'<p class="soft">{text(words)}</p>{table(header, rows)}') for title, words, header, rows in tables(facts, pairs, (*TABLES, plan_rows))]
    curves = ''.join(f'<h3>{text(str(pair))}</h3><div class="charts">{losses}{chart(pair, "score")}</div>' for pair in pairs if (losses := chart(pair, 'loss')))
    keys = ''.join(f'<span><svg width="26" height="12"><path class="line" style="stroke:{colour}" d="M0 6h26"/></svg>{way}</span>' for way, colour in COLOURS.items())
    notes = ' '.join(text(f'{p}: {p.about["note"]}.') for p in pairs if 'note' in p.about and p.results)
    sections += [('Losses and scores by epoch', f'<div class="legend">{keys}</div>{curves or NONE}'),
                 ('Not measured', f'<ul>{"".join(f"<li>{text(line)}</li>" for line in missing(pairs))}</ul><p class="soft">{notes}</p>'),
                 ('All tables and figures of the paper', f'<dl>{"".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in facts["exhibits"].items())}</dl>')]
    quick = f'<p class="warn"><b>A quick run</b>: {text(facts["quick"])}</p>' if about['quick'] else ''
    return page(root, 'The CoMP paper, reproduced', f'<p class="eyebrow">comp {text(about["version"])}</p>'
                f'<h1>The CoMP paper\'s tables, and this machine\'s</h1><p class="about soft"><span>{text(about["machine"])}</span><span>{about["date"]}</span>'
                f'<span><code>{text(about["command"])}</code></span></p>{quick}<p>{text(facts["source"])}. {text(facts["about"])}</p>'
                + ''.join(f'<section><h2>{text(title)}</h2>{body}</section>' for title, body in sections))


def write_section(page, facts, pairs, about):
    """The claims; of each other table its words, and a file."""
    lines = [BEGIN, f'{about["machine"]}; comp {about["version"]}; {about["date"]}; `{about["command"]}`.']
    for make, (title, words, header, rows) in zip(TABLES, tables(facts, pairs)):
        lines += ['', f'**{title}.** {words}']
        if make is claim_rows:
            lines += ['', *gpu_report.table(header, rows)]
            continue
        file = page.parent / f"tables/paper_{make.__name__.removesuffix('_rows')}.csv"
        file.parent.mkdir(exist_ok=True)
        with file.open('w', encoding='utf-8', newline='') as written:
            csv.writer(written, lineterminator='\n').writerows([header, *rows])
        lines[-1] += f' [Table](tables/{file.name}).'
    lines += ['', 'Not measured:', '', *(f'- {line}' for line in missing(pairs)), END]
    page.write_text(gpu_report.with_section(page.read_text(), '\n'.join(lines), BEGIN, END, "## The paper's tables\n\n`./run paper`."))
