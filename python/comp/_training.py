# SPDX-License-Identifier: Apache-2.0
"""A training of the user's, as a search and the training after it run it."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from comp import _comp, _exchange, _ranks, _shards
from comp._comp import SettingsError
from comp._compile import CompiledPlans
from comp._data import Batches, own
from comp._models import Named, forward_parameters, in_evaluation, modules_of, named_parameters, require_step
from comp._moments import Moments
from comp._optimizers import OptimizerWatch
from comp._region import Region, depth, forget_beyond
from comp._state import OtherState, copied, put, put_format_back, set_random_state
from comp._unnamed_state import UnnamedState

_one_at_a_time = threading.Lock()


@dataclass(eq=False)
class _Glue:
    """The functions that the C++ side calls."""

    _step: Callable[[Region, Any], Any]
    _score: Callable[[], float] | None
    _models: Mapping[str, nn.Module]
    _parameters: Named
    _unnamed: UnnamedState
    _watch: OptimizerWatch
    _compiled: CompiledPlans
    _moments: Moments
    _reports: int = 0
    training: Callable[[], Any] = field(init=False)  # a weak reference: the training holds this

    def step(self, value: Any, generators: Any) -> list[tuple[str, torch.Tensor]]:
        if generators is not None:
            set_random_state(generators)
        region = Region(self.training().regions, compilers=self._compiled)
        before = depth()
        batch = own(value)
        self._watch.before_step()
        formats = [(n, p, p.dtype) for _, parameters in self._parameters for n, p in parameters]
        stored: list[tuple[str, torch.Tensor, torch.dtype]] = []
        try:
            with self._moments:
                returned = self._unnamed.around(lambda: self._step(region, batch))
        finally:
            forget_beyond(before)
            if self.training().plan.strip("1d"):  # else it is the step's own doing
                stored = [each for each in formats if each[1].dtype is not each[2]]
                for _, p, written in stored:
                    put_format_back(p, written)
        if stored:
            raise RuntimeError(f'the step has stored parameter "{stored[0][0]}" in another format than {stored[0][2]}')
        self._watch.after_step()
        self._tell()
        return losses_of(returned, "the step returned", "return")

    def score(self) -> float:
        with in_evaluation(self._models.values()):
            return float(self._score())  # type: ignore[misc]

    def sentences(self) -> list[str]:
        return self._watch.sentences + self._unnamed.sentences

    def _tell(self) -> None:
        for sentence in self.sentences()[self._reports :]:
            self._reports += 1
            warnings.warn(sentence, stacklevel=2)


def _rates(optimizers: Sequence[Any]) -> Callable[[], list[float]]:
    """The learning rates that a scheduler may change, but for tensors: reading one would wait for the device."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return lambda: [float(group["lr"]) for group in groups if isinstance(group.get("lr"), (int, float))]


def losses_of(given: Any, got: str, give: str) -> list[tuple[str, torch.Tensor]]:
    """Losses by name: each is a tensor of one real number, a number of Python's or NumPy's, or NumPy's array of one. Raises:
    SettingsError for another, in the words `got` and `give`."""
    found = []
    for name, loss in given.items() if isinstance(given, Mapping) else [("loss", given)]:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.is_complex():
            found.append((name, loss.detach()))
        elif isinstance(loss, (torch.Tensor, bool)) or not hasattr(loss, "__float__") or getattr(loss, "size", 1) != 1:
            kind = f"tensor of {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise SettingsError(
                f'{got} a {kind} as "{name}" (plans are judged by their losses): {give} the loss, or a dict of several'
            )
        else:
            number = float(loss.item() if hasattr(loss, "item") else loss)
            found.append((name, torch.tensor(number, dtype=torch.float64)))
    return found


@dataclass(eq=False)
class _State:
    """The state that the C++ side does not know. That side holds this object, so this holds nothing of that side."""

    _models: Mapping[str, nn.Module]
    _spread: Sequence[torch.Tensor]  # the parameters of which that side has a part, without its gradient
    _others: OtherState
    _unnamed: UnnamedState
    _device: str | None

    def save(self) -> Any:
        gradients = [copied(p.grad, self._device) for p in self._spread]
        return self._others.save(), self._unnamed.save(), gradients

    def restore(self, saved: Any) -> None:
        self._others.restore(saved[0])
        self._unnamed.restore(saved[1])
        _shards.reshard(self._models)
        for parameter, gradient in zip(self._spread, saved[2]):
            parameter.grad = put(parameter.grad, gradient)


class Job:
    """The user's step, models, optimizers, data and state, and the C++ training over them. Raises: SettingsError."""

    def __init__(
        self,
        step: Callable[[Region, Any], Any],
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Any,
        data: Iterable[Any],
        score: Callable[[], float] | None,
        state: Sequence[Any],
        batches_per_epoch: int | None,
        keep_bytes: int,
        keep_memory: bool,
        states_on: str | None,
        tune: bool,
        protect_blocks: bool,
        about: str,
        target: str | None = None,
        separate_products: bool = False,
        exchange: bool | None = None,
        moments: bool = False,
    ) -> None:
        require_step(step)
        self.models = modules_of(model)
        self.optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self.others = others = OtherState(self.models, self.optimizers, state, states_on)
        read = forward_parameters(self.models)
        self.watch = OptimizerWatch(self.models, self.optimizers)
        self.moments = Moments(self.optimizers if moments else [])
        self.watch.after_update = self.moments.end_update
        keepers = [each for part in _shards.sharded(self.models) for each in _shards.keepers(part)]
        self.unnamed = unnamed = UnnamedState(step, self.models, self.optimizers, [*state, data, *keepers], states_on)
        self.parameters = named_parameters(self.models)
        spread = [p for _, parameters in self.parameters for _, p in parameters if _shards.own_part(p) is not p]
        self.state = _State(self.models, spread, others, unnamed, states_on)
        held = [(name, [(n, _shards.own_part(p)) for n, p in parameters]) for name, parameters in self.parameters]
        batches = self.batches = Batches(data, batches_per_epoch)
        self.epochs_before = 0  # epochs of the training that another process trained
        self.ranks = _ranks.team()
        self.separate_products = separate_products
        self.exchange = _exchange.chosen(exchange, model, target)
        self.about_data = [] if self.ranks is None else batches.agree(self.ranks)
        self.compiled = CompiledPlans()
        self._glue = _Glue(step, score, self.models, self.parameters, unnamed, self.watch, self.compiled, self.moments)
        counts = all(isinstance(each, (GradScaler, torch.Generator)) for each in state)
        self.training = _comp.Training(
            models=held,
            read=read,
            pull=batches.pull,
            step=self._glue.step,
            score=None if score is None else self._glue.score,
            save=self.state.save,
            restore=self.state.restore,
            tensors=others.tensors,
            others=lambda: others.named_tensors() + unnamed.tensors(),  # holds no job, which would never be freed
            compile=self.compiled.run_compiled,
            rates=_rates(self.optimizers) if counts else None,
            length=batches.length,
            keep_bytes=keep_bytes,
            keep_memory=keep_memory,
            data=f"{type(data).__name__} of {batches.length or 'unknown'} batches",
            tune=tune,
            protect_blocks=protect_blocks,
            states_on=states_on,
            about=" ".join([about, *(["moments"] if moments else []), *(repr(each) for each in self.optimizers)]),
            target=target or "",
            separate_products=separate_products,
            exchange=self.exchange,
            ranks=self.ranks,
            states=self.moments.operators,
            prepare=self.moments.prepare,
        )
        self._glue.training = self.compiled.training = weakref.ref(self.training)
        self.moments.follow(self.training)

    @property
    def device(self) -> torch.device:
        return next((p.device for _, parameters in self.parameters for _, p in parameters), torch.device("cpu"))

    @property
    def sentences(self) -> list[str]:
        """What was seen of the step and the data and should be known, in sentences."""
        return self._glue.sentences() + self.moments.sentences + self.about_data

    def tell_of_data(self, batches_per_epoch: int) -> None:
        if batches_per_epoch == 0:
            self.about_data.append(
                "the data did not end while the search read ahead (so nobody knows how long an epoch is, and nothing of "
                "the search counts as training): give batches_per_epoch=..."
            )
            warnings.warn(self.about_data[-1], stacklevel=3)


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Runs one search or training of comp at a time, because each puts back the random generators of the process and
    times batches. Raises: SettingsError if another one runs."""
    if not _one_at_a_time.acquire(blocking=False):
        raise SettingsError(
            f"{what} beside another search or training of comp in this process (both put back its random generators, and "
            "each slows the other's batches down): run one after the other, or train with comp.plan"
        )
    try:
        yield
    finally:
        _one_at_a_time.release()
