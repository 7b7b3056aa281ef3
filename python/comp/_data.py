# SPDX-License-Identifier: Apache-2.0
"""The batches of a training, pulled one by one from whatever can be iterated."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from comp._comp import SettingsError
from comp._state import random_state, same_random_state


def tensors_of(value: Any) -> list[torch.Tensor]:
    """A batch's tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return tensors_of(list(value.values()))
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each)]
    return tensors_of(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else []


def own(value: Any) -> Any:
    """The batch in containers of its own: a step may pop from them, and the batch is given again."""
    if type(value) is dict:
        return {key: own(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own(each) for each in value)
    return copy.copy(value) if isinstance(value, Mapping) else value


class Batches:
    """Each epoch is one iteration over `data`."""

    def __init__(self, data: Iterable[Any]) -> None:
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise SettingsError(
                f"data is a {type(data).__name__} (it cannot be iterated): give a DataLoader or a list " "of batches"
            )
        if isinstance(data, Iterator):
            raise SettingsError(
                f"data is a {type(data).__name__} (it is over after one epoch): give a DataLoader or a "
                "list of batches"
            )
        self._data = data
        self._at: Iterator[Any] | None = None
        try:
            self.length = len(data)  # type: ignore[arg-type]
        except TypeError:
            self.length = 0

    def pull(self) -> tuple[Any, Any, list[torch.Tensor]] | None:
        """The next batch, the random generators after it where it moved them, its tensors; None at an epoch's end."""
        before = random_state()
        begins = self._at is None
        if self._at is None:
            self._at = iter(self._data)
        try:
            value = next(self._at)
        except StopIteration:
            self._at = None
            if begins:
                raise SettingsError(
                    "data gives no batch (there is nothing to train on): check the DataLoader"
                ) from None
            return None
        after = random_state()
        return value, None if same_random_state(before, after) else after, tensors_of(value)
