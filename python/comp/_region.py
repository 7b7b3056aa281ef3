# SPDX-License-Identifier: Apache-2.0
"""`with plan:` in place of `with torch.autocast(...)`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from comp import _comp
from comp._models import modules_of, named_parameters


class Region:
    """Runs the operators of a block of code in the precisions of a plan. As torch.autocast, it is for the forward and the
    loss; backward and optimizer stay outside. Under torch.no_grad() operators go by their names, so evaluation works.

    A step with several forwards names them: `with plan("discriminator"):`. Code compiled by torch.compile runs
    uncompiled in it, since a plan is about single operators.
    """

    def __init__(self, regions: Any, segment: str = "forward", entered: Callable[[], None] = lambda: None) -> None:
        self._regions = regions
        self._segment = segment
        self._entered = entered
        self._stances: list[Any] = []

    def __call__(self, segment: str) -> Region:
        """The region of another segment of the step."""
        return Region(self._regions, segment, self._entered)

    def __enter__(self) -> Region:
        self._stances.append(torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else None)
        try:
            self._regions.enter(self._segment)
        except BaseException:
            self._leave()
            raise
        self._entered()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            self._regions.exit(kind is not None)
        finally:
            self._leave()

    def _leave(self) -> None:
        stance = self._stances.pop()
        if stance is not None:
            stance.__exit__(None, None, None)


class Planned(Region):
    """A plan of a file over a model. Made by comp.plan()."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.regions, entered=self._tell)
        self._inner = inner
        self._told = False

    def _tell(self) -> None:
        if self._told or not self._inner.in_use:
            return
        self._told = True
        for sentence in self._inner.warnings:
            warnings.warn(sentence, stacklevel=4)
        if self._inner.needs_scaling:
            warnings.warn("the plan has FP16 (small gradients vanish in it): scale the loss with torch.amp.GradScaler",
                          stacklevel=4)

    @property
    def in_use(self) -> bool:
        """Whether the first forward was seen and the plan fits it. Until then all is FP32."""
        return bool(self._inner.in_use)

    @property
    def letters(self) -> str:
        """The plan, one letter per operator; all "1" before it is in use."""
        return str(self._inner.letters)

    @property
    def needs_scaling(self) -> bool:
        """Whether it has FP16."""
        return bool(self._inner.needs_scaling)

    @property
    def warnings(self) -> list[str]:
        """What a person should know: the plan was found on other hardware, operators without a precision."""
        return list(self._inner.warnings)

    @property
    def left(self) -> tuple[int, str]:
        """Forwards that left the recorded sequence, and the first such in words; see `otherwise`."""
        count, first = self._inner.left
        return int(count), str(first)


def plan(path: str | os.PathLike[str], model: nn.Module | Mapping[str, nn.Module], *,
         segments: Sequence[str] = ("forward",), match: Literal["exact", "by_name"] = "exact", forced: bool = False,
         otherwise: Literal["error", "fp32"] = "error") -> Planned:
    """A plan that was found before, from Python or C++, for `with`:

        plan = comp.plan("plan.json", net)
        for x, y in loader:
            with plan:                                   # where torch.autocast(...) was
                loss = cross_entropy(net(x), y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()

    The first forward of each segment runs in FP32 and is recorded; the plan is then checked against it. Parameters and
    optimizer stay FP32. `model`: the module, or modules by the names that they had in the search ({"net": net}).
    `match="by_name"`: other batch sizes; what the file does not know runs in FP32, with a warning. `forced`: use a plan
    that this machine computes slowly. `otherwise="fp32"`: a forward that leaves the recorded sequence goes on in FP32
    and is counted in `left`, where it would be an error.

    Raises (at the second forward, when the plan meets the model): PlanError when the file is for another model, FileError
    when it cannot be read.
    """
    _comp.read_plan_file(os.fspath(path))  # a path that was mistyped is an error now
    models = modules_of(model)
    return Planned(_comp.Planned(named_parameters(models), os.fspath(path), segments=list(segments), match=match,
                                 forced=forced, otherwise=otherwise))
