"""One JVM with RocketMQ's classes that answers questions over a pipe, one JSON line each way.

The commands are those of ``java/common/rmqlog/judge``; the methods here only name them. A driver
ends with its standard input, so no JVM outlives the process that started it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .java_toolchain import QUICK_START, Toolchain

ANSWER_LIMIT_SECONDS = 300.0
STOP_LIMIT_SECONDS = 30.0

Settings = Mapping[str, str | int | bool]


class JavaError(Exception):
    """The driver answered with an exception, or did not answer."""


class JavaDriver:
    """A running driver; use as a context manager. ``log`` holds what the JVM wrote."""

    def __init__(
        self,
        toolchain: Toolchain,
        home: Path,
        jvm_options: Sequence[str] = QUICK_START,
    ) -> None:
        self.line = toolchain.line
        self.log = home / "driver.log"
        self._one_at_a_time = threading.Lock()
        command = toolchain.command(
            "rmqlog.judge.Driver",
            "-Xmx512m",
            *jvm_options,  # behind it: the last one counts
            f"-Duser.home={home}",  # RocketMQ writes its logs there
            f"-Djava.io.tmpdir={home}",
            "-Drocketmq.client.logUseSlf4j=true",
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=home
            )

    def __enter__(self) -> JavaDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def request(self, command: str, **arguments: Any) -> Any:
        """The driver's result for one command; ``JavaError`` with what it threw.

        Threads may share a driver; it answers one after another.
        """
        line = json.dumps({"command": command, **arguments})
        with self._one_at_a_time:
            answer = self._exchange(line.encode() + b"\n")
        if not answer:
            raise JavaError(f"no answer to {command!r}; the log ends with:\n{_tail(self.log)}")
        parsed = json.loads(answer)
        if "error" in parsed:
            raise JavaError(f"{command}: {parsed['error']}")
        return parsed["result"]

    def _exchange(self, line: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_LIMIT_SECONDS, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            watchdog.cancel()

    def decode(self, records: Iterable[bytes], **options: bool) -> list[dict[str, Any]]:
        """For each record ``message`` (MessageDecoder's, or null) and the store's ``check``.

        A record's bytes run to the end of its segment, as the store sees them. Options:
        ``decompress`` (default true) and ``checkCrc`` (default false).
        """
        texts = [base64.b64encode(record).decode() for record in records]
        return list(self.request("decode", records=texts, **options))

    def open_stores(
        self,
        stores: Sequence[Path],
        settings: Settings,
        *,
        messages: bool = False,
        keys: Sequence[tuple[str, str]] = (),
    ) -> list[dict[str, Any]]:
        """Open each store with DefaultMessageStore, let it recover and dispatch, and stop it.

        Each answer has ``minPhyOffset``, ``maxPhyOffset``, ``queues`` (with ``units``, ``sha256``
        of the records, and ``messages`` if asked) and ``keyOffsets``; or ``error``.
        """
        return list(
            self.request(
                "open",
                stores=[str(store) for store in stores],
                settings=settings,
                messages=messages,
                keys=[list(key) for key in keys],
            )
        )

    def put_messages(
        self, store: Path, settings: Settings, messages: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Append through MessageStore.putMessage, which takes what no client can send."""
        answer = self.request("put", store=str(store), settings=settings, messages=list(messages))
        return list(answer)

    @contextlib.contextmanager
    def store_lock(self, store: Path) -> Iterator[bool]:
        """Try the broker's lock of a store; yields whether Java got it, and lets it go."""
        path = str(store / "lock")
        held = bool(self.request("lock", path=path))
        try:
            yield held
        finally:
            if held:
                self.request("unlock", path=path)


def _tail(log: Path, size: int = 4000) -> str:
    return log.read_bytes()[-size:].decode(errors="replace")
