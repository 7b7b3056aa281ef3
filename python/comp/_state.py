# SPDX-License-Identifier: Apache-2.0
"""What a training holds beside its parameters: buffers, optimizers, random generators and whatever else has a state."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from comp._comp import SettingsError
from comp._shards import own_part


def random_state() -> tuple[Any, ...]:
    """The generators' states: of torch (CPU), Python and, if it is loaded, NumPy."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def set_random_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])


def same_random_state(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    if not torch.equal(a[0], b[0]) or a[1] != b[1] or (a[2] is None) != (b[2] is None):
        return False
    return a[2] is None or (a[2][2] == b[2][2] and (a[2][1] == b[2][1]).all() and a[2][3:] == b[2][3:])


def copied(value: Any, device: str | torch.device | None = None) -> Any:
    """A deep copy whose tensors are detached, on `device` if one is named."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device or value.device, copy=True)
    if isinstance(value, dict):
        return {key: copied(each, device) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(each, device) for each in value)
    return copy.deepcopy(value)


def put(now: Any, saved: Any) -> Any:
    """Puts `saved` in place of `now`: into the same tensor if it fits, so that whoever holds that sees it."""
    if not isinstance(saved, torch.Tensor):
        return copied(saved)
    if isinstance(now, torch.Tensor) and now.shape == saved.shape and now.dtype == saved.dtype:
        now.detach().copy_(saved)
        return now
    return copied(saved, now.device if isinstance(now, torch.Tensor) else None)


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Buffers by their names; None for one that a forward has yet to make."""
    return {f"{name}.{n}".lstrip("."): b for name, part in model.named_modules() for n, b in part._buffers.items()}


def put_buffers(model: nn.Module, saved: Mapping[str, torch.Tensor | None]) -> None:
    now = buffers_of(model)
    for name, value in saved.items():
        held = now.get(name)
        kept = put(held, value)
        if kept is not held:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = kept


def put_format_back(parameter: torch.Tensor, format: torch.dtype) -> None:
    """Stores a parameter and its gradient in a format again."""
    parameter.data = parameter.data.to(format)
    parameter.grad = None if parameter.grad is None else parameter.grad.to(format)


def can_be_saved(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


class OtherState:
    """Saves and puts back what the C++ side does not know. That side has parameters, gradients, torch's generators."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Iterable[Any],
        others: Iterable[Any],
        device: str | None = None,
    ) -> None:
        self._models = list(models.values())
        self._optimizers = list(optimizers)
        self._others = list(others)
        self._device = device
        if not self._optimizers:
            raise SettingsError("no optimizer is given (a step needs one): give optimizer=optimizer")
        for each in self._optimizers:
            if not hasattr(each, "param_groups") or not hasattr(each, "state"):
                raise SettingsError(
                    f"optimizer is a {type(each).__name__} (a torch.optim.Optimizer is wanted): give the optimizer"
                )
        for each in self._others:
            if not isinstance(each, torch.Generator) and not can_be_saved(each):
                raise SettingsError(
                    f"state has a {type(each).__name__} (it has no state_dict() and load_state_dict()): "
                    "give an object that has both, as schedulers and scalers do"
                )

    def save(self) -> dict[str, Any]:
        return {
            "buffers": [copied(buffers_of(m), self._device) for m in self._models],
            "optimizers": [self._saved(each) for each in self._optimizers],
            "others": self.others(),
            "frozen": [p for m in self._models for p in m.parameters() if not p.requires_grad],
            "random": random_state(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        for optimizer, state in zip(self._optimizers, saved["optimizers"]):
            self._restore_groups(optimizer, state["groups"])
        self.restore_trained(saved)
        frozen = set(map(id, saved["frozen"]))
        for parameter in [p for m in self._models for p in m.parameters()]:
            if parameter.requires_grad == (id(parameter) in frozen):
                parameter.requires_grad_(not parameter.requires_grad)
        set_random_state(saved["random"])

    def restore_trained(self, saved: dict[str, Any]) -> None:
        """Puts back what batches train: buffers, moments and what `state` names. Learning rates and generators go on."""
        with torch.no_grad():
            for model, buffers in zip(self._models, saved["buffers"]):
                for name in buffers_of(model).keys() - buffers.keys():  # a forward has registered it since
                    owner, _, leaf = name.rpartition(".")
                    del model.get_submodule(owner)._buffers[leaf]
                put_buffers(model, buffers)
            for optimizer, state in zip(self._optimizers, saved["optimizers"]):
                self._restore_moments(optimizer, state["state"])
        self.put_others(saved["others"])

    def count(self) -> int:
        return len(self._others)

    def others(self) -> list[Any]:
        """The states of what `state` names."""
        return [
            each.get_state() if isinstance(each, torch.Generator) else copied(each.state_dict(), self._device)
            for each in self._others
        ]

    def put_others(self, saved: list[Any]) -> None:
        for each, state in zip(self._others, saved):
            if isinstance(each, torch.Generator):
                each.set_state(state)
            else:
                each.load_state_dict(copied(state))

    def named_tensors(self) -> list[torch.Tensor]:
        """The tensors of what `state` names."""
        states = [each.state_dict() for each in self._others if hasattr(each, "state_dict")]
        return [own_part(leaf) for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that live from step to step."""
        found = [b for model in self._models for b in model.buffers()]
        entries = [entry for each in self._optimizers for entry in each.state.values() if isinstance(entry, dict)]
        found += [v for entry in entries for v in entry.values() if isinstance(v, torch.Tensor)]
        return [own_part(each) for each in found]

    def _saved(self, optimizer: Any) -> dict[str, Any]:
        return {
            "groups": [{k: copied(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
            "state": {p: copied(entry, self._device) for p, entry in optimizer.state.items()},
        }

    @staticmethod
    def _restore_groups(optimizer: Any, saved: list[dict[str, Any]]) -> None:
        if len(saved) != len(optimizer.param_groups):
            raise SettingsError(
                f"state of {len(saved)} parameter groups for an optimizer of "
                f"{len(optimizer.param_groups)} (groups were added during the search): add them before"
            )
        for group, values in zip(optimizer.param_groups, saved):
            for key in [k for k in group if k != "params" and k not in values]:
                del group[key]
            for key, value in values.items():
                group[key] = put(group.get(key), value)

    @staticmethod
    def _restore_moments(optimizer: Any, saved: dict[Any, dict[str, Any]]) -> None:
        for parameter in [p for p in optimizer.state if p not in saved]:
            del optimizer.state[parameter]
        for parameter, values in saved.items():
            if not isinstance(values, dict):  # a count of its own, as MADGRAD has
                optimizer.state[parameter] = put(optimizer.state.get(parameter), values)
                continue
            entry = optimizer.state[parameter]
            for key in [k for k in entry if k not in values]:
                del entry[key]
            for key, value in values.items():
                if key in entry:
                    entry[key] = put(entry[key], value)
                else:
                    moment = isinstance(value, torch.Tensor) and value.dim() > 0  # a count of steps stays on its device
                    entry[key] = copied(value, parameter.device if moment else None)
