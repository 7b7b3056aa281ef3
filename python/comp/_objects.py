# SPDX-License-Identifier: Apache-2.0
"""Reads what objects hold and puts it back, without running their code: no property, no __getattr__, no __eq__."""

from __future__ import annotations

import argparse
import array
import dis
import functools
import itertools
import operator
import os
import queue
import random
import sys
import types
import warnings
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils import data

_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_names_of: Callable[[type], dict[str, Any]] = type.__dict__["__dict__"].__get__
_of_module: Callable[[Any], dict[str, Any]] = _names_of(types.ModuleType)["__dict__"].__get__

SIMPLE = frozenset((int, float, bool, complex, str, bytes, type(None)))
_STDLIB = os.path.dirname(os.__file__)
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_READ_BY_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CACHED = type(functools.lru_cache(maxsize=1)(abs))
STATEFUL = (nn.Module, Optimizer, GradScaler)  # torch's own classes that hold state
_HOLDERS = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap, queue.Queue)  # the standard library's
# What a DistributedDataParallel remembers goes with the buckets of gradients, which do not go back.
_DATA = (data.Dataset, data.DataLoader, data.Sampler, torch.jit.ScriptModule, nn.parallel.DistributedDataParallel)
# Beside the standard library loggers, progress bars, readers of data: what they count is no state of the training.
_LEFT_ALONE = sys.stdlib_module_names.union(
    "comp torch tqdm wandb mlflow tensorboard tensorboardX comet_ml neptune clearml aim rich loguru IPython ipykernel "
    "matplotlib PIL cv2 pandas pyarrow datasets tokenizers h5py zarr webdataset ray dask numpy scipy".split()
)


def attributes(value: Any) -> dict[str, Any] | None:
    """An object's own attributes; None if it has none, or computes them."""
    for each in _mro(type(value)):
        found = _names_of(each).get("__dict__")
        if found is not None:
            return found.__get__(value) if type(found) in _READ_BY_C else None
    return None


def _slots(value: Any) -> dict[str, Any]:
    """The descriptors of an object's __slots__."""
    return {
        name: each
        for owner in _mro(type(value))
        if "__slots__" in _names_of(owner)
        for name, each in _names_of(owner).items()
        if type(each) is types.MemberDescriptorType and name != "__weakref__"
    }


def is_installed(file: Any) -> bool:
    """Whether a source file is a library's."""
    return isinstance(file, str) and ("site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB))


@functools.lru_cache(maxsize=4096)
def is_library(kind: Any) -> bool:
    """Whether a class is not the user's own. A namespace of the standard library's is, because it has what users give it."""
    if kind in _HOLDERS:
        return False
    module = sys.modules.get(str(_names_of(kind).get("__module__")))
    return (
        module is not None
        and issubclass(type(module), types.ModuleType)
        and is_installed(_of_module(module).get("__file__"))
    )


@functools.lru_cache(maxsize=4096)
def may_hold_state(kind: Any) -> bool:
    """Whether objects of a class are looked into."""
    if issubclass(kind, _DATA):
        return False
    if issubclass(kind, STATEFUL) or kind in _HOLDERS:
        return True
    module = _names_of(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] not in _LEFT_ALONE


@dataclass(eq=False)
class Place:
    """Something that holds values by names or in an order. `variables`: the values are attributes or variables, and
    each is put back by itself; the values of a container belong together. `live`: the dict, container, cell, or dict and
    name, in which the values lie; None if only read() tells."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    variables: bool = True
    live: Any = None


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) in (numpy.ndarray, numpy.memmap, numpy.recarray)


def place_of(value: Any) -> Place | None:
    """The place of a builtin container, or of an object derived from one; None for others."""
    kind: Any = type(value)
    if kind is bytearray or kind is array.array:

        def put(content: Any) -> None:
            del value[:]
            (value.extend if kind is bytearray else value.frombytes)(content[0])

        return Place(lambda: [value.tobytes() if kind is array.array else bytes(value)], put, False)
    if is_array(value) and value.dtype.kind == "O":
        return Place(lambda: list(value.flat), lambda content: value.flat.__setitem__(slice(None), content), False)
    base: Any = next((each for each in (OrderedDict, dict, list, deque, set) if issubclass(kind, each)), None)
    if base is None:
        return None
    if issubclass(base, dict):

        def write(content: Any) -> None:
            base.clear(value)
            for key, each in content.items():
                base.__setitem__(value, key, each)

        return Place(lambda: dict(base.items(value)), write, False, value)
    if base is list:
        return Place(lambda: list.copy(value), lambda content: list.__setitem__(value, slice(None), content), False, value)

    def fill(content: Any) -> None:
        base.clear(value)
        (deque.extend if base is deque else set.update)(value, content)

    return Place(lambda: list(base.__iter__(value)), fill, False, value)


def place_of_gradient(value: torch.Tensor) -> Place:
    """The place of the gradient of a tensor that was made by itself."""
    return Place(lambda: {"grad": value.grad}, lambda content: setattr(value, "grad", content.get("grad")))


def place_of_names(owner: Any, names: Any) -> Place:
    """The place of the variables of a user's class or module, whose dict is `names`."""
    base: Any = type if isinstance(names, types.MappingProxyType) else types.ModuleType

    def write(content: dict[str, Any]) -> None:
        for name in [n for n in names if n not in content and not n.startswith("__")]:
            base.__delattr__(owner, name)
        for name, each in content.items():
            if names.get(name, names) is not each:
                base.__setattr__(owner, name, each)

    return Place(lambda: {n: v for n, v in names.items() if not n.startswith("__")}, write, True, names)


def places_of_object(value: Any, skip: frozenset[str]) -> list[Place]:
    """The places of an object's attributes, of its slots and, if it is a container, of its values."""
    places: list[Place | None] = []
    own: Any = attributes(value)
    if type(own) is dict:

        def write(content: dict[str, Any]) -> None:
            for name in [n for n in own if n not in content and n not in skip]:
                del own[name]
            own.update(content)

        places.append(Place(lambda: {n: v for n, v in own.items() if n not in skip}, write, True, own))
    if slots := _slots(value):
        places.append(_place_of_slots(value, slots))
    return [each for each in [*places, place_of(value)] if each is not None]


def _place_of_slots(value: Any, slots: dict[str, Any]) -> Place:
    def read() -> dict[str, Any]:
        found = {}
        for name, each in slots.items():
            try:
                found[name] = each.__get__(value)
            except AttributeError:  # it was never set
                continue
        return found

    def write(content: dict[str, Any]) -> None:
        for name in read():
            if name not in content:
                slots[name].__delete__(value)
        for name, each in content.items():
            slots[name].__set__(value, each)

    return Place(read, write)


def place_of_cell(name: str, cell: types.CellType) -> Place:
    """The place of a variable of the enclosing function."""

    def read() -> dict[str, Any]:
        try:
            return {name: cell.cell_contents}
        except ValueError:  # nothing was assigned yet
            return {}

    def write(content: dict[str, Any]) -> None:
        if name in content:
            cell.cell_contents = content[name]

    return Place(read, write, True, cell)


def place_of_global(names: dict[str, Any], name: str) -> Place:
    def write(content: dict[str, Any]) -> None:
        if name in content:
            names[name] = content[name]
        else:
            names.pop(name, None)

    return Place(lambda: {name: names[name]} if name in names else {}, write, True, (names, name))


def variables_of(function: types.FunctionType, of_library: bool) -> Iterator[tuple[str, Any, Place]]:
    """The name, identity and place of each outer variable that a function uses, or that a function defined in it uses.
    Functions of installed libraries have none unless `of_library` is true."""
    code = function.__code__
    if is_installed(code.co_filename) and not of_library:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, id(cell), place_of_cell(name, cell)
    names, codes = function.__globals__, [code]
    used: set[str] = set()
    assigned: set[str] = set()  # which a call may define
    while codes:
        code = codes.pop()
        used.update(code.co_names)
        does = zip(code.co_code[::2], code.co_code[1::2])
        assigned.update(code.co_names[at] for do, at in does if do == _STORE_GLOBAL and at < len(code.co_names))
        codes += [each for each in code.co_consts if type(each) is types.CodeType]
    for name in sorted(used & names.keys() | assigned):
        yield name, (id(names), name), place_of_global(names, name)


def behind(value: Any) -> list[Any]:
    """What a callable calls, and the arguments that it holds."""
    kind: Any = type(value)
    if kind is types.MethodType:
        return [value.__func__, value.__self__]
    if kind is types.FunctionType:
        return [
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
            *(attributes(value) or {}).values(),
        ]
    if issubclass(kind, functools.partial):
        part: Any = functools.partial
        return [part.func.__get__(value), *part.args.__get__(value), *part.keywords.__get__(value).values()]
    return list((attributes(value) or {}).values()) if kind is _CACHED else []


@functools.lru_cache(maxsize=4096)
def methods_of(kind: Any) -> list[types.FunctionType]:
    """The methods of a class and of its bases, but for those of libraries."""
    found = []
    for each in [each for owner in own_classes(kind) for each in _names_of(owner).values()]:
        if type(each) in (staticmethod, classmethod):
            each = each.__func__
        found += [each.fget, each.fset] if type(each) is property else [each]
    return [each for each in found if type(each) is types.FunctionType]


@functools.lru_cache(maxsize=4096)
def own_classes(kind: Any) -> list[Any]:
    """A class and its bases, but for those of libraries."""
    return [each for each in _mro(kind) if may_hold_state(each) and not is_library(each)]


def names_of_own(value: Any) -> Any:
    """The names that a user's own class or module defines; None for another value."""
    if issubclass(type(value), type):
        return _names_of(value) if any(each is value for each in own_classes(value)) else None
    if type(value) is not types.ModuleType:
        return None
    names = _of_module(value)
    root = str(names.get("__name__")).partition(".")[0]
    known = is_installed(names.get("__file__")) or root in _LEFT_ALONE
    return None if known or "__file__" not in names else names


def generator_accessors(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """The functions that get and set the state of a random generator; None for another object."""
    kind: Any = type(value)
    if kind is torch.Generator:
        return value.get_state, value.set_state
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return lambda: random.Random.getstate(value), lambda state: random.Random.setstate(value, state)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.random.RandomState:
        return value.get_state, value.set_state
    if numpy is not None and (kind is numpy.random.Generator or issubclass(kind, numpy.random.BitGenerator)):
        bits = value.bit_generator if kind is numpy.random.Generator else value
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


_ITERATORS = frozenset(
    [type(iter(each)) for each in ([], (), "", b"", range(0), range(1 << 70), {}, {}.values(), {}.items(), set())]
    + [type(reversed([])), zip, map, filter, enumerate]
    + [itertools.count, itertools.cycle, itertools.islice, itertools.chain, itertools.repeat, itertools.accumulate]
)


_UNORDERED = frozenset(type(iter(each)) for each in ({}, {}.values(), {}.items(), set()))


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, which can be copied, or a generator, which cannot."""
    return type(value) in _ITERATORS or type(value) is types.GeneratorType


def position_of(iterator: Any) -> Any:
    """The position of an iterator, as a nest of tuples that same_position() compares."""
    kind: Any = type(iterator)
    if kind is types.GeneratorType:
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, *frame.f_locals.values())
    if kind in _ITERATORS:
        return (operator.length_hint(iterator),) if kind in _UNORDERED else tuple(map(position_of, _parts_of(iterator)))
    return tuple(map(position_of, iterator)) if kind is tuple else iterator if kind in SIMPLE else None


def same_position(a: Any, b: Any) -> bool:
    if type(a) is type(b) is tuple:
        return len(a) == len(b) and all(map(same_position, a, b))
    return a is b or (type(a) is type(b) and type(a) in SIMPLE and a == b)


def _parts_of(iterator: Any) -> tuple[Any, ...]:
    """What makes an iterator again: a function, its arguments, and a state if it has one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return tuple(iterator.__reduce__())


def copy_of_iterator(iterator: Any) -> Any:
    """An iterator that goes on from the position of this one. Raises: TypeError for a generator, and for whatever else
    this Python cannot copy."""

    def copied(value: Any) -> Any:
        if is_iterator(value):
            return copy_of_iterator(value)
        return tuple(map(copied, value)) if type(value) is tuple else value

    make, given, *state = _parts_of(iterator)
    copy = make(*copied(given))
    if state and state[0] is not None:
        at = copied(state[0])
        if type(iterator) is itertools.cycle:  # it appends to the list of what it has seen
            at = ([*at[0]], *at[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            copy.__setstate__(at)
    return copy
