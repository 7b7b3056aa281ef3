# SPDX-License-Identifier: Apache-2.0
"""Checks that a step steps the optimizers that are given, and no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from comp._comp import SettingsError
from comp._objects import attributes

PATIENCE = 16  # steps without optimizer.step(), until that is told


def parameters_of(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def belong_together(a: Any, b: Any) -> bool:
    """Whether both are one optimizer, or one wraps the other, alone or among several, or is made of its groups."""
    if a is b:
        return True
    of_a, of_b = attributes(a) or {}, attributes(b) or {}
    shared = of_a.get("param_groups")
    if shared is not None and shared is of_b.get("param_groups"):
        return True
    return _holds(of_a, b) or _holds(of_b, a)


def _holds(wrapper: Mapping[str, Any], optimizer: Any) -> bool:
    parts = [list(dict.values(each)) if isinstance(each, dict) else each for each in wrapper.values()]
    return any(each is optimizer or (isinstance(each, (list, tuple)) and any(one is optimizer for one in each)) for each in parts)


class OptimizerWatch:
    """Within it, after_step() compares the optimizers that were stepped with the given ones. Raises: SettingsError."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: list[Any]) -> None:
        self._given = optimizers
        self._weights = {id(p) for module in models.values() for p in module.parameters()}
        self._steps, self._thread = 0, 0
        self._stepped: list[Any] = []
        self.after_update: Callable[[], None] = lambda: None
        self.sentences: list[str] = []
        for i, each in enumerate(optimizers):
            if not parameters_of(each) & self._weights:
                raise SettingsError(
                    f"optimizer {i}, a {type(each).__name__}, holds none of the model's parameters (it would train "
                    "something else): give the optimizer of this model"
                )

    def __enter__(self) -> OptimizerWatch:
        self._handle = register_optimizer_step_post_hook(self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        self._handle.remove()
        self._thread = 0

    def before_step(self) -> None:
        self._stepped, self._thread = [], threading.get_ident()

    def _note(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.after_update()
        if self._thread == threading.get_ident() and not any(each is optimizer for each in self._stepped):
            self._stepped.append(optimizer)

    def after_step(self) -> None:
        for each in self._stepped:
            if not self._is_given(each) and parameters_of(each) & self._weights:
                given = ", ".join(type(o).__name__ for o in self._given)
                raise SettingsError(
                    f"the step steps a {type(each).__name__} that was not given (given: {given}; a rejected plan would "
                    "leave its moments changed): give the search optimizer=[...] with it"
                )
        if self._steps < 0:
            return
        self._steps += 1
        any_given = any(self._is_given(each) for each in self._stepped)
        if any_given or not any(isinstance(each, Optimizer) for each in self._given):
            self._steps = -1
        elif self._steps == PATIENCE:
            self.sentences.append(
                f"{PATIENCE} steps ended without optimizer.step() (no plan can be judged by weights that stay as they "
                "are): call it in the step; where gradients of more batches are accumulated all is well"
            )

    def _is_given(self, optimizer: Any) -> bool:
        return any(belong_together(optimizer, each) for each in self._given)
