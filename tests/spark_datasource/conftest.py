"""One Spark session for all tests of reading, with the bridge and a second, plain source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plain_source
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from query_reference import store_rows
from query_stores import write_query_store
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all that a query can ask for; tests that change one make a copy."""
    return write_query_store(tmp_path_factory.mktemp("queries") / "store-a")


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    """Its messages, those of system topics left out, as the scalar decoder reads them."""
    return [row for row in store_rows(store) if not row["topic"].startswith("%")]


@pytest.fixture
def new_catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The name of a catalog that no other test uses."""
    name = "rmq_" + tmp_path.name.replace("-", "_")
    spark.conf.set(f"spark.sql.catalog.{name}", "org.rmqlog.spark.RmqlogCatalog")
    yield name
    spark.conf.unset(f"spark.sql.catalog.{name}")
