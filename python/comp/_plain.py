# SPDX-License-Identifier: Apache-2.0
"""Writes tensors and plain data into a file, and reads them without running anything: torch.load(weights_only=True) knows
tensors, numbers, strings, lists, tuples and dicts. Values of a few more types are written as dicts that name their type.
Not here: objects of a user's classes, because to make them is to run code that the file names."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch

from comp._objects import SIMPLE
from comp._shards import Part, own_part

_TYPE = "comp type"  # the key under which a dict names the type of the value that it stands for
_FACTORIES: dict[str, Any] = {each.__name__: each for each in (list, dict, set, int, float, str, bool, deque)}
_FACTORIES["None"] = None
_Work = Callable[[Any], Any]


class NotPlain(Exception):
    """Its text: which value, by its path, and its type."""


# By type: the value in plain parts, and the value made of them.
_TYPES: dict[Any, tuple[_Work, _Work]] = {
    set: (list, set),
    frozenset: (list, frozenset),
    bytearray: (bytes, bytearray),
    deque: (lambda v: [v.maxlen, *v], lambda p: deque(p[1:], p[0])),
    OrderedDict: (
        lambda v: [dict(v.__dict__), *v.items()],  # state_dict() of modules has the versions of the modules there
        lambda p: _with_attributes(OrderedDict(p[1:]), p[0]),
    ),
    Counter: (lambda v: list(v.items()), lambda p: Counter(dict(p))),
    defaultdict: (
        lambda v: [_factory_name(v.default_factory), *v.items()],
        lambda p: defaultdict(_FACTORIES[p[0]], p[1:]),
    ),
    range: (lambda v: [v.start, v.stop, v.step], lambda p: range(*p)),
    slice: (lambda v: [v.start, v.stop, v.step], lambda p: slice(*p)),
    Decimal: (str, Decimal),
    Fraction: (lambda v: [v.numerator, v.denominator], lambda p: Fraction(*p)),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    timedelta: (lambda v: [v.days, v.seconds, v.microseconds], lambda p: timedelta(*p)),
    torch.Size: (list, torch.Size),
    torch.dtype: (lambda v: str(v).partition(".")[2], lambda p: _dtype(p)),
    torch.device: (str, torch.device),
    Part: (lambda v: v.values, Part),
}
_BY_NAME = {each.__name__: each for each in _TYPES}


def _with_attributes(value: Any, attributes: dict[str, Any]) -> Any:
    value.__dict__.update(attributes)
    return value


def _factory_name(factory: Any) -> str:
    if factory is not None and _FACTORIES.get(factory.__name__) is not factory:
        raise NotPlain
    return "None" if factory is None else str(factory.__name__)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(name)
    return found


def is_plain_type(kind: Any) -> bool:
    """Whether all values of a type can be written, but for what they hold."""
    return kind in SIMPLE or kind in _TYPES or _is_of_numpy(kind)


def _is_of_numpy(kind: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and (kind in (numpy.ndarray, numpy.memmap) or issubclass(kind, numpy.generic))


def plain(value: Any, path: str) -> Any:
    """A value as it is written. Raises: NotPlain."""
    kind: Any = type(value)
    if kind in SIMPLE:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter):  # without the attributes that it may have
        return value.detach() if kind is torch.Tensor else torch.nn.Parameter(value.detach(), value.requires_grad)
    if issubclass(kind, torch.Tensor) and own_part(value) is not value:
        return value  # torch reads its own DTensor
    if kind in (list, tuple):
        return kind(plain(each, f"{path}[{i}]") for i, each in enumerate(value))
    if kind is dict and all(map(_is_key, value)) and _TYPE not in value:
        return {key: plain(each, _below(path, key)) for key, each in value.items()}
    if kind is dict:
        items = [(plain(key, f"a key of {path}"), plain(each, _below(path, key))) for key, each in value.items()]
        return {_TYPE: "dict", "of": items}
    if kind in _TYPES:
        try:
            parts = _TYPES[kind][0](value)
        except NotPlain:
            raise NotPlain(_named(path, value)) from None
        if kind in (OrderedDict, Counter, defaultdict):
            first = parts[: len(parts) - len(value)]
            items = [(plain(key, f"a key of {path}"), plain(each, _below(path, key))) for key, each in value.items()]
            return {_TYPE: kind.__name__, "of": [*plain(first, path), *items]}
        return {_TYPE: kind.__name__, "of": plain(parts, path)}
    if _is_of_numpy(kind) and not value.dtype.hasobject and value.dtype.names is None:
        return {_TYPE: "number" if value.shape == () else "array", "of": _written_array(value)}
    raise NotPlain(_named(path, value))


def _named(path: str, value: Any) -> str:
    return f"{path or 'it'} is a {type(value).__name__}"


def _below(path: str, key: Any) -> str:
    if type(key) is str and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]" if _is_key(key) else f"{path}[...]"


def _is_key(key: Any) -> bool:
    return type(key) in SIMPLE or (type(key) is tuple and all(map(_is_key, key)))


def _written_array(value: Any) -> list[Any]:
    data = bytearray(value.tobytes())
    values = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return [type(value).__name__ == "ndarray" or value.shape != (), value.dtype.str, list(value.shape), values]


def _read_array(parts: Any) -> Any:
    import numpy

    is_array, form, shape, values = parts
    array = numpy.frombuffer(bytearray(values.numpy().tobytes()), numpy.dtype(form)).reshape(shape)
    return array if is_array else array[()]


def unplain(value: Any) -> Any:
    """The value that plain() has written. Raises: any Exception for what plain() does not write."""
    kind: Any = type(value)
    if kind in (list, tuple):
        return kind(map(unplain, value))
    if kind is not dict:
        return value
    if _TYPE not in value:
        return {key: unplain(each) for key, each in value.items()}
    name, parts = value[_TYPE], unplain(value["of"])
    if name in ("array", "number"):
        return _read_array(parts)
    return dict(parts) if name == "dict" else _TYPES[_BY_NAME[name]][1](parts)
