# SPDX-License-Identifier: Apache-2.0
"""Bodies of state, which are objects or variables: what they hold, whether that has changed, how it is put back."""

from __future__ import annotations

import contextlib
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from comp._comp import SettingsError
from comp._objects import SIMPLE, Place, attributes, dice_of, may_hold_state, place_of
from comp._shards import Part, own_part

_VALUES = 50_000  # a body that has more is not looked at
_LEAVES = SIMPLE | {types.ModuleType, types.BuiltinFunctionType}


class TooLarge(Exception):
    pass


class Body:
    """An object, or a variable of a function, with the containers in it: what is saved and put back as a whole."""

    def __init__(self, path: str, places: list[Place], owner: Any, counts: bool) -> None:
        self.path = path
        self.places = places
        self.owner = owner  # None: the body is a variable. Held, so that no other object gets its identity, the key
        self.counts = counts  # whether numbers by themselves are state
        self.changed: set[str] = set()  # paths of what steps were seen to change; the data may change the rest


class Sight:
    """What a body holds at one time: its places with their contents, and what has a state of its own."""

    def __init__(self, body: Body, leave: set[int]) -> None:
        self.body = body
        self.places: list[tuple[str, Place, Any]] = []
        self.tensors: list[tuple[str, Any]] = []  # arrays, too
        self.dice: list[tuple[str, Callable[[], Any], Callable[[Any], None]]] = []
        self.iterators: list[tuple[str, Any]] = []
        self.children: list[tuple[str, Any]] = []
        known: set[int] = set()
        left: list[tuple[str, Place]] = [(body.path, each) for each in body.places]
        values = 0
        while left:
            path, place = left.pop()
            content = place.read()
            self.places.append((path, place, content))
            values += len(content)
            if values > _VALUES:
                raise TooLarge
            for name, value in content.items() if type(content) is dict else enumerate(content):
                self._sort(self.called(path, name), value, left, known, leave)

    def called(self, path: str, name: Any) -> str:
        if name is None or (self.body.owner is None and path == self.body.path):
            return path
        if type(name) is str and (name.isidentifier() or name.isdigit()):
            return path if name in ("_parameters", "_buffers", "_modules") else f"{path}.{name}"
        return f"{path}[{name!r}]" if type(name) in SIMPLE else f"{path}[...]"

    def _sort(self, path: str, value: Any, left: list[tuple[str, Place]], known: set[int], leave: set[int]) -> None:
        kind: Any = type(value)
        if kind in _LEAVES or id(value) in known or id(value) in leave:
            return
        known.add(id(value))
        if issubclass(kind, torch.Tensor) or _is_array(value):
            if _has_values(value):
                self.tensors.append((path, value))
        elif issubclass(kind, tuple):
            for i, each in enumerate(tuple.__iter__(value)):
                self._sort(f"{path}[{i}]", each, left, known, leave)
        elif issubclass(kind, _BaseDataLoaderIter):
            self.iterators.append((path, value))
        elif (dice := dice_of(value)) is not None:
            self.dice.append((path, *dice))
        elif may_hold_state(kind) or (place := place_of(value)) is None:
            self.children.append((path, value))
        else:
            left.append((path, place))

    def is_state(self) -> bool:
        return self.body.counts or bool(self.tensors or self.dice)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


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


def _mark(value: Any) -> tuple[int, bytes]:
    """How often a tensor or array was written, and some of its values, because writes to `.data` are not counted."""
    value = own_part(value)
    shape, tensor = tuple(value.shape), isinstance(value, torch.Tensor)
    each = {0: 1, 1: 256, 2: 16, 3: 6}.get(len(shape), 4)  # values of a dimension
    part = tuple(slice(None, None, max(1, size // each)) for size in shape)
    if not tensor:
        return 0, value[part].tobytes()
    few = value.detach()[part].resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    return 0 if value.is_inference() else value._version, few.numpy().tobytes()


def _state_bytes(state: Any) -> bytes:
    return bytes(state.numpy().tobytes()) if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _is_state(value: Any) -> bool:
    """Whether a value is state, so that it matters where another value has taken its place."""
    kind: Any = type(value)
    if issubclass(kind, torch.Tensor) or _is_array(value):
        return _has_values(value)
    if value is None or issubclass(kind, type):
        return False
    holds = issubclass(kind, (tuple, RemovableHandle)) or dice_of(value) is not None or place_of(value) is not None
    return _is_number(value) or holds or may_hold_state(kind)


def _differ(a: Any, b: Any, deep: int = 3) -> bool:
    if a is b:
        return False
    if type(a) is type(b) and type(a) in SIMPLE:
        return bool(a != b and (a == a or b == b))
    if type(a) is type(b) is tuple and len(a) == len(b) and deep > 0:
        return any(_differ(x, y, deep - 1) for x, y in zip(a, b))
    return _is_state(a) or _is_state(b)


def _differing(path: str, then: Any, now: Any) -> list[Any]:
    """The names or indices at which two contents differ; [None] where their lengths differ. Hooks count as state, since
    libraries remember in an attribute that they have registered them: both go back, or neither."""
    if type(then) is not dict:
        if len(then) == len(now):
            return [i for i, (a, b) in enumerate(zip(then, now)) if _differ(a, b)]
        return [None]
    hooks = path.endswith("_hooks")
    names = [name for name in then if name not in now and (hooks or _is_state(then[name]))]
    names += [name for name in now if name not in then and (hooks or _is_state(now[name]))]
    return names + [name for name in then if name in now and _differ(then[name], now[name])]


class Marks:
    """What a body held before a step, so that a change shows."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.tensors = [_mark(value) for _, value in sight.tensors]
        self.dice = [_state_bytes(read()) for _, read, _ in sight.dice]
        self.iterators = [_drawn(value) for _, value in sight.iterators]

    def changed(self) -> dict[str, str]:
        """The path of each change, with the path of the variable, attribute or container that it belongs to."""
        seen, paths = self.sight, {}
        for path, place, then in seen.places:
            for name in _differing(path, then, place.read()):
                called = seen.called(path, name)
                paths[called] = called if place.variables else path
        paths.update((path, path) for path, _ in self.written())
        paths.update((p, p) for (p, read, _), then in zip(seen.dice, self.dice) if _state_bytes(read()) != then)
        return paths

    def written(self) -> list[tuple[str, Any]]:
        return [each for each, then in zip(self.sight.tensors, self.tensors) if _mark(each[1]) != then]

    def drawn_from(self) -> list[str]:
        return [path for (path, value), then in zip(self.sight.iterators, self.iterators) if _drawn(value) != then]


def _drawn(iterator: Any) -> Any:
    return (attributes(iterator) or {}).get("_num_yielded")


class Saved:
    """A body with copies of what it holds."""

    def __init__(self, sight: Sight, copied: list[Any]) -> None:
        self.sight = sight
        self.tensors = copied  # None: it was not copied
        self.marks = [None if copy is None else _mark(value) for (_, value), copy in zip(sight.tensors, copied)]
        self.dice = [read() for _, read, _ in sight.dice]

    def put_back(self) -> bool:
        for path, place, then in self.sight.places:
            self._put_content(path, place, then)
        with torch.no_grad():
            for (path, value), then, mark in zip(self.sight.tensors, self.tensors, self.marks):
                if then is None or value.shape != then.shape:
                    continue
                # What did not change may be a batch, which must not be written.
                if path in self.sight.body.changed or _mark(value) != mark:
                    _assign(value, then)
        for (path, _, write), state in zip(self.sight.dice, self.dice):
            if path in self.sight.body.changed:
                write(state)
        return True

    def _put_content(self, path: str, place: Place, then: Any) -> None:
        """Puts back what differs, if steps change it or it has tensors. What autograd made, say, is not put back."""
        seen, now = self.sight, place.read()
        names = dict.fromkeys(_differing(path, then, now))  # a key may be a tensor, which a list would compare
        if place.variables:
            values = {name: (then.get(name), now.get(name)) for name in names}
            known = {name for name in names if seen.called(path, name) in seen.body.changed}
            names = {name: None for name in names if name in known or any(map(_tensors_in, values[name]))}
        elif path not in seen.body.changed:
            content = [*then.values(), *now.values()] if type(then) is dict else [*then, *now]
            names = names if any(map(_tensors_in, content)) else {}
        if type(then) is dict:
            now = {name: value for name, value in now.items() if name in then or name not in names}
            now.update((name, then[name]) for name in names if name in then)
        if names:
            place.write(now if type(then) is dict else then)


def _tensors_in(value: Any) -> list[Any]:
    place = place_of(value)
    content = [value] if place is None else place.read()
    values = content.values() if type(content) is dict else content
    return [v for v in values if (isinstance(v, torch.Tensor) or _is_array(v)) and _has_values(v)]


def _assign(value: Any, then: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.detach().copy_(then)
    else:
        value[...] = then


class _NotPlain(Exception):
    pass


def _plain(value: Any) -> Any:
    """A value as another process can read it. Raises: _NotPlain where it holds objects."""
    kind: Any = type(value)
    if kind in SIMPLE:
        return value
    if isinstance(value, torch.Tensor) and _has_values(value):
        plain = own_part(value).detach().cpu().clone()
        return plain if own_part(value) is value else Part(plain)
    if _is_array(value) and _has_values(value):
        return value.copy()
    if kind in (list, tuple):
        return kind(_plain(each) for each in value)
    if kind is dict:
        return {key: _plain(each) for key, each in value.items()}
    place = place_of(value)
    if place is None or may_hold_state(kind):
        raise _NotPlain
    return _plain(place.read())


def plain_state(sight: Sight, shapes: set[tuple[int, ...]]) -> tuple[list[Any], list[Any]]:
    """What steps change of a body, and what is shaped like weights, for a file: first of each place, then of each
    random generator. Objects in the body are bodies of their own."""
    contents = []
    for place in sight.body.places:
        content, kept = place.read(), {}
        for name, value in content.items() if type(content) is dict else [("", content)]:
            path = sight.called(sight.body.path, name if type(content) is dict else None)
            changes = any(each == path or each.startswith((f"{path}.", f"{path}[")) for each in sight.body.changed)
            if changes or any(tuple(t.shape) in shapes for t in _tensors_in(value)):
                with contextlib.suppress(_NotPlain):
                    kept[name] = _plain(value)
        contents.append(kept)
    return contents, [read() for _, read, _ in sight.dice]


def _merged(now: Any, then: Any) -> Any:
    """`then`, written into the tensors and containers of `now` where it fits. Raises: SettingsError for a Part of a tensor
    that is not spread here."""
    if isinstance(then, Part):
        if own_part(now) is now:
            raise SettingsError(
                "the checkpoint has this rank's part of a tensor that the step does not have now (nobody says how it is "
                "spread over ranks): make it before comp.resume, as it was"
            )
        _merged(own_part(now), then.values)
        return now
    if isinstance(now, torch.Tensor) or _is_array(now):
        if type(now) is type(then) and now.shape == then.shape:
            with torch.no_grad():
                _assign(now, then)
            return now
        return then.to(now.device) if isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor) else then
    place = place_of(now)
    if place is None or type(then) not in (list, dict):
        return then
    here = place.read()
    if type(here) is type(then) is dict:
        place.write({**here, **{key: _merged(here.get(key), each) for key, each in then.items()}})
    elif type(here) is type(then) is list:
        place.write(_merged_lists(here, then))
    return now


def _merged_lists(now: list[Any], then: list[Any]) -> list[Any]:
    return [_merged(*both) for both in zip([*now, *[None] * len(then)], then)]


def put_plain_state(sight: Sight, state: tuple[list[Any], list[Any]]) -> None:
    """Puts back what plain_state() gave of this body, perhaps in another process."""
    contents, dice = state
    for place, then in zip(sight.body.places, contents):
        now = place.read()
        if type(now) is dict:
            place.write({**now, **{name: _merged(now.get(name), each) for name, each in then.items()}})
        elif "" in then:
            place.write(_merged_lists(now, then[""]))
    for (_, _, write), each in zip(sight.dice, dice):
        write(each)
