# SPDX-License-Identifier: Apache-2.0
"""Finds the precision of each operator (FP32, BF16, FP16, ...) at which a training runs fastest and still converges.

    found = comp.search(step, model=net, optimizer=optimizer, data=loader)     # once, while it trains
    with comp.plan("plan.json", net): ...                                      # then, in place of torch.autocast

Guide: docs/python.md.
"""

import torch  # noqa: F401  its libraries come first

from comp._comp import (
    Difference,
    Error,
    Examination,
    FileError,
    GraphError,
    Interrupted,
    OutOfMemory,
    PlanError,
    SettingsError,
    SpaceError,
    __version__,
    allow,
    by_kind,
    by_name,
    by_scope,
    deny,
    fixed,
    follow,
    policy,
    strategy,
)
from comp._doctor import doctor
from comp._exports import to_torchao, to_transformer_engine
from comp._outcome import Outcome
from comp._plan_file import PlanFile, compare, load
from comp._region import Planned, Region, plan
from comp._search import search

__all__ = [
    "Difference",
    "Error",
    "Examination",
    "FileError",
    "GraphError",
    "Interrupted",
    "Outcome",
    "OutOfMemory",
    "PlanError",
    "PlanFile",
    "Planned",
    "Region",
    "SettingsError",
    "SpaceError",
    "__version__",
    "allow",
    "by_kind",
    "by_name",
    "by_scope",
    "compare",
    "deny",
    "doctor",
    "fixed",
    "follow",
    "load",
    "plan",
    "policy",
    "search",
    "strategy",
    "to_torchao",
    "to_transformer_engine",
]
