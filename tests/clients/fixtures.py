"""The types behind the fixtures of the behaviour tests."""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.clients.adapter_base import Client, Consumer, Producer


class Broker(NamedTuple):
    bootstrap: str
    is_sealog: bool
    pid: int | None
    """Process id, when the process is ours to look into."""

    def rss_bytes(self) -> int | None:
        if self.pid is None:
            return None
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


class Opened:
    """The clients of one test: what it opened is closed at its end, also when it failed."""

    def __init__(self, client: Client, stack: ExitStack) -> None:
        self.client = client
        self._stack = stack

    def can(self, feature: str) -> bool:
        """Whether this client can do what others may lack. For the part of a scenario that needs it."""
        return feature not in self.client.lacks

    def producer(self, **options: object) -> Producer:
        """Transactional producers come with their transactions initialized."""
        producer = self.client.producer(**options)  # type: ignore[arg-type]
        self._stack.callback(producer.close)
        if options.get("transactional_id") is not None:
            producer.init_transactions()
        return producer

    def consumer(self, **options: object) -> Consumer:
        consumer = self.client.consumer(**options)  # type: ignore[arg-type]
        self._stack.callback(consumer.close)
        return consumer
