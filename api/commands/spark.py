"""What needs Spark: ``sql``, and ``doctor``, which says why Spark does not work here."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqlog.commands.guard import UsageError, findings
from rmqlog.commands.output import (
    body_preview,
    parse_zone,
    print_json,
    print_line,
    print_note,
    print_table,
    printable,
)
from rmqlog.commands.parameters import JsonOption, StoreArgument, ZoneOption
from rmqlog.commands.progress import progress_bar
from rmqlog.commitlog_format.errors import StoreError
from rmqlog.commitlog_format.store_set import StoreSet
from rmqlog.machine import check_machine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CATALOG = "rmq"
#: An error of ours at the end of the stack that a task's exception carries.
_STORE_ERROR = re.compile(r"^rmqlog\.commitlog_format\.errors\.\w+: (.*)$", re.MULTILINE)


def sql(
    store: StoreArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL; every topic is a table.")],
    rows: Annotated[
        int, typer.Option(min=1, help="Show at most so many rows; --json writes all.")
    ] = 100,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say on stderr how the store is read.")
    ] = False,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Run SQL on a store, with Spark (needs Java).

    STORE may be a quoted glob, for a cluster. Every topic is a table; names such as
    %RETRY%billing need `backquotes`.
    """
    from pyspark.errors import PySparkException

    from rmqlog.commands.spark_session import spark_session

    zone = parse_zone(tz)
    StoreSet.open(store)  # a store that cannot be read is said at once, not after Spark's start
    settings = {} if tz is None else {"spark.sql.session.timeZone": tz}
    with spark_session(store, settings) as spark:
        try:
            spark.catalog.setCurrentCatalog(_CATALOG)
            frame = spark.sql(query)
            if explain:
                _explain(frame)
            if as_json:
                _print_json_rows(frame)
            else:
                _print_rows(frame, rows, zone)
        except PySparkException as error:
            in_a_task = _STORE_ERROR.search(str(error))
            if in_a_task is not None:
                raise StoreError(in_a_task[1]) from None
            raise UsageError(_first_sentence(str(error))) from None


def _explain(frame: DataFrame) -> None:
    from rmqlog.session import explain

    try:
        print_note(explain(frame))
    except StoreError as error:
        print_note(str(error))


def _print_json_rows(frame: DataFrame) -> None:
    """All rows, as Spark writes them, one partition in memory at a time."""
    text = "to_json(struct(*), map('ignoreNullFields', 'false')) AS json"
    for row in frame.selectExpr(text).toLocalIterator():
        print_line(row["json"])


def _print_rows(frame: DataFrame, count: int, zone: tzinfo | None) -> None:
    with progress_bar("Spark is running"):
        table = frame.limit(count + 1).toArrow()
    shown = table.slice(0, count)
    columns = [shown.column(place).to_pylist() for place in range(shown.num_columns)]
    print_table(
        [f">{name}" if _is_number(values) else name
         for name, values in zip(shown.column_names, columns, strict=True)],
        [[_cell(value, zone) for value in values] for values in zip(*columns, strict=True)],
    )
    if table.num_rows > count:
        print_line(f"… and more rows: --rows N shows N, --json all (here are {count})")
    else:
        print_line(f"{table.num_rows} rows")


def _is_number(values: list[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in present
    )


def _cell(value: object, zone: tzinfo | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return body_preview(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(zone)
        return moment.isoformat(" ", "milliseconds")
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value))


def _first_sentence(text: str) -> str:
    """Spark's message without its plan, its error class and its Java stack."""
    return re.sub(r"\s+", " ", text.split("\n\n")[0].split(" SQLSTATE:")[0].split(";\n")[0])


def doctor(
    start: Annotated[
        bool, typer.Option("--start", help="Also start Spark and run a small job.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether Spark will work here, and how to mend it.

    Java, pyspark, the bridge, the interpreter of the workers. Exit code 1 when something has to
    be mended.
    """
    checks = check_machine()
    for check in checks:
        if as_json:
            print_json({"check": check.name, "fine": check.is_fine, "found": check.found,
                        "fix": check.fix})
        else:
            print_line(f"{'ok   ' if check.is_fine else 'WRONG'} {check.name:<11} {check.found}")
            if check.fix is not None:
                print_line(f"      {'':<11} → {check.fix}")
    sys.stdout.flush()
    if not all(check.is_fine for check in checks):
        raise findings()
    if start:
        _start_spark()


def _start_spark() -> None:
    from rmqlog.commands.spark_session import spark_session

    begun = datetime.now(timezone.utc)
    with spark_session() as spark:
        count = spark.sparkContext.parallelize(range(10), 2).map(str).count()
    seconds = (datetime.now(timezone.utc) - begun).total_seconds()
    print_line(f"ok    session     Spark ran Python on {count} rows, {seconds:.0f} s in all")
