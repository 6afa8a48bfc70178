"""A link with a delay: a proxy in a process of its own that hands every byte, and every datagram to the same port, on
half a round trip later.

Threads and blocking sockets, since event loops round their timers to milliseconds.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

CHUNK_BYTES = 1 << 18


@contextmanager
def delayed_link(target: str, listen_port: int, rtt_ms: float) -> Iterator[str]:
    """The address at which `target` is reached with that round trip time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.proxy", target, str(listen_port), str(rtt_ms)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the proxy did not start")
        yield f"127.0.0.1:{listen_port}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _pump(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def deliver() -> None:
        while True:
            due, data = queue.get()
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        queue.put((time.monotonic() + delay_s, data))


def _datagrams(target: tuple[str, int], port: int, delay_s: float) -> None:
    """One way: whoever answers sends to a proxy of its own."""
    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", port))

    def deliver() -> None:
        while True:
            due, data = queue.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):
                udp.sendto(data, target)

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        # An error is of an earlier datagram: nobody listened there.
        with suppress(OSError):
            data = udp.recv(1 << 16)
            queue.put((time.monotonic() + delay_s, data))


def serve(target: str, port: int, rtt_ms: float) -> None:
    """Until the process is killed."""
    host, _, number = target.rpartition(":")
    delay_s = rtt_ms / 2000
    threading.Thread(target=_datagrams, args=((host, int(number)), port, delay_s), daemon=True).start()
    with socket.create_server(("127.0.0.1", port), backlog=256) as server:
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            try:
                broker = socket.create_connection((host, int(number)))
            except OSError:
                client.close()
                continue
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((client, broker), (broker, client)):
                threading.Thread(target=_pump, args=(*pair, delay_s), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
