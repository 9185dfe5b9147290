"""One writer, no broker: the lock on a store, and who holds it.

A broker locks byte 0 of ``lock`` (DefaultMessageStore.start), and so do we. It does so only
after it has loaded and recovered the store, so a broker that is starting up is not seen by
the lock alone: a live process that ``abort`` names counts as a holder too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import weakref
from pathlib import Path

from rmqlog.commitlog_format import layout
from rmqlog.commitlog_format.errors import StoreLockedError
from rmqlog.writer.posix import Posix

#: Who of us writes, in ``<store>/rmqlog``. Only read when the lock is taken, never trusted alone.
OWNER_FILE = "owner.json"
_LOCK_CONTENT = b"lock"


class StoreLock:
    """The held lock of one store. ``release`` it, or use it as a context manager."""

    def __init__(self, posix: Posix, store_path: str) -> None:
        """Take the lock; ``StoreLockedError`` names the holder where it can be known."""
        self._posix = posix
        self._owner_path = f"{store_path}/{layout.RMQLOG_DIRECTORY}/{OWNER_FILE}"
        path = f"{store_path}/{layout.LOCK_FILE}"
        _make_directory(posix, store_path)
        self._descriptor = posix.open(path, create=not os.path.exists(path))
        try:
            self._take(store_path, path)
        except BaseException:
            posix.close(self._descriptor)
            raise
        _held.add(self)

    def _take(self, store_path: str, path: str) -> None:
        if not self._posix.lock(self._descriptor):
            raise StoreLockedError(
                "the store is being written by somebody else", path,
                found=_holder(store_path, path) or "an unknown holder of the lock",
            )
        broker = _live_broker(store_path)
        if broker:
            raise StoreLockedError(
                "the store is in use, although its lock is free (a broker that starts up takes "
                "the lock last)", path, found=broker,
            )
        if os.fstat(self._descriptor).st_size == 0:
            self._posix.pwrite(self._descriptor, _LOCK_CONTENT, 0)
        self._posix.mkdir(os.path.dirname(self._owner_path))
        self._write_owner()

    def _write_owner(self) -> None:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "program": sys.argv[0]}
        descriptor = self._posix.open(self._owner_path, create=True)
        try:
            # Not synced: it only helps to explain an error while this process lives.
            self._posix.truncate(descriptor, 0)
            self._posix.pwrite(descriptor, json.dumps(owner).encode(), 0)
        finally:
            self._posix.close(descriptor)

    def release(self) -> None:
        """Free the store; again is fine. The kernel does it for a process that dies."""
        if self._descriptor < 0:
            return
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        self._posix.close(descriptor)

    def _forget_in_child(self) -> None:
        """Close a forked child's copy, so that it does not keep the lock when its parent dies."""
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _make_directory(posix: Posix, path: str) -> None:
    """Make the store's directory, its name on disk too."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path) or "."
    for directory in reversed(missing):
        posix.mkdir(directory)
        posix.fsync_directory(os.path.dirname(directory) or ".")


_held: weakref.WeakSet[StoreLock] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for lock in list(_held):
        lock._forget_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all_in_child)


def _holder(store_path: str, lock_path: str) -> str:
    """Who holds the lock, in words; "" when nothing tells.

    The kernel's word counts first: our note may be left from a writer that has closed.
    """
    return _lock_table_holder(lock_path) or _our_owner(store_path) or _live_broker(store_path)


def _our_owner(store_path: str) -> str:
    """The writer of ours that noted itself, unless it is gone or the note cannot be read."""
    path = Path(store_path, layout.RMQLOG_DIRECTORY, OWNER_FILE)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads(path.read_bytes())
        pid, host, program = int(owner["pid"]), str(owner["host"]), str(owner["program"])
        if host != socket.gethostname() or _command(pid) is not None:
            return f"rmqlog writer, process {pid} on {host} ({program})"
    return ""


def _lock_table_holder(lock_path: str) -> str:
    """The process that the kernel's lock table names (it names none for an OFD lock)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = os.stat(lock_path)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[5] == f"{device}:{status.st_ino}" and int(fields[4]) > 0:
                return _describe_process(int(fields[4]))
    return ""


def _live_broker(store_path: str) -> str:
    """The process that ``abort`` names, if it runs here and has the store's files mapped.

    After a crash its number may belong to any other process: those do not count.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int(Path(store_path, layout.ABORT_FILE).read_text("ascii"))
        if pid != os.getpid() and _command(pid) is not None and _uses_store(pid, store_path):
            return _describe_process(pid)
    return ""


def _uses_store(pid: int, store_path: str) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except PermissionError:
        # Somebody else's process: it cannot be excluded if it is a Java one. Of a writer that was
        # killed ``abort`` may have only the first digits of its number.
        return b"java" in _command_line(pid).lower()
    return f"{os.path.realpath(store_path)}/" in maps


def _describe_process(pid: int) -> str:
    return f"process {pid} ({_command(pid) or 'its command is unknown'})"


def _command(pid: int) -> str | None:
    """The command line of a process of this machine, shortened; ``None`` when there is none."""
    try:
        return _command_line(pid).decode(errors="replace").strip()[:80]
    except OSError:
        return None


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
