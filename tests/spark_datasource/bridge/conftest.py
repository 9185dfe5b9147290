"""A session with the bridge's jar, and the probe source behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import probe_source
import pytest
from probe_store import ProbeStore
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from spark_sessions import end_java

JAR = Path(__file__).resolve().parents[3] / "spark_datasource" / "bridge" / "rmqlog-bridge.jar"


@pytest.fixture(scope="package")
def java() -> None:
    """Ends the Java process of other tests: the jar can only be given to a new one."""
    end_java()


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session with the jar, the probe source and no user interface."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bridge tests")
    settings = {
        "spark.driver.extraClassPath": str(JAR),
        "spark.rmqlog.pythonSource": "rmqlog_probe",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # The workers do not see the tests' folder, so the class travels as code.
    cloudpickle.register_pickle_by_value(probe_source)
    session.dataSource.register(probe_source.ProbeSource)
    yield session
    session.stop()


@pytest.fixture
def probe(spark: SparkSession, tmp_path: Path) -> ProbeStore:
    """A new store of ten rows."""
    return ProbeStore(spark, tmp_path / "store")
