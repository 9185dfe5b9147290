"""Which topics a read means: named ones always, the rest unless they are the system's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import TopicNotFoundError
from rmqlog.commitlog_format.store import Store
from rmqlog.spark_datasource.options import Options

_REPLY_SUFFIX = "_REPLY_TOPIC"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics of one store that are wanted, by name only; small and picklable.

    ``reserved`` are the cluster's and the broker's names, which brokers use as topics.
    """

    named: frozenset[str] | None
    pattern: re.Pattern[str] | None
    include_system: bool
    reserved: frozenset[str]

    def includes(self, topic: str) -> bool:
        """Whether a topic is wanted."""
        if self.named is not None:
            return topic in self.named
        if self.pattern is not None and self.pattern.fullmatch(topic) is None:
            return False
        return self.include_system or not self._is_system(topic)

    def _is_system(self, topic: str) -> bool:
        return (
            topic in layout.SYSTEM_TOPICS
            or topic in self.reserved
            or topic.startswith(layout.SYSTEM_TOPIC_PREFIXES)
            or topic.endswith(_REPLY_SUFFIX)
        )


def select_topics(store: Store, options: Options) -> TopicSelection:
    """The selection that the options make in one store."""
    named = options.topics
    include_system = options["includeSystemTopics"]
    reserved = frozenset[str]()
    if named is None and not include_system:
        clusters = {
            topic.removesuffix(_REPLY_SUFFIX)
            for topic in store.config.topics if topic.endswith(_REPLY_SUFFIX)
        }
        reserved = frozenset({store.broker_name, *clusters})
    return TopicSelection(
        None if named is None else frozenset(named), options["topicsPattern"], include_system,
        reserved,
    )


def table_topics(store: Store) -> set[str]:
    """The topics that are a store's tables, empty ones too.

    Without queue files its ``topics.json`` tells; only where there is none the log is walked.
    """
    if store.files.queues or not store.config.topics:
        return set(store.topics)
    return set(store.config.topics)


def check_topics_exist(stores: Sequence[Store], options: Options) -> None:
    """Raise if a named topic is in no store, and suggest the nearest names.

    In a store without queue files a topic that ``topics.json`` lacks may be in the log: that
    is looked up too. Deleted topics that are asked for are not; consumer groups outlive topics.
    """
    named = options.topics or ()
    known: set[str] = set()
    looks: list[Callable[[Store], set[str]]] = [table_topics, lambda store: set(store.topics)]
    if options["metadata"] == "groups":
        looks.append(lambda store: {topic for topic, _ in store.config.consumer_offsets})
    for look in looks:
        if options["includeDeletedTopics"] or known.issuperset(named):
            return
        known = known.union(*map(look, stores))
    for topic in named:
        if topic not in known:
            near = get_close_matches(topic, sorted(known), 3)
            raise TopicNotFoundError(
                "no such topic", ", ".join(store.path for store in stores), found=repr(topic),
                expected=" or ".join(map(repr, near)) if near else None,
            )
