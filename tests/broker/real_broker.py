"""A real NameServer and a real broker as processes on loopback, and a real client for them.

Both servers are RocketMQ's own mains. Their standard input is a lifeline: when it closes, because
``stop`` was called or because this process is gone, they stop in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .free_ports import free_port
from .java_driver import JavaDriver, Settings
from .java_toolchain import QUICK_START, Toolchain

BROKER_NAME = "judge"
START_LIMIT_SECONDS = 90.0
STOP_LIMIT_SECONDS = 60.0

# Small files and heaps; on a busy machine a broker must be patient, not refuse messages.
BROKER_DEFAULTS: Settings = {
    "brokerClusterName": "judge-cluster",
    "brokerName": BROKER_NAME,
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": False,
    "brokerFastFailureEnable": False,
    "osPageCacheBusyTimeOutMills": 60_000,
    "waitTimeMillsInSendQueue": 60_000,
    "registerNameServerPeriod": 10_000,
    "diskMaxUsedSpaceRatio": 95,
    "fileReservedTime": 876_000,
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 10_000,
    "mappedFileSizeTimerLog": 102_400,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
}

FILE_SIZES = (
    *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mappedFileSizeTimerLog"),
    *("maxHashSlotNum", "maxIndexNum"),
)

# 4.9 refuses to start without these files in its home directory.
LOGBACK_FILES = ("logback_broker.xml", "logback_namesrv.xml")
LOGBACK = """<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""


class BrokerStartError(Exception):
    """A server ended, or never listened, instead of serving; the message ends with its log."""


class Server:
    """One server process: ``namesrv`` or ``broker`` with its configuration file."""

    def __init__(
        self, toolchain: Toolchain, role: str, home: Path, port: int, settings: Settings
    ) -> None:
        self.log = home / f"{role}.log"
        configuration = home / f"{role}.conf"
        configuration.write_text(
            "".join(f"{name}={_java_text(value)}\n" for name, value in settings.items())
        )
        (home / "conf").mkdir(exist_ok=True)
        for name in LOGBACK_FILES:
            (home / "conf" / name).write_text(LOGBACK)
        command = toolchain.command(
            "rmqlog.judge.Server",
            *QUICK_START,
            *("-Xms64m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m"),
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
        )
        environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, role, "-c", str(configuration)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=home,
                env=environment,
            )
        self.pid = self._process.pid
        try:
            self._await_port(role, port)
        except BaseException:
            self.kill()
            raise

    def _await_port(self, role: str, port: int) -> None:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerStartError(f"the {role} ended: {self.log_tail()}")
            for address in ("127.0.0.1", "::1"):
                with contextlib.suppress(OSError), socket.create_connection((address, port)):
                    return
            time.sleep(0.1)
        raise BrokerStartError(f"the {role} does not listen on port {port}: {self.log_tail()}")

    def log_tail(self, size: int = 3000) -> str:
        """The end of what the server printed."""
        return self.log.read_bytes()[-size:].decode(errors="replace")

    def let_go(self) -> None:
        """Ask for an orderly stop without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Stop in order, as an operator does; killed when it takes too long."""
        self.let_go()
        try:
            self._process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.let_go()

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Whether the process ends in that time, or has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.running


class RealBroker:
    """A broker on ``store``, its NameServer, and the client verbs of ``driver``.

    ``settings`` go over ``BROKER_DEFAULTS`` by the broker's own names. As a context manager it
    kills what was not stopped, so that a failed test leaves no process behind.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        driver: JavaDriver,
        home: Path,
        store: Path,
        settings: Settings | None = None,
    ) -> None:
        self.store = store
        self.driver = driver
        self.settings = {**BROKER_DEFAULTS, **(settings or {})}
        name_server_port, port = free_port(), free_port(also=(-2, 1))
        self.name_server_address = f"127.0.0.1:{name_server_port}"
        self.address = f"{self.settings['brokerIP1']}:{port}"
        self._name_server = Server(
            *(toolchain, "namesrv", home, name_server_port),
            {"listenPort": name_server_port, "bindAddress": "127.0.0.1"},
        )
        try:
            self._broker = Server(
                *(toolchain, "broker", home, port),
                {
                    **self.settings,
                    "namesrvAddr": self.name_server_address,
                    "listenPort": port,
                    "haListenPort": port + 1,
                    "storePathRootDir": str(store),
                    "storePathCommitLog": str(store / "commitlog"),
                },
            )
        except BaseException:
            self._name_server.kill()
            raise
        try:
            self.ask("await-broker")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> RealBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_if_running()

    @property
    def running(self) -> bool:
        """Whether the broker's process is there."""
        return self._broker.running

    def ends_within(self, seconds: float) -> bool:
        """Whether the broker's process ends in that time, or has ended."""
        return self._broker.ends_within(seconds)

    def kill_if_running(self) -> None:
        """Leave no process behind."""
        if self.running:
            self.kill()

    @property
    def store_settings(self) -> Settings:
        """The file sizes: what anybody else who opens the store must know."""
        return {name: self.settings[name] for name in FILE_SIZES}

    @property
    def log_tail(self) -> str:
        """The end of what the broker printed."""
        return self._broker.log_tail()

    def stop(self) -> None:
        """Stop the broker in order, then its NameServer."""
        self.ask("disconnect")
        try:
            self._broker.stop()
        finally:
            self._name_server.kill()

    def kill(self) -> None:
        """kill -9 the broker in whatever it does, then its NameServer."""
        self._broker.kill()
        self._name_server.kill()
        self.ask("disconnect")

    def ask(self, command: str, **arguments: Any) -> Any:
        """One command of the client against this broker."""
        return self.driver.request(
            command,
            nameServer=self.name_server_address,
            brokerName=self.settings["brokerName"],
            brokerAddress=self.address,
            **arguments,
        )

    def create_topic(self, topic: str, queue_count: int) -> None:
        """Create a topic and wait until clients can find it."""
        self.ask("create-topic", topic=topic, queueCount=queue_count)

    def send(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
        """Send with a real producer; options ``compression``, ``compressOver``, ``batch``."""
        return list(self.ask("send", messages=list(messages), **options))

    def pull(self, queues: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
        """Every message of each (topic, queue), with the broker's min and max offset."""
        wanted = [{"topic": topic, "queueId": queue_id} for topic, queue_id in queues]
        return list(self.ask("pull", queues=wanted))


def _java_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
