"""A store as a catalog of tables, and tables and views by CREATE ... USING rmqlog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from probe_source import COLUMNS
from probe_store import ProbeStore
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: SparkSession, probe: ProbeStore) -> Iterator[SparkSession]:
    """The session with the probe store as its catalog ``rmq``."""
    spark.conf.set("spark.sql.catalog.rmq", "org.rmqlog.spark.RmqlogCatalog")
    spark.conf.set("spark.sql.catalog.rmq.path", str(probe.path))
    spark.conf.set("spark.sql.catalog.rmq.minPartitions", "7")
    yield spark
    # Spark keeps a catalog with the settings that it had when it was first used.
    spark._jsparkSession.sessionState().catalogManager().reset()


def other_store(probe: ProbeStore, tmp_path: Path) -> ProbeStore:
    other = ProbeStore(probe.spark, tmp_path / "other store")
    other.grow(3)
    return other


def test_topics_are_listed_as_tables(session: SparkSession) -> None:
    topics = ["%RETRY%g", "my-topic", "orders"]

    assert [row.tableName for row in session.sql("SHOW TABLES IN rmq").collect()] == topics
    assert [table.name for table in session.catalog.listTables("rmq")] == topics
    session.catalog.setCurrentCatalog("rmq")
    assert [table.name for table in session.catalog.listTables()] == topics


def test_metadata_tables_have_a_namespace(session: SparkSession, probe: ProbeStore) -> None:
    tables = session.sql("SHOW TABLES IN rmq.metadata").collect()
    namespaces = session.sql("SHOW NAMESPACES IN rmq").collect()

    assert [row.tableName for row in tables] == ["files", "queues"]
    assert sorted(row.namespace for row in namespaces) == ["metadata", "topics"]
    session.table("rmq.metadata.files").collect()
    assert probe.scan()["metadata"] == "files"
    assert "topic" not in probe.scan()


def test_a_table_is_described(session: SparkSession) -> None:
    rows = session.sql("DESCRIBE rmq.orders").collect()

    assert [row.col_name for row in rows] == list(COLUMNS)


@pytest.mark.parametrize("name", ["orders", "`my-topic`", "`%RETRY%g`", "topics.orders"])
def test_a_topic_is_queried_by_its_name(
    session: SparkSession, probe: ProbeStore, name: str
) -> None:
    rows = session.table(f"rmq.{name}").where("a >= 8").select("a").collect()

    assert sorted(row.a for row in rows) == [8, 9]
    assert probe.columns() == ["a"]
    assert probe.scan()["topic"] == name.split(".")[-1].strip("`")
    assert probe.scan()["minpartitions"] == "7"


def test_another_store_is_named_by_its_path(
    session: SparkSession, probe: ProbeStore, tmp_path: Path
) -> None:
    other = other_store(probe, tmp_path)

    assert session.table(f"rmq.`{other.path}`.orders").select("a").count() == 3
    assert len(session.sql(f"SHOW TABLES IN rmq.`{other.path}`").collect()) == 3
    session.table(f"rmq.`{other.path}`.metadata.queues").collect()
    assert other.scan()["metadata"] == "queues"


def test_time_travel_arrives_as_options(session: SparkSession, probe: ProbeStore) -> None:
    session.sql("SELECT a FROM rmq.orders VERSION AS OF 4096").collect()
    assert probe.scan()["versionasof"] == "4096"

    query = "SELECT a FROM rmq.orders TIMESTAMP AS OF TIMESTAMP'2024-02-29 12:34:56.789012Z'"
    session.sql(query).collect()
    assert probe.scan()["__rmqlog.timestampasof"] == "1709210096789012"


def test_a_missing_topic_is_sparks_own_error(session: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        session.sql("SELECT * FROM rmq.nothing").collect()
    with pytest.raises(AnalysisException):
        session.sql("SELECT * FROM rmq.one.two.three.four").collect()
    assert not session.catalog.tableExists("rmq.nothing")
    assert session.catalog.tableExists("rmq.`%RETRY%g`")


def test_each_query_of_a_table_is_a_new_snapshot(session: SparkSession, probe: ProbeStore) -> None:
    assert session.sql("SELECT a FROM rmq.orders").count() == 10
    probe.grow(20)
    assert session.sql("SELECT a FROM rmq.orders").count() == 20
    join = "SELECT l.a FROM rmq.orders l JOIN rmq.orders r ON l.a = r.a"
    assert len(session.sql(join).collect()) == 20


def test_insert_into_appends_with_the_options_of_the_table(
    session: SparkSession, probe: ProbeStore
) -> None:
    session.sql("INSERT INTO rmq.orders (label, a) VALUES ('new', 1), (NULL, 2)")
    session.createDataFrame([("more", 3)], "label string, a int").writeTo("rmq.orders").append()
    session.sql("INSERT OVERWRITE rmq.orders (label, a) VALUES ('all', 4)")

    commits = probe.commits()
    assert [commit["rows"] for commit in commits] == [
        [{"label": "new", "a": 1}, {"label": None, "a": 2}],
        [{"label": "more", "a": 3}],
        [{"label": "all", "a": 4}],
    ]
    assert [commit["overwrite"] for commit in commits] == [False, False, True]
    assert {commit["options"]["topic"] for commit in commits} == {"orders"}


def test_topics_are_not_created_or_dropped_by_sql(session: SparkSession) -> None:
    with pytest.raises(Exception, match="does not support CREATE TABLE"):
        session.sql("CREATE TABLE rmq.fresh (a int)")
    with pytest.raises(Exception, match="does not support DROP TABLE"):
        session.sql("DROP TABLE rmq.orders")


def test_a_temporary_view_gets_its_options(spark: SparkSession, probe: ProbeStore) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING rmqlog "
        f"OPTIONS (path '{probe.path}', topic 'orders')"
    )

    assert spark.sql("SELECT a FROM v WHERE a = 3").collect() == [(3,)]
    assert probe.scan()["topic"] == "orders"
    assert "__rmqlog.filters" in probe.scan()


@pytest.fixture
def stored(spark: SparkSession, probe: ProbeStore) -> Iterator[None]:
    """A table of the session's own catalog."""
    spark.sql(
        f"CREATE TABLE stored USING rmqlog "
        f"OPTIONS (path '{probe.path}', topic 'orders', minPartitions '3')"
    )
    yield
    spark.sql("DROP TABLE stored")


@pytest.mark.usefixtures("stored")
def test_a_stored_table_gets_its_options_and_no_others(
    spark: SparkSession, probe: ProbeStore
) -> None:
    assert spark.sql("SELECT a FROM stored WHERE a = 3").collect() == [(3,)]
    own = {key for key in probe.scan() if not key.startswith("__rmqlog.")}
    assert own == {"path", "topic", "minpartitions"}
    assert probe.scan()["topic"] == "orders"
    assert probe.scan()["path"].endswith(str(probe.path))


@pytest.mark.usefixtures("stored")
def test_a_stored_table_is_a_new_snapshot_for_each_query(
    spark: SparkSession, probe: ProbeStore
) -> None:
    assert spark.table("stored").count() == 10
    probe.grow(12)
    assert spark.table("stored").count() == 12


@pytest.mark.usefixtures("stored")
def test_a_stored_table_is_written(spark: SparkSession, probe: ProbeStore) -> None:
    spark.sql("INSERT INTO stored (label, a) VALUES ('new', 1)")

    (commit,) = probe.commits()
    assert commit["rows"] == [{"label": "new", "a": 1}]
    assert commit["options"]["topic"] == "orders"


def test_a_stored_table_may_have_columns_and_a_location_of_its_own(
    spark: SparkSession, probe: ProbeStore
) -> None:
    spark.sql(f"CREATE TABLE narrow (x DOUBLE, a INT) USING rmqlog LOCATION '{probe.path}'")

    assert spark.sql("SELECT * FROM narrow WHERE a = 4").collect() == [(2.0, 4)]
    spark.sql("DROP TABLE narrow")
    assert (probe.path / "size").exists()
