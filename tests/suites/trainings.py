# SPDX-License-Identifier: Apache-2.0
"""Trains small models of other people's for three steps: with every operator as it is written, which has to have torch's
weights to the bit; under PyTorch's rules, which have to have those of torch.autocast; and searches some of them, also in
a loop, whose first batches have torch's losses to the bit."""

import contextlib
import copy
import math

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import comp
from regions import Fault, difference, first_line, recorded, Case, Given, write_plan

STEPS = 3


class Autocast:
    """torch.autocast for several steps."""

    def __enter__(self):
        self.inner = torch.autocast('cpu', torch.bfloat16)
        self.inner.__enter__()

    def __exit__(self, *raised):
        self.inner.__exit__(*raised)


class HidesFormats(TorchFunctionMode):
    """A region in which tensors in BF16 say that they are FP32, so that a model that asks for a format goes one way. Numbers
    of FP32 that BF16 has not, as the least of a mask, are the nearest that it has."""

    def __init__(self, region):
        super().__init__()
        self.region = region

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(self.in_bf16, (args, kwargs or {}))
        result = function(*args, **kwargs)
        return torch.float32 if result is torch.bfloat16 else result

    @staticmethod
    def in_bf16(value):
        most = torch.finfo(torch.bfloat16).max
        return min(max(value, -most), most) if type(value) is float and math.isfinite(value) else value

    def __enter__(self):
        self.region.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        super().__exit__(*raised)
        self.region.__exit__(*raised)


def loss_of(value):
    """The mean square of all that is differentiable in a model's result."""
    found = {id(t): t for t in leaves_of(value) if t.requires_grad and t.is_floating_point()}
    return sum(t.float().square().mean() for t in found.values())


def leaves_of(value):
    if hasattr(value, 'to_tuple'):
        value = value.to_tuple()
    if isinstance(value, (list, tuple)):
        return [t for each in value for t in leaves_of(each)]
    if isinstance(value, dict):
        return [t for each in value.values() for t in leaves_of(each)]
    return [value] if isinstance(value, torch.Tensor) else []


def trained(model, given, region):
    """Losses and weights after some steps of a copy of `model`. `region(model)` gives what the forwards run in."""
    model = copy.deepcopy(model)
    plan = region(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    torch.manual_seed(0)
    losses = []
    for _ in range(STEPS):
        with plan:
            loss = loss_of(model(**copy.deepcopy(given)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses, dict(model.state_dict())


def compared(now, want):
    for i, pair in enumerate(zip(now[0], want[0])):
        if (found := difference(*pair)) is not None:
            return f'loss {i}: {found}'
    wrong = [(name, found) for name, value in want[1].items() if (found := difference(now[1][name], value)) is not None]
    return f'{len(wrong)} of {len(want[1])} weights, first {wrong[0][0]}: {wrong[0][1]}' if wrong else None


class TrainingChecks:
    def __init__(self, folder):
        self.path = folder + '/plan.json'

    def __call__(self, make, searches):
        """Faults; "not run: " and why if the model cannot be made, "random" if torch does not train it twice alike."""
        try:
            model, given = make()
            nothing = lambda _: torch.autocast('cpu', enabled=False)
            want = trained(model, given, nothing)
        except Exception as raised:
            return f'not run: {type(raised).__name__}: {first_line(raised)}'
        if compared(trained(model, given, nothing), want) is not None:
            return 'random'
        faults = []

        def check(label, region, want):
            try:
                now = trained(model, given, region)
                found = compared(now, want)
                if label == 'rules' and found is not None:
                    label, found = self.of_rules(model, given, region, want, found)
            except Exception as raised:
                found = f'raises {type(raised).__name__}: {first_line(raised)}'
            if found is not None:
                faults.append(Fault(label, found))

        try:
            case = Case('', lambda m, a: loss_of(m(**a)), given, copy.deepcopy(model))  # running statistics change
            operators, outcome = recorded(case, Given(case))
        except Exception as raised:
            return [Fault('recorded', f'raises {type(raised).__name__}: {first_line(raised)}')]
        self.check_plan(check, 'fp32', operators, [op.as_written for op in operators], want, otherwise='fp32')
        self.rules(check, model, given, operators)
        for label, find in (('search', self.search), ('loop', self.loop)) if searches else ():
            try:
                if (found := find(model, given, want)) is not None:
                    faults.append(Fault(label, found))
            except Exception as raised:
                faults.append(Fault(label, f'raises {type(raised).__name__}: {first_line(raised)}'))
        return faults

    def rules(self, check, model, given, operators):
        try:
            by_torch = trained(model, given, lambda _: Autocast())
        except Exception:
            return
        letters = dict(comp._comp.rules(operators, 'bf16')[0])['pytorch']
        names = {'1': 'fp32', 'b': 'bf16', 'd': 'fp64'}
        self.check_plan(check, 'rules', operators, [names[letter] for letter in letters], by_torch)

    @staticmethod
    def of_rules(model, given, region, want, found):
        """Which difference from autocast `found` is: none, if autocast itself does not train twice alike."""
        if compared(trained(model, given, lambda _: Autocast()), want) is not None:
            return 'rules', None
        with contextlib.suppress(Exception):  # of a number that FP32 has and BF16 has not
            hidden = trained(model, given, lambda model: HidesFormats(region(model)))
            if compared(hidden, trained(model, given, lambda _: HidesFormats(Autocast()))) is None:
                return 'rules asks', found
        return 'rules', found

    def check_plan(self, check, label, operators, chosen, want, **more):
        write_plan(self.path, operators, chosen)
        check(label, lambda model: comp.plan(self.path, model, forced=True, **more), want)

    @staticmethod
    def search(model, given, want):
        step, model, optimizer = searched(model)
        comp.search(step, model=model, optimizer=optimizer, data=[given] * 40, batches_per_epoch=4, progress=False, **SEARCH)

    @staticmethod
    def loop(model, given, want):
        """How the first losses differ from torch's, in words."""
        step, model, optimizer = searched(model)
        plan = comp.autocast(model, optimizer=optimizer, batches_per_epoch=4, **SEARCH)
        torch.manual_seed(0)
        losses = []
        for _ in range(40):
            losses.append(step(plan, copy.deepcopy(given)).detach())
            plan.step(losses[-1])
        return compared((losses[:STEPS], {}), (want[0], {}))


def searched(model):
    """A step of a search, and what it trains."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

    def step(plan, batch):
        with plan:
            loss = loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, model, optimizer


SEARCH = {'race': {'min_rounds': 6, 'max_rounds': 6, 'fp32_rounds': 6, 'contest_rounds': 6}, 'precisions': ['bf16']}
