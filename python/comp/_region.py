# SPDX-License-Identifier: Apache-2.0
"""`with plan:` in place of `with torch.autocast(...)`."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.utils.checkpoint as checkpoints
from torch import nn
from torch.backends import mha

from comp import _comp
from comp._comp import Error, Place
from comp._exchange import follow_file
from comp._compile import Compilers, capturing, runs_as_captured, unheard
from comp._higher_order import run_higher_order_in_fp32
from comp._models import forward_parameters, modules_of, named_parameters, wrap_once
from comp._moments import Moments
from comp._open import open_regions as _open
from comp._shards import sharded


class Region:
    """Runs the operators of a block of code in the precisions of a plan. As torch.autocast, it is for the forward and
    the loss; backward and optimizer stay outside. Under torch.no_grad() operators go by their names, for evaluation.

    A step with several forwards names them: `with plan("discriminator"):`. Entered again within itself, a region goes on.
    Functions compiled by torch.compile are compiled with the casts of the plan; in the first forward, and while a search
    judges losses, they run uncompiled. TorchScript runs unoptimized.
    """

    def __init__(
        self,
        regions: Any,
        segment: str = "forward",
        entered: Callable[[], None] | None = None,
        evaluated: Callable[[], None] | None = None,
        compilers: Compilers | None = None,
    ) -> None:
        _follow_checkpoints()
        _heed_optional_blocks()
        _follow_scripts()
        self._regions = regions
        self._segment = segment
        self._entered = entered
        self._evaluated = evaluated  # called before a region without gradients
        self._compilers = compilers

    def __call__(self, segment: str) -> Region:
        """The region of another segment of the step."""
        return Region(self._regions, segment, self._entered, self._evaluated, self._compilers)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a plan cannot be pickled or copied (it holds on to this model's tensors): keep the path of its file, and "
            "make it there with comp.plan(path, model)"
        )

    def __enter__(self) -> Region:
        if _in_compiled_code():
            raise Error(
                "a compiled function enters a plan (what it compiles is captured in the plan's region, so that has to be open "
                "before): call what is compiled inside of `with plan:`"
            )
        around = _open.regions[-1] if _open.regions and torch.is_grad_enabled() else None
        if around is not None and around._regions is self._regions and around._segment == self._segment:
            _open.regions.append(self)
            _open.repeats.append(True)
            return self
        if self._evaluated is not None and not torch.is_grad_enabled():
            self._evaluated()
        _follow_compilation()
        _slow_path.enter()
        try:
            self._regions.enter(self._segment)
        except BaseException:
            _slow_path.exit()
            raise
        run_higher_order_in_fp32()
        _open.regions.append(self)
        _open.repeats.append(False)
        if self._entered is not None:
            try:
                self._entered()
            except BaseException as raised:  # a warning that is turned into an error
                self.__exit__(type(raised), raised, None)
                raise
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        regions = _open.regions
        if regions and regions[-1] is self:
            return _leave(kind is not None)
        if self not in regions:
            raise Error(
                "a plan is left in a thread that is not in it (it ends where it began, and once): write `with plan:`"
            )
        inside = regions[::-1].index(self)
        for _ in range(inside + 1):
            _leave(True)
        raise Error(
            f"a plan is left before {inside} that were entered in it (a generator or a task holds one): "
            "leave them in turn, and yield or await nothing inside `with plan:`"
        )


def _leave(by_exception: bool) -> None:
    """Leaves the innermost region of this thread."""
    region = _open.regions.pop()
    if _open.repeats.pop():
        return
    try:
        region._regions.exit(by_exception)
    finally:
        _slow_path.exit()


def depth() -> int:
    """How many regions this thread is in."""
    return len(_open.regions)


def forget_beyond(kept: int) -> None:
    """Drops regions of this thread that were entered and never left, down to the first `kept`."""
    while depth() > kept:
        _open.regions.pop()
        if not _open.repeats.pop():
            _slow_path.exit()


def _in_compiled_code() -> bool:
    """Whether torch.compile runs this, traced or as a part that it could not trace."""
    if "torch._dynamo" not in sys.modules:
        return False
    return callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


class _SlowPath:
    """While any thread is in a region, nn.Transformer's layers leave out their fast path for inference, one operator for all
    of a layer, as they do under torch.autocast."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions = 0
        self._fast = True

    def enter(self) -> None:
        with self._lock:
            if self._regions == 0:
                self._fast = mha.get_fastpath_enabled()
                mha.set_fastpath_enabled(False)
            self._regions += 1

    def exit(self) -> None:
        with self._lock:
            self._regions -= 1
            if self._regions == 0:
                mha.set_fastpath_enabled(self._fast)


_slow_path = _SlowPath()


def _follow_compilation() -> None:
    """Wraps the function by which torch.compile chooses what compiles: in a region that is the region's choice."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    count = getattr(frames, "set_fullgraph_compiled_frame_count", lambda _: None)

    def wrap(original: Any) -> Any:
        def choose(callback: Any, chosen: Any) -> Any:
            if runs_as_captured(chosen):
                return unheard(chosen)
            compilers = None if _open.again or _open.checkpoints else _open.regions[-1]._compilers
            if compilers is None:
                return None
            if hasattr(chosen, "hooks"):
                return compilers.callback(chosen)
            if frames._stance.stance == "fail_on_recompile":  # it has wrapped what compiles
                return original(compilers.callback(callback))
            compilers.tell("torch.compiler.set_stance() compiles it later")
            return None

        def wrapper(callback: Any) -> Any:
            chosen = original(callback)
            if not (_open.regions or _open.again) or chosen is None or chosen is False:
                return chosen
            chosen = choose(callback, chosen)
            if chosen is None:
                count(-1)  # newer torch wants a compiled frame of fullgraph=True; below 0 it counts none
            return chosen

        return wrapper

    wrap_once(frames, "_callback_from_stance", "wrapped_by_comp", wrap)


def _contexts_in_plan(region: Region, around_forward: Any, around_again: Any) -> tuple[Any, Any]:
    """Returns: the contexts in which a checkpointed function runs in the forward, and again in the backward, when its
    operators run in the precisions that they had. Compiled functions run uncompiled in both, so that both save the same
    tensors."""
    place: Place | None = None

    @contextlib.contextmanager
    def forward() -> Iterator[None]:
        nonlocal place
        place = region._regions.here()
        _open.checkpoints += 1
        try:
            with around_forward:
                yield
        finally:
            _open.checkpoints -= 1

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        if place is not None:
            region._regions.enter_again(place)
        _open.again += 1
        try:
            with around_again:
                yield
        finally:
            _open.again -= 1
            if place is not None:
                region._regions.exit(False)  # torch ends it by an exception when the backward has what it needs

    return forward(), again()


def _follow_checkpoints() -> None:
    """Wraps a function of torch.utils.checkpoint. It runs a part of the forward again in the backward, outside of any
    region, so the wrapper opens one there."""

    def wrap(original: Any) -> Any:
        signature = inspect.signature(original)

        def wrapper(*given: Any, **more: Any) -> Any:
            if not _open.regions or capturing():
                return original(*given, **more)
            bound = signature.bind(*given, **more)
            if bound.arguments.get("debug", False):
                return original(*given, **more)
            contexts = bound.arguments.get("context_fn", checkpoints.noop_context_fn)()
            region = _open.regions[-1]
            bound.arguments["context_fn"] = lambda: _contexts_in_plan(region, *contexts)
            return original(*bound.args, **bound.kwargs)

        return wrapper

    name = "_checkpoint_without_reentrant_generator"
    newer = hasattr(checkpoints, f"{name}_impl")
    wrap_once(checkpoints, f"{name}_impl" if newer else name, "wrapped_by_comp", wrap)


def _follow_scripts() -> None:
    """Wraps the calls of TorchScript's functions and methods: a region that listens runs a copy of them, which
    TorchScript never optimizes."""

    def wrap(original: Any) -> Any:
        def wrapper(script: Any, /, *arguments: Any, **named: Any) -> Any:
            if _comp.Regions.listens() and not torch.jit.is_tracing():
                script = _comp.Regions.script_for_regions(script)
            return original(script, *arguments, **named)

        return wrapper

    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        wrap_once(kind, "__call__", "wrapped_by_comp", wrap)


def _heed_optional_blocks() -> None:
    """Replaces the code of transformers' maybe_autocast(), for the whole process. Its authors keep a block in FP32 by
    maybe_autocast(device, enabled=False), which does nothing if torch's autocast is off, as in a region. Now it is
    torch.autocast(device, enabled=False) there, which a plan heeds. Models have imported the function by name, so it is
    its __code__ that is exchanged."""
    function = getattr(sys.modules.get("transformers.utils.generic"), "maybe_autocast", None)
    named = ("device_type", "dtype", "enabled", "cache_enabled")
    if function is None or hasattr(function, "heeded_by_comp") or function.__code__.co_varnames[:4] != named:
        return
    original = types.FunctionType(function.__code__, function.__globals__, argdefs=function.__defaults__)

    def heeded(device_type: str, dtype: Any, enabled: bool, cache_enabled: Any) -> Any:
        if not enabled and device_type != "meta" and (_open.regions or _open.again):
            return torch.autocast(device_type, enabled=False)
        return original(device_type, dtype, enabled, cache_enabled)

    def code(device_type: Any, dtype: Any, enabled: Any, cache_enabled: Any) -> Any:
        return globals()["maybe_autocast"].heeded_by_comp(device_type, dtype, enabled, cache_enabled)

    function.heeded_by_comp = heeded
    function.__code__ = code.__code__


class Planned(Region):
    """A plan from a file for a model. Made by comp.plan()."""

    def __init__(self, inner: _comp.Planned, models: Mapping[str, nn.Module], moments: Moments) -> None:
        super().__init__(
            inner.regions,
            entered=self._tell,
            evaluated=None if sharded(models) else self._name_new_parameters,
            compilers=Compilers(inner.regions),
        )
        self._inner = inner
        self._models = models
        self._moments = moments.__enter__()  # as long as the plan lives
        moments.follow(inner)
        self._named = self._parameters()

    def at(self, batch: int) -> Planned:
        """The plan as it is for batch `batch` of the training, counted from 0: `with plan.at(step):`. A plan may change
        over a training, as a file of comp.Outcome.save() says after found.train(finish=...). Without at() the plan is that
        of the first batch, or of the last one that was named."""
        self._inner.set_batch(batch)
        return self

    def _parameters(self) -> list[int]:
        return [id(parameter) for module in self._models.values() for parameter in module.parameters()]

    def _name_new_parameters(self) -> None:
        """Names parameters that have replaced others, as load_state_dict(assign=True) does: without gradients operators
        go by the names of what they read."""
        now = self._parameters()
        if now != self._named:
            self._inner.name_parameters(named_parameters(self._models))
            self._named = now

    def _tell(self) -> None:
        if self._entered is None or not self._inner.in_use:
            return
        self._entered = None
        warn_of_plan(self._inner.warnings, self._inner.needs_scaling, 4)

    @property
    def in_use(self) -> bool:
        """Whether the first forward was seen and the plan fits it."""
        return self._inner.in_use

    @property
    def letters(self) -> str:
        """The plan, one letter per operator; all "1" before it is in use."""
        return self._inner.letters

    @property
    def needs_scaling(self) -> bool:
        """Whether it has FP16."""
        return self._inner.needs_scaling

    @property
    def warnings(self) -> list[str]:
        """What a person should know: the plan was found on other hardware, operators without a precision."""
        return self._inner.warnings

    @property
    def left(self) -> tuple[int, str]:
        """How many operators ran that the first forward did not have, or how many forwards left it, and the first of
        them in words; see `otherwise`."""
        return self._inner.left


def moments_of_file(path: str, model: Any, optimizers: Sequence[Any]) -> Moments:
    """The moments that a plan file keeps, of these optimizers. Gradients are exchanged as the file says from now on.
    Raises: FileError if it cannot be read."""
    operators = _comp.read_plan_file(path)["operators"]
    follow_file(model, operators)
    kept = {name: precision for name, kind, precision in operators if kind in ("moment1", "moment2")}
    moments = Moments(optimizers if kept else [], required=False)
    moments.tell_of_others(kept if optimizers else {})
    return moments


def warn_of_plan(sentences: Sequence[str], has_fp16: bool, stacklevel: int) -> None:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=stacklevel + 1)
    if has_fp16:
        warnings.warn(
            "the plan has FP16 (small gradients vanish in it): scale the loss with torch.amp.GradScaler",
            stacklevel=stacklevel + 1,
        )


def plan(
    path: str | os.PathLike[str],
    model: nn.Module | Mapping[str, nn.Module],
    *,
    optimizer: Any = None,
    segments: Sequence[str] = ("forward",),
    match: Literal["by_name", "exact"] = "by_name",
    forced: bool = False,
    otherwise: Literal["follow", "error", "fp32"] = "follow",
    protect_blocks: bool = True,
    keep_memory: bool = False,
) -> Planned:
    """A plan that was found before, in Python or C++, for `with`:

        plan = comp.plan("plan.json", net)
        for x, y in loader:
            with plan:                                   # in place of torch.autocast(...)
                loss = cross_entropy(net(x), y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()

    The first forward of each segment runs under the plan, too. Parameters and optimizer stay FP32.

    optimizer: one, or a list as in the search, whose moments are kept as the file says if it was found with moments=True.
    model: the module, or modules by the names that they had in the search ({"net": net}). segments: the names of a
        step's forwards. forced: use a plan that this machine computes slowly.
    match: "by_name": operators have the precisions of their names in the file, whatever the batch size; one that the
        file does not have runs as most of its kind, with a warning. "exact" refuses other operators, shapes or edges.
    otherwise: what later forwards do that skip operators, repeat them or add some. "follow" recognises each operator by
        the parameter that it reads or by its neighbours, and counts in `left` those that the first forward did not
        have. "error" raises at the first operator that differs. "fp32" goes on in FP32 from there.
    protect_blocks: what stands in `with torch.autocast(..., enabled=False)` or another autocast of the model's own runs
        as its author wrote, whatever the file says of it.
    keep_memory: on a CPU, large blocks that torch frees keep their pages for the next step's, in the whole process and
        until no step has used them for 5 seconds. Without it torch's allocator stays as it is.

    Raises: FileError when the file cannot be read; PlanError in the second `with` when the file lacks more than half of
    the model's operators; with `match="exact"` RuntimeError in the first forward, with what differs.
    """
    models = modules_of(model)
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    moments = moments_of_file(os.fspath(path), model, optimizers)  # so that a mistyped path is an error now
    return Planned(
        _comp.Planned(
            forward_parameters(models),
            os.fspath(path),
            segments=list(segments),
            match=match,
            forced=forced,
            otherwise=otherwise,
            protect_blocks=protect_blocks,
            keep_memory=keep_memory,
            keeps_states=optimizer is not None,
        ),
        models,
        moments,
    )
