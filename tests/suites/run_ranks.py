# SPDX-License-Identifier: Apache-2.0
"""Trains the small nets of torch's own distributed tests on two ranks, in the ways of those tests (FSDP2, DDP), under comp.
All FP32 and FP32 in a loop have to have torch's losses and weights to the bit, PyTorch's rules those of torch.autocast, and
searches must not raise. Prints a table; fails if something is wrong."""

import argparse
import contextlib
import copy
import datetime
import fnmatch
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import warnings

os.environ.setdefault('OMP_NUM_THREADS', '1')
warnings.filterwarnings('ignore')

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

import comp
from regions import write_plan
from trainings import SEARCH, Autocast

STEPS = 3
WORDS = 8
LONGEST = 900  # seconds of a way, on a busy machine


def mlps():
    from torch.testing._internal.common_fsdp import MLPStack

    return MLPStack(16)


def transformer(**how):
    from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

    return Transformer(ModelArgs(**how))


def two_layers(second):
    from torch.testing._internal.common_fsdp import DoubleLinear

    class Net(nn.Sequential):
        def forward(self, x):
            out = super().forward(x)
            return out[0] * out[1] if second else out

    return Net(nn.Linear(16, 16), DoubleLinear(16, second))


def frozen(net):
    """Every other layer, and all biases of the others."""
    for i, part in enumerate(net.modules()):
        if isinstance(part, nn.Linear):
            for name, p in part.named_parameters():
                p.requires_grad_(i % 2 == 1 and name == 'weight')
    return net


def shard(net, each=True, **how):
    """Blocks one by one, and what is left."""
    how.setdefault('mesh', init_device_mesh('cpu', (2,)))
    for part in (net.layers if hasattr(net, 'layers') else net) if each else ():
        fully_shard(part, **how)
    return fully_shard(net, **how)


def prefetching(net):
    blocks = list(shard(net))
    for first, second in zip(blocks, blocks[1:]):
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
    return net


def ddp(net, **how):
    return DistributedDataParallel(net, **how)


def hooked(net, hook):
    net = ddp(net)
    net.register_comm_hook(None, hook)
    return net


def unsharded_ahead(net, *_):
    net.unshard()


def mlps_with_statistics():
    return nn.Sequential(nn.BatchNorm1d(16), *mlps())


class Way:
    """How a training is done."""

    def __init__(self, net, wrap, clip=None, micro=1, ahead=None, optimizer=torch.optim.AdamW, alike=True):
        self.net, self.wrap, self.clip, self.micro, self.ahead, self.optimizer = net, wrap, clip, micro, ahead, optimizer
        self.alike = alike  # torch keeps the ranks' weights the same


low = torch.bfloat16
WAYS = {
    'FSDP2, mlp': Way(mlps, shard),
    'FSDP2, root alone': Way(mlps, lambda net: shard(net, False)),
    'FSDP2, transformer, tied, dropout': Way(transformer, shard),
    'FSDP2, transformer, checkpoints': Way(lambda: transformer(checkpoint_activations=True, dropout_p=0.0), shard),
    'FSDP2, frozen': Way(mlps, lambda net: shard(frozen(net))),
    'FSDP2, transformer, frozen, clip': Way(transformer, lambda net: shard(frozen(net)), clip=0.1),
    'FSDP2, clip': Way(mlps, shard, clip=0.05),
    'FSDP2, micro-batches': Way(mlps, shard, micro=2),
    'FSDP2, SGD': Way(mlps, shard, optimizer=lambda p, lr: torch.optim.SGD(p, lr, 0.9)),
    'FSDP2, stays whole': Way(mlps, lambda net: shard(net, reshard_after_forward=False)),
    'FSDP2, reduces in BF16': Way(mlps, lambda net: shard(net, mp_policy=MixedPrecisionPolicy(reduce_dtype=low))),
    'FSDP2, FP32 by policy': Way(mlps, lambda net: shard(net, mp_policy=MixedPrecisionPolicy(torch.float32, torch.float32, torch.float32))),
    'FSDP2, BF16 by policy': Way(mlps, lambda net: shard(net, mp_policy=MixedPrecisionPolicy(low))),
    'FSDP2, prefetch': Way(mlps, prefetching),
    'FSDP2, ahead': Way(mlps, shard, ahead=unsharded_ahead),
    'FSDP2, columns': Way(mlps, lambda net: shard(net, shard_placement_fn=lambda p: Shard(p.dim() - 1))),
    'FSDP2, offloaded': Way(mlps, lambda net: shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))),
    'FSDP2, ignored': Way(mlps, lambda net: shard(net, ignored_params=set(net[2].parameters())), alike=False),
    'FSDP2, groups of modules': Way(mlps, lambda net: (fully_shard([net[0], net[1]]), fully_shard(net))[1]),
    'FSDP2, replicated': Way(mlps, lambda net: shard(net, mesh=init_device_mesh('cpu', (2, 1), mesh_dim_names=('r', 's')))),
    'FSDP2, a layer unused': Way(lambda: two_layers(False), shard),
    'FSDP2, two results': Way(lambda: two_layers(True), shard),
    'FSDP2, running statistics': Way(mlps_with_statistics, shard),
    'DDP, mlp': Way(mlps, ddp),
    'DDP, transformer, tied, dropout': Way(transformer, ddp),
    'DDP, transformer, checkpoints': Way(lambda: transformer(checkpoint_activations=True, dropout_p=0.0), ddp),
    'DDP, frozen, clip': Way(mlps, lambda net: ddp(frozen(net)), clip=0.1),
    'DDP, micro-batches': Way(mlps, ddp, micro=2),
    'DDP, static graph, views': Way(mlps, lambda net: ddp(net, static_graph=True, gradient_as_bucket_view=True)),
    'DDP, a layer unused': Way(lambda: two_layers(False), lambda net: ddp(net, find_unused_parameters=True)),
    'DDP, two results': Way(lambda: two_layers(True), ddp),
    'DDP, small buckets': Way(mlps, lambda net: ddp(net, bucket_cap_mb=0.001)),
    'DDP, BF16 hook': Way(mlps, lambda net: hooked(net, default_hooks.bf16_compress_hook)),
    'DDP, ZeRO': Way(mlps, ddp, optimizer=lambda p, lr: ZeroRedundancyOptimizer(p, torch.optim.AdamW, lr=lr)),
    'DDP, running statistics': Way(mlps_with_statistics, ddp),
    'DDP, statistics of ranks': Way(mlps_with_statistics, lambda net: ddp(net, broadcast_buffers=False)),
}  # fmt: skip


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, 'full_tensor') else tensor).detach().clone()


class Training:
    def __init__(self, way):
        torch.manual_seed(0)
        self.way, self.net = way, way.net()
        self.words = hasattr(self.net, 'tok_embeddings')
        self.net = way.wrap(self.net)
        self.optimizer = way.optimizer([p for p in self.net.parameters() if p.requires_grad], lr=1e-2)
        generator = torch.Generator().manual_seed(1 + dist.get_rank())
        shape = (way.micro, 4, WORDS) if self.words else (way.micro, 4, 16)
        make = (lambda: torch.randint(0, 8, shape, generator=generator)) if self.words else (lambda: torch.randn(shape, generator=generator))
        self.data = [make() for _ in range(8)]
        torch.manual_seed(2 + dist.get_rank())

    def step(self, region, batch):
        for i, x in enumerate(batch):
            last = i + 1 == len(batch)
            if self.way.ahead:
                self.way.ahead(self.net)
            if hasattr(self.net, 'set_requires_gradient_sync'):
                self.net.set_requires_gradient_sync(last)
            with self.net.no_sync() if not last and hasattr(self.net, 'no_sync') else contextlib.nullcontext():
                with region:
                    loss = (self.net(x).float() - 1).square().mean() / len(batch)
                loss.backward()
        if self.way.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.way.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def weights(self):
        return [whole(t) for t in self.net.state_dict().values()]

    def trained(self, region, steps=STEPS, end=lambda _: None):
        """The losses, and the weights after them."""
        losses = []
        for k in range(steps):
            loss = self.step(region, self.data[k % len(self.data)])
            end(loss)
            losses.append(loss.detach())
        return losses + self.weights()


def compared(now, want):
    wrong = [i for i, (a, b) in enumerate(zip(now, want)) if not torch.equal(a, b)]
    if not wrong:
        return None
    a, b = now[wrong[0]].double(), want[wrong[0]].double()
    what = f'loss {wrong[0]}' if wrong[0] < STEPS else 'weights'
    return f'{what} and {len(wrong) - 1} more: differs by {float((a - b).abs().max()):.3g} of {float(b.abs().max()):.3g}'


def faults_of(way, folder):
    """(check, what is wrong) of a way to train; a word in place of the list if it is not compared."""
    nothing = contextlib.nullcontext()
    want = Training(way).trained(nothing)
    if compared(Training(way).trained(nothing), want):
        return 'random'
    faults, path = [], os.path.join(folder, 'plan.json')

    def check(label, run, want=None):
        try:
            found = compared(run(), want) if want is not None else run()
        except comp.SettingsError as raised:
            found = f'refused: {str(raised)[:200]}'
        except Exception as raised:
            found = f'raises {type(raised).__name__}: {str(raised)[:300]}'
        if found is not None:
            faults.append((label, found))

    def planned(letters):
        if dist.get_rank() == 0:
            write_plan(path, found.operators, letters)
        dist.barrier()
        job = Training(way)
        return job.trained(comp.plan(path, job.net, forced=True))

    def loop(steps, **how):
        job = Training(way)
        plan = comp.autocast(job.net, optimizer=job.optimizer, batches_per_epoch=4, **SEARCH, **how)
        return job.trained(plan, steps, plan.step), job.net

    def search(**how):
        job = Training(way)
        return comp.search(job.step, model=job.net, optimizer=job.optimizer, data=job.data * 5, batches_per_epoch=4, progress=False, **SEARCH, **how), job

    def same_on_ranks(net):
        """Whether the ranks still have one model: not, if each kept a plan of its own or undid other batches."""
        own = hashlib.sha256(b''.join(whole(p).numpy().tobytes() for p in net.parameters())).hexdigest()
        of_all = [None, None]
        dist.all_gather_object(of_all, own)
        return None if len(set(of_all)) == 1 or not way.alike else 'the ranks have other weights'

    try:
        found, _ = search(policy='all_fp32')
    except comp.SettingsError as raised:
        return f'refused: {str(raised)[:300]}'
    except Exception as raised:
        return [('search', f'raises {type(raised).__name__}: {str(raised)[:300]}')]
    check('fp32', lambda: planned([op.as_written for op in found.operators]), want)
    letters, names = dict(comp._comp.rules(found.operators, 'bf16')[0])['pytorch'], {'1': 'fp32', 'b': 'bf16', 'd': 'fp64'}
    low = [op.as_written if op.kind == 'all_reduce' else names[letter] for op, letter in zip(found.operators, letters)]
    check('rules', lambda: planned(low), Training(way).trained(Autocast()))
    check('loop in fp32', lambda: loop(STEPS, policy='all_fp32')[0], want)
    check('loop', lambda: same_on_ranks(loop(120)[1]))
    check('search', lambda: same_on_ranks(search()[1].net))
    return faults


def serve(rank, folder, name, answer):
    torch.set_num_threads(1)
    warnings.filterwarnings('ignore')
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2, timeout=datetime.timedelta(seconds=120))
    try:
        faults = faults_of(WAYS[name], folder)
    except Exception as raised:
        faults = f'not run: {type(raised).__name__}: {str(raised)[:300]}'
    answer.send(json.dumps(faults))
    os._exit(0)


def said_of(name):
    """What rank 0 says; the other ends with it."""
    forks, running = multiprocessing.get_context('fork'), []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(2):
                hears, answer = forks.Pipe(duplex=False)
                running.append((forks.Process(target=serve, args=(rank, folder, name, answer)), hears))
                running[-1][0].start()
                answer.close()
            answers = []
            for process, hears in running:
                if not hears.poll(LONGEST):
                    return [('ranks', f'a rank says nothing for {LONGEST} s')]
                try:
                    answers.append(json.loads(hears.recv()))
                except EOFError:
                    process.join()
                    return [('ranks', f'a rank ended with {process.exitcode}')]
            return next((each for each in answers if each), answers[0])
        finally:
            for process, _ in running:
                process.kill()
                process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', default='*', help='names, such as "DDP*"')
    given = parser.parse_args()
    wrong = 0
    for name in WAYS:
        if not fnmatch.fnmatch(name, given.only):
            continue
        answer = said_of(name)
        text = answer if isinstance(answer, str) else '; '.join(f'{check}: {what}' for check, what in answer) or 'right'
        wrong += isinstance(answer, list) and bool(answer)
        print(f'| {name} | {text} |', flush=True)
    sys.exit(bool(wrong))


if __name__ == '__main__':
    main()
