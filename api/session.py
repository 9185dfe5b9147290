"""Spark sessions that know rmqlog, and what one wants to ask of frames that it loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JAR = Path("bridge", "rmqlog-bridge.jar")
_CATALOG_CLASS = "org.rmqlog.spark.RmqlogCatalog"
_TOPIC_OPTIONS = ("topic", "topics", "topicspattern")
_SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


def jar_path() -> str:
    """The bridge's jar, for ``spark.jars`` of a session that you build yourself."""
    from rmqlog import spark_datasource

    return str(Path(str(spark_datasource.__file__)).parent / _JAR)


def session(
    path: str | None = None,
    *,
    catalog: str = "rmq",
    app_name: str = "rmqlog",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session with the bridge and this interpreter for its workers.

    With ``path`` the store's topics are tables of ``catalog``. ``settings`` are Spark's own.
    A session that runs already is used if it has the bridge; else this raises.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    given = dict(settings or {})
    jars = [jar for jar in (given.pop("spark.jars", ""), jar_path()) if jar]
    wanted = {**_SETTINGS, "spark.jars": ",".join(jars), **given}
    if master is not None or "SPARK_REMOTE" not in os.environ:
        wanted.setdefault("spark.master", master or "local[*]")
    for name, value in {**wanted, **_catalog_settings(catalog, path)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _check_bridge(spark)
    return spark


def register_views(
    spark: SparkSession, path: str, options: Mapping[str, str] | None = None
) -> list[str]:
    """A temporary view for each topic of a store, named like it; returns the names.

    ``options`` are those of reading, and may choose topics. Topics that differ only by case
    raise unless ``spark.sql.caseSensitive`` is set: one view would replace the other.
    """
    from rmqlog.spark_datasource.catalog import table_names
    from rmqlog.spark_datasource.options import Options

    given = dict(options or {})
    names: list[str] = table_names(Options({**given, "path": path})).fieldNames()
    if str(spark.conf.get("spark.sql.caseSensitive")).lower() != "true":
        _check_view_names(names)
    further = {name: text for name, text in given.items() if name.lower() not in _TOPIC_OPTIONS}
    for name in names:
        frame = spark.read.format("rmqlog").options(**further).option("topic", name).load(path)
        frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")
    return names


def explain(frame: DataFrame) -> str:
    """How a frame's scans of rmqlog will be read: paths, files, units, filters that were used."""
    from rmqlog.spark_datasource.explain import explain_frame

    return explain_frame(frame)


def ending_offsets(frame: DataFrame) -> str:
    """The JSON for ``startingOffsets`` with which the next read goes on where this frame ends."""
    from rmqlog.spark_datasource.explain import frame_ending_offsets

    return frame_ending_offsets(frame)


def _catalog_settings(catalog: str, path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    name = f"spark.sql.catalog.{catalog}"
    return {name: _CATALOG_CLASS, f"{name}.path": path}


def _check_view_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidNameError(
                "topics whose views would have the same name", found=f"{other!r} and {name!r}",
                expected="spark.sql.caseSensitive=true, or the option topics with one of them",
            )


def _check_bridge(spark: SparkSession) -> None:
    """Raise if the session's Java process was started without the jar: it cannot be added."""
    java = getattr(spark, "_jvm", None)
    if java is None:  # Spark Connect: the server has it or warns
        return
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_CATALOG_CLASS.replace(".", "/") + ".class") is None:
        raise InvalidSettingError(
            "Spark's Java process was started without the bridge's jar, and takes no new one; "
            "call rmqlog.session() before any other session, or start anew",
            expected=f"spark.jars={jar_path()}",
        )
