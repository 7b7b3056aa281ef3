# SPDX-License-Identifier: Apache-2.0
"""`with plan:` in a loop of the user's own, which finds the plan while the loop runs, or has it from a file."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from comp import _comp, _exchange, _ranks, _shards
from comp._comp import FileError, SettingsError
from comp._compile import Compilers
from comp._models import forward_parameters, modules_of
from comp._moments import Moments
from comp._optimizers import PATIENCE, OptimizerWatch, belong_together, parameters_of
from comp._outcome import SearchResult
from comp._region import Region, moments_of_file, warn_of_plan
from comp._search import _WHOLE, _precisions, policy_of
from comp._shards import own_part
from comp._state import OtherState, copied, put, put_format_back
from comp._training import losses_of

_MOST_UPDATES = 64  # of a batch
_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # formats that can be NaN, and have norms


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Bytes of some of its numbers, by which a change of all is seen."""
    numbers = own_part(parameter).detach().reshape(-1)
    return numbers[:: max(1, len(numbers) // 64)].clone().view(torch.uint8)


def _has_changed(before: torch.Tensor | None, now: torch.Tensor) -> bool:
    """Whether samples differ. What lies on another device since then was moved."""
    return before is not None and before.device == now.device and not now.is_meta and not torch.equal(before, now)


class _KeptState:
    """What the loop trains, as it was before batches that may have to be undone. Data, learning rates and generators of
    random numbers go on."""

    def __init__(
        self, models: Mapping[str, nn.Module], optimizers: Sequence[Any], others: Sequence[Any], device: str | None
    ) -> None:
        others = [each for each in others if not isinstance(each, LRScheduler)]
        self._state = OtherState(models, optimizers, others, device)
        self._models = models
        self.optimizers = optimizers
        self._device = device
        self._kept: tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]] | None = None
        self._averages: set[int] = set()  # of frozen parameters that the loop itself changes
        self._samples = {p: _sample(p) for part in self._frozen() for p in part}
        self.last_plan = self._plan_of_kept = ""  # of the last gradients, by its letters

    def save(self) -> None:
        self._kept = None  # before the next one is made, because a state is large
        for part in self._frozen():
            before, now = [self._samples.get(p) for p in part], [_sample(p) for p in part]
            self._samples.update(zip(part, now))
            if any(map(_has_changed, before, now)):
                self._averages |= set(map(id, part))
        self._plan_of_kept = self.last_plan
        self._kept = self._state.save(), [(p, copied(p, self._device)) for p in self._trained()]
        self._has = {id(p) for p, _ in self._kept[1]}

    def add_trained(self) -> None:
        """What an update is about to train that was frozen when the state was kept is as it was."""
        if self._kept is not None:
            self._kept[1].extend((p, copied(p, self._device)) for p in self._stepped() if p.grad is not None and id(p) not in self._has)
            self._has |= {id(p) for p, _ in self._kept[1]}

    def is_sound(self) -> bool:
        """Whether the weights are finite."""
        weights = [own_part(p).detach() for p in self._trained()]
        plain = [w for w in weights if w.dtype in _PLAIN and w.layout is torch.strided and w.numel()]  # empty ones have no norm
        return bool(torch.isfinite(get_total_norm(plain, float("inf"))))

    def _stepped(self) -> list[torch.Tensor]:
        return [p for each in self.optimizers for group in each.param_groups for p in group["params"]]

    def _trained(self) -> list[torch.Tensor]:
        moves = set(map(id, self._stepped())) | self._averages
        return [p for model in self._models.values() for p in model.parameters() if p.requires_grad or id(p) in moves]

    def _frozen(self) -> list[list[nn.Parameter]]:
        """The parameters of each part that trains none: as an average of weights, it moves as a whole."""
        trained = set(map(id, self._trained()))

        def parts(module: nn.Module) -> Iterator[list[nn.Parameter]]:
            if trained.isdisjoint(map(id, module.parameters())):
                yield list(module.parameters())
                return
            yield from ([p] for p in module.parameters(recurse=False) if id(p) not in trained)
            for child in module.children():
                yield from parts(child)

        return [part for model in self._models.values() for part in parts(model)]

    def forget(self) -> None:
        self._kept = None

    def restore(self) -> None:
        assert self._kept is not None
        state, parameters = self._kept
        with torch.no_grad():
            for parameter, value in parameters:
                put(parameter, value)
                if parameter.grad is not None:  # of a batch that is undone; a loop may read it still
                    parameter.grad.detach().zero_()
        self._state.restore_trained(state)
        self.last_plan = self._plan_of_kept
        _shards.reshard(self._models)


class _Steps:
    """Whether the optimizer, or the one inside of it, has stepped since the batch began. Of several optimizers nothing is
    known, because one may step more often than another, until they have stepped more often than any batch needs. If the
    forward under a plan has stored a parameter in another format, as losses do that convert their weights to the format of
    their input, it gets its own back, and the update is left out. LBFGS estimates curvature by differences of gradients;
    between two plans these are roundings, and its step may be of any length. It begins anew if the plan changes."""

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Sequence[Any], kept: _KeptState) -> None:
        self._updates = 0  # by the given optimizers since the batch began
        self._other = ""  # an optimizer that was not given, and has stepped since then
        self._by_others = 0  # how many of the last batches only such ones have trained
        self._warned: set[str] = set()
        self.loop: Callable[[], _comp.Loop | None] = lambda: None  # a weak reference: the loop refers to this
        self._models, self._kept = list(models.values()), kept
        self._formats: list[tuple[nn.Parameter, torch.dtype]] = []
        self._changed: dict[nn.Parameter, tuple[torch.dtype, Any]] = {}  # their own formats, and hooks
        self._failed = False
        self._curvature: Callable[[], torch.optim.LBFGS | None] = lambda: None  # the LBFGS that steps
        self._hooks = register_optimizer_step_post_hook(self._note), register_optimizer_step_pre_hook(self._begin_update)

    def enter(self) -> None:
        self._put_back()
        loop, lbfgs = self.loop(), self._curvature()
        if loop is not None and lbfgs is not None:
            plan, before = loop.letters, self._kept.last_plan
            if before and plan != before:
                lbfgs.state[lbfgs._params[0]]["n_iter"] = 0
            self._kept.last_plan = plan
        self._formats = [(p, p.dtype) for model in self._models for p in model.parameters()]

    def leave(self) -> None:
        changed = {p: written for p, written in self._formats if p.dtype is not written and p not in self._changed}
        loop = self.loop()
        if not changed or loop is None or not loop.fail():
            return
        self._failed = True
        for p, written in changed.items():  # the backward reads them as they are
            hook = p.register_post_accumulate_grad_hook(self._put_back) if p.requires_grad else None
            self._changed[p] = written, hook

    @property
    def stepped(self) -> bool:
        return self._updates > 0 and len(self._kept.optimizers) == 1

    def end_batch(self) -> None:
        self._put_back()
        self._by_others = self._by_others + 1 if self._other and not self._updates else 0
        if self._by_others == PATIENCE:
            self._tell_of_other()
        self._updates, self._other, self._failed = 0, "", False

    def _put_back(self, *these: torch.Tensor) -> None:
        for p in these or list(self._changed):
            written, hook = self._changed.pop(p)
            put_format_back(p, written)
            if hook is not None:
                hook.remove()

    def _note(self, optimizer: Any, *_: Any) -> None:
        if self._is_given(optimizer):
            self._updates += 1
            if self._updates == _MOST_UPDATES:
                self._tell(
                    f"the optimizers have stepped {_MOST_UPDATES} times since step() was called (nobody knows what these batches "
                    "gave, so that no plan is tried): call plan.step(loss) when a batch is over"
                )
            return
        self._other = type(optimizer).__name__
        if self._holds_weights(optimizer):
            self._tell_of_other()

    def _is_given(self, optimizer: Any) -> bool:
        return any(belong_together(optimizer, each) for each in self._kept.optimizers)

    def _holds_weights(self, optimizer: Any) -> bool:
        return not parameters_of(optimizer).isdisjoint(id(p) for p, _ in self._formats)

    def _tell_of_other(self) -> None:
        self._tell(
            f"a {self._other} steps that was not given (a rejected plan leaves what it alone knows as it is: its moments, and "
            "the weights of another model): give optimizer=[...] with it, and another model a plan of its own"
        )

    def _tell(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            warnings.warn(sentence, stacklevel=4)

    def _begin_update(self, optimizer: Any, *_: Any) -> None:
        given = self._is_given(optimizer)
        if not given and not self._holds_weights(optimizer):
            return  # of another loop, whose thread may be another one: gradients here may be written right now
        self._kept.add_trained()
        if given and isinstance(optimizer, torch.optim.LBFGS):
            self._curvature = weakref.ref(optimizer)
        if self._failed:
            self._put_back()
            for p, _ in self._formats:
                p.grad = None

    def end(self) -> None:
        self.end_batch()
        for hook in self._hooks:
            hook.remove()


def is_there(path: str) -> bool:
    """Whether there is a plan. All ranks call it. Raises: FileError if only some have it, or if it could not be written."""

    def is_here() -> str:
        folder = os.path.dirname(path) or "."
        if not os.path.exists(path) and _ranks.leads() and not os.access(folder, os.W_OK):
            raise FileError(f'"{path}" cannot be written (there is no folder "{folder}", or it is read-only): make it')
        return "yes" if os.path.exists(path) else "no"

    there = _ranks.on_each(_ranks.team(), is_here)
    if len(set(there)) > 1:
        raise FileError(
            f'"{path}" is on rank {there.index("yes")} and not on rank {there.index("no")} (all ranks train under one plan): '
            "give each rank the file, or none"
        )
    return there[0] == "yes"


def _ledger(file: str) -> str:
    """The file from which the next loop's search goes on."""
    return file + ".search"


def _numbers(loss: Any) -> list[tuple[str, float]]:
    losses = losses_of(loss, "step() got", "give")
    if not losses:
        raise SettingsError("step() got no loss (plans are judged by their losses): give the loss, or a dict of several")
    return [(str(name), float(each)) for name, each in losses]


def _end(inner: _comp.Loop, steps: _Steps, file: str | None, searched: bool) -> None:
    steps.end()
    nothing = searched and inner.found is None and inner.searches
    inner.end()
    if nothing and _ranks.leads():
        then = "train longer" if file is None else f'"{file}" is not written, train longer'
        if file is not None and inner.owns_ledger:
            then = f'"{file}" is not written, and the next loop goes on from "{_ledger(file)}"'
        warnings.warn(f"the loop ended after {inner.batches} batches, before its search had found a plan: {then}", stacklevel=2)


class Autocast(Region):
    """`with plan:` of a loop that finds its plan, or has it from a file. Made by comp.autocast().

    Schedulers have stepped in undone batches, too, and are plan.batches_undone steps ahead of the weights from then on: they
    follow the data, of which no batch comes again."""

    def __init__(
        self, inner: _comp.Loop, kept: _KeptState, steps: _Steps, file: str | None, moments: Moments | None
    ) -> None:
        """moments: those of the plan in the file; None if the plan is searched."""
        super().__init__(inner.regions, entered=steps.enter)
        self._inner = inner
        self._kept = kept
        self._steps = steps
        self._file = file
        self._written = ""
        self._moments = moments and moments.__enter__()  # as long as the plan lives
        if moments is not None:
            moments.follow(inner)
        self._finalizer = weakref.finalize(self, _end, inner, steps, file, moments is None)

    def step(self, loss: Any, *, seconds: float = 0) -> None:
        """Ends a batch, after the optimizer's step: as scheduler.step().

        loss: a number, a tensor of one, or a dict of several losses. With gradient accumulation a batch has several
            forwards, and the loss is that of all.
        seconds: what the batch took; 0: the time since its first `with plan:`.

        If the batch shows that the plan harms, the weights are put back before the plan's last batches here.
        Raises: SettingsError for what is no loss; Error without a forward before it.
        """
        self._inner.step(_numbers(loss) if self._inner.searches else [], seconds)
        self._steps.end_batch()
        if self._inner.batches == 2 and self._inner.left[0]:
            warnings.warn(
                f"{self._inner.left[1]} (a forward that begins before step() is one of the same batch again, as accumulation has "
                'it): give each forward of a step its name, as in `with plan("decoder"):`',
                stacklevel=2,
            )
        if not self._inner.searches:
            self._kept.forget()
        self._keep_found()

    def _keep_found(self) -> None:
        found = self._inner.found
        if found is None or found.plan == self._written:
            return
        of_file = self._moments is not None and not self._written
        self._written = found.plan
        self._compilers = Compilers(self._inner.regions)
        if of_file:
            return warn_of_plan(found.warnings, "0" in found.plan, 4)
        try:
            if self._file is not None and _ranks.leads():
                found.save(self._file)
                if self._inner.owns_ledger:
                    with contextlib.suppress(OSError):
                        os.remove(_ledger(self._file))
        except FileError as error:  # the training is worth more than the file
            warnings.warn(str(error), stacklevel=3)

    @property
    def found(self) -> SearchResult | None:
        """What the search found: plan, speedup, contest, warnings; `print(plan.found)` shows its table. None while it
        goes on, and if the plan is from a file. If the training after it gives the plan up, this is the more conservative
        plan that goes on."""
        inner = self._inner.found
        return None if inner is None or self._moments is not None else SearchResult(inner)

    @property
    def searching(self) -> bool:
        """Whether plans are still compared, by the search or by the guard of the planned training after it."""
        return self._inner.searches

    @property
    def letters(self) -> str:
        """The plan of the last batch, one letter per operator."""
        return self._inner.letters

    @property
    def batches_undone(self) -> int:
        """How many batches were undone: their plan was rejected, or they timed the operators in a low format."""
        return self._inner.batches_undone

    @property
    def left(self) -> tuple[int, str]:
        """How many operators ran that the first batch did not have, and the first of them in words."""
        return self._inner.left


def autocast(
    model: nn.Module | Mapping[str, nn.Module],
    *,
    optimizer: Any,
    file: str | os.PathLike[str] | None = None,
    state: Sequence[Any] = (),
    policy: Any = "pytorch",
    precisions: Sequence[str] | None = None,
    batches: float | None = None,
    batches_per_epoch: int = 64,
    forced: bool = False,
    keep_memory: bool = False,
    states_on: str | None = None,
    tune: bool = True,
    protect_blocks: bool = True,
    exchange: bool | None = None,
    moments: bool = False,
    **settings: Any,
) -> Autocast:
    """A plan for `with` that is found while the loop runs:

        plan = comp.autocast(net, optimizer=optimizer, file="plan.json")
        for x, y in loader:
            with plan:                                   # in place of torch.autocast(...)
                loss = cross_entropy(net(x), y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            plan.step(loss)                              # the batch is over

    All batches are the loop's, and none is repeated: FP32 and plans take turns. A batch in FP32 has the bits of the loop
    without comp. Before the batches of another plan weights and moments are copied. If the plan's losses explode or are
    not finite, or it is rejected, they go back to before its last batches (plan.batches_undone).
    What runs under torch.no_grad(), or in evaluation mode, belongs to no batch, and is FP32 until a plan is found.
    `with plan:` before step() goes on with the batch, as gradients are accumulated: what its first forward did not have is
    FP32, so forwards that differ have names, `with plan("decoder"):`.

    model: the module, or several by name. optimizer: one, or a list of them.
    file: the plan's. If it is there, nothing is searched: after the first batches in FP32, batches_per_epoch and 64 at
        most, the loop trains under its plan, and is guarded as after a search. Else it is written when the plan is found.
        If the training gives the plan up, it is written again. Until a plan is found FILE.search has what was learned:
        the search of the next loop goes on from it.
    state: what else batches train: averages of weights, GradScaler. It goes back with the weights. Schedulers go on.
    policy: by name, or one of comp.policy. precisions: as in comp.search, but none below 16 bits.
    batches: of the whole training, which limits what the search may cost. None, or infinitely many: planned_epochs (100)
        times batches_per_epoch.
    batches_per_epoch: FP32 trains so many batches first, 64 at most.
    forced: of comp.plan, for a file that is there.
    states_on: device of the copied state ("cpu" keeps it off the GPU). tune: measure how plans are best run, in the first
        batches of the first plan.
    moments: whether moments are kept in the formats of a file that is there. The search of a loop leaves them in FP32,
        because a long test from one state alone can judge them: find such a plan with comp.search.
    keep_memory, protect_blocks, exchange, settings: as in comp.search.

    On several ranks all call it, and all change their plan at the same batch: losses count by their mean, seconds by the
    slowest rank. Rank 0 writes the file.
    An exception in the region of a plan comes out unchanged. If the loop goes on, the plan is not tried again.

    Raises: SettingsError for an optimizer of another model, and in the second batch for settings that cannot be used;
    FileError for a file that cannot be used; as comp.plan. `with plan:` raises Error if FP32 does not train, once, and if
    step() is missing.
    """
    path = None if file is None else os.fspath(file)
    models = modules_of(model)
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    kept = _KeptState(models, optimizers, state, states_on)
    OptimizerWatch(models, optimizers)  # raises for one of another model
    known = path is not None and is_there(path)
    kept_moments = moments_of_file(path, model, optimizers if moments else []) if known else None
    if callable(policy) and not isinstance(policy, _comp.policy.Policy):
        raise SettingsError(
            "policy is a function of Python (the search has a thread of its own, which runs no Python): give a name, or "
            "one of comp.policy"
        )
    if not isinstance(batches_per_epoch, int) or batches_per_epoch < 1:
        raise SettingsError(f"batches_per_epoch is {batches_per_epoch!r} (FP32 trains so many first): give a number from 1 on")
    if batches is not None:
        if not isinstance(batches, numbers.Real) or isinstance(batches, bool) or not batches > 0:
            raise SettingsError(f"batches is {batches!r} (of the whole training, one at least): give how often the loop calls step()")
        if math.isfinite(batches):
            batches_per_epoch = min(batches_per_epoch, math.ceil(batches))
            settings = {"planned_epochs": int(batches // batches_per_epoch) or 1} | settings
    device = next((p.device for module in models.values() for p in module.parameters()), torch.device("cpu"))
    wanted = _precisions(precisions, state, device, False)
    if precisions is not None and (small := [each for each in precisions if each not in _WHOLE]):
        raise SettingsError(f"precision {small[0]!r} in a loop's own batches (only 16 bits and more are): use comp.search")
    if wanted is not None:
        settings["precisions"] = [each for each in wanted if not each.startswith("fp8")]
    steps = _Steps(models, optimizers, kept)
    modules = list(models.values())
    inner = _comp.Loop(
        forward_parameters(models),
        trains=lambda: any(module.training for module in modules),
        stepped=lambda: steps.stepped,
        leave=steps.leave,
        save=kept.save,
        is_sound=kept.is_sound,
        restore=kept.restore,
        policy=policy_of(policy, "a name, or one of comp.policy"),
        settings=settings,
        ledger="" if path is None or known else _ledger(path),
        plan_file=path if known else "",
        forced=forced,
        batches_per_epoch=batches_per_epoch,
        tune=tune,
        protect_blocks=protect_blocks,
        exchange=_exchange.chosen(exchange, model),
        keep_memory=keep_memory,
        ranks=_ranks.team(),
        states=Moments(optimizers if moments and not known else []).operators,
        keeps_states=moments,
    )
    steps.loop = weakref.ref(inner)
    return Autocast(inner, kept, steps, path, kept_moments)
