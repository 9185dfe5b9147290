"""``rmqlog demo``: the store of a small shop, the main Spark job on it, and two plots."""
