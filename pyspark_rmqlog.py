"""How Spark finds the source: an installed module ``pyspark_…`` with a ``DefaultSource``."""

from rmqlog.spark_datasource.source import RmqlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
