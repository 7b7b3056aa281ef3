# SPDX-License-Identifier: Apache-2.0
# ./run paper: reproduces the tables and figures of the CoMP paper that this machine can, beside the paper's own numbers
# (tools/paper.json, which also lists models and data). Runs examples/train and bench_libtorch, keeps each job's figures in
# OUT/results (by job, settings, version of the sources and machine), and renders OUT/paper.html after each.
# What is there already is not run again; what failed, took too long or is damaged is. Nothing is downloaded.
import argparse
import contextlib
import datetime
import fcntl
import fnmatch
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import paper_page

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ('backends', 'bench', 'examples', 'include', 'meson.build', 'tools/paper.py')
WAYS = ('fp32', 'amp', 'comp')
BY_EPOCHS = ['--judge-by', 'epochs', '--stage1', 'greedy']
ABLATION = {'stage 1 alone': [*BY_EPOCHS, '--stage2', 'none'], 'stage 2 alone': ['--stage1', 'none', '--stage2', 'greedy'],
            'both stages': [*BY_EPOCHS, '--stage2', 'greedy']}
# Figure 8 in FP16: a way is "both stages/off" there. Its stages are the paper's enumeration where that has few plans.
FP16 = {scaling: ['--target', 'A100', '--precisions', 'fp16', '--scaling', scaling] for scaling in ('off', 'pytorch')}
FEW = 64
PAPER = {'stage 1 alone': ['--stage2', 'none'], 'stage 2 alone': ['--stage1', 'none'], 'both stages': []}
ENUMERATED = [f'{way}/off' for way in PAPER]  # the paper scales no losses
TIME_UP = 'the time of this run was used up: the same command goes on'


class Stopped(Exception):
    """The user, or the system, wants this to end."""


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def version_of(root):
    """Of comp, and of the sources' names and bytes: needs no git."""
    hashed = hashlib.sha256()
    for top in SOURCES:
        for file in sorted(f for f in (root / top, *(root / top).rglob('*')) if f.is_file() and '__pycache__' not in f.parts):
            hashed.update(f'{file.relative_to(root)}\n'.encode() + file.read_bytes())
    said = re.search(r'comp_version = "(.*)";', (root / 'include/comp/files/plan_file.hpp').read_text())
    return f"{said[1] if said else '?'} ({hashed.hexdigest()[:10]})"


def machine_of():
    cpu = re.search(r'model name\s*: (.+)', pathlib.Path('/proc/cpuinfo').read_text())
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
    return f"{cpu[1] if cpu else os.uname().machine}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def busy_seconds():
    """Of all cores together, and what this program's children used of it."""
    fields = [int(f) for f in pathlib.Path('/proc/stat').read_text().split('\n', 1)[0].split()[1:9]]
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf('SC_CLK_TCK'), own.ru_utime + own.ru_stime


# --- data

def found_data(folder, sets, links):
    """{name: path} of the data sets in `folder`, under their public file names, plain or .gz: folders of links in `links`.
    A file whose pattern ends in "?" may be missing; one that is named "" is the data set."""
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    files = {}
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(folders)[:200] if len(pathlib.Path(where).relative_to(folder).parts) < 4 else []
        for name in names:
            files.setdefault(name.removesuffix('.gz'), []).append(pathlib.Path(where, name))

    def first(pattern, near):
        fit = sorted(path for name in fnmatch.filter(files, pattern.rstrip('?')) for path in files[name])
        return next((path for path in fit if path.parent == near), fit[0] if fit else None)

    def tree(pattern):
        """The folder itself, or one in it, that has such a file."""
        places = (folder, *sorted(folder.glob('*')), *sorted(folder.glob('*/*')))
        return next((p for p in places if p.is_dir() and next(glob.iglob(f'{glob.escape(str(p))}/{pattern}'), None)), None)
    found = {}
    for name, of in sets.items():
        wanted, near = {}, None
        for to, pattern in of['files'].items():
            wanted[to] = tree(pattern) if '/' in pattern else first(pattern, near)
            near = near or (wanted[to] and wanted[to].parent)
            if not wanted[to] and pattern.endswith('?'):
                del wanted[to]
        if not wanted or None in wanted.values():
            continue
        found[name] = links / name
        for to, path in wanted.items():
            link = found[name] / (to + '.gz' * path.name.endswith('.gz')) if to else found[name]
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path.resolve())
    return found


# --- jobs

class Jobs:
    """Runs programs, or gives what they gave before."""

    def __init__(self, out, version, machine, ends, job_limit):
        self.results, self.work = out / 'results', out / 'work'
        self.results.mkdir(parents=True, exist_ok=True)
        self.version, self.machine, self.ends, self.job_limit = version, machine, ends, job_limit

    def file_of(self, name, command, data):
        words = [str(c).replace(str(self.results.parent), '') for c in command[1:]]  # OUT may be moved
        settings = json.dumps([words, data, self.version, self.machine])
        return self.results / f"{re.sub(r'[^a-z0-9]+', '-', name.split(':')[0].lower())}-{digest(settings)}.json"

    def earlier(self, file):
        """What `file` holds if it is whole and the job went well; else nothing."""
        try:
            result = json.loads(file.read_text())
            if result['checksum'] != digest(json.dumps(result['figures'], sort_keys=True)):
                raise ValueError('its checksum is wrong')
            return result if result['status'] == 'ok' else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as fault:
            print(f'{file} is damaged ({fault}): its job is run again', flush=True)
            return None

    def get(self, name, command, data, read, estimate):
        """`read(folder)` gives the figures that `command` left in its folder {out}; `data`: what tells its data apart."""
        file = self.file_of(name, command, data)
        if result := self.earlier(file):
            return result
        left = self.ends - time.monotonic()
        if left < min(10, estimate / 2):
            return {'name': name, 'status': 'left', 'why': TIME_UP}
        own_limit = self.job_limit or max(4 * estimate, 120)
        print(f'{datetime.datetime.now():%H:%M:%S} {name} (about {estimate:.0f} s)', flush=True)
        result = {'name': name, 'version': self.version, 'machine': self.machine, 'date': datetime.date.today().isoformat(),
                  'figures': None} | self.run([str(c).replace('{out}', str(self.work)) for c in command], min(own_limit, left), read)
        if result['status'] == 'slow' and left < own_limit:
            return result | {'status': 'left', 'why': TIME_UP}
        result['checksum'] = digest(json.dumps(result['figures'], sort_keys=True))
        part = file.with_suffix('.part')
        part.write_text(json.dumps(result, indent=1) + '\n')
        part.replace(file)
        if result['status'] != 'ok':
            print(f"  {result['status']}: {result['why']}", flush=True)
        return result

    def run(self, command, limit, read):
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        began, (busy, own) = time.monotonic(), busy_seconds()
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace',
                                       start_new_session=True)
        except OSError as fault:
            return {'status': 'failed', 'why': f'{command[0]} cannot be run ({fault.strerror})', 'seconds': 0}
        try:
            text = process.communicate(timeout=limit)[0]
        except BaseException as fault:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if not isinstance(fault, subprocess.TimeoutExpired):
                raise
            return {'status': 'slow', 'why': f'it took longer than {limit:.0f} s', 'seconds': limit}
        seconds = time.monotonic() - began
        now, own_now = busy_seconds()
        others = max(0.0, now - busy - (own_now - own)) / max(seconds * len(os.sched_getaffinity(0)), 1e-9)
        said = {'seconds': round(seconds, 2), 'others': round(others, 3), 'command': ' '.join(command)}
        last = next((line for line in reversed(text.splitlines()) if line.strip()), 'it said nothing')
        if process.returncode and 'search space has' in last:
            return said | {'status': 'ok', 'why': '', 'figures': {'refused': last}}
        if process.returncode:
            return said | {'status': 'failed', 'why': f'it ended with {process.returncode}: {last}'}
        try:
            return said | {'status': 'ok', 'why': '', 'figures': read(self.work)}
        except (OSError, ValueError, KeyError, IndexError, TypeError) as fault:
            return said | {'status': 'failed', 'why': f'it wrote no figures that can be read ({type(fault).__name__}: {fault})'}
        finally:
            shutil.rmtree(self.work, ignore_errors=True)


def of_training(folder):
    made = json.loads((folder / 'training.json').read_text())
    if not made['epochs'] or any(not e['batches'] > 0 or not 0 <= e['seconds'] < math.inf for e in made['epochs']):
        raise ValueError('training.json has no epoch, or one without batches')
    return made


def of_search(folder):
    summary = json.loads((folder / 'summary.json').read_text())
    rows = {row['label']: row for row in summary['contest']}
    contest = {way: rows.get(summary[role], {}) for way, role in zip(WAYS, ('fp32', 'rule_based', 'comp'))}
    return {'model': summary['of']['model'], 'plans': {way: row.get('plan') for way, row in contest.items()} | {'comp': summary['plan']},
            'peaks': {way: row.get('peak_bytes') for way, row in contest.items()},
            'ratios': {name: (ratio['ratio'], *ratio['interval_95']) for name, ratio in summary['ratios'].items() if ratio},
            **{key: summary['overhead'][key] for key in ('share_of_100_epochs', 'search_seconds')},
            'stages': {name: stage['seconds'] for name, stage in summary['overhead']['stages'].items()}}


def of_race(folder):
    made = json.loads((folder / 'race.json').read_text())[0]
    return {'ratios': {name: (ratio['ratio'], *ratio['interval_95']) for name, ratio in made['speedup'].items()},
            'peaks': {way: made['step'][name]['peak_bytes'] for way, name in zip(WAYS, ('fp32', 'autocast', 'comp'))}}


READ = {'probe': lambda folder: [of_search(folder), of_training(folder)], 'search': of_search, 'enumeration': of_search, 'train': of_training, 'race': of_race}


# --- one model on one backend

class Pair:
    def __init__(self, about, options, data, facts):
        self.about, self.options, self.data = about, options, data.get(about['data'])
        self.set, self.results, self.probed = facts['data'][about['data']], {}, None
        self.weight = 3 if about['name'] in facts['models'] else 1  # of its part of the time
        self.made_up = not self.data and 'made_up' in about  # pictures of the same size, which tell nothing of scores
        self.weights = options.weights if 'weights' in about else None
        self.from_scratch = about['model'] == 'bert' and not self.weights
        read = [*([self.data, *self.data.glob('*')] if self.data else []), *([self.weights] if self.weights else [])]
        self.files = [[str(f.resolve()), f.stat().st_size] for f in sorted(read)]
        program = {'libtorch': 'train_libtorch', 'cuda': 'train_cuda'}.get(about['backend'], 'train')
        self.train, self.bench = options.programs / 'examples/train', options.programs / 'bench/bench_libtorch'
        self.why = ''  # not measured at all
        if not os.access(options.programs / 'examples' / program, os.X_OK):
            self.why = f"this build has no {program} (backend {about['backend']})"
        elif about['data'] != 'random' and not self.data and not self.made_up:
            self.why = f"no {self.set['title']} in {options.data or 'a folder given with --data'}: get it from {self.set['from']}"
        if options.only and about['model'] not in options.only:
            self.why = 'not asked for (--only)'
        seeds = 1 if self.made_up else 3
        self.seeds, self.race_seconds, self.examples = (1, 2, 0) if options.quick else (seeds, 60, 0 if self.made_up else self.set.get('examples', 0))
        self.epochs, self.limit = 1, 0

    def __str__(self):
        return f"{self.about['name']} on {self.set['title']}{' (made-up pictures)' * self.made_up}, {self.about['backend']}"

    def settings(self, seed, limit=0):
        quick = self.options.quick
        given = [*self.about.get('args', []), *(self.about['quick'] if quick else self.about['made_up'] if self.made_up else [])]
        if limit and not quick:
            given += ['--limit', limit]
        if self.weights:
            given += [*self.about['weights'], '--weights', self.weights]
        data = ['--data', self.data] if self.data else []
        return ['--model', self.about['model'], '--backend', self.about['backend'], *data, *given, '--seed', seed]

    def probe(self, jobs):
        """An epoch of FP32, from which the rest is sized."""
        command = [self.train, *self.settings(1, 4 * self.about['batch'] if self.examples else 0), '--policy', 'fp32', '--epochs', 1, '--out', '{out}']
        got = self.results['probe', '', 1] = jobs.get(f'{self}: a first epoch', command, self.files, READ['probe'], 120)
        if got['status'] == 'ok':
            search, training = got['figures']
            epoch = training['epochs'][0]
            self.probed = {'batch': epoch['seconds'] / epoch['batches'], 'batches': epoch['batches'],
                           'start': max(got['seconds'] - search['search_seconds'], 1)}

    # What there is to do, at most [s]. A validation counts as a third of an epoch: it is the forward alone.
    def seconds_of(self, kind, way, epochs, limit):
        batch, start = self.probed['batch'], self.probed['start']
        epoch = batch * 4 / 3 * (max(1, math.ceil(limit / self.about['batch'])) if limit else self.probed['batches'])
        if kind == 'enumeration':
            return start + (1 + FEW) * (epoch + batch)
        if kind == 'search':
            return start + epoch + (12 * epoch + 60 * batch if way.partition('/')[0] in ABLATION else 120 * batch)
        return start + (epochs * epoch if kind == 'train' else self.race_seconds + 250 * batch)

    def jobs_of(self):
        """(kind, way, seed) in the order in which each is worth its time."""
        race = [[('race', '', 1)]] if self.about['backend'] == 'libtorch' else [[]]
        if self.made_up:
            return [[('search', 'comp', 1)], *race]
        of_seeds = [[('search', 'comp', seed), *(('train', way, seed) for way in WAYS)] for seed in range(1, self.seeds + 1)]
        return [of_seeds[0], *race, [(kind, way, 1) for way in ABLATION for kind in ('search', 'train')], self.fp16_jobs(), *of_seeds[1:]]

    def fp16_jobs(self):
        """Of the host's models. Of those that are not in the table of FP16, what comp finds for an A100."""
        if not self.about.get('fp16'):
            return [('search', 'comp/off', 1)] if self.about['backend'] == 'host' and self.weight > 1 else []
        ways = [f'{way}/{scaling}' for scaling in FP16 for way in (*ABLATION, 'comp')]
        return [(kind, way, 1) for way in ways for kind in ('enumeration', 'search', 'train') if kind != 'enumeration' or way in ENUMERATED]

    def total(self, epochs, limit):
        return sum(self.seconds_of(kind, way, epochs, limit) for part in self.jobs_of() for kind, way, _ in part)

    def size(self, share):
        """As many of the paper's epochs on all examples as take `share` seconds; fewer examples if few epochs would be left."""
        quick, whole = self.options.quick, self.examples
        most, least = (10, 2) if quick else (self.options.epochs, min(10, self.options.epochs))
        self.epochs = next((e for e in range(most, least, -1) if self.total(e, whole) <= share), least)
        self.limit = whole
        while self.limit > 8 * self.about.get('batch', 1) and self.total(self.epochs, self.limit) > share:
            self.limit = int(self.limit * 0.9)
        return self.total(self.epochs, self.limit)

    def command_of(self, kind, way, seed):
        """The command, or None and what it lacks."""
        name, _, scaling = way.partition('/')
        settings = [*self.settings(seed, self.limit if self.limit < self.examples else 0), *FP16.get(scaling, [])]
        search = [self.train, *settings, '--epochs', 1, '--out', '{out}']
        if kind == 'enumeration':
            return [*search, '--search', 'paper', '--plans', FEW, *PAPER[name]], ''
        if kind == 'search':
            return [*search, *ABLATION.get(name, [])], ''
        if kind == 'race':
            of = dict(zip(*[iter(settings)] * 2))
            given = [word for key in ('--limit', '--batch', '--side', '--size', '--weights', '--learning-rate') if key in of for word in (key, of[key])]
            given += ['--data', self.data.parent, '--set', self.data.name] if self.data else []
            return [self.bench, '--models', self.about['model'], *given, '--seconds', self.race_seconds, '--json', '{out}/race.json'], ''
        found = self.results.get(('search', way if name in ABLATION or scaling else 'comp', seed), {})
        if found.get('status') == 'left':
            return None, found['why']
        if found.get('status') != 'ok':
            return None, f"the search that it needs gave nothing ({found.get('why', '')})"
        plan = found['figures']['plans'][way if way in WAYS else 'comp']
        if not plan:
            return None, 'the search had no rule-based plan in its contest'
        file = self.options.out / 'plans' / f'{digest(plan)}.json'
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({'comp_plan': 1, 'plan': plan}))
        return [self.train, *settings, '--epochs', self.epochs, '--out', '{out}', '--plan', file], ''

    def do(self, jobs, kind, way, seed):
        """Ways that have the same plan share one training. A stage that was enumerated is not searched again."""
        enumerated = self.results.get(('enumeration', way, seed), {})
        if kind == 'search' and 'plans' in (enumerated.get('figures') or {}):
            self.results[kind, way, seed] = enumerated
            return
        command, why = self.command_of(kind, way, seed)
        name = f'{self}: {kind} {way}, seed {seed}'
        self.results[kind, way, seed] = {'name': name, 'status': 'left', 'why': why} if not command else jobs.get(
            name, command, self.files, READ[kind], self.seconds_of(kind, way, self.epochs, self.limit))


def share_out(pairs, seconds):
    """Each gets what it can use, at most its part, by weight, of what those that need less have left."""
    waiting = sorted(pairs, key=lambda pair: pair.size(math.inf) / pair.weight)
    for at, pair in enumerate(waiting):
        seconds -= pair.size(max(seconds, 0) * pair.weight / sum(p.weight for p in waiting[at:]))


def measure(pairs, jobs, seconds, show):
    """Every kind of job for all pairs before the next kind, so that what time is too short for is missing everywhere alike."""
    for pair in pairs:
        pair.probe(jobs)
        show()
    sized = [pair for pair in pairs if pair.probed]
    share_out(sized, 0.9 * seconds - sum(pair.results['probe', '', 1].get('seconds', 0) for pair in pairs))
    print('The plan (at most; FP32\'s speed is taken for all):')
    for pair in sized:
        examples = f'{pair.limit} examples' if pair.limit else 'few examples' if pair.options.quick else 'all examples'
        print(f'  {str(pair):42} {pair.epochs:3} epochs of {examples:16} {pair.seeds} seeds, '
              f'{pair.total(pair.epochs, pair.limit) / 60:6.1f} min')
    print(f"  {'all':42} {sum(p.total(p.epochs, p.limit) for p in sized) / 60:35.1f} min of {seconds / 60:.0f}", flush=True)
    for part in range(max([len(pair.jobs_of()) for pair in sized], default=0)):
        for pair in sized:
            for job in pair.jobs_of()[part] if part < len(pair.jobs_of()) else []:
                pair.do(jobs, *job)
                show()


def arguments():
    asked = argparse.ArgumentParser(prog='./run paper', description="Reproduces the tables and figures of the CoMP paper that this machine can, "
                                    "beside the paper's numbers: OUT/paper.html. What is there is not run again.")
    asked.add_argument('--quick', action='store_true', help='15 minutes: small batches, few epochs, one seed; to see that it runs, not what it gives')
    asked.add_argument('--data', type=pathlib.Path, help='folder that is looked through for the data sets, under their public file names')
    asked.add_argument('--weights', type=pathlib.Path, help='pre-trained weights of BERT-base for LibTorch, in safetensors\' format with '
                       'Hugging Face\'s names (default: from scratch)')
    asked.add_argument('--only', action='append', metavar='MODEL', help='this model alone; may be given again')
    asked.add_argument('--hours', type=float, help='that all may take (default: 10; with --quick a quarter)')
    asked.add_argument('--epochs', type=int, default=100, help='of each training at most (default: %(default)s, the paper\'s)')
    asked.add_argument('--job-limit', type=float, metavar='SECONDS', help='a job that takes longer is ended (default: 4 times its estimate)')
    asked.add_argument('--out', type=pathlib.Path, default=ROOT / 'out/paper')
    asked.add_argument('--programs', type=pathlib.Path, default=ROOT / 'build/release', help='build folder with examples/train')
    asked.add_argument('--write-docs', action='store_true', help='also write the section of docs/benchmarks/paper.md; not with --quick')
    given = asked.parse_args()
    known = {pair['model'] for pair in json.loads((ROOT / 'tools/paper.json').read_text())['pairs']}
    for model in given.only or []:
        if model not in known:
            asked.error(f'--only {model} (there are {", ".join(sorted(known))}): name one of those')
    if given.data and not given.data.is_dir():
        asked.error(f'--data {given.data} is no folder: give the one that the data sets are in')
    if given.weights and not given.weights.is_file():
        asked.error(f'--weights {given.weights} is no file: give one in safetensors\' format')
    if given.write_docs and given.quick:
        asked.error('--write-docs with --quick (a quick run says nothing about scores): leave one out')
    if not (given.hours is None or 0 < given.hours < math.inf) or given.epochs < 1 or not (given.job_limit is None or given.job_limit > 0):
        asked.error('--hours, --epochs and --job-limit must be above 0')
    given.out = given.out.resolve()
    if given.data and given.out in (given.data.resolve(), *given.data.resolve().parents):
        asked.error(f'--data {given.data} is in --out, which belongs to ./run paper: move the data')
    return given


def main():
    options = arguments()
    facts = json.loads((ROOT / 'tools/paper.json').read_text())
    seconds = 3600 * (options.hours or (0.25 if options.quick else 10)) * 0.95  # some for the last job and the page
    options.out.mkdir(parents=True, exist_ok=True)
    if any(options.out.iterdir()) and not (options.out / 'paper.lock').exists():
        print(f'{options.out} has files that are not of ./run paper (which removes its own there): give a new folder as --out')
        return 1
    lock = (options.out / 'paper.lock').open('w')
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(f'{options.out} is in use (another ./run paper writes there): wait for it to end, or give another --out')
        return 1
    found = found_data(options.data, facts['data'], options.out / 'data') if options.data else {}
    pairs = [Pair(about, options, found, facts) for about in facts['pairs']]
    jobs = Jobs(options.out, version_of(ROOT), machine_of(), time.monotonic() + seconds, options.job_limit)
    about = {'machine': jobs.machine, 'version': jobs.version, 'date': datetime.date.today().isoformat(), 'quick': options.quick,
             'command': './run paper ' + ' '.join(sys.argv[1:])}
    page = options.out / 'paper.html'

    def show():
        page.write_text(paper_page.html(facts, pairs, about, ROOT))

    def stop(number, frame):
        raise Stopped(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, stop)
    for pair in pairs:
        if pair.why and not pair.why.startswith('not asked'):
            print(f'{pair}: not measured ({pair.why})')
    try:
        measure([pair for pair in pairs if not pair.why], jobs, seconds, show)
    except Stopped as stopped:
        show()
        print(f'\nStopped; {page} has what there is, and the same command goes on.')
        return 128 + stopped.args[0]
    show()
    if options.write_docs:
        paper_page.write_section(ROOT / 'docs/benchmarks/paper.md', facts, pairs, about)
    all_results = [result for pair in pairs for result in pair.results.values()]
    count = {status: sum(r['status'] == status for r in all_results) for status in ('ok', 'failed', 'slow', 'left')}
    print(f"{count['ok']} measured, {count['failed']} failed, {count['slow']} too slow, {count['left']} left; written: {page} (open it)")
    return int(count['failed'] + count['slow'] > 0 or count['ok'] == 0)


if __name__ == '__main__':
    sys.exit(main())
