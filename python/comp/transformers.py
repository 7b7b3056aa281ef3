# SPDX-License-Identifier: Apache-2.0
"""Trainer(model, args, train_dataset=data, callbacks=[comp.transformers.PlanCallback("plan.json")])

Plans are opened where the Trainer opens a context around compute_loss, in training and in evaluation: there torch.autocast
stood, and a loss of the user's own is in it. No callback gets the loss, so it is read where all Trainers pass it on, at
Accelerator.backward."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

import comp
from comp._models import wrap_once


class PlanCallback(TrainerCallback):
    """Trains and evaluates under a plan, which the training finds while it runs or has from its file, as comp.autocast
    does, with the Trainer's own steps, accumulation and losses. `search`, `given`: settings of comp.autocast. `plan`: the
    plan of the training that began last.

    Raises: SettingsError if the Trainer's own mixed precision is on, and if a step gives Accelerator.backward no loss;
    as comp.autocast.
    """

    def __init__(self, path: str | os.PathLike[str], *, search: dict[str, Any] | None = None, **given: Any) -> None:
        self.path, self.settings = os.fspath(path), (search or {}) | given
        self.plan: comp.Autocast | None = None
        self._trains = False
        self._losses: list[torch.Tensor] = []  # of the batch, whose gradients may be accumulated

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.bf16 or args.fp16:
            raise comp.SettingsError("bf16 or fp16 of TrainingArguments is on (the plan alone decides): leave it off")
        self.plan = None  # which ends the search of a training that was interrupted
        self._trains = True
        self._losses.clear()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.plan is None or not self._losses:
            raise comp.SettingsError(
                f"step {state.global_step} gave Accelerator.backward no loss, or computed it outside of the Trainer's "
                "compute_loss_context_manager() (plans are judged by losses): use both in a training_step of your own"
            )
        self.plan.step(sum(self._losses))
        self._losses.clear()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._trains = False

    def context(self, trainer: Trainer) -> contextlib.AbstractContextManager[Any]:
        """What compute_loss runs in."""
        if self._trains and self.plan is None and torch.is_grad_enabled():
            settings = {"batches": trainer.state.max_steps} | self.settings
            self.plan = comp.autocast(trainer.model_wrapped, optimizer=trainer.optimizer, file=self.path, **settings)
        if self.plan is not None and torch.is_grad_enabled():
            _tell_losses(trainer.accelerator, self._losses)
        return contextlib.nullcontext() if self.plan is None else self.plan


def _tell_losses(accelerator: Any, to: list[torch.Tensor]) -> None:
    """Has the next call of backward() put its loss there."""
    backward, instead = accelerator.backward, vars(accelerator).get("backward")
    if hasattr(backward, "wrapped_by_comp"):
        return

    @functools.wraps(backward)
    def report_loss(loss: torch.Tensor, *given: Any, **named: Any) -> Any:
        del accelerator.backward
        vars(accelerator).update({} if instead is None else {"backward": instead})
        to.append(loss.detach())
        return backward(loss, *given, **named)

    report_loss.wrapped_by_comp = True  # type: ignore[attr-defined]
    accelerator.backward = report_loss


def _opening_plans(original: Any) -> Any:
    """The Trainer's method, wrapped: no callback is given the Trainer."""

    def open_plans(trainer: Trainer) -> contextlib.ExitStack:
        with contextlib.ExitStack() as opened:
            opened.enter_context(original(trainer))
            for each in trainer.callback_handler.callbacks:
                if isinstance(each, PlanCallback):
                    opened.enter_context(each.context(trainer))
            return opened.pop_all()

    return open_plans


wrap_once(Trainer, "compute_loss_context_manager", "wrapped_by_comp", _opening_plans)
