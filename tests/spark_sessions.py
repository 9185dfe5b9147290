"""Spark sessions for tests: a Java process takes the bridge's jar only when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import rmqlog

SETTINGS = {
    "spark.rmqlog.pythonSource": "rmqlog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # The quick compiler: a session of tests ends before the good one has paid.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def fresh_session(warehouse: Path) -> Iterator[SparkSession]:
    """A session as ``rmqlog.session()`` builds it, in a Java process of its own."""
    end_java()
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}
    session = rmqlog.session(master="local[2]", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    gateway = SparkContext._gateway
    yield session
    if SparkContext._gateway is gateway:  # else other tests ended it, for a process of their own
        session.stop()
        end_java()


def end_java() -> None:
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
