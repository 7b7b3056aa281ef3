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


class PlanPrecision(Precision):
    """Runs training_step, validation_step and the like under a plan. It is found by comp.search with the
    LightningModule as model and `module.training_step(batch, 0)` inside `with plan:`. `given`: settings of comp.plan.
    What loggers compute inside a step may differ from step to step: that goes on in FP32, and `plan.left` counts it.

    Raises: as comp.plan.
    """

    precision = "32-true"

    def __init__(self, path: str | os.PathLike[str], **given: Any) -> None:
        self.path, self.given = os.fspath(path), {"otherwise": "fp32"} | given
        self.plan: comp.Planned | None = None

    def convert_module(self, module: nn.Module) -> nn.Module:
        self.plan = comp.plan(self.path, module, **self.given)
        return module

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.plan is None else self.plan
