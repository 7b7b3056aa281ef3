# SPDX-License-Identifier: Apache-2.0
# What users meet of the compiled part (python/src/comp.cpp); the rest is Any here.
from typing import Any, Callable

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

def __getattr__(name: str) -> Any: ...
