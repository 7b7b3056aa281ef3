# SPDX-License-Identifier: Apache-2.0
"""Keeps a training in a file, so that it goes on in another process with the same losses."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from comp._comp import FileError, SettingsError, TrainingProgress, __version__
from comp._state import copied, put, put_buffers, random_state, set_random_state
from comp._training import Job

Callback = Callable[[TrainingProgress], Any]


class Watcher:
    """Is told of a training after each epoch; calls callbacks and writes checkpoints."""

    def __init__(
        self,
        job: Job,
        epochs: int,
        callbacks: Sequence[Callback],
        checkpoint: str | os.PathLike[str] | None,
        every: int,
    ) -> None:
        if every < 1:
            raise SettingsError(f"a checkpoint every {every} epochs (after each is the most): give every=1 or more")
        for each in callbacks:
            if not callable(each):
                raise SettingsError(
                    f"a callback is a {type(each).__name__} (a function of the training's progress is wanted): give "
                    "def after_epoch(progress)"
                )
        self._job = job
        self._all = epochs
        self._callbacks = callbacks
        self._path = None if checkpoint is None else os.fspath(checkpoint)
        self._every = every
        self._epochs: int | None = None  # that it was last told of
        self._written = -1

    def __call__(self, progress: TrainingProgress) -> bool:
        """Returns: whether the training is to end."""
        epochs, before = len(progress.epochs), self._epochs
        self._epochs = epochs
        stop = before is not None and epochs > before and any([each(progress) is True for each in self._callbacks])
        due = before is None or stop or epochs >= self._all or epochs - self._written >= self._every
        if self._path is not None and due:
            self._write(self._path, progress, before is None)
            self._written = epochs
        return stop

    def _write(self, path: str, progress: TrainingProgress, first: bool) -> None:
        try:
            write(path, contents(self._job, progress))
        except OSError as error:
            if first:
                raise FileError(f'"{path}" cannot be written ({error.strerror}): give a path that can be') from None
            warnings.warn(
                f"no checkpoint after {len(progress.epochs)} epochs ({error}): the training goes on", stacklevel=2
            )


def contents(job: Job, progress: TrainingProgress) -> dict[str, Any]:
    for each in job.optimizers:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise SettingsError(
                f"optimizer is a {type(each).__name__} (it has no state_dict() and load_state_dict()): give one that can "
                "be kept in a file, or no checkpoint"
            )
    return {
        "comp_training": 1,
        "versions": {"comp": __version__, "torch": torch.__version__},
        "fingerprint": job.training.fingerprint(),
        "separate_products": job.separate_products,
        "progress": progress.text(),
        "parameters": {name: {n: p.detach() for n, p in parameters} for name, parameters in job.named},
        "gradients": {name: {n: p.grad for n, p in parameters if p.grad is not None} for name, parameters in job.named},
        "buffers": {name: dict(module.named_buffers()) for name, module in job.models.items()},
        "optimizers": [each.state_dict() for each in job.optimizers],
        "state": job.others.others(),
        "unnamed": job.audit.plain_state(),
        "random": random_state(),
        "cuda": torch.cuda.get_rng_state_all() if job.device.type == "cuda" else [],
    }


def write(path: str, what: dict[str, Any]) -> None:
    """Writes a file that is the old or the new one, never half. Raises: OSError."""
    made = path + ".tmp"
    try:
        with open(made, "wb") as file:
            torch.save(what, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def set_aside(path: str | os.PathLike[str]) -> None:
    """Keeps the file of an older training under another name, because a new one begins."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, os.fspath(path) + ".old")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a checkpoint. Raises: FileError for a file that is none, or is not whole."""
    named = f'"{os.fspath(path)}"'
    try:
        file = open(path, "rb")
    except OSError as error:
        raise FileError(f"{named} cannot be read ({error.strerror}): give the path of a checkpoint") from None
    with file:
        try:
            found = torch.load(file, map_location="cpu", weights_only=False)
        except Exception as error:
            words = str(error).partition("\n")[0]
            raise FileError(
                f"{named} is no whole checkpoint ({words}): go on from another one, or begin anew"
            ) from None
    if not isinstance(found, dict) or found.get("comp_training") != 1:
        raise FileError(f"{named} holds no training (found.train(checkpoint=...) writes them): give another file")
    return found


def load(job: Job, found: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Brings models, optimizers, state and generators to where they were. Raises: SettingsError for the file of another
    training, naming what differs."""
    named = f'"{os.fspath(path)}" belongs to another training'
    for what, here in (("parameters", job.named), ("buffers", [(n, m.named_buffers()) for n, m in job.models.items()])):
        shapes = {(name, n): tuple(t.shape) for name, tensors in here for n, t in tensors}
        there = {(name, n): tuple(t.shape) for name, tensors in found[what].items() for n, t in tensors.items()}
        for name, n in sorted(shapes.keys() ^ there.keys()) or [k for k in shapes if shapes[k] != there[k]]:
            raise SettingsError(
                f'{named}: {n} of model "{name}" is {_shape(there.get((name, n)))} there and '
                f"{_shape(shapes.get((name, n)))} here (it would not go on as it was): build the model as it was"
            )
    if len(found["optimizers"]) != len(job.optimizers) or len(found["state"]) != job.others.count():
        raise SettingsError(
            f"{named}: it has {len(found['optimizers'])} optimizers and {len(found['state'])} objects in state, this one "
            f"{len(job.optimizers)} and {job.others.count()} (all are brought back): give what it had, in its order"
        )
    with torch.no_grad():
        for name, parameters in job.named:
            for n, parameter in parameters:
                put(parameter, found["parameters"][name][n])
                gradient = found["gradients"][name].get(n)
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for name, module in job.models.items():
            put_buffers(module, found["buffers"][name])
    for each, state in zip(job.optimizers, found["optimizers"]):
        try:
            each.load_state_dict(copied(state))
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"{named}: its {type(each).__name__} does not take the state ({error}): make the optimizer as it was"
            ) from None
    job.others.put_others(found["state"])
    job.audit.put_plain_state(found["unnamed"])
    set_random_state(found["random"])
    if found["cuda"]:
        torch.cuda.set_rng_state_all(found["cuda"])


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"
