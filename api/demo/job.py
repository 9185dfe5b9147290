"""The demo's Spark job: each step with its SQL, its answer, its access path and its time.

Every query runs twice, on two catalogs over the same store: one plans with the filters, one
reads everything and lets Spark filter, as a source without pushdown would.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rmqlog.commands.guard import MachineError
from rmqlog.commands.output import format_size, print_fields, print_line, print_table
from rmqlog.demo.shop import HOT_CUSTOMER, Shop
from rmqlog.session import explain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_CATALOG_CLASS = "org.rmqlog.spark.RmqlogCatalog"
#: Catalogs by name: the options of each beside the path.
_CATALOGS = {
    "shop": {},
    "shop_scan": {"pushdown": "false"},
    "by_key": {"explodeKeys": "true"},
    "by_key_scan": {"explodeKeys": "true", "pushdown": "false"},
}
#: A short job: compiling it at length would take longer than it runs.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MINUTE_MS = 60_000
_CANCELLED = """\
SELECT get_json_object(CAST(body AS STRING), '$.city') AS city,
       count(*) AS cancelled
FROM {catalog}.orders WHERE tags = 'CANCELLED'
GROUP BY 1 ORDER BY cancelled DESC LIMIT 3"""
_ONE_ORDER = """\
SELECT queueId, queueOffset, tags, storeTimestamp
FROM {catalog}.payments WHERE key = 'order-4711'
ORDER BY storeTimestamp"""
_SINCE = """\
SELECT tags, count(*) AS orders
FROM {catalog}.orders
WHERE storeTimestamp >= TIMESTAMP '{since}'
GROUP BY tags ORDER BY orders DESC"""
_REFUNDS = """\
SELECT city, count(*) AS refunds, round(sum(amount)) AS total
FROM (SELECT split(keys, ' ')[0] AS id,
             get_json_object(CAST(body AS STRING), '$.city') AS city
      FROM {catalog}.orders WHERE tags = 'PAID')
JOIN (SELECT split(keys, ' ')[0] AS id,
             get_json_object(CAST(body AS STRING), '$.amount') AS amount
      FROM {catalog}.payments WHERE tags = 'REFUND') USING (id)
GROUP BY city ORDER BY total DESC LIMIT 3"""
VIP_TOPIC = "vip_orders"
_HOT_KEY = f"customer-{HOT_CUSTOMER}"
_SHOWN_DETAILS = ("Path", "Queues")
_ROUND_COUNT = 2
_SHOWN_METRICS = ("units to read", "index entries")


@dataclass(frozen=True, slots=True)
class Step:
    """A question, and its SQL with ``{catalog}`` where the catalog's name belongs."""

    title: str
    query: str
    catalog: str = "shop"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a step took, in seconds, with pushdown and without."""

    title: str
    pushed_s: float
    scanned_s: float


def spark_settings(path: str) -> dict[str, str]:
    """Spark's settings for the demo: its catalogs over one store, and a quick start."""
    settings = {"spark.driver.extraJavaOptions": _JAVA_OPTIONS, "spark.sql.shuffle.partitions": "2"}
    for name, options in _CATALOGS.items():
        prefix = f"spark.sql.catalog.{name}"
        settings[prefix] = _CATALOG_CLASS
        settings[f"{prefix}.path"] = path
        settings.update({f"{prefix}.{option}": value for option, value in options.items()})
    return settings


def steps(shop: Shop) -> list[Step]:
    """The questions of the demo."""
    since = datetime.fromtimestamp((shop.end_ms - 30 * _MINUTE_MS) / 1000, timezone.utc)
    return [
        Step("Tag filter: where are orders cancelled?", _CANCELLED),
        Step("Key lookup: what was paid for order 4711?", _ONE_ORDER, "by_key"),
        Step("Time range: orders of the last half hour",
             _SINCE.replace("{since}", f"{since:%Y-%m-%d %H:%M:%S}+00:00")),
        Step("Join and aggregate: refunds of paid orders", _REFUNDS),
    ]


def warm_up(spark: SparkSession) -> None:
    """Run a query of each kind, so that the first step does not pay for Spark's start."""
    for catalog in ("shop", "shop_scan"):
        spark.sql(_CANCELLED.format(catalog=catalog).replace("orders", "clicks")).collect()


def run_step(spark: SparkSession, number: int, step: Step) -> Timing:
    """Run a query both ways, compare the answers, and show what is to be seen."""
    print_line(f"\n{number}. {step.title}\n")
    print_line(textwrap.indent(step.query.format(catalog=step.catalog), "   "))
    # In turns, and the better of two: neither way always finds the caches of the other.
    runs = [
        (_timed(spark, step, step.catalog), _timed(spark, step, f"{step.catalog}_scan"))
        for _ in range(_ROUND_COUNT)
    ]
    pushed_s, scanned_s = (min(seconds for seconds, _ in way) for way in zip(*runs, strict=True))
    answers = [table for turn in runs for _, table in turn]
    if any(answer.to_pylist() != answers[0].to_pylist() for answer in answers):
        raise MachineError(f"the two ways to run '{step.title}' disagree; please report it")
    print_line()
    _print_answer(answers[0])
    print_line()
    print_fields(_access_path(spark.sql(step.query.format(catalog=step.catalog))), "   ")
    print_line(f"   time: {pushed_s:.2f} s; without pushdown {scanned_s:.2f} s "
               f"({scanned_s / max(pushed_s, 0.001):.1f} times)")
    return Timing(step.title.split(":")[0], pushed_s, scanned_s)


def write_back(spark: SparkSession, shop: Shop, number: int) -> None:
    """Write the big customer's orders into the store as a topic of their own, and read them."""
    print_line(f"\n{number}. Write back: {_HOT_KEY}'s orders as a topic of their own\n")
    print_line(f"""\
   vip = spark.table("by_key.orders").where("key = '{_HOT_KEY}'").drop("key")
   (vip.write.format("rmqlog").option("topic", "{VIP_TOPIC}")
       .mode("append").save("{shop.path}"))
   spark.table("shop.{VIP_TOPIC}").count()""")
    vip = spark.table("by_key.orders").where(f"key = '{_HOT_KEY}'").drop("key")
    begun = time.perf_counter()
    vip.write.format("rmqlog").option("topic", VIP_TOPIC).mode("append").save(shop.path)
    written_s = time.perf_counter() - begun
    count = spark.table(f"shop.{VIP_TOPIC}").count()
    if count != vip.count():
        raise MachineError(f"{vip.count()} were written, {count} are read; please report it")
    print_line(f"\n   {count} messages written in {written_s:.2f} s, all or nothing, and read "
               "again")


def _timed(spark: SparkSession, step: Step, catalog: str) -> tuple[float, pa.Table]:
    """Run a step with a new frame: of an old one Spark keeps shuffled rows."""
    frame = spark.sql(step.query.format(catalog=catalog))
    begun = time.perf_counter()
    table = frame.toArrow()
    return time.perf_counter() - begun, table


def _print_answer(table: pa.Table) -> None:
    rows = table.to_pylist()
    print_table([f"   {table.column_names[0]}", *(f">{name}" for name in table.column_names[1:])],
                [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    texts = [
        value.isoformat(" ", "seconds") if isinstance(value, datetime) else str(value)
        for value in row.values()
    ]
    return [f"   {texts[0]}", *texts[1:]]


def _access_path(frame: DataFrame) -> list[tuple[str, str]]:
    """What ``rmqlog.explain`` says of a frame's scans, the lines that matter here."""
    shown: list[tuple[str, str]] = []
    for line in explain(frame).splitlines():
        name, _, value = line.strip().partition(": ")
        if name in (*_SHOWN_DETAILS, *_SHOWN_METRICS) and value not in ("", "0"):
            shown.append((name.lower(), value))
        elif name == "log bytes to read":
            shown.append(("log to read", format_size(int(value.replace(",", "")))))
    return shown
