# SPDX-License-Identifier: Apache-2.0
"""A training of the user's, as a search and the training after it run it."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from comp import _comp, _exchange, _ranks, _shards
from comp._audit import Audit
from comp._comp import SettingsError
from comp._compile import CompiledPlans
from comp._data import Batches, own
from comp._models import Named, forward_parameters, modules_of, named_parameters
from comp._moments import Moments
from comp._optimizers import OptimizerWatch
from comp._region import Region, depth, forget_beyond
from comp._state import OtherState, copied, put, set_random_state

_one_at_a_time = threading.Lock()


class _Glue:
    """The functions that the C++ side calls."""

    def __init__(
        self,
        step: Callable[[Region, Any], Any],
        score: Callable[[], float] | None,
        models: Mapping[str, nn.Module],
        parameters: Named,
        audit: Audit,
        watch: OptimizerWatch,
        compiled: CompiledPlans,
        moments: Moments,
    ) -> None:
        self._step = step
        self._score = score
        self._models = models
        self._parameters = parameters
        self._audit = audit
        self._watch = watch
        self._compiled = compiled
        self._moments = moments
        self._told = 0
        self.training: Callable[[], Any]  # a weak reference: the training holds this

    def step(self, value: Any, generators: Any) -> list[tuple[str, torch.Tensor]]:
        if generators is not None:
            set_random_state(generators)
        region = Region(self.training().regions, compilers=self._compiled)
        before = depth()
        batch = own(value)
        self._watch.before_step()
        formats = [(n, p, p.dtype) for _, parameters in self._parameters for n, p in parameters]
        stored: list[str] = []
        try:
            with self._moments:
                returned = self._audit.around(lambda: self._step(region, batch))
        finally:
            forget_beyond(before)
            if self.training().plan.strip("1d"):  # else it is the step's own doing
                stored = _put_formats_back(formats)
        if stored:
            raise RuntimeError(stored[0])
        self._watch.after_step()
        self._tell()
        return [(name, _scalar(name, loss)) for name, loss in _losses(returned).items()]

    def score(self) -> float:
        modes = [(part, part.training) for model in self._models.values() for part in model.modules()]
        try:
            for model in self._models.values():
                model.eval()
            return float(self._score())  # type: ignore[misc]
        finally:
            for part, training in modes:
                part.training = training

    def sentences(self) -> list[str]:
        return self._watch.told + self._audit.told

    def _tell(self) -> None:
        for sentence in self.sentences()[self._told :]:
            self._told += 1
            warnings.warn(sentence, stacklevel=2)


def _put_formats_back(formats: Sequence[tuple[str, torch.Tensor, torch.dtype]]) -> list[str]:
    """Gives parameters the formats that they had. Returns: what was changed, in words."""
    changed = [each for each in formats if each[1].dtype is not each[2]]
    for _, p, written in changed:
        p.grad, p.data = None, p.data.to(written)
    return [f'the step has stored parameter "{n}" in another format than {written}' for n, _, written in changed]


def _rates(optimizers: Sequence[Any]) -> Callable[[], list[float]]:
    """The learning rates that a scheduler may change, but for tensors: reading one would wait for the device."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return lambda: [float(group["lr"]) for group in groups if isinstance(group.get("lr"), (int, float))]


def _losses(returned: Any) -> dict[str, Any]:
    return dict(returned) if isinstance(returned, Mapping) else {"loss": returned}


def in_words(loss: Any) -> str:
    return f"a tensor of {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"


def number_of(loss: Any) -> float | None:
    """A loss that is no tensor: a number of Python's or NumPy's, or NumPy's array of one. None if it is none of them."""
    if isinstance(loss, (torch.Tensor, bool)) or not hasattr(loss, "__float__") or getattr(loss, "size", 1) != 1:
        return None
    return float(loss.item() if hasattr(loss, "item") else loss)


def _scalar(name: str, loss: Any) -> torch.Tensor:
    if (number := number_of(loss)) is not None:
        return torch.tensor(number, dtype=torch.float64)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise SettingsError(
            f'the step returned {in_words(loss)} as "{name}" (plans are judged by their losses): return the loss, '
            "or a dict of several"
        )
    return loss.detach()


class _State:
    """The state that the C++ side does not know. That side holds this object, so this holds nothing of that side."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        spread: Sequence[torch.Tensor],
        others: OtherState,
        audit: Audit,
        device: str | None,
    ) -> None:
        """`spread`: the parameters of which that side has a part, without its gradient."""
        self._models = models
        self._spread = spread
        self._others = others
        self._audit = audit
        self._device = device

    def save(self) -> Any:
        gradients = [copied(p.grad, self._device) for p in self._spread]
        return self._others.save(), self._audit.save(), gradients

    def restore(self, saved: Any) -> None:
        self._others.restore(saved[0])
        self._audit.restore(saved[1])
        _shards.reshard(self._models)
        for parameter, gradient in zip(self._spread, saved[2]):
            parameter.grad = put(parameter.grad, gradient)


def _other_tensors(others: OtherState, audit: Audit) -> Callable[[], list[torch.Tensor]]:
    """The tensors that have a place in neither model nor optimizer. The job is not held, or it would never be freed."""
    return lambda: others.named_tensors() + audit.tensors()


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
        if not callable(step):
            raise SettingsError(
                f"step is a {type(step).__name__} (a function of a plan and a batch is wanted): give "
                "def step(plan, batch)"
            )
        self.models = modules_of(model)
        self.optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self.others = OtherState(self.models, self.optimizers, state, states_on)
        read = forward_parameters(self.models)
        self.watch = OptimizerWatch(self.models, self.optimizers)
        self.moments = Moments(self.optimizers if moments else [])
        self.watch.after_update = self.moments.end_update
        keepers = [each for part in _shards.sharded(self.models) for each in _shards.keepers(part)]
        self.audit = Audit(step, self.models, self.optimizers, [*state, data, *keepers], states_on)
        self.parameters = named_parameters(self.models)
        spread = [p for _, parameters in self.parameters for _, p in parameters if _shards.own_part(p) is not p]
        self.state = _State(self.models, spread, self.others, self.audit, states_on)
        held = [(name, [(n, _shards.own_part(p)) for n, p in parameters]) for name, parameters in self.parameters]
        batches = self.batches = Batches(data, batches_per_epoch)
        self.epochs_before = 0  # epochs of the training that another process trained
        self.ranks = _ranks.team()
        self.separate_products = separate_products
        self.exchange = _exchange.chosen(exchange, model, target)
        self.about_data: list[str] = []
        if self.ranks is not None:
            self.about_data += batches.agree(self.ranks)
        self.compiled = CompiledPlans()
        self._glue = _Glue(step, score, self.models, self.parameters, self.audit, self.watch, self.compiled, self.moments)
        counts = all(isinstance(each, (GradScaler, torch.Generator)) for each in state)
        self.training = _comp.Training(
            models=held,
            read=read,
            pull=batches.pull,
            step=self._glue.step,
            score=None if score is None else self._glue.score,
            save=self.state.save,
            restore=self.state.restore,
            tensors=self.others.tensors,
            others=_other_tensors(self.others, self.audit),
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
        return self._glue.sentences() + self.moments.told + self.about_data

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
