"""The Spark glue: options, schema, planning, reading and writing through Spark's data source API."""
