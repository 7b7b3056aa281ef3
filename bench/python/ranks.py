# SPDX-License-Identifier: Apache-2.0
"""What searching several ranks as one adds to a step: an order and its answers, by processes that do nothing else, and
epochs of a small network beside the plain loop of DistributedDataParallel. Two processes of gloo on this machine.

Usage: ranks.py"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault('OMP_NUM_THREADS', '1')

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comp
from comp import _ranks

ORDERS, BATCHES, ROUNDS = 3000, 60, 15


def orders():
    """Milliseconds of an answer of each rank and a word to each, as an order takes."""
    team = _ranks.team()
    team.maximum([0.0])
    times = []
    for _ in range(ORDERS):
        began = time.perf_counter()
        team.maximum([0.0])
        times.append(1e3 * (time.perf_counter() - began))
    return times


class Training:
    def __init__(self):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        self.net = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.001)
        self.data = [(torch.randn(64, 512), torch.randint(0, 10, (64,))) for _ in range(BATCHES)]

    def step(self, plan, batch):
        x, y = batch
        with plan:
            loss = cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def epochs():
    """Milliseconds of a batch by the plain loop and by found.train() in FP32, epochs in turns."""
    plain, searched = Training(), Training()
    found = comp.search(
        searched.step,
        model=searched.net,
        optimizer=searched.optimizer,
        data=searched.data,
        policy='all_fp32',
        progress=False,
    )
    by_comp, by_loop = [], []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for batch in plain.data:
            plain.step(torch.enable_grad(), batch).item()
        by_loop.append(1e3 * (time.perf_counter() - began) / BATCHES)
        done = found.train(epochs=2)  # the search has trained the first
        by_comp.append(1e3 * done.epochs[-1].seconds / BATCHES)
    return by_loop[1:], by_comp[1:]


def worker(rank, store):
    dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=2)
    of_orders = orders()
    by_loop, by_comp = epochs()
    if rank == 0:
        order, tenth = statistics.median(of_orders), statistics.quantiles(of_orders, n=10)
        print(f'an order: {order:.3f} ms (10% to 90%: {tenth[0]:.3f} to {tenth[-1]:.3f})')
        more = statistics.median(b - a for a, b in zip(by_loop, by_comp))
        print(f'a batch: plain loop {statistics.median(by_loop):.2f} ms, found.train() {more:+.2f} ms')
    dist.barrier()
    dist.destroy_process_group()


def main():
    if len(sys.argv) == 3:
        worker(int(sys.argv[1]), sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, 'store')
        both = [subprocess.Popen([sys.executable, '-W', 'ignore', __file__, str(rank), store]) for rank in range(2)]
        sys.exit(max(abs(each.wait()) for each in both))


if __name__ == '__main__':
    main()
