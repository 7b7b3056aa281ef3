# SPDX-License-Identifier: Apache-2.0
"""Steps of two data-parallel ranks in FP32, under torch.autocast with and without gradients in BF16, and under the plan
that comp.search finds, with and without its format of the exchange. In turns.

Usage: torchrun --nnodes 2 ... exchange.py [sharded]     on two machines
       exchange.py 1gbit [sharded]                       two namespaces of this machine with a link of that rate, as root
sharded: by fully_shard in place of DistributedDataParallel"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault('OMP_NUM_THREADS', '1')

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comp

WORDS, WIDTH, TURNS, FILES = 512, 512, 20, ('plan.json', 'kept.json')


def in_bf16(group, bucket):
    """As torch's bf16_compress_hook, which wants nccl."""
    sent = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    sums = dist.all_reduce(sent, async_op=True).get_future()
    return sums.then(lambda done: bucket.buffer().copy_(done.value()[0]))


class Training:
    def __init__(self, sharded, by_hand=False):
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
        body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        net = nn.Sequential(nn.Embedding(WORDS, WIDTH), body, nn.Linear(WIDTH, WORDS))
        if sharded:
            low = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16) if by_hand else MixedPrecisionPolicy()
            for part in [*body.layers, net]:
                fully_shard(part, mp_policy=low)
            self.net = net
        else:
            self.net = DistributedDataParallel(net)
            if by_hand:
                self.net.register_comm_hook(None, in_bf16)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-4, fused=True)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.data = [torch.randint(0, WORDS, (4, 64), generator=generator) for _ in range(8)]

    def step(self, plan, x):
        with plan:
            loss = cross_entropy(self.net(x).flatten(0, 1), (7 * x % WORDS).flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def find_plans(training):
    """Writes the plan that a search finds, and the same with gradients in FP32."""
    found = comp.search(
        training.step, model=training.net, optimizer=training.optimizer, data=training.data, progress=False
    )
    if dist.get_rank() == 0:
        print(found)
        found.save(FILES[0])
        with open(FILES[0]) as file:
            content = json.load(file)
        print(f'gradients travel in {content["operators"][-1]["precision"]}')
        content['operators'][-1]['precision'], content['plan'] = 'fp32', content['plan'][:-1] + '1'
        with open(FILES[1], 'w') as file:
            json.dump(content, file)
    dist.barrier()


def compare(sharded):
    find_plans(Training(sharded))
    ways = {'FP32': (Training(sharded), contextlib.nullcontext())}
    ways['autocast'] = (Training(sharded), torch.autocast('cpu', torch.bfloat16))
    ways['autocast, gradients in BF16'] = (Training(sharded, by_hand=True), torch.autocast('cpu', torch.bfloat16))
    for name, path in zip(('plan', 'plan, gradients in FP32'), FILES):
        training = Training(sharded)
        ways[name] = training, comp.plan(path, training.net)
    times = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, (training, plan) in ways.items():
            dist.barrier()
            began = time.perf_counter()
            training.step(plan, training.data[turn % 8]).item()
            times[name].append(1e3 * (time.perf_counter() - began))
    if dist.get_rank() == 0:
        for name, each in times.items():
            tenth = statistics.quantiles(each[1:], n=10)
            print(f'{name}: {statistics.median(each[1:]):.0f} ms ({tenth[0]:.0f} to {tenth[-1]:.0f})')


def on_a_link(rate, arguments):
    """Runs this program on both ends of a link between two namespaces of the network."""
    ip = [['netns', 'add', 'comp0'], ['netns', 'add', 'comp1']]
    ip += ['link add end0 netns comp0 type veth peer name end1 netns comp1'.split()]
    for rank in range(2):
        of = ['-n', f'comp{rank}']
        ip += [[*of, 'addr', 'add', f'10.77.0.{rank + 1}/24', 'dev', f'end{rank}']]
        ip += [[*of, 'link', 'set', name, 'up'] for name in ('lo', f'end{rank}')]
    try:
        for each in ip:
            subprocess.run(['ip', *each], check=True)
        both = []
        for rank in range(2):
            shape = ['qdisc', 'add', 'dev', f'end{rank}', 'root', 'tbf', 'rate', rate, 'burst', '1mb', 'latency', '100ms']
            subprocess.run(['tc', '-n', f'comp{rank}', *shape], check=True)
            meet = {'MASTER_ADDR': '10.77.0.1', 'MASTER_PORT': '29500', 'RANK': str(rank), 'WORLD_SIZE': '2'}
            command = ['ip', 'netns', 'exec', f'comp{rank}', sys.executable, '-W', 'ignore', __file__, *arguments]
            both.append(subprocess.Popen(command, env=os.environ | meet | {'GLOO_SOCKET_IFNAME': f'end{rank}'}))
        return max(abs(each.wait()) for each in both)
    finally:
        for rank in range(2):
            subprocess.run(['ip', 'netns', 'delete', f'comp{rank}'], check=False)


def main():
    if 'RANK' not in os.environ:
        if len(sys.argv) < 2:
            sys.exit(__doc__)
        sys.exit(on_a_link(sys.argv[1], sys.argv[2:]))
    dist.init_process_group('gloo')
    compare('sharded' in sys.argv[1:])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
