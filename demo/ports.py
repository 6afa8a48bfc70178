"""Ports on 127.0.0.1 for servers that are ended and started again at the same place.

They lie below those that the kernel gives to outgoing connections: one of these could take the port of a server that is
down for a moment.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

LOWEST: Final = 20_000
EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL: Final = 32_768
TRIES: Final = 1_000

_given: set[int] = set()
_random = random.Random()  # not the one that a program may have seeded: two would look for the same ports


def free_port() -> int:
    """A port, of TCP and UDP, that was free a moment ago, and that this process has not been given before.

    Raises:
        OSError: none was found.
    """
    low, high = LOWEST, _lowest_ephemeral()
    if high <= low:
        high = USUAL_EPHEMERAL  # all of them are given to connections here
    for _ in range(TRIES):
        port = _random.randrange(low, high)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise OSError(f"no free port found between {low} and {high}")


def _lowest_ephemeral() -> int:
    try:
        return int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_EPHEMERAL


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
