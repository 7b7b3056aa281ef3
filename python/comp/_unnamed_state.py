# SPDX-License-Identifier: Apache-2.0
"""Finds state that nobody named: compares the objects that a step reaches before and after some steps. What the step
changes among them is then saved and put back with the rest. A list of the user's would have only what he thought of."""

from __future__ import annotations

import itertools
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from comp._comp import SettingsError
from comp._holders import (
    Copy,
    Fingerprints,
    Flat,
    Holder,
    Reading,
    SavedState,
    Snapshot,
    bytes_of,
    counts_writes,
    plain_state,
    put_plain_state,
    versions_of,
)
from comp._objects import (
    STATEFUL,
    attributes,
    behind,
    copy_of_iterator,
    is_installed,
    is_iterator,
    is_library,
    may_hold_state,
    methods_of,
    names_of_own,
    own_classes,
    place_of,
    place_of_names,
    places_of_object,
    variables_of,
)
from comp._shards import own_part

_HOLDERS, _DEPTH = 5_000, 20  # at most so many holders are looked at, and so deep
# [bytes] of tensors that are copied before a step was seen to change them: each, and all beside twice the weights
_SMALL, _TOGETHER = 1 << 20, 64 << 20
_FIRST = 3  # steps before and after which values of tensors are looked at, too
_SAVED_OF_MODELS = frozenset(("_parameters", "_buffers"))
_SAVED_OF_OPTIMIZERS = frozenset(("state", "param_groups", "_opt_called"))


def _tried(work: Callable[[], Any]) -> Any:
    """The result of `work`; None if it raises: what an object holds that cannot be looked at is left as it is."""
    try:
        return work()
    except Exception:
        return None


def _key(holder: Holder) -> tuple[str, bool]:
    """A holder's key in a file. A variable and the object in it have the same path, so the path alone is none."""
    return holder.path, holder.owner is None


class UnnamedState:
    """Looks at what a step reaches: its variables and those of functions that it calls, its object, models and
    optimizers. What it cannot look at, it leaves alone, and raises nothing.

    A saved state has the contents of all holders, which are references, and copies of tensors, which states share while the
    values stay. Identities are compared before and after each step for the user's own objects and variables, so that the
    step's changes are told from those of the data and of observers. Library objects are compared when a state is saved
    or put back."""

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
        self._holders: dict[Any, Holder] = {}
        self._now: dict[Holder, Snapshot] = {}  # what the holders that are state held when that was looked at last
        self._walked = 0  # holders that the last walk from the roots has found
        self._known: dict[Holder, None] = {}  # holders that a step was seen to change
        self._copies: dict[int, Copy] = {}  # of tensors as they are now, by identity
        self._copied_once = False
        self._room = 0  # [bytes] left for copies of what no step was seen to change
        self._steps = 0
        self._own, self._rest = Flat([]), Flat([])  # places of the user's own holders, and of libraries'
        self._often: list[Reading] = []  # places of both whose content has changed before, which are read one by one
        self._written: list[tuple[Holder, str, Any]] = []  # tensors of the user's own holders
        self._tensors: list[torch.Tensor] = []  # these, as far as they are on this rank
        self._versions: list[int] = []
        self._fingerprints: list[Fingerprints] = []
        self.found: dict[str, None] = {}
        """What steps change and nobody named, in the order in which it was found."""
        self.sentences: list[str] = []
        """What cannot be put back, in sentences."""

    def save(self) -> list[SavedState]:
        return _tried(self._save) or []

    def restore(self, saved: list[SavedState]) -> None:
        _tried(lambda: self._compare(False, True))
        renewed: dict[int, Any] = {}
        other = False
        for each in saved:
            holder = each.snapshot.holder
            if self._now.get(holder) is not each.snapshot:
                _tried(each.snapshot.read)
                self._now[holder], self._holders[holder.key] = each.snapshot, holder
                other = True
            undone = _tried(lambda: each.put_back(renewed))
            if undone is not None:
                late = [path for path in undone if path not in holder.changed]
                self._learn(holder, dict(zip(late, late)), True)
            else:
                self._tell(
                    f"{holder.path} could not be put back (rejected plans have changed it): give the search "
                    "state=[...] with what saves and loads it"
                )
        _tried(self._watch if other else self._take_fingerprints)

    def around(self, step: Callable[[], Any]) -> Any:
        """Runs a step, and learns what it changes, also when it raises."""
        if not self._now:
            _tried(self._look)
        _tried(lambda: self._compare(False))
        try:
            return step()
        finally:
            self._steps += 1
            _tried(lambda: self._compare(True, self._steps <= _FIRST))
            if self._steps <= _FIRST:
                _tried(self._look_again)
            if self._steps == _FIRST:
                _tried(self._take_fingerprints)

    def plain_state(self) -> dict[tuple[str, bool], Any]:
        """What steps change and nobody named, by paths, for a file."""
        _tried(lambda: self._compare(False, True))
        leave, shapes, lacks = self._saved_otherwise(), self._shapes(), list[str]()
        state = {_key(b): (sorted(b.changed), *plain_state(Snapshot(b, leave), shapes, lacks)) for b in self._known}
        for each in lacks:
            self._tell(
                f"{each}, which the checkpoint lacks (it has tensors and plain data, which run nothing when they are read): "
                "set it before comp.resume, or have the step change a number or a string"
            )
        return state

    def put_plain_state(self, state: Mapping[tuple[str, bool], Any]) -> None:
        """Puts back what plain_state() gave. Raises: SettingsError if this training lacks what that one had."""
        self._look()
        snapshots = {_key(snapshot.holder): snapshot for snapshot in reversed(self._now.values())}
        for key, each in state.items():
            if key not in snapshots:
                raise SettingsError(
                    f"the checkpoint has a state of {key[0]}, and nothing that this step reaches is called that (it "
                    "would not go on as it was): give the step of that training"
                )
            put_plain_state(snapshots[key], each[1:])
            self._known[snapshots[key].holder] = None
            snapshots[key].holder.changed.update(each[0])
        self._look()

    def _save(self) -> list[SavedState]:
        if not self._now:
            self._look()
        else:
            self._compare(False, True)
            self._look_again()
        shapes, kept = self._shapes(), {}
        self._room = _TOGETHER + 2 * sum(bytes_of(t) for model in self._models for t in model.parameters())
        saved = []
        for snapshot in self._now.values():
            copies = [self._copy_of(snapshot.holder, path, value, shapes) for path, value in snapshot.tensors]
            kept.update((id(each.value), each) for each in copies if each is not None)
            each = _tried(lambda: SavedState(snapshot, copies))
            if each is not None:
                saved.append(each)
        self._copies, self._copied_once = kept, True
        return saved

    def _compare(self, by_step: bool, whole: bool = False) -> None:
        """Learns what has changed since the last time. `whole`: also in what is not looked at around each step, which only
        a step can have changed."""
        often = self._often
        moved = self._own.moved() + (self._rest.moved() if whole else [])
        if moved:
            for reading in moved:
                reading.snapshot.holder.often.add(reading.path)
            self._arrange()
        for reading in itertools.chain(self._own.alone, often, moved):
            self._update(reading, by_step, whole)
        if whole:
            for reading in self._rest.alone:
                self._update(reading, True, whole)
        self._compare_tensors(by_step)
        for i, fingerprints in enumerate(self._fingerprints):
            _tried(lambda: self._compare_fingerprints(i, fingerprints, by_step))

    def _update(self, reading: Reading, by_step: bool, whole: bool) -> None:
        holder = reading.snapshot.holder
        in_step = by_step or holder.of_library
        if not whole:
            if holder.of_library or (not reading.place.variables and reading.path in holder.changed) or reading.looks_same():
                return
        elif reading.is_large() or (not reading.place.variables and reading.path in holder.changed):
            in_step = True
        paths = _tried(reading.update)
        if paths:
            self._learn(holder, paths, in_step)

    def _learn(self, holder: Holder, paths: Mapping[str, str], by_step: bool) -> None:
        if not paths or not by_step:
            holder.others.update(paths.values())
            return
        self._known[holder] = None
        holder.changed.update(paths.values())
        self.found.update(dict.fromkeys(paths))

    def _compare_tensors(self, by_step: bool) -> None:
        versions = versions_of(self._tensors)
        if versions != self._versions:
            for (holder, path, value), now, then in zip(self._written, versions, self._versions):
                if now != then:
                    self._learn_of_tensor(holder, path, value, by_step)
            self._versions = versions

    def _compare_fingerprints(self, i: int, fingerprints: Fingerprints, by_step: bool) -> None:
        if by_step:
            for path in fingerprints.drawn_from():
                self._tell(
                    f"the step draws from {path}, an iterator of a DataLoader (it does not go back, so each plan trains on "
                    "other batches): let `data` give these batches, too"
                )
        changed = fingerprints.changed()
        for path, value in changed:
            if is_iterator(value):
                self._learn(fingerprints.snapshot.holder, {path: path}, by_step)
                if by_step and _tried(lambda: copy_of_iterator(value)) is None:
                    self._tell(
                        f"the step draws from {path}, a {type(value).__name__} (it does not go back, so each plan is given "
                        "other values): let `data` give them, too, or make it an object whose attributes say where it is"
                    )
            else:
                self._learn_of_tensor(fingerprints.snapshot.holder, path, value, by_step)
        if changed or fingerprints.loaders:
            self._fingerprints[i] = Fingerprints(fingerprints.snapshot, self._steps < _FIRST)

    def _learn_of_tensor(self, holder: Holder, path: str, value: Any, by_step: bool) -> None:
        self._learn(holder, {path: path}, by_step)
        if by_step and value is not None and self._copied_once and id(value) not in self._copies:
            self._tell(
                f"{path} of {bytes_of(value)} bytes was changed by the step, and nobody has it as it was (what is "
                "large is saved from its first change on): give the search state=[...] with what saves and loads it"
            )

    def _tell(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def _look(self) -> None:
        """Walks from the roots."""
        self._holders, before = {}, self._holders
        self._now = {}
        self._add(self._walk([(path, value, 0) for path, value in self._roots], before))
        self._walked = len(self._holders)
        self._watch()

    def _look_again(self) -> None:
        """Walks on from what is new."""
        stale = [holder for holder in self._now if holder.stale]
        if not stale:
            return
        if len(self._holders) > 2 * self._walked + 100:
            self._look()  # and leaves out what is no longer reached
            return
        leave = self._saved_otherwise()
        new: list[tuple[str, Any, int]] = []
        for holder in stale:
            snapshot = _tried(lambda: Snapshot(holder, leave))
            if snapshot is not None:
                self._now[holder] = snapshot
                new += [(path, value, holder.depth + 1) for path, value in snapshot.children]
        self._add(self._walk(new, {}))
        self._watch()

    def _add(self, snapshots: list[Snapshot]) -> None:
        self._now.update((snapshot.holder, snapshot) for snapshot in snapshots if snapshot.is_state())

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the step reaches."""
        values = (value for snapshot in self._now.values() for _, value in snapshot.tensors)
        return [own_part(value) for value in values if isinstance(value, torch.Tensor)]

    def _watch(self) -> None:
        """Takes what the holders hold now for what the next comparison begins with."""
        self._arrange()
        self._take_fingerprints()

    def _arrange(self) -> None:
        self._often, own, rest = [], [], []
        for holder, snapshot in self._now.items():
            for reading in snapshot.places:
                few = self._often if reading.path in holder.often else rest if holder.of_library else own
                few.append(reading)
        self._own, self._rest = Flat(own), Flat(rest)

    def _take_fingerprints(self) -> None:
        snapshots, first = self._now.values(), self._steps < _FIRST
        own = [snapshot for snapshot in snapshots if not snapshot.holder.of_library]
        counted = [(each.holder, path, value) for each in own for path, value in each.tensors if counts_writes(value)]
        self._written, self._tensors = counted, [own_part(value) for *_, value in counted]
        self._versions = versions_of(self._tensors)
        some = [each for each in snapshots if first or each.generators or each.iterators or each.loaders]
        all_of_them = [_tried(lambda: Fingerprints(each, first)) for each in some]
        self._fingerprints = [each for each in all_of_them if each is not None]

    def _copy_of(self, holder: Holder, path: str, value: Any, shapes: set[tuple[int, ...]]) -> Copy | None:
        """A copy; None when the value is large, is shaped like no weight and was never seen to change."""
        size, changes = bytes_of(value), path in holder.changed
        if not changes and not (size <= self._room and (size <= _SMALL or tuple(value.shape) in shapes)):
            return None
        self._room -= size
        known = self._copies.get(id(value))
        if known is not None and known.value is value:
            if _tried(known.holds):
                return known
            if not changes and holder.goes_back(path):
                self._learn(holder, {path: path}, True)
        return _tried(lambda: Copy(value, self._copied(value, changes)))

    def _shapes(self) -> set[tuple[int, ...]]:
        """The shapes of the weights, which averages of them have, too."""
        return {tuple(t.shape) for model in self._models for t in [*model.parameters(), *model.buffers()]}

    def _copied(self, value: Any, changes: bool) -> Any:
        """What no step was seen to change lies in the CPU's memory, since its copy may never be needed."""
        if not isinstance(value, torch.Tensor):
            return value.copy()
        stays = changes or own_part(value) is not value
        return value.detach().to(self._device or (value.device if stays else "cpu"), copy=True)

    def _saved_otherwise(self) -> set[int]:
        """Identities of what is saved elsewhere, or left alone."""
        ids = {id(each) for each in self._leave}
        for model in self._models:
            ids.update(id(t) for t in [*model.parameters(), *model.buffers()])
        for optimizer in self._optimizers:
            fields = attributes(optimizer) or {}
            ids.update(id(fields[name]) for name in _SAVED_OF_OPTIMIZERS if name in fields)
            ids.update(id(t) for state in optimizer.state.values() if type(state) is dict for t in state.values())
        return ids

    def _walk(self, start: list[tuple[str, Any, int]], before: Mapping[Any, Holder]) -> list[Snapshot]:
        """Finds holders that are not yet among the known. `before`: holders of an earlier walk, which go on."""
        leave = self._saved_otherwise()
        ours = {id(part) for model in self._models for part in model.modules()}
        optimizers = {id(each) for each in self._optimizers}
        left = deque(start)
        visited: set[Any] = leave | self._holders.keys()
        snapshots: list[Snapshot] = []

        def look(key: Any, make: Callable[[], Holder], depth: int, of_library: bool = False) -> None:
            if key in visited:
                return
            visited.add(key)
            holder = self._holders[key] = before.get(key) or make()
            holder.key, holder.depth, holder.of_library = key, depth, of_library
            snapshot = _tried(lambda: Snapshot(holder, leave))
            if snapshot is not None:
                snapshots.append(snapshot)
                left.extend((path, value, depth + 1) for path, value in snapshot.children)

        def visit(path: str, value: Any, depth: int) -> None:
            kind: Any = type(value)
            of_step = path in ("step", "self") and depth < 3  # the user's own code, wherever it is installed
            if depth > _DEPTH or id(value) in visited:
                return
            if issubclass(kind, type) or kind is types.ModuleType:
                names = names_of_own(value)
                if names is not None:
                    look(id(value), lambda: Holder(path, [place_of_names(value, names)], value, True), depth)
            elif kind is types.FunctionType:
                for name, key, place in variables_of(value, of_step):
                    look(key, lambda: Holder(name, [place], None, True), depth)
                if not is_installed(value.__code__.co_filename):
                    name = value.__qualname__.replace("<locals>.", "")  # a method's path is its object's already
                    look(id(value), lambda: Holder(name, places_of_object(value, frozenset()), value, True), depth)
            elif may_hold_state(kind):
                skip = _SAVED_OF_MODELS if id(value) in ours else frozenset()
                skip = _SAVED_OF_OPTIMIZERS if id(value) in optimizers else skip
                library = is_library(kind) and not of_step
                counts = not library or issubclass(kind, STATEFUL) or place_of(value) is not None
                look(id(value), lambda: Holder(path, places_of_object(value, skip), value, counts), depth, library)
                left.extend((path, each, depth + 1) for each in methods_of(kind) if id(each) not in visited)
                left.extend((each.__name__, each, depth + 1) for each in own_classes(kind) if id(each) not in visited)
            elif (own_place := place_of(value)) is not None:
                look(id(value), lambda: Holder(path, [own_place], value, True), depth)
            visited.add(id(value))
            own = "self" if kind is types.MethodType and path == "step" else path
            left.extend((own, each, depth + 1) for each in behind(value))

        while left and len(self._holders) < _HOLDERS:
            here = left.popleft()
            _tried(lambda: visit(*here))
        return snapshots
