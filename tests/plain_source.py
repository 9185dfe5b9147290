"""The source as Spark finds it when there is no jar, under a name that no jar has."""

from __future__ import annotations

from rmqlog.spark_datasource.source import RmqlogDataSource


class PlainSource(RmqlogDataSource):
    """Reads like ``rmqlog`` without the bridge."""

    @classmethod
    def name(cls) -> str:
        """Its own name: the jar takes ``rmqlog``."""
        return "rmqlog_plain"
