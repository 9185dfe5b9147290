"""Reading within ``spark.executor.pyspark.memory``, which bounds a worker's address space."""

from __future__ import annotations

import resource
from dataclasses import replace

import pyarrow as pa

from rmqlog.commitlog_format.limits import MIB, Limits

#: A window and the columns that are made of it take several times its size, all at once.
_WINDOWS_IN_LIMIT = 32


def fit_to_worker(limits: Limits) -> Limits:
    """The limits for this process: smaller windows where its address space is bounded.

    Arrow's own allocator reserves far more of it than it uses; the system's does not.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed == resource.RLIM_INFINITY:
        return limits
    pa.set_memory_pool(pa.system_memory_pool())
    window_size = max(MIB, allowed // _WINDOWS_IN_LIMIT)
    return replace(limits, window_size=min(limits.window_size, window_size))
