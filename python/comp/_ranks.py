# SPDX-License-Identifier: Apache-2.0
"""The ranks of torch.distributed, which are searched as one."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

from comp import _comp

_groups: dict[int, Any] = {}  # by the process group that it stands beside: comp's own, so that no step waits in it


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def leads() -> bool:
    """Whether this rank writes files and tells what happens."""
    return not several() or dist.get_rank() == 0


def require_one(what: str) -> None:
    """Raises: SettingsError on one of several ranks."""
    if several():
        raise _comp.SettingsError(
            f"{what} on {dist.get_world_size()} ranks (each has generators and data of its own, which one file does not "
            "keep): save the model yourself after found.train(), or train in a loop of your own with comp.plan"
        )


def team() -> _comp.RankTeam | None:
    """The ranks of the default process group; None for a process alone. All ranks call it."""
    if not several():
        return None
    seconds = _timeout()
    world = dist.group.WORLD
    if id(world) not in _groups:
        _groups.clear()
        _groups[id(world)] = dist.new_group(backend="gloo", timeout=seconds)
    # Longer than torch waits: a step that waits for a rank ends first, and can still say so.
    return _comp.RankTeam(_groups[id(world)], seconds.total_seconds() + min(seconds.total_seconds(), 30))


def _timeout() -> datetime.timedelta:
    """How long the training itself lets a rank take: init_process_group(timeout=...)."""
    world = dist.group.WORLD
    assert world is not None
    for device in world._device_types:
        options = getattr(world._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if timeout is not None:
            return timeout
    return dist.constants.default_pg_timeout
