# SPDX-License-Identifier: Apache-2.0
"""The outcome of a search."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any

from comp import _checkpoint, _comp, _ranks
from comp._comp import Contestant, Operator, Sample, SettingsError, TrainingResult, Trial
from comp._region import Region
from comp._training import Job, alone


class SearchResult:
    """What a search found. `print(found)` shows the contest, `found.plan` is the plan, one letter per operator."""

    def __init__(self, inner: _comp.Outcome) -> None:
        self._inner = inner

    @property
    def plan(self) -> str:
        """One letter per operator: 1 FP32, t TF32, b BF16, 0 FP16. "...@autocast": torch's own autocast runs it;
        "...@tuned": FP32 as it is fastest."""
        return self._inner.plan

    @property
    def speedup(self) -> float:
        """How many times as fast as FP32: the median of batches that were timed in turns."""
        return self._inner.speedup

    @property
    def speedup_bounds(self) -> tuple[float, float]:
        """The 95% interval of `speedup`."""
        return self._inner.speedup_bounds

    @property
    def compiled(self) -> bool:
        """Whether the plans were timed by compiled steps, because torch.compile has a part of the step."""
        return self._inner.compiled

    @property
    def operators(self) -> list[Operator]:
        """The operators of a step's forward, in the order of their calls: name, kind, shapes, m, n, k and so on."""
        return self._inner.operators

    @property
    def fingerprint(self) -> str:
        """A hash of names, kinds, shapes and edges, by which a plan file is checked."""
        return self._inner.fingerprint

    @property
    def reasons(self) -> list[str]:
        """Why each operator has its precision: one sentence for each."""
        return self._inner.reasons

    @property
    def warnings(self) -> list[str]:
        """What makes the outcome less certain, and what to do."""
        return self._inner.warnings

    @property
    def contest(self) -> list[Contestant]:
        """The plans of the final head-to-head, FP32 first: label, plan, seconds, speedup, peak_bytes."""
        return self._inner.contest

    @property
    def trials(self) -> list[Trial]:
        """Every run, in order."""
        return self._inner.trials

    @property
    def baseline(self) -> Sample:
        """FP32's batches from the start."""
        return self._inner.baseline

    @property
    def trained_batches(self) -> int:
        """The batches that have trained the model when the search ends: FP32's and those of accepted plans."""
        return self._inner.trained_batches

    @property
    def batches_per_epoch(self) -> int:
        """Batches of an epoch; 0: not known."""
        return self._inner.batches_per_epoch

    def table(self) -> str:
        """The contest and what the search cost."""
        return self._inner.table()

    def rules(self, low: str = "bf16") -> list[tuple[str, str]]:
        """Names of other systems, and the plan that the rules of each would run this model with. A system that refuses the
        model is left out, with a warning that says why."""
        plans, refusals = self._inner.rules(low)
        for system, why in refusals.items():
            warnings.warn(f"{system} has no plan for this model: {why}", stacklevel=2)
        return plans

    def summary(self) -> dict[str, Any]:
        """The figures of the search, as `train` of C++ writes them to summary.json."""
        return dict(json.loads(self._inner.summary()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan file, which comp.plan() and C++ read; of several ranks rank 0 does. Raises: FileError."""
        if _ranks.leads():
            self._inner.save(os.fspath(path))

    def report(
        self, path: str | os.PathLike[str], *, model: str = "", data: str = "", plan_file: str = "plan.json"
    ) -> None:
        """Writes the report, one HTML page; of several ranks rank 0 does. Raises: FileError."""
        if _ranks.leads():
            use = f'with comp.plan("{plan_file}", model): ...'
            info = _comp.ReportInfo(model=model, data=data, use_command=use, plan_file=plan_file)
            self._inner.report(os.fspath(path), info)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<comp.{type(self).__name__} {self.speedup:.2f}x as fast as FP32: {self.plan[:40]}>"


class Outcome(SearchResult):
    """What comp.search found. `found.train(epochs)` trains on with it."""

    def __init__(self, inner: _comp.Outcome, job: Job, progress: bool) -> None:
        super().__init__(inner)
        self._job = job
        self._progress = progress
        self.region = Region(job.training.regions, compilers=job.compiled)
        """What the step was given: `with found.region:` trains on with the plan."""

    @property
    def warnings(self) -> list[str]:
        """What makes the outcome less certain, and what to do."""
        return super().warnings + self._job.sentences

    @property
    def also_saved(self) -> list[str]:
        """What the step was seen to change beside models, optimizers and `state`. It was put back with these."""
        return list(self._job.unnamed.found)

    def train(
        self,
        epochs: int,
        *,
        finish: float = 0,
        callbacks: Sequence[_checkpoint.Callback] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
    ) -> TrainingResult:
        """Trains on with the plan, guarded: a loss that goes wrong puts the last good state back, and a more
        conservative plan goes on. `epochs`: how many in all, with those that the search trained.

        finish: the part of the training, at its end, that may have a higher precision; 0.1 is its last tenth. When it
            begins, the plan and a higher precision train the same batches, and the higher one stays if its loss is shown
            to be lower. The result's `later` says so, and found.save() writes it.
        callbacks: called after each epoch with a TrainingProgress (`epochs`, `fallbacks`, `plan`); one that returns
            True ends the training.
        checkpoint: a file from which comp.resume() goes on. It is written before the first epoch, after each `every`
            epochs and after the last. It is the old or the new one, never half. That of an earlier training is kept as
            FILE.old.

        On several ranks all call it, with the same arguments; callbacks are called on rank 0. Each rank keeps a part of
        the checkpoint, rank 0 in FILE, rank 1 in FILE.rank1. A part that cannot be written leaves the last checkpoint
        whole.

        Raises: SettingsError if nobody knows how long an epoch is; FileError for a first checkpoint that cannot be
        written (later ones are warned of); Error if FP32 does not train; RankError if another rank is gone; what
        callbacks raise.
        """
        if self.batches_per_epoch == 0:
            raise SettingsError(
                "the data did not end, so nobody knows how long an epoch is (each may go on for ever): give "
                "comp.search batches_per_epoch=..."
            )
        with alone("a training"):
            watcher = _checkpoint.Watcher(self._job, epochs, callbacks, checkpoint, every)
            if checkpoint is not None:
                _checkpoint.set_aside(checkpoint)
            return self._job.training.train_on(self._inner, epochs, finish, self._progress, watcher)

    def __reduce__(self) -> Any:
        raise TypeError("an outcome cannot be pickled or copied (it holds on to the training): use found.save(path)")
