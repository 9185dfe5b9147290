"""What is in a store: ``info``, ``topics``, ``queues``, ``groups``."""

from __future__ import annotations

from datetime import tzinfo
from typing import Annotated, Any

import typer

from rmqlog.commands.guard import UsageError
from rmqlog.commands.output import (
    format_duration,
    format_size,
    format_time,
    json_time,
    parse_zone,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
)
from rmqlog.commands.parameters import (
    CommitLogOption,
    JsonOption,
    StoreArgument,
    ZoneOption,
    open_store,
)
from rmqlog.commands.progress import progress_bar
from rmqlog.commitlog_format.lag import QueueLag, group_lags
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.usage import TopicUsage, next_expiry, queue_usage, topic_usages
from rmqlog.writer.settings import StoreSettings

_LARGEST_COUNT = 10
_ROCKSDB_SENTENCE = "in RocksDB, which is not read: the whole log is scanned instead"


def info(
    store: StoreArgument,
    conf: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The broker's broker.conf, for its retention time."),
    ] = None,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """Show what a store is, and what expires next.

    Log, topics by size, times, index coverage, whether it stopped in order.
    """
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    settings = StoreSettings.from_file(conf) if conf else StoreSettings()
    with progress_bar("reading the queues"):
        facts = _facts(opened, topic_usages(opened), settings.fileReservedTime, zone)
    if as_json:
        print_json(facts)
        return
    _print_facts(facts)
    print_line()
    largest = sorted(facts["topics"], key=lambda topic: -topic["size"])[:_LARGEST_COUNT]
    print_table(
        ("topic", ">messages", ">size", ">share"),
        [
            (printable(topic["topic"]), str(topic["messages"]), format_size(topic["size"]),
             f"{topic['share']:.1%}")
            for topic in largest
        ],
    )
    if len(facts["topics"]) > len(largest):
        print_line(f"… and {len(facts['topics']) - len(largest)} smaller topics: rmqlog topics")


def _facts(
    store: Store, usages: list[TopicUsage], reserved_hours: int, zone: tzinfo | None
) -> dict[str, Any]:
    log_size = store.end - store.start
    covered = sum(
        max(0, min(stop, store.end) - max(start, store.start))
        for start, stop in store.index.coverage()
    )
    expiry = next_expiry(store, reserved_hours)
    return {
        "path": store.path,
        "segments": len(store.log.files.files),
        "segmentSize": store.log.files.file_size,
        "logStart": store.start,
        "logEnd": store.end,
        "endReason": str(store.log_end.reason) if store.log_end.reason else None,
        "messages": sum(usage.message_count for usage in usages),
        "notDispatched": sum(units.message_count for units in store.tail.values()),
        "queues": len(store.queues),
        "queuesInRocksDB": store.files.rocksdb_queues,
        "firstStored": json_time(
            min((one.first_ms for one in usages if one.first_ms is not None), default=None), zone
        ),
        "lastStored": json_time(
            max((one.last_ms for one in usages if one.last_ms is not None), default=None), zone
        ),
        "indexFiles": len(store.index.files),
        "indexCoverage": covered / log_size if log_size else 0.0,
        "stopped": "crashed or running" if store.was_killed else "clean",
        "nextExpiry": None if expiry is None else {
            "segment": expiry.segment.path,
            "size": expiry.segment.size,
            "expires": json_time(expiry.expires_ms, zone),
            "reservedHours": reserved_hours,
            "sizeByTopic": expiry.size_by_topic,
        },
        "topics": [_topic_facts(usage, log_size, zone) for usage in usages],
    }


def _topic_facts(usage: TopicUsage, log_size: int, zone: tzinfo | None) -> dict[str, Any]:
    return {
        "topic": usage.topic,
        "queues": usage.queue_count,
        "messages": usage.message_count,
        "size": usage.size,
        "share": usage.size / log_size if log_size else 0.0,
        "firstStored": json_time(usage.first_ms, zone),
        "lastStored": json_time(usage.last_ms, zone),
    }


def _print_facts(facts: dict[str, Any]) -> None:
    log_size = facts["logEnd"] - facts["logStart"]
    is_clean = facts["stopped"] == "clean"
    rows = [
        ("store", facts["path"]),
        ("log", f"{facts['segments']} segments of {format_size(facts['segmentSize'])}, "
                f"{format_size(log_size)} used"),
        ("offsets", f"{facts['logStart']} to {facts['logEnd']}"),
        ("messages", f"{facts['messages']} in {len(facts['topics'])} topics, "
                     f"{facts['queues']} queues"),
        ("stored", f"{_spoken(facts['firstStored'])} to"),
        ("", _spoken(facts["lastStored"])),
        ("index", f"{facts['indexFiles']} files, covering "
                  f"{int(facts['indexCoverage'] * 1000) / 10} % of the log"),
        ("stopped", "clean" if is_clean
         else "not in order: abort is there (a broker runs, or was killed)"),
    ]
    if facts["queuesInRocksDB"]:
        rows.append(("queues", _ROCKSDB_SENTENCE))
    elif facts["notDispatched"]:
        rows.append(("behind", f"{facts['notDispatched']} messages are not in the queues yet"))
    if facts["endReason"]:
        rows.append(("log end", printable(facts["endReason"])))
    expiry = facts["nextExpiry"]
    if expiry is None:
        rows.append(("expires", "nothing: the last segment always stays"))
    else:
        name = expiry["segment"].rsplit("/", 1)[-1]
        rows.append(("expires", f"{_spoken(expiry['expires'])[:-10]}{expiry['expires'][-6:]}: "
                                f"segment {name}"))
        largest = sorted(expiry["sizeByTopic"].items(), key=lambda item: -item[1])[:3]
        rows.append(("", "with " + ", ".join(
            f"{format_size(size)} of {printable(topic)}" for topic, size in largest
        )))
    print_fields(rows)


def _spoken(iso: str | None) -> str:
    return "-" if iso is None else iso.replace("T", " ", 1)


def topics(
    store: StoreArgument,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """List the topics: messages, bytes in the log, times."""
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    log_size = opened.end - opened.start
    with progress_bar("reading the queues"):
        usages = topic_usages(opened)
    if as_json:
        for usage in usages:
            print_json(_topic_facts(usage, log_size, zone))
        return
    print_table(
        ("topic", ">queues", ">messages", ">size", ">share", "=last stored"),
        [
            (printable(one.topic), str(one.queue_count), str(one.message_count),
             format_size(one.size), f"{one.size / log_size if log_size else 0:.1%}",
             format_time(one.last_ms, zone, exact=False))
            for one in usages
        ],
    )


def queues(
    store: StoreArgument,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only this topic.", show_default=False)
    ] = None,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """List the queues with their offsets."""
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    views = opened.queues_of(topic) if topic is not None else list(opened.queues.values())
    with progress_bar("reading the queues"):
        usages = [queue_usage(opened, view) for view in views]
    if as_json:
        for usage in usages:
            view = usage.view
            print_json({
                "topic": view.topic, "queueId": view.queue_id, "kind": view.kind.value,
                "minOffset": view.min_offset, "maxOffset": view.max_offset,
                "messages": len(view), "notDispatched": view.tail.message_count,
                "size": usage.size, "firstStored": json_time(usage.first_ms, zone),
                "lastStored": json_time(usage.last_ms, zone),
            })
        return
    print_table(
        ("topic", ">queue", ">first", ">next", ">size", "=last stored"),
        [
            (printable(one.view.topic), str(one.view.queue_id), str(one.view.min_offset),
             str(one.view.max_offset), format_size(one.size),
             format_time(one.last_ms, zone, exact=False))
            for one in usages
        ],
    )
    behind = sum(usage.view.tail.message_count for usage in usages)
    if opened.files.rocksdb_queues:
        print_line(f"the queues are {_ROCKSDB_SENTENCE}")
    elif behind:
        print_line(f"{behind} messages of these are in the log but not in the queue files yet")


def groups(
    store: StoreArgument,
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="Only this group.", show_default=False)
    ] = None,
    commit_log: CommitLogOption = None,
    as_json: JsonOption = False,
    tz: ZoneOption = None,
) -> None:
    """List consumer groups and how far they lag.

    In messages and in age. The age is how much earlier the oldest unconsumed message was stored
    than the newest one.
    """
    zone = parse_zone(tz)
    opened = open_store(store, commit_log)
    lags = [lag for lag in group_lags(opened) if group is None or lag.group == group]
    if group is not None and not lags:
        known = sorted({name for _, name in opened.config.consumer_offsets})
        raise UsageError(
            f"no such group: {group}; the store knows {', '.join(known) or 'none'}"
        )
    if as_json:
        for lag in lags:
            print_json(_lag_facts(lag, zone))
        return
    print_table(
        ("group", "topic", ">queue", ">offset", ">next", ">lag", ">age"),
        [
            (printable(lag.group), printable(lag.topic), str(lag.queue_id),
             str(lag.consumer_offset), _or_dash(lag.max_offset), _or_dash(lag.lag),
             format_duration(lag.age_ms))
            for lag in lags
        ],
    )


def _lag_facts(lag: QueueLag, zone: tzinfo | None) -> dict[str, Any]:
    return {
        "group": lag.group, "topic": lag.topic, "queueId": lag.queue_id,
        "consumerOffset": lag.consumer_offset, "maxOffset": lag.max_offset, "lag": lag.lag,
        "oldestUnconsumed": json_time(lag.oldest_unconsumed_ms, zone), "lagMs": lag.age_ms,
    }


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
