"""A batch commit of ours that has not passed its gate: readers end the log in front of it.

While a job is copied into a store, its queue units already point at records that must not be
seen. The manifest says where the job starts; the job becomes visible when the magic number of
its first record (or of the filler in front of it) is written, last of all.
"""

from __future__ import annotations

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.config_files import parse_json
from rmqlog.commitlog_format.errors import CorruptConfigError, SegmentExpiredError, StoreError
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.segment import FileQueue

_MAX_MANIFEST_SIZE = 16 * 1024 * 1024


def pending_commit_start(access: FileAccess, store_path: str, log: CommitLog) -> int | None:
    """Where an unfinished commit starts whose gate is shut; ``None`` when there is none."""
    path = f"{store_path}/{layout.RMQLOG_DIRECTORY}/{layout.COMMIT_MANIFEST_FILE}"
    try:
        file = access.open(path)
    except SegmentExpiredError:
        return None
    size = file.size()
    if size > _MAX_MANIFEST_SIZE:
        raise CorruptConfigError("commit manifest is too large", path, found=size)
    manifest = parse_json(file.read(0, size), path)
    start = manifest.get(layout.COMMIT_MANIFEST_START)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise CorruptConfigError("commit manifest names no start", path, found=repr(start)[:80])
    return None if is_gate_open(log.files, start) else start


def is_gate_open(log: FileQueue, start: int) -> bool:
    """Whether a record or a filler begins at the start of a job; half a magic number is none."""
    try:
        prefix = log.read(start, layout.PREFIX.size)
    except StoreError:
        return False
    magics = (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)
    return layout.PREFIX.unpack(prefix)[1] in magics
