"""How many cases the tests went through: one test may stand for thousands."""

from __future__ import annotations

from collections import Counter


class CaseCounts:
    """Cases by kind, over a whole session."""

    def __init__(self) -> None:
        self.by_kind: Counter[str] = Counter()

    def add(self, kind: str, count: int) -> None:
        """Count cases of a kind."""
        self.by_kind[kind] += count
