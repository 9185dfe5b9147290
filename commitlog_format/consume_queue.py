"""The units of one (topic, queue): where its messages are in the log, and their tags' hashes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmqlog.commitlog_format.consume_queue_ext import ConsumeQueueExt
from rmqlog.commitlog_format.errors import CorruptQueueError, InvalidNameError
from rmqlog.commitlog_format.layout import CONSUME_QUEUE_UNIT, EXT_ADDRESS_MAX
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.segment import FileQueue
from rmqlog.commitlog_format.unit_queue import UnitQueue

_Integer = TypeVar("_Integer", np.int64, np.uint32)

_UNIT_SIZE = CONSUME_QUEUE_UNIT.itemsize
_OPAQUE_UNIT = np.dtype(f"V{_UNIT_SIZE}")
_TAGS_CODE_POSITION = 12
#: Units looked at at once: they stay in the processor's cache, and are enough that the calls
#: for each block do not show.
_BLOCK_COUNT = 32_768
#: Up to so many tags codes are compared one after another, more with one sorted search.
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
        codes = _checked_codes(tags_codes)
        # Equality needs no byte swap: the words are compared as they are on disk.
        low_words = codes.astype(CONSUME_QUEUE_UNIT["tags_code"]).view("<u4")[1::2]
        indexes, units = [np.empty(0, np.int64)], [np.empty(0, _OPAQUE_UNIT)]
        count = self._checked_count(start, stop)
        block = np.empty(min(_BLOCK_COUNT, count) * _UNIT_SIZE, np.uint8)
        for first, last in self._runs(start, stop, _BLOCK_COUNT):
            data = block[: (last - first) * _UNIT_SIZE]
            self._read_into(first, data)
            candidates = self._candidates(data, codes, low_words)
            if len(candidates):
                indexes.append(candidates + first)
                # Opaque, because joining structured arrays would change their byte order.
                units.append(data.view(_OPAQUE_UNIT)[candidates])
        candidate_units = np.concatenate(units)
        found = _is_among(self.tags_codes(candidate_units.view(CONSUME_QUEUE_UNIT)), codes)
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

    def _candidates(
        self, data: NDArray[np.uint8], codes: NDArray[np.int64], low_words: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """Which units of a block may have one of the codes: their indexes in it."""
        if _holds_address(_field(data, "i1", _TAGS_CODE_POSITION)):
            return _is_among(self.tags_codes(data.view(CONSUME_QUEUE_UNIT)), codes).nonzero()[0]
        # The low half of a code decides nearly always. Put side by side the halves are compared
        # many at a time; where they lie, one by one.
        low_halves = _field(data, "<u4", _TAGS_CODE_POSITION + 4).copy()
        return _is_among(low_halves, low_words).nonzero()[0]


def _is_among(values: NDArray[_Integer], wanted: NDArray[_Integer]) -> NDArray[np.bool_]:
    """Which values are among the wanted ones."""
    if len(wanted) == 0 or len(wanted) > _FEW_CODES:
        return np.isin(values, wanted)
    matches: NDArray[np.bool_] = values == wanted[0]
    for one in wanted[1:]:
        matches |= values == one
    return matches


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
