"""rmqlog: Apache RocketMQ's message store as tables, without a broker."""

from collections.abc import Sequence

from rmqlog.commitlog_format.files import LocalFiles
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
    path: str,
    *,
    log_directories: Sequence[str] = (),
    end: int | None = None,
    keep_page_cache: bool = True,
) -> Store:
    """A store directory as a read-only snapshot, without Spark; see :class:`Store`.

    ``keep_page_cache=False`` has the kernel forget what ``scan`` and ``read`` have read, so that
    they do not push out the pages that a live broker on this host needs. To read a topic of many
    queues then takes longer: they share pages, and are read one after another.
    """
    access = LocalFiles(keep_page_cache=keep_page_cache)
    return Store(path, log_directories=log_directories, end=end, access=access)
