# SPDX-License-Identifier: Apache-2.0
"""A plan in the Trainer of Lightning:

Trainer(plugins=[comp.lightning.PlanPrecision("plan.json")])
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from lightning.pytorch.plugins import Precision
from torch import nn

import comp
from comp._models import leave_outside


class PlanPrecision(Precision):
    """Runs training_step, validation_step and the like under a plan. comp.search finds the plan, with the
    LightningModule as model and `module.training_step(batch, 0)` inside `with plan:`. `given`: settings of comp.plan.
    What self.log computes is no part of the plan. A step that differs otherwise from the one that was searched goes on
    in FP32, from the second step on, and `plan.left` counts it.

    Raises: as comp.plan.
    """

    precision = "32-true"

    def __init__(self, path: str | os.PathLike[str], **given: Any) -> None:
        self.path, self.given = os.fspath(path), {"otherwise": "fp32"} | given
        self.plan: comp.Planned | None = None

    def convert_module(self, module: nn.Module) -> nn.Module:
        leave_outside(module, "log", "log_dict")  # without a Trainer, as in the search, they do nothing
        self.plan = comp.plan(self.path, module, **self.given)
        return module

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.plan is None else self.plan
