# SPDX-License-Identifier: Apache-2.0
"""Trains small models of other people's for three steps: with every operator as it is written, which has to have torch's
weights to the bit; under PyTorch's rules, which have to have those of torch.autocast; and searches some of them."""

import copy
import warnings

import torch
from torch.utils._pytree import tree_leaves

import comp
from regions import autocast, Fault, difference, first_line, recorded, Case, Given, write_plan

STEPS = 3


class Autocast:
    """autocast() for several steps."""

    def __init__(self, shared):
        self.shared = shared

    def __enter__(self):
        self.inner = autocast(self.shared)
        self.inner.__enter__()

    def __exit__(self, *raised):
        self.inner.__exit__(*raised)


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
    seen = []
    for _ in range(STEPS):
        with plan:
            loss = loss_of(model(**copy.deepcopy(given)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.detach())
    return seen, dict(model.state_dict())


def compared(now, want):
    for i, pair in enumerate(zip(now[0], want[0])):
        if (found := difference(*pair)) is not None:
            return f'loss {i}: {found}'
    wrong = [(name, found) for name, value in want[1].items() if (found := difference(now[1][name], value)) is not None]
    return f'{len(wrong)} of {len(want[1])} weights, first {wrong[0][0]}: {wrong[0][1]}' if wrong else None


def nearly(now, want):
    """Whether the first loss is the same to the bit, and those after updates differ by little."""
    return torch.equal(now[0], want[0]) and all(abs(a - b) <= 1e-2 * abs(b) for a, b in zip(now, want))


class TrainingChecks:
    def __init__(self, folder):
        self.path = folder + '/plan.json'

    def __call__(self, make, searches):
        """Faults; None if the model cannot be made, "random" if torch does not train it twice alike."""
        try:
            model, given = make()
            nothing = lambda _: torch.autocast('cpu', enabled=False)
            want = trained(model, given, nothing)
        except Exception:
            return None
        if compared(trained(model, given, nothing), want) is not None:
            return 'random'
        faults = []

        def check(label, region, want):
            try:
                now = trained(model, given, region)
                if label == 'rules':
                    found, shared = compared(now, want[False]), compared(now, want[True])
                    if found is not None and shared is None:
                        label = 'rules shared'
                    elif found is not None and nearly(now[0], want[False][0]):
                        label, found = 'rules nearly', shared
                else:
                    found = compared(now, want)
            except Exception as raised:
                found = f'raises {type(raised).__name__}: {first_line(raised)}'
            if found is not None:
                faults.append(Fault(label, found))

        try:
            case = Case('', lambda m, a: loss_of(m(**a)), given, copy.deepcopy(model))  # running statistics change
            operators, seen = recorded(case, Given(case))
        except Exception as raised:
            return [Fault('recorded', f'raises {type(raised).__name__}: {first_line(raised)}')]
        self.check_plan(check, 'fp32', operators, [op.as_written for op in operators], want, otherwise='fp32')
        self.rules(check, model, given, operators)
        if searches:
            try:
                self.search(model, given)
            except Exception as raised:
                faults.append(Fault('search', f'raises {type(raised).__name__}: {first_line(raised)}'))
        return faults

    def rules(self, check, model, given, operators):
        by_torch = {}
        for shared in (False, True):
            try:
                by_torch[shared] = trained(model, given, lambda _: Autocast(shared))
                if compared(trained(model, given, lambda _: Autocast(shared)), by_torch[shared]) is not None:
                    return
            except Exception:
                return
        letters = dict(comp._comp.rules(operators, 'bf16')[0])['pytorch']
        names = {'1': 'fp32', 'b': 'bf16', 'd': 'fp64'}
        self.check_plan(check, 'rules', operators, [names[letter] for letter in letters], by_torch)

    def check_plan(self, check, label, operators, chosen, want, **more):
        write_plan(self.path, operators, chosen)
        check(label, lambda model: comp.plan(self.path, model, forced=True, **more), want)

    @staticmethod
    def search(model, given):
        model = copy.deepcopy(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)

        def step(plan, batch):
            with plan:
                loss = loss_of(model(**batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        race = {'min_rounds': 6, 'max_rounds': 6, 'fp32_rounds': 6, 'contest_rounds': 6}
        comp.search(step, model=model, optimizer=optimizer, data=[given] * 40, batches_per_epoch=4, race=race,
                    progress=False, precisions=['bf16'])
