# SPDX-License-Identifier: Apache-2.0
"""Finds the precision of each operator (FP32, BF16, FP16, ...) at which a training runs fastest and still converges.

    plan = comp.autocast(net, optimizer=optimizer, file="plan.json")           # found while your loop runs
    with plan: ...                                                             # in place of torch.autocast
    found = comp.search(step, model=net, optimizer=optimizer, data=loader)     # the same, with more evidence

Guide: docs/start/python.md.
"""

import torch  # noqa: F401  first: it loads the libraries that _comp needs

from comp import _torch_version

_torch_version.require()
try:
    from comp import _comp  # noqa: F401
except ImportError as error:  # the same release, but built differently
    raise ImportError(_torch_version.sentence(str(error))) from error

from comp._comp import (
    Contestant,
    Difference,
    Error,
    Examination,
    FileError,
    GraphError,
    History,
    Interrupted,
    Operator,
    OutOfMemory,
    PlanError,
    RankError,
    Sample,
    SettingsError,
    SpaceError,
    TrainingProgress,
    TrainingResult,
    Trial,
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
from comp._exports import to_megatron, to_torchao, to_transformer_engine
from comp._inference import export
from comp._loop import Autocast, autocast
from comp._outcome import Outcome, SearchResult
from comp._plan_file import PlanFile, compare, load
from comp._region import Planned, Region, plan
from comp._resume import resume
from comp._search import search

__all__ = [
    "Autocast",
    "Contestant",
    "Difference",
    "Error",
    "Examination",
    "FileError",
    "GraphError",
    "History",
    "Interrupted",
    "Operator",
    "Outcome",
    "OutOfMemory",
    "PlanError",
    "RankError",
    "PlanFile",
    "Planned",
    "Region",
    "Sample",
    "SearchResult",
    "SettingsError",
    "SpaceError",
    "TrainingProgress",
    "TrainingResult",
    "Trial",
    "__version__",
    "allow",
    "autocast",
    "by_kind",
    "by_name",
    "by_scope",
    "compare",
    "deny",
    "doctor",
    "export",
    "fixed",
    "follow",
    "load",
    "plan",
    "policy",
    "resume",
    "search",
    "strategy",
    "to_megatron",
    "to_torchao",
    "to_transformer_engine",
]
