# SPDX-License-Identifier: Apache-2.0
"""The names of a model's parameters, and models that a plan cannot be used with."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from comp._comp import SettingsError

Models = "nn.Module | Mapping[str, nn.Module]"
Named = list[tuple[str, list[tuple[str, torch.Tensor]]]]


def modules_of(model: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The models under the names that begin the names of their operators; "" for one that is given alone."""
    given = dict(model) if isinstance(model, Mapping) else {"": model}
    if not given:
        raise SettingsError("no model is given (operators are named after modules): give model=net")
    for name, module in given.items():
        if not isinstance(module, nn.Module):
            raise SettingsError(
                f'model "{name}" is a {type(module).__name__} (a torch.nn.Module is wanted): give the '
                "module whose parameters are trained"
            )
        _require_usable(module)
        if isinstance(module, nn.parallel.DistributedDataParallel):
            leave_outside(module, "_pre_forward", "_post_forward")
    return {name: unwrapped(module) for name, module in given.items()}


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel or what torch.compile returns: its names are the model's."""
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(compiled := getattr(module, "_orig_mod", None), nn.Module):
            module = compiled
        else:
            return module


def _dispatch_key(name: str) -> torch._C.DispatchKey:
    key = torch._C._parse_dispatch_key(name)
    assert key is not None, name
    return key


def leave_outside(module: nn.Module, *methods: str) -> None:
    """Hides from plans what these methods do, because it is no part of the model. DistributedDataParallel does not
    handle its buckets and buffers in each step alike, and logging depends on the Trainer."""
    keys = torch._C.DispatchKeySet(_dispatch_key("AutocastPrivateUse1"))
    for other in ("AutocastIPU", "AutocastHPU", "AutocastXLA"):  # the keys that comp may have (dispatch_key.hpp)
        keys = keys | torch._C.DispatchKeySet(_dispatch_key(other))

    def outside(method: Any) -> Any:
        @functools.wraps(method)
        def run(*given: Any, **named: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return method(*given, **named)

        setattr(run, "outside", True)
        return run

    for name in methods:
        method = getattr(module, name, None)
        if method is not None and not hasattr(method, "outside"):
            object.__setattr__(module, name, outside(method))


def named_parameters(models: Mapping[str, nn.Module]) -> Named:
    """Each model's parameters by name. A block that torch.compile returned has the names of the one that it compiles."""

    def named(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [(name.replace("_orig_mod.", ""), parameter) for name, parameter in module.named_parameters()]

    return [(name, named(module)) for name, module in models.items()]


def _require_usable(module: nn.Module) -> None:
    for path, part in module.named_modules():
        called = f'"{path}"' if path else "the model"
        # fully_shard makes a class of its own of each module's, and FSDPModule.
        if any(each.__name__ in ("FullyShardedDataParallel", "FSDPModule") for each in type(part).__mro__):
            raise SettingsError(
                f"{called} is sharded by FSDP (its parameters are parts of tensors): search the model "
                "before it is wrapped, or in DistributedDataParallel"
            )
        if isinstance(part, nn.DataParallel):
            raise SettingsError(
                f"{called} is a DataParallel (it runs in threads of its own, which no plan reaches): "
                "use DistributedDataParallel"
            )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SettingsError(f'parameter "{name}" has no shape yet (its module is lazy): run a forward first')
