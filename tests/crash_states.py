"""What a disk may hold after a power cut, built from the list of a writer's calls.

The model is ALICE's, and pessimistic: until a sync covers it, each change (bytes, size, name)
may have reached the disk or not, independently of the others, and an unsynced write may be
torn at sectors, some of them garbage. A file system may forbid some of these states; none of
them may lose what was acknowledged.

No garbage in the log: its checksums cover bodies only, so nobody can tell garbage in topic or
properties from what was meant. (Disks write a sector whole or not at all, or fail to read it.)
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rmqlog.writer.posix import Action, Call, Posix

SECTOR_SIZES = (512, 4096)
_PAGE_SIZE = 4096


@dataclass(frozen=True)
class Write:
    """Bytes that went into a file; one change, however many pieces.

    Bytes that went through a map never make a file longer (``grows``).
    """

    inode: int
    pieces: tuple[tuple[int, bytes], ...]
    grows: bool
    is_log: bool


@dataclass(frozen=True)
class Resize:
    """A file that got a size, or at least a size (``grow``)."""

    inode: int
    size: int
    grow: bool


@dataclass(frozen=True)
class Link:
    """A name that came to be; ``inode`` 0 is a directory."""

    path: str
    inode: int


@dataclass(frozen=True)
class Unlink:
    """A name that went."""

    path: str


@dataclass(frozen=True)
class Rename:
    """A file's name that became another; once it has, it does not matter how it got the first."""

    path: str
    target: str
    inode: int


Change = Write | Resize | Link | Unlink | Rename


@dataclass
class Event:
    """One change, and the position in the trace at which it was known to be on disk."""

    change: Change
    position: int
    durable_at: int | None = None


@dataclass
class Trace:
    """The changes of one run in order, and notes of what was acknowledged when."""

    events: list[Event] = field(default_factory=list)
    notes: list[tuple[int, object]] = field(default_factory=list)
    length: int = 0

    def notes_before(self, position: int) -> list[object]:
        """What had been acknowledged when ``position`` calls were made."""
        return [note for at, note in self.notes if at <= position]


class RecordingPosix(Posix):
    """Posix that makes every call and writes down what it changes below ``root``."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self.trace = Trace()
        self._inodes: dict[str, int] = {}
        self._next_inode = 1
        self._recording = threading.RLock()

    def note(self, value: object) -> None:
        """Write down that something was acknowledged."""
        with self._recording:
            self.trace.notes.append((self.trace.length, value))

    def _perform(self, call: Call, action: Action) -> int | None:
        with self._recording:
            existed = os.path.lexists(call.path)
            result = action(call.size)
            self.trace.length += 1
            done = result if call.name == "pwrite" and result is not None else call.size
            self._record(call, existed, done)
            return result

    def _record(self, call: Call, existed: bool, done: int) -> None:
        path = os.path.relpath(call.path, self._root)
        if call.name in ("create", "mkdir"):
            if not existed:
                self._add(Link(path, self._new_inode(path) if call.name == "create" else 0))
        elif call.name == "rename":
            target = os.path.relpath(call.target, self._root)
            self._inodes[target] = self._inodes.pop(path)
            self._add(Rename(path, target, self._inodes[target]))
        elif call.name in ("unlink", "rmdir"):
            if existed:
                self._inodes.pop(path, None)
                self._add(Unlink(path))
        elif call.name == "fsync_directory":
            self._settle(lambda change: _directory_of(change) == path)
        elif call.name in ("sync", "fsync", "fdatasync"):
            self._settle_file(call, self._inodes[path])
        elif call.name != "open":
            self._record_content(call, path, done)

    def _record_content(self, call: Call, path: str, done: int) -> None:
        inode = self._inodes[path]
        if call.name == "truncate":
            self._add(Resize(inode, call.offset, grow=False))
        elif call.name == "allocate":
            self._add(Resize(inode, call.offset + done, grow=True))
        else:
            is_log = path.startswith("commitlog/")
            self._add(Write(inode, tuple(_pieces(call, done)), call.name == "pwrite", is_log))

    def _settle_file(self, call: Call, inode: int) -> None:
        start, stop = 0, 2**63
        if call.name == "sync":
            start = call.offset - call.offset % _PAGE_SIZE
            stop = -(-(call.offset + call.size) // _PAGE_SIZE) * _PAGE_SIZE

        def is_covered(change: Change) -> bool:
            if isinstance(change, Resize):
                return change.inode == inode
            return (
                isinstance(change, Write)
                and change.inode == inode
                and all(start <= at and at + len(data) <= stop for at, data in change.pieces)
            )

        self._settle(is_covered)

    def _settle(self, is_covered: object) -> None:
        for event in self.trace.events:
            if event.durable_at is None and is_covered(event.change):  # type: ignore[operator]
                event.durable_at = self.trace.length

    def _add(self, change: Change) -> None:
        self.trace.events.append(Event(change, self.trace.length))

    def _new_inode(self, path: str) -> int:
        self._inodes[path] = self._next_inode
        self._next_inode += 1
        return self._inodes[path]


def _pieces(call: Call, done: int) -> Iterator[tuple[int, bytes]]:
    assert call.data is not None
    if call.positions is None:
        yield call.offset, bytes(call.data[:done])
        return
    items = np.frombuffer(call.data, np.uint8).reshape(len(call.positions), -1)
    for position, item in zip(call.positions.tolist(), items, strict=True):
        yield position, item.tobytes()


def _directory_of(change: Change) -> str:
    if isinstance(change, Rename):
        return os.path.dirname(change.target) or "."
    if isinstance(change, Link | Unlink):
        return os.path.dirname(change.path) or "."
    return "no directory"


@dataclass(frozen=True)
class CrashState:
    """A crash behind ``position`` calls: which changes were lost, and which were torn how."""

    position: int
    lost: frozenset[int]
    torn: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"crash behind call {self.position}, lost {sorted(self.lost)}, torn {self.torn}"


def crash_states(trace: Trace, rng: random.Random) -> Iterator[CrashState]:
    """States without end, drawn from all crash points: one or two changes lost, all lost,
    any subset lost, and unsynced writes torn at sectors. Half of the crashes come while bytes
    of the log are unsynced."""
    critical = [
        position
        for event in trace.events
        if isinstance(event.change, Write) and event.change.is_log
        for position in range(event.position, event.durable_at or trace.length)
    ]
    while True:
        position = rng.randint(0, trace.length)
        if critical and rng.random() < 0.5:
            position = rng.choice(critical)
        pending = [
            number
            for number, event in enumerate(trace.events)
            if event.position <= position
            and (event.durable_at is None or event.durable_at > position)
        ]
        shape = rng.randrange(5)
        if shape < 2:
            lost = rng.sample(pending, min(len(pending), shape + 1))
        elif shape == 2:
            lost = pending
        else:
            lost = [number for number in pending if rng.random() < 0.5]
        torn = {}
        if shape == 4:
            writes = [n for n in pending if isinstance(trace.events[n].change, Write)]
            torn = {
                number: (rng.choice(SECTOR_SIZES), rng.getrandbits(32))
                for number in writes
                if rng.random() < 0.5
            }
        yield CrashState(position, frozenset(lost) - frozenset(torn), torn)


def materialise(trace: Trace, state: CrashState, path: Path) -> None:
    """Write the tree of a crash state below ``path``."""
    contents: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for number, event in enumerate(trace.events):
        if event.position > state.position:
            break
        change = event.change
        if isinstance(change, Link) and change.inode:
            contents[change.inode] = bytearray()
        if number in state.lost:
            continue
        _apply(change, contents, names, state.torn.get(number))
    for name, inode in sorted(names.items()):
        if os.path.dirname(name) and not (path / os.path.dirname(name)).is_dir():
            continue  # its directory was lost
        if inode == 0:
            (path / name).mkdir()
        else:
            (path / name).write_bytes(contents[inode])


def _apply(
    change: Change,
    contents: dict[int, bytearray],
    names: dict[str, int],
    torn: tuple[int, int] | None,
) -> None:
    if isinstance(change, Link):
        names[change.path] = change.inode
    elif isinstance(change, Unlink):
        names.pop(change.path, None)
    elif isinstance(change, Rename):
        names.pop(change.path, None)
        names[change.target] = change.inode
    elif isinstance(change, Resize):
        _resize(contents[change.inode], change.size, grow=change.grow)
    else:
        pieces = change.pieces if torn is None else _tear(change, *torn)
        content = contents[change.inode]
        for position, data in pieces:
            if change.grows:
                _resize(content, position + len(data), grow=True)
            size = len(content)
            content[position : position + len(data)] = data
            del content[size:]


def _resize(content: bytearray, size: int, *, grow: bool) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    elif not grow:
        del content[size:]


def _tear(change: Write, sector_size: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """The pieces sector by sector: each whole, absent or (outside of the log) garbage."""
    rng = random.Random(seed)
    for position, data in change.pieces:
        begin = position
        while begin < position + len(data):
            stop = min(begin - begin % sector_size + sector_size, position + len(data))
            fate = rng.randrange(3)
            if fate == 0:
                yield begin, data[begin - position : stop - position]
            elif fate == 1 and not change.is_log:
                yield begin, rng.randbytes(stop - begin)
            begin = stop
