# SPDX-License-Identifier: Apache-2.0
"""Runs the operators and modules of torch's own tests in regions of comp. Prints a table, and the smallest input of each
fault that exceptions.tsv does not explain; fails if there is one."""

import argparse
import collections
import csv
import fnmatch
import importlib.metadata
import logging
import multiprocessing.connection
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import warnings

os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ['HF_HUB_OFFLINE'] = '1'
warnings.filterwarnings('ignore')

import torch

import cases
import libraries
import tiny_models
from regions import Checks
from trainings import TrainingChecks

HERE = pathlib.Path(__file__).parent


def groups(suite, dtype, limit, only, part, folder):
    """(name, its cases) for each operator, module or model; a case is its name, its arguments in words, and its check."""
    if suite in tiny_models.MODELS:
        train = TrainingChecks(folder)
        first, every = map(int, part.split('/'))
        for name, make in cases.drawn(tiny_models.MODELS[suite](), limit, suite)[first - 1 :: every]:
            searched = suite in libraries.MODELS or random.Random(name).random() < 0.1
            check = lambda make=make, searched=searched: in_time(lambda: train(make, searched), 240 if searched else 60)
            yield name, [(f'{name.replace(" ", "_")} {dtype}', '', check)]
        return
    checks = Checks(folder)
    for name, of_name in cases.SUITES[suite](dtype, limit):
        yield name, ((case.name, case.takes, lambda case=case: checks(case)) for case in of_name)


class OutOfTime(BaseException):
    """Is no Exception, so that no check takes it for the model's own."""


def in_time(work, seconds):
    """What `work` returns. Processor time counts, so that a busy machine leaves out no other cases."""

    def stop(*_):
        raise OutOfTime

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return work()
    except OutOfTime:
        return f'not run: it takes more than {seconds} s'
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def work(number, workers, job, after, pipe):
    """Runs each `workers`-th operator after the first `after`, and tells what it does, since an operator may crash."""
    torch.set_num_threads(1)
    warnings.filterwarnings('ignore')
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        for place, (name, of_name) in enumerate(groups(*job, folder)):
            if place % workers != number or place < after or not fnmatch.fnmatch(name, job[3]):
                continue
            pipe.send(('begin', place, name, ''))
            try:
                for case, takes, check in of_name:
                    pipe.send(('case', place, case, takes))
                    pipe.send(('done', place, case, check()))
            except Exception as raised:
                pipe.send(('done', place, name, f'samples: {type(raised).__name__}: {raised}'))
    pipe.send(('end', 0, '', ''))


def results(workers, job):
    """(case, its arguments, faults) of all operators, by processes of their own."""
    fork = multiprocessing.get_context('fork')
    open_now = {}

    def start(number, after):
        mine, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=work, args=(number, workers, job, after, theirs), daemon=True)
        process.start()
        theirs.close()
        open_now[mine] = [number, process, ('begin', after, '', ''), '']

    for number in range(workers):
        start(number, 0)
    while open_now:
        for pipe in multiprocessing.connection.wait(list(open_now)):
            state = open_now[pipe]
            try:
                message = pipe.recv()
            except EOFError:
                del open_now[pipe]
                if state[2][0] != 'end':
                    state[1].join()
                    yield state[2][2], state[3], f'crash: the process ended with {state[1].exitcode}'
                    start(state[0], state[2][1] + 1)
                continue
            if message[0] == 'done':
                yield message[2], state[3], message[3]
            elif message[0] == 'case':
                state[3] = message[3]
            state[2] = message


def version(suite):
    name = suite.replace('_', '-') if suite in tiny_models.MODELS else 'torch'
    return f'{name} {importlib.metadata.version(name)}'


def reason_of(case, fault, exceptions):
    """Why the case may differ there; None if it may not."""
    for each in exceptions:
        if fnmatch.fnmatch(case, each['case']) and fnmatch.fnmatch(fault.check, each['check']):
            return each['reason']
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--suite', action='append', choices=[*cases.SUITES, *tiny_models.MODELS], help='all if not given')
    parser.add_argument('--dtype', action='append', choices=cases.DTYPES)
    parser.add_argument('--limit', type=int, default=0, help='at most so many samples of each operator, or models; 0: all')
    parser.add_argument('--only', default='*', help='names, such as "nn.*"')
    parser.add_argument('--part', default='1/1', help='of the models: 2/8 is the second of eight slices')
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--log', help='a file that gets what each case gave')
    given = parser.parse_args()
    log = open(given.log, 'w') if given.log else None
    exceptions = list(csv.DictReader(open(HERE / 'exceptions.tsv'), delimiter='\t'))
    explained = collections.Counter()
    wrong = collections.defaultdict(list)
    table = []
    for suite in given.suite or cases.SUITES:
        for dtype in given.dtype or (cases.DTYPES if suite in cases.SUITES else ['float32']):
            began = time.time()
            counts = collections.Counter()
            for name, takes, got in results(given.workers, (suite, dtype, given.limit, given.only, given.part)):
                if got is None or isinstance(got, str) and got.startswith('not run'):
                    counts['not run'] += 1
                    if got and log:
                        print(name, '|', got, file=log, flush=True)
                elif isinstance(got, str):
                    counts['random' if got == 'random' else 'wrong'] += 1
                    if got != 'random':
                        wrong[name.split(' ')[0], got.split(':')[0]].append((len(takes), name, takes, got))
                    if log:
                        print(name, '|', got, '|', takes, file=log, flush=True)
                else:
                    reasons = [reason_of(name, fault, exceptions) for fault in got]
                    unexplained = [fault for fault, reason in zip(got, reasons) if reason is None]
                    counts['wrong' if unexplained else 'explained' if got else 'right'] += 1
                    if log and not unexplained:
                        print(name, '|', f'explained: {reasons[0]}' if got else 'right', file=log, flush=True)
                    if got and not unexplained:
                        explained[suite, dtype, reasons[0]] += 1
                    for fault in unexplained:
                        wrong[name.split(' ')[0], fault.check].append((len(takes), name, takes, fault.what))
                        if log:
                            print(name, '|', fault.check, '|', fault.what, '|', takes, file=log, flush=True)
            table.append((suite, dtype, counts, time.time() - began))
    for (name, check), faults in sorted(wrong.items()):
        _, case, takes, what = min(faults)
        print(f'{case}: {check}: {what}\n    {takes} ({len(faults)} samples)')
    print('| suite | version | samples | right | explained | wrong | not the same twice in torch | not run by torch | time |')
    print('|---|---|---|---|---|---|---|---|---|')
    for suite, dtype, counts, seconds in table:
        kinds = ['right', 'explained', 'wrong', 'random', 'not run']
        compared = sum(counts[kind] for kind in kinds[:3])
        cells = ' | '.join(str(counts[kind]) for kind in kinds)
        print(f'| {suite}, {dtype} | {version(suite)} | {compared} | {cells} | {seconds:.0f} s |')
    for (suite, dtype, reason), count in explained.items():
        print(f'{suite}, {dtype}: {count} explained: {reason}')
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()
