# SPDX-License-Identifier: Apache-2.0
"""The names of a model's parameters, and models that a plan cannot be used with."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from comp import _shards
from comp._comp import SettingsError
from comp._open import open_regions

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
            leave_outside(nn.parallel.DistributedDataParallel, "_pre_forward", "_post_forward")
        for group in _shards.groups_that_follow({name: module}, open_regions.innermost):
            leave_outside(group, "unshard", "wait_for_unshard", "reshard", "_register_post_backward_hook")
    return {name: unwrapped(module) for name, module in given.items()}


def require_step(step: Any) -> None:
    """Raises: SettingsError for what is no function."""
    if not callable(step):
        raise SettingsError(
            f"step is a {type(step).__name__} (a function of a plan and a batch is wanted): give def step(plan, batch)"
        )


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel or what torch.compile returns: its names are the model's."""
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(compiled := getattr(module, "_orig_mod", None), nn.Module):
            module = compiled
        else:
            return module


@contextlib.contextmanager
def in_evaluation(models: Iterable[nn.Module]) -> Iterator[None]:
    """Within it models are in evaluation mode. Then each part has again the mode that it had."""
    modes = [(part, part.training) for model in models for part in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training


def wrap_once(owner: Any, name: str, mark: str, wrap: Callable[[Any], Any]) -> None:
    """Replaces a function of another library by what `wrap` makes of it, unless there is none or it has this mark already."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, mark):
        wrapper = functools.wraps(original)(wrap(original))
        setattr(wrapper, mark, True)
        setattr(owner, name, wrapper)


def key_set(names: Iterable[str]) -> Any:
    """The dispatch keys of these names, as one set."""
    keys: list[Any] = [torch._C._parse_dispatch_key(name) for name in names]
    return functools.reduce(operator.or_, map(torch._C.DispatchKeySet, keys))


def leave_outside(owner: Any, *methods: str) -> None:
    """Hides from plans what these methods of an object or a class do, because it is no part of the model.
    DistributedDataParallel does not handle its buckets and buffers in each step alike, FSDP gathers parameters, and logging
    depends on the Trainer."""
    # The keys that comp may have (dispatch_key.hpp)
    keys = key_set(("AutocastPrivateUse1", "AutocastIPU", "AutocastHPU", "AutocastXLA"))

    def outside(method: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return method(*given, **named)

        return run

    for name in methods:
        wrap_once(owner, name, "outside", outside)


def named_parameters(models: Mapping[str, nn.Module], instead: Mapping[int, torch.Tensor] = {}) -> Named:
    """Each model's parameters by name, or what is given `instead` of one, by its identity. A block that torch.compile
    returned has the names of the one that it compiles."""

    def named(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [(name.replace("_orig_mod.", ""), instead.get(id(p), p)) for name, p in module.named_parameters()]

    return [(name, named(module)) for name, module in models.items()]


def forward_parameters(models: Mapping[str, nn.Module]) -> Named:
    """Each model's parameters by name, as its forward reads them: whole ones, also if FSDP shards them. All ranks call
    it. Raises: SettingsError if forwards read parts, as with tensor parallelism."""
    found = named_parameters(models, _shards.whole_parameters(models))
    for _, parameters in found:
        for name, parameter in parameters:
            if _shards.own_part(parameter) is not parameter:
                raise SettingsError(
                    f'the forward reads a part of parameter "{name}" (tensor parallelism: no single rank has the operator '
                    "of which a plan speaks): search a model whose ranks differ in their data"
                )
    return found


def _require_usable(module: nn.Module) -> None:
    for path, part in module.named_modules():
        called = f'"{path}"' if path else "the model"
        if any(each.__name__ == "FullyShardedDataParallel" for each in type(part).__mro__):
            raise SettingsError(
                f"{called} is a FullyShardedDataParallel (it hides which parameters an operator reads): call "
                "torch.distributed.fsdp.fully_shard instead"
            )
        if _shards.is_sharded(part):
            _shards.require_usable(called, part)
        if isinstance(part, nn.DataParallel):
            raise SettingsError(
                f"{called} is a DataParallel (it runs in threads of its own, which no plan reaches): "
                "use DistributedDataParallel"
            )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SettingsError(f'parameter "{name}" has no shape yet (its module is lazy): run a forward first')
