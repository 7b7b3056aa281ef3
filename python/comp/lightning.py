# SPDX-License-Identifier: Apache-2.0
"""A plan in the Trainer of Lightning:

Trainer(plugins=[comp.lightning.PlanPrecision("plan.json")])
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from lightning.pytorch.plugins import Precision
from torch import nn

import comp
from comp._loop import is_there
from comp._models import leave_outside


class PlanPrecision(Precision):
    """Runs training_step, validation_step and the like under a plan, which the training finds while it runs or has from
    its file, as comp.autocast does, with the Trainer's own batches, accumulation and optimizers. `search`: settings of
    comp.autocast. `given`: settings of comp.plan, as which a file that is there is used if nothing is trained, or
    optimization is manual.
    What self.log computes is no part of the plan. A step that differs otherwise from the one that was searched goes on
    in FP32 there, from the second step on, and `plan.left` counts it.

    Raises: as comp.autocast and comp.plan.
    """

    precision = "32-true"

    def __init__(self, path: str | os.PathLike[str], *, search: dict[str, Any] | None = None, **given: Any) -> None:
        self.path, self.search, self.given = os.fspath(path), search or {}, {"otherwise": "fp32"} | given
        self.plan: comp.Planned | comp.Autocast | None = None
        self._losses: list[torch.Tensor] = []  # of the batch, whose gradients may be accumulated

    def convert_module(self, module: nn.Module) -> nn.Module:
        leave_outside(module, "log", "log_dict")  # without a Trainer, as in the search, they do nothing
        self._module: Any = module
        self._has_file = is_there(self.path)
        self.plan = None
        return module

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        if self.plan is None or self._trains() and isinstance(self.plan, comp.Planned):
            self.plan = self._make_plan()
        return contextlib.nullcontext() if self.plan is None else self.plan

    def _trains(self) -> bool:
        """Whether the Trainer's own steps end batches outside of the plan."""
        return self._module.training and bool(self._module.trainer.optimizers) and self._module.automatic_optimization

    def _make_plan(self) -> comp.Planned | comp.Autocast | None:
        """The plan of the model as the strategy wrapped it; None if there is no file and nothing is trained."""
        trainer = self._module.trainer
        if self._has_file and not self._trains():
            return comp.plan(self.path, trainer.strategy.model, **self.given)
        if not self._module.training or not trainer.optimizers:
            return None
        if not self._module.automatic_optimization:
            raise comp.SettingsError(
                "a LightningModule with manual optimization (its optimizers step within training_step, so that no batch "
                f'ends outside of `with plan:`) and no plan in "{self.path}": find the plan with comp.search'
            )
        steps = trainer.estimated_stepping_batches  # -1: data of unknown length
        settings = {"batches": steps if steps > 0 else None} | self.search
        return comp.autocast(trainer.strategy.model, optimizer=trainer.optimizers, file=self.path, **settings)

    def pre_backward(self, tensor: torch.Tensor, module: Any) -> Any:
        self._losses.append(tensor.detach())
        return super().pre_backward(tensor, module)

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **more: Any) -> Any:
        given = super().optimizer_step(optimizer, model=model, closure=closure, **more)
        if isinstance(self.plan, comp.Autocast) and self._losses:
            self.plan.step(sum(self._losses))
        self._losses.clear()
        return given
