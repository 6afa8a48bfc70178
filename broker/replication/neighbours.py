"""The nodes around this one: where they are reached, which were heard, and what they said of themselves.

Who belongs to the cluster is in its log; where a node is reached is in `--peers` if it is named there, and else in the
log as well. Every node says every `HERE_MS` where clients reach it, over the streams between nodes; who was not heard
for `SILENT_MS` counts as away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgpack

from broker.cluster_view import Broker
from broker.config import parse_address
from broker.replication.replica import GROUP
from raftish.host import Network
from raftish.messages import Note
from storage.clock import Periodic, Scheduler

HERE_MS: Final = 300
SILENT_MS: Final = 3000
NAMED_MS: Final = 60_000
"""Who was not heard for so long is not named to clients any more. librdkafka throws a node away that metadata do not
name, and by a race sends what comes next, elsewhere, before what it had under way to that node; it then gives other
batches in doubt a new epoch, and they are in the log twice. By its default, `socket.timeout.ms`, nothing is under way
after that time."""

Address = tuple[str, int]


class Links(Network, Protocol):
    """`raftish.transport.Transport` is one."""

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        """Be connected to these and to nobody else."""
        ...


class Neighbours:
    """`told` is `--peers`; `logged` what the log says of where nodes are, HOST:PORT; `members` who belongs here, None
    where that is not known; `words` are the notes that this node says of itself."""

    def __init__(
        self,
        node_id: int,
        told: Mapping[int, Address],
        network: Links,
        scheduler: Scheduler,
        *,
        logged: Callable[[], Mapping[int, str]],
        members: Callable[[], Collection[int] | None],
        words: Callable[[], Sequence[Sequence[Any]]],
    ) -> None:
        self.told = dict(told)
        self.also: dict[int, str] = {}
        """Nodes that are to come, or have gone, with which the leader speaks all the same: HOST:PORT."""
        self.hints: Mapping[int, str] = {}
        """From a log that is not applied yet: without them nobody might be found with whom to go on."""
        self._node_id = node_id
        self._network = network
        self._scheduler = scheduler
        self._logged = logged
        self._members = members
        self._words = words
        self._here: dict[int, tuple[Broker, int, bool]] = {}
        """Of each node: where clients reach it, when that was heard, whether it leads."""
        self._empty: dict[int, int] = {}
        """When a node said that it has nothing yet."""
        self._periodic = Periodic(scheduler, HERE_MS, self.turn)

    def close(self) -> None:
        self._periodic.close()

    # Saying.

    def turn(self) -> None:
        """Be connected to whom that is due, and say who this is."""
        wanted = self._spoken_with()
        found = {node: self.address(node) for node in wanted}
        self._network.set_peers({node: address for node, address in found.items() if address is not None})
        for words in self._words():
            for node in wanted:
                if node != self._node_id:
                    self.say(node, words)

    def say(self, node: int, words: Sequence[Any]) -> None:
        """Send it, or lose it."""
        payload: bytes = msgpack.packb(words)
        self._network.send(node, [(GROUP, Note(self._node_id, node, 0, payload))])

    def _spoken_with(self) -> list[int]:
        members = self._members()
        return sorted({*(self.told if members is None else members), *self.also})

    def address(self, node: int) -> Address | None:
        """Where the other nodes reach it; None where that is not known."""
        if node in self.told:
            return self.told[node]
        text = self.also.get(node) or self._logged().get(node) or self.hints.get(node)
        return parse_address(text) if text else None

    def places(self, nodes: Iterable[int]) -> dict[int, str]:
        """HOST:PORT of those of which it is known."""
        found = {node: self.address(node) for node in nodes}
        return {node: f"{at[0]}:{at[1]}" for node, at in sorted(found.items()) if at is not None}

    # Hearing.

    def heard_here(self, node: int, broker: Broker, *, leads: bool) -> None:
        self._here[node] = (broker, self._scheduler.monotonic_ms(), leads)
        self._empty.pop(node, None)

    def heard_empty(self, node: int) -> None:
        self._empty[node] = self._scheduler.monotonic_ms()

    def is_empty(self, node: int) -> bool:
        """Whether it said so lately."""
        return self._empty.get(node, -SILENT_MS) > self._scheduler.monotonic_ms() - SILENT_MS

    def here(self, within_ms: int = SILENT_MS) -> dict[int, Broker]:
        """All that were heard lately, members or not."""
        since_ms = self._scheduler.monotonic_ms() - within_ms
        return {node: broker for node, (broker, heard_ms, _) in self._here.items() if heard_ms >= since_ms}

    def broker(self, node: int) -> Broker | None:
        """As it was last heard, however long ago."""
        found = self._here.get(node)
        return found[0] if found is not None else None

    def leader(self) -> int | None:
        """Who said last that it leads."""
        leading = [(heard_ms, node) for node, (_, heard_ms, leads) in self._here.items() if leads]
        return max(leading)[1] if leading else None
