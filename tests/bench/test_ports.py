"""Ports for servers that are started again at the same place."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from demo import ports


def test_no_outgoing_connection_can_take_a_servers_port() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert all(ports.LOWEST <= port < lowest for port in given)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch, kind: socket.SocketKind) -> None:
    taken = ports.free_port()
    monkeypatch.setattr(ports, "_given", set())
    monkeypatch.setattr(ports._random, "randrange", lambda low, high: taken)
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", taken))
        with pytest.raises(OSError, match="no free port"):
            ports.free_port()
    assert ports.free_port() == taken
