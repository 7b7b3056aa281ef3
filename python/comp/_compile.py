# SPDX-License-Identifier: Apache-2.0
"""torch.compile inside `with plan:`.

Dynamo captures a function as a graph of torch's calls, and a backend, such as Inductor, compiles that. Before the backend
sees the graph, it is put between two calls that tell comp's executor to listen. When AOTAutograd then traces the graph, the
executor casts as the plan says, and the casts are in what is compiled. At run time compiled code takes the place of the
operators that were captured, and the region goes on behind them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._functorch.config as tracing

from comp._comp import CapturedPart, Regions


@dataclass(eq=False)
class _Capture:
    """One compilation: the region that is open, and which of its operators were captured."""

    regions: Regions
    parameters: list[torch.Tensor]
    first: int  # the number of the first operator
    thread: int = field(default_factory=threading.get_ident)
    part: CapturedPart | None = None
    stray: str = ""


_numbers = itertools.count()
_captures: dict[int, _Capture] = {}  # that go on, by their numbers


def begin(number: int, *traced: torch.Tensor) -> None:
    """Called at the start of a captured graph, each time that a compiler traces it. `traced`: what stands for parameters."""
    capture = _captures[number]
    capture.regions.begin_capture(capture.first, list(traced), capture.parameters)


def finish(number: int) -> None:
    """Called at its end."""
    capture = _captures[number]
    capture.part = capture.regions.end_capture()
    capture.stray = capture.stray or capture.part.stray


for _call in (begin, finish):
    torch.fx.node.has_side_effect(_call)  # so that no pass takes it for dead code


def capturing() -> bool:
    """Whether this thread compiles a graph."""
    return any(each.thread == threading.get_ident() for each in list(_captures.values()))


def _innermost_backend(callback: Any) -> Any:
    """The user's backend, in what Dynamo has put around it."""
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


def runs_as_captured(callback: Any) -> bool:
    """Whether what Dynamo captures is run operator by operator, so that comp sees each. torch.cond and flex_attention have
    their functions captured for that, or gradients of what these close over would be lost."""
    backend = _innermost_backend(callback)
    backend = getattr(backend, "compiler_fn", backend)
    module, name = getattr(backend, "__module__", ""), getattr(backend, "__qualname__", "").split(".")[0]
    return module == "torch._dynamo.backends.debugging" and name in (
        "eager",
        "make_eager_backend_with_torch_function_modes",
    )


def unheard(callback: Any, around: Callable[[Any], Any] = contextlib.nullcontext) -> Any:
    """Wraps Dynamo's `callback`: while it captures a function, no operator comes to comp. `around(code)`: a context in which
    the function with this code is captured."""

    def capture(frame: Any, *given: Any, **named: Any) -> Any:
        with around(frame.f_code):
            return Regions.unheard(lambda: callback(frame, *given, **named))

    capture._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
    return capture


@dataclass(eq=False)
class _Backend:
    """A backend of torch.compile that compiles by the user's backend, with the casts of a plan."""

    _compilers: Compilers
    _user: Callable[..., Any]

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        regions = self._compilers.regions
        of_parameters = [i for i, given in enumerate(inputs) if isinstance(given, torch.nn.Parameter)]
        number = next(_numbers)
        capture = _Capture(regions, [inputs[i] for i in of_parameters], regions.next_operator())
        _captures[number] = capture
        try:
            with _without_strict_cache():
                compiled = self._user(_listened_to(graph, number, of_parameters), inputs)
        finally:
            del _captures[number]
            regions.go_to(capture.first)
        part = capture.part
        if part is None or capture.stray:
            what = capture.stray and f"{capture.stray} is not where the first forward had it, or cannot be compiled"
            self._compilers.tell(what or "its backend does not trace operators")
            return graph.forward

        def run(*given: Any) -> Any:
            done = regions.run_compiled(compiled, part, of_parameters, *given)
            if done:
                return done[0]
            self._compilers.tell("it is called at another place of the forward, where the plan differs")
            return graph(*given)

        return run


def _without_strict_cache() -> Any:
    """AOTAutograd's cache knows no plans. It leaves out graphs that comp listens to, which is an error if it is strict."""
    if hasattr(tracing, "strict_autograd_cache"):
        return tracing.patch(strict_autograd_cache=False)
    return contextlib.nullcontext()


def _in_format_without_plan(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    expected = node.meta.get("example_value")
    if node.op == "placeholder" or not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
        return node
    return graph.call_method("to", (node, expected.dtype))


def _listened_to(graph: torch.fx.GraphModule, number: int, of_parameters: list[int]) -> torch.fx.GraphModule:
    """A copy of the graph between begin() and finish(). `of_parameters`: which of its inputs are parameters. Before a graph
    break, results have the formats that they have without the plan, because Dynamo captures the rest of the function with
    those."""
    copied = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    copied.meta = graph.meta
    nodes = list(copied.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    with copied.graph.inserting_before(nodes[len(placeholders)]):
        copied.graph.call_function(begin, (number, *(placeholders[i] for i in of_parameters)))
    with copied.graph.inserting_before(nodes[-1]):
        copied.graph.call_function(finish, (number,))
        if getattr(getattr(graph, "compile_subgraph_reason", None), "graph_break", False):
            nodes[-1].args = torch.fx.map_arg(nodes[-1].args, lambda node: _in_format_without_plan(copied.graph, node))
    copied.recompile()
    return copied


class Compilers:
    """What compiles functions in the regions of one plan: for each backend of the user's one of comp's around it, which
    stays the same, so that Dynamo finds again what it has compiled."""

    def __init__(self, regions: Regions, search: CompiledPlans | None = None) -> None:
        self.regions = regions
        self._search = search  # whose plan changes
        # By how they treat what cannot be captured, and by the user's backends, of which some have no hash
        self._callbacks: list[tuple[Any, Any, Any]] = []
        self._warned = False

    def tell(self, why: str) -> None:
        """Warns, once, that a function runs uncompiled."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"a compiled function runs uncompiled under the plan ({why})", stacklevel=2)

    def callback(self, users: Any) -> Any:
        """What Dynamo calls for each function that is to be compiled in the region that is open now; None if functions
        run uncompiled. `users`: the same outside of a region."""
        how = self.regions.compiles()
        if how == "not":
            return None
        if how == "as it is" and self._search is None:
            return users
        backend = _innermost_backend(users)
        if isinstance(backend, _Backend):
            return users
        kind = type(users._torchdynamo_orig_backend)
        for known_kind, known, callback in self._callbacks:
            if known_kind is kind and (known is backend or known == backend):
                return callback
        callback = self._make(users, backend if how == "as it is" else _Backend(self, backend))
        self._callbacks.append((kind, backend, callback))
        return callback

    def _make(self, users: Any, backend: Any) -> Any:
        convert = users._torchdynamo_orig_backend._clone_with_backend(backend)
        callback = type(users)(convert, users.hooks)
        cannot_be_captured: set[Any] = set()

        def attempt(frame: Any, *given: Any, **named: Any) -> Any:
            if frame.f_code not in cannot_be_captured:
                try:
                    return callback(frame, *given, **named)
                except torch._dynamo.exc.TorchRuntimeError as failed:
                    # An operator between two graphs has made a tensor low, and Dynamo captures what reads it with that
                    cannot_be_captured.add(frame.f_code)
                    self.tell(f"its capture fails: {str(failed).splitlines()[0]}")
            return torch._dynamo.types.ConvertFrameReturn(apply_to_code=False)  # this call runs as it is

        attempt._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
        return unheard(attempt) if self._search is None else unheard(attempt, self._search.room_for)


class CompiledPlans:
    """The compilers of a search, whose plan changes: those of each plan. Functions run uncompiled while they are not asked
    to run compiled."""

    training: Callable[[], Any]  # a weak reference to what runs the plans

    def __init__(self) -> None:
        self._compilers: dict[str, Compilers] = {}
        self._codes: set[Any] = set()  # that were compiled
        self._on = False
        self._seen = False

    def run_compiled(self, on: bool) -> bool:
        """Has functions run compiled, or not. Returns whether a step has called any that is to be compiled."""
        self._on = on
        return self._seen

    def room_for(self, code: Any) -> Any:
        """Lets Dynamo compile a function once more for each plan before it thinks that this will never end. The user's own
        compilations count, too."""
        self._codes.add(code)
        limits = torch._dynamo.config
        return limits.patch(recompile_limit=(1 + len(self._compilers)) * limits.recompile_limit)

    def forget(self) -> None:
        """Forgets what was compiled, so that Dynamo's limit is for what comes next."""
        for code in self._codes:
            torch._dynamo.eval_frame.reset_code(code)
        self._codes.clear()
        self._compilers.clear()

    def _current(self) -> Compilers:
        training = self.training()
        return self._compilers.setdefault(training.plan, Compilers(training.regions, self))

    def callback(self, users: Any) -> Any:
        self._seen = True
        return self._current().callback(users) if self._on else None

    def tell(self, why: str) -> None:
        if self._on:
            self._current().tell(why)
