"""rmqlog: Apache RocketMQ's message store as tables, without a broker."""

from rmqlog.commitlog_format.store import Store
from rmqlog.session import ending_offsets, explain, jar_path, register_views, session

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "ending_offsets",
    "explain",
    "jar_path",
    "open_store",
    "register_views",
    "session",
]


def open_store(path: str) -> Store:
    """A store directory as a read-only snapshot, without Spark."""
    return Store(path)
