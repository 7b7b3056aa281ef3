# SPDX-License-Identifier: Apache-2.0
# Reads what nvidia-smi, nvcc, test programs and compute-sanitizer say, and renders what ./run gpu-check found: a table for
# the terminal, the goals that were missed, and the section of docs/benchmarks/cuda.md. Nothing here needs a GPU.
import math
import re

BEGIN, END = '<!-- gpu-check: begin -->', '<!-- gpu-check: end -->'
COPY_GOAL = 0.85     # of the device's own copy bandwidth, for a kernel whose tensors do not fit the cache
SLICES = ('build', 'tests', 'sanitizer', 'bench')
# What nvidia-smi is asked while something is measured; a figure means little without it.
STATE = {'clocks.sm': 'MHz', 'clocks.max.sm': 'MHz', 'clocks.mem': 'MHz', 'clocks.max.mem': 'MHz', 'power.draw': 'W', 'power.limit': 'W',
         'temperature.gpu': 'C'}
PRECISIONS = ('FP32', 'TF32', 'BF16', 'FP16', 'E4M3', 'E5M2')

DOCTEST = re.compile(r'test cases:\s*\d+\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed(?:\s*\|\s*(\d+) skipped)?')
UNITTEST = re.compile(r'^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$', re.MULTILINE)
MEMCHECK = re.compile(r'ERROR SUMMARY: (\d+) errors?')
RACECHECK = re.compile(r'RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)')


# --- what the tools say

def devices_of(csv):
    """The GPUs in the answer of nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total (no header, no units)."""
    found = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(',')]
        if len(cells) == 4 and re.fullmatch(r'\d+\.\d+', cells[2]):
            memory = int(cells[3]) if cells[3].isdigit() else None
            found.append({'name': cells[0], 'driver': cells[1], 'compute_capability': cells[2], 'memory_mib': memory})
    return found


def states_of(csv):
    """What STATE asks for, of each moment: a number, or None if the GPU does not say."""
    found = []
    for line in csv.splitlines():
        cells = [cell.strip() for cell in line.split(',')]
        if len(cells) == len(STATE):
            found.append({key: float(cell) if re.fullmatch(r'[\d.]+', cell) else None for key, cell in zip(STATE, cells)})
    return found


def ranges_of(states):
    """The least and the largest of each number over the moments."""
    numbers = {key: [state[key] for state in states if state[key] is not None] for key in STATE}
    return {key: [min(all_of), max(all_of)] for key, all_of in numbers.items() if all_of}


def libraries_of(text):
    """The versions that a test or benchmark program found itself linked with."""
    found = re.search(r'^libraries: (.+)$', text, re.MULTILINE)
    return found[1] if found else None


def release_of(text):
    """13.0, of what nvcc --version prints."""
    found = re.search(r'release ([\d.]+)', text)
    return found[1] if found else None


def counts_of(text):
    """Passed and failed cases of a doctest program, or of Python's unittest; None if it printed no summary."""
    if ran := UNITTEST.search(text):
        others = dict(part.split('=') for part in (ran[2] or '').split(', ') if part)
        failed = sum(int(others.get(word, 0)) for word in ('failures', 'errors'))
        return int(ran[1]) - failed - int(others.get('skipped', 0)), failed
    found = DOCTEST.findall(text)
    return (sum(int(f[0]) for f in found), sum(int(f[1]) for f in found)) if found else None


def sanitizer_verdict(tool, status, text):
    """None if the tool found nothing, else a sentence."""
    if 'Device not supported' in text:
        return f'{tool} says that it does not support this device'
    summary = (RACECHECK if tool == 'racecheck' else MEMCHECK).findall(text)
    if not summary:
        return f'{tool} ended with {status} and without a summary'
    found = sum(int(s[0] if tool == 'racecheck' else s) for s in summary)
    if found:
        first = next((line for line in text.splitlines() if re.match(r'=+ (Invalid|Error|Race|Warning|Program hit|Misaligned)', line)), '')
        return f'{tool} reports {found}: {first.lstrip("= ").strip()}'.rstrip(': ')
    counts = counts_of(text)
    if status or not counts or counts[1]:
        return f'{tool} found nothing, but the tests under it failed (status {status})'
    return None


def merged(earlier, figures):
    """Figures of one model, say, beside those of the others that were there before."""
    for key in ('jobs', 'rows'):
        if earlier and earlier.get(key) and all('model' in row for row in [*earlier[key], *figures.get(key, [])]):
            new = {row['model'] for row in figures.get(key, [])}
            figures = figures | {key: [row for row in earlier[key] if row['model'] not in new] + figures.get(key, [])}
    if earlier and earlier.get('left_out'):
        figures = figures | {'left_out': earlier['left_out'] | figures.get('left_out', {})}
    return figures


# --- goals

def large_rows(bench):
    """For each kernel and precision the row of its largest size."""
    best = {}
    for row in bench.get('rows', []):
        key = row['kernel'], row['precision']
        if key not in best or row['bytes'] > best[key]['bytes']:
            best[key] = row
    return best


def faster(way, than):
    return than['seconds'] / way['seconds'] if than and way['seconds'] else None


def own_seconds(way):
    """Of a step in an epoch, of the kind that a training after a search keeps."""
    return min(way['in_epochs_seconds'], way.get('captured_seconds', math.inf))


def way_of(job, name):
    return next((w for w in job['ways'] if w['name'] == name), None)


def below_one(bounds):
    """Whether all of an interval is; one of few rounds has no bounds."""
    return bounds[1] is not None and bounds[1] < 1


def missed_goals(bench):
    """A sentence for each figure that is worse than its goal."""
    for (kernel, precision), row in sorted(large_rows(bench.get('kernels') or {}).items()):
        if row['of_copy'] < COPY_GOAL:
            yield (f"{kernel} in {precision}: {row['of_copy']:.0%} of the copy bandwidth at {row['bytes'] / 2**20:.0f} MiB "
                   f'(goal {COPY_GOAL:.0%})')
    torch = {}  # the fastest way of each model
    for row in (bench.get('torch') or {}).get('rows', []):
        if row['way'].startswith('autocast') and row['seconds'] < torch.get(row['model'], row | {'seconds': math.inf})['seconds']:
            torch[row['model']] = row
    for job in (bench.get('steps') or {}).get('jobs', []):
        found = way_of(job, 'found plan')
        if found and below_one(found['over_rules_bounds']):
            yield f"{job['model']}: the found plan is slower than the rules' ({found['over_rules']:.2f}x)"
        for way in job['ways']:
            if below_one(way.get('captured_over_plain_bounds', [1, 1])):
                yield f"{job['model']}, {way['name']}: the captured step is slower than the plain one ({way['captured_over_plain']:.2f}x)"
        rival = torch.get(job['model'])
        if found and rival and own_seconds(found) > rival['seconds']:
            yield f"{job['model']}: {rival['seconds'] / own_seconds(found):.2f}x the speed of PyTorch's {rival['way']}"


    for job in (bench.get('python') or {}).get('jobs', []):
        for way in job['ways']:
            if way['name'].startswith('autocast') and below_one(way['plan_over_bounds']):
                yield f"{job['model']} in Python: the found plan has {way['plan_over']:.2f}x the speed of {way['name']}"


# --- rendering

def milliseconds(seconds):
    return f'{seconds * 1e3:.3g} ms' if seconds >= 1e-3 else f'{seconds * 1e6:.3g} us'


def spread(way):
    low, high = way['quartiles']
    return f"{milliseconds(way['seconds'])} ({milliseconds(low)} to {milliseconds(high)})"


def table(header, rows):
    lines = ['| ' + ' | '.join(header) + ' |', '|' + '---|' * len(header)]
    return lines + ['| ' + ' | '.join(row) + ' |' for row in rows]


def step_rows(job):
    for way in job['ways']:
        captured = '' if 'captured_seconds' not in way else f"{milliseconds(way['captured_seconds'])} ({way['captured_over_plain']:.2f}x)"
        low, high = way['over_fp32_bounds']
        within = '' if low is None else f' ({low:.2f} to {high:.2f})'
        yield [way['name'], spread(way), f"{way['over_fp32']:.2f}x{within}", milliseconds(way['with_upload_seconds']),
               milliseconds(way['in_epochs_seconds']), captured,
               f"{way['peak_bytes'] / 2**20:.0f} MiB"]


def steps_section(bench):
    for job in bench['jobs']:
        yield ''
        yield f"{job['model']}, {job['shape']}:"
        yield ''
        yield from table(['', 'step (quartiles)', 'against FP32 (95%)', 'with its batch', 'in an epoch', 'captured', 'peak memory'], step_rows(job))
        if job.get('search_seconds'):
            yield ''
            yield f"The search took {job['search_seconds']:.1f} s; plan {job['plan']}."


def kernels_section(bench):
    large = large_rows(bench)
    names = sorted({kernel for kernel, _ in large})
    present = [p for p in PRECISIONS if any(q == p for _, q in large)]

    def cell(name, precision):
        row = large.get((name, precision))
        return '' if not row else f"{row['gb_per_s']:.0f} GB/s, {'' if row['of_copy'] >= COPY_GOAL else '**'}{row['of_copy']:.0%}{'' if row['of_copy'] >= COPY_GOAL else '**'}"
    yield ''
    yield ("Own kernels at their largest size: bytes of their tensors, read and written, per second, and as a part of what a copy of as "
           f"many bytes within the device reaches (goal: {COPY_GOAL:.0%}). Smaller sizes are in out/gpu-check.json.")
    yield ''
    yield from table(['kernel', *present], ([name, *(cell(name, p) for p in present)] for name in names))


def torch_section(bench, steps):
    yield ''
    if not bench.get('rows'):
        yield f"PyTorch was not measured: {bench.get('why', 'it was not asked')}."
        return
    jobs = {job['model']: job for job in (steps or {}).get('jobs', [])}
    yield f"The same models in PyTorch {bench['version']}, same batch:"
    yield ''

    def against(row):
        job = jobs.get(row['model'])
        wide = ', FP32 images' if row['way'].endswith('FP32 images') else ''
        own = job and way_of(job, row['way'] if row['way'] in ('FP32', 'TF32') else f'found plan{wide}')
        if not own:
            return ['', '']
        return [f"{row['seconds'] / own['seconds']:.2f}x ({own['name']})",
                f"{row['with_upload_seconds'] / own['with_upload_seconds']:.2f}x"]
    yield from table(['model', 'way', 'step (quartiles)', 'with its batch', 'loss not read', 'peak memory', "comp's speed against it",
                      'with its batch'],
                     ([r['model'], r['way'], spread(r), milliseconds(r['with_upload_seconds']), milliseconds(r['without_loss_seconds']),
                       f"{r['peak_bytes'] / 2**20:.0f} MiB", *against(r)] for r in bench['rows']))
    for way, reason in bench.get('left_out', {}).items():
        yield ''
        yield f'Left out: {way} ({reason}).'


def python_section(bench):
    yield ''
    yield 'PyTorch models in Python, each under the plan that comp.search found, loaded from its file:'
    yield ''
    yield from table(['model', 'plan', 'search', 'way', 'step (quartiles)', "the plan's speed against it (95%)"],
                     ([job['model'], job['plan'], f"{job['search_seconds']:.0f} s", way['name'], spread(way),
                       f"{way['plan_over']:.2f}x ({way['plan_over_bounds'][0]:.2f} to {way['plan_over_bounds'][1]:.2f})"]
                      for job in bench['jobs'] for way in job['ways']))


def headline(result):
    device = result['device']
    memory = f", {device['memory_mib']} MiB" if device.get('memory_mib') else ''
    return (f"{device['name']} (compute capability {device['compute_capability']}{memory}), driver {device['driver']}, "
            f"CUDA {device['cuda']}, comp {result['commit']}, {result['date']}")


def state_in_words(result):
    """Versions, and what the GPU was like while it was measured."""
    parts = result['parts'].values()
    ranges = ranges_of([{key: part['gpu'][key][end] if key in part['gpu'] else None for key in STATE}
                        for part in parts if part.get('gpu') for end in (0, 1)])
    said = [f"{key} {low:g}{'' if low == high else f' to {high:g}'} {STATE[key]}" for key, (low, high) in ranges.items()]
    libraries = list(dict.fromkeys(part['libraries'] for part in parts if part.get('libraries')))
    return ([f"Libraries: {'; also '.join(libraries)}."] if libraries else []) + \
           ([f"The GPU while it was measured: {', '.join(said)}."] if said else [])


def summary_line(parts):
    return f"{sum(p['passed'] for p in parts)} passed, {sum(p['failed'] for p in parts)} failed"


def verdict_of(parts, slice_name):
    of = [p for p in parts if p['slice'] == slice_name]
    if of and not any(p['passed'] or p['failed'] for p in of):
        return f"left out ({of[0]['why']})"
    return summary_line(of) if of else 'not run'


def section(result):
    """The part of docs/benchmarks/cuda.md between the markers, these included."""
    parts, bench = list(result['parts'].values()), result['bench']
    lines = [BEGIN, f'Machine: {headline(result)}.', *state_in_words(result), '',
             f"Tests on the device: {verdict_of(parts, 'tests')}. compute-sanitizer over the kernels: {verdict_of(parts, 'sanitizer')}."]
    for part in parts:
        if part['failed']:
            lines += ['', f"Failed: {part['name']}: {part['why']}"]
    if bench.get('steps'):
        lines += steps_section(bench['steps'])
    if bench.get('torch'):
        lines += torch_section(bench['torch'], bench.get('steps'))
    if bench.get('python'):
        lines += python_section(bench['python'])
    if bench.get('kernels'):
        lines += kernels_section(bench['kernels'])
    missed = list(missed_goals(bench))
    if any(figures.get('rows') or figures.get('jobs') for figures in bench.values()):
        lines += ['', 'Goals missed:' if missed else 'No goal was missed.', *([''] if missed else []), *(f'- {m}' for m in missed)]
    return '\n'.join([*lines, END])


def with_section(document, new, begin=BEGIN, end=END, heading='## On a GPU\n\n`./run gpu-check`, on a machine with one.'):
    """The document with the text between the markers replaced; at its end if it has none."""
    if begin in document and end in document.split(begin, 1)[1]:
        before, rest = document.split(begin, 1)
        return before + new + rest.split(end, 1)[1]
    return f'{document.rstrip(chr(10))}\n\n{heading}\n\n{new}\n'


def report(result, asked):
    """What the terminal shows at the end: a line for each part of the slices that were asked for, and the goals missed."""
    parts = [p for p in result['parts'].values() if p['slice'] in asked]
    yield headline(result)
    for part in parts:
        state = 'failed' if part['failed'] else 'passed' if part['passed'] else 'left out'
        yield f"  {state:<9}{part['slice']:<10}{part['name']:<24}{part['seconds']:>7.1f} s  {part['why']}".rstrip()
    if 'bench' in asked:
        for sentence in missed_goals(result['bench']):
            yield f'  goal missed: {sentence}'
