"""Every claim of speed, as a ratio to a named reference in the same run."""
