"""The proxy between nodes: what each way lets through."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from tests.cluster.links import Links
from tests.cluster.times import ServiceTimes, share_of
from tests.support.broker_process import free_port

QUIET_S = 0.3
"""So long nothing came where nothing may come; where something must come it is waited for."""


class Pair:
    """Node 1 dials node 2, which answers by hand."""

    def __init__(self):
        nodes = {node: ("127.0.0.1", free_port()) for node in (1, 2)}
        self.server = socket.create_server(nodes[2])
        self.server.settimeout(10)
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(nodes[2])
        self.links = Links(nodes)

    def dial(self):
        one = socket.create_connection(self.links.addresses[1, 2], 10)
        two, _ = self.server.accept()
        two.settimeout(10)
        return one, two


@pytest.fixture
def pair():
    made = Pair()
    with contextlib.closing(made.server), contextlib.closing(made.datagrams), made.links:
        yield made


def silent(receiver):
    receiver.settimeout(QUIET_S)
    try:
        return receiver.recv(10) is None
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(10)


def test_one_way_is_cut_and_goes_on_where_it_was(pair):
    one, two = pair.dial()
    one.sendall(b"a")
    assert two.recv(10) == b"a"
    pair.links.set((1, 2), cut=True)
    one.sendall(b"b")
    assert silent(two)
    two.sendall(b"c")
    assert one.recv(10) == b"c", "the other way is open"
    pair.links.heal(reset=False)
    assert two.recv(10) == b"b"


def test_streams_in_trouble_are_broken_off_at_the_end(pair):
    one, two = pair.dial()
    pair.links.set((2, 1), cut=True)
    pair.links.heal(reset=True)
    for end in (one, two):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(10) == b""


def test_no_stream_is_made_where_a_way_is_cut(pair):
    pair.links.set((2, 1), cut=True)
    one = socket.create_connection(pair.links.addresses[1, 2], 10)
    pair.server.settimeout(QUIET_S)
    with pytest.raises(TimeoutError):
        pair.server.accept()
    pair.server.settimeout(10)
    pair.links.heal(reset=False)
    two, _ = pair.server.accept()
    one.sendall(b"a")
    assert two.recv(10) == b"a"


def test_datagrams_are_lost_late_or_delivered(pair):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    goal = pair.links.addresses[1, 2]
    pair.datagrams.settimeout(10)
    sender.sendto(b"a", goal)
    assert pair.datagrams.recv(10) == b"a"
    pair.links.set((1, 2), cut=True)
    sender.sendto(b"b", goal)
    assert silent(pair.datagrams)
    pair.links.set((1, 2), loss=1.0)
    sender.sendto(b"c", goal)
    assert silent(pair.datagrams)
    pair.links.set((1, 2), delay_ms=200)
    began = time.monotonic()
    sender.sendto(b"d", goal)
    assert pair.datagrams.recv(10) == b"d"
    assert time.monotonic() - began >= 0.19


def test_times_as_a_table():
    times = ServiceTimes()
    times.meanwhile["kill"] = [number / 100 for number in range(1, 101)]
    times.after["kill"] = [0.5]
    assert share_of(times.meanwhile["kill"], 0.5) == 0.51
    rows = {line[:24].strip(): line[24:].split() for line in times.table().splitlines()}
    assert rows["beside kill"] == ["100", "0.51", "0.91", "1.00", "1.00"]
    assert rows["after all of them"] == ["1", "0.50", "0.50", "0.50", "0.50"]
