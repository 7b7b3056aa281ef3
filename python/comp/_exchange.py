# SPDX-License-Identifier: Apache-2.0
"""The exchange of gradients among ranks, in the format that the plan gives it. DistributedDataParallel averages them in
buckets, FSDP2 a group of parameters at a time, both while the backward goes on."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from comp import _ranks, _shards
from comp._comp import Regions, SettingsError
from comp._models import wrap_once
from comp._open import open_regions

KIND = "all_reduce"  # of the operator that stands for it (exchange.hpp)


class _Forward:
    """In which plan's region the last forward with gradients ran: its backward exchanges by that plan."""

    def __init__(self) -> None:
        self._regions: Callable[[], Regions | None] = lambda: None

    def note(self) -> None:
        """Looks for the region, in the forward. One that the backward runs again is no forward."""
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            region = open_regions.innermost()
            self._regions = (lambda: None) if region is None else weakref.ref(region)

    def exchange(self, begin: Callable[[torch.dtype], Any]) -> Any:
        regions = self._regions()
        return begin(torch.float32) if regions is None else regions.exchange(begin)


class _Buckets(_Forward):
    """The gradients of a DistributedDataParallel. In FP32 they get the bits that they get without a hook."""

    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.group = group

    def __reduce__(self) -> Any:
        return _Buckets, ()  # what torch copies or pickles has the default group


def _note_forwards() -> None:
    """Wraps the method by which DistributedDataParallel begins a forward."""

    def wrap(original: Any) -> Any:
        def noted(module: Any, *given: Any, **named: Any) -> Any:
            for _, state in module._comm_hooks:
                if isinstance(state, _Buckets):
                    state.note()
            return original(module, *given, **named)

        return noted

    wrap_once(DistributedDataParallel, "_pre_forward", "wrapped_by_comp", wrap)


def _average(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text, as all are here
    gradients: torch.Tensor = bucket.buffer()

    def begin(format: torch.dtype) -> Any:
        gradients.mul_(1 / dist.get_world_size(state.group))
        sent = gradients.to(format) if gradients.dtype is torch.float32 else gradients
        sums = dist.all_reduce(sent, group=state.group, async_op=True).get_future()
        return sums.then(lambda done: gradients if sent is gradients else gradients.copy_(done.value()[0]))

    return state.exchange(begin)


class _Group(_Forward):
    """The gradients of a group of parameters that FSDP shards."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group
        self._reduce = group.post_backward
        unshard = group.unshard

        def noted(*given: Any, **named: Any) -> Any:
            self.note()
            return unshard(*given, **named)

        group.unshard = noted
        group.post_backward = lambda *given: self.exchange(lambda format: self._begin(format, given))

    def _begin(self, format: torch.dtype, given: Any) -> _Group:
        group, kept = self._group, self._group._reduce_dtype
        if format is not torch.float32 and group._orig_dtype is torch.float32:
            group._reduce_dtype = format
        try:
            self._reduce(*given)
        finally:
            group._reduce_dtype = kept
        return self

    def wait(self) -> None:
        event = self._group._post_reduce_event
        if event is not None:
            self._group.device_handle.current_stream().wait_event(event)


def _refusal(replicas: list[DistributedDataParallel], shards: list[Any]) -> str:
    """Why a plan cannot have the format of the exchange; "" if it can."""
    if not _ranks.several():
        return "this process trains alone"
    if not replicas and not shards:
        return "no model is a DistributedDataParallel or was given to fully_shard"
    for each in replicas:
        if (hook := _hook_of(each)) and not _follows(each):
            return f"DistributedDataParallel has a communication hook, {hook}, and takes one alone"
    for part in shards:
        chosen = _shards.keepers(part)[0]._mp_policy.reduce_dtype
        if chosen not in (None, torch.float32):
            return f"fully_shard was given MixedPrecisionPolicy(reduce_dtype={chosen})"
    return ""


def _hook_of(module: DistributedDataParallel) -> str:
    """The communication hook's name, or "". A copied module lists the hooks of the other, and has none."""
    return str(module._get_ddp_logging_data().get("comm_hook", ""))


def _follows(module: DistributedDataParallel) -> bool:
    return _hook_of(module) != "" and any(hook is _average for hook, _ in module._comm_hooks)


def follow(model: nn.Module | Mapping[str, nn.Module]) -> str:
    """Has gradients travel in the format of the plan from now on. Returns: why they cannot, or ""."""
    given = model.values() if isinstance(model, Mapping) else [model]
    parts = [part for each in given if isinstance(each, nn.Module) for part in each.modules()]
    replicas = [part for part in parts if isinstance(part, DistributedDataParallel)]
    shards = [part for part in parts if _shards.is_sharded(part)]
    refusal = _refusal(replicas, shards)
    if refusal:
        return refusal
    _note_forwards()
    for replica in replicas:
        if not _follows(replica):
            replica._comm_hooks.clear()
            replica.register_comm_hook(_Buckets(replica.process_group), _average)
    for group in [group for part in shards for group in _shards.keepers(part)[1:]]:
        if not hasattr(group, "exchanges_by_plans"):
            group.exchanges_by_plans = _Group(group)
    return ""


def chosen(exchange: bool | None, model: nn.Module | Mapping[str, nn.Module], target: str | None = None) -> bool:
    """Whether a plan has the format, from now on. Raises: SettingsError if it was asked for in vain."""
    refusal = "times are modelled for another machine" if target else "" if exchange is False else follow(model)
    if exchange and refusal:
        raise SettingsError(f"exchange=True ({refusal}): leave it out, or change that")
    return exchange is not False and not refusal


def follow_file(model: nn.Module | Mapping[str, nn.Module], operators: list[tuple[str, str, str]]) -> None:
    """As follow(), if a plan file has the exchange. Warns if the file lowers it in vain."""
    format = next((precision for _, kind, precision in operators if kind == KIND), None)
    refusal = follow(model) if format is not None else ""
    if refusal and format != "fp32" and _ranks.several():
        warnings.warn(f"the plan has gradients exchanged in {format}, and they are not ({refusal})", stacklevel=3)
