# SPDX-License-Identifier: Apache-2.0
"""Finds state that nobody named: compares the objects that a step reaches before and after some steps. What the step
changes among them is then saved and put back with the rest."""

from __future__ import annotations

import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from comp._bodies import Body, Marks, Saved, Sight, bytes_of, plain_state, put_plain_state
from comp._comp import SettingsError
from comp._objects import (
    STATEFUL,
    attributes,
    behind,
    is_library,
    may_hold_state,
    methods_of,
    place_of,
    places_of_object,
    variables_of,
)

_BODIES, _DEPTH = 5_000, 20  # at most so many bodies are looked at, and so deep
# [bytes] of tensors that are copied before a step was seen to change them: each in the first steps, each later, in all
_SMALL, _TINY, _TOGETHER = 1 << 20, 1 << 16, 64 << 20
# steps that are looked at: the first ones in any case, at most in all, and the share of the time
_ALWAYS, _MOST, _SHARE = 3, 16, 0.05
_SAVED_OF_MODELS = frozenset(("_parameters", "_buffers"))
_SAVED_OF_OPTIMIZERS = frozenset(("state", "param_groups", "_opt_called"))


def _tried(work: Callable[[], Any]) -> Any:
    """None where looking at an object raises an exception: what it holds is then left as it is."""
    try:
        return work()
    except Exception:
        return None


def _key(body: Body) -> tuple[str, bool]:
    """A body's key in a file. A variable and the object in it have the same path, so the path alone is none."""
    return body.path, body.owner is None


class Audit:
    """Looks at what a step reaches: its variables and those of functions that it calls, its object, models and
    optimizers. What it cannot look at, it leaves alone, and raises nothing."""

    def __init__(
        self,
        step: Callable[..., Any],
        models: Mapping[str, nn.Module],
        optimizers: Iterable[Any],
        leave: Iterable[Any],
        device: str | None,
    ) -> None:
        self._models, self._optimizers = list(models.values()), list(optimizers)
        self._roots: list[tuple[str, Any]] = [("step", step)]
        self._roots += [(name or "model", module) for name, module in models.items()]
        self._roots += [("optimizer", each) for each in self._optimizers]
        self._leave = list(leave)
        self._device = device
        self._bodies: dict[Any, Body] = {}
        self._known: dict[Body, None] = {}  # bodies that a step was seen to change
        self._uncopied: set[int] = set()  # identities of tensors that a saved state does not have
        self._made: list[weakref.ref[Saved]] = []  # what was saved in the first steps
        self._room = 0  # [bytes] left for copies of what no step was seen to change
        self._looked, self._looking, self._trained = 0, 0.0, 0.0
        self.found: dict[str, None] = {}
        """What steps change and nobody named, in the order in which it was found."""
        self.told: list[str] = []
        """What cannot be put back, in sentences."""

    def save(self) -> list[Saved]:
        """Copies all bodies until some steps have shown which of them change, and then those."""
        return _tried(self._save) or []

    def restore(self, saved: list[Saved]) -> None:
        for each in saved:
            if each.sight.body in self._known and not _tried(each.put_back):
                self._tell(
                    f"{each.sight.body.path} could not be put back (rejected plans have changed it): give the search "
                    "state=[...] with what saves and loads it"
                )

    def around(self, step: Callable[[], Any]) -> Any:
        """Runs a step, and looks at what it changes where that is worth its time."""
        start = time.perf_counter()
        due = self._looked < _ALWAYS or (self._looked < _MOST and self._looking < _SHARE * self._trained)
        before = (_tried(self._sights) or []) if due else []
        marks = [each for each in (_tried(lambda: Marks(sight)) for sight in before) if each is not None]
        begin = time.perf_counter()
        result = step()
        end = time.perf_counter()
        self._trained += end - begin
        if due:
            for each in marks:
                _tried(lambda: self._learn(each))
            self._looked += 1
            if self._looked == _ALWAYS:
                self._forget_suspicions()
            self._looking += begin - start + time.perf_counter() - end
        return result

    def plain_state(self) -> dict[tuple[str, bool], Any]:
        """What steps change and nobody named, by paths, for a file."""
        leave, shapes = self._saved_otherwise(), self._shapes()
        return {_key(b): (sorted(b.changed), *plain_state(Sight(b, leave), shapes)) for b in self._known}

    def put_plain_state(self, state: Mapping[tuple[str, bool], Any]) -> None:
        """Puts back what plain_state() gave. Raises: SettingsError where this training lacks what that one had."""
        sights = {_key(sight.body): sight for sight in reversed(self._sights())}
        for key, each in state.items():
            if key not in sights:
                raise SettingsError(
                    f"the checkpoint has a state of {key[0]}, and nothing that this step reaches is called that (it "
                    "would not go on as it was): give the step of that training"
                )
            put_plain_state(sights[key], each[1:])
            self._known[sights[key].body] = None
            sights[key].body.changed.update(each[0])

    def _learn(self, marks: Marks) -> None:
        sight = marks.sight
        for path in marks.drawn_from():
            self._tell(
                f"the step draws from {path}, an iterator of a DataLoader (it does not go back, so each plan trains on "
                "other batches): let `data` give these batches, too"
            )
        paths = marks.changed() if sight.is_state() else {}
        if not paths:
            return
        self._known[sight.body] = None
        sight.body.changed.update(paths.values())
        self.found.update(dict.fromkeys(paths))
        for path, value in marks.written():
            if id(value) in self._uncopied:
                self._tell(
                    f"{path} of {bytes_of(value)} bytes was changed by the step, and nobody has it as it was (what is "
                    "large, or changes late, is saved from its first change on): give the search state=[...] with what "
                    "saves and loads it"
                )

    def _tell(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.append(sentence)

    def _save(self) -> list[Saved]:
        if self._looked < _ALWAYS:
            sights = [each for each in self._sights() if each.is_state()]
        else:
            leave = self._saved_otherwise()
            tried = [_tried(lambda: Sight(each, leave)) for each in self._known]
            sights = [each for each in tried if each is not None]
        if not sights:
            return []
        shapes = self._shapes()
        self._room = _TOGETHER + 2 * sum(bytes_of(t) for model in self._models for t in model.parameters())
        tried = [
            _tried(lambda: Saved(each, [self._kept(each.body, *t, shapes) for t in each.tensors])) for each in sights
        ]
        saved = [each for each in tried if each is not None]
        if self._looked < _ALWAYS:
            self._made += [weakref.ref(each) for each in saved]
        return saved

    def _forget_suspicions(self) -> None:
        """Drops the copies of what the first steps did not change, because they may be as large as a model."""
        for each in (reference() for reference in self._made):
            if each is not None and each.sight.body not in self._known:
                self._uncopied.update(id(tensor) for _, tensor in each.sight.tensors)
                each.tensors = [None] * len(each.tensors)
        self._made.clear()

    def _kept(self, body: Body, path: str, value: Any, shapes: set[tuple[int, ...]]) -> Any:
        """A copy; None where the value is large, is shaped like no weight and was never seen to change."""
        size, small = bytes_of(value), _SMALL if self._looked < _ALWAYS else _TINY
        suspected = size <= self._room and (size <= small or tuple(value.shape) in shapes)
        if path not in body.changed and not suspected:
            self._uncopied.add(id(value))
            return None
        self._room -= size
        self._uncopied.discard(id(value))
        return self._copied(value)

    def _shapes(self) -> set[tuple[int, ...]]:
        """The shapes of the weights, which averages of them have, too."""
        return {tuple(t.shape) for model in self._models for t in [*model.parameters(), *model.buffers()]}

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to(self._device or value.device, copy=True)
        return value.copy()

    def _saved_otherwise(self) -> set[int]:
        """Identities of what is saved elsewhere, or left alone."""
        ids = {id(each) for each in self._leave}
        for model in self._models:
            ids.update(id(t) for t in [*model.parameters(), *model.buffers()])
        for optimizer in self._optimizers:
            held = attributes(optimizer) or {}
            ids.update(id(held[name]) for name in _SAVED_OF_OPTIMIZERS if name in held)
            ids.update(id(t) for state in optimizer.state.values() if type(state) is dict for t in state.values())
        return ids

    def _sights(self) -> list[Sight]:
        leave = self._saved_otherwise()
        ours = {id(part) for model in self._models for part in model.modules()}
        optimizers = {id(each) for each in self._optimizers}
        left = deque((path, value, 0) for path, value in self._roots)
        seen: set[Any] = set(leave)
        sights: list[Sight] = []
        bodies: dict[Any, Body] = {}

        def look(key: Any, make: Callable[[], Body], depth: int) -> None:
            if key in seen:
                return
            seen.add(key)
            body = bodies[key] = self._bodies.get(key) or make()
            sight = _tried(lambda: Sight(body, leave))
            if sight is not None:
                sights.append(sight)
                left.extend((path, value, depth + 1) for path, value in sight.children)

        def visit(path: str, value: Any, depth: int) -> None:
            kind: Any = type(value)
            of_step = path in ("step", "self") and depth < 3  # the user's own code, wherever it is installed
            if depth > _DEPTH or id(value) in seen or issubclass(kind, type):
                return
            if kind is types.FunctionType:
                for name, key, place in variables_of(value, of_step):
                    look(key, lambda: Body(name, [place], None, True), depth)
            elif may_hold_state(kind):
                skip = _SAVED_OF_MODELS if id(value) in ours else frozenset()
                skip = _SAVED_OF_OPTIMIZERS if id(value) in optimizers else skip
                counts = of_step or issubclass(kind, STATEFUL) or not is_library(kind)
                look(id(value), lambda: Body(path, places_of_object(value, skip), value, counts), depth)
                left.extend((path, each, depth + 1) for each in methods_of(kind) if id(each) not in seen)
            elif (own_place := place_of(value)) is not None:
                look(id(value), lambda: Body(path, [own_place], value, True), depth)
            seen.add(id(value))
            own = "self" if kind is types.MethodType and path == "step" else path
            left.extend((own, each, depth + 1) for each in behind(value))

        while left and len(sights) < _BODIES:
            here = left.popleft()
            _tried(lambda: visit(*here))
        self._bodies = bodies
        return sights
