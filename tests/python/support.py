# SPDX-License-Identifier: Apache-2.0
"""Small trainings, always the same. COMP_TEST_DEVICE=cuda has them on a GPU."""

import os
import tempfile
import unittest

os.environ.setdefault('OMP_NUM_THREADS', '1')
if capability := os.environ.get('ATEN_CPU_CAPABILITY'):  # Inductor (2.11) takes from its cache what it made for another one
    os.environ.setdefault('TORCHINDUCTOR_CACHE_DIR', os.path.join(tempfile.gettempdir(), f'torchinductor_{capability}'))

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import comp

torch.set_num_threads(1)
DEVICE = os.environ.get('COMP_TEST_DEVICE', 'cpu')
if DEVICE != 'cpu':
    torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS wants CUBLAS_WORKSPACE_CONFIG=:4096:8 for it

features = set() if 'COMP_WITHOUT_AVX512' in os.environ else set(open('/proc/cpuinfo').read().split())
if DEVICE == 'cpu' and not {'avx512_bf16', 'amx_bf16'} & features:
    # This CPU is slow in BF16, so that comp neither searches it nor takes a plan with it, unless it is told to.
    found_here, planned_here = comp.search, comp.plan

    def search(*arguments, **more):
        return found_here(*arguments, **({} if 'target' in more else {'precisions': ['bf16']}) | more)

    def plan(*arguments, **more):
        return planned_here(*arguments, **{'forced': True} | more)

    comp.search, comp.plan = search, plan
inductor = unittest.skipIf(' ' in torch.__path__[0], "torch lies in a path with a space, which Inductor (2.11) does not quote for the linker")
QUICK = {'race': {'min_rounds': 6, 'max_rounds': 6, 'fp32_rounds': 6, 'contest_rounds': 6}, 'progress': False}


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    ).to(DEVICE)


def some_images(n=128):
    generator = torch.Generator().manual_seed(11)
    y = torch.randint(0, 4, (n,), generator=generator)
    x = torch.randn(n, 3, 8, 8, generator=generator) + 0.5 * y.reshape(-1, 1, 1, 1)
    return x.to(DEVICE), y.to(DEVICE)


def training_step(optimizer, loss_of):
    """A step that trains by `loss_of(plan)`, whatever the batch is."""

    def step(plan, batch):
        loss = loss_of(plan)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


class Classification:
    """A net, an optimizer, a schedule and a loader, as users have them."""

    def __init__(self, net=None, workers=0):
        torch.manual_seed(1)
        self.net = net or small_net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        self.loader = DataLoader(TensorDataset(*some_images()), 16, shuffle=True, num_workers=workers)
        self.steps = 0

    def step(self, plan, batch):
        self.steps += 1
        x, y = batch
        with plan:
            loss = cross_entropy(self.net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.update()
        return loss

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def search(self, step=None, **more):
        given = {'model': self.net, 'optimizer': self.optimizer, 'data': self.loader, 'state': [self.schedule]}
        return comp.search(step or self.step, **(given | QUICK | more))

    def everything(self):
        """All that a search must put back."""
        return comp._state.copied(
            {
                'net': self.net.state_dict(),
                'optimizer': self.optimizer.state_dict(),
                'schedule': self.schedule.state_dict(),
                'random': [torch.get_rng_state(), *states_of_gpus()],
            }
        )


def states_of_gpus():
    """The states of torch's generators for GPUs, if trainings are there."""
    return torch.cuda.get_rng_state_all() if DEVICE != 'cpu' else []


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class NoPlan:
    """In place of a plan: nothing is lowered."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __call__(self, _):
        return self


def plan_file(net, run, precision='bf16', kinds=('conv2d', 'linear'), protect_blocks=True):
    """A plan file for what `run(plan)` does with `net`: `precision` for the kinds."""
    import json

    path = os.path.join(tempfile.mkdtemp(), 'plan.json')
    operators = [
        {
            'name': op.name,
            'kind': op.kind,
            'precision': precision if op.choosable and any(k in op.kind for k in kinds) else 'fp32',
            'hands_on_fp32': op.hands_on_fp32,
        }
        for op in operators_of(net, run, protect_blocks)
    ]
    with open(path, 'w') as file:
        json.dump({'comp_plan': 1, 'operators': operators}, file)
    return path


def operators_of(net, run, protect_blocks=True):
    """The operators that `run(plan)`, a forward that returns a loss, is recorded with."""
    models = comp._models.modules_of(net)
    idle = torch.optim.SGD(
        net.parameters() if isinstance(net, nn.Module) else [p for m in models.values() for p in m.parameters()], 0.0
    )

    def step(value, generators):
        return [('loss', run(region).detach())]

    state = comp._state.OtherState(models, [idle], [])
    training = comp._comp.Training(
        models=comp._models.named_parameters(models),
        read=comp._models.named_parameters(models),
        pull=lambda: (None, None, []),
        step=step,
        score=None,
        save=state.save,
        restore=state.restore,
        tensors=state.tensors,
        others=state.named_tensors,
        compile=lambda on: False,
        rates=None,
        length=1,
        keep_bytes=1 << 30,
        keep_memory=False,
        data='',
        tune=False,
        protect_blocks=protect_blocks,
        states_on=None,
        about='',
        states=[],
        prepare=lambda: None,
    )
    region = comp.Region(training.regions)
    return training.operators()
