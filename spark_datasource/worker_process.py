"""What a process that Spark started for us is to do: with memory, garbage, log, connections."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import resource
import socket
import stat
import sys
from dataclasses import replace

import pyarrow as pa

from rmqlog.commitlog_format.limits import MIB, Limits

#: A window and the columns that are made of it take several times its size, all at once.
_WINDOWS_IN_LIMIT = 64
#: Options of the C library's allocator, by their numbers in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: So much freed memory a worker keeps, in pieces of no more than this.
_KEPT_SIZE, _LARGEST_KEPT_SIZE = 64 * MIB, 16 * MIB
#: And so much where its address space is bounded.
_LARGEST_HEAP_SIZE = MIB // 2
#: Where a process finds its own open files, on Linux and macOS.
_DESCRIPTORS = "/dev/fd"
_TCP_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def fit_to_worker(limits: Limits) -> Limits:
    """The limits for this process: smaller windows where its address space is bounded.

    Arrow's own allocator reserves far more of it than it uses; the system's does not.
    """
    allowed = _address_space()
    if allowed is None:
        return limits
    pa.set_memory_pool(pa.system_memory_pool())
    window_size = max(MIB, allowed // _WINDOWS_IN_LIMIT)
    return replace(limits, window_size=min(limits.window_size, window_size))


def _address_space() -> int | None:
    """How much memory this process may map; ``None`` if nothing bounds it."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if allowed == resource.RLIM_INFINITY else allowed


def _is_worker() -> bool:
    """Whether this process is a worker of Spark, which has one task after another."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name == "pyspark.daemon"


def _set_allocator() -> None:
    """Say which pieces of memory the C library may keep when they are freed, and how much of it.

    By default it gives large ones back, and the system clears each page that it hands out again:
    a worker with room keeps them. But it learns to keep larger and larger ones, between which
    room is lost: one without returns them all.
    """
    if _address_space() is None:
        _set_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT_SIZE)
        _set_option(_M_TRIM_THRESHOLD, _KEPT_SIZE)
    else:
        _set_option(_M_MMAP_THRESHOLD, _LARGEST_HEAP_SIZE)
        _set_option(_M_TRIM_THRESHOLD, _LARGEST_HEAP_SIZE)
        # Else each thread reserves 64 MiB for itself.
        _set_option(_M_ARENA_MAX, 1)


def _set_option(option: int, value: int) -> None:
    """Set an option of the C library's allocator, if that is one that has options."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(option, value)


class _Frozen:
    """How many modules the collector of this process was told to pass over."""

    module_count = 0


def begin_task() -> None:
    """To be called when a task begins. It changes workers of Spark and no other process: what
    others keep and how they send it is not ours to say."""
    if _is_worker():
        _set_allocator()
        _spare_collector()
        _send_at_once()


def show_log() -> None:
    """Let what a worker says of a commit reach the driver's standard error, unless somebody has
    seen to it: by default Python shows warnings alone, and nothing else tells how a long commit
    gets on, or that a transaction was done before."""
    logger = logging.getLogger("rmqlog.writer")
    if _is_worker() and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)


def _spare_collector() -> None:
    """Tell the collector of garbage that modules stay; nothing of a task must stay with them.

    Spark's daemon has a worker collect garbage after each task, and that looks at every object
    there is: with all modules loaded it takes longer than many a task.
    """
    if len(sys.modules) == _Frozen.module_count:
        return
    gc.collect()  # what is garbage now would stay, too
    gc.freeze()
    _Frozen.module_count = len(sys.modules)


def _send_at_once() -> None:
    """Have the system send every answer when it is written, and acknowledge what comes.

    Spark leaves that to the system, which keeps a short piece until the one before it was
    acknowledged. Spark, which waits for the answer, acknowledges 40 ms later; so would we while
    Spark keeps the end of a stream of few rows.
    """
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # closed by now: the one that listed them
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family in _TCP_FAMILIES:
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        if sys.platform == "linux":  # no other system can be told
                            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
