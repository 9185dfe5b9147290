"""One ``load()`` is one snapshot: what is pinned then, and how a later scan opens it again.

The pins travel as JSON in the metadata of the schema's first field, with the bridge and
without. A schema of the user's own has none: then the snapshot is taken at planning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from rmqlog.commitlog_format.errors import InvalidNameError, InvalidSettingError
from rmqlog.commitlog_format.limits import DEFAULT_LIMITS, Limits
from rmqlog.commitlog_format.store import Store
from rmqlog.commitlog_format.store_set import StoreSet
from rmqlog.spark_datasource.offsets import group_offsets
from rmqlog.spark_datasource.options import GROUP_PREFIX, Options

SNAPSHOT_KEY: Final = "rmqlog.snapshot"


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """Which bytes of one store belong to a snapshot."""

    path: str
    broker_name: str
    start: int
    end: int
    dispatched_end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The stores of a frame as they were when it was loaded, and how it was loaded.

    ``group_offsets`` are the consumer groups' positions then, by group, broker, topic and
    queue, if the options name a group; ``options`` the user's own.
    """

    stores: tuple[PinnedStore, ...]
    group_offsets: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text for a field's metadata."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """The snapshot in a field's metadata."""
        found = json.loads(text)
        stores = tuple(PinnedStore(**store) for store in found["stores"])
        return cls(stores, found["group_offsets"], found["options"])


def limits_of(options: Options) -> Limits:
    """The bounds that the options set."""
    return replace(
        DEFAULT_LIMITS,
        record_size=options["maxRecordSize"],
        decompressed_size=options["maxDecompressedSize"],
    )


def open_new(options: Options) -> tuple[list[Store], Snapshot]:
    """The stores as they are now, or as of ``versionAsOf``."""
    stores = list(StoreSet.open(
        options.paths, broker_name=options["brokerName"], **_store_arguments(options)
    ))
    if options["storePathCommitLog"] is not None and len(stores) > 1:
        raise InvalidSettingError(
            "storePathCommitLog names the log of one store", found=f"{len(stores)} stores"
        )
    if options["versionAsOf"] is not None:
        stores = [_as_of(store, options, len(stores)) for store in stores]
    groups = {
        text.removeprefix(GROUP_PREFIX)
        for text in (options["startingOffsets"], options["endingOffsets"])
        if isinstance(text, str) and text.startswith(GROUP_PREFIX)
    }
    return stores, Snapshot(
        tuple(
            PinnedStore(store.path, store.broker_name, store.start, store.end,
                        store.dispatched_end)
            for store in stores
        ),
        {group: group_offsets(stores, group) for group in sorted(groups)},
        options.given,
    )


def open_pinned(options: Options, snapshot: Snapshot) -> list[Store]:
    """The stores of a snapshot, without what expired since: :mod:`expiry` judges that."""
    return [
        Store(
            pin.path, broker_name=pin.broker_name, end=pin.end,
            dispatched_end=pin.dispatched_end, **_store_arguments(options),
        )
        for pin in snapshot.stores
    ]


def find_snapshot(metadata: Mapping[str, Mapping[str, Any]]) -> Snapshot | None:
    """The snapshot among the metadata of a frame's columns."""
    for of_field in metadata.values():
        if SNAPSHOT_KEY in of_field:
            return Snapshot.from_json(of_field[SNAPSHOT_KEY])
    return None


def _store_arguments(options: Options) -> dict[str, Any]:
    return {
        "log_directories": options["storePathCommitLog"] or (),
        "index_slot_count": options["maxHashSlotNum"],
        "limits": limits_of(options),
    }


def _as_of(store: Store, options: Options, store_count: int) -> Store:
    """The store with its end pinned to a physical offset that the log reaches."""
    version = options["versionAsOf"]
    if isinstance(version, dict):
        if store.broker_name not in version:
            raise InvalidNameError(
                "versionAsOf names no offset for a broker", store.path,
                found=", ".join(version), expected=store.broker_name,
            )
        end = version[store.broker_name]
    elif store_count > 1:
        raise InvalidSettingError(
            "one physical offset for several stores", found=version,
            expected='JSON such as {"broker-a": 1024, "broker-b": 2048}',
        )
    else:
        end = version
    if not store.start <= end <= store.end:
        raise InvalidSettingError(
            "versionAsOf is no offset of the log", store.path, found=end,
            expected=f"{store.start} to {store.end}",
        )
    return Store(
        store.path, broker_name=store.broker_name, end=end,
        dispatched_end=min(end, store.dispatched_end), **_store_arguments(options),
    )
