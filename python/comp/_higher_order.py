# SPDX-License-Identifier: Apache-2.0
"""torch's higher-order operators, such as torch.cond and flex_attention, inside `with plan:`.

They call functions of the user's, dispatch in Python, and fail if a dispatch key is on for which they have no kernel. Here
they get one for comp's key. It runs them as without a plan, in FP32, because a function may be traced, called more than once,
or not at all, so that its operators are no part of what the first forward recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import _higher_order_ops
from torch.utils._pytree import tree_map_only

from comp._comp import Regions
from comp._models import key_set

_given: set[tuple[str, str]] = set()  # the operators and dispatch keys for which there is a kernel
_giving = threading.Lock()
_writes = "triton_kernel_wrapper_mutation"  # a Triton kernel of the user's: what it writes must not be a copy


def run_higher_order_in_fp32() -> None:
    """Gives its kernel to each higher-order operator that there is, once. Call it in a region."""
    names = Regions.dispatch_keys()
    if len(_given) == len(names) * len(_higher_order_ops):
        return
    with _giving:
        for name, operator in list(_higher_order_ops.items()):
            for key in names:
                if (name, key) not in _given:
                    operator.py_impl(torch._C._parse_dispatch_key(key))(_kernel(operator, key_set(names)))
                    _given.add((name, key))


def _kernel(operator: Any, passed: Any) -> Callable[..., Any]:
    def run(*given: Any, **named: Any) -> Any:
        if operator.name() != _writes:
            # FP32 tensors, too, so that a forward has the same operators under all plans
            given, named = tree_map_only(torch.Tensor, _in_fp32, (given, named))
        with torch._C._ExcludeDispatchKeyGuard(passed):
            return operator(*given, **named)

    return run


def _in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) else tensor
