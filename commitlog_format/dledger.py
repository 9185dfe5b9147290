"""DLedger's own files beside its log: how far the group has committed.

Only entries up to the committed one are visible; a broker may hold more of them, which another
member can still overrule.
"""

from __future__ import annotations

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import (
    CorruptConfigError,
    SegmentExpiredError,
    TruncatedFileError,
)
from rmqlog.commitlog_format.files import FileAccess
from rmqlog.commitlog_format.segment import FileQueue

_COMMITTED_INDEX = "committedIndex"
_MAX_CHECKPOINT_SIZE = 65_536


def committed_end(access: FileAccess, path: str) -> int | None:
    """The physical offset behind the last committed entry; ``None`` where nothing says so.

    Without ``checkpoint`` (it is written every few seconds) all complete entries are visible:
    a group of one commits what it has.
    """
    committed = _committed_index(access, f"{path}/{layout.DLEDGER_CHECKPOINT_FILE}")
    if committed is None:
        return None
    if committed < 0:
        return 0
    try:
        index = FileQueue.open(access, [f"{path}/{layout.DLEDGER_INDEX_DIRECTORY}"])
        unit_size = layout.DLEDGER_INDEX_UNIT.itemsize
        unit = np.frombuffer(
            index.read(committed * unit_size, unit_size), layout.DLEDGER_INDEX_UNIT
        )[0]
    except (SegmentExpiredError, TruncatedFileError):
        return None
    position, size = int(unit["position"]), int(unit["size"])
    is_sound = unit["magic"] == layout.DLEDGER_MAGIC and unit["index"] == committed
    return position + size if is_sound and position >= 0 and size > 0 else None


def _committed_index(access: FileAccess, path: str) -> int | None:
    try:
        file = access.open(path)
    except SegmentExpiredError:
        return None
    size = file.size()
    if size > _MAX_CHECKPOINT_SIZE:
        raise CorruptConfigError("not a DLedger checkpoint", path, found=f"{size} bytes")
    text = file.read(0, size).decode("utf-8", "replace")
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == _COMMITTED_INDEX:
            try:
                return int(value.strip())
            except ValueError as error:
                raise CorruptConfigError(
                    "committedIndex is no number", path, found=repr(value)
                ) from error
    return None
