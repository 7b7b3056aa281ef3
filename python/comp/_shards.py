# SPDX-License-Identifier: Apache-2.0
"""Models that torch's fully_shard (FSDP2) spreads over ranks. Each rank keeps a part of each parameter, a DTensor. The
forward reads whole parameters, whose memory is there only while their module runs: FSDP gathers them before, and again
for the backward. A parameter that the plan reads in BF16 alone is gathered in BF16, to the same bits for half the bytes.

FSDP's public way, a subclass with fsdp_pre_all_gather, would have to be there before fully_shard. So torch's FSDPParam is
written to, and a test compares the bits with DistributedDataParallel's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from comp._comp import Regions, SettingsError


class Part(NamedTuple):
    """This rank's part of a tensor that is spread over ranks, as checkpoints have it."""

    values: torch.Tensor


def own_part(value: Any) -> Any:
    """This rank's part of a tensor that is spread over ranks; anything else as it is."""
    return getattr(value, "_local_tensor", value)


def parts_in(value: Any) -> Any:
    """A nest of dicts and lists with a Part in place of each tensor that is spread over ranks."""
    if isinstance(value, torch.Tensor) and own_part(value) is not value:
        return Part(own_part(value))
    if isinstance(value, dict):
        return {key: parts_in(each) for key, each in value.items()}
    return [parts_in(each) for each in value] if type(value) is list else value


def spread(value: Any, like: torch.Tensor) -> Any:
    """The tensor of which each rank has a Part, spread as `like`; any other value as it is."""
    if not isinstance(value, Part):
        return value
    from torch.distributed.tensor import DTensor

    where: Any = like
    values = value.values.to(where.device)
    return DTensor.from_local(values, where.device_mesh, where.placements, shape=where.shape, stride=where.stride())


def is_sharded(module: nn.Module) -> bool:
    """Whether fully_shard was called on this very module: it makes a class of its own of each module's."""
    return any(each.__name__ == "FSDPModule" for each in type(module).__mro__)


def sharded(models: Mapping[str, nn.Module]) -> list[Any]:
    """The modules on which fully_shard was called."""
    return [part for model in models.values() for part in model.modules() if is_sharded(part)]


def keepers(module: Any) -> list[Any]:
    """The objects by which FSDP handles a module that it shards: its state, and the group of its parameters."""
    state = module._get_fsdp_state()
    group = state._fsdp_param_group  # None if submodules that are sharded have all of its parameters
    return [state] if group is None else [state, group]


def require_usable(path: str, module: nn.Module) -> None:
    """Raises: SettingsError for a module that FSDP lowers by itself."""
    low = keepers(module)[0]._mp_policy.param_dtype
    if low not in (None, torch.float32):
        raise SettingsError(
            f"{path} is sharded with MixedPrecisionPolicy(param_dtype={low}), which lowers all its operators (here the plan "
            "says which ones): call fully_shard without it; reduce_dtype may stay"
        )


def reshard(models: Mapping[str, nn.Module]) -> None:
    """Frees whole parameters, which are out of date: parts have been written, or a forward has failed."""
    for part in sharded(models):
        part.reshard()


def whole_parameters(models: Mapping[str, nn.Module]) -> dict[int, torch.Tensor]:
    """What forwards read in place of the parameters that FSDP shards, by these parameters' identity. They stay the same
    tensors, and only their memory comes and goes. All ranks call it, since it gathers each module's once."""
    found: dict[int, torch.Tensor] = {}
    reshard(models)
    for part in sharded(models):
        kept = dict(part.named_parameters())
        part.unshard()
        found.update((id(kept[n]), whole) for n, whole in part.named_parameters() if whole is not kept[n])
        part.reshard()
    return found


class _Low(nn.Parameter):
    """A whole parameter that was gathered in a low format, and says that it is FP32: models look at `weight.dtype` in their
    forward, as T5's does, and go the way that they go in FP32 without a plan."""

    dtype = property(lambda _: torch.float32)  # type: ignore[assignment]


_format = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]


def groups_that_follow(models: Mapping[str, nn.Module], innermost: Callable[[], Regions | None]) -> list[Any]:
    """Returns: the groups of parameters that FSDP shards, which are from now on gathered in the formats in which the plan
    reads them. Outside of regions these are FP32. `innermost`: the region that this thread is in."""
    groups = [group for part in sharded(models) for group in keepers(part)[1:]]
    for group in groups:
        if not hasattr(group, "follows_plans"):
            _follow_plans(group, innermost)
            group.follows_plans = True
    return groups


def _gathered(group: Any) -> list[tuple[Any, nn.Parameter]]:
    """FSDP's objects of a group's parameters that were gathered before, with the whole parameters."""
    return [(each, each._unsharded_param) for each in group.fsdp_params if hasattr(each, "_unsharded_param")]


def _follow_plans(group: Any, innermost: Callable[[], Regions | None]) -> None:
    unshard, post_forward, post_backward = group.unshard, group.post_forward, group.post_backward
    register = group._register_post_backward_hook

    def unshard_in_formats(*given: Any, **named: Any) -> Any:
        if group._training_state.name == "FORWARD":  # the backward needs them as the forward had them
            _choose_formats(group, innermost())
        for each, whole in _gathered(group):
            each.param_dtype = None if _format(whole) is each.orig_dtype else _format(whole)
        return unshard(*given, **named)

    def post_forward_of_evaluation(*given: Any) -> Any:
        """FSDP leaves the parameters of the root whole until a backward. Whoever reads them then wants them in FP32."""
        result = post_forward(*given)
        if not torch.is_grad_enabled() and any(isinstance(whole, _Low) for _, whole in _gathered(group)):
            group._to_sharded()
        return result

    def post_backward_in_fp32(*given: Any) -> Any:
        for each, whole in _gathered(group):  # FSDP reduces the gradients of a module in one format
            gradient = whole.grad
            if gradient is not None and gradient.dtype is not each.orig_dtype:
                before, whole.grad = each.unsharded_accumulated_grad, None
                now = gradient.to(each.orig_dtype)
                each.unsharded_accumulated_grad = now if before is None else before + now
        return post_backward(*given)

    def register_as_no_operator(*given: Any) -> Any:
        """It passes the module's inputs through a Function that changes no value."""
        result, region = register(*given), innermost()
        if region is not None:
            for was, now in zip(tree_leaves(given), tree_leaves(result)):
                if was is not now and isinstance(was, torch.Tensor):
                    region.pass_on(was, now)
        return result

    group.unshard = unshard_in_formats
    group.post_forward = post_forward_of_evaluation
    group.post_backward = post_backward_in_fp32
    group._register_post_backward_hook = register_as_no_operator


def _choose_formats(group: Any, region: Regions | None) -> None:
    for each, whole in _gathered(group):
        if each._unsharded_inner_tensors or len(each.all_gather_outputs) != 1:
            continue  # its tensor class gathers in a format of its own
        dtype = each.orig_dtype
        if region is not None and dtype is torch.float32:
            dtype = region.format_of_parameter(whole)
        if _format(whole) is not dtype:
            group.wait_for_unshard()  # if it was gathered ahead, in the other format
            group._to_sharded()
            gathered = torch.empty_like(each.all_gather_outputs[0], dtype=dtype)
            whole.data = gathered.as_strided(whole.shape, whole.stride())
            whole.__class__ = nn.Parameter if dtype is each.orig_dtype else _Low
            gathered.untyped_storage().resize_(0)
            each.all_gather_outputs = [gathered]
