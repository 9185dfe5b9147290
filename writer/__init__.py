"""Everything that changes a store: append, dispatch, flush, recover, commit. No Spark."""

from rmqlog.writer.appender import AppendResult
from rmqlog.writer.message_columns import NewMessage
from rmqlog.writer.rebuild import RebuildReport, rebuild
from rmqlog.writer.settings import FlushDiskType, StoreSettings
from rmqlog.writer.store_writer import PutResult, StoreWriter
from rmqlog.writer.transactions import Transaction

__all__ = [
    "AppendResult",
    "FlushDiskType",
    "NewMessage",
    "PutResult",
    "RebuildReport",
    "StoreSettings",
    "StoreWriter",
    "Transaction",
    "rebuild",
]
