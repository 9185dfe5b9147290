"""rmqlog: Apache RocketMQ's message store as tables, without a broker."""

from collections.abc import Sequence

from rmqlog.commitlog_format.lookup import find_by_key
from rmqlog.commitlog_format.store import Store
from rmqlog.session import ending_offsets, explain, jar_path, register_views, session

__version__ = "0.1.0"

__all__ = [
    "Store",
    "__version__",
    "ending_offsets",
    "explain",
    "find_by_key",
    "jar_path",
    "open_store",
    "register_views",
    "session",
]


def open_store(
    path: str, *, log_directories: Sequence[str] = (), end: int | None = None
) -> Store:
    """A store directory as a read-only snapshot, without Spark; see :class:`Store`."""
    return Store(path, log_directories=log_directories, end=end)
