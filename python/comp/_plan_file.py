# SPDX-License-Identifier: Apache-2.0
"""What a plan says, for people and for other programs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from comp import _comp
from comp._comp import LaterPlan, SettingsError

_NAMES = {
    "d": "fp64",
    "1": "fp32",
    "t": "tf32",
    "b": "bf16",
    "B": "bf16>fp32",
    "0": "fp16",
    "e": "fp8_e4m3",
    "E": "fp8_e5m2",
    "k": "fp8_block128",
    "8": "mxfp8",
    "4": "mxfp4",
    "n": "nvfp4",
}


@dataclass(frozen=True)
class PlanFile:
    """A plan with the operators that it is for."""

    letters: str
    """One letter per operator."""
    operators: tuple[tuple[str, str, str], ...]
    """Name, kind and precision of each, in the order of their calls."""
    machine: str = ""
    """The machine on which it was found; "" if that is not known."""
    speedup: float | None = None
    """How many times as fast as FP32 it was there; None if that is not known."""
    fixed: tuple[str, ...] = ()
    """For each operator why no plan changes it, if the model's author fixed its precision; else ""."""
    later: tuple[LaterPlan, ...] = ()
    """The plans that a training changes to: `batch`, `plan` in letters, `reason`."""

    def by_module(self) -> dict[str, Counter[str]]:
        """How many operators of each module have each precision; "" for those that belong to none."""
        found: dict[str, Counter[str]] = {}
        for name, _, precision in self.operators:
            found.setdefault(name.rpartition(".")[0], Counter())[precision] += 1
        return found

    def __str__(self) -> str:
        return _comp.plan_text(self).removesuffix("\n")


def load(path: str | os.PathLike[str]) -> PlanFile:
    """What a plan file says. Raises: FileError when it cannot be read or understood."""
    read = _comp.read_plan_file(os.fspath(path))
    operators = tuple(read["operators"]) or tuple(
        (f"operator {i}", "", _NAMES[letter]) for i, letter in enumerate(read["letters"].partition("@")[0])
    )
    return PlanFile(
        read["letters"], operators, read["machine"], read["speedup"], tuple(read["fixed"]), tuple(read["later"])
    )


def plan_file(given: Any) -> PlanFile:
    """The PlanFile of an outcome, a PlanFile or the path of one."""
    if isinstance(given, PlanFile):
        return given
    if hasattr(given, "contest"):
        return _with(given, given.plan)
    return load(given)


def _with(found: Any, letters: str) -> PlanFile:
    precisions = [_NAMES[letter] for letter in letters.partition("@")[0]]
    return PlanFile(
        letters,
        tuple((op.name, op.kind, p) for op, p in zip(found.operators, precisions)),
        fixed=tuple(op.fixed_by_author for op in found.operators),
    )


def _rival(found: Any, label: str) -> str:
    """The plan of a contestant, or of a system's rules in the low precision that most operators of the outcome have."""
    for contestant in found.contest:
        if contestant.label == label or (label == "autocast" and "autocast" in contestant.label):
            return str(contestant.plan)
    low = "fp16" if found.plan.count("0") > found.plan.count("b") else "bf16"
    plans, refusals = found._inner.rules(low)
    rules = dict(plans)
    if label in rules:
        return str(rules[label])
    if label in refusals:
        raise SettingsError(f"{label} has no plan for this model: {refusals[label]}")
    labels = ", ".join(f'"{each}"' for each in [c.label for c in found.contest] + list(rules))
    raise SettingsError(f'"{label}" was no contestant (there are {labels}): give one of them, or a plan file')


def compare(a: Any, b: Any) -> str:
    """What differs between two plans, as a table by modules, after a line if they are run in different ways; "" if
    nothing does.

    a, b: an outcome, a PlanFile or the path of one. For an outcome `a`, `b` may also be the label of a contestant
    ("fp32"), "autocast" for what torch.autocast gives each operator, or another system's name for what its rules would:
    "pytorch", "tensorflow", "tvm", "paddle O1", ...
    Raises: SettingsError for a name that is none, and for plans of other models; FileError.
    """
    first = plan_file(a)
    if isinstance(b, str) and hasattr(a, "contest") and not os.path.exists(b):
        second = _with(a, _rival(a, b))
    elif b == "autocast":
        raise SettingsError(
            "what autocast gives each operator is not in a plan file (a search sees it): give the outcome"
        )
    else:
        second = plan_file(b)
    return _comp.plan_difference(first, second).removesuffix("\n")
