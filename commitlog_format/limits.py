"""The bounds that a reader enforces: every length is compared with one before it is used."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What one reader may spend. A value beyond a bound raises ``LimitExceededError``."""

    #: A record larger than this is damage. Brokers accept 4 MiB of body by default.
    record_size: int = 128 * MIB
    #: A compressed body that grows beyond this is a bomb, or needs a raised limit.
    decompressed_size: int = 64 * MIB
    #: zstd frames may ask for a window of up to 2 GiB; ours is bounded.
    zstd_window_size: int = 32 * MIB
    #: Compressed bodies of one batch of rows, together; a batch takes four times as much.
    batch_decompressed_size: int = 64 * MIB
    #: Messages of one inner batch (the broker's own counter is a signed 16-bit number).
    inner_batch_count: int = 32_767
    #: A file of ``config/`` larger than this is not read.
    config_size: int = 64 * MIB
    #: Files are mapped in windows of at most this size; Spark counts mappings as memory.
    window_size: int = 64 * MIB


DEFAULT_LIMITS = Limits()
