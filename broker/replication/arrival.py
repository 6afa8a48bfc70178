"""How a node comes into its group: as one of the first, by fetching what the others have, or by going on where it was.

Before that it answers nobody and votes for nobody (`newcomer`). Afterwards it answers those that come later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.replication.neighbours import Neighbours
from broker.replication.newcomer import Newcomer, Verdict
from broker.replication.store import Store
from raftish.membership import Membership


class Arrival:
    """`has_entries`: whether this node takes part in a group whose log is not empty. `join` and `fetch` are called
    once: take part now, or fetch a state first."""

    def __init__(
        self,
        node_id: int,
        store: Store,
        neighbours: Neighbours,
        *,
        has_entries: Callable[[], bool],
        join: Callable[[], None],
        fetch: Callable[[], None],
        fatal: Callable[[Exception], None],
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._neighbours = neighbours
        self._has_entries = has_entries
        self._join = join
        self._fetch = fetch
        self._fatal = fatal
        self._newcomer: Newcomer | None = None

    def start(self, *, knows_a_group: bool) -> None:
        if self._store.must_fetch:
            self._fetch()
        elif knows_a_group:
            self._join()
        else:
            self._newcomer = Newcomer(self._node_id, self._neighbours.told)
            self._look_around()

    def _look_around(self) -> None:
        newcomer = self._newcomer
        if newcomer is None or newcomer.verdict is None:
            return
        self._newcomer = None
        try:
            if newcomer.verdict is Verdict.FOUNDS:
                self._store.found(Membership(frozenset(newcomer.peers)))
                self._join()
            else:
                self._store.begin_to_fetch()
                self._fetch()
        except OSError as error:
            self._fatal(error)

    # Notes between nodes.

    def words(self) -> list[list[Any]]:
        """What a node says of itself that has nothing yet."""
        if self._store.members is None or (self._store.members[0] == 0 and not self._has_entries()):
            return [["new", sorted(self._neighbours.told)]]
        return []

    def heard_new(self, peer: int, peers: Sequence[int]) -> None:
        """It has nothing yet and asks whether there is a group."""
        self._neighbours.heard_empty(peer)
        if self._newcomer is not None:
            self._newcomer.heard_empty(peer, peers)
            self._look_around()
        elif self._has_entries() and self._store.members is not None:
            members = self._store.members[1]
            if peer in members:
                self._neighbours.say(peer, ["old", self._neighbours.places(members)])

    def heard_met(self, places: Mapping[int, str]) -> None:
        """Who belongs to the group, and where they are: news to a node that comes in."""
        if self._store.members is None:
            self._neighbours.also |= places

    def heard_old(self, places: Mapping[int, str]) -> None:
        """There is a group, of which this node is a member."""
        self.heard_met(places)
        if self._newcomer is not None:
            self._newcomer.heard_old()
            self._look_around()
