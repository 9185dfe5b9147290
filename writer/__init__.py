"""Everything that changes a store: append, dispatch, flush, recover, commit. No Spark."""
