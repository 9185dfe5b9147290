"""Which topics a read means: named ones always, the rest unless they are the system's."""

from __future__ import annotations

import re
from collections.abc import Sequence
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


def check_topics_exist(stores: Sequence[Store], options: Options) -> None:
    """Raise if a named topic is in no store, and suggest the nearest names.

    What only a walk of the log can tell (deleted topics, stores without queues) is not asked.
    """
    if options["includeDeletedTopics"] or not all(store.files.queues for store in stores):
        return
    known = {topic for store in stores for topic in store.topics}
    for topic in options.topics or ():
        if topic not in known:
            near = get_close_matches(topic, sorted(known), 3)
            raise TopicNotFoundError(
                "no such topic", ", ".join(store.path for store in stores), found=repr(topic),
                expected=" or ".join(map(repr, near)) if near else None,
            )
