"""Which requests a client really sends, in which versions: a proxy that takes down what goes through it.

The broker must advertise the proxy's address, else clients go past it.
"""

import contextlib
import socket
import struct
import threading
from typing import Self


class ApiRecorder:
    """Forwards connections to a port of this machine."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.sent: set[tuple[int, int]] = set()
        """(API key, version) of every request so far."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def versions(self, api_key: int) -> set[int]:
        return {version for key, version in self.sent if key == api_key}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.target_port))
                self._open += [client, broker]
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, broker), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(*struct.unpack(">i", head))
                self.sent.add(struct.unpack(">hh", frame[:4]))
                broker.sendall(head + frame)
        for end in (client, broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(1 << 16):
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # accept() wakes from shutdown(), not from close().
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
