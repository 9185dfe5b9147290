"""Every claim of speed, as a ratio to a named reference in the same run."""

import os

#: As Java's classes are warmed up before they are measured, ours have their compiled loops from
#: the start, which they would have after some million rows. Workers of Spark inherit it.
os.environ.setdefault("RMQLOG_COMPILE", "always")
