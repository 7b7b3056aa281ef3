# SPDX-License-Identifier: Apache-2.0
"""A plan as other libraries take it: by modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from comp._comp import SettingsError
from comp._plan_file import PlanFile, plan_file

_LINEAR = ("linear", "addmm", "mm", "matmul")
_FP8 = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class ModulePrecisions:
    """What of a plan a library that swaps linear modules can have."""

    modules: dict[str, str]
    """The precision of each linear module, by the name that named_modules() gives it."""
    swapped: tuple[str, ...]
    """Those of them that become the library's FP8 modules."""
    recipe: dict[str, Any]
    """Arguments of the library's recipe; see to_torchao and to_transformer_engine."""
    left: tuple[str, ...]
    """Sentences: what the plan has and the library cannot express. Empty: nothing is lost."""

    def module_filter_fn(self, module: nn.Module, name: str) -> bool:
        """True for the modules to swap: torchao's convert_to_float8_training(module_filter_fn=...) takes it."""
        return isinstance(module, nn.Linear) and name in self.swapped

    def __str__(self) -> str:
        lines = [f"{name}: {precision}" for name, precision in self.modules.items()]
        return "\n".join(lines + [f"left: {sentence}" for sentence in self.left])


def to_torchao(plan: Any, *, model: str = "", fp8: Sequence[str] = _FP8) -> ModulePrecisions:
    """A plan for torchao.float8:

        said = comp.to_torchao("plan.json")
        convert_to_float8_training(net, module_filter_fn=said.module_filter_fn,
                                   config=Float8LinearConfig.from_recipe_name(said.recipe["recipe_name"]))
        print(said.left)                                # what torchao cannot have of the plan

    plan: an outcome, a PlanFile or a path. model: the name that the model had in the search. fp8: the plan's
    precisions whose linear modules become FP8; ("bf16",) begins with all that tolerated BF16, which nobody has tested
    in FP8.
    Raises: SettingsError, FileError.
    """
    modules, left = _modules(plan_file(plan), model, "torchao.float8 swaps nn.Linear")
    swapped = tuple(name for name, precision in modules.items() if precision in fp8)
    left += [
        f'"{name}" is in fp8_e5m2 (torchao casts inputs and weights to E4M3, gradients to E5M2): it becomes E4M3'
        for name in swapped
        if modules[name] == "fp8_e5m2"
    ]
    left += _not_fp8(modules, swapped, "the rest runs in the model's own type: use comp.plan for it")
    return ModulePrecisions(modules, swapped, {"recipe_name": "tensorwise"}, tuple(left))


def to_transformer_engine(plan: Any, *, model: str = "", fp8: Sequence[str] = _FP8) -> ModulePrecisions:
    """A plan for Transformer Engine: `swapped` are the modules to make te.Linear and to run in

        te.fp8_autocast(enabled=True, fp8_recipe=DelayedScaling(fp8_format=Format[said.recipe["fp8_format"]]))

    All other modules are called outside of it, or with enabled=False. Arguments and errors: as to_torchao.
    """
    modules, left = _modules(plan_file(plan), model, "te.Linear replaces nn.Linear")
    swapped = tuple(name for name, precision in modules.items() if precision in fp8)
    left += [
        f'"{name}" is in fp8_e5m2 (te.Format has E5M2 for gradients only): it becomes E4M3'
        for name in swapped
        if modules[name] == "fp8_e5m2"
    ]
    left += _not_fp8(modules, swapped, "run the rest in torch.autocast or with comp.plan")
    return ModulePrecisions(modules, swapped, {"fp8_format": "HYBRID"}, tuple(left))


def _modules(plan: PlanFile, model: str, swaps: str) -> tuple[dict[str, str], list[str]]:
    modules: dict[str, str] = {}
    left: list[str] = []
    others: Counter[str] = Counter()
    for name, kind, precision in plan.operators:
        if not kind:
            raise SettingsError(
                "the plan has letters and no operators (modules are found by name): save it with its operators"
            )
        module = name.rpartition(".")[0]
        if model:
            if module != model and not module.startswith(model + "."):
                others[precision] += 1
                continue
            module = module[len(model) + 1 :]
        word = kind.removeprefix("aten::").partition(".")[0]
        if word not in _LINEAR or not module:
            others[precision] += 1
        elif modules.setdefault(module, precision) != precision:
            left.append(
                f'"{module}" is called in {modules[module]} and in {precision} (a swapped module has one precision): '
                f"it is taken as {modules[module]}"
            )
    for precision, count in sorted(others.items()):
        if precision != "fp32":
            left.append(f"{count} operators in {precision} are in no linear module ({swaps} alone): they are left out")
    return modules, left


def _not_fp8(modules: dict[str, str], swapped: Sequence[str], remedy: str) -> list[str]:
    counts = Counter(p for name, p in modules.items() if name not in swapped and p != "fp32")
    return [f"{n} linear modules are in {p} and not swapped: {remedy}" for p, n in sorted(counts.items())]
