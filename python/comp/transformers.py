# SPDX-License-Identifier: Apache-2.0
"""Trainer(model, args, train_dataset=data, callbacks=[comp.transformers.PlanCallback("plan.json")])"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from torch import nn
from transformers import TrainerCallback

import comp


def _takes_counts(model: Any) -> bool:
    """Whether the Trainer gives the model num_items_in_batch. Its __init__ decides that in the same way."""
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    return any(given.kind is given.VAR_KEYWORD for given in inspect.signature(model.forward).parameters.values())


class PlanCallback(TrainerCallback):
    """Trains and evaluates under a plan. If its file is missing, a search makes it on the first batches, and undoes
    them. The loss must be computed in the model's forward, as it is if batches have labels. `search`: settings of
    comp.search. `given`: those of comp.plan.

    Raises: SettingsError if the Trainer's own mixed precision is on; as comp.search and comp.plan.
    """

    def __init__(self, path: str | os.PathLike[str], *, search: dict[str, Any] | None = None, **given: Any) -> None:
        self.path, self.search, self.given = os.fspath(path), search or {}, given

    def on_train_begin(self, args: Any, state: Any, control: Any, **having: Any) -> None:
        if args.bf16 or args.fp16:
            raise comp.SettingsError("bf16 or fp16 of TrainingArguments is on (the plan alone decides): leave it off")
        self._model = model = having["model"]
        if not os.path.exists(self.path):
            self._search(model, having["optimizer"], having["lr_scheduler"], having["train_dataloader"], args)
        self.plan = plan = comp.plan(self.path, model, **self.given)
        self._forward = forward = getattr(
            model.forward, "without_plan", model.forward
        )  # an earlier training was interrupted

        @functools.wraps(forward)
        def planned(*inputs: Any, **named: Any) -> Any:
            with plan:
                return forward(*inputs, **named)

        setattr(planned, "without_plan", forward)
        model.forward = planned

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.plan.at(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._model.forward = self._forward

    def _search(self, model: Any, optimizer: Any, schedule: Any, data: Any, args: Any) -> None:
        counts = _takes_counts(model)

        def step(plan: comp.Region, batch: Any) -> Any:
            inputs = {name: value.to(args.device) for name, value in batch.items()}
            if counts and "labels" in inputs:  # without it the mean is made by other operators
                inputs["num_items_in_batch"] = inputs["labels"].ne(-100).sum()
            with plan:
                loss = model(**inputs)["loss"]
            loss.backward()
            if args.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            return loss

        given = {"model": model, "optimizer": optimizer, "data": data, "state": [schedule], "keep": False}
        comp.search(step, **(given | self.search)).save(self.path)
