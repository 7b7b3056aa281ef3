# SPDX-License-Identifier: Apache-2.0
"""torch.compile inside `with plan:`.

Dynamo captures a function as a graph of torch's calls, and a backend, such as Inductor, compiles that. Before the backend
sees the graph, it is put between two calls that tell comp's executor to listen. When AOTAutograd then traces the graph, the
executor casts as the plan says, and the casts are in what is compiled. At run time compiled code takes the place of the
operators that were captured, and the region goes on behind them."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from comp._comp import Regions


class _Capture:
    """One compilation: the region that is open, and which of its operators were captured."""

    numbers = itertools.count()
    open: dict[int, _Capture] = {}

    def __init__(self, regions: Regions, parameters: list[torch.Tensor]) -> None:
        self.regions = regions
        self.parameters = parameters
        self.first = regions.next_operator()
        self.end: int | None = None
        self.stray = ""

    def begin(self, traced: list[torch.Tensor]) -> None:
        self.regions.begin_capture(self.first, traced, self.parameters)

    def finish(self) -> None:
        self.end, stray = self.regions.end_capture()
        self.stray = self.stray or stray


def begin(number: int, *traced: torch.Tensor) -> None:
    """Called where a captured graph begins, each time that a compiler traces it. `traced`: what stands for parameters."""
    _Capture.open[number].begin(list(traced))


def finish(number: int) -> None:
    """Called where it ends."""
    _Capture.open[number].finish()


class _Backend:
    """A backend of torch.compile that compiles by the user's backend, with the casts of a plan."""

    def __init__(self, regions: Regions, user: Callable[..., Any]) -> None:
        self._regions = regions
        self._user = user
        self._told = False

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        of_parameters = [i for i, given in enumerate(inputs) if isinstance(given, torch.nn.Parameter)]
        capture, number = _Capture(self._regions, [inputs[i] for i in of_parameters]), next(_Capture.numbers)
        _Capture.open[number] = capture
        try:
            compiled = self._user(_listened_to(graph, number, of_parameters), inputs)
        finally:
            del _Capture.open[number]
            self._regions.go_to(capture.first)
        first, end = capture.first, capture.end
        if end is None or capture.stray:
            self._tell(capture.stray and f"{capture.stray} is not where the first forward had it, or cannot be compiled")
            return graph.forward

        def run(*given: Any) -> Any:
            done = self._regions.run_compiled(compiled, first, end, *given)
            if done:
                return done[0]
            self._tell("it is called at another place of the forward, where the plan differs")
            return graph(*given)

        return run

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            why = why or "its backend does not trace operators"
            warnings.warn(f"a compiled function runs uncompiled under the plan ({why})", stacklevel=2)


def _listened_to(graph: torch.fx.GraphModule, number: int, of_parameters: list[int]) -> torch.fx.GraphModule:
    """A copy of the graph between begin() and finish(). `of_parameters`: which of its inputs are parameters."""
    copied = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    copied.meta = graph.meta
    nodes = list(copied.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    with copied.graph.inserting_before(nodes[len(placeholders)]):
        copied.graph.call_function(begin, (number, *(placeholders[i] for i in of_parameters)))
    with copied.graph.inserting_before(nodes[-1]):
        copied.graph.call_function(finish, (number,))
    copied.recompile()
    return copied


class Compilers:
    """What compiles functions in the regions of one plan: for each backend of the user's one of comp's around it, which
    stays the same, so that Dynamo finds again what it has compiled."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._callbacks: dict[Any, Any] = {}

    def callback(self, users: Any) -> Any:
        """What Dynamo calls for each function that is to be compiled in the region that is open now; None where functions
        run uncompiled. `users`: the same outside of a region."""
        how = self._regions.compiles()
        if how != "captured":
            return users if how == "as it is" else None
        if users not in self._callbacks:
            self._callbacks[users] = self._make(users)
        return self._callbacks[users]

    def _make(self, users: Any) -> Any:
        backend = users
        while hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        if isinstance(backend, _Backend):
            return users
        convert = users._torchdynamo_orig_backend
        callback = type(users)(convert._clone_with_backend(_Backend(self._regions, backend)), users.hooks)

        def unheard(*given: Any, **named: Any) -> Any:
            return Regions.unheard(lambda: callback(*given, **named))

        unheard._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
        return unheard
