"""How a node comes into a cluster of ranges: with the first ones (`founding`), or added to nodes that are there.

    newcomer                          leader of the metadata
                                <-    met  ..., without a number of the newcomer's: where all are reached
    new  number                 ->    on record with its number first (`NodeRecord.folder`), then ADD_LEARNER
                                <-    met  founders, their numbers, the newcomer's, where all are reached

Before it has founded or arrived it takes part in nothing. A node that says `new` and is known by another number has
lost its folder: it is told so, and ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgpack

from broker.ranges.founding import FolderLost, Founding
from broker.replication.folder import REMOVED_LINE, note_removed
from broker.replication.neighbours import Neighbours
from broker.replication.store import Fatal
from storage.disk import Disk

log = logging.getLogger("sealog")

FOLDER: Final = "raft"
FOUNDING: Final = "raft/founding"
PLACES: Final = "raft/places"
"""Where nodes are reached, as the records said last: a start that was told of too few nodes hears of no record before
it has found others."""


class Arrival:
    """`join` is called when this node takes part; `has_nothing`: whether nothing of the metadata is known
    here to be committed: what is in its log may be lost, and its number on record with it. Blocks while it reads and
    writes its file. Raises OSError."""

    def __init__(
        self,
        node_id: int,
        told: Sequence[int],
        disk: Disk,
        new_number: Callable[[], int],
        *,
        join: Callable[[], None],
        has_nothing: Callable[[], bool],
        fatal: Callable[[Exception], None],
    ) -> None:
        self.neighbours: Neighbours
        """Set before anything is heard."""
        self.heard: dict[int, int] = {}
        """By node: the number that one said which has nothing yet."""
        self._disk = disk
        self._join = join
        self._has_nothing = has_nothing
        self._fatal = fatal
        self.founding = self._read_founding(node_id, told, new_number)
        places = self._read(PLACES)
        self.places: dict[int, str] = msgpack.unpackb(places, strict_map_key=False) if places else {}
        """HOST:PORT by node."""

    def _read_founding(self, node_id: int, told: Sequence[int], new_number: Callable[[], int]) -> Founding:
        """What this folder knows of how it came into its cluster."""
        data = self._read(FOUNDING)
        if data is not None:
            return Founding.unpacked(node_id, data)
        founding = Founding(node_id, told, {node_id: new_number()})
        self._keep(FOUNDING, founding.packed())
        return founding

    def _read(self, path: str) -> bytes | None:
        if not self._disk.exists(path):
            return None
        file = self._disk.open_readonly(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _keep(self, path: str, data: bytes) -> None:
        """In place of what was there. Blocks until it is durable."""
        new = path + ".new"
        if self._disk.exists(new):
            self._disk.remove(new)
        file = self._disk.open(new, create=True)
        file.pwritev([data], 0)
        file.flush()
        file.close()
        self._disk.rename(new, path)
        self._disk.flush_dir(FOLDER)

    def note_places(self, places: Mapping[int, str]) -> None:
        """Nodes are reached there."""
        if self.places.items() >= places.items():
            return
        self.places |= places
        try:
            self._keep(PLACES, msgpack.packb(self.places))
        except OSError as error:
            self._fatal(error)

    @property
    def is_done(self) -> bool:
        return self.founding.is_done

    @property
    def is_coming(self) -> bool:
        """To a cluster that is there, and it has nothing of it yet; or it is not known yet whether there is one."""
        return self._has_nothing() and not (self.is_done and self.founding.founded)

    def words(self, *, again: bool) -> list[list[Any]]:
        """`again`: nodes may not have heard of how this cluster began."""
        words: list[list[Any]] = []
        if again or not self.is_done:
            words.append(["founding", *self.founding.words()])
        if self.is_coming:
            words.append(["new", self.founding.numbers[self.founding.node_id]])
        return words

    def heard_founding(self, peer: int, peers: Sequence[int], numbers: Mapping[int, int]) -> None:
        self._take(lambda: self.founding.heard(peer, peers, numbers))

    def noted(self, kind: str, peer: int, words: Sequence[Any]) -> None:
        if kind == "new":
            self._heard_new(peer, *words)
        elif kind == "places":
            self._heard_places(peer, *words)
        else:
            self._heard_met(peer, *words)

    def _heard_new(self, peer: int, number: int) -> None:
        self.heard[peer] = number
        self.neighbours.heard_empty(peer)

    def _heard_met(
        self,
        peer: int,
        peers: Sequence[int],
        numbers: Mapping[int, int],
        number: int | None,
        places: Mapping[int, str],
    ) -> None:
        """`number`: of this node; None: it is not on record yet."""
        if self._has_nothing():
            self.neighbours.also |= places
            self.note_places(places)
        if number is not None:
            self._take(lambda: self.founding.met(peer, peers, numbers, number))

    def _heard_places(self, peer: int, places: Mapping[int, str]) -> None:
        """Of the metadata's leader. It may have come while this node was away, which must answer it to hear of that."""
        self.note_places(places)
        if peer in places:
            self.neighbours.also[peer] = places[peer]

    def end(self) -> None:
        """This node was removed from its cluster."""
        try:
            note_removed(self._disk)
        except OSError as error:
            log.warning("that this node was removed could not be noted: %s", error)
        self._fatal(Fatal(REMOVED_LINE))

    def _take(self, hear: Callable[[], bool]) -> None:
        was_done = self.is_done
        try:
            if hear():
                self._keep(FOUNDING, self.founding.packed())
                if self.is_done and not was_done:
                    self._join()
        except OSError as error:
            self._fatal(error)
        except FolderLost as error:
            self._fatal(Fatal(str(error)))
