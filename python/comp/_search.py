# SPDX-License-Identifier: Apache-2.0
"""The search over a Python training."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from comp import _comp
from comp._comp import SettingsError
from comp._data import Batches, own
from comp._models import modules_of, named_parameters
from comp._outcome import Outcome
from comp._region import Region, depth, forget_beyond
from comp._state import OtherState, copied, put, set_random_state


class _Glue:
    """The functions that the C++ side calls."""

    def __init__(
        self, step: Callable[[Region, Any], Any], score: Callable[[], float] | None, models: Mapping[str, nn.Module]
    ) -> None:
        self._step = step
        self._score = score
        self._models = models
        self.training: Callable[[], Any]  # a weak reference: the training holds this

    def step(self, value: Any, generators: Any) -> list[tuple[str, torch.Tensor]]:
        if generators is not None:
            set_random_state(generators)
        region = Region(self.training().regions)
        before = depth()
        try:
            return [(name, _scalar(name, loss)) for name, loss in _losses(self._step(region, own(value))).items()]
        finally:
            forget_beyond(before)

    def score(self) -> float:
        modes = [(part, part.training) for model in self._models.values() for part in model.modules()]
        try:
            for model in self._models.values():
                model.eval()
            return float(self._score())  # type: ignore[misc]
        finally:
            for part, training in modes:
                part.training = training


def _rates(optimizers: Sequence[Any]) -> Callable[[], list[float]]:
    """The learning rates that a scheduler may change; those that are tensors are left out: to look would be to wait."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return lambda: [float(group["lr"]) for group in groups if isinstance(group.get("lr"), (int, float))]


def _losses(returned: Any) -> dict[str, Any]:
    return dict(returned) if isinstance(returned, Mapping) else {"loss": returned}


def _scalar(name: str, loss: Any) -> torch.Tensor:
    if isinstance(loss, (int, float)):
        return torch.tensor(float(loss), dtype=torch.float64)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise SettingsError(
            f'the step returned {shape} as "{name}" (plans are judged by their losses): return the loss, '
            "or a dict of several"
        )
    return loss.detach()


def _named(kind: str, module: Any, made: type, given: Any, allowed: str) -> Any:
    """A policy or strategy of its name, as it is, or of Python's own."""
    if isinstance(given, made):
        return given
    if isinstance(given, str):
        known = [
            name
            for name in dir(module)
            if not name.startswith("_") and name.islower() and name not in ("called", "custom")
        ]
        if given not in known:
            raise SettingsError(f'{kind} "{given}" is not known (there are {", ".join(known)}): give one of them')
        return getattr(module, given)()
    if (
        (kind == "policy" and callable(given))
        or (kind != "policy" and hasattr(given, "ask") and hasattr(given, "tell"))
        or (kind != "policy" and hasattr(given, "start"))
    ):
        return module.called(given)
    raise SettingsError(f"{kind} is a {type(given).__name__} (it is none): give {allowed}")


def _precisions(wanted: Sequence[str] | None, others: Iterable[Any], device: torch.device) -> Sequence[str] | None:
    """FP16's gradients vanish without a scaler, so it is searched only beside one."""
    if any(isinstance(each, GradScaler) for each in others):
        return wanted
    if wanted is not None and "fp16" in wanted:
        raise SettingsError(
            "fp16 without a GradScaler (small gradients vanish in FP16): use torch.amp.GradScaler in the "
            "step and give state=[scaler]"
        )
    if wanted is not None or device.type != "cuda":
        return wanted
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SettingsError(
            "this GPU has FP16 alone, and there is no GradScaler (small gradients vanish in FP16): use "
            "torch.amp.GradScaler in the step and give state=[scaler]"
        )
    return ["bf16", "tf32"]


def search(
    step: Callable[[Region, Any], Any],
    *,
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Any,
    data: Iterable[Any],
    score: Callable[[], float] | None = None,
    state: Sequence[Any] = (),
    policy: Any = "pytorch",
    strategy: Any = "guided",
    batches_strategy: Any = "greedy",
    precisions: Sequence[str] | None = None,
    ledger: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    observers: Sequence[Any] = (),
    progress: bool = True,
    keep: bool = True,
    keep_bytes: int = 4 << 30,
    states_on: str | None = None,
    tune: bool = True,
    protect_blocks: bool = True,
    about: str = "",
    **settings: Any,
) -> Outcome:
    """Finds the precision of each operator at which this training runs fastest and still converges, while it trains.

        def step(plan, batch):
            x, y = batch
            with plan:                                   # where torch.autocast(...) would be
                loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss                                  # several: {"generator": a, "discriminator": b}

        found = comp.search(step, model=net, optimizer=optimizer, data=loader)
        print(found)
        found.save("plan.json")

    step: trains one batch and returns its loss.
    model: the module, or several by name. optimizer: one, or a list of them.
    data: what can be iterated again for each epoch: a DataLoader, a list of batches. Batches that a saved state may
        need again are kept in memory, `keep_bytes` at most.
    score: a validation score, higher is better; run under the plan, in evaluation mode, without gradients.
    state: what else changes while training: schedulers, GradScaler, averages of weights (what has state_dict and
        load_state_dict), torch.Generator. torch's, Python's and NumPy's own generators are always saved.
    policy, strategy, batches_strategy: by name, from comp.policy and comp.strategy, or your own: a callable of an
        operator that returns a decision; an object with ask(n) and tell(trial), which may have start(space).
    precisions: to search, in order of preference; None: what runs fast here. fp16 wants a GradScaler in `state`.
    ledger: a file that a search which was killed goes on from. report: an HTML page, live while it searches.
    observers: objects with some of trial_started(trial), trial_done(trial), warned(sentence), search_done(outcome),
        stop_requested().
    states_on: device of saved states ("cpu" keeps them off the GPU). tune: measure how a plan is best run.
    keep: False: when the search ends, the training is put back to where it began.
    protect_blocks: what stands in `with torch.autocast(..., enabled=False)` or another autocast of the model's own runs as
        its author wrote, in every plan; False: the plan decides there, too.
    about: anything else that makes two trainings comparable, for ledgers.
    settings: those of C++'s search_settings: tolerance, budget, planned_epochs, memory_limit, slowdown, criterion, ...

    The model is left as the search leaves it: found.trained_batches of FP32 and of accepted plans behind it;
    found.train(epochs) goes on from there. An exception that the step raises comes out unchanged, and so does Ctrl-C,
    with model, optimizer and `state` as they were at the start.

    Raises: SettingsError before anything is run; Error when FP32 itself does not train; Interrupted when an observer
    asks to stop.
    """
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise SettingsError(
            f"a search in {torch.distributed.get_world_size()} processes (each would decide by its own "
            "times, and they would wait for each other): search in one process with the batch of one, then "
            "train in all with comp.plan"
        )
    if not callable(step):
        raise SettingsError(
            f"step is a {type(step).__name__} (a function of a plan and a batch is wanted): give "
            "def step(plan, batch)"
        )
    models = modules_of(model)
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    others = OtherState(models, optimizers, state, states_on)
    named = named_parameters(models)
    device = next((p.device for _, parameters in named for _, p in parameters), torch.device("cpu"))
    wanted = _precisions(precisions, state, device)
    if wanted is not None:
        settings["precisions"] = list(wanted)
    batches = Batches(data)
    glue = _Glue(step, score, models)
    training = _comp.Training(
        models=named,
        pull=batches.pull,
        step=glue.step,
        score=None if score is None else glue.score,
        save=others.save,
        restore=others.restore,
        tensors=others.tensors,
        rates=_rates(optimizers) if all(isinstance(each, (GradScaler, torch.Generator)) for each in state) else None,
        length=batches.length,
        keep_bytes=keep_bytes,
        data=f"{type(data).__name__} of {batches.length or 'unknown'} batches",
        tune=tune,
        protect_blocks=protect_blocks,
        states_on=states_on,
        about=" ".join([about, *(repr(each) for each in optimizers)]),
    )
    glue.training = weakref.ref(training)
    info = _comp.ReportInfo(
        model=", ".join(type(m).__name__ for m in models.values()),
        data=type(data).__name__,
        use_command='with comp.plan("plan.json", model): ...',
    )
    before = (
        None
        if keep
        else (
            others.save(),
            [(p, copied(p, states_on), copied(p.grad, states_on)) for _, parameters in named for _, p in parameters],
        )
    )
    inner = training.search(
        policy=_named("policy", _comp.policy, _comp.policy.Policy, policy, "a name, one of comp.policy or a callable"),
        stage1=_named(
            "strategy",
            _comp.strategy,
            _comp.strategy.Strategy,
            strategy,
            "a name, one of comp.strategy or an object with ask and tell",
        ),
        stage2=_named(
            "batches_strategy",
            _comp.strategy,
            _comp.strategy.Strategy,
            batches_strategy,
            "a name, one of comp.strategy or an object with ask and tell",
        ),
        settings=settings,
        ledger=None if ledger is None else os.fspath(ledger),
        report=None if report is None else os.fspath(report),
        info=info,
        progress=progress,
        observers=list(observers),
    )
    training.set_plan(inner.plan)
    if before is not None:
        for parameter, value, gradient in before[1]:
            put(parameter, value)
            parameter.grad = put(parameter.grad, gradient)
        others.restore(before[0])
    return Outcome(inner, training, progress)
