# SPDX-License-Identifier: Apache-2.0
"""What a training step under a plan costs from Python, beside the same step from C++ and beside torch.autocast: one
process, one set of operators, one plan (autocast's), in turns. Then what comp.doctor costs.
Usage: step.py [rounds] [threads]"""

import copy
import os
import random
import sys
import tempfile
import time

import comp
import torch
from bench_python_step import Training
from comp._models import modules_of, named_parameters
from torch import nn
from torch.nn.functional import cross_entropy, dropout, gelu, scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = [t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.parts(self.norm(x)).chunk(3, -1)]
        attention = scaled_dot_product_attention(*heads)
        x = x + dropout(self.out(attention.transpose(1, 2).flatten(2)), 0.1)
        return x + dropout(self.down(gelu(self.up(self.norm2(x)))), 0.1)


class Transformer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(width), Block(width)), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn():
    def conv(a, b):
        norm = nn.BatchNorm2d(b)
        norm.num_batches_tracked = None  # Python's alone
        return [nn.Conv2d(a, b, 3, padding=1), norm, nn.ReLU()]

    pool = nn.MaxPool2d(2)
    return nn.Sequential(*conv(3, 64), *conv(64, 64), pool, *conv(64, 128), pool, nn.Flatten(), nn.Linear(128 * 64, 10))


JOBS = {
    'cnn, batch 32 of 3 x 32 x 32': (cnn, (32, 3, 32, 32)),
    'mlp 512-1024-1024-10, batch 128': (lambda: mlp(512, 1024, 1024, 10), (128, 512)),
    'transformer, 2 layers, width 256, 8 x 128': (lambda: Transformer(256), (8, 128, 256)),
    'mlp of 8 layers of 16, batch 4': (lambda: mlp(*[16] * 9), (4, 16)),
}


def trained(net, optimizer, region, x, y):
    with region:
        loss = cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Nothing:
    """A region in which nothing happens: what the `with` itself costs."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def median(values):
    return torch.tensor(values, dtype=torch.float64).quantile(0.5).item()


def bounds(values):
    """95%, by ranks: as comp's contest has them."""
    ranked, n = sorted(values), len(values)
    below = max(0, int((n - 1.96 * n**0.5) / 2))
    return ranked[below], ranked[n - 1 - below]


def ratio(a, b):
    each = [x / y for x, y in zip(a, b)]
    return '{:.4f} ({:.4f} to {:.4f})'.format(median(each), *bounds(each))


def measure(name, make, shape, rounds):
    torch.manual_seed(1)
    net = make()
    twin = copy.deepcopy(net)  # C++'s
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    tensors = [t for m in twin.modules() for t in [*m.parameters(recurse=False), *m.buffers(recurse=False)]]
    there = Training(name.split()[0].strip(','), named_parameters(modules_of(twin)), tensors, x, y)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'plan.json')
        there.plan(path)
        plan = comp.plan(path, net, keep_memory=True)  # as the C++ step beside it
        twin.load_state_dict(net.state_dict())  # recording was a forward
        optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
        for _ in range(3):
            torch.manual_seed(2)
            theirs = there.planned_step()
            torch.manual_seed(2)
            assert torch.equal(theirs, trained(net, optimizer, plan, x, y)), 'the two languages part'
    ways = {
        'C++, FP32': there.fp32_step,
        'C++, plan': there.planned_step,
        'Python, FP32': lambda: trained(net, optimizer, Nothing(), x, y),
        'Python, plan': lambda: trained(net, optimizer, plan, x, y),
        'Python, autocast': lambda: trained(net, optimizer, torch.autocast('cpu', torch.bfloat16), x, y),
    }
    seconds = {way: [] for way in ways}
    begun = time.perf_counter()
    for step in ways.values():
        step()
    calls = max(1, round(0.01 * len(ways) / (time.perf_counter() - begun)))  # a turn takes 10 ms or a step
    order, turns = list(ways), random.Random(1)
    for _ in range(rounds):
        turns.shuffle(order)  # what ran before has its part in a step's time: caches, threads that are awake
        for way in order:
            begun = time.perf_counter()
            for _ in range(calls):
                ways[way]()
            seconds[way].append((time.perf_counter() - begun) / calls)
    us = {way: 1e6 * median(took) for way, took in seconds.items()}
    c, c_plan, p, p_plan, p_auto = seconds.values()
    added = [(pp - pf) - (cp - cf) for cf, cp, pf, pp in zip(c, c_plan, p, p_plan)]
    low, high = bounds(added)
    print(f'{name}: ' + ', '.join(f'{way} {took:.0f} us' for way, took in us.items()))
    print(f'  plan, Python / C++ {ratio(p_plan, c_plan)}; FP32, Python / C++ {ratio(p, c)}')
    print(f'  what comp adds in Python {1e6 * median(added):.0f} us ({1e6 * low:.0f} to {1e6 * high:.0f})')
    print(f'  in Python, plan / autocast {ratio(p_plan, p_auto)}')
    examined(net, x, y, rounds)


def examined(net, x, y, rounds):
    """An examined step, forward and backward, in steps like it."""
    times = {'plain': [], 'examined': []}

    def plain():
        net.zero_grad()
        cross_entropy(net(x), y).backward()

    def examine():
        comp.doctor(net, (x, y), loss=cross_entropy)

    plain()
    examine()
    for _ in range(rounds):
        for way, run in (('plain', plain), ('examined', examine)):
            begun = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - begun)
    print(f'  examined / plain {ratio(times["examined"], times["plain"])}', flush=True)


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if len(sys.argv) > 2:
        torch.set_num_threads(int(sys.argv[2]))
    for name, (make, shape) in JOBS.items():
        measure(name, make, shape, rounds)
