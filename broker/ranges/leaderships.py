"""What a node says of the groups that it leads, and the hand-over of one to another node on request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from broker.ranges.hosting import Hosting
from broker.ranges.leaders import Leaders
from broker.ranges.view import RangesView
from broker.replication.metadata_group import METADATA_GROUP
from raftish.core import NotLeader, NotNow
from raftish.host import Group, GroupFailed
from storage.clock import Paced, Scheduler

log = logging.getLogger("sealog")

TELL_MS: Final = 10
"""Who leads hundreds of ranges that are made at once tells of many of them together."""


class Leaderships:
    """`say(node, words)`; `metadata()` is its group, once this node takes part in it; `members()` of it; `look`
    when others lead other groups than before."""

    def __init__(
        self,
        node_id: int,
        scheduler: Scheduler,
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
        self._said: dict[int, tuple[Any, ...]] = {}
        """What was told last of a group that this node led then."""
        self._changed: set[int] = set()
        self._tells = Paced(scheduler, TELL_MS, self._tell)

    def words(self) -> list[Any]:
        """All of it."""
        return ["leads", self._view.words()]

    def changed(self, groups: Iterable[int]) -> None:
        """This node may have begun or ended to lead them, or their members are others. That is told soon; all that
        is known has its turn (`words`)."""
        self._changed.update(groups)
        self._tells.wake()

    def _tell(self) -> None:
        words, ended = [], []
        for group in sorted(self._changed):
            hosted = self._hosting.hosted.get(group)
            if hosted is None or not self._hosting.leads(hosted):
                if self._said.pop(group, None) is not None:
                    ended.append(group)
                continue
            led = self._view.led(hosted)
            state = led.voters, led.learners, led.step, led.is_here, led.is_retired
            said = hosted.led_since_monotonic_ms, *state
            if self._said.get(group) != said:
                self._said[group] = said
                words.append(led.words(group))
        self._changed.clear()
        if words or ended:
            for node in self._members():
                if node != self._node_id:
                    self._say(node, ["led", words, ended])

    def forget(self, group: int) -> None:
        """It is no more."""
        self._said.pop(group, None)
        self._leaders.forget(group)

    def heard(self, peer: int, words: Iterable[Sequence[Any]]) -> None:
        if self._leaders.said(peer, words):
            self._look()

    def heard_some(self, peer: int, words: Iterable[Sequence[Any]], ended: Iterable[int]) -> None:
        if self._leaders.said_of_some(peer, words, ended):
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
        self._tells.close()
