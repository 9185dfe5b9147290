"""rmqlog: Apache RocketMQ's message store as tables, without a broker."""

__version__ = "0.1.0"
