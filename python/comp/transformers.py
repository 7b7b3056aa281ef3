# SPDX-License-Identifier: Apache-2.0
"""A plan in the Trainer of Hugging Face transformers:

    Trainer(model, args, train_dataset=data, callbacks=[comp.transformers.PlanCallback("plan.json")])

The loss must be computed in the model's forward, as it is where a batch has labels.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from transformers import TrainerCallback

import comp


class PlanCallback(TrainerCallback):  # type: ignore[misc]
    """Trains and evaluates under a plan. Where its file is not there, a search on the first batches makes it, which are
    undone. `search`: settings of comp.search. `given`: those of comp.plan.

    Raises (when the training begins): SettingsError where the Trainer's own mixed precision is on; as comp.search and
    comp.plan.
    """

    def __init__(self, path: str | os.PathLike[str], *, search: dict[str, Any] | None = None, **given: Any) -> None:
        self.path, self.search, self.given = os.fspath(path), search or {}, given

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       lr_scheduler: Any = None, train_dataloader: Any = None, **_: Any) -> None:
        if args.bf16 or args.fp16:
            raise comp.SettingsError("the Trainer's own bf16 or fp16 is on (the plan alone decides precisions): leave "
                                     "TrainingArguments at FP32")
        if not os.path.exists(self.path):
            def step(plan: comp.Region, batch: Any) -> Any:
                inputs = {key: value.to(args.device) for key, value in batch.items()}
                with plan:
                    loss = model(**inputs)["loss"]
                loss.backward()
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
                return loss

            found = comp.search(step, **({"model": model, "optimizer": optimizer, "data": train_dataloader, "keep": False,
                                          "state": [lr_scheduler]} | self.search))
            found.save(self.path)
        plan, self._model, self._forward = comp.plan(self.path, model, **self.given), model, model.forward

        @functools.wraps(model.forward)
        def planned(*inputs: Any, **named: Any) -> Any:
            with plan:
                return self._forward(*inputs, **named)

        model.forward, self.plan = planned, plan

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._model.forward = self._forward
