# SPDX-License-Identifier: Apache-2.0
"""Reads what objects hold and puts it back, without running their code: no property, no __getattr__, no __eq__."""

from __future__ import annotations

import functools
import os
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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
_CACHED = type(functools.lru_cache(maxsize=1)(abs))
STATEFUL = (nn.Module, Optimizer, GradScaler)  # torch's own classes that hold state
# What a DistributedDataParallel remembers goes with the buckets of gradients, which do not go back.
_DATA = (data.Dataset, data.DataLoader, data.Sampler, torch.jit.ScriptModule, nn.parallel.DistributedDataParallel)
# Loggers, progress bars, readers of data: what they count is no state of the training.
_LEFT_ALONE = frozenset(
    "comp tqdm wandb mlflow tensorboard tensorboardX comet_ml neptune clearml aim rich loguru IPython ipykernel "
    "matplotlib PIL cv2 pandas pyarrow datasets tokenizers h5py zarr webdataset ray dask numpy scipy".split()
)


def attributes(value: Any) -> dict[str, Any] | None:
    """An object's own attributes; None where it has none, or computes them."""
    for each in _mro(type(value)):
        found = _names_of(each).get("__dict__")
        if found is not None:
            return found.__get__(value) if type(found) is types.GetSetDescriptorType else None
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


def _is_installed(file: Any) -> bool:
    """Whether a source file is a library's."""
    return isinstance(file, str) and ("site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB))


@functools.lru_cache(maxsize=4096)
def is_library(kind: Any) -> bool:
    """Whether a class is not the user's own."""
    module = sys.modules.get(str(_names_of(kind).get("__module__")))
    return (
        module is not None
        and issubclass(type(module), types.ModuleType)
        and _is_installed(_of_module(module).get("__file__"))
    )


@functools.lru_cache(maxsize=4096)
def may_hold_state(kind: Any) -> bool:
    """Whether objects of a class are looked into."""
    if issubclass(kind, _DATA):
        return False
    if issubclass(kind, STATEFUL) or kind is types.SimpleNamespace:
        return True
    module = _names_of(kind).get("__module__")
    root = module.partition(".")[0] if type(module) is str else "builtins"
    return root == "__main__" or not (root in _LEFT_ALONE or root == "torch" or root in sys.stdlib_module_names)


class Place:
    """Something that holds values by names or in an order. `variables`: the values are attributes or variables, and
    each is put back by itself; the values of a container belong together."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], variables: bool = True) -> None:
        self.read = read
        self.write = write
        self.variables = variables


def place_of(value: Any) -> Place | None:
    """The place of a builtin container, or of an object derived from one; None for others."""
    kind: Any = type(value)
    base: Any = next((each for each in (OrderedDict, dict, list, deque, set) if issubclass(kind, each)), None)
    if base is None:
        return None
    if issubclass(base, dict):

        def write(content: Any) -> None:
            base.clear(value)
            for key, each in content.items():
                base.__setitem__(value, key, each)

        return Place(lambda: dict(base.items(value)), write, False)
    if base is list:
        return Place(lambda: list.copy(value), lambda content: list.__setitem__(value, slice(None), content), False)

    def fill(content: Any) -> None:
        base.clear(value)
        (deque.extend if base is deque else set.update)(value, content)

    return Place(lambda: list(base.__iter__(value)), fill, False)


def places_of_object(value: Any, skip: frozenset[str]) -> list[Place]:
    """The places of an object's attributes, of its slots and, where it is a container, of its values."""
    places = []
    own = attributes(value)
    if type(own) is dict:
        here = own

        def write(content: dict[str, Any]) -> None:
            for name in [n for n in here if n not in content and n not in skip]:
                del here[name]
            here.update(content)

        places.append(Place(lambda: {n: v for n, v in here.items() if n not in skip}, write))
    slots = _slots(value)
    if slots:
        places.append(_place_of_slots(value, slots))
    inner = place_of(value)
    return places if inner is None else [*places, inner]


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

    return Place(read, write)


def place_of_global(names: dict[str, Any], name: str) -> Place:
    def write(content: dict[str, Any]) -> None:
        if name in content:
            names[name] = content[name]
        else:
            names.pop(name, None)

    return Place(lambda: {name: names[name]} if name in names else {}, write)


def variables_of(function: types.FunctionType, of_library: bool) -> Iterator[tuple[str, Any, Place]]:
    """The name, identity and place of each outer variable that a function uses, or that a function defined in it uses.
    Functions of installed libraries have none unless `of_library` is true."""
    code = function.__code__
    if _is_installed(code.co_filename) and not of_library:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, id(cell), place_of_cell(name, cell)
    names, codes = function.__globals__, [code]
    used: set[str] = set()
    while codes:
        code = codes.pop()
        used.update(code.co_names)
        codes += [each for each in code.co_consts if type(each) is types.CodeType]
    for name in sorted(used & names.keys()):
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
    owners = [each for each in _mro(kind) if not is_library(each)]
    return [each for owner in owners for each in _names_of(owner).values() if type(each) is types.FunctionType]


def dice_of(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """The functions that get and set the state of a random generator; None for another object."""
    kind: Any = type(value)
    if kind is torch.Generator:
        return value.get_state, value.set_state
    if kind is random.Random:
        return value.getstate, value.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.random.RandomState:
        return value.get_state, value.set_state
    if numpy is not None and kind is numpy.random.Generator:
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None
