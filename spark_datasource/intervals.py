"""Sets of whole numbers as runs, for ranges of offsets, sizes and times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOWEST = -(2**63)
HIGHEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint runs ``(first, last)``, both included, ascending and never adjacent."""

    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int]]) -> Intervals:
        """The union of runs in any order; an empty run vanishes."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(runs):
            if first > last:
                continue
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def values(cls, values: Iterable[int]) -> Intervals:
        """Exactly these numbers."""
        return cls.of((value, value) for value in values)

    @classmethod
    def half_open(cls, start: int, stop: int) -> Intervals:
        """The numbers ``start <= n < stop``."""
        return cls.of([(start, stop - 1)])

    @property
    def is_everything(self) -> bool:
        """Whether no number is left out."""
        return self == EVERYTHING

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __and__(self, other: Intervals) -> Intervals:
        found: list[tuple[int, int]] = []
        mine, others = iter(self.runs), iter(other.runs)
        one, two = next(mine, None), next(others, None)
        while one is not None and two is not None:
            first, last = max(one[0], two[0]), min(one[1], two[1])
            if first <= last:
                found.append((first, last))
            if one[1] < two[1]:
                one = next(mine, None)
            else:
                two = next(others, None)
        return Intervals(tuple(found))

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.of((*self.runs, *other.runs))

    def complement(self) -> Intervals:
        """All other numbers."""
        gaps: list[tuple[int, int]] = []
        next_first = LOWEST
        for first, last in self.runs:
            gaps.append((next_first, first - 1))
            next_first = last + 1
        gaps.append((next_first, HIGHEST))
        return Intervals.of(gaps)

    def widened(self, margin: int) -> Intervals:
        """Every run longer by ``margin`` at both ends."""
        return Intervals.of(
            (max(LOWEST, first - margin), min(HIGHEST, last + margin))
            for first, last in self.runs
        )


EVERYTHING = Intervals(((LOWEST, HIGHEST),))
NOTHING = Intervals(())
