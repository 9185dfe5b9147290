"""Where a read of each queue starts and stops: ``startingOffsets``, ``endingOffsets`` and kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rmqlog.commitlog_format.errors import (
    InvalidSettingError,
    SegmentExpiredError,
    TopicNotFoundError,
)
from rmqlog.commitlog_format.queue_view import QueueView
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_files import QueueKey
from rmqlog.spark_datasource.options import EARLIEST, GROUP_PREFIX, LATEST, Options
from rmqlog.spark_datasource.topics import table_topics

#: Topic → queue → offset.
QueueOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """The bounds that the options set, for all queues of all stores."""

    starting: str | dict[str, Any]
    ending: str | dict[str, Any]
    tail_count: int | None
    fail_on_data_loss: bool

    @classmethod
    def of(cls, options: Options, groups: dict[str, Any]) -> OffsetBounds:
        """The bounds in the options; ``groups`` are the consumer groups' positions."""
        return cls(
            _resolved(options["startingOffsets"], groups),
            _resolved(options["endingOffsets"], groups),
            options["tailMessages"],
            options["failOnDataLoss"],
        )

    @property
    def is_everything(self) -> bool:
        """Whether every queue is read from end to end."""
        return (
            self.starting == "earliest" and self.ending == "latest" and self.tail_count is None
        )

    def of_queue(self, broker_name: str, view: QueueView) -> tuple[int, int]:
        """The queue offsets ``[start, stop)`` to read of one queue."""
        low, high = view.min_offset, view.max_offset
        start = _bound(self.starting, broker_name, view, EARLIEST)
        stop = _bound(self.ending, broker_name, view, LATEST)
        if start < low < high or start > high:
            self._lost(view, start)
        start, stop = max(start, low), min(stop, high)
        if self.tail_count is not None:
            start = max(start, stop - self.tail_count)
        return start, max(start, stop)

    def _lost(self, view: QueueView, start: int) -> None:
        if self.fail_on_data_loss:
            raise SegmentExpiredError(
                f"startingOffsets of {view.topic!r} queue {view.queue_id} are not there; set "
                f"failOnDataLoss=false to read what is",
                found=f"offsets {view.min_offset} to {view.max_offset}", expected=start,
            )


def check_offset_names(stores: Sequence[Store], options: Options) -> None:
    """Raise if offsets in JSON name a broker, topic or queue that is not there: mistyped.

    Of topics that were deleted since, ``failOnDataLoss=false`` says that they may be missing. A
    queue that has had no message yet has no files, and its offsets are 0.
    """
    for option in ("startingOffsets", "endingOffsets"):
        given = options[option]
        if not isinstance(given, dict):
            continue
        names = {store.broker_name for store in stores}
        for broker_name, by_topic in given.items() if _has_brokers(given) else [("", given)]:
            if broker_name and broker_name not in names:
                raise InvalidSettingError(
                    f"{option} name a broker that is not there", found=repr(broker_name),
                    expected=" or ".join(map(repr, sorted(names))),
                )
            if options["failOnDataLoss"]:
                _check_topics(stores, option, by_topic)
                _check_queues(
                    [store for store in stores if broker_name in ("", store.broker_name)],
                    option, by_topic,
                )


def _check_topics(stores: Sequence[Store], option: str, by_topic: dict[str, Any]) -> None:
    known = {topic for store in stores for topic in {*store.topics, *table_topics(store)}}
    for topic in by_topic:
        if topic not in known:
            near = get_close_matches(topic, sorted(known), 3)
            raise TopicNotFoundError(
                f"{option} name a topic that is not there",
                ", ".join(store.path for store in stores), found=repr(topic),
                expected=" or ".join(map(repr, near)) if near else None,
            )


def _check_queues(
    stores: Sequence[Store], option: str, by_topic: dict[str, dict[str, int]]
) -> None:
    for topic, by_queue in by_topic.items():
        for queue_id, offset in by_queue.items():
            key = QueueKey(topic, int(queue_id))
            if offset > 0 and not any(
                key in store.files.queues or key in store.tail for store in stores
            ):
                raise TopicNotFoundError(
                    f"{option} name a queue that is not there; set failOnDataLoss=false to read "
                    f"what is", ", ".join(store.path for store in stores),
                    found=f"{topic!r} queue {queue_id}",
                )


def group_offsets(stores: Sequence[Store], group: str) -> dict[str, QueueOffsets]:
    """A consumer group's positions in each store; a group that no store knows raises."""
    found = {
        store.broker_name: {
            topic: {str(queue_id): offset for queue_id, offset in offsets.items()}
            for (topic, name), offsets in store.config.consumer_offsets.items() if name == group
        }
        for store in stores
    }
    if not any(found.values()):
        known = {name for store in stores for _, name in store.config.consumer_offsets}
        raise InvalidSettingError(
            "no such consumer group", stores[0].path, found=group,
            expected=f"one of {sorted(known)}",
        )
    return found


def _resolved(given: str | dict[str, Any], groups: dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(given, str) and given.startswith(GROUP_PREFIX):
        offsets: dict[str, Any] = groups[given.removeprefix(GROUP_PREFIX)]
        return offsets
    return given


def _bound(
    given: str | dict[str, Any], broker_name: str, view: QueueView, default: int
) -> int:
    offset = default
    if isinstance(given, dict):
        offset = _lookup(given, broker_name, view, default)
    elif given == "latest":
        offset = LATEST
    elif given == "earliest":
        offset = EARLIEST
    if offset == LATEST:
        return view.max_offset
    return view.min_offset if offset == EARLIEST else offset


def _lookup(given: dict[str, Any], broker_name: str, view: QueueView, default: int) -> int:
    """The offset in ``{topic: {queue: offset}}`` or ``{broker: {topic: {queue: offset}}}``."""
    by_topic = given
    if _has_brokers(given):
        by_topic = given.get(broker_name, {})
    offset: int = by_topic.get(view.topic, {}).get(str(view.queue_id), default)
    return offset


def _has_brokers(given: dict[str, Any]) -> bool:
    """Whether the offsets are one level deeper, by broker."""
    return any(isinstance(inner, dict) for value in given.values() for inner in value.values())
