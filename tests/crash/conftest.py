"""Fixtures of the crash tests: a place for many small stores, and how many cases to run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.case_counts import CaseCounts

_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the folder
_counts = CaseCounts()


@pytest.fixture
def scratch(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in memory where there is one; kept, and named, when the test fails."""
    parent = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="rmqlog-", dir=parent))
    failed_before = request.session.testsfailed
    yield path
    if request.session.testsfailed == failed_before:
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def factor(request: pytest.FixtureRequest) -> int:
    """How many times the usual number of random cases: ``--crash-count``, else 1."""
    return int(request.config.getoption("crash_count"))


@pytest.fixture(scope="session")
def case_counts() -> CaseCounts:
    """Where tests say how many cases they went through; the report shows the sums."""
    return _counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases each kind of crash test went through."""
    for kind, count in sorted(_counts.by_kind.items()):
        terminalreporter.write_line(f"{kind}: {count:,} cases")
