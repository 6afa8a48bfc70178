"""One thin face over each stock Kafka client, so that every scenario is written once.

An adapter adds nothing to its client: no retries, no waiting beyond what a call itself waits, and the
client's own exceptions come through (`is_fenced` only classifies them). To add a client: subclass Client,
Producer and Consumer in a module of its own, and append it to client_adapters.CLIENTS.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

CALL_TIMEOUT_S = 60.0
HEARTBEAT_MS = 200
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

Partition = tuple[str, int]


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Producer(ABC):
    """A producer of one client. Times out by its client's own rules."""

    @abstractmethod
    def init_transactions(self) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Hand a record to the client; its outcome shows in flush() or commit()."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until every record sent has its answer; raises the first failure."""

    @abstractmethod
    def send_offsets(self, consumer: "Consumer", offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Consumer(ABC):
    @abstractmethod
    def assign(self, partitions: Iterable[Partition], *, from_committed: bool = False) -> None:
        """Read these from their beginning (or from where the group left off)."""

    @abstractmethod
    def subscribe(self, topic: str) -> None: ...

    @abstractmethod
    def seek(self, partition: Partition, offset: int) -> None: ...

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Record]: ...

    @abstractmethod
    def position(self, partition: Partition) -> int:
        """The offset that the next fetch asks for (also past records that no application sees)."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def committed(self, partition: Partition) -> int | None: ...

    @abstractmethod
    def assignment(self) -> set[Partition]: ...

    @abstractmethod
    def begin_and_end(self, partition: Partition) -> tuple[int, int]: ...

    @abstractmethod
    def close(self) -> None: ...


class Client(ABC):
    """The factory of one client's producers and consumers against one broker."""

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    """What this client cannot do, and why: a scenario leaves out what it needs of it, or is left out itself."""

    elsewhere: ClassVar[frozenset[tuple[str, str]]] = frozenset()
    """(feature, what is lacking) where tests of this client alone show the feature in the way that it has."""
    shows: str | None = None
    """What the scenarios show with this variant of a client, in place of what they say."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def producer(
        self,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str = "none",
        transaction_timeout_ms: int = 60_000,
    ) -> Producer: ...

    @abstractmethod
    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
    ) -> Consumer: ...

    @abstractmethod
    def is_fenced(self, error: BaseException) -> bool:
        """Whether this is how the client tells an application that another producer took its id."""
