"""The bytes of a RocketMQ store: layouts, codecs and read-only views. No Spark, no writing."""
