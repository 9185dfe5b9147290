"""The judge: RocketMQ's own classes and servers, of two release lines, asked by the tests here.

* ``java5``, ``java4``: one JVM a session with the classes of 5.5.0 and 4.9.5 and a driver that
  decodes records, opens stores, puts messages, holds the lock (``java_driver.JavaDriver``).
* ``broker``: a function ``(line, store, settings) -> RealBroker`` that boots a NameServer and a
  broker on loopback (``real_broker.RealBroker``); what a test leaves running is killed.
* ``spark``: one session of Spark; ``comparisons`` counts what was compared, for the report.
* ``traffic.send_everything`` sends every kind of message that a client can send.

Classes come from Maven Central through ``java/pom.xml``; the driver in ``java/`` is compiled here.
Without a JDK, Maven or a way to Maven Central every test of this folder is skipped with the
reason. A broker that loses messages still exits 0: compare every row and every queue offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from broker.features import Comparisons
from broker.java_driver import JavaDriver, Settings
from broker.java_toolchain import (
    LINE_4,
    LINE_5,
    QUICK_START,
    JavaUnavailableError,
    Line,
    Toolchain,
    prepare,
)
from broker.real_broker import RealBroker
from pyspark.sql import SparkSession
from spark_sessions import fresh_session

pytest.register_assert_rewrite("broker.message_rows", "broker.served_stores")

COMPARISONS = Comparisons()
StartBroker = Callable[..., RealBroker]
T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is of the broker tier."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.broker)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was compared: docs/compatibility.md has the tables of one run."""
    for text in COMPARISONS.report():
        terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def comparisons() -> Comparisons:
    """Counts what the tests of this folder compared."""
    return COMPARISONS


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as ``rmqlog.session()`` builds it, where there are brokers to compare with."""
    _toolchain_or_skip(LINE_5)
    with fresh_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@cache
def _toolchain(line: Line) -> Toolchain | str:
    """The toolchain, or why there is none: asked once, however many tests need it."""
    try:
        return prepare(line)
    except JavaUnavailableError as error:
        return str(error)


def _toolchain_or_skip(line: Line) -> Toolchain:
    found = _toolchain(line)
    if isinstance(found, str):
        pytest.skip(f"no real broker here: {found}")
    return found


@pytest.fixture(scope="session")
def java_driver(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Line], JavaDriver]]:
    """A function from a line to its driver, started once a session."""
    with _drivers(tmp_path_factory, QUICK_START) as find:
        yield find


@pytest.fixture(scope="module")
def unhurried_driver(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Line], JavaDriver]]:
    """The same for stores of tiny index files, whose makers must take their time.

    RocketMQ names an index file by the millisecond it is made in. Java that has compiled its
    classes fills some hundred entries in less; then two files are one, and the first is lost.
    """
    with _drivers(tmp_path_factory, ("-Xint",)) as find:
        yield find


@contextmanager
def _drivers(
    tmp_path_factory: pytest.TempPathFactory, jvm_options: Sequence[str]
) -> Iterator[Callable[[Line], JavaDriver]]:
    drivers: dict[Line, JavaDriver] = {}

    def find(line: Line) -> JavaDriver:
        if line not in drivers:
            home = tmp_path_factory.mktemp(f"driver-{line.version}")
            drivers[line] = JavaDriver(_toolchain_or_skip(line), home, jvm_options)
        return drivers[line]

    yield find
    for driver in drivers.values():
        driver.close()


@pytest.fixture(scope="session")
def java5(java_driver: Callable[[Line], JavaDriver]) -> JavaDriver:
    """The driver with the classes of 5.5.0."""
    return java_driver(LINE_5)


@pytest.fixture(scope="session")
def java4(java_driver: Callable[[Line], JavaDriver]) -> JavaDriver:
    """The driver with the classes of 4.9.5."""
    return java_driver(LINE_4)


@pytest.fixture(params=[LINE_5, LINE_4], ids=lambda line: line.version)
def line(request: pytest.FixtureRequest) -> Line:
    """Each of the two lines in turn."""
    chosen: Line = request.param
    return chosen


@pytest.fixture(scope="session")
def for_both_lines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Callable[[Line], T]], dict[Line, Future[T]]]:
    """A function that does something for both lines at once, and waits for both.

    The life of a broker is mostly waiting: for its boot, its timers and its stop.
    """
    tmp_path_factory.getbasetemp()  # made by the first who asks, which must not be two at once

    def run(work: Callable[[Line], T]) -> dict[Line, Future[T]]:
        with ThreadPoolExecutor(2) as pool:
            return {line: pool.submit(work, line) for line in (LINE_5, LINE_4)}

    return run


@pytest.fixture
def broker(
    java_driver: Callable[[Line], JavaDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartBroker]:
    """A function that boots a broker of a line on a store; all are killed after the test."""
    with _brokers(java_driver, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def module_broker(
    java_driver: Callable[[Line], JavaDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartBroker]:
    """The same for fixtures that many tests of a module share."""
    with _brokers(java_driver, tmp_path_factory) as start:
        yield start


@contextmanager
def _brokers(
    java_driver: Callable[[Line], JavaDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartBroker]:
    started: list[RealBroker] = []

    def start(line: Line, store: Path, settings: Settings | None = None) -> RealBroker:
        home = tmp_path_factory.mktemp(f"broker-{line.version}")
        real_broker = RealBroker(_toolchain_or_skip(line), java_driver(line), home, store, settings)
        started.append(real_broker)
        return real_broker

    try:
        yield start
    finally:
        for real_broker in started:
            real_broker.kill_if_running()
