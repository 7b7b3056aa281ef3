# SPDX-License-Identifier: Apache-2.0
"""Keeps a training in a file, so that it goes on in another process with the same losses.

On several ranks each keeps its own part, rank 0 in FILE and rank 1 in FILE.rank1. All write FILE.new, FILE.rank1.new
and so on first. Then rank 0 gives its part the name FILE, by which the checkpoint counts, and after that the others
rename theirs. Whatever ends a process in between, all parts of the checkpoint that FILE belongs to are there, each
under one of its two names."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import secrets
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from comp import _ranks
from comp._comp import FileError, RankTeam, SettingsError, TrainingProgress, __version__
from comp._plain import NotPlain, plain, unplain
from comp._shards import own_part, parts_in, spread
from comp._state import can_be_saved, copied, put, put_buffers, random_state, set_random_state
from comp._training import Job

Callback = Callable[[TrainingProgress], Any]
_Call = Callable[[str], list[str]]  # has each rank's Watcher carry out an order, and gives what each answers
_NEW = ".new"
_PARTS = frozenset(
    ("fingerprint", "progress", "parameters", "gradients", "buffers", "optimizers", "state", "unnamed", "random", "cuda")
)


class Watcher:
    """Is told of a training after each epoch, on rank 0; calls callbacks and has checkpoints written."""

    def __init__(
        self,
        job: Job,
        epochs: int,
        callbacks: Sequence[Callback],
        checkpoint: str | os.PathLike[str] | None,
        every: int,
        unnamed: bool = False,
    ) -> None:
        """`unnamed`: this rank's part of the checkpoint that counts is still FILE.new."""
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
        self._own = None if checkpoint is None else part(checkpoint, _ranks.rank())
        self._unnamed = unnamed
        self._every = every
        self._epochs: int | None = None  # that it was last told of
        self._written = -1

    def __call__(self, progress: TrainingProgress, call: _Call) -> bool:
        """Returns: whether the training is to end."""
        epochs, before = len(progress.epochs), self._epochs
        self._epochs = epochs
        stop = before is not None and epochs > before and any([each(progress) is True for each in self._callbacks])
        due = before is None or stop or epochs >= self._all or epochs - self._written >= self._every
        if self._own is not None and due:
            self._write(progress, call, before is None)
            self._written = epochs
        return stop

    def _write(self, progress: TrainingProgress, call: _Call, first: bool) -> None:
        epochs = len(progress.epochs)
        mark = {"id": secrets.token_hex(8), "ranks": _ranks.count(), "epochs": epochs}
        answers = call(json.dumps(["write", {"set": mark, "progress": progress.text()}]))
        if not any(answers):
            answers[0] = self.carry_out('["name first", null]')  # from here on the new checkpoint counts
        if not any(answers):
            call('["name others", null]')
            return
        named = [f"rank {n}: {words}" if len(answers) > 1 else words for n, words in enumerate(answers) if words]
        wrong = "; ".join(named)
        warning = "" if first else f"no checkpoint after {epochs} epochs ({wrong}): the training goes on"
        call(json.dumps(["drop", warning]))
        if first:
            raise FileError(wrong)

    def carry_out(self, order: str) -> str:
        """Does this rank's part of a checkpoint. Returns: what is wrong, in a sentence."""
        assert self._own is not None
        what, given = json.loads(order)
        try:
            if what == "name first":
                os.replace(self._own + _NEW, self._own)
                _sync_folder(self._own)  # or a power failure could undo it, and not what other machines do then
            elif what == "name others" and _ranks.rank():
                self._unnamed = True
            if self._unnamed:
                os.replace(self._own + _NEW, self._own)
                self._unnamed = False
            if what == "write":
                write(self._own + _NEW, plain(contents(self._job, **given), ""))
        except NotPlain as error:
            return (
                f'"{self._own}" cannot hold all of the training ({error}; a checkpoint has tensors and plain data, which run '
                "nothing when they are read): leave it out of state_dict(), or have a number or a string there"
            )
        except OSError as error:
            return f'"{self._own}" cannot be written ({error.strerror}): give a path that can be'
        if what == "drop":
            with contextlib.suppress(OSError):
                os.unlink(self._own + _NEW)
            if given:
                warnings.warn(given, stacklevel=2)
        return ""


def part(path: str | os.PathLike[str], rank: int) -> str:
    """The file of a rank's part of a checkpoint."""
    return os.fspath(path) + (f".rank{rank}" if rank else "")


def contents(job: Job, set: dict[str, Any], progress: str) -> dict[str, Any]:
    for each in job.optimizers:
        if not can_be_saved(each):
            raise SettingsError(
                f"optimizer is a {type(each).__name__} (it has no state_dict() and load_state_dict()): give one that can "
                "be kept in a file, or no checkpoint"
            )
    fields = json.loads(progress)
    begun = fields.get("begun", {}).get("batches", 0)
    start = job.batches.start(len(fields["so_far"]["epochs"]) - job.epochs_before) if begun else None
    return {
        "comp_training": 2,
        "versions": {"comp": __version__, "torch": str(torch.__version__)},
        "set": set | {"rank": _ranks.rank()},
        "fingerprint": job.training.fingerprint(),
        "separate_products": job.separate_products,
        "exchange": job.exchange,
        "moments": bool(job.moments.operators),
        "progress": progress,
        "parameters": {name: {n: own_part(p).detach() for n, p in all} for name, all in job.parameters},
        "gradients": {name: {n: parts_in(p.grad) for n, p in all if p.grad is not None} for name, all in job.parameters},
        "buffers": {name: dict(module.named_buffers()) for name, module in job.models.items()},
        "optimizers": [parts_in(each.state_dict()) for each in job.optimizers],
        "state": job.others.others(),
        "unnamed": job.unnamed.plain_state(),
        "begun": None if start is None else (start, begun),  # if the search ended within an epoch
        "random": random_state(),
        "cuda": torch.cuda.get_rng_state_all() if job.device.type == "cuda" else [],
    }


def write(path: str, what: dict[str, Any]) -> None:
    """Writes a file that is the old or the new one, never half. Raises: OSError."""
    new = path + ".tmp"
    try:
        with open(new, "wb") as file:
            torch.save(what, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _sync_folder(path: str) -> None:
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def set_aside(path: str | os.PathLike[str]) -> None:
    """Keeps the files of an older training under another name, because a new one begins. Rank 0 also renames those of
    ranks that are not there now."""
    path, rank = os.fspath(path), _ranks.rank()
    mine = [rank]
    if rank == 0:
        mine += itertools.takewhile(lambda r: os.path.exists(part(path, r)), itertools.count(_ranks.count()))
    for each in mine:
        with contextlib.suppress(FileNotFoundError):
            os.replace(part(path, each), part(path + ".old", each))


def read(path: str | os.PathLike[str], trusted: bool = False) -> dict[str, Any]:
    """Reads a checkpoint, and runs nothing that stands in it unless it is `trusted` and of the older kind, a pickle. Raises:
    FileError for a file that is none, or is not whole."""
    named = f'"{os.fspath(path)}"'
    try:
        file = open(path, "rb")
    except OSError as error:
        raise FileError(f"{named} cannot be read ({error.strerror}): give the path of a checkpoint") from None
    with file:
        try:
            if not zipfile.is_zipfile(file):  # torch would read the pickles of its older releases
                raise EOFError("it is cut off, or of another kind")
            found = _loaded(file, True)
            runs_code = found is None or (isinstance(found, dict) and found.get("comp_training") == 1)
            if runs_code and trusted:
                found = _loaded(file, False)
        except Exception as error:
            words = str(error).partition("\n")[0]
            raise FileError(
                f"{named} is no whole checkpoint ({words}): go on from another one, or begin anew"
            ) from None
    if runs_code and not trusted:
        raise FileError(
            f"{named} is an older checkpoint, or none (such a file can run whatever its writer wrote into it, so it is not "
            "read): if you wrote it, give comp.resume(..., trusted=True), and the next checkpoint will be of the new kind"
        )
    try:
        found = found if runs_code else unplain(found)
        if found["comp_training"] == (1 if runs_code else 2) and _PARTS <= found.keys():
            return dict(found)
    except Exception:  # a stranger's file may have anything in any place
        pass
    raise FileError(f"{named} holds no training (found.train(checkpoint=...) writes them): give another file")


def _loaded(file: Any, plain_alone: bool) -> Any:
    """What torch reads; None for a file that has more in it than tensors and plain data, and may have only these."""
    file.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.load(file, map_location="cpu", weights_only=plain_alone)
    except pickle.UnpicklingError:
        if not plain_alone:
            raise
        return None


def read_own(
    path: str | os.PathLike[str], ranks: RankTeam | None, trusted: bool = False
) -> tuple[dict[str, Any], bool]:
    """Reads this rank's part; all ranks call it. Returns: its contents, and whether its file is still FILE.new. Raises:
    FileError; SettingsError if the parts of all ranks are not those of one checkpoint."""
    path, rank, count = os.fspath(path), _ranks.rank(), _ranks.count()
    kept: list[tuple[dict[str, Any], bool]] = []

    def read_first() -> str:
        if rank:
            return ""
        kept.append((read(path, trusted), False))
        mark = kept[0][0].get("set", {"ranks": 1})
        if mark["ranks"] != count:
            raise SettingsError(
                f'"{path}" is of a training on {mark["ranks"]} ranks, and there are {count} here (each goes on with '
                f"its own data and generators): start {mark['ranks']}"
            )
        return json.dumps(mark)

    def read_part() -> None:
        if rank:
            kept.append(_part(path, rank, mark | {"rank": rank}, trusted))

    mark = json.loads(_ranks.on_each(ranks, read_first)[0])
    _ranks.on_each(ranks, read_part)
    return kept[0]


def _part(path: str, rank: int, mark: dict[str, Any], trusted: bool) -> tuple[dict[str, Any], bool]:
    wrong: list[FileError] = []
    for file in (part(path, rank), part(path, rank) + _NEW):
        try:
            found = read(file, trusted)
        except FileError as error:
            wrong.append(error)
            continue
        there = found.get("set", {})
        if there == mark:
            return found, file.endswith(_NEW)
        moment = f"rank {there.get('rank', 0)} after {there.get('epochs', '?')} epochs"
        wrong.append(
            FileError(
                f'"{file}" was not written with "{path}" (this is of {moment}, that of {mark["epochs"]}; all ranks go '
                "on from one moment of one training): put back the file that was, or begin anew"
            )
        )
    raise wrong[0]


def load(job: Job, found: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Restores models, optimizers, state and generators. Raises: SettingsError for the file of another training, naming
    what differs."""
    named = f'"{os.fspath(path)}" belongs to another training'
    for what, here in (("parameters", job.parameters), ("buffers", [(n, m.named_buffers()) for n, m in job.models.items()])):
        shapes = {(name, n): tuple(own_part(t).shape) for name, tensors in here for n, t in tensors}
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
        for name, parameters in job.parameters:
            for n, parameter in parameters:
                put(own_part(parameter), found["parameters"][name][n])
                gradient = spread(found["gradients"][name].get(n), parameter)
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for name, module in job.models.items():
            put_buffers(module, found["buffers"][name])
    for each, state in zip(job.optimizers, found["optimizers"]):
        try:
            each.load_state_dict(copied(_spread(state, each)))
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"{named}: its {type(each).__name__} does not take the state ({error}): make the optimizer as it was"
            ) from None
    job.others.put_others(found["state"])
    job.unnamed.put_plain_state(found["unnamed"])
    job.epochs_before = len(json.loads(found["progress"])["so_far"]["epochs"])
    if found.get("begun") is not None:
        job.batches.skip(*found["begun"])
    set_random_state(found["random"])
    if found["cuda"]:
        torch.cuda.set_rng_state_all(found["cuda"])


def _spread(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """A state_dict() whose moments are spread as the parameters are that they belong to."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        at: {key: spread(value, parameters[at]) for key, value in entry.items()} if type(at) is int else entry
        for at, entry in state.get("state", {}).items()
    }
    return {**state, "state": moments}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"
