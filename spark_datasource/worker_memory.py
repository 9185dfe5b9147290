"""How a worker of Spark treats memory: limits of address space, and the collector of garbage."""

from __future__ import annotations

import gc
import resource
import sys
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


class _Frozen:
    """How many modules the collector of this process was told to pass over."""

    module_count = 0


def spare_collector() -> None:
    """Tell the collector of garbage that modules stay; to be called when a task is done.

    Spark's daemon has a worker collect garbage after each task, and that looks at every object
    there is: with all modules loaded it takes longer than many a task. Only where the process
    is such a worker: what others keep, and for how long, is not ours to say.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is None or main.name != "pyspark.daemon" or len(sys.modules) == _Frozen.module_count:
        return
    gc.collect()  # what is garbage now would stay, too
    gc.freeze()
    _Frozen.module_count = len(sys.modules)
