# SPDX-License-Identifier: Apache-2.0
"""Goes on with a training from a checkpoint, in another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from comp import _checkpoint, _ranks
from comp._comp import SettingsError, TrainingResult
from comp._region import Region
from comp._training import Job, alone


def resume(
    checkpoint: str | os.PathLike[str],
    step: Callable[[Region, Any], Any],
    *,
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Any,
    data: Iterable[Any],
    epochs: int,
    finish: float = 0,
    score: Callable[[], float] | None = None,
    state: Sequence[Any] = (),
    callbacks: Sequence[_checkpoint.Callback] = (),
    every: int = 1,
    progress: bool = True,
    batches_per_epoch: int | None = None,
    keep_bytes: int = 4 << 30,
    keep_memory: bool = False,
    states_on: str | None = None,
    tune: bool = True,
    protect_blocks: bool = True,
    trusted: bool = False,
) -> TrainingResult:
    """Goes on with a training that found.train(checkpoint=...) kept in a file. There is no other search, and the losses
    are those that it would have had:

        comp.resume("training.pt", step, model=net, optimizer=optimizer, data=loader, state=[scheduler], epochs=100)

    Give all arguments but `checkpoint` as they were given to the search and to found.train(). On several ranks all call
    it, and there have to be as many as there were.
    trusted: whether a checkpoint of an older comp is read. It is a pickle, which runs whatever its writer wrote into
        it, so give this for your own alone. Those of today have tensors and plain data, and run nothing.
    Raises: FileError for a file that is no whole checkpoint, SettingsError for one of another training or of another
    number of ranks; as found.train().
    """
    with alone("a training"):
        ranks = _ranks.team()
        found, unnamed = _checkpoint.read_own(checkpoint, ranks, trusted)
        job = Job(
            step,
            model=model,
            optimizer=optimizer,
            data=data,
            score=score,
            state=state,
            batches_per_epoch=batches_per_epoch,
            keep_bytes=keep_bytes,
            keep_memory=keep_memory,
            states_on=states_on,
            tune=tune,
            protect_blocks=protect_blocks,
            about="",
            separate_products=found.get("separate_products", False),
            exchange=found.get("exchange", False),
            moments=found.get("moments", False),
        )

        def require_same_step() -> None:
            if job.training.fingerprint() != found["fingerprint"]:
                raise SettingsError(
                    f'"{os.fspath(checkpoint)}" belongs to another training: its step has other operators (a plan is '
                    "about them): give the step, the model and batches of the size that it had"
                )

        with job.watch:
            _ranks.on_each(ranks, lambda: _checkpoint.load(job, found, checkpoint))
            _ranks.on_each(ranks, require_same_step)
            watcher = _checkpoint.Watcher(job, epochs, callbacks, checkpoint, every, unnamed)
            return job.training.go_on(found["progress"], epochs, finish, progress, watcher)
