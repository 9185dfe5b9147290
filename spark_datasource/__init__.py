"""The Spark glue: options, schema, planning, reading and writing by Spark's data source API."""
