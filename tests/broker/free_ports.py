"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket
import threading

#: Below the ports that systems give to outgoing connections, and to servers that ask for any
#: port: between the choice of one of those and the start of a server somebody else may get it.
_PORTS = range(15_000, 30_000)
_taken_ports: set[int] = set()
_choosing = threading.Lock()


def free_port(also: tuple[int, ...] = ()) -> int:
    """A port that is free now, as are those at the distances ``also`` (a broker takes three)."""
    while True:
        port = random.SystemRandom().choice(_PORTS)  # tests seed the usual one
        ports = {port, *(port + distance for distance in also)}
        with _choosing:
            if ports.isdisjoint(_taken_ports) and all(map(_is_free, ports)):
                _taken_ports.update(ports)
                return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
