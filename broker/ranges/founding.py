"""How the nodes of a new cluster begin together, and how a node that has lost its folder is told from a new one.

    ALONE -> FOUNDED        each node makes a number by chance before it says anything, and keeps it
          -> ARRIVED        it was added to a cluster that is there, and that has its number on record

A node that has nothing must not vote as one that had: what it once acknowledged may be gone. So the first nodes all
hear each other's numbers before any of them begins, and keep them: nodes that are there tell a newcomer the number that
they know of it. Is it the newcomer's own, then it is one of the first and promised nothing yet; another one, then its
folder is gone. So it is with one that comes later: the cluster notes its number before it makes it a member.
Guarantee: nobody has a vote whose folder is not the one it began with. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgpack


class FolderLost(Exception):
    """The cluster knows this node, with another folder."""


LOST = (
    "a node whose folder was lost cannot come back: remove it (sealog cluster remove) and add a new one with another "
    "number"
)


class Founding:
    """`peers` are the nodes of `--peers`, this one too; of a node that came later those that founded the cluster.
    `numbers` of them, as far as they are known, and of this one."""

    def __init__(self, node_id: int, peers: Collection[int], numbers: Mapping[int, int]) -> None:
        assert node_id in numbers
        self.node_id = node_id
        self.peers = tuple(sorted(peers))
        self.numbers = dict(numbers)

    @property
    def is_done(self) -> bool:
        return set(self.numbers) >= set(self.peers)

    @property
    def founded(self) -> bool:
        """Whether this node is one of the first."""
        return self.node_id in self.peers

    def words(self) -> list[Any]:
        """What this node says of itself to nodes that may not have heard it."""
        return [list(self.peers), self.numbers]

    def heard(self, source: int, peers: Collection[int], numbers: Mapping[int, int]) -> bool:
        """What `words` gave at another node. Whether something new is known; who founds has it durable first.

        Raises FolderLost.
        """
        own = numbers.get(self.node_id)
        if own is not None and own != self.numbers[self.node_id]:
            raise FolderLost(f"node {source} knows node {self.node_id} with another folder: {LOST}")
        if tuple(sorted(peers)) != self.peers or source not in numbers or source not in self.peers:
            return False
        if self.numbers.get(source) == numbers[source]:
            return False
        if self.is_done:
            return False  # that node will hear of its own loss
        self.numbers[source] = numbers[source]
        return True

    def met(self, source: int, peers: Collection[int], numbers: Mapping[int, int], number: int) -> bool:
        """The cluster that these founded takes this node in, and knows it by `number`. Whether that is news.

        Raises FolderLost.
        """
        if number != self.numbers[self.node_id]:
            raise FolderLost(f"node {source} knows node {self.node_id} with another folder: {LOST}")
        if self.is_done or self.node_id in peers:
            return False
        self.peers = tuple(sorted(peers))
        self.numbers = {**numbers, self.node_id: number}
        return True

    def packed(self) -> bytes:
        packed: bytes = msgpack.packb([list(self.peers), self.numbers])
        return packed

    @classmethod
    def unpacked(cls, node_id: int, data: bytes) -> Founding:
        """Raises ValueError."""
        peers, numbers = msgpack.unpackb(data, strict_map_key=False)
        return cls(node_id, peers, numbers)
