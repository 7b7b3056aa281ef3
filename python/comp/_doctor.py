# SPDX-License-Identifier: Apache-2.0
"""Examines training steps, operator by operator."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, overload

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from comp import _comp, _ranks
from comp._comp import Difference, Examination, History, SettingsError
from comp._data import own
from comp._models import forward_parameters, modules_of, require_step
from comp._region import Region, depth, forget_beyond
from comp._state import buffers_of, copied, put_buffers, random_state, set_random_state


class Doctor:
    """`comp.doctor`: what is wrong in one training step, and where it begins.

        exam = comp.doctor(net, (x, y), loss=torch.nn.functional.cross_entropy)
        print(exam)                         # faults in sentences, then each operator's values
        exam.first_nan                      # "layers.3.softmax": its inputs are sound, its results are not
        exam.worst(5)                       # operators with a fault, then those that lose most in low precision
        exam.save("here.json")              # for comp.doctor.compare("here.json", "there.json")
        exam.page("doctor.html")

    or over a step of your own, written as for comp.search:

        def step(plan, batch):
            with plan:
                loss = cross_entropy(net(batch[0]), batch[1])
            loss.backward()

        exam = comp.doctor(step, batch, model=net)

    or over many steps, for what only shows over time: a parameter that never changes, gradients that nobody clears,
    updates that BF16 loses. The step then has the optimizer, too, and returns the loss:

        history = comp.doctor(step, loader, model=net, steps=100)
    """

    @overload
    def __call__(
        self,
        examined: nn.Module | Mapping[str, nn.Module] | Callable[[Region, Any], Any],
        batch: Any = None,
        *,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        loss: Callable[..., torch.Tensor] | None = None,
        low: str = "bf16",
        share: float = 0.25,
    ) -> Examination: ...
    @overload
    def __call__(
        self,
        examined: Callable[[Region, Any], Any],
        batch: Iterable[Any],
        *,
        model: nn.Module | Mapping[str, nn.Module],
        steps: int,
        log: Callable[[dict[str, float], int], Any] | None = None,
    ) -> History: ...
    def __call__(
        self,
        examined: nn.Module | Mapping[str, nn.Module] | Callable[[Region, Any], Any],
        batch: Any = None,
        *,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        loss: Callable[..., torch.Tensor] | None = None,
        low: str = "bf16",
        share: float = 0.25,
        steps: int | None = None,
        log: Callable[[dict[str, float], int], Any] | None = None,
    ) -> Examination | History:
        """Runs one step, forward and backward, in FP32 (its cost: docs/benchmarks/libtorch-parts.md).

        `first_nan` is the first entry that is not finite though all that it reads is. `faults` has all, in sentences.

        examined: a model; or a function of a plan and a batch that runs a step, with `model=`.
        batch: for a model (inputs, target): a tensor, or a tuple or dict of arguments. Without `loss` it is all inputs.
        loss: a function of the model's output and the target. Without it the loss is the output itself, its `.loss`, or
            the mean of its squares if it is no single number.
        low: the precision in which each operator is run once more, on some of its rows: "bf16", "fp16", or "fp32" for those in
            FP64.
        share: how much of the operators' time these runs may take; 0: there are none.
        steps: run so many steps of a function, over `batch`, which is then an iterable of batches that is begun again
            when it ends, and return a History. Its `faults` say since which step, from 0; a sound training has none.
        log: is called after each of the steps with a flat dict of floats and the step: log=wandb.log.

        With a model, its gradients, its buffers and the random generators are as before when it returns. After a step
        of your own they are as that step leaves them.
        Raises: SettingsError; what the step raises, unchanged.
        """
        given = model if model is not None else examined
        if not isinstance(given, (nn.Module, Mapping)):
            raise SettingsError(
                f"a {type(examined).__name__} without a model (operators are named after modules): give "
                "comp.doctor(net, batch) or comp.doctor(step, batch, model=net)"
            )
        models = modules_of(given)
        if steps is not None:
            if model is None or not callable(examined) or steps < 1:
                raise SettingsError(
                    f"steps={steps} of a {type(examined).__name__} (each step is a forward, a backward and an update): give "
                    "comp.doctor(step, loader, model=net, steps=100)"
                )
            return _run_many(models, examined, batch, steps, log)
        inner = _comp.Examining(forward_parameters(models), low=low, share=share, many_steps=False)
        region = Region(inner.regions)
        before = depth()
        try:
            if model is not None:
                require_step(examined)
                examined(region, own(batch))
            else:
                _run(models, region, own(batch), loss)
        finally:
            forget_beyond(before)
        result = inner.finish()
        if not result.entries:
            raise SettingsError(
                "the step never entered the plan (nothing was examined): write `with plan:` around the forward"
            )
        return result

    def load(self, path: str | os.PathLike[str]) -> Examination:
        """An examination that was saved. Raises: FileError."""
        return Examination.load(os.fspath(path))

    def compare(
        self,
        a: Examination | str | os.PathLike[str],
        b: Examination | str | os.PathLike[str],
        tolerance: float = 1e-3,
    ) -> Difference:
        """Finds where two runs of a model part, in two processes, machines or versions. `.first` is the first operator,
        parameter or input whose values are further apart than `tolerance`, a share of their mean magnitude. Give both
        runs the same weights, batch and seed. Raises: FileError."""
        runs = [each if isinstance(each, Examination) else self.load(each) for each in (a, b)]
        return Examination.compare(runs[0], runs[1], tolerance)


doctor = Doctor()


def _run(models: Mapping[str, nn.Module], region: Region, batch: Any, loss: Callable[..., torch.Tensor] | None) -> None:
    if len(models) != 1:
        raise SettingsError(
            f"{len(models)} models and a batch (which gets it is not known): give comp.doctor(step, batch, "
            "model=models)"
        )
    module = next(iter(models.values()))
    inputs, target = batch, None
    if loss is not None:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise SettingsError(f"batch is a {type(batch).__name__} (a loss needs a target): give (inputs, target)")
        inputs, target = batch
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters]
    buffers = copied(buffers_of(module))
    random = random_state()
    with torch.random.fork_rng({p.device for p in parameters if p.device.type == "cuda"}):
        try:
            for p in parameters:
                p.grad = None
            with region:
                if isinstance(inputs, Mapping):
                    output = module(**inputs)
                else:
                    output = module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
                result = loss(output, target) if loss is not None else _loss_of(output)
            if result.requires_grad:
                torch.autograd.backward(result)
        finally:
            for p, gradient in zip(parameters, gradients):
                p.grad = gradient
            with torch.no_grad():
                put_buffers(module, buffers)
            set_random_state(random)


def _run_many(
    models: Mapping[str, nn.Module],
    step: Callable[[Region, Any], Any],
    batches: Iterable[Any],
    steps: int,
    log: Callable[[dict[str, float], int], Any] | None,
) -> History:
    inner = _comp.Examining(forward_parameters(models), low="bf16", share=0.0, many_steps=True)

    def entered() -> None:
        for name, module in models.items():
            if torch.is_grad_enabled() and not module.training:
                inner.note_evaluation(name)

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        pairs = [(p, float(group.get("lr", math.nan))) for group in optimizer.param_groups for p in group["params"]]
        inner.before_update([p for p, _ in pairs], [rate for _, rate in pairs])

    region, kept, data, copies = Region(inner.regions, entered=entered), depth(), _again(batches), _Copies()
    hooks = [
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(lambda *_: inner.after_update()),
    ]
    if _ranks.several():
        hooks.append(register_module_forward_pre_hook(copies.note))
    try:
        for now in range(steps):
            number, batch = next(data)
            result = step(region, own(batch))
            loss = torch.as_tensor(result).detach() if isinstance(result, (torch.Tensor, float)) else None
            inner.end_step(loss, [each for each in tree_leaves(batch) if _is_plain(each)], number, copies.apart())
            if log is not None:
                log(inner.history().numbers, now)
    finally:
        for hook in hooks:
            hook.remove()
        forget_beyond(kept)
    return inner.history()


class _Copies:
    """The copies of a model that DistributedDataParallel keeps equal, one on each rank. Until a step has run it, nothing
    is compared, so that a doctor on one rank alone waits for nobody."""

    def __init__(self) -> None:
        self.parallel: DistributedDataParallel | None = None

    def note(self, module: nn.Module, _: Any) -> None:
        if isinstance(module, DistributedDataParallel):
            self.parallel = module

    def apart(self) -> list[str]:
        """Returns: parameters whose sums differ between ranks. Those of local SGD may."""
        parallel = self.parallel
        if parallel is None or any("local" in getattr(hook, "__name__", "") for hook, _ in parallel._comm_hooks):
            return []
        named = [each for each in parallel.module.named_parameters() if each[1].is_floating_point()]
        named = [(name, p.detach()) for name, p in named if not hasattr(p, "to_local")]  # shards differ
        if not named:
            return []
        device = named[0][1].device
        sums = torch.stack([p.sum(dtype=torch.float64).to(device) for _, p in named])
        both = torch.cat([sums, -sums])
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, parallel.process_group)
        largest, smallest = both.chunk(2)
        return [name for (name, _), apart in zip(named, (largest > -smallest).tolist()) if apart]


def _is_plain(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.layout == torch.strided and each.numel() > 0


def _again(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Batches with their numbers in an epoch, epoch after epoch. One that is given twice in turn has number 0: who trains
    on one batch wants that."""
    last = None
    while True:
        number = -1
        for number, batch in enumerate(batches):
            yield 0 if batch is last else number, batch
            last = batch
        if number < 0:
            raise SettingsError("the data has no batch left (a generator ends after one pass): give a list or a DataLoader")


def _loss_of(output: Any) -> torch.Tensor:
    found = getattr(output, "loss", output)
    while isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, torch.Tensor):
        raise SettingsError(f"the model returned a {type(output).__name__} (a loss is needed): give loss=")
    return found if found.numel() == 1 else found.float().square().mean()
