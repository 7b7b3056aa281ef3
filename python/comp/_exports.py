# SPDX-License-Identifier: Apache-2.0
"""Gives a plan to other libraries, which take it by modules."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
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
_MEGATRON: dict[str, dict[str, str]] = {
    "fp8_e4m3": {"fp8_quantization_recipe": "tensorwise", "fp8_format": "hybrid"},
    "fp8_block128": {"fp8_quantization_recipe": "blockwise", "fp8_format": "e4m3"},
    "mxfp8": {"fp8_quantization_recipe": "mxfp8", "fp8_format": "e4m3"},
    "nvfp4": {"fp4_quantization_recipe": "nvfp4"},
}  # of megatron.core.extensions.transformer_engine.TEQuantizationRecipe
_CASTS = {
    "forward": ("cast_config_input", "cast_config_weight"),
    "input_gradient": ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    "weight_gradient": ("cast_config_input_for_grad_weight", "cast_config_grad_output_for_grad_weight"),
}  # of torchao.float8.Float8LinearConfig: the operands of each product
_READERS = {
    "input": ("forward", "weight_gradient"),
    "weight": ("forward", "input_gradient"),
    "grad_output": ("input_gradient", "weight_gradient"),
}  # which products read an operand by rows and by columns
_MOMENTS = {"moment1": "exp_avg", "moment2": "exp_avg_sq"}  # of Adam, by the kind of the plan's operator
_MULTIPLE = 16  # both sizes of a weight have to be multiples of it for products of FP8 units
Model = str | nn.Module | Mapping[str, nn.Module]


@dataclass(frozen=True)
class ModulePrecisions:
    """The part of a plan that a library which knows a model by its modules can have."""

    modules: dict[str, dict[str, str]]
    """The precisions of each linear module's three products: "forward", "input_gradient" and "weight_gradient"."""
    left: tuple[str, ...]
    """What the plan has and the library cannot express, in sentences. Empty: nothing is lost."""

    def __str__(self) -> str:
        lines = [f"{name}: " + ", ".join(f"{p} {x}" for p, x in of.items()) for name, of in self.modules.items()]
        return "\n".join(lines + [f"left: {sentence}" for sentence in self.left])


@dataclass(frozen=True)
class TorchaoModules(ModulePrecisions):
    """A plan as torchao.float8 takes it: filters of modules, each with a config."""

    swapped: dict[str, tuple[str, ...]]
    """The products in FP8 of each module that becomes torchao's; where the model was given, of those really swapped."""

    def conversions(self) -> list[tuple[Callable[[nn.Module, str], bool], Any]]:
        """For each set of products that modules have in FP8, a filter of these modules and their Float8LinearConfig."""
        float8 = importlib.import_module("torchao.float8")
        casts = importlib.import_module("torchao.float8.config")
        on, off = casts.CastConfig(), casts.CastConfig(scaling_type=casts.ScalingType.DISABLED)
        return [
            (
                lambda module, name, of=products: self.swapped.get(name) == of and _why_not(module) is None,
                float8.Float8LinearConfig(**{c: on if p in products else off for p in _CASTS for c in _CASTS[p]}),
            )
            for products in sorted(set(self.swapped.values()))
        ]


def _why_not(module: nn.Module | None) -> str | None:
    """Why FP8 libraries that swap linear modules do not swap this one, or to no effect; None if they do."""
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


def to_torchao(plan: Any, *, model: Model = "", fp8: Sequence[str] = _FP8) -> TorchaoModules:
    """A plan for torchao.float8, which may have each of a module's three products in FP8:

        export = comp.to_torchao("plan.json")
        for module_filter_fn, config in export.conversions():
            convert_to_float8_training(net, module_filter_fn=module_filter_fn, config=config)
        print(export.left)                                # what torchao cannot have of the plan

    plan: an outcome, a PlanFile or a path. model: as the search had it, net or {"net": net}. `swapped` then has the
        modules that torchao really swaps, and `left` says why others are none. With "net" it has what the plan says.
    fp8: products in these precisions of the plan become FP8. ("bf16",) takes all that tolerated BF16, which nobody has
        tested in FP8.
    Raises: SettingsError, FileError.
    """
    name, module = _named(model)
    layers, moments, mixed = _without_moments(plan_file(plan))
    modules, left = _products(layers, name, "torchao.float8 swaps nn.Linear")
    if len(moments) == 2 and set(moments.values()) == {"fp8_e4m3"}:
        left.append("both moments are in fp8_e4m3: AdamFp8 or AdamWFp8 of torchao.optim keeps them in the same blocks, rounded to the nearest")
        moments = {}
    left += mixed + [f"{moment} is in {p} (torchao's optimizers store both moments in 8 or 4 bits, or in FP8): it stays in FP32"
             for moment, p in moments.items()]
    in_fp8 = {n: tuple(p for p, x in of.items() if x in fp8) for n, of in modules.items()}
    parts = {} if module is None else dict(module.named_modules(remove_duplicate=False))
    reasons = {} if module is None else {n: why for n, ps in in_fp8.items() if ps and (why := _why_not(parts.get(n)))}
    left += [f'"{n}" is in {modules[n][in_fp8[n][0]]} and {why}: it stays as it is' for n, why in reasons.items()]
    swapped = {n: ps for n, ps in in_fp8.items() if ps and n not in reasons}
    casts = "torchao casts inputs and weights to E4M3, gradients to E5M2"
    left += [f'"{n}" is in fp8_e5m2 ({casts}): it becomes E4M3' for n in swapped if modules[n]["forward"] == "fp8_e5m2"]
    counts = Counter(x for of in modules.values() for x in of.values() if x not in fp8 and x != "fp32")
    left += [f"{n} products of linear modules are in {p}: torchao.float8 leaves them in the model's own type"
             for p, n in sorted(counts.items())]
    return TorchaoModules(modules, tuple(left), swapped)


@dataclass(frozen=True)
class TransformerEngineRecipe(ModulePrecisions):
    """A plan as Transformer Engine's CustomRecipe takes it: a quantizer for each operand of each product."""

    adam: dict[str, torch.dtype]
    """The arguments of transformer_engine.pytorch.optimizers.FusedAdam for lower moments, in which uint8 is FP8; none if they are in FP32."""

    def quantizer(self, role: Any) -> Any:
        """The quantizer of a role (module_type, tensor_type, name): CustomRecipe(qfactory=export.quantizer) takes it. What the
        plan does not lower below 16 bits, or does not know, is not quantized.
        """
        base = importlib.import_module("transformer_engine.pytorch.custom_recipes.quantizer_factories")
        products = self.modules.get(role.name) if role is not None and role.module_type.endswith("linear") else None
        by_rows, by_columns = _READERS.get(getattr(role, "tensor_type", ""), ("", ""))
        rows, columns = (_FACTORIES.get((products or {}).get(p, ""), "high_precision") for p in (by_rows, by_columns))
        quantizers = [getattr(base, f"{factory}_factory")(role) for factory in (rows, columns)]
        if rows == columns:
            return quantizers[0]
        hybrid = importlib.import_module("transformer_engine.pytorch.tensor.hybrid_tensor").HybridQuantizer
        return hybrid(rowwise_quantizer=quantizers[0], columnwise_quantizer=quantizers[1])


def to_transformer_engine(plan: Any, *, model: Model = "") -> TransformerEngineRecipe:
    """A plan for Transformer Engine, 2.20 or newer (its CustomRecipe is experimental):

        from transformer_engine.common.recipe import CustomRecipe

        export = comp.to_transformer_engine("plan.json", model="net")
        te.autocast(enabled=True, recipe=CustomRecipe(qfactory=export.quantizer))
        FusedAdam(net.parameters(), **export.adam)

    Each te.Linear has to be made with name= the module's name in the plan. Rows and columns of an operand are quantized for
    the products that read them, so each product has the plan's precision. Arguments and errors: as to_torchao.
    """
    name, _ = _named(model)
    layers, moments, mixed = _without_moments(plan_file(plan))
    modules, left = _products(layers, name, "te.Linear replaces nn.Linear")
    missing = Counter(p for of in modules.values() for p in of.values() if p in ("mxfp4", "bf16>fp32"))
    left += [f"{n} products are in {p} (its recipes have no such format): they stay in 16 bits" for p, n in missing.items()]
    left += [f'"{n}" is in fp8_e5m2 (its recipes have E5M2 for gradients only): it becomes E4M3'
             for n, of in modules.items() if of["forward"] == "fp8_e5m2"]
    adam = {f"{moment}_dtype": torch.uint8 if p == "fp8_e4m3" else torch.bfloat16 for moment, p in moments.items()}
    return TransformerEngineRecipe(modules, (*left, *mixed, *_rounding_of(moments)), adam)


@dataclass(frozen=True)
class MegatronModules(ModulePrecisions):
    """A plan as Megatron-LM takes it: a recipe of Transformer Engine for each linear module."""

    recipes: dict[str, str]
    """The format of each of Megatron's modules that is not in BF16, by Megatron's name."""
    moments: dict[str, str]
    """The format of each of Adam's moments that is not in FP32: "exp_avg", "exp_avg_sq"."""

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the file of --te-precision-config-file, in JSON, which YAML includes. Returns: the arguments for Megatron.
        They switch the most frequent format on, because the file has no effect on a model that has none.
        """
        matchers = {n: {"config": p, "type": "glob", "pattern": n, "enabled": True} for n, p in self.recipes.items()}
        matchers["*"] = {"config": "bf16", "type": "glob", "pattern": "*", "enabled": True}
        configs = {
            p: {"transformer_engine_config_type": "TEQuantizationParams", "training_recipe": _MEGATRON.get(p, {})}
            for p in sorted({m["config"] for m in matchers.values()})
        }
        with open(path, "w") as file:
            json.dump({"configs": configs, "matchers": matchers}, file, indent=2)
        arguments = ["--bf16"]
        for p, _ in Counter(self.recipes.values()).most_common(1):
            bits, form = ("fp4", "e2m1") if p == "nvfp4" else ("fp8", _MEGATRON[p]["fp8_format"])
            arguments += [f"--{bits}-format", form, f"--{bits}-recipe", _MEGATRON[p][f"{bits}_quantization_recipe"]]
        arguments += ["--te-precision-config-file", os.fspath(path)]
        arguments += ["--use-precision-aware-optimizer"] if self.moments else []
        arguments += [f"--{moment.replace('_', '-')}-dtype {p.split('_')[0]}" for moment, p in self.moments.items()]
        return " ".join(arguments)


def to_megatron(plan: Any, *, model: Model = "", names: Mapping[str, str] | None = None) -> MegatronModules:
    """A plan for Megatron-LM (core 0.20) with its Transformer Engine modules:

        export = comp.to_megatron("plan.json", names={
            "block{}.attention.query": "decoder.layers.{}.self_attention.linear_qkv", ...,
            "block{}.mlp.expand": "decoder.layers.{}.mlp.linear_fc1"})
        print(export.save("precisions.yaml"), export.left)   # the arguments for Megatron, and what it cannot have

    A module of Megatron has one format for all its products, and so have the plan's modules that it stands for; others
    stay in BF16, and `left` names them. Megatron counts layers from 0 within a pipeline stage: one file fits one stage.
    names: Megatron's names for those of the plan; {} is a number. None: they are the same. Other arguments and errors:
        as to_torchao.
    """
    for here, there in (names or {}).items():
        if here.count("{}") != there.count("{}"):
            raise SettingsError(f'"{here}" and "{there}" have not as many numbers ({{}} stands for one): give both all')
    name, _ = _named(model)
    layers, moments, mixed = _without_moments(plan_file(plan))
    modules, left = _products(layers, name, "Megatron's file names linear modules")
    sources: dict[str, list[str]] = {}
    for n in modules:
        sources.setdefault(_renamed(n, names) or f'"{n}"', []).append(n)
    recipes: dict[str, str] = {}
    for there, of in sources.items():
        formats = sorted({x for n in of for x in modules[n].values()})
        products = ", ".join(f'"{n}"' for n in of) + (" are in " if len(of) > 1 else " is in ") + ", ".join(formats)
        if set(formats) <= {"fp32", "tf32", "bf16", "fp16"}:
            continue
        if there.startswith('"'):
            left.append(f"{products} (names has no pattern for it): it stays in BF16")
        elif len(formats) > 1:
            left.append(f"{products} (Megatron has one format for all of {there}): {there} stays in BF16")
        elif formats in (["mxfp4"], ["bf16>fp32"]):
            left.append(f"{products} (Megatron has no recipe for it): {there} stays in BF16")
        else:
            recipes[there] = formats[0].replace("e5m2", "e4m3")
            if recipes[there] != formats[0]:
                left.append(f"{products} (Megatron has E5M2 for gradients only): {there} becomes E4M3")
    return MegatronModules(modules, (*left, *mixed, *_rounding_of(moments)), recipes, moments)


def _renamed(module: str, names: Mapping[str, str] | None) -> str:
    """The name of a module elsewhere; "" if no pattern fits."""
    if names is None:
        return module
    for here, there in names.items():
        if found := re.fullmatch(re.escape(here).replace(r"\{\}", r"(\d+)"), module):
            return there.format(*found.groups())
    return ""


def _without_moments(plan: PlanFile) -> tuple[PlanFile, dict[str, str], list[str]]:
    """The plan of the layers, the low formats of Adam's moments, and sentences on moments of several formats."""
    formats: dict[str, set[str]] = {}
    for _, kind, precision in plan.operators:
        if kind in _MOMENTS:
            formats.setdefault(_MOMENTS[kind], set()).add(precision)
    moments = {moment: min(of) for moment, of in formats.items() if len(of) == 1 and of != {"fp32"}}
    mixed = [f"{moment} is in {' and in '.join(sorted(of))} (an optimizer there has one format for it): it stays in FP32"
             for moment, of in formats.items() if len(of) > 1]
    return replace(plan, operators=tuple(op for op in plan.operators if op[1] not in _MOMENTS)), moments, mixed


def _rounding_of(moments: dict[str, str]) -> list[str]:
    """What a library that can have these moments does otherwise."""
    scales = ", and have one scale there, here one for 256 values" if "fp8_e4m3" in moments.values() else ""
    return [f"{' and '.join(moments)} in {' and '.join(sorted(set(moments.values())))} are rounded to the nearest there and "
            f"at random here, so that small changes count on average{scales}: watch whether the loss stays as low"] if moments else []


def _products(plan: PlanFile, model: str, swaps: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The precisions of the products of each linear module, and what has no place there, in sentences. A plan whose layers
    are whole gives all three the same."""
    whole: dict[str, str] = {}
    apart: dict[str, dict[str, str]] = {}
    left: list[str] = []
    others: Counter[str] = Counter()
    prefix = f"{model}." if model else ""
    for name, kind, precision in plan.operators:
        layer, _, product = name.rpartition(".")
        if product in ("input_gradient", "weight_gradient"):
            apart.setdefault(_module_of(layer), {})[product] = precision
            continue
        if not kind:
            raise SettingsError(
                "the plan has letters and no operators (modules are found by name): save it with its operators"
            )
        path = _module_of(name)
        module = path.removeprefix(prefix) if path.startswith(prefix) else ""
        if not module or kind.removeprefix("aten::").partition(".")[0] not in _LINEAR:
            others[precision] += 1
        elif whole.setdefault(module, precision) != precision:
            left.append(
                f'"{module}" is called in {whole[module]} and in {precision} (a swapped module has one precision): '
                f"it is taken as {whole[module]}"
            )
    left += [
        f"{count} operators in {precision} are in no linear module ({swaps} alone): they are left out"
        for precision, count in sorted(others.items())
        if precision != "fp32"
    ]
    left += [
        f"from batch {later.batch} on the plan is another (what is exported has one for all batches): change it there by hand"
        for later in plan.later
    ]
    return {module: dict.fromkeys(_CASTS, p) | apart.get(prefix + module, {}) for module, p in whole.items()}, left


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
