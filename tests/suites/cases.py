# SPDX-License-Identifier: Apache-2.0
"""The cases of a suite, one operator or module at a time."""

import copy
import random

import torch
from torch import nn
from torch.utils._pytree import tree_map

from regions import Case

DTYPES = {'float32': torch.float32, 'float64': torch.float64, 'complex64': torch.complex64}


class Parameters(nn.Module):
    """The tensors of a sample that are differentiated, as a model's parameters."""

    def __init__(self, tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_parameter(f'p{i}', tensor)


def drawn(cases, limit, name):
    """At most `limit` of the cases: always the same ones, the first and last among them."""
    cases = list(cases)
    if limit and len(cases) > limit:
        inner = sorted(random.Random(name).sample(range(1, len(cases) - 1), limit - 2))
        cases = [cases[i] for i in (0, *inner, len(cases) - 1)]
    return cases


def in_words(value):
    def describe(t):
        return f'{str(t.dtype)[6:]}{list(t.shape)}' if isinstance(t, torch.Tensor) else t

    return str(tree_map(describe, value))[:300]


def as_leaf(value, memo):
    """A tensor that can be copied, with the memory of `value`."""
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) not in memo:
        memo[id(value)] = (value.detach().requires_grad_(value.requires_grad), value)
    return memo[id(value)][0]


def operators(dtype, limit):
    """(name, cases) for each operator of op_db that has samples in `dtype`."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if not op.supports_dtype(DTYPES[dtype], 'cpu'):
            continue
        for variant, function in (('', op), ('_', op.inplace_variant)):
            if function is not None and not (variant and dtype not in op.name and limit == 1):
                yield op.full_name + variant, cases_of(op, function, bool(variant), dtype, limit)


def cases_of(op, function, in_place, dtype, limit):
    torch.manual_seed(0)
    differentiable = op.supports_autograd and op.supports_dtype(DTYPES[dtype], 'cpu')
    samples = op.sample_inputs('cpu', DTYPES[dtype], requires_grad=differentiable and not in_place)
    for number, sample in drawn(enumerate(samples), limit, op.full_name + dtype):
        if in_place and sample.broadcasts_input:
            continue
        memo = {}
        arguments = tree_map(lambda v: as_leaf(v, memo), (sample.input, sample.args, sample.kwargs))
        module = nn.Module()
        if number % 2 == 0 and not in_place:  # every other sample reads parameters
            leaves = [t for t, _ in memo.values() if t.requires_grad and t.layout is torch.strided]
            as_parameters = {id(t): nn.Parameter(t.detach()) for t in leaves}
            arguments = tree_map(lambda t: as_parameters.get(id(t), t) if isinstance(t, torch.Tensor) else t, arguments)
            module = Parameters(as_parameters.values())

        def run(module, given):
            first, args, kwargs = given
            return function(first, *args, **kwargs)

        yield Case(f'{op.full_name}{"_" * in_place} {dtype} {number}', run, arguments, module,
                   in_words((sample.input, sample.args, sample.kwargs)))


def modules(dtype, limit):
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if DTYPES[dtype] in info.dtypes:
            yield info.name, cases_of_module(info, dtype, limit)


def cases_of_module(info, dtype, limit):
    for training in (True, False):
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device='cpu', dtype=DTYPES[dtype], requires_grad=True, training=training)
        for number, each in drawn(enumerate(inputs), limit, info.name + dtype):
            if each.forward_input is None:
                continue
            torch.manual_seed(0)
            args, kwargs = each.constructor_input.args, each.constructor_input.kwargs
            module = info.module_cls(*args, **kwargs).to(dtype=DTYPES[dtype]).train(training)
            given = (each.forward_input.args, each.forward_input.kwargs)
            memo = {}
            arguments = tree_map(lambda v: as_leaf(v, memo), given)
            if hasattr(module, 'initialize_parameters'):  # a lazy module makes its parameters in its first forward
                module(*copy.deepcopy(arguments[0]), **copy.deepcopy(arguments[1]))
            mode = 'train' if training else 'eval'
            yield Case(f'{info.name} {dtype} {mode} {number}', lambda m, g: m(*g[0], **g[1]), arguments, module,
                       in_words((args, kwargs, given)))


SUITES = {'op_db': operators, 'module_db': modules}
