"""What a user does today: ask a real broker with a real client, over loopback."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from benchmarks.harness import Case, Pair, seconds
from benchmarks.messages import TOPIC, write_store
from benchmarks.workspace import Workspace
from rmqlog.commitlog_format.lookup import TopicKeys
from rmqlog.commitlog_format.store import Store
from rmqlog.writer.settings import StoreSettings

_LOOKUP_COUNT = 100
_SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


def _by_key(workspace: Workspace) -> Pair:
    """Whole messages, one key after another; the broker serves the very same files."""
    from tests.broker.java_toolchain import LINE_5, prepare
    from tests.broker.real_broker import RealBroker

    count = workspace.scaled(400_000, 100_000)
    path = workspace.make("served", lambda folder: write_store(folder, count))
    settings = {name: getattr(StoreSettings(), name) for name in _SIZES}
    home = workspace.fresh("broker-home")
    broker = workspace.keep(RealBroker(prepare(LINE_5), workspace.java, home, path, settings))
    topic_keys = TopicKeys(Store(str(path)), TOPIC)
    numbers = iter(workspace.random.permutation(count - 2) + 1)

    def measure(ask: Callable[[str], int]) -> float:
        keys = [f"order-{number}" for number in islice(numbers, _LOOKUP_COUNT)]

        def look_up() -> None:
            for key in keys:
                assert ask(key) == 1

        return seconds(look_up)

    return Pair(
        lambda: measure(lambda key: sum(batch.num_rows for batch in topic_keys.find(key))),
        lambda: measure(lambda key: len(broker.ask("query-key", topic=TOPIC, key=key))),
        details={"messages": count, "lookups": _LOOKUP_COUNT},
    )


CASES = [Case("messages by key", "a real client that asks a real broker", 1.0, _by_key)]
