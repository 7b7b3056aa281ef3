# SPDX-License-Identifier: Apache-2.0
"""Runs a function as torch does and in regions of comp, and says in which checks the two differ.

A case is a function, its arguments, and modules whose parameters it reads. It runs
- without comp, twice, because some operators give other values in each run;
- recorded, as a search's first forward is;
- under a plan with all operators as they are written: first forward, later forward and without gradients have torch's bits;
- under the plan of PyTorch's rules: results and gradients are those of torch.autocast;
- with every operator low: what is finite without comp stays finite, or does not in torch's own BF16 either."""

import copy
import json
import os
import warnings
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

import comp

LOW = {'fp64': 'fp32'}  # what is written in FP64 may become FP32, all else BF16


@dataclass
class Case:
    name: str
    run: object  # of (module, arguments), gives tensors in any structure
    arguments: object  # a structure with tensors
    module: nn.Module = field(default_factory=nn.Module)  # has the parameters that `run` reads
    takes: str = ''  # the arguments, in words


@dataclass
class Fault:
    check: str  # "fp32 first", "rules later", ...
    what: str


class Given:
    """The arguments of a case, made anew for each run, because an operator may write them. Parameters stay the same tensors."""

    def __init__(self, case):
        self.kept = {id(p): p for p in case.module.parameters()}
        self.state = {k: v.clone() for k, v in case.module.state_dict().items()}
        self.module = case.module
        self.arguments = case.arguments

    def again(self):
        """Arguments and what is differentiated."""
        if self.state:
            with torch.no_grad():
                for name, value in self.module.state_dict().items():
                    value.copy_(self.state[name])
        memo = dict(self.kept)
        for t in tensors_in(self.arguments):
            if t.layout is not torch.strided and id(t) not in memo:  # has no storage that could be copied
                memo[id(t)] = t.detach().clone().requires_grad_(t.requires_grad)
                memo[id(memo[id(t)])] = memo[id(t)]
        arguments = copy.deepcopy(self.arguments, memo)
        of_module = list(self.kept.values())
        known = {id(t) for t in of_module}
        leaves = [t for t in tensors_in(arguments) if t.requires_grad and id(t) not in known]
        return arguments, of_module + list({id(t): t for t in leaves}.values())


@dataclass
class Seen:
    """What a run gave: tensors, their gradients, or an exception."""

    results: list = field(default_factory=list)
    gradients: list = None
    raised: BaseException = None
    backward_raised: BaseException = None


def tensors_in(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def run(case, given, region=None, grad=True):
    arguments, wanted = given.again()
    torch.manual_seed(0)
    outcome = Seen()
    try:
        with torch.set_grad_enabled(grad):
            if region is None:
                value = case.run(case.module, arguments)
            else:
                with region:
                    value = case.run(case.module, arguments)
    except Exception as raised:
        outcome.raised = raised
        return outcome
    leaves = tree_leaves(value)
    outcome.results = leaves
    outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad] if grad else []
    if outputs and wanted:
        torch.manual_seed(1)
        try:
            seeds = [torch.randn(t.shape, dtype=torch.promote_types(t.dtype, torch.float32)).to(t.dtype) for t in outputs]
            outcome.gradients = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
        except Exception as raised:
            outcome.backward_raised = raised
    return outcome


def raw(t):
    """The bits of a tensor, and how it lies."""
    t = t.detach()
    if t.layout is not torch.strided:
        t = t.to_dense()
    if t.is_quantized:
        t = t.dequantize()
    t = torch.empty(t.numel(), dtype=t.dtype).copy_(t.resolve_conj().resolve_neg().reshape(-1))
    return t.view(torch.uint8)


def difference(now, want):
    """In words; None if both are the same bits."""
    if isinstance(now, torch.Tensor) != isinstance(want, torch.Tensor):
        return f'{type(now).__name__}, torch has {type(want).__name__}'
    if not isinstance(want, torch.Tensor):
        return None if now is want or now == want or (now != now and want != want) else f'{now!r}, torch has {want!r}'
    for of in ('dtype', 'shape', 'layout', 'is_conj', 'stride'):
        if of == 'stride' and (want.layout is not torch.strided or want.numel() < 2):
            continue
        mine, theirs = (getattr(t, of) for t in (now, want))
        if of in ('is_conj', 'stride'):
            mine, theirs = mine(), theirs()
        if mine != theirs:
            return f'{of} {mine}, torch has {theirs}'
    if torch.equal(raw(now), raw(want)):
        return None
    if want.is_floating_point() or want.is_complex():
        mine, theirs = (t.detach().to_dense() if t.layout is not torch.strided else t.detach() for t in (now, want))
        if torch.equal(torch.nan_to_num(mine), torch.nan_to_num(theirs)) and torch.equal(mine.isnan(), theirs.isnan()):
            return None  # zeros or NaNs with another sign
        off = (mine.double() - theirs.double()).abs().max() if not mine.is_complex() else (mine - theirs).abs().max()
        return f'differs by {float(off):.3g} of {float(theirs.abs().max()):.3g}'
    return 'other values'


def compared(now, want, gradients=True):
    """How a run differs from the wanted one, in words; None if it does not."""
    if now.raised is not None:
        return f'raises {type(now.raised).__name__}: {first_line(now.raised)}'
    if len(now.results) != len(want.results):
        return f'{len(now.results)} results, torch has {len(want.results)}'
    for i, pair in enumerate(zip(now.results, want.results)):
        if (found := difference(*pair)) is not None:
            return f'result {i}: {found}'
    if not gradients or want.gradients is None:
        return None
    if now.backward_raised is not None:
        return f'its backward raises {type(now.backward_raised).__name__}: {first_line(now.backward_raised)}'
    if now.gradients is None:
        return 'has no gradients'
    for i, (mine, theirs) in enumerate(zip(now.gradients, want.gradients)):
        if (mine is None) != (theirs is None):
            return f'gradient {i}: {"none" if mine is None else "is there"}, torch has {"none" if theirs is None else "one"}'
        if theirs is not None and (found := difference(mine, theirs)) is not None:
            return f'gradient {i}: {found}'
    return None


def first_line(raised):
    return str(raised).partition('\n')[0][:300]


def recorded(case, given):
    """The operators of the case, and what the recorded forward gave."""
    outcomes = []

    def step(value, generators):
        outcomes.append(run(case, given, region))
        if outcomes[-1].raised is not None:
            raise outcomes[-1].raised
        return [('loss', torch.zeros(()))]

    nothing = lambda *_: None
    named = comp._models.named_parameters({'': case.module})
    training = comp._comp.Training(
        models=named, read=named, pull=lambda: (None, None, []), step=step, score=None, save=nothing, restore=nothing,
        tensors=list, others=list, compile=lambda on: False, rates=None, length=1, keep_bytes=1 << 30, keep_memory=False,
        data='', tune=False, protect_blocks=True, states_on=None, about='', states=[], prepare=nothing,
    )
    region = comp.Region(training.regions)
    try:
        return training.operators(), outcomes[0]
    except comp.GraphError:  # no operator has come by
        return [], outcomes[0]


def write_plan(path, operators, chosen):
    rows = [
        {'name': op.name, 'kind': op.kind, 'precision': precision, 'as_written': op.as_written}
        | ({'hands_on_fp32': True} if op.hands_on_fp32 else {})
        for op, precision in zip(operators, chosen)
    ]
    with open(path, 'w') as file:
        json.dump({'comp_plan': 1, 'operators': rows}, file)


def finite(outcome):
    return [bool(t.isfinite().all()) if t.is_floating_point() or t.is_complex() else True
            for t in map(torch.Tensor.detach, filter(lambda t: isinstance(t, torch.Tensor), outcome.results))]


def lower_without_comp(case):
    """The case with BF16 in place of FP32 and FP32 in place of FP64, for torch alone."""
    lower = {torch.float32: torch.bfloat16, torch.float64: torch.float32}

    def lowered(t):
        if not isinstance(t, torch.Tensor) or t.dtype not in lower:
            return t
        return t.detach().to(lower[t.dtype]).requires_grad_(t.requires_grad)

    low = Case(case.name, case.run, tree_map(lowered, case.arguments), copy.deepcopy(case.module)._apply(lambda t: lowered(t).detach()))
    return run(low, Given(low))


def differs_from_itself(case, given, want):
    """Whether torch gives other bits where other memory is free: LAPACK's kernels, and memory that nobody wrote."""
    held = []
    for size in (3, 1000, 17, 70000, 5, 300):
        held.append(torch.full((size,), 0.1))
        if compared(run(case, given), want) is not None:
            return True
    return False


class Checks:
    """Runs the checks of one case in a folder for plan files."""

    def __init__(self, folder):
        self.path = os.path.join(folder, 'plan.json')

    def __call__(self, case):
        """Faults of the case; None if torch does not run it, or gives other values in each run."""
        given = Given(case)
        want = run(case, given)
        if want.raised is not None:
            return None
        if compared(run(case, given), want) is not None:
            return 'random'
        faults = []

        def check(label, outcome, by, gradients=True):
            if (found := compared(outcome, by, gradients)) is not None:
                faults.append(Fault(label, found))

        try:
            operators, first = recorded(case, given)
            check('recorded', first, want)
            self.written(case, given, operators, want, check)
            self.rules(case, given, operators, check)
            self.low(case, given, operators, want, faults)
        except Exception as raised:
            faults.append(Fault('raises', f'{type(raised).__name__}: {first_line(raised)}'))
        return 'random' if faults and differs_from_itself(case, given, want) else faults

    def written(self, case, given, operators, want, check):
        written = [op.as_written for op in operators]
        plan = self.plan(case, operators, written)
        check('fp32 first', run(case, given, plan), want)
        check('fp32 later', run(case, given, plan), want)
        plan = self.plan(case, operators, written, otherwise='error', protect_blocks=False)
        check('fp32 first', run(case, given, plan), want)
        check('fp32 executed', run(case, given, plan), want)
        without = run(case, given, grad=False)
        if without.raised is None:
            check('fp32 without gradients', run(case, given, plan, grad=False), without, False)

    def plan(self, case, operators, chosen, **more):
        write_plan(self.path, operators, chosen)
        return comp.plan(self.path, case.module, forced=True, **more)

    def rules(self, case, given, operators, check):
        by_torch = lambda: torch.autocast('cpu', torch.bfloat16)
        want = run(case, given, by_torch())
        if want.raised is not None:
            return
        letters = dict(comp._comp.rules(operators, 'bf16')[0])['pytorch']
        names = {'1': 'fp32', 'b': 'bf16', 'd': 'fp64'}
        plan = self.plan(case, operators, [names[letter] for letter in letters], otherwise='error')
        check('rules first', run(case, given, plan), want)
        check('rules later', run(case, given, plan), want)
        without = run(case, given, by_torch(), grad=False)
        if without.raised is None:
            check('rules without gradients', run(case, given, plan, grad=False), without, False)

    def low(self, case, given, operators, want, faults):
        chosen = [LOW.get(op.as_written, 'bf16') if op.choosable else op.as_written for op in operators]
        if not any(op.choosable for op in operators):
            return
        plan = self.plan(case, operators, chosen)
        for label in ('low first', 'low later'):
            got = run(case, given, plan)
            raised = got.raised or (got.backward_raised if want.backward_raised is None else None)
            if raised is not None:
                named = any(f'{op.kind} ("{op.name}")' in str(raised) for op in operators)
                by_torch = lower_without_comp(case)
                if not named and by_torch.raised is None and by_torch.backward_raised is None:
                    faults.append(Fault(label, f'raises {type(raised).__name__}: {first_line(raised)}'))
            elif len(finite(got)) != len(finite(want)):
                faults.append(Fault(label, 'another number of results'))
            elif any(w and not g for w, g in zip(finite(want), finite(got))):
                by_torch = lower_without_comp(case)
                if by_torch.raised is None and all(finite(by_torch)):
                    faults.append(Fault(label, 'is not finite'))
