# SPDX-License-Identifier: Apache-2.0
"""Gives a model's forward, with the casts of a plan in it, to programs that know nothing of plans."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from comp._comp import SettingsError
from comp._models import in_evaluation, unwrapped
from comp._region import Planned
from comp._shards import sharded


def export(
    plan: Planned, model: nn.Module, args: Sequence[Any], *, dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None
) -> torch.export.ExportedProgram:
    """The forward of a model in evaluation, in the precisions of a plan, as torch.export gives it. AOTInductor, for instance,
    compiles it into a package that C++ loads:

        program = comp.export(comp.plan("plan.json", net), net, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
        torch._inductor.aoti_compile_and_package(program, package_path="net.pt2")

    plan: made for `model`, or for more that contains it. args: inputs of the forward. The program is for their shapes, but
        for the dimensions that dynamic_shapes names, as in torch.export.export. Its parameters stay FP32.

    Raises: what the model, make_fx and torch.export raise for what they cannot trace, such as a branch on values.
    """
    model = unwrapped(model)
    if sharded({"": model}):
        raise SettingsError(
            "the model is sharded by fully_shard (no rank has its weights): export one that is not, with the same plan file "
            "and the full state_dict"
        )

    def forward(*given: Any) -> Any:
        with torch.no_grad(), plan:
            return model(*given)

    with in_evaluation([model]):
        forward(*args)  # so that the plan knows composites, which it tries out, before tensors have no data
        kind = "real" if dynamic_shapes is None else "symbolic"
        traced = make_fx(forward, tracing_mode=kind, _allow_non_fake_inputs=True)(*args)
    _name_tensors(traced, model)
    if isinstance(dynamic_shapes, Mapping):
        names = list(inspect.signature(model.forward).parameters)[: len(args)]
        dynamic_shapes = tuple(dynamic_shapes.get(name) for name in names)
    return torch.export.export(traced, tuple(args), dynamic_shapes=dynamic_shapes)


def _name_tensors(traced: torch.fx.GraphModule, model: nn.Module) -> None:
    """Gives parameters and buffers the model's names, with "_" for "."; others keep the number that they were traced with."""
    names = {id(t): name.replace(".", "_") for name, t in [*model.named_parameters(), *model.named_buffers()]}
    reads = [node for node in traced.graph.nodes if node.op == "get_attr"]
    for old in {node.target for node in reads}:
        tensor = getattr(traced, old)
        name = names.get(id(tensor), old)
        if hasattr(traced, name):
            continue
        setattr(traced, name, tensor)
        delattr(traced, old)
        for node in reads:
            if node.target == old:
                node.target = name
    traced.recompile()
