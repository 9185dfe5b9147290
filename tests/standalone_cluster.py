"""A standalone Spark cluster on loopback addresses: a master, and a worker for each address."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from broker.free_ports import free_port

#: For Java processes that live for seconds: the quick compiler is ready long before the good one.
QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def standalone_cluster(folder: Path, hosts: Sequence[str]) -> Iterator[str]:
    """The address of a master with a worker of one core on each host; ended by their ids."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    no_page = ["--webui-port", "0"]
    commands = [
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
         *no_page],
        *(
            ["org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory",
             "1g", "--work-dir", str(folder / f"worker-{number}"), *no_page, address]
            for number, host in enumerate(hosts)
        ),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            host = command[command.index("--host") + 1]
            environment = {
                **os.environ, **QUICK_JAVA, "SPARK_LOCAL_IP": host,
                "PYSPARK_PYTHON": sys.executable,
            }
            with (folder / f"daemon-{number}.log").open("wb") as log:
                started.append(subprocess.Popen(
                    [str(_SPARK_CLASS), *command], env=environment, stdout=log, stderr=log
                ))
        _await_workers(started, folder / "daemon-0.log", len(hosts))
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def _await_workers(
    started: Sequence[subprocess.Popen[bytes]], master_log: Path, count: int
) -> None:
    """Wait until the master knows its workers: a driver that comes too early gives up."""
    while master_log.read_text(errors="replace").count("Registering worker") < count:
        assert all(process.poll() is None for process in started), master_log.read_text()
        time.sleep(0.1)
