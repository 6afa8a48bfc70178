"""What a node says of the groups that it leads, and the hand-over of one to another node on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from broker.ranges.controller import Controller
from broker.ranges.hosting import Hosting
from broker.ranges.leaders import Leaders
from broker.ranges.metadata_handover import MetadataHandover, Stage
from broker.ranges.range_handover import hand_range_over
from broker.ranges.view import RangesView
from broker.replication.handover import LOOK_MS, best_target
from broker.replication.metadata_group import METADATA_GROUP, MetadataGroup
from raftish.core import Role
from raftish.host import Group
from storage.clock import Paced, Scheduler

STOP_PATIENCE_MS: Final = 5_000
"""How long a node that stops tries to let others lead. What it leads then is for an election, and open transactions of
that abort."""

TELL_MS: Final = 10
"""Who leads hundreds of ranges that are made at once tells of many of them together."""


class Leaderships:
    """`say(node, words)`; `metadata()`, once this node takes part in it; `controller()` where this node serves
    as one; `members()` of the metadata's group; `look` when others lead other groups than before."""

    def __init__(
        self,
        node_id: int,
        scheduler: Scheduler,
        hosting: Hosting,
        view: RangesView,
        leaders: Leaders,
        say: Callable[[int, list[Any]], None],
        *,
        metadata: Callable[[], MetadataGroup | None],
        controller: Callable[[], Controller | None],
        members: Callable[[], Collection[int]],
        look: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._hosting = hosting
        self._view = view
        self._leaders = leaders
        self._say = say
        self._metadata = metadata
        self._controller = controller
        self._scheduler = scheduler
        self._under_way: MetadataHandover | None = None
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

    def hand_over(self, number: int, target: int | None, done: Callable[[], None] = lambda: None) -> None:
        """By this node, if it leads; to the voter that has most where none is named. `done` when that is over, whoever
        leads then."""
        if number == METADATA_GROUP:
            self._hand_metadata_over(target, done)
            return
        hosted, held = self._hosting.hosted.get(number), self._hosting.handed_over
        if hosted is None or hosted.range is None or number in held:
            done()
            return

        def over() -> None:
            held.discard(number)
            done()

        held.add(number)
        hand_range_over(hosted.range, target, self._scheduler, over)

    def _hand_metadata_over(self, target: int | None, done: Callable[[], None]) -> None:
        metadata = self._metadata()
        is_under_way = self._under_way is not None and self._under_way.stage is not Stage.OVER
        if metadata is None or not metadata.group.raft.is_leader or is_under_way:
            done()
            return
        self._under_way = MetadataHandover(metadata, self._controller, target, self._scheduler, done)

    def hand_all_over(self, done: Callable[[], None]) -> None:
        """This node stops: the ranges first, as long as it coordinates what goes on there, then the metadata. Tried
        again for a while where nobody takes over."""
        self._hand_on(self._scheduler.monotonic_ms() + STOP_PATIENCE_MS, done)

    def _hand_on(self, until_ms: float, done: Callable[[], None]) -> None:
        metadata = self._metadata()
        groups = {one.number: one.range.group for one in self._hosting.here() if one.range is not None}
        led = [number for number, group in groups.items() if _may_go(group)]
        if not led and metadata is not None:
            groups[METADATA_GROUP] = metadata.group
            if _may_go(metadata.group):
                led = [METADATA_GROUP]
        if self._scheduler.monotonic_ms() > until_ms:
            done()
            return
        if not led:
            if any(group is not None and group.raft.role is Role.CANDIDATE for group in groups.values()):
                # It was just asked to lead. Gone now, it would end another leadership when it comes back: by its term.
                self._scheduler.call_later(LOOK_MS, self._hand_on, until_ms, done)
            else:
                done()
            return
        waiting = len(led)

        def over() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._scheduler.call_later(LOOK_MS, self._hand_on, until_ms, done)

        for number in led:
            self.hand_over(number, None, over)

    def close(self) -> None:
        self._tells.close()


def _may_go(group: Group | None) -> bool:
    """Whether there is anybody else who could lead it."""
    return group is not None and group.failure is None and best_target(group) is not None
