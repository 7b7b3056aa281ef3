# SPDX-License-Identifier: Apache-2.0
"""The ranks of torch.distributed, which are searched as one."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from comp import _comp

_groups: dict[int, Any] = {}  # by the process group that it stands beside: comp's own, so that no step waits in it


def count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def several() -> bool:
    return count() > 1


def rank() -> int:
    return dist.get_rank() if several() else 0


def leads() -> bool:
    """Whether this rank writes files and tells what happens."""
    return rank() == 0


def on_each(ranks: _comp.RankTeam | None, work: Callable[[], str | None]) -> list[str]:
    """Runs `work` on each rank; all call it. Returns: what each gave, by rank; "" for None. Raises: if it fails on one
    rank, its exception there, and on the others one that names the rank."""
    if ranks is None:
        return [work() or ""]
    own: Exception | None = None
    try:
        answer = "=" + (work() or "")
    except Exception as error:
        own, answer = error, f"{type(error).__name__}: {error}"
    answers = ranks.exchange(answer)
    if own is not None and not isinstance(own, _comp.Abandoned):
        raise own
    for number, words in enumerate(answers):
        kind, _, text = words.partition(": ")
        if words.startswith("=") or kind == "Abandoned":
            continue
        if kind in ("FileError", "SettingsError"):
            raise getattr(_comp, kind)(f"rank {number}: {text}")
        raise _comp.RankError(f"rank {number}: {words}")
    return [words[1:] for words in answers]


def team() -> _comp.RankTeam | None:
    """The ranks of the default process group; None for a process alone. All ranks call it."""
    if not several():
        return None
    world = dist.group.WORLD
    timeout = _timeout(world)
    if id(world) not in _groups:
        _groups.clear()
        _groups[id(world)] = dist.new_group(backend="gloo", timeout=timeout)
    # Longer than torch waits: a step that waits for a rank ends first, and can still say so.
    return _comp.RankTeam(_groups[id(world)], timeout.total_seconds() + min(timeout.total_seconds(), 30))


def _timeout(world: Any) -> datetime.timedelta:
    """How long the training itself lets a rank take: init_process_group(timeout=...)."""
    for device in world._device_types:
        options = getattr(world._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if timeout is not None:
            return timeout
    return dist.constants.default_pg_timeout
