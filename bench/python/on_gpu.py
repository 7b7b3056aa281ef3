# SPDX-License-Identifier: Apache-2.0
"""What a plan that was found, loaded from its file in a loop of the user's own, is worth on a GPU beside FP32, TF32 and
torch.autocast, with torch.compile and without: blocks of steps in turns, each ended by one wait. `--compiled` compares
compiled steps, too, whose plan is that of another search.
Usage: on_gpu.py [--compiled] [--rounds=N] [--model=NAME] [FILE.json]    --models: only their names"""

import json
import os
import sys
import tempfile
import time

os.environ['COMP_TEST_DEVICE'] = 'cuda'

import torch
import trainings
from known_trainings import BATCHES, classifies, dice, of_transformers
from support import NoPlan

BLOCK = 4  # steps between waits
torch.set_default_device(None)  # it costs each call a microsecond: models and data are made on the GPU, and steps do without


def pictures(count, classes=1000):
    draw = dice()
    labels = [torch.randint(0, classes, (count,), generator=draw) for _ in range(BATCHES)]
    return [(torch.randn(count, 3, 224, 224, generator=draw) + y.reshape(-1, 1, 1, 1) / classes, y) for y in labels]


def words(count, length, most):
    begins = [torch.randint(2, most, (count, 1), generator=dice().manual_seed(i)) for i in range(BATCHES)]
    return [{'input_ids': (begin + torch.arange(length)) % (most - 2) + 2} for begin in begins]


def gpt2():
    import transformers

    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return of_transformers(net, [batch | {'labels': batch['input_ids']} for batch in words(8, 512, 50000)])


def bert():
    import transformers

    net = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=4))
    data = [b | {'labels': b['input_ids'][:, 0] % 4, 'attention_mask': torch.ones_like(b['input_ids'])} for b in words(32, 128, 30000)]
    for batch in data:
        batch['attention_mask'][::3, 100:] = 0
    return of_transformers(net, data)


def vit_b_16():
    import torchvision

    return classifies(torchvision.models.vit_b_16(), pictures(64))


def resnet50():
    import torchvision

    return classifies(torchvision.models.resnet50(), pictures(64))


TRAININGS = {make.__name__: make for make in (gpt2, bert, vit_b_16, resnet50)}


class Tf32(NoPlan):
    """FP32 whose products may round to TF32, forward and backward, as PyTorch lets convolutions anyway."""


def fresh(name):
    torch.manual_seed(0)
    with torch.device('cuda'):
        training = TRAININGS[name]()
    training.optimizers = [torch.optim.AdamW(training.model.parameters(), 1e-4, fused=True)]
    return training


def block(training, region, turn):
    """Trains some steps. Returns: their mean seconds."""
    torch.backends.cuda.matmul.allow_tf32 = isinstance(region, Tf32)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(BLOCK):
        training.train(region, training.data[(turn * BLOCK + number) % BATCHES])
    torch.cuda.synchronize()
    torch.backends.cuda.matmul.allow_tf32 = False
    return (time.perf_counter() - begun) / BLOCK


trainings.fresh, trainings.Autocast.device, trainings.REGIONS['tf32'] = fresh, 'cuda', Tf32


def measure(name, rounds, compiled):
    with tempfile.TemporaryDirectory() as folder:
        path, of_compiled = (os.path.join(folder, file) for file in ('plan.json', 'compiled.json'))
        found, seconds_of_search = trainings.searched(name, path)
        print(found, flush=True)
        ways = {'fp32': 'fp32', 'tf32': 'tf32', 'autocast': 'autocast', 'plan': path}
        if isinstance(fresh(name).data[0], tuple):
            ways['autocast, channels-last'] = 'autocast'
        if compiled:
            trainings.searched(name, of_compiled, compiled=True)
            ways |= {'compiled autocast': 'autocast', 'compiled plan': of_compiled}
        times = trainings.in_turns(name, rounds, ways, take_turn=block)
    rows = []
    for way, seconds in times.items():
        over, *bounds = trainings.bounds([mine / plan for mine, plan in zip(seconds, times['plan'])])
        ranked, quarter = sorted(seconds), len(seconds) // 4
        rows.append({'name': way, 'seconds': ranked[len(ranked) // 2], 'quartiles': [ranked[quarter], ranked[-1 - quarter]],
                     'plan_over': over, 'plan_over_bounds': bounds})
        print(f'{name}, {way}: {1e3 * rows[-1]["seconds"]:.2f} ms, {over:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f}) of the plan\'s', flush=True)
    return {'model': name, 'plan': trainings.kept(found), 'search_seconds': seconds_of_search, 'ways': rows}


def main():
    if '--models' in sys.argv:
        return print(*TRAININGS)
    rounds = next((int(a[9:]) for a in sys.argv if a.startswith('--rounds=')), 12)
    chosen = [a[8:] for a in sys.argv if a.startswith('--model=')] or TRAININGS
    jobs = [measure(name, rounds, '--compiled' in sys.argv) for name in chosen]
    for file in (a for a in sys.argv[1:] if not a.startswith('--')):
        with open(file, 'w') as to:
            json.dump({'version': torch.__version__, 'jobs': jobs}, to)


if __name__ == '__main__':
    main()
