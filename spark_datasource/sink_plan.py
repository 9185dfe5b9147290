"""What is decided before a task of a write starts, and everything that is refused then."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.config_files import TOPICS
from rmqlog.commitlog_format.errors import (
    InvalidNameError,
    InvalidSettingError,
    RuleViolationError,
    nearest_name,
)
from rmqlog.spark_datasource.option_values import BRIDGE_PREFIX
from rmqlog.spark_datasource.sink_options import SinkOptions
from rmqlog.spark_datasource.staging_recipe import staging_recipe
from rmqlog.writer.batch_write import is_committed
from rmqlog.writer.commit_records import JobId, Transaction
from rmqlog.writer.message_columns import ASSIGNED_COLUMNS
from rmqlog.writer.posix import Posix
from rmqlog.writer.recovery import check_kind
from rmqlog.writer.rules import check_topic
from rmqlog.writer.staging import StagingPlan
from rmqlog.writer.topics_config import ConfigFile

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
#: The columns that a row is made of, and the types that each may have.
_COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "queueId": _INTEGERS,
    "tags": (StringType,),
    "keys": (StringType,),
    "body": (BinaryType, StringType),
    "properties": (MapType,),
    "flag": _INTEGERS,
    "bornTimestamp": (TimestampType, LongType),
    "bornHost": (StringType,),
    "uniqKey": (StringType,),
    "delayLevel": _INTEGERS,
}
_HASHED_TYPES = (*_INTEGERS, StringType)
_QUERY_ID = f"{BRIDGE_PREFIX}queryid"
#: How Spark calls the columns of VALUES.
_NAME_OF_VALUES = re.compile(r"col\d+")
_JOB_ID = re.compile(r"[0-9A-Za-z-]{1,64}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """One write: what tasks need, and what the commit needs besides.

    ``is_done`` tells that the transaction is in the store already: nothing is to be written.
    ``recipe`` is for the bridge, which finds it in the pickled writer.
    """

    job: JobId
    staging: StagingPlan
    lock_timeout_s: float
    is_done: bool
    recipe: str = ""


def plan_write(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Check options, columns and store; raises before anything is written."""
    options = SinkOptions(given)
    path = options.path
    check_columns(schema, options)
    if overwrite:
        _refuse_overwrite(path)
    check_kind(path)
    if options["topic"] is not None:
        _check_topic(options)
    transaction = None
    if options["txnAppId"] is not None:
        transaction = Transaction(options["txnAppId"], options["txnVersion"])
    job = JobId(_job_id(given), transaction)
    compression = options["compression"]
    staging = StagingPlan(
        store_path=path,
        job_id=job.job_id,
        settings=options.settings(),
        topic=options["topic"],
        queue_by=options.queue_by_column,
        queue_nums=options["queueNums"],
        queue_counts=_queue_counts(options),
        compression=None if compression == "none" else compression,
        compression_threshold=options["compressionThreshold"],
        allow_v2=options["messageVersion"] == "V2",
    )
    is_done = is_committed(path, job)
    recipe = "" if is_done else staging_recipe(given, schema, staging)
    return SinkPlan(job, staging, options["lockTimeout"] / 1000, is_done, recipe)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise unless every column of a frame can be written, or is one that the store assigns."""
    names = schema.fieldNames()
    by = options.queue_by_column
    for field in schema.fields:
        if names.count(field.name) > 1:
            raise InvalidNameError("a column comes twice", found=field.name)
        if field.name == by and not isinstance(field.dataType, _HASHED_TYPES):
            raise _wrong_type(field, "string or an integer type, to be hashed (queueBy)")
        _check_column(field, is_known=field.name == by)
    if "body" not in names:
        raise InvalidNameError(
            "a message needs a body", found="columns " + ", ".join(names), expected="body"
        )
    if "topic" not in names and options["topic"] is None:
        raise InvalidSettingError(
            "no topic", expected="the option topic, or a column of that name"
        )
    if by is not None and by not in names:
        raise InvalidSettingError(
            "queueBy names no column of the frame", found=by,
            expected=nearest_name(by, names, "one of " + ", ".join(names)),
        )
    ignored = [name for name in names if name in ASSIGNED_COLUMNS and name != by]
    if ignored:
        logger.warning("columns that the store assigns are ignored: %s", ", ".join(ignored))


def _check_column(field: StructField, *, is_known: bool) -> None:
    types = _COLUMN_TYPES.get(field.name)
    if types is None:
        if is_known or field.name in ASSIGNED_COLUMNS:
            return
        if _NAME_OF_VALUES.fullmatch(field.name):
            raise InvalidNameError(
                "values need the names of their columns", found=field.name,
                expected="such as INSERT INTO … (body, tags) VALUES …",
            )
        known = [*_COLUMN_TYPES, *ASSIGNED_COLUMNS]
        raise InvalidNameError(
            "no such column can be written", found=field.name,
            expected=nearest_name(field.name, known, "some of " + ", ".join(_COLUMN_TYPES)),
        )
    kind = field.dataType
    if isinstance(kind, NullType) and field.name != "body":
        return
    if not isinstance(kind, types) or (isinstance(kind, MapType) and not _is_text_map(kind)):
        names = "map<string,string>" if types == (MapType,) else " or ".join(
            one().simpleString() for one in types
        )
        raise _wrong_type(field, names)


def _is_text_map(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _wrong_type(field: StructField, expected: str) -> InvalidNameError:
    return InvalidNameError(
        f"column {field.name} has a type that cannot be written",
        found=field.dataType.simpleString(), expected=expected,
    )


def _check_topic(options: SinkOptions) -> None:
    """Refuse the topic of all rows now, and not with the first of them."""
    try:
        check_topic(options["topic"], 0, allow_v2=options["messageVersion"] == "V2")
    except RuleViolationError as error:
        raise InvalidSettingError(
            f"the option topic breaks a rule: {error.rule}", found=error.value,
        ) from error


def _refuse_overwrite(path: str) -> None:
    segments = f"{path}/{layout.COMMIT_LOG_DIRECTORY}"
    if os.path.isdir(segments) and os.listdir(segments):
        raise InvalidSettingError(
            "overwrite would delete a store, which is never done; use mode(\"append\") to add to "
            "it, or write to a new directory and let the broker use that one", path,
        )


def _job_id(given: Mapping[str, str]) -> str:
    """The id of Spark's query where the bridge tells it, else a new one."""
    for name, text in given.items():
        if name.lower() == _QUERY_ID and _JOB_ID.fullmatch(text):
            return text
    return str(uuid.uuid4())


def _queue_counts(options: SinkOptions) -> dict[str, int]:
    """The topics that exist, with the queues that rows of theirs are spread over."""
    content = ConfigFile(Posix(), options.path, TOPICS).content
    table = content.get("topicConfigTable", {})
    wanted = options["topic"]
    grows = "queueNums" in options.given
    counts = {
        topic: int(known.get("writeQueueNums", 0))
        for topic, known in table.items() if wanted in (None, topic)
    }
    if grows:
        counts = {topic: max(count, options["queueNums"]) for topic, count in counts.items()}
    return {topic: count for topic, count in counts.items() if count > 0}
