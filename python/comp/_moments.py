# SPDX-License-Identifier: Apache-2.0
"""The moments that torch's own SGD, Adam and AdamW keep, as operators of the graph, named as in C++ (kept_moments.hpp). They
stay in the optimizer's state, in FP32, in BF16 or in blocks of FP8, so that state_dict() has them as they are.

An optimizer collects what it steps by _init_group(), which is wrapped: closures, hooks, schedulers and GradScaler go on as they
do without comp. If all moments are in FP32, torch steps. What has a lower one is updated here, by torch's functions on pieces
that are in FP32 meanwhile, and torch steps the rest. The random bits follow from the numbers of the step, the optimizer, the
parameter and the element; SGD's state gets a count of steps for that."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.optim import SGD, Adam, AdamW
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from comp import _comp
from comp._comp import SettingsError
from comp._shards import own_part

_FP32 = torch.float32
_OF_ADAM = ("exp_avg", "exp_avg_sq")
_NAMES: dict[Any, tuple[str, ...]] = {SGD: ("momentum_buffer",), Adam: _OF_ADAM, AdamW: _OF_ADAM}
_SHARED = ("lr", "weight_decay", "maximize", "foreach", "fused")
_OPTIONS_OF_SGD = (*_SHARED, "momentum", "dampening", "nesterov")
_OPTIONS_OF_ADAM = (*_SHARED, "amsgrad", "eps", "capturable", "decoupled_weight_decay")
_ADVICE = "step torch's own SGD with momentum, Adam or AdamW, uncompiled, on a CPU"


def _refusal(optimizer: Any) -> str:
    """Why no plan may have the format of an optimizer's moments; "" if it may."""
    if type(optimizer) not in _NAMES:
        return f"{type(optimizer).__name__} is not torch's own SGD, Adam or AdamW"
    groups = optimizer.param_groups
    if type(optimizer) is SGD and any(group["momentum"] == 0 for group in groups):
        return "SGD without momentum has none"
    if any(group["differentiable"] for group in groups):
        return f"{type(optimizer).__name__} is differentiable"
    parameters = [p for group in groups for p in group["params"]]
    if any(own_part(p) is not p or p.dtype is not _FP32 or p.device.type != "cpu" for p in parameters):
        return f"{type(optimizer).__name__} has parameters that are not whole, in FP32 and on a CPU"
    return ""


class _Batch:
    """Pieces of parameters that one call of torch's function steps."""

    def __init__(self, optimizer: Any, group: dict[str, Any]) -> None:
        self._optimizer = optimizer
        self._group = group
        self._clear(False)

    def _clear(self, first: bool) -> None:
        self._first = first  # the first step of SGD, which makes the velocity
        self._lists: list[list[Any]] = [[] for _ in range(6)]
        self._pieces: list[tuple[list[_comp.Piecewise], int, int]] = []
        self._elements = 0

    def add(self, moments: list[_comp.Piecewise], found: list[list[Any]]) -> None:
        """`found`: what _init_group() gives of a parameter: itself, its gradient, moments, AMSGrad's maximum and the step."""
        whole, first, most = found[0][0].numel(), found[2][0] is None, _comp.Piecewise.most
        if first != self._first:
            self.step()
            self._clear(first)
        for at in range(0, whole, most):
            n = min(most, whole - at)
            for i, of in [(i, each[0]) for i, each in enumerate(found) if each]:
                if 2 <= i < 2 + len(moments):
                    piece = None if first else moments[i - 2].begin(at, n)
                elif i == 5:
                    piece = of if at + n == whole else of.clone()
                else:
                    piece = of.detach().as_strided((n,), (1,), of.storage_offset() + at)
                self._lists[i].append(piece)
            self._pieces.append((moments, at, n))
            self._elements += n
            if self._elements >= most:
                self.step()

    def step(self) -> None:
        if not self._pieces:
            return
        group, of_sgd = self._group, type(self._optimizer) is SGD
        options = {name: group[name] for name in (_OPTIONS_OF_SGD if of_sgd else _OPTIONS_OF_ADAM)}
        options |= {name: getattr(self._optimizer, name, None) for name in ("grad_scale", "found_inf")}
        if of_sgd:
            sgd(*self._lists[:3], **options)
        else:
            adam(*self._lists, beta1=group["betas"][0], beta2=group["betas"][1], **options)
        for (moments, at, n), first in zip(self._pieces, self._lists[2]):
            if self._first:
                moments[0].begin(at, n, False).copy_(first)
            for each in moments:
                each.end(at, n)
        self._clear(self._first)


class _Kept:
    """The moments of one optimizer."""

    def __init__(self, of: Moments, optimizer: Any, number: int, names: list[str]) -> None:
        self._of = of
        self._optimizer = optimizer
        self._own_number = number
        self._names = names  # of the operators
        self._names_in_state = _NAMES[type(optimizer)]
        self._fp32 = [_FP32 for _ in names]
        self._stays = False  # in FP32
        self._collect = type(optimizer)._init_group.__get__(optimizer)
        optimizer._init_group = self.collect

    def convert(self, formats: dict[str, torch.dtype]) -> None:
        """Gives the moments that there are their formats."""
        for p in self._number():
            self._convert(p, self._formats(formats))

    def collect(self, group: dict[str, Any], *lists: list[Any]) -> Any:
        """In place of _init_group(). `lists`: parameters, gradients and what else the optimizer steps with."""
        if TracingContext.try_get() is not None:
            self._stays = self._of.tell(f"the step of {type(self._optimizer).__name__} is compiled")
        elif group is self._optimizer.param_groups[0]:
            self._of.begin_update(self._names[0])
        formats = self._formats(self._of.formats())
        if formats == self._fp32:
            self.convert({})
            return self._collect(group, *lists)
        self._number()
        batch, flag = _Batch(self._optimizer, group), False
        for p in group["params"]:
            fits = self._fits(p)
            self._convert(p, formats if fits else self._fp32)
            key = self._key(p)
            found: list[list[Any]] = [[] for _ in lists]
            flag |= bool(self._collect({**group, "params": [p]}, *found))
            if not fits or not found[0] or not found[2]:
                for to, more in zip(lists, found):
                    to.extend(more)
                continue
            state = self._optimizer.state[p]
            if type(self._optimizer) is SGD:
                state["step"] = state.get("step", 0) + 1
                if found[2] == [None]:
                    state[self._names_in_state[0]] = _comp.new_moment(p, formats[0])
            self._convert(p, formats)  # those that the first step has made
            batch.add([_comp.Piecewise(state[name], key, i) for i, name in enumerate(self._names_in_state)], found)
        batch.step()
        return flag

    def _formats(self, of_plan: dict[str, torch.dtype]) -> list[torch.dtype]:
        return self._fp32 if self._stays else [of_plan.get(name, _FP32) for name in self._names]

    def _fits(self, p: torch.Tensor) -> bool:
        """Whether pieces of memory are pieces of the parameter, its gradient and its moments."""
        state = self._optimizer.state.get(p, {})
        held = [state[name] for name in (*self._names_in_state, "max_exp_avg_sq") if state.get(name) is not None]
        if p.grad is None or (_comp.lie_alike(p, p.grad) and all(_comp.is_moment_of(p, m) for m in held)):
            return True
        return not self._of.tell(f"a gradient of {type(self._optimizer).__name__} lies otherwise than its parameter")

    def _convert(self, p: torch.Tensor, formats: list[torch.dtype]) -> None:
        state = self._optimizer.state.get(p, {})
        for i, (name, format) in enumerate(zip(self._names_in_state, formats)):
            moment = state.get(name)
            if moment is not None and _comp.is_moment_of(p, moment):
                state[name] = _comp.in_format(p, moment, format, self._key(p), i)

    def _number(self) -> list[torch.Tensor]:
        """Returns: the parameters, which it numbers."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._numbers = {p: number for number, p in enumerate(parameters)}
        return parameters

    def _key(self, p: torch.Tensor) -> int:
        """The key of the roundings of the next step."""
        key = 0
        for stream in (int(self._optimizer.state.get(p, {}).get("step", 0)), self._own_number, self._numbers[p]):
            key = _comp.mix_key(key, stream)
        return key


class Moments:
    """The moments of a training's optimizers. They have the formats of the plan within it, and FP32 elsewhere."""

    def __init__(self, optimizers: Sequence[Any], required: bool = True) -> None:
        """Raises: SettingsError if they are `required` and no optimizer has any that may be an operator."""
        self.sentences: list[str] = []
        """Whose moments stay in FP32, in sentences."""
        self.operators: list[_comp.Operator] = []
        self._on = False
        self._formats: dict[str, torch.dtype] = {}  # if the plan is gone, those that it had
        self._kept: list[_Kept] = []
        self._owner: Any = lambda: None
        self._end: Any = None
        refusals = [_refusal(each) for each in optimizers]
        if required and optimizers and all(refusals):
            raise SettingsError(f"moments of optimizers as operators ({'; '.join(refusals)}): {_ADVICE}, or leave them out")
        for i, (each, refusal) in enumerate(zip(optimizers, refusals)):
            if refusal:
                self.tell(refusal)
                continue
            suffix = f".{i}" if len(optimizers) > 1 else ""
            elements = sum(p.numel() for group in each.param_groups for p in group["params"])
            operators = [_comp.moment_operator(which, suffix, elements) for which in range(len(_NAMES[type(each)]))]
            self.operators += operators
            self._kept.append(_Kept(self, each, i, [op.name for op in operators]))

    def tell_of_others(self, formats: dict[str, str]) -> None:
        """Warns of moments of a plan file that no optimizer here has."""
        for name in formats.keys() - {op.name for op in self.operators}:
            if formats[name] != "fp32":
                self.tell(f'the plan has "{name}" in {formats[name]}, which no given optimizer has')

    def follow(self, owner: Any) -> None:
        """`owner`: has the regions of the plan. It is not held."""
        self._owner = weakref.ref(owner)

    def __enter__(self) -> Moments:
        self._on = True
        return self

    def __exit__(self, *_: Any) -> None:
        self._on = False

    def formats(self) -> dict[str, torch.dtype]:
        owner = self._owner()
        if owner is not None:
            self._formats = dict(owner.regions.formats_of_states())
        return self._formats if self._on else {}

    def prepare(self) -> None:
        """Converts the moments that there are, so that no step is timed with that."""
        with self:
            for each in self._kept:
                each.convert(self.formats())

    def begin_update(self, operator: str) -> None:
        owner = self._owner() if self._on else None
        self._end = owner and owner.regions.begin_update(operator)

    def end_update(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def tell(self, why: str) -> bool:
        """Returns: true."""
        sentence = f"moments stay in FP32 ({why}): {_ADVICE}, to have the plan choose"
        if sentence not in self.sentences:
            self.sentences.append(sentence)
            warnings.warn(sentence, stacklevel=2)
        return True
