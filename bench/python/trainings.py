# SPDX-License-Identifier: Apache-2.0
"""What a plan that was found, loaded from its file in a loop of the user's own, is worth beside FP32 and torch.autocast,
with torch.compile and without, each with the plan of a search of its own: the twenty trainings of the tests, larger, a step of
each in turns. A line of a Markdown table for each. If IPEX_PYTHON names a Python that imports Intel's extension, which wants
a torch of its own, a process of it takes turns in place of what torch.compile makes.
--loops: whole trainings instead, of which one's loop finds its plan by comp.autocast while it runs, beside FP32,
torch.autocast and the plan of a search; the sum of its seconds over each of theirs.
Usage: trainings.py [rounds] [NAME...]
       trainings.py --loops [batches] [NAME...]"""

import os
import subprocess
import sys
import tempfile
import time

import torch

if '--ipex' not in sys.argv:  # comp is not built for that torch
    from comp import autocast, plan, search  # before `support`, which has BF16 searched on every CPU
    from support import NoPlan

from known_trainings import BATCHES, TRAININGS

torch.set_num_threads(os.cpu_count() or 1)


class Autocast:
    """torch.autocast in place of a plan."""

    device = 'cpu'

    def __call__(self, segment):
        return self

    def __enter__(self):
        self.inner = torch.autocast(self.device, torch.bfloat16)
        self.inner.__enter__()

    def __exit__(self, *raised):
        self.inner.__exit__(*raised)


REGIONS = {'fp32': NoPlan, 'autocast': Autocast}


def bounds(values):
    """The median and its 95% interval, by ranks."""
    ranked, n = sorted(values), len(values)
    below = max(0, int((n - 1.96 * n**0.5) / 2))
    return ranked[n // 2], ranked[below], ranked[n - 1 - below]


def ratio(a, b):
    return '{:.2f} ({:.2f} to {:.2f})'.format(*bounds([x / y for x, y in zip(a, b)]))


def compile_models(training):
    """Compiles the models with torch.compile's defaults."""
    for model in training.model.values() if isinstance(training.model, dict) else [training.model]:
        model.compile()


def compiles(training, region):
    """Compiles the models, and trains two batches. Returns: whether that went well."""
    try:
        compile_models(training)
        for batch in training.data[:2]:
            training.train(region, batch)
    except Exception as problem:
        print(f'torch.compile: {str(problem).splitlines()[0]}', file=sys.stderr)
        return False
    return True


def fresh(name):
    torch.manual_seed(0)
    return TRAININGS[name](True)


def ipex(name):
    """The process of Intel's extension: trains the batch whose number it reads, and writes the seconds."""
    import intel_extension_for_pytorch

    training, stdout = fresh(name), os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # the extension prints, too
    _, training.optimizers[0] = intel_extension_for_pytorch.optimize(
        training.model.train(), optimizer=training.optimizers[0], dtype=torch.bfloat16, inplace=True
    )
    for line in sys.stdin:
        begun = time.perf_counter()
        training.train(Autocast(), training.data[int(line)])
        print(time.perf_counter() - begun, file=stdout, flush=True)


class Ipex:
    """The other end of that process, as a training."""

    def __init__(self, name):
        command = [os.environ['IPEX_PYTHON'], '-W', 'ignore', __file__, '--ipex', name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, batch):
        """The seconds of a batch; None if the process has ended."""
        try:
            print(batch, file=self.process.stdin, flush=True)
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            return None


def searched(name, path, compiled=False):
    """Saves the plan that a search finds to `path`, for a training of 16,000 steps. Returns: what was found, and the seconds
    of the search."""
    training = fresh(name)
    if compiled:
        compile_models(training)
    begun = time.perf_counter()
    found = search(
        training.train, model=training.model, optimizer=training.optimizers, data=training.data * (160 // BATCHES),
        state=training.state, progress=False, planned_epochs=100,
    )
    found.save(path)
    return found, time.perf_counter() - begun


def kept(found):
    low = sum(letter not in '1@' for letter in found.plan.split('@')[0])
    return 'autocast' if found.plan.endswith('@autocast') else f'{low} of {len(found.operators)} low'


def step(training, region, turn):
    begun = time.perf_counter()
    training.train(region, training.data[turn % BATCHES])
    return time.perf_counter() - begun


def in_turns(name, rounds, ways, peer=None, take_turn=step):
    """Trains each of `ways`, plan files or names, by a turn, and the peer by a step, `rounds` times. Returns: the seconds of
    each way whose first steps went well."""
    trained = {}
    for way, path in ways.items():
        training = fresh(name)
        region = REGIONS[path]() if path in REGIONS else plan(path, training.model, segments=training.segments)
        if 'channels-last' in way:
            training.model.to(memory_format=torch.channels_last)
        if 'compiled' not in way or compiles(training, region):
            trained[way] = (training, region, [])
    of_peer = []
    for turn in range(rounds + 3):
        for training, region, seconds in (list(trained.values()) if turn % 2 == 0 else list(trained.values())[::-1]):
            seconds.append(take_turn(training, region, turn))
        if peer:
            of_peer.append(peer.seconds(turn % BATCHES))
    times = {way: seconds[3:] for way, (_, _, seconds) in trained.items()}
    return times | ({'peer': of_peer[3:]} if peer and all(of_peer) else {})


def measure_loop(name, batches):
    """A batch of each training in turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'plan.json')
        searched(name, path)
        trained = {way: fresh(name) for way in ('fp32', 'autocast', 'plan', 'loop')}
        loop, planned = trained['loop'], trained['plan']
        finds = autocast(loop.model, optimizer=loop.optimizers, state=loop.state, batches=batches)
        regions = {'fp32': NoPlan(), 'autocast': Autocast(), 'loop': finds}
        regions['plan'] = plan(path, planned.model, segments=planned.segments)
        seconds = dict.fromkeys(trained, 0.0)
        of_plans = dict.fromkeys(('plan', 'loop'), 0.0)  # after the loop has found its plan
        found_after = batches
        for number in range(batches):
            for way in sorted(trained, reverse=number % 2 == 1):
                begun = time.perf_counter()
                loss = trained[way].train(regions[way], trained[way].data[number % BATCHES])
                if way == 'loop':
                    finds.step(loss)
                took = time.perf_counter() - begun
                seconds[way] += took
                if way in of_plans and found_after < number:
                    of_plans[way] += took
            if finds.found is not None:
                found_after = min(found_after, number + 1)
    best = min(seconds['fp32'], seconds['autocast'])
    row = [name, '-' if finds.found is None else kept(finds.found), str(found_after), str(finds.batches_undone)]
    row += [f"{seconds['loop'] / each:.3f}" for each in (seconds['fp32'], seconds['autocast'], best)]
    row += [f"{of_plans['loop'] / of_plans['plan']:.3f}" if of_plans['plan'] else '-']
    print(f'| {" | ".join(row)} |', flush=True)


def measure(name, rounds):
    with tempfile.TemporaryDirectory() as folder:
        path, of_compiled = (os.path.join(folder, file) for file in ('plan.json', 'compiled.json'))
        found, seconds_of_search = searched(name, path)
        ways = {'fp32': 'fp32', 'autocast': 'autocast', 'plan': path}
        if 'IPEX_PYTHON' in os.environ:
            times = in_turns(name, rounds, ways, Ipex(name))
        else:
            found_compiled, seconds_of_compiled = searched(name, of_compiled, compiled=True)
            ways |= {'compiled autocast': 'autocast', 'compiled plan': of_compiled}
            times = in_turns(name, rounds, ways)

    def over(way, other):
        return ratio(times[other], times[way]) if way in times and other in times else 'it fails'

    row = [name, kept(found), over('autocast', 'fp32'), over('plan', 'fp32'), over('plan', 'autocast'), f'{seconds_of_search:.0f} s']
    if 'IPEX_PYTHON' in os.environ:
        row += [over('plan', 'peer')]
    else:
        row += [kept(found_compiled), over('plan', 'compiled autocast'), over('compiled plan', 'compiled autocast')]
        row += [f'{seconds_of_compiled:.0f} s']
    print(f'| {" | ".join(row)} |', flush=True)


def main():
    if sys.argv[1:2] == ['--ipex']:
        return ipex(sys.argv[2])
    if loops := sys.argv[1:2] == ['--loops']:
        del sys.argv[1]
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000 if loops else 40
    head = ['training', 'plan', 'found after', 'undone', 'loop over FP32', 'over autocast', 'over the better', 'its plan over the search\'s'] if loops else ['training', 'plan', 'autocast over FP32', 'plan over FP32', 'plan over autocast', 'search']
    head += [] if loops else ['plan over IPEX'] if 'IPEX_PYTHON' in os.environ else [
        'compiled plan', 'plan over compiled autocast', 'compiled plan over compiled autocast', 'compiled search'
    ]
    print(f'| {" | ".join(head)} |\n{"|---" * len(head)}|')
    for name in sys.argv[2:] or TRAININGS:
        if TRAININGS[name].missing:
            print(f'| {name} | no {" and ".join(TRAININGS[name].missing)} here {"| " * (len(head) - 2)}|')
        else:
            (measure_loop if loops else measure)(name, rounds)


if __name__ == "__main__":
    main()
