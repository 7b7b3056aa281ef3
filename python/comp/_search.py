# SPDX-License-Identifier: Apache-2.0
"""The search over a Python training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from comp import _comp
from comp._comp import SettingsError
from comp._outcome import Outcome
from comp._region import Region
from comp._state import copied, put
from comp._training import Job, alone

_WHOLE = frozenset({"fp64", "fp32", "tf32", "bf16", "bf16>fp32", "fp16"})  # precisions of 16 bits and more


def _named(kind: str, module: Any, given: Any, fits: bool, allowed: str) -> Any:
    """A policy or strategy: by its name, or `given` if that is one, or if the user's own object `fits`."""
    if isinstance(given, str):
        known = [name for name in dir(module) if name[0] != "_" and name.islower() and name not in ("called", "custom")]
        if given not in known:
            raise SettingsError(f'{kind} "{given}" is not known (there are {", ".join(known)}): give one of them')
        return getattr(module, given)()
    if not fits:
        raise SettingsError(f"{kind} is a {type(given).__name__} (it is none): give {allowed}")
    return module.called(given)


def policy_of(given: Any, allowed: str) -> Any:
    if isinstance(given, _comp.policy.Policy):
        return given
    return _named("policy", _comp.policy, given, callable(given), allowed)


def _strategy_of(kind: str, given: Any) -> Any:
    if isinstance(given, _comp.strategy.Strategy):
        return given
    fits = hasattr(given, "start") or (hasattr(given, "ask") and hasattr(given, "tell"))
    return _named(kind, _comp.strategy, given, fits, "a name, one of comp.strategy or an object with ask and tell")


def _precisions(
    precisions: Sequence[str] | None, others: Iterable[Any], device: torch.device, modelled: bool
) -> Sequence[str] | None:
    """FP16's gradients vanish without a scaler, so it is searched only beside one."""
    if isinstance(precisions, str):
        raise SettingsError(f'precisions is "{precisions}" (a list is wanted): give ["{precisions}"]')
    if any(isinstance(each, GradScaler) for each in others):
        return precisions
    if precisions is not None and "fp16" in precisions:
        raise SettingsError(
            "fp16 without a GradScaler (small gradients vanish in FP16): use torch.amp.GradScaler in the "
            "step and give state=[scaler]"
        )
    if precisions is not None or modelled or device.type != "cuda":
        return precisions
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SettingsError(
            "this GPU has FP16 alone, and there is no GradScaler (small gradients vanish in FP16): use "
            "torch.amp.GradScaler in the step and give state=[scaler]"
        )
    in_fp8 = torch.cuda.get_device_capability(device) >= (8, 9)
    return ["bf16", "tf32", "fp8_e4m3"] if in_fp8 else ["bf16", "tf32"]


def _chosen(policy: Any, strategy: Any, batches_strategy: Any) -> dict[str, Any]:
    if strategy in ("guided", "paper") and batches_strategy != "greedy":
        raise SettingsError(f'batches_strategy with strategy "{strategy}" (it does both stages): leave it out')
    if strategy == "paper":
        strategy = batches_strategy = "exhaustive"
    return {
        "policy": policy_of(policy, "a name, one of comp.policy or a callable"),
        "stage1": _strategy_of("strategy", strategy),
        "stage2": _strategy_of("batches_strategy", batches_strategy),
    }


def _copy_state(job: Job, data: Any, states_on: str | None) -> Callable[[], None]:
    """Copies the state of the training, with the generators of a DataLoader and its sampler, from which the search draws
    epochs. Returns: what puts all back."""
    drawn = [getattr(part, "generator", None) for part in (data, getattr(data, "sampler", None))]
    generators = [(each, each.get_state()) for each in drawn if isinstance(each, torch.Generator)]
    weights = [(p, copied(p, states_on), copied(p.grad, states_on)) for _, named in job.parameters for _, p in named]
    state = job.state.save()

    def put_back() -> None:
        for parameter, value, gradient in weights:
            put(parameter, value)
            parameter.grad = put(parameter.grad, gradient)
        job.state.restore(state)
        for generator, place in generators:
            generator.set_state(place)

    return put_back


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
    batches_per_epoch: int | None = None,
    keep_bytes: int = 4 << 30,
    keep_memory: bool = False,
    states_on: str | None = None,
    tune: bool = True,
    protect_blocks: bool = True,
    about: str = "",
    target: str | None = None,
    products: str = "auto",
    exchange: bool | None = None,
    moments: bool = False,
    **settings: Any,
) -> Outcome:
    """Finds the precision of each operator at which this training runs fastest and still converges, while it trains.

        def step(plan, batch):
            x, y = batch
            with plan:                                   # in place of torch.autocast(...)
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
        need again are kept in memory, `keep_bytes` at most. If data have no end, or nobody knows their length, an
        epoch has `batches_per_epoch` batches.
    score: a validation score, higher is better. It runs under the plan, in evaluation mode, without gradients.
    state: what else changes while training: schedulers, GradScaler, averages of weights (what has state_dict and
        load_state_dict), torch.Generator. torch's, Python's and NumPy's own generators are always saved, and so is what
        steps are seen to change among the objects that they reach (found.also_saved). Files, servers and other
        processes are not.
    policy, strategy, batches_strategy: by name, from comp.policy and comp.strategy, or your own: a callable of an
        operator that returns a decision; an object with ask(n) and tell(trial), which may have start(space).
        strategy="paper" is the CoMP paper's own search (docs/understand/paper.md): whole epochs, FP16 unless `precisions` says
        otherwise, and no GradScaler is asked for, since the paper has none.
    precisions: those to search, in order of preference; None: what runs fast here. fp16 wants a GradScaler in `state`;
        bf16>fp32, for linear layers, multiplies in BF16 and gives FP32, and is searched if it is named.
    target: a GPU that is not here ("A100", "RTX 4090", "H100", "H200", "B200", "B300"). Losses are this training's, times
        are modelled for that GPU, and linear layers may have formats below 16 bits, whose arithmetic is emulated: the
        plan is one to take there (comp.to_transformer_engine). precisions=None: bf16, fp8_e4m3, mxfp8 and nvfp4, as far
        as that GPU has them.
    products: whether each of a linear layer's three products has a precision of its own: "separate" or "together"; "auto":
        if formats below 16 bits are searched.
    exchange: whether the plan has the format, too, in which ranks exchange gradients. None: if a model is a
        DistributedDataParallel without a communication hook, or was given to fully_shard without a reduce_dtype.
    moments: whether the plan has the formats, too, in which torch's own SGD with momentum, Adam and AdamW keep their moments
        on a CPU: FP32, or BF16 or FP8 (fp8_e4m3, in blocks) rounded at random.
    ledger: a file from which a search that was killed goes on. report: an HTML page, live while it searches.
    observers: objects with some of trial_started(trial), trial_done(trial), warned(sentence), search_done(outcome),
        stop_requested().
    states_on: device of saved states ("cpu" keeps them off the GPU). tune: measure how a plan is best run.
    keep_memory: CPU memory that torch frees keeps its pages for the next step's blocks, for all plans alike. Give it to
        comp.plan, too: which plan is fastest may depend on it.
    keep: whether the model stays as the search leaves it; False: the training is put back to its start.
    protect_blocks: what stands in `with torch.autocast(..., enabled=False)` or another autocast of the model's own runs
        as its author wrote, in every plan; False: the plan decides there, too.
    about: anything else that makes two trainings comparable, for ledgers.
    settings: those of C++'s search_settings: tolerance, budget, planned_epochs, memory_limit, slowdown, criterion, ...

    When the search ends, found.trained_batches of FP32 and of accepted plans have trained the model, and
    found.train(epochs) goes on from there. An exception that the step raises in FP32 comes out unchanged, and so does Ctrl-C;
    what it raises under another plan is that plan's failure.
    Model, optimizer and `state` are then as they were at the start.

    Raises: SettingsError before anything is run; Error when FP32 itself does not train; Interrupted when an observer
    asks to stop.
    """
    if target is not None and not (isinstance(target, str) and target):
        raise SettingsError(f'target is {target!r} (a GPU is wanted whose times are modelled): give its name, as "B200"')
    if products not in ("auto", "together", "separate"):
        raise SettingsError(f'products is {products!r} (a layer\'s products): give "auto", "together" or "separate"')
    scaled = target is not None if precisions is None else not _WHOLE.issuperset(precisions)
    with alone("a search"):
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
            about=about,
            target=target,
            separate_products=products == "separate" or (products == "auto" and scaled),
            exchange=exchange,
            moments=moments,
        )
        if isinstance(strategy, str) and strategy == "paper":
            settings["verbatim"] = True
            precisions = ["fp16"] if precisions is None else precisions
        else:
            precisions = _precisions(precisions, state, job.device, target is not None)
        if precisions is not None:
            settings["precisions"] = list(precisions)
        chosen = _chosen(policy, strategy, batches_strategy)
        info = _comp.ReportInfo(
            model=", ".join(type(m).__name__ for m in job.models.values()),
            data=type(data).__name__,
            use_command='with comp.plan("plan.json", model): ...',
        )
        put_back = None if keep else _copy_state(job, data, states_on)
        try:
            with job.watch:
                inner = job.training.search(
                    **chosen,
                    settings=settings,
                    ledger=None if ledger is None else os.fspath(ledger),
                    report=None if report is None else os.fspath(report),
                    info=info,
                    progress=progress,
                    observers=list(observers),
                )
        finally:
            job.compiled.forget()
        job.training.set_plan(inner.plan)
        job.tell_of_data(inner.batches_per_epoch)
        if put_back is not None:
            put_back()
        return Outcome(inner, job, progress)
