"""The units of one (topic, queue): where its messages are in the log, and their tags' hashes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.compiled import kernels
from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import CorruptQueueError, InvalidNameError
from rmqlog.commitlog_format.layout import (
    CONSUME_QUEUE_FILE_UNITS,
    CONSUME_QUEUE_UNIT,
    EXT_ADDRESS_MAX,
)
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.mapped_windows import intact
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.unit_queue import UnitQueue

_UNIT_SIZE = CONSUME_QUEUE_UNIT.itemsize
_OPAQUE_UNIT = np.dtype(f"V{_UNIT_SIZE}")
_TAGS_CODE_POSITION = 12
#: Units mapped at once: a whole file of the usual size, since each mapping costs.
_WINDOW_COUNT = CONSUME_QUEUE_FILE_UNITS
#: Units looked at at once: the second look finds them in the processor's cache, and they are
#: enough that the calls for each block do not show.
_BLOCK_COUNT = 100_000
#: Up to so many tags codes are compared one after another, more by a table of their last words.
_FEW_CODES = 8


class ConsumeQueue(UnitQueue):
    """20-byte units by queue offset, over all files of one queue.

    ``ext`` is the queue's ext file, to which a unit's tags code may be an address.
    """

    def __init__(
        self,
        files: FileQueue,
        ext: ConsumeQueueExt | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(files, CONSUME_QUEUE_UNIT, limits)
        self.ext = ext

    @property
    def first_offset(self) -> int:
        """The queue offset of the first unit that the files have room for."""
        return self.first_index

    def matching_units(
        self, start: int, stop: int, tags_codes: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """The queue offsets in ``[start, stop)`` that have one of the codes, and their units.

        The log is not touched.
        """
        wanted = _WantedCodes(_checked_codes(tags_codes))
        indexes, units = [np.empty(0, np.int64)], [np.empty(0, _OPAQUE_UNIT)]
        self._checked_count(start, stop)
        window_count = max(1, min(_WINDOW_COUNT, self.limits.window_size // _UNIT_SIZE))
        for first, last in self._runs(start, stop, window_count):
            # Mapped: a copy would take as long again as the comparing does.
            window = self.files.window(
                first * _UNIT_SIZE, (last - first) * _UNIT_SIZE, sequential=True
            )
            with intact(window.data):
                for index in range(0, last - first, _BLOCK_COUNT):
                    data = window.data[index * _UNIT_SIZE : (index + _BLOCK_COUNT) * _UNIT_SIZE]
                    candidates = self._candidates(data, wanted)
                    if len(candidates):
                        indexes.append(candidates + (first + index))
                        # Opaque, because joining structured arrays would change their byte order.
                        units.append(data.view(_OPAQUE_UNIT)[candidates])
        candidate_units = np.concatenate(units)
        found = wanted.are_among(self.tags_codes(candidate_units.view(CONSUME_QUEUE_UNIT)))
        return np.concatenate(indexes)[found], candidate_units[found].view(CONSUME_QUEUE_UNIT)

    def tags_codes(self, units: NDArray[np.void]) -> NDArray[np.int64]:
        """The tags codes of units, from the ext file where a unit holds an address."""
        codes = units["tags_code"].astype(np.int64)
        addressed = codes <= EXT_ADDRESS_MAX
        if addressed.any():
            codes[addressed] = self._ext().resolve(codes[addressed])[0]
        return codes

    def _ext(self) -> ConsumeQueueExt:
        if self.ext is None:
            raise CorruptQueueError(
                "a unit points into the queue's ext file, and there is none",
                self.files.files[0].path,
            )
        return self.ext

    def _candidates(self, data: NDArray[np.uint8], wanted: _WantedCodes) -> NDArray[np.int64]:
        """Which units of a block may have one of the codes: their indexes in it."""
        candidates = wanted.candidates(data)
        if candidates is None:
            codes = self.tags_codes(data.view(CONSUME_QUEUE_UNIT))
            candidates = wanted.are_among(codes).nonzero()[0]
        return candidates


class _WantedCodes:
    """Tags codes to be looked for, in the form in which units are compared with them fastest."""

    def __init__(self, codes: NDArray[np.int64]) -> None:
        self._codes = codes
        # Equality needs no byte swap: the words are compared as they are on disk.
        on_disk = codes.astype(CONSUME_QUEUE_UNIT["tags_code"])
        self._low_halves = on_disk.view("<u4")[1::2]
        self._is_last_word = np.zeros(2**16, np.bool_)
        self._is_last_word[on_disk.view("<u2")[3::4]] = True

    def candidates(self, data: NDArray[np.uint8]) -> NDArray[np.int64] | None:
        """Which units of a block may have one of the codes; ``None`` if some hold addresses."""
        count = len(data) // _UNIT_SIZE
        loops = kernels(count)
        if loops is not None:
            found = np.empty(count + 1, np.int64)
            found_count = loops.find_codes(loops.read_only(data), self._is_last_word, found)
            return None if found_count == loops.HOLDS_ADDRESS else found[:found_count]
        matches = self._may_be_in(data)
        # Last, because the processor's cache then holds what is looked at only here and there.
        if _holds_address(_field(data, "i1", _TAGS_CODE_POSITION)):
            return None
        return matches.nonzero()[0]

    def _may_be_in(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        if not 0 < len(self._low_halves) <= _FEW_CODES:
            return self._is_last_word.take(_field(data, "<u2", _TAGS_CODE_POSITION + 6))
        # The low half of a code decides nearly always. To compare halves that lie apart takes
        # about as long as to put them side by side, where comparing costs next to nothing.
        halves = _field(data, "<u4", _TAGS_CODE_POSITION + 4)
        if len(self._low_halves) > 1:
            halves = halves.copy()
        matches: NDArray[np.bool_] = halves == self._low_halves[0]
        for one in self._low_halves[1:]:
            matches |= halves == one
        return matches

    def are_among(self, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some codes are wanted."""
        return np.isin(codes, self._codes)


def _holds_address(first_bytes: NDArray[np.int8]) -> bool:
    """Whether a unit may hold an address of the ext file.

    An address is -2**63 and the byte's offset, so its first byte is 0x80 (or a little more);
    hashes, sign-extended, begin with 0x00 or 0xff, delivery times with 0x00.
    """
    return bool(np.minimum.reduce(first_bytes) < -1)


def _field(data: NDArray[np.uint8], dtype: str, position: int) -> NDArray[Any]:
    """One field of each unit, in place."""
    return np.ndarray((len(data) // _UNIT_SIZE,), dtype, data, position, (_UNIT_SIZE,))


def _checked_codes(tags_codes: Collection[int]) -> NDArray[np.int64]:
    try:
        return np.unique(np.fromiter(tags_codes, np.int64, len(tags_codes)))
    except OverflowError as error:
        raise InvalidNameError(
            "no tags code is so large", found=sorted(tags_codes), expected="64-bit numbers"
        ) from error
