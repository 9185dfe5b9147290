"""One Spark session for all tests of reading, with the bridge and a second, plain source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import plain_source
import pytest
from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

import rmqlog

SETTINGS = {
    "spark.rmqlog.pythonSource": "rmqlog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as ``rmqlog.session()`` builds it; ``rmqlog_plain`` is the source without jar."""
    _end_java()
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = rmqlog.session(master="local[2]", settings={**SETTINGS, **warehouse})
    session.sparkContext.setLogLevel("OFF")
    # The workers do not see the tests' folder, so the class travels as code.
    cloudpickle.register_pickle_by_value(plain_source)
    session.dataSource.register(plain_source.PlainSource)
    yield session
    session.stop()
    _end_java()


@pytest.fixture
def new_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The name of a catalog that no other test uses."""
    name = "rmq_" + tmp_path.name.replace("-", "_")
    spark.conf.set(f"spark.sql.catalog.{name}", "org.rmqlog.spark.RmqlogCatalog")
    yield name
    spark.conf.unset(f"spark.sql.catalog.{name}")


def _end_java() -> None:
    """End a Java process of other tests: the jar can only be given to a new one."""
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = None
        SparkContext._jvm = None
