"""The commands of ``rmqlog``, one module for each kind of question; see ``rmqlog.cli``."""
