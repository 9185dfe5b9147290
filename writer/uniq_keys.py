"""UNIQ_KEY for messages that have none, in the form that clients make (MessageClientIDSetter)."""

from __future__ import annotations

import os
import secrets
import threading
import time

import numpy as np
import pyarrow as pa

from rmqlog.commitlog_format.address import hex_column
from rmqlog.commitlog_format.layout import I32, uniq_key_dtype

_COUNTER_BITS = 16
_MILLISECONDS_A_SECOND = 1000


class UniqKeys:
    """Makes unique keys: address, process, a random number, time in the month, counter.

    A client's counter may wrap within a millisecond; ours then takes the next millisecond, so
    no key comes twice however fast they are made.
    """

    def __init__(self, host: bytes) -> None:
        self._address = host[: -I32.size]
        self._salt = secrets.randbits(32)
        self._last = 0
        self._mutex = threading.Lock()
        self._item = uniq_key_dtype(len(self._address))

    def make(self, count: int, now_ms: int) -> pa.StringArray:
        """So many keys, none of which was made before."""
        with self._mutex:
            first = max(now_ms << _COUNTER_BITS, self._last + 1)
            self._last = first + count - 1
        ticks = np.arange(first, first + count, dtype=np.int64)
        items = np.empty(count, self._item)
        items["address"] = np.frombuffer(self._address, self._item["address"])[0]
        items["process"] = os.getpid() & 0xFFFF
        items["salt"] = self._salt
        items["time_ms"] = (ticks >> _COUNTER_BITS) - month_start_ms(now_ms)
        items["counter"] = ticks & 0xFFFF
        return hex_column(items)


def month_start_ms(now_ms: int) -> int:
    """The first instant of the month in local time, as clients count."""
    now = time.localtime(now_ms / _MILLISECONDS_A_SECOND)
    start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int(start) * _MILLISECONDS_A_SECOND
