"""Where benchmarks live: one folder for their data, one JVM, one Spark session, made once."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.broker.java_driver import JavaDriver

_Resource = TypeVar("_Resource", bound=contextlib.AbstractContextManager[Any])
_Value = TypeVar("_Value")


class Workspace:
    """Data and reference programs that cases share; everything is gone when it is closed."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.folder = Path(tempfile.mkdtemp(prefix="rmqlog-bench-"))
        self._stack = contextlib.ExitStack()
        self._made: dict[str, Path] = {}
        self._known: dict[str, Any] = {}

    def close(self) -> None:
        """End the JVM and remove all data."""
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def scaled(self, count: int, quick_count: int) -> int:
        """How many of something: fewer in a quick run."""
        return quick_count if self.quick else count

    def make(self, name: str, build: Callable[[Path], None]) -> Path:
        """A folder that ``build`` fills the first time that it is asked for."""
        if name not in self._made:
            path = self.folder / name
            path.mkdir(parents=True)
            build(path)
            self._made[name] = path
        return self._made[name]

    def once(self, name: str, find: Callable[[], _Value]) -> _Value:
        """What ``find`` returned the first time: several cases need it, and it takes long."""
        if name not in self._known:
            self._known[name] = find()
        found: _Value = self._known[name]
        return found

    def fresh(self, name: str) -> Path:
        """An empty folder."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def keep(self, resource: _Resource) -> _Resource:
        """Close a resource with the workspace, before what it was made from."""
        return self._stack.enter_context(resource)

    @cached_property
    def java(self) -> JavaDriver:
        """A JVM with RocketMQ 5.5's own classes, with room to be at its best."""
        from tests.broker.java_driver import JavaDriver
        from tests.broker.java_toolchain import LINE_5, prepare

        home = self.fresh("java-home")
        driver = JavaDriver(prepare(LINE_5), home, ("-Xmx4g", "-Xms4g"))
        self._stack.callback(driver.close)
        return driver

    @cached_property
    def spark(self) -> SparkSession:
        """A session with the bridge on two cores, and with the reference sources."""
        import rmqlog
        from benchmarks import reference_source

        # Workers import the reference sources from the project's root.
        root = str(Path(__file__).parent.parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [root, os.environ.get("PYTHONPATH")])
        )
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "4g",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        session = rmqlog.session(master="local[2]", settings=settings)
        session.sparkContext.setLogLevel("ERROR")
        reference_source.register(session)
        self._stack.callback(session.stop)
        return session

    @cached_property
    def random(self) -> np.random.Generator:
        """Seeded, so that every run measures the same data."""
        return np.random.default_rng(20260101)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
    }
