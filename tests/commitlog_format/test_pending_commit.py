"""A batch commit under way: its manifest, sound and damaged."""

from __future__ import annotations

import pytest
from built_stores import ROOT, build_store, numbered_records
from memory_files import MemoryFiles

from rmqlog.commitlog_format.errors import CorruptConfigError
from rmqlog.commitlog_format.pending_commit import pending_commit_start
from rmqlog.commitlog_format.store import Store

BUILT = build_store(numbered_records(8))
MANIFEST = f"{ROOT}/rmqlog/commit.json"


def pending_start(manifest: bytes) -> int | None:
    """Where a commit with this manifest keeps readers out."""
    access = MemoryFiles(BUILT.files | {MANIFEST: manifest})
    log = Store(ROOT, access=MemoryFiles(dict(BUILT.files))).log
    return pending_commit_start(access, ROOT, log)


def test_an_open_gate_keeps_nobody_out() -> None:
    assert pending_start(b'{"startOffset": 0}') is None


@pytest.mark.parametrize("start", [3000, 4095, 10**15, 2**70])
def test_a_shut_gate_is_where_the_commit_starts(start: int) -> None:
    assert pending_start(b'{"startOffset": %d}' % start) == start


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{}", b'{"startOffset": -1}', b'{"startOffset": true}', b'{"startOffset": "0"}', b"[]"],
)
def test_a_manifest_without_a_start_is_an_error(manifest: bytes) -> None:
    with pytest.raises(CorruptConfigError) as caught:
        pending_start(manifest)
    assert caught.value.path == MANIFEST


def test_a_manifest_that_is_too_large_is_not_read() -> None:
    with pytest.raises(CorruptConfigError, match="too large"):
        pending_start(bytes(16 * 1024 * 1024 + 1))
