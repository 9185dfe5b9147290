"""When loops are compiled: loading numba takes as long as numpy takes for a million rows or two,
and some 130 MiB of memory.

Every loop of :mod:`kernels` has a twin in numpy, which serves small requests, damaged records and
everything else that is unusual. So nothing depends on numba, and a process that reads a few
messages never loads it.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from types import ModuleType

#: What a process may be told by its environment: ``auto``, ``always`` or ``never``.
COMPILE_VARIABLE = "RMQLOG_COMPILE"
#: Batches of fewer rows are not worth the calls.
SMALLEST_BATCH = 256
#: So many rows repay the loading, where it is known that they come.
_ROWS_THAT_REPAY = 4_000_000
#: When a process has had so many rows, it is likely to have as many again. A segment of a gibibyte
#: has fewer, however small its records are, so that a scan of one stays within 200 MiB.
_ROWS_BEFORE_LOADING = 12_000_000
#: The compiler maps this much memory, which counts where the address space is limited.
_LEAST_ADDRESS_SPACE = 1 << 30

logger = logging.getLogger(__name__)


class Loading:
    """Counts what a process has had to do, and loads the kernels when that is much."""

    def __init__(self) -> None:
        self.choice = os.environ.get(COMPILE_VARIABLE, "auto")
        self.row_count = 0
        self.is_worthwhile = False
        self.module: ModuleType | None = None
        self.is_settled = False
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Load the kernels, or find that they are not to be had."""
        with self._lock:
            if not self.is_settled:
                self.module = _load()
                self.is_settled = True


_loading = Loading()


def count_rows(row_count: int) -> None:
    """Note that this process has so many rows more to do; once for each batch."""
    _loading.row_count += row_count
    if _loading.row_count >= _ROWS_BEFORE_LOADING:
        _loading.is_worthwhile = True


def expect_rows(row_count: int) -> None:
    """Announce that so many rows will follow, before the first of them is counted.

    For work that knows its size and is not bound to the memory of a scan: the loops come sooner.
    """
    if _loading.row_count + row_count >= _ROWS_THAT_REPAY:
        _loading.is_worthwhile = True


def kernels(row_count: int) -> ModuleType | None:
    """The compiled loops for a batch of so many rows; ``None`` while numpy is the better choice."""
    if row_count < SMALLEST_BATCH or _loading.choice == "never":
        return None
    if not _loading.is_settled:
        if not _loading.is_worthwhile and _loading.choice != "always":
            return None
        _loading.settle()
    return _loading.module


def _load() -> ModuleType | None:
    """The module of the kernels, unless this process cannot or should not have them."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        return None
    if sys.byteorder != "little":
        return None
    try:
        from rmqlog.commitlog_format import kernels
    # numba's word for «there is no place to keep what is compiled»: to compile anew in each
    # process would take seconds.
    except (ImportError, RuntimeError) as error:
        logger.info("numpy alone decodes and encodes: %s", error)
        return None
    return kernels
