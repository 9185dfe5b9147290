"""Where the log goes on behind a damaged place: at the next record that proves itself.

Only for places below a snapshot's end: behind it, sound records of an earlier life of the file
would be found.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.commit_log import CommitLog
from rmqlog.commitlog_format.errors import StoreError, TruncatedFileError
from rmqlog.commitlog_format.layout import PREFIX
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.segment import Window

_MAGICS = tuple(
    PREFIX.pack(0, magic)[PREFIX.size // 2 :] for magic in (layout.MAGIC_V1, layout.MAGIC_V2)
)
#: How far in front of its magic number a record begins.
_MAGIC_PLACE = PREFIX.size // 2
_WINDOW_SIZE = 16 * 1024 * 1024


def next_sound_position(log: CommitLog, damaged: int, stop: int) -> int | None:
    """Where a walk can go on behind a damaged position of a segment, below ``stop``.

    A record is believed if it is whole, says that it lies where it was found, and its body
    matches its checksum. ``None`` if the segment has no such record any more.
    """
    header = log.entry_header_size(damaged)
    end = min(log.files.file_of(damaged).end, stop)
    for window in log.files.windows(damaged, end, _WINDOW_SIZE):
        # A magic number may lie across two windows.
        wide = log.files.window(window.start, len(window.data) + PREFIX.size)
        for place in _magic_places(wide):
            offset = place - _MAGIC_PLACE
            if damaged + header < offset < window.end and _is_sound(log, offset):
                return offset - header
    return None


def _magic_places(window: Window) -> Iterator[int]:
    """The offsets at which a magic number stands, ascending for each magic number."""
    with intact(window.data):
        data = window.data.tobytes()
    places: list[int] = []
    for magic in _MAGICS:
        place = data.find(magic)
        while place >= 0:
            places.append(window.start + place)
            place = data.find(magic, place + 1)
    return iter(sorted(places))


def _is_sound(log: CommitLog, offset: int) -> bool:
    try:
        log.message(offset, check_crc=True)
    except TruncatedFileError:  # it shrank since: nothing can be told of what was there
        raise
    except StoreError:
        return False
    return True
