"""``checkpoint`` and ``abort``: what a broker noted about its last stop."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import CorruptConfigError, SegmentExpiredError
from rmqlog.commitlog_format.files import FileAccess

#: How far a broker looks back behind the times it noted (StoreCheckpoint.getMinTimestamp).
_SAFETY_MARGIN_MS = 3000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The six fields of ``checkpoint``; brokers before 5.5 leave the last ones 0.

    None of them is an authority for the end of the log: brokers leave them behind it even at a
    clean stop.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Messages stored before this time were flushed, queues included."""
        flushed = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(flushed - _SAFETY_MARGIN_MS, 0)

    def encode(self) -> bytes:
        """The bytes of the file, padded to its size."""
        fields = np.array([astuple(self)], layout.CHECKPOINT)
        return fields.tobytes().ljust(layout.CHECKPOINT_FILE_SIZE, b"\0")


def decode_checkpoint(data: bytes, path: str = "") -> Checkpoint:
    """The checkpoint in a file's bytes."""
    if len(data) < layout.CHECKPOINT.itemsize:
        raise CorruptConfigError(
            "checkpoint is too short", path, found=f"{len(data)} bytes",
            expected=f"{layout.CHECKPOINT_FILE_SIZE} bytes",
        )
    return Checkpoint(*np.frombuffer(data, layout.CHECKPOINT, 1)[0].item())


def read_checkpoint(access: FileAccess, directory: str) -> Checkpoint:
    """The checkpoint of a store; a missing one is all zero, as for the broker."""
    path = f"{directory}/{layout.CHECKPOINT_FILE}"
    try:
        file = access.open(path)
    except SegmentExpiredError:
        return Checkpoint()
    return decode_checkpoint(file.read(0, min(file.size(), layout.CHECKPOINT_FILE_SIZE)), path)
