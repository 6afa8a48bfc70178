"""What a node says of the groups that it leads, and the hand-over of one to another node on request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from broker.ranges.hosting import Hosting
from broker.ranges.leaders import Leaders
from broker.ranges.view import RangesView
from broker.replication.metadata_group import METADATA_GROUP
from raftish.core import NotLeader, NotNow
from raftish.host import Group, GroupFailed

log = logging.getLogger("sealog")


class Leaderships:
    """`say(node, words)`; `metadata()` is its group, once this node takes part in it; `members()` of it; `look`
    when others lead other groups than before."""

    def __init__(
        self,
        node_id: int,
        hosting: Hosting,
        view: RangesView,
        leaders: Leaders,
        say: Callable[[int, list[Any]], None],
        *,
        metadata: Callable[[], Group | None],
        members: Callable[[], Collection[int]],
        look: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._hosting = hosting
        self._view = view
        self._leaders = leaders
        self._say = say
        self._metadata = metadata
        self._members = members
        self._look = look
        self._said: list[list[Any]] = []
        self._is_closed = False

    def words(self) -> list[Any]:
        return ["leads", self._view.words()]

    def tell(self) -> None:
        """At once where this node has begun or ended to lead something; the rest has its turn."""
        said: list[list[Any]] = []
        for hosted in self._hosting.led():
            led = self._view.led(hosted)
            state = led.voters, led.learners, led.step, led.is_here, led.is_retired
            said.append([hosted.number, hosted.led_since_monotonic_ms, *state])
        if said == self._said or self._is_closed:
            return
        self._said = said
        for node in self._members():
            if node != self._node_id:
                self._say(node, self.words())

    def heard(self, peer: int, words: Iterable[Any]) -> None:
        if self._leaders.said(peer, words):
            self._look()

    def ask_to_hand_over(self, leader: int, group: int, target: int) -> None:
        """The leader of a group, wherever it is, shall let that node lead."""
        if leader == self._node_id:
            self.hand_over(group, target)
        else:
            self._say(leader, ["hand over", group, target])

    def hand_over(self, number: int, target: int) -> None:
        """By this node, if it can."""
        group = self._metadata() if number == METADATA_GROUP else self._led(number)
        if group is None:
            return
        try:
            group.transfer(target)
        except (NotLeader, NotNow, GroupFailed, ValueError) as error:
            log.info("group %d is not handed over to node %d: %s", number, target, error)

    def _led(self, number: int) -> Group | None:
        hosted = self._hosting.hosted.get(number)
        return hosted.range.group if hosted is not None and hosted.range is not None else None

    def close(self) -> None:
        self._is_closed = True
