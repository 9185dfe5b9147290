"""Fixtures of the whole suite."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator

import hypothesis
import numpy as np
import pytest
from golden_stores import GoldenStore, unpack_golden_store

from rmqlog.commitlog_format import compiled

DEFAULT_SEED = 1
_FORMAT = "rmqlog.commitlog_format"

# No deadlines: a busy machine must not fail a test. More examples: --hypothesis-profile night.
for _profile, _examples in {"pr": 500, "night": 20_000, "release": 100_000}.items():
    hypothesis.settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        derandomize=_profile == "pr",  # a change is judged by the same examples each time
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("pr")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a failing random test be run again, and the crash tests run longer."""
    parser.addoption("--seed", type=int, default=DEFAULT_SEED, help="seed of the random tests")
    parser.addoption(
        "--crash-count", type=int, default=1,
        help="how many times the usual number of random crash cases",
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Name the seed, so that a failure can be replayed from its report alone."""
    return f"random tests: --seed {config.getoption('seed')}"


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def loops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Once without and once with compiled loops, however few the rows are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.COMPILE_VARIABLE, "never" if request.param == "numpy" else "always")
        patch.setattr(compiled, "_loading", compiled.Loading())
        patch.setattr(compiled, "SMALLEST_BATCH", 1)
        yield str(request.param)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loops as they are written, run by Python."""
    import numba  # most tests do without it

    for name in ("kernels", "write_kernels", "kernel_words"):
        # Imported, removed and imported again: so undoing it leaves the compiled ones.
        module = importlib.import_module(f"{_FORMAT}.{name}")
        monkeypatch.setattr(f"{_FORMAT}.{name}", module)
        monkeypatch.delitem(sys.modules, f"{_FORMAT}.{name}")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    loading = compiled.Loading()
    loading.module = importlib.import_module(f"{_FORMAT}.kernels")
    loading.choice, loading.is_settled = "always", True
    monkeypatch.setattr(compiled, "_loading", loading)
    monkeypatch.setattr(compiled, "SMALLEST_BATCH", 1)
    with np.errstate(over="ignore"):  # as in compiled code, numbers wrap around
        yield


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed that every random test starts from."""
    return int(request.config.getoption("seed"))


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """A function from a name of ``GOLDEN_NAMES`` to its store, unpacked once a session."""
    unpacked: dict[str, GoldenStore] = {}

    def find(name: str) -> GoldenStore:
        if name not in unpacked:
            unpacked[name] = unpack_golden_store(name, tmp_path_factory.mktemp("golden"))
        return unpacked[name]

    return find
