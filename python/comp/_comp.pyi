# SPDX-License-Identifier: Apache-2.0
# The compiled part (python/src/comp.cpp). Users meet policy, strategy, the rules and the errors.
from typing import Any, Callable, Protocol

import torch

__version__: str

class Error(RuntimeError): ...
class PlanError(Error): ...
class GraphError(Error): ...
class SettingsError(Error): ...
class SpaceError(Error): ...
class FileError(Error): ...
class OutOfMemory(Error): ...
class Interrupted(Error): ...
class RankError(Interrupted): ...
class Abandoned(Error): ...

class Operator:
    name: str
    kind: str
    scopes: list[str]
    producers: list[int]
    shapes: list[list[int]]
    m: int
    n: int
    k: int
    channels_in: int
    channels_out: int
    bytes: int
    flops: int
    choosable: bool
    @property
    def as_written(self) -> str: ...
    hands_on_fp32: bool
    fixed_by_author: str

class Decision:
    category: str
    compute: str
    is_fixed: bool

class Rule: ...

def allow(precision: str) -> Decision: ...
def deny() -> Decision: ...
def follow() -> Decision: ...
def fixed(precision: str) -> Decision: ...
def by_kind(kind: str, then: Decision) -> Rule: ...
def by_name(pattern: str, then: Decision) -> Rule: ...
def by_scope(scope: str, then: Decision) -> Rule: ...

class policy:
    class Policy:
        def classify(self, operator: Operator) -> Decision: ...
        def __call__(self, operator: Operator) -> Decision: ...

    @staticmethod
    def called(classifies: Callable[[Operator], Decision]) -> policy.Policy: ...
    @staticmethod
    def all_fp32() -> policy.Policy: ...
    @staticmethod
    def pytorch(*, list: str = "by_device", low: str | None = None) -> policy.Policy: ...
    @staticmethod
    def tensorflow(*, list: str = "cuda_fp16") -> policy.Policy: ...
    @staticmethod
    def paddle(*, level: str = "o1", low: str = "fp16") -> policy.Policy: ...
    @staticmethod
    def tvm(*, low: str = "fp16") -> policy.Policy: ...
    @staticmethod
    def custom(rules: list[Rule], *, over: policy.Policy = ...) -> policy.Policy: ...

class strategy:
    class Strategy: ...

    class Group:
        name: str
        operators: list[int]
        levels: list[str]

    class Space:
        base: str
        conservative: str
        groups: list[strategy.Group]
        size: int | None
        def valid(self, plan: str) -> bool: ...
        def set(self, plan: str, group: int, level: int) -> str: ...

    @staticmethod
    def called(given: Any) -> strategy.Strategy: ...
    @staticmethod
    def guided(*, questions: int = 40) -> strategy.Strategy: ...
    @staticmethod
    def greedy() -> strategy.Strategy: ...
    @staticmethod
    def exhaustive(*, limit: int = 1024) -> strategy.Strategy: ...
    @staticmethod
    def beam(*, width: int = 4) -> strategy.Strategy: ...
    @staticmethod
    def delta_debugging() -> strategy.Strategy: ...
    @staticmethod
    def genetic(
        *, trials: int = 128, population: int = 16, mutation: float = 0.5, seed: int = 0
    ) -> strategy.Strategy: ...

class Sample:
    loss: float
    losses: list[float]
    seconds: float
    batches: int
    batch_seconds: list[float]
    curve: list[float]
    score: float | None
    peak_bytes: int
    status: str
    message: str

class Trial:
    number: int
    stage: str
    plan: str
    sample: Sample
    accepted: bool
    seconds: float
    label: str

class Contestant:
    label: str
    plan: str
    seconds: list[float]
    speedup: float
    peak_bytes: int

class Fallback:
    epoch: int
    given_up: str
    plan: str
    status: str
    message: str

class LaterPlan:
    batch: int
    plan: str
    reason: str

class TrainingProgress:
    epochs: list[Sample]
    fallbacks: list[Fallback]
    plan: str
    def text(self) -> str: ...

class TrainingResult:
    epochs: list[Sample]
    fallbacks: list[Fallback]
    later: list[LaterPlan]
    warnings: list[str]
    plan: str

class Outcome:
    plan: str
    speedup: float
    speedup_bounds: tuple[float, float]
    compiled: bool
    operators: list[Operator]
    fingerprint: str
    contest: list[Contestant]
    trials: list[Trial]
    baseline: Sample
    warnings: list[str]
    trained_batches: int
    batches_per_epoch: int
    reasons: list[str]
    def rules(self, low: str) -> tuple[list[tuple[str, str]], dict[str, str]]: ...
    def table(self) -> str: ...
    def summary(self) -> str: ...
    def save(self, path: str) -> None: ...
    def report(self, path: str, info: ReportInfo) -> None: ...

def rules(operators: list[Operator], low: str) -> tuple[list[tuple[str, str]], dict[str, str]]: ...

class ReportInfo:
    def __init__(
        self, *, model: str = "", data: str = "", command: str = "", use_command: str = "", plan_file: str = "plan.json"
    ) -> None: ...

class Place: ...

class CapturedPart:
    stray: str

class Regions:
    def enter(self, segment: str) -> None: ...
    def here(self) -> Place | None: ...
    def enter_again(self, place: Place) -> None: ...
    def compiles(self) -> str: ...
    @staticmethod
    def unheard(work: Callable[[], Any]) -> Any: ...
    @staticmethod
    def listens() -> bool: ...
    @staticmethod
    def script_for_regions(script: Any) -> Any: ...
    @staticmethod
    def dispatch_keys() -> list[str]: ...
    def format_of_parameter(self, parameter: torch.Tensor) -> torch.dtype: ...
    def exchange(self, begin: Callable[[torch.dtype], Any]) -> Any: ...
    def formats_of_states(self) -> list[tuple[str, torch.dtype]]: ...
    def begin_update(self, name: str) -> Callable[[], None]: ...
    def pass_on(self, was: torch.Tensor, now: torch.Tensor) -> None: ...
    def next_operator(self) -> int: ...
    def go_to(self, number: int) -> None: ...
    def begin_capture(self, first: int, traced: list[torch.Tensor], parameters: list[torch.Tensor]) -> None: ...
    def end_capture(self) -> CapturedPart: ...
    def run_compiled(
        self, compiled: Callable[..., Any], part: CapturedPart, inputs: list[int], *arguments: Any
    ) -> tuple[Any, ...]: ...
    def exit(self, by_exception: bool) -> None: ...

class Planned:
    regions: Regions
    def name_parameters(self, models: list[tuple[str, list[tuple[str, torch.Tensor]]]]) -> None: ...
    def set_batch(self, batch: int) -> None: ...
    in_use: bool
    letters: str
    needs_scaling: bool
    warnings: list[str]
    left: tuple[int, str]
    def __init__(
        self,
        models: list[tuple[str, list[tuple[str, torch.Tensor]]]],
        path: str,
        *,
        segments: list[str],
        match: str,
        forced: bool,
        otherwise: str,
        protect_blocks: bool,
        keep_memory: bool,
        keeps_states: bool,
    ) -> None: ...

class Piecewise:
    most: int
    def __init__(self, whole: torch.Tensor, key: int, which: int) -> None: ...
    def begin(self, at: int, n: int, reads: bool = True) -> torch.Tensor: ...
    def end(self, at: int, n: int) -> None: ...

def moment_operator(which: int, suffix: str, elements: int) -> Operator: ...
def lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool: ...
def is_moment_of(parameter: torch.Tensor, moment: torch.Tensor) -> bool: ...
def new_moment(parameter: torch.Tensor, format: torch.dtype) -> torch.Tensor: ...
def in_format(parameter: torch.Tensor, moment: torch.Tensor, format: torch.dtype, key: int, which: int) -> torch.Tensor: ...
def mix_key(seed: int, stream: int) -> int: ...

class Loop:
    regions: Regions
    found: Outcome | None
    letters: str
    searches: bool
    batches: int
    batches_undone: int
    left: tuple[int, str]
    def __init__(
        self,
        models: list[tuple[str, list[tuple[str, torch.Tensor]]]],
        *,
        trains: Callable[[], bool],
        stepped: Callable[[], bool],
        leave: Callable[[], None],
        save: Callable[[], None],
        restore: Callable[[], None],
        is_sound: Callable[[], bool],
        policy: policy.Policy,
        settings: dict[str, Any],
        ledger: str,
        plan_file: str,
        forced: bool,
        batches_per_epoch: int,
        tune: bool,
        protect_blocks: bool,
        exchange: bool,
        keep_memory: bool,
        ranks: RankTeam | None = None,
        states: list[Operator] = [],
        keeps_states: bool = False,
    ) -> None: ...
    def fail(self) -> bool: ...
    def step(self, losses: list[tuple[str, float]], seconds: float) -> None: ...
    def end(self) -> None: ...

class RankTeam:
    def __init__(self, group: torch.distributed.ProcessGroup, seconds: float) -> None: ...
    def maximum(self, own: list[float]) -> list[float]: ...
    def exchange(self, own: str) -> list[str]: ...

class Watcher(Protocol):
    def __call__(self, progress: TrainingProgress, call: Callable[[str], list[str]]) -> bool: ...
    def carry_out(self, order: str) -> str: ...

class Training:
    regions: Regions
    plan: str
    def __init__(
        self,
        *,
        models: list[tuple[str, list[tuple[str, torch.Tensor]]]],
        read: list[tuple[str, list[tuple[str, torch.Tensor]]]],
        pull: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        score: Callable[[], float] | None,
        save: Callable[[], Any],
        restore: Callable[[Any], None],
        tensors: Callable[[], list[torch.Tensor]],
        others: Callable[[], list[torch.Tensor]],
        compile: Callable[[bool], bool],
        rates: Callable[[], list[float]] | None,
        length: int,
        keep_bytes: int,
        keep_memory: bool,
        data: str,
        tune: bool,
        protect_blocks: bool,
        states_on: str | None,
        about: str,
        target: str = "",
        separate_products: bool = False,
        exchange: bool = False,
        ranks: RankTeam | None = None,
        states: list[Operator],
        prepare: Callable[[], None],
    ) -> None: ...
    def operators(self) -> list[Operator]: ...
    def fingerprint(self) -> str: ...
    def set_plan(self, plan: str) -> None: ...
    def search(
        self,
        *,
        policy: policy.Policy,
        stage1: strategy.Strategy,
        stage2: strategy.Strategy,
        settings: dict[str, Any],
        ledger: str | None,
        report: str | None,
        info: ReportInfo,
        progress: bool,
        observers: list[Any],
    ) -> Outcome: ...
    def train_on(
        self, found: Outcome, epochs: int, finish: float, progress: bool, watcher: Watcher
    ) -> TrainingResult: ...
    def go_on(
        self, progress_text: str, epochs: int, finish: float, progress: bool, watcher: Watcher
    ) -> TrainingResult: ...

def read_plan_file(path: str) -> dict[str, Any]: ...
def plan_text(file: Any) -> str: ...
def plan_difference(a: Any, b: Any) -> str: ...
def compare_files(paths: list[str]) -> str: ...

class Values:
    count: int
    zeros: int
    nans: int
    infinities: int
    smallest: float
    largest: float
    def vanish(self, precision: str) -> int: ...
    def subnormal(self, precision: str) -> int: ...
    def overflow(self, precision: str) -> int: ...

class Examined:
    name: str
    kind: str
    shape: list[int]
    inputs: list[int]
    values: Values
    gradients: Values
    error: float

class Fault:
    name: str
    kind: str
    backward: bool
    text: str
    step: int

class Difference:
    first: str | None
    entries: list[tuple[str, float, float]]
    only_first: list[str]
    only_second: list[str]
    def table(self, most: int = 40) -> str: ...

class Examination:
    entries: list[Examined]
    low: str
    faults: list[Fault]
    first_nan: str | None
    def worst(self, n: int = 10) -> list[Examined]: ...
    def table(self, n: int | None = None) -> str: ...
    def save(self, path: str) -> None: ...
    def page(self, path: str) -> None: ...
    @staticmethod
    def load(path: str) -> Examination: ...
    @staticmethod
    def compare(a: Examination, b: Examination, tolerance: float = 1e-3) -> Difference: ...

class History:
    steps: int
    entries: list[Examined]
    faults: list[Fault]
    numbers: dict[str, float]
    def page(self, path: str) -> None: ...

class Examining:
    regions: Regions
    def __init__(
        self,
        models: list[tuple[str, list[tuple[str, torch.Tensor]]]],
        *,
        low: str,
        share: float,
        many_steps: bool,
    ) -> None: ...
    def finish(self) -> Examination: ...
    def before_update(self, parameters: list[torch.Tensor], rates: list[float]) -> None: ...
    def after_update(self) -> None: ...
    def note_evaluation(self, model: str) -> None: ...
    def end_step(
        self, loss: torch.Tensor | None, batch: list[torch.Tensor], number: int, apart: list[str]
    ) -> None: ...
    def seen(self) -> History: ...
