"""One Spark session for all tests of reading, with the bridge and a second, plain source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import plain_source
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from spark_sessions import fresh_session

pytest.register_assert_rewrite("sink_drivers")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Where attempts at a task say how far they got."""
    folder = tmp_path / "trace"
    folder.mkdir()
    return folder


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as ``rmqlog.session()`` builds it; ``rmqlog_plain`` is the source without jar."""
    with fresh_session(tmp_path_factory.mktemp("warehouse")) as session:
        # The workers do not see the tests' folder, so the class travels as code.
        cloudpickle.register_pickle_by_value(plain_source)
        session.dataSource.register(plain_source.PlainSource)
        yield session


@pytest.fixture
def new_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The name of a catalog that no other test uses."""
    name = "rmq_" + tmp_path.name.replace("-", "_")
    spark.conf.set(f"spark.sql.catalog.{name}", "org.rmqlog.spark.RmqlogCatalog")
    yield name
    spark.conf.unset(f"spark.sql.catalog.{name}")
