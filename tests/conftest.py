"""Fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from golden_stores import GoldenStore, unpack_golden_store


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """A function from a name of ``GOLDEN_NAMES`` to its store, unpacked once a session."""
    unpacked: dict[str, GoldenStore] = {}

    def find(name: str) -> GoldenStore:
        if name not in unpacked:
            unpacked[name] = unpack_golden_store(name, tmp_path_factory.mktemp("golden"))
        return unpacked[name]

    return find
