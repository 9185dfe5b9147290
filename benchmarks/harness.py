"""What a benchmark is, and how it is measured: ours and its reference, turn by turn.

Machines are noisy, so nothing absolute is kept: each turn gives one ratio of two
neighbouring measurements, and a case is judged by the median of those ratios.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from benchmarks.workspace import Workspace

#: A measurement: seconds for the work of the case, or what its unit says.
Measure = Callable[[], float]


@dataclass(frozen=True)
class Pair:
    """Two ways to do the same work. ``check`` raises unless both gave the same result."""

    ours: Measure
    reference: Measure
    check: Callable[[], None] | None = None
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One claim: ours is at least ``goal`` times as fast as the reference.

    A goal below 1 is a claim about how much slower we may be. ``unit`` is of what is measured,
    seconds or something else of which less is better. Each side has so many ``turns``, and
    ``warm_up_turns`` before them that are not measured.
    """

    name: str
    reference: str
    goal: float
    prepare: Callable[[Workspace], Pair]
    unit: str = "s"
    turns: int = 5
    warm_up_turns: int = 1


@dataclass(frozen=True)
class Outcome:
    """The measured ratio of a case: median, and the quartiles around it."""

    case: str
    reference: str
    ratio: float
    low: float
    high: float
    goal: float
    met: bool
    ours_median: float
    reference_median: float
    turns: int
    details: dict[str, object]
    unit: str

    def as_json(self) -> dict[str, object]:
        """The outcome as plain values."""
        return asdict(self)


def run_case(case: Case, workspace: Workspace, most_turns: int | None = None) -> Outcome:
    """Measure a case: unmeasured turns of each side, then turn by turn, at most so many."""
    pair = case.prepare(workspace)
    for _ in range(case.warm_up_turns):
        pair.ours()
        pair.reference()
    if pair.check is not None:
        pair.check()
    ours: list[float] = []
    reference: list[float] = []
    turns = case.turns if most_turns is None else min(case.turns, most_turns)
    for turn in range(turns):
        gc.collect()
        # Who goes first changes, so that neither always finds the caches of the other.
        for side in ("ours", "reference") if turn % 2 == 0 else ("reference", "ours"):
            if side == "ours":
                ours.append(pair.ours())
            else:
                reference.append(pair.reference())
    ratios = sorted(theirs / mine for mine, theirs in zip(ours, reference, strict=True))
    low, median, high = quartiles(ratios)
    return Outcome(
        case.name, case.reference, median, low, high, case.goal, median >= case.goal,
        statistics.median(ours), statistics.median(reference), turns, pair.details,
        case.unit,
    )


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes, by the wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed(work: Callable[[], object], repeat: int = 1) -> Measure:
    """A measurement of some work, done several times where once is too short to measure."""

    def measure() -> float:
        def all_of_it() -> None:
            for _ in range(repeat):
                work()

        return seconds(all_of_it) / repeat

    return measure
