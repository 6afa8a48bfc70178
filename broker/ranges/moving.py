"""Carries out what the records ask for of the groups on this node: on their leaders, one change of members at a time.

    leads                the next change towards the record's goal (`moves.next_change`); at the goal, it is said;
                         where others shall succeed the range (`lineage`), it is ended
    is not named         asks the leader, "member?", and goes when it hears "no member"

A replica goes only when both say so: the committed record does not name this node, and a leader whose term has a commit
has a committed membership without it. The record alone may be ahead of the group: what this node has acknowledged may
still count there. The group alone may be behind the record: its leader may be about to take this node in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from broker.cluster_view import NOBODY
from broker.ranges.hosting import Hosted, Hosting, Stage
from broker.ranges.moves import is_done, next_change
from broker.replication.member_changes import has_majority
from raftish.core import NotLeader, NotNow
from raftish.host import GroupFailed
from raftish.membership import Change, ChangeRefused, Step
from storage.clock import Periodic, Scheduler

log = logging.getLogger("sealog")

LOOK_MS: Final = 200
TELL_AGAIN_LOOKS: Final = 5


class Moving:
    """`leader_of(group)` is NOBODY where it is not known; `here` are the nodes that were heard lately;
    `came(groups)`: this node leads them, and they are where their records want them; `dropped(group)` tells the
    controller, or is lost; `hand_over(group, target)` of one that this node leads."""

    def __init__(
        self,
        node_id: int,
        hosting: Hosting,
        scheduler: Scheduler,
        *,
        leader_of: Callable[[int], int],
        here: Callable[[], Collection[int]],
        say: Callable[[int, Sequence[Any]], None],
        came: Callable[[list[int]], None],
        dropped: Callable[[int], None],
        hand_over: Callable[[int, int], None],
    ) -> None:
        self._node_id = node_id
        self._hosting = hosting
        self._leader_of = leader_of
        self._here = here
        self._say = say
        self._came = came
        self._dropped = dropped
        self._hand_range_over = hand_over
        self._looks = 0
        self._due: set[int] = set()
        """Groups that may have something left to do. All others are at rest, and cost nothing."""
        self._periodic = Periodic(scheduler, LOOK_MS, self.look)

    def close(self) -> None:
        self._periodic.close()

    def touch(self, group: int) -> None:
        """Its record, its leader, or what is here of it is another one now."""
        self._due.add(group)

    def look(self) -> None:
        self._looks += 1
        came: list[int] = []
        for group in sorted(self._due):
            hosted = self._hosting.hosted.get(group)
            if hosted is None:
                is_over = self._tell_dropped(group)
            else:
                is_over = hosted.stage is Stage.HERE and self._step(hosted)
                if is_over:
                    came.append(group)
            if is_over:
                self._due.discard(group)
        if came:
            self._came(came)

    def _step(self, hosted: Hosted) -> bool:
        """Whether nothing is left to do until it is touched again."""
        assert hosted.range is not None
        if hosted.range.leads:
            try:
                if hosted.record.becomes:
                    return self._retire(hosted)
                return self._change(hosted)
            except (NotLeader, NotNow, ChangeRefused, GroupFailed) as error:
                log.info("members of range group %d are not changed now: %s", hosted.number, error)
                return False
        if self._node_id in hosted.record.holders:
            return True
        self._leave(hosted)
        return False

    def _tell_dropped(self, group: int) -> bool:
        """Again and again, until the record has it; whether that is so."""
        record = self._hosting.record(group)
        if record is None or self._node_id not in record.left or self._node_id in record.dropped:
            return True
        if self._looks % TELL_AGAIN_LOOKS == 0 and self._hosting.has_dropped(group):
            self._dropped(group)
        return False

    # On the leader.

    def _retire(self, hosted: Hosted) -> bool:
        """Others shall succeed it. Its members are on record as they are before it ends."""
        assert hosted.range is not None
        replica = hosted.range.replica
        if replica.is_retired:
            return hosted.record.retired or self._change(hosted)
        if not replica.is_retiring and hosted.range.knows_its_end and self._change(hosted):
            replica.retire()
        return False

    def _change(self, hosted: Hosted) -> bool:
        assert hosted.range is not None
        group = hosted.range.group
        assert group is not None
        raft, goal = group.raft, hosted.record.goal
        if raft.memberships.index > raft.commit or hosted.range.is_held:
            return False
        if is_done(goal, raft.membership):
            return True
        change = next_change(goal, raft.membership)
        assert change is not None
        if change == Change(Step.REMOVE, self._node_id):
            self._hand_over(hosted)
            return False
        voters = raft.membership.voters
        after = voters | {change.node} if change.step is Step.PROMOTE else voters - {change.node}
        if change.step is Step.ADD_LEARNER or has_majority(after, self._here()):
            group.change_members(change, lambda error: None)
            log.info("range group %d: %s node %d", hosted.number, change.step.value, change.node)
        return False

    def _hand_over(self, hosted: Hosted) -> None:
        """To the voter that has most, of those that are there and stay."""
        assert hosted.range is not None
        group = hosted.range.group
        assert group is not None
        if group.raft.leadership is None:
            return
        here = self._here()
        able = [
            (progress.match, node)
            for node, progress in group.raft.leadership.progress.items()
            if node in group.raft.membership.voters and node in here and node in hosted.record.goal
        ]
        if able:
            self._hand_range_over(hosted.number, max(able)[1])

    def noted(self, kind: str, peer: int, words: Sequence[Any]) -> None:
        """A note of another node's `say`."""
        if kind == "member?":
            self._asked(peer, *words)
        else:
            self._told_out(*words)

    def _asked(self, peer: int, number: int) -> None:
        """That node's record does not name it any more: is it a member?"""
        hosted = self._hosting.hosted.get(number)
        if hosted is None or hosted.stage is not Stage.HERE or hosted.range is None:
            return
        group = hosted.range.group
        if group is None or not hosted.range.leads or not hosted.range.knows_its_end:
            return
        raft = group.raft
        if raft.memberships.index <= raft.commit and peer not in raft.membership:
            self._say(peer, ["no member", number, raft.term])

    # Where the record names others.

    def _leave(self, hosted: Hosted) -> None:
        assert hosted.range is not None
        group = hosted.range.group
        if group is not None and not group.raft.term:
            # It never heard of a leader, and has promised nothing.
            self._hosting.depart(hosted.number)
            return
        leader = self._leader_of(hosted.number)
        if leader not in (NOBODY, self._node_id):
            self._say(leader, ["member?", hosted.number])

    def _told_out(self, number: int, term: int) -> None:
        """A leader of that term says that this node is no member."""
        hosted = self._hosting.hosted.get(number)
        if hosted is None or hosted.stage is not Stage.HERE or self._node_id in hosted.record.holders:
            return
        assert hosted.range is not None
        group = hosted.range.group
        # One of an earlier term than what is in the log here may not know of what a later one did.
        if group is not None and term >= (group.raft.log.last_term or 0):
            log.info("range group %d has moved away from this node", number)
            self._hosting.depart(number)
