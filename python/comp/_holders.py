# SPDX-License-Identifier: Apache-2.0
"""Holders of state, which are objects or variables: what they hold, whether that has changed, how it is put back."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import pickle
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from comp._comp import SettingsError
from comp._objects import (
    SIMPLE,
    Place,
    attributes,
    copy_of_iterator,
    generator_accessors,
    is_array,
    is_iterator,
    may_hold_state,
    place_of,
    place_of_gradient,
    position_of,
    same_position,
)
from comp._plain import NotPlain, is_plain_type, plain
from comp._shards import Part, own_part

_VALUES = 50_000  # of a holder's containers, those behind so many values are not looked into
_LARGE = 1_000  # a container of more values is looked at from its ends only, until a state is saved or put back
_COMPARED = 1 << 20  # [bytes] a tensor of at most so many is compared whole, a larger one by its version and some values
_LEAVES = SIMPLE | {types.BuiltinFunctionType}
# Values that are state though their classes are the standard library's or torch's.
_VALUE_TYPES = frozenset((frozenset, range, slice, Decimal, Fraction, date, datetime, timedelta, torch.dtype, torch.device))
_CHOICES = frozenset((types.FunctionType, types.BuiltinFunctionType, types.ModuleType, functools.partial))


@dataclass(eq=False)
class Holder:
    """An object, or a variable of a function, with the containers in it: what is saved and put back as a whole."""

    path: str
    places: list[Place]
    owner: Any  # None: the holder is a variable. Kept, so that no other object gets its identity, the key
    counts: bool  # whether numbers by themselves are state
    key: Any = None  # its object's identity, or its variable's
    depth: int = 0  # steps from the roots
    changed: set[str] = field(default_factory=set)  # paths of what steps were seen to change
    others: set[str] = field(default_factory=set)  # paths of what changed between steps: the data and observers change it
    often: set[str] = field(default_factory=set)  # paths of places whose content has changed
    of_library: bool = False  # whether its object's class is a library's
    stale: bool = False  # whether it has new values that nobody has looked into

    def goes_back(self, path: str) -> bool:
        """Whether a change of what is at this path is undone: not if only others than the step were seen to change it."""
        return not self.others or _within(path, self.changed) or not _within(path, self.others)


def _within(path: str, known: set[str]) -> bool:
    return path in known or any(path.startswith((f"{each}.", f"{each}[")) for each in known)


class _FromAutograd:
    """In contents in place of what autograd made, whose graph would live as long as the content."""


def _content_of(place: Place) -> Any:
    content = place.read()
    if place.variables:
        for name in [n for n, v in content.items() if type(v) is torch.Tensor and v.grad_fn is not None]:
            content[name] = _FromAutograd
    return content


@dataclass(eq=False, slots=True)
class Reading:
    """A place of a holder, with the content that was read last. Contents are replaced, and never written into."""

    snapshot: Snapshot
    path: str
    place: Place
    content: Any

    def update(self) -> dict[str, str]:
        """Reads the place again. Returns: the path of each change, with the path of the variable, attribute or container
        that it belongs to."""
        holder, then, now = self.snapshot.holder, self.content, _content_of(self.place)
        names = _differing(self.path, then, now, not self.place.variables)
        self.content = now
        if not names:
            return {}
        if not holder.stale:
            values = now if type(now) is not dict else [now.get(name) for name in names]
            holder.stale = not _LEAVES.issuperset(map(type, values))
        called = [self.snapshot.called(self.path, name) for name in names]
        return {each: each if self.place.variables else self.path for each in called}

    def is_large(self) -> bool:
        return len(self.content) > _LARGE

    def looks_same(self) -> bool:
        """Whether a large container has its length and the same objects at its ends."""
        live: Any = self.place.live
        if not self.is_large() or type(live) not in (list, deque, dict, set, OrderedDict, defaultdict):
            return False
        if len(live) != len(self.content) or type(live) is set:
            return len(live) == len(self.content)
        if type(live) in (list, deque):
            return live[0] is self.content[0] and live[-1] is self.content[-1]
        last, before = next(reversed(live)), next(reversed(self.content))
        return last is before and live[last] is self.content[before]


class Snapshot:
    """A snapshot of a holder: its places with their contents, and the objects in it that have a state of their own."""

    def __init__(self, holder: Holder, leave: set[int]) -> None:
        self.holder = holder
        self.places: list[Reading] = []
        self.tensors: list[tuple[str, Any]] = []  # arrays, too
        self.generators: list[tuple[str, Callable[[], Any], Callable[[Any], None]]] = []  # random generators
        self.iterators: list[tuple[str, Reading, Any, Any]] = []  # with their names in the place
        self.loaders: list[tuple[str, Any]] = []  # iterators of DataLoaders
        self.children: list[tuple[str, Any]] = []
        known: set[int] = set()
        left: list[tuple[str, Place]] = [(holder.path, each) for each in holder.places]
        values = 0
        holder.stale = False
        while left:
            path, place = left.pop()
            content = _content_of(place)
            reading = Reading(self, path, place, content)
            self.places.append(reading)
            values += len(content)
            if values > _VALUES:
                continue
            for name, value in content.items() if type(content) is dict else enumerate(content):
                if is_iterator(value):
                    self.iterators.append((self.called(path, name), reading, name, value))
                else:
                    self._sort(self.called(path, name), value, left, known, leave)

    def read(self) -> None:
        for reading in self.places:
            reading.content = _content_of(reading.place)

    def called(self, path: str, name: Any) -> str:
        if name is None or (self.holder.owner is None and path == self.holder.path):
            return path
        if type(name) is str and (name.isidentifier() or name.isdigit()):
            return path if name in ("_parameters", "_buffers", "_modules") else f"{path}.{name}"
        return f"{path}[{name!r}]" if type(name) in SIMPLE else f"{path}[...]"

    def _sort(self, path: str, value: Any, left: list[tuple[str, Place]], known: set[int], leave: set[int]) -> None:
        kind: Any = type(value)
        if kind in _LEAVES or id(value) in known or id(value) in leave:
            return
        known.add(id(value))
        if issubclass(kind, torch.Tensor) or is_array(value):
            if _has_values(value):
                self.tensors.append((path, value))
                own_module = issubclass(type(self.holder.owner), nn.Module)
                if isinstance(value, torch.Tensor) and value.requires_grad and not own_module:
                    left.append((path, place_of_gradient(value)))
            elif (place := place_of(value)) is not None:
                left.append((path, place))
        elif issubclass(kind, tuple):
            for i, each in enumerate(tuple.__iter__(value)):
                self._sort(f"{path}[{i}]", each, left, known, leave)
        elif issubclass(kind, _BaseDataLoaderIter):
            self.loaders.append((path, value))
        elif (generators := generator_accessors(value)) is not None:
            self.generators.append((path, *generators))
        elif may_hold_state(kind) or (place := place_of(value)) is None:
            self.children.append((path, value))
        else:
            left.append((path, place))

    def is_state(self) -> bool:
        return self.holder.counts or bool(self.tensors or self.generators)


def _is_number(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return type(value) in SIMPLE or (numpy is not None and issubclass(type(value), numpy.generic))


def _has_values(value: Any) -> bool:
    """Whether a tensor or array may live from step to step. What autograd made does not."""
    if not isinstance(value, torch.Tensor):
        return not value.dtype.hasobject
    return value.grad_fn is None and value.layout is torch.strided and value.device.type != "meta"


def bytes_of(value: Any) -> int:
    return int(own_part(value).nbytes)


def version_of(value: Any) -> int:
    """How often a tensor was written, but for writes to its `.data`; 0 for arrays."""
    return versions_of([own_part(value)])[0] if counts_writes(value) else 0


def counts_writes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not own_part(value).is_inference()


def versions_of(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor._version.__get__, tensors))  # type: ignore[attr-defined]


def fingerprint_of(value: Any) -> tuple[Any, ...]:
    """How often a tensor or array was written, and some of its values, because writes to `.data` are not counted."""
    version, value = version_of(value), own_part(value)
    shape, tensor = tuple(value.shape), isinstance(value, torch.Tensor)
    each = {0: 1, 1: 256, 2: 16, 3: 6}.get(len(shape), 4)  # values of a dimension
    part = tuple(slice(None, None, max(1, size // each)) for size in shape)
    if not tensor:
        return version, shape, value[part].tobytes()
    few = value.detach()[part].resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    return version, shape, few.numpy().tobytes()


def _state_bytes(state: Any) -> bytes:
    return bytes(state.numpy().tobytes()) if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _is_state(value: Any) -> bool:
    """Whether a value is state, so that it matters if another value takes its place."""
    kind: Any = type(value)
    if issubclass(kind, torch.Tensor) or is_array(value):
        return _has_values(value)
    if value is None or issubclass(kind, type):
        return False
    holds = issubclass(kind, (tuple, RemovableHandle)) or generator_accessors(value) is not None or place_of(value) is not None
    return _is_number(value) or holds or is_iterator(value) or may_hold_state(kind) or kind in _VALUE_TYPES


def _differ(a: Any, b: Any, deep: int = 3) -> bool:
    if a is b:
        return False
    kind: Any = type(a)
    if kind is type(b):
        if kind in SIMPLE:
            return bool(a != b and (a == a or b == b))
        if kind is tuple and len(a) == len(b) and deep > 0:
            return any(_differ(x, y, deep - 1) for x, y in zip(a, b))
        if kind is types.MethodType:
            return a.__func__ is not b.__func__ or a.__self__ is not b.__self__
        if kind in _CHOICES or issubclass(kind, type):  # one takes the place of another; none is made by the way
            return True
    return _is_state(a) or _is_state(b)


def _differing(path: str, then: Any, now: Any, ordered: bool) -> list[Any]:
    """The names or indices at which two contents differ; [None] if their lengths or, `ordered`, their orders differ. Hooks
    count as state, since libraries remember in an attribute that they have registered them: both go back, or neither."""
    if type(then) is not dict:
        if len(then) == len(now):
            return [i for i, (a, b) in enumerate(zip(then, now)) if a is not b and _differ(a, b)]
        return [None]
    hooks = path.endswith("_hooks")
    names = [name for name in then if name not in now and (hooks or _is_state(then[name]))]
    names += [name for name in now if name not in then and (hooks or _is_state(now[name]))]
    names += [name for name in then if name in now and then[name] is not now[name] and _differ(then[name], now[name])]
    moved = ordered and not names and len(then) == len(now) and not all(map(operator.is_, then, now))
    return [None] if moved else names


class Fingerprints:
    """What the tensors, generators and iterators of a holder held at one time, so that a change shows."""

    def __init__(self, snapshot: Snapshot, tensors: bool) -> None:
        self.snapshot = snapshot
        self.tensors = [fingerprint_of(value) for _, value in snapshot.tensors] if tensors else []
        self.generators = [_state_bytes(read()) for _, read, _ in snapshot.generators]
        self.iterators = [position_of(value) for *_, value in snapshot.iterators]
        self.loaders = [_drawn(value) for _, value in snapshot.loaders]

    def changed(self) -> list[tuple[str, Any]]:
        """The paths of tensors that were written and of iterators that have moved, with these, and those of random
        generators, with None."""
        snapshot = self.snapshot
        found = [each for each, then in zip(snapshot.tensors, self.tensors) if fingerprint_of(each[1]) != then]
        drawn = zip(snapshot.generators, self.generators)
        found += [(path, None) for (path, read, _), then in drawn if _state_bytes(read()) != then]
        moved = zip(snapshot.iterators, self.iterators)
        return found + [(path, it) for (path, *_, it), then in moved if not same_position(position_of(it), then)]

    def drawn_from(self) -> list[str]:
        return [path for (path, value), then in zip(self.snapshot.loaders, self.loaders) if _drawn(value) != then]


def _drawn(iterator: Any) -> Any:
    return (attributes(iterator) or {}).get("_num_yielded")


class Copy:
    """A tensor's or array's values at one time. Saved states share it as long as the values stay."""

    def __init__(self, value: Any, copy: Any) -> None:
        self.value = value
        self.copy = copy
        self.fingerprint = fingerprint_of(value)

    def holds(self) -> bool:
        """Whether the values are still these."""
        value, copy = own_part(self.value), own_part(self.copy)
        if self.fingerprint[0] != version_of(value) or self.fingerprint[1] != tuple(value.shape):
            return False
        if not isinstance(value, torch.Tensor):
            small = value.nbytes <= _COMPARED
            return bool(value.tobytes() == copy.tobytes()) if small else self.fingerprint == fingerprint_of(value)
        whole = value.device.type == copy.device.type == "cpu" and value.nbytes <= _COMPARED and value.is_contiguous()
        if not whole or not copy.is_contiguous() or value.is_conj() or value.is_neg():
            return self.fingerprint == fingerprint_of(value)
        a, b = value.detach().reshape(-1).view(torch.uint8), copy.reshape(-1).view(torch.uint8)
        return torch.equal(a, b)

    def put_back(self) -> None:
        value, then = self.value, self.copy
        if isinstance(value, torch.Tensor):
            if value.shape != then.shape:
                value.data = then.to(value.device, copy=True)
        elif value.shape != then.shape:
            value.resize(then.shape, refcheck=False)
        _assign(value, then)


class SavedState:
    """A holder with copies of what it holds. `copies`: of its tensors; None: not copied."""

    def __init__(self, snapshot: Snapshot, copies: list[Copy | None]) -> None:
        self.snapshot = snapshot
        self.contents = [reading.content for reading in snapshot.places]
        self.copies = copies
        self.generators = [read() for _, read, _ in snapshot.generators]
        self.iterators = [(position_of(each), _copied(each)) for *_, each in snapshot.iterators]

    def put_back(self, renewed: dict[int, Any]) -> list[str]:
        """`renewed`: what has taken the place of iterators that were found in several places, by their identity.
        Returns: the paths of what was put back."""
        snapshot, holder = self.snapshot, self.snapshot.holder
        undone: list[str] = []
        for reading, then in zip(snapshot.places, self.contents):
            if reading.content is not then:
                undone += self._put_content(reading, then)
        with torch.no_grad():
            for (path, _), each in zip(snapshot.tensors, self.copies):
                # What did not change may be a batch, which must not be written.
                if each is not None and holder.goes_back(path) and not each.holds():
                    each.put_back()
                    undone.append(path)
        for (path, read, write), state in zip(snapshot.generators, self.generators):
            if holder.goes_back(path) and (path in holder.changed or _state_bytes(read()) != _state_bytes(state)):
                write(state)
        for (path, reading, name, each), (position, copy) in zip(snapshot.iterators, self.iterators):
            if copy is not None and holder.goes_back(path) and not same_position(position_of(each), position):
                new = renewed.setdefault(id(each), copy_of_iterator(copy))
                content = reading.place.read()
                content[name] = new
                reading.place.write(content)
                reading.content = _content_of(reading.place)
                holder.stale = True
        return undone

    def _put_content(self, reading: Reading, then: Any) -> list[str]:
        """Puts back what differs. What autograd made, say, is not put back."""
        snapshot, now, variables = self.snapshot, reading.place.read(), reading.place.variables
        goes_back = snapshot.holder.goes_back
        # A dict, because a key may be a tensor, which a list would compare.
        names = dict.fromkeys(
            name
            for name in _differing(reading.path, then, now, not variables)
            if goes_back(snapshot.called(reading.path, name))
            and (then.get(name) is not _FromAutograd if variables else goes_back(reading.path))
        )
        if type(then) is dict and None not in names:
            put = {name: value for name, value in now.items() if name in then or name not in names}
            put.update((name, then[name]) for name in names if name in then)
            # The order of what a container holds goes back, too; what differs and is no state keeps its place.
            put = put if variables or put.keys() != then.keys() else {name: put[name] for name in then}
        else:
            put = then
        if names:
            reading.place.write(put)
        reading.content = _content_of(reading.place)
        return [snapshot.called(reading.path, name) for name in names] if variables else [reading.path] * bool(names)


def _copied(iterator: Any) -> Any:
    try:
        return copy_of_iterator(iterator)
    except Exception:
        return None


def _tensors_in(value: Any) -> list[Any]:
    place = place_of(value)
    content = [value] if place is None else place.read()
    values = content.values() if type(content) is dict else content
    return [v for v in values if (isinstance(v, torch.Tensor) or is_array(v)) and _has_values(v)]


def _assign(value: Any, then: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.detach().copy_(then)
    else:
        value[...] = then


class Flat:
    """Many places at one time. Whether any has changed shows at the cost of comparing identities."""

    def __init__(self, places: list[Reading]) -> None:
        groups: dict[Any, list[Any]] = {}
        self.alone: list[Reading] = []
        """Those that have to be read one by one."""
        self._readings: list[Reading] = []
        for each in places:
            group = _group_of(each)
            (self.alone if group is None else self._readings).append(each)
            groups.setdefault(group, []).append(each.place.live)
            if group in _VALUES_OF and not each.place.variables:
                groups.setdefault("keys", []).append(each.place.live)
        groups.pop(None, None)
        cells, variables = groups.pop(types.CellType, []), groups.pop(tuple, [])
        self._sized = [each for group in groups.values() for each in group]
        self._lengths = list(map(len, self._sized))
        self._rows: list[Callable[[], Any]] = [
            functools.partial(_row, _VALUES_OF.get(kind), group) for kind, group in groups.items()
        ]
        if cells:
            self._rows.append(lambda: map(_cell_contents, cells))
        if variables:
            names = [names for names, _ in variables], [name for _, name in variables]
            self._rows.append(lambda: map(dict.get, *names))
        self._objects = list(itertools.chain(*[each() for each in self._rows]))

    def moved(self) -> list[Reading]:
        """The places that hold something else than they did, but for those in `alone`."""
        with contextlib.suppress(ValueError):  # a variable was deleted
            if list(map(len, self._sized)) == self._lengths and all(
                map(operator.is_, itertools.chain(*[each() for each in self._rows]), self._objects)
            ):
                return []
        return [each for each in self._readings if not _is_same(each.content, each.place.read())]


def _row(values: Any, live: list[Any]) -> Any:
    return itertools.chain.from_iterable(live if values is None else map(values, live))


def _is_same(a: Any, b: Any) -> bool:
    """Whether two contents have the same objects in the same order."""
    if len(a) != len(b) or type(a) is not type(b):
        return False
    values = (a.values(), b.values()) if type(a) is dict else (a, b)
    return all(map(operator.is_, *values)) and (type(a) is not dict or all(map(operator.is_, a, b)))


_cell_contents = operator.attrgetter("cell_contents")
_VALUES_OF: dict[Any, Any] = {
    dict: dict.values,
    defaultdict: dict.values,
    Counter: dict.values,
    OrderedDict: OrderedDict.values,
    types.MappingProxyType: types.MappingProxyType.values,
}


def _group_of(reading: Reading) -> Any:
    """What a place is read together with; None if it is read by itself."""
    kind: Any = type(reading.place.live)
    if kind is types.CellType:
        return kind if reading.content else None
    known = kind is tuple or ((kind in _VALUES_OF or kind in (list, deque, set)) and not reading.is_large())
    return kind if known else None


def _plain(value: Any, path: str) -> Any:
    """A value as another process can read it. Raises: NotPlain if it holds objects."""
    kind: Any = type(value)
    if isinstance(value, torch.Tensor) and _has_values(value):
        copy = own_part(value).detach().cpu().clone()
        return copy if own_part(value) is value else Part(copy)
    if is_array(value) and _has_values(value):
        return value.copy()
    if kind in (list, tuple, set):
        return kind(_plain(each, path) for each in value)
    if kind is deque:
        return deque((_plain(each, path) for each in value), value.maxlen)
    if kind in (dict, OrderedDict, defaultdict, Counter):
        copy = value.copy()
        copy.update((key, _plain(each, path)) for key, each in value.items() if type(each) not in SIMPLE)
        return copy
    place = place_of(value)
    if place is None or may_hold_state(kind):
        if is_plain_type(kind):
            return value
        raise NotPlain(f"{path} is or holds a {kind.__name__}")
    return _plain(place.read(), path)


def plain_state(snapshot: Snapshot, shapes: set[tuple[int, ...]], lacks: list[str]) -> tuple[list[Any], list[Any]]:
    """What steps change of a holder, and what is shaped like weights, for a file: first of each place, then of each
    random generator. Objects in the holder are holders of their own. `lacks` gets what is of no plain type."""
    contents, holder = [], snapshot.holder
    for place in holder.places:
        content, kept = place.read(), {}
        for name, value in content.items() if type(content) is dict else [("", content)]:
            path = snapshot.called(holder.path, name if type(content) is dict else None)
            changes = _within(path, holder.changed) or any(each.startswith((f"{path}.", f"{path}[")) for each in holder.changed)
            if changes or any(tuple(t.shape) in shapes for t in _tensors_in(value)):
                try:
                    kept[name] = _plain(value, path)
                    plain(kept[name], path)
                except NotPlain as error:
                    kept.pop(name, None)
                    if path in holder.changed and (isinstance(value, Enum) or not may_hold_state(type(value))):
                        lacks.append(str(error))
        contents.append(kept)
    return contents, [read() for _, read, _ in snapshot.generators]


def _merged(now: Any, then: Any) -> Any:
    """`then`, written into the tensors and containers of `now` if they fit. Raises: SettingsError for a Part of a tensor
    that is not spread here."""
    if isinstance(then, Part):
        if own_part(now) is now:
            raise SettingsError(
                "the checkpoint has this rank's part of a tensor that the step does not have now (nobody says how it is "
                "spread over ranks): make it before comp.resume, as it was"
            )
        _merged(own_part(now), then.values)
        return now
    if isinstance(now, torch.Tensor) or is_array(now):
        if type(now) is type(then) and now.shape == then.shape:
            with torch.no_grad():
                _assign(now, then)
            return now
        return then.to(now.device) if isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor) else then
    place, other = place_of(now), place_of(then)
    if place is None or other is None:
        return then
    here, there = place.read(), other.read()
    if type(here) is type(there) is dict:
        place.write({key: _merged(here.get(key), each) for key, each in there.items()})
    elif type(here) is type(there) is list:
        place.write(_merged_lists(here, there))
    return now


def _merged_lists(now: list[Any], then: list[Any]) -> list[Any]:
    return [_merged(*both) for both in zip([*now, *[None] * len(then)], then)]


def put_plain_state(snapshot: Snapshot, state: tuple[list[Any], list[Any]]) -> None:
    """Puts back what plain_state() gave of this holder, perhaps in another process."""
    contents, generators = state
    for place, then in zip(snapshot.holder.places, contents):
        now = place.read()
        if type(now) is dict:
            place.write({**now, **{name: _merged(now.get(name), each) for name, each in then.items()}})
        elif "" in then:
            place.write(_merged_lists(now, then[""]))
    for (_, _, write), each in zip(snapshot.generators, generators):
        write(each)
