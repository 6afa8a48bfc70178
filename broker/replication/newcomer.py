"""A node with an empty folder: is it one of the first of a new cluster, or does it come to one that is there? Pure.

A node that has nothing must not vote as one that had: what it once acknowledged may be gone. So it asks the nodes that
it was told of, again and again, and says what it was told.

    FOUNDS    a majority of the nodes in its `--peers`, itself among them, are as empty and were told the same
    FETCHES   one of them has taken part in a group: whoever has its state gives it, once this node is a member
    None      neither is known yet

Guarantee: no group is founded beside one of which a node in `--peers` says that it is there; and where two nodes found,
they do so with the same members, any two majorities of which meet.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Verdict(Enum):
    FOUNDS = "founds"
    FETCHES = "fetches"


class Newcomer:
    """`peers`: all nodes that this one was told of, itself too."""

    def __init__(self, node_id: int, peers: Collection[int]) -> None:
        self.peers = tuple(sorted(peers))
        self.verdict: Verdict | None = None
        self._node_id = node_id
        self._agreeing = {node_id}
        self._decide()

    def heard_empty(self, peer: int, peers: Collection[int]) -> None:
        """That node has nothing either, and was told of these."""
        if tuple(sorted(peers)) == self.peers and peer in self.peers:
            self._agreeing.add(peer)
        else:
            self._agreeing.discard(peer)
        self._decide()

    def heard_old(self) -> None:
        """A node has taken part in a group."""
        if self.verdict is None:
            self.verdict = Verdict.FETCHES

    def _decide(self) -> None:
        if self.verdict is None and 2 * len(self._agreeing) > len(self.peers):
            self.verdict = Verdict.FOUNDS
