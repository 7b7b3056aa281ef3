# SPDX-License-Identifier: Apache-2.0
"""Gives a plan to other libraries, which take it by modules."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from comp._comp import SettingsError
from comp._plan_file import PlanFile, plan_file

_LINEAR = ("linear", "addmm", "mm", "matmul")
_FP8 = ("fp8_e4m3", "fp8_e5m2")
_FACTORIES = {
    "fp8_e4m3": "current_scaling",
    "fp8_e5m2": "current_scaling",
    "fp8_block128": "float8_block_scaling",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}  # of transformer_engine.pytorch.custom_recipes.quantizer_factories
_READERS = {
    "input": ("forward", "weight_gradient"),
    "weight": ("forward", "input_gradient"),
    "grad_output": ("input_gradient", "weight_gradient"),
}  # which products read an operand by rows and by columns
_MULTIPLE = 16  # both sizes of a weight have to be multiples of it for products of FP8 units
Model = str | nn.Module | Mapping[str, nn.Module]


@dataclass(frozen=True)
class ModulePrecisions:
    """The part of a plan that a library which swaps linear modules can have."""

    modules: dict[str, str]
    """The precision of each linear module, by the name that named_modules() gives it."""
    swapped: tuple[str, ...]
    """The modules that become the library's FP8 modules; where the model was given, those that it really swaps."""
    recipe: dict[str, str]
    """Arguments of the library's recipe; see to_torchao."""
    left: tuple[str, ...]
    """What the plan has and the library cannot express, in sentences. Empty: nothing is lost."""

    def module_filter_fn(self, module: nn.Module, name: str) -> bool:
        """True for the modules to swap: torchao's convert_to_float8_training(module_filter_fn=...) takes it."""
        return name in self.swapped and _why_not(module) is None

    def __str__(self) -> str:
        lines = [f"{name}: {precision}" for name, precision in self.modules.items()]
        return "\n".join(lines + [f"left: {sentence}" for sentence in self.left])


def _why_not(module: nn.Module | None) -> str | None:
    """Why FP8 libraries that swap linear modules do not swap this one, or to no effect; None where they do."""
    if module is None:
        return "is no module of this model"
    if not isinstance(module, nn.Linear):
        return f"is a {type(module).__name__}, no nn.Linear"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "is never called (its MultiheadAttention reads its weights)"
    rows, columns = module.weight.shape
    if rows % _MULTIPLE or columns % _MULTIPLE:
        return f"has a weight of {rows} x {columns} (FP8 products want multiples of {_MULTIPLE})"
    return None


def to_torchao(plan: Any, *, model: Model = "", fp8: Sequence[str] = _FP8) -> ModulePrecisions:
    """A plan for torchao.float8:

        said = comp.to_torchao("plan.json")
        convert_to_float8_training(net, module_filter_fn=said.module_filter_fn,
                                   config=Float8LinearConfig.from_recipe_name(said.recipe["recipe_name"]))
        print(said.left)                                # what torchao cannot have of the plan

    plan: an outcome, a PlanFile or a path. model: as the search had it, net or {"net": net}. `swapped` then has the
        modules that torchao really swaps, and `left` says why others are none. With "net" it has what the plan says.
    fp8: linear modules in these precisions of the plan become FP8. ("bf16",) takes all that tolerated BF16, which
        nobody has tested in FP8.
    Raises: SettingsError, FileError.
    """
    name, module = _named(model)
    products, left = _products(plan_file(plan), name, "torchao.float8 swaps nn.Linear")
    modules = {n: of["forward"] for n, of in products.items()}
    parted = [n for n, of in products.items() if len({p in fp8 for p in of.values()}) > 1]
    left += [f'"{n}" has products in {", ".join(sorted(set(products[n].values())))} (torchao swaps all three): '
             "it stays as it is" for n in parted]
    wanted = [n for n, precision in modules.items() if precision in fp8 and n not in parted]
    parts = {} if module is None else dict(module.named_modules(remove_duplicate=False))
    reasons = {} if module is None else {n: why for n in wanted if (why := _why_not(parts.get(n))) is not None}
    left += [f'"{n}" is in {modules[n]} and {why}: it stays as it is' for n, why in reasons.items()]
    swapped = tuple(n for n in wanted if n not in reasons)
    casts = "torchao casts inputs and weights to E4M3, gradients to E5M2"
    left += [f'"{n}" is in fp8_e5m2 ({casts}): it becomes E4M3' for n in swapped if modules[n] == "fp8_e5m2"]
    counts = Counter(p for n, p in modules.items() if n not in (*wanted, *parted) and p != "fp32")
    remedy = "the rest runs in the model's own type: use comp.plan for it"
    left += [f"{n} linear modules are in {p} and not swapped: {remedy}" for p, n in sorted(counts.items())]
    return ModulePrecisions(modules, swapped, {"recipe_name": "tensorwise"}, tuple(left))


@dataclass(frozen=True)
class TransformerEngineRecipe:
    """A plan as Transformer Engine's CustomRecipe takes it: a quantizer for each operand of each product."""

    modules: dict[str, dict[str, str]]
    """The precisions of each linear module's three products: "forward", "input_gradient" and "weight_gradient"."""
    left: tuple[str, ...]
    """What the plan has and the library cannot express, in sentences. Empty: nothing is lost."""

    def quantizer(self, role: Any) -> Any:
        """The quantizer of a role (module_type, tensor_type, name): CustomRecipe(qfactory=said.quantizer) takes it. What the
        plan does not lower below 16 bits, or does not know, is not quantized.
        """
        base = importlib.import_module("transformer_engine.pytorch.custom_recipes.quantizer_factories")
        products = self.modules.get(role.name) if role is not None and role.module_type.endswith("linear") else None
        by_rows, by_columns = _READERS.get(getattr(role, "tensor_type", ""), ("", ""))
        rows, columns = (_FACTORIES.get((products or {}).get(p, ""), "high_precision") for p in (by_rows, by_columns))
        made = [getattr(base, f"{factory}_factory")(role) for factory in (rows, columns)]
        if rows == columns:
            return made[0]
        hybrid = importlib.import_module("transformer_engine.pytorch.tensor.hybrid_tensor").HybridQuantizer
        return hybrid(rowwise_quantizer=made[0], columnwise_quantizer=made[1])

    def __str__(self) -> str:
        lines = [f"{name}: " + ", ".join(f"{p} {x}" for p, x in of.items()) for name, of in self.modules.items()]
        return "\n".join(lines + [f"left: {sentence}" for sentence in self.left])


def to_transformer_engine(plan: Any, *, model: Model = "") -> TransformerEngineRecipe:
    """A plan for Transformer Engine, 2.20 or newer (its CustomRecipe is experimental):

        from transformer_engine.common.recipe import CustomRecipe

        said = comp.to_transformer_engine("plan.json", model="net")
        te.autocast(enabled=True, recipe=CustomRecipe(qfactory=said.quantizer))

    Each te.Linear has to be made with name= the module's name in the plan. Rows and columns of an operand are quantized for
    the products that read them, so each product has the plan's precision. Arguments and errors: as to_torchao.
    """
    name, _ = _named(model)
    modules, left = _products(plan_file(plan), name, "te.Linear replaces nn.Linear")
    missing = sum(p == "mxfp4" for of in modules.values() for p in of.values())
    if missing:
        left.append(f"{missing} products are in mxfp4 (its recipes have no such format): they stay in 16 bits")
    left += [f'"{n}" is in fp8_e5m2 (its recipes have E5M2 for gradients only): it becomes E4M3'
             for n, of in modules.items() if of["forward"] == "fp8_e5m2"]
    return TransformerEngineRecipe(modules, tuple(left))


def _products(plan: PlanFile, model: str, swaps: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The precisions of the products of each linear module. A plan whose layers are whole gives all three the same."""
    apart: dict[str, dict[str, str]] = {}
    whole: list[tuple[str, str, str]] = []
    for name, kind, precision in plan.operators:
        layer, _, product = name.rpartition(".")
        if product in ("input_gradient", "weight_gradient"):
            apart.setdefault(_module_of(layer), {})[product] = precision
        else:
            whole.append((name, kind, precision))
    modules, left = _modules(replace(plan, operators=tuple(whole)), model, swaps)
    prefix = f"{model}." if model else ""
    return {
        name: {"forward": p, "input_gradient": p, "weight_gradient": p} | apart.get(prefix + name, {})
        for name, p in modules.items()
    }, left


def _named(model: Model) -> tuple[str, nn.Module | None]:
    if isinstance(model, str):
        return model, None
    if isinstance(model, nn.Module):
        return "", model
    if len(model) != 1:
        raise SettingsError(f"{len(model)} models are given (a library swaps modules in one): give them one by one")
    return next(iter(model.items()))


def _module_of(operator: str) -> str:
    """The module of an operator. LibTorch's operators stand in a module, the native trainer's have its name."""
    module, _, last = operator.rpartition(".")
    return module if last.split("_")[0] in _LINEAR else operator


def _modules(plan: PlanFile, model: str, swaps: str) -> tuple[dict[str, str], list[str]]:
    modules: dict[str, str] = {}
    left: list[str] = []
    others: Counter[str] = Counter()
    for name, kind, precision in plan.operators:
        if not kind:
            raise SettingsError(
                "the plan has letters and no operators (modules are found by name): save it with its operators"
            )
        module = _module_of(name)
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
