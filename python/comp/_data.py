# SPDX-License-Identifier: Apache-2.0
"""The batches of a training, pulled one by one from whatever can be iterated."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from comp._comp import RankTeam, SettingsError
from comp._objects import attributes
from comp._state import random_state, same_random_state, set_random_state

_KEPT_STARTS = 100  # a search may have read so many epochs ahead


def tensors_of(value: Any) -> list[torch.Tensor]:
    """A batch's tensors, in their order. The batch may refer to itself."""
    found: list[torch.Tensor] = []
    visited: set[int] = set()
    left = [value]
    while left:
        now = left.pop()
        if id(now) in visited:
            continue
        visited.add(id(now))
        if isinstance(now, torch.Tensor):
            found.append(now)
        elif isinstance(now, Mapping):
            left += reversed(list(now.values()))
        elif isinstance(now, (list, tuple)):
            left += reversed(now)
        elif not isinstance(now, (type, torch.nn.Module)):
            left += reversed(list((attributes(now) or {}).values()))
    return found


def own(value: Any) -> Any:
    """The batch in new containers: a step may pop from them, and the batch is given again."""
    known: dict[int, Any] = {}

    def copied(each: Any) -> Any:
        if id(each) in known:
            return known[id(each)]
        if type(each) is dict:
            batch: Any = known.setdefault(id(each), {})
            batch.update((key, copied(inner)) for key, inner in each.items())
            return batch
        if type(each) is list:
            batch = known.setdefault(id(each), [])
            batch.extend(copied(inner) for inner in each)
            return batch
        if type(each) is tuple:
            return tuple(copied(inner) for inner in each)
        return copy.copy(each) if isinstance(each, Mapping) else each

    return copied(value)


class Batches:
    """An epoch is one iteration over `data`. With `batches_per_epoch` an epoch is so many batches: the next epoch goes
    on from there, and `data` begin anew at their end."""

    def __init__(self, data: Iterable[Any], batches_per_epoch: int | None = None) -> None:
        if batches_per_epoch is not None and batches_per_epoch < 1:
            raise SettingsError(f"batches_per_epoch is {batches_per_epoch} (an epoch has one at least): give more, or none")
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise SettingsError(
                f"data is a {type(data).__name__} (it cannot be iterated): give a DataLoader or a list of batches"
            )
        if isinstance(data, Iterator):
            raise SettingsError(
                f"data is a {type(data).__name__} (it is over after one epoch): give a DataLoader or a list of batches"
            )
        self._data = data
        self._at: Iterator[Any] | None = None
        self._epoch = batches_per_epoch
        self._shortest: int | None = None  # batches of the rank that has fewest
        self._given = 0  # batches of this epoch
        self._starts: list[Any] = []  # the generators' states before each epoch; None for those long ago
        try:
            self.length = batches_per_epoch or len(data)  # type: ignore[arg-type]
        except TypeError:
            self.length = 0

    def agree(self, ranks: RankTeam) -> list[str]:
        """Ends each epoch with the shortest of the ranks': all train each batch together. Nothing is done if a rank
        does not know how many batches it has. Returns: what is to be told of that."""
        longest, minus_shortest = ranks.maximum([float(self.length), -float(self.length)])
        shortest = int(-minus_shortest)
        if shortest == 0 or shortest == longest:
            return []
        self._shortest = self.length = shortest
        return [
            f"ranks have from {shortest} to {int(longest)} batches in an epoch (all train each batch together): an epoch ends "
            "with the shortest; give each rank as many"
        ]

    def start(self, epoch: int) -> Any:
        """The generators' states before an epoch, counted from 0; None if they are not known."""
        return self._starts[epoch] if self._epoch is None and epoch < len(self._starts) else None

    def skip(self, start: Any, batches: int) -> None:
        """Begins an epoch from the generators' states `start`, and leaves out its first batches."""
        set_random_state(start)
        for _ in range(batches):
            self.pull()

    def pull(self) -> tuple[Any, Any, list[torch.Tensor]] | None:
        """The next batch, the random generators' states if it changed them, its tensors; None at an epoch's end."""
        if self._given in (self._epoch, self._shortest):
            if self._given != self._epoch:
                self._at = None  # what is left of this rank's data is left out
            self._given = 0
            return None
        before = random_state()
        try:
            value = self._next()
        except StopIteration:
            if self._epoch is None:
                self._given = 0
                return None
            value = self._next()
        self._given += 1
        after = random_state()
        return value, None if same_random_state(before, after) else after, tensors_of(value)

    def _next(self) -> Any:
        """Raises: StopIteration at the end of the data; the next call begins anew."""
        begins = self._at is None
        if self._at is None:
            self._starts.append(random_state())
            if len(self._starts) > _KEPT_STARTS:
                self._starts[-_KEPT_STARTS - 1] = None
            self._at = iter(self._data)
        try:
            return next(self._at)
        except StopIteration:
            self._at = None
            if begins:
                raise SettingsError("data gives no batch (there is nothing to train on): check the DataLoader") from None
            raise
