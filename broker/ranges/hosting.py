"""The range groups of this node: they follow the records of the metadata store.

    (none) -> MAKING -> HERE -> REMOVING -> (none)          FAILED: its storage has; nothing becomes of it in this life

Guarantees: a group takes part only when its place in the file of hard states and its folder are durable, in that order;
it is gone from here in the opposite one, and never because a view is behind (docs/raft.md, section 8, 2 and 3). One
range is opened per turn of the loop. A replica of a group whose record names other nodes goes on until it is told to
`depart` (`moving`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

from broker.ranges.births import Births
from broker.ranges.records import FIRST_GROUP, RangeRecord, directory, first_segment
from broker.ranges.restores import Restorable, Restores
from broker.replication.hard_states import HardStateTable
from broker.replication.range_group import RangeGroup
from broker.replication.store import Fatal
from broker.replication.transfer import Send
from raftish.entries import HardState
from raftish.host import Done, Host
from raftish.messages import SnapshotRequest
from storage.ancestry import is_whole
from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.files import delete_files
from storage.format import CorruptLog
from storage.layout import LogConfig, RangeHooks, RollEvent, TransactionalBatch
from storage.replica import RangeReplica
from storage.replica_compaction import ReplicaCompaction
from storage.replica_front import ReplicaFront
from storage.replica_recovery import create_replica, open_replica
from storage.replica_takeover import is_taking_over
from wire.errors import KafkaError

log = logging.getLogger("sealog")

STAND_AGAIN_MS: Final = (0, 40, 120, 300)
"""When the first leader of a new range stands for election: the other nodes may still be making it."""


class Stage(Enum):
    MAKING = "being made or opened"
    HERE = "here"
    REMOVING = "being removed"
    FAILED = "failed"


TRANSITIONS: Final = {
    Stage.MAKING: {Stage.HERE, Stage.FAILED},
    Stage.HERE: {Stage.REMOVING, Stage.FAILED},
    Stage.REMOVING: set[Stage](),
    Stage.FAILED: {Stage.REMOVING},
}


class Hosted:
    """One group on this node."""

    def __init__(self, number: int, record: RangeRecord) -> None:
        self.number = number
        self.record = record
        self.lsn = 0
        """As of which the record says so."""
        self.stage = Stage.MAKING
        self.range: RangeGroup | None = None
        self.front: ReplicaFront | None = None
        self.compaction: ReplicaCompaction | None = None
        self.led_since_ms = self.led_since_monotonic_ms = 0
        """Since when this node leads it, or another one does, by both clocks."""

    def move(self, stage: Stage) -> None:
        if stage not in TRANSITIONS[self.stage]:
            raise AssertionError(f"group {self.number} is {self.stage.value}, not {stage.value} next")
        self.stage = stage

    def leave_files(self) -> None:
        """Nothing is dropped or written anew any more."""
        if self.front is not None:
            self.front.close()
        if self.compaction is not None:
            self.compaction.close()

    @property
    def is_coming_up(self) -> bool:
        return self.stage is Stage.MAKING

    @property
    def replica(self) -> RangeReplica | None:
        return self.range.replica if self.range is not None else None


class Hosting:
    """`log_config` gives a range's limits; `on_open(group)` when there is something to serve from;
    `on_gone(group)` when there is not any more, though the range is; `on_progress(group, partitions)` when high
    watermarks moved, and before it `on_transactional(group, batches)`; `on_leader(group)` when its leader or term
    changed; `on_end(group)` when it has ended, for good, and others succeed it."""

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        scheduler: Scheduler,
        host: Host,
        hard_states: HardStateTable,
        *,
        log_config: Callable[[RangeRecord], LogConfig],
        on_open: Callable[[int], None],
        on_gone: Callable[[int], None],
        on_progress: Callable[[int, Iterable[int]], None],
        on_transactional: Callable[[int, list[TransactionalBatch]], None],
        on_leader: Callable[[int], None],
        on_end: Callable[[int], None],
        fatal: Callable[[Exception], None],
        send: Send,
    ) -> None:
        """`send`: notes between the nodes' hostings, which `restores` hears."""
        self.restores = Restores(disk, scheduler, self.replica_of, send)
        self.hosted: dict[int, Hosted] = {}
        self.handed_over: set[int] = set()
        """Those that other nodes are about to lead: they take nothing meanwhile."""
        self.cache = SegmentCache()
        self._node_id = node_id
        self._disk = disk
        self._scheduler = scheduler
        self._host = host
        self._hard_states = hard_states
        self._log_config = log_config
        self._on_open = on_open
        self._on_gone = on_gone
        self._on_progress = on_progress
        self._on_transactional = on_transactional
        self._on_leader = on_leader
        self._on_end = on_end
        self._births = Births(node_id, disk, scheduler, self.hosted.get, log_config, self._born, send)
        self._fatal = fatal
        self._wanted: dict[int, RangeRecord] = {}
        self._queue: list[int] = []
        self._turn_due = False
        self._left_over: dict[int, int] = {}
        """Places of groups that no record names so far, each with the lsn that says when one should."""
        self._is_closed = False

    def start(self) -> None:
        """Raises OSError, `Fatal`."""
        self._left_over = {
            group: since for group, since in self._hard_states.groups.items() if _is_range(group)
        }
        known = {
            directory(group).split("/")[1]
            for group in self._left_over
            if not self._hard_states.has_left(group)
        }
        for name in self._disk.list("ranges"):
            if name not in known:
                # Its place was freed before, or it has left: the rest of a removal.
                delete_files(self._disk, f"ranges/{name}")

    def replica_of(self, group: int) -> RangeReplica | None:
        hosted = self.hosted.get(group)
        return hosted.replica if hosted is not None and hosted.stage is not Stage.REMOVING else None

    def front_of(self, group: int) -> ReplicaFront | None:
        hosted = self.hosted.get(group)
        return hosted.front if hosted is not None else None

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        """What another node's `send` brings."""
        _, group, *_ = note
        if self._births.is_fetching(group) and not note[0].endswith("?"):
            self._births.heard(peer, note)
        else:
            self.restores.heard(peer, note)

    # What the records say.

    def appeared(self, group: int, record: RangeRecord, lsn: int) -> None:
        """Committed as of `lsn`. Again for a change of what it says."""
        self._wanted[group] = record
        hosted = self.hosted.get(group)
        if hosted is not None:
            self._is_told(hosted, record, lsn)
            return
        since, has_left = self._hard_states.since(group), self._hard_states.has_left(group)
        if self._is_closed or (since is not None and lsn < since):
            return  # the view of a start, of before the group came here or left
        self._left_over.pop(group, None)
        is_named = self._node_id in record.holders
        if not is_named and (since is None or has_left):
            return
        if since is None:
            self._hard_states.add(group, lsn, record.base_term)
        elif has_left:
            self._hard_states.come_back(group, lsn)
        hosted = self.hosted[group] = Hosted(group, record)
        self._is_told(hosted, record, lsn)
        self._queue.append(group)
        self._wake()

    def _is_told(self, hosted: Hosted, record: RangeRecord, lsn: int) -> None:
        hosted.record, hosted.lsn = record, lsn
        if self._node_id not in record.holders and self._births.is_waiting(hosted):
            self._give_up(hosted)
        if hosted.range is not None and hosted.range.group is not None:
            hosted.range.group.raft.may_stand = self._may_stand(hosted)

    def _may_stand(self, hosted: Hosted) -> bool:
        """Not before its leader reported it as a voter that has the entry of that."""
        return self._node_id in hosted.record.replicas

    def record(self, group: int) -> RangeRecord | None:
        """As it was told last."""
        return self._wanted.get(group)

    def has_dropped(self, group: int) -> bool:
        """Whether nothing of it is here, nor comes to be here by a record that is known."""
        return group not in self.hosted and (
            group not in self._hard_states or self._hard_states.has_left(group)
        )

    def disappeared(self, group: int) -> None:
        self._wanted.pop(group, None)
        hosted = self.hosted.get(group)
        if hosted is not None and hosted.stage in (Stage.HERE, Stage.FAILED):
            self._remove(hosted)
        elif hosted is not None and self._births.is_waiting(hosted):
            self._give_up(hosted)
        elif hosted is None and self._hard_states.has_left(group):
            self._free(group)

    def viewed(self, lsn: int) -> None:
        """`appeared` and `disappeared` have told everything up to there: what still has no record is gone."""
        for group, since in list(self._left_over.items()):
            if lsn < since:
                continue
            record = self._wanted.get(group)
            if record is not None:
                self.appeared(group, record, lsn)
            else:
                del self._left_over[group]
                log.warning("range group %d was deleted while this node was away", group)
                self._free(group)

    # Opening.

    def _wake(self) -> None:
        if self._queue and not self._turn_due:
            self._turn_due = True
            self._hard_states.when_all_durable(self._turn)

    def _turn(self, error: Exception | None) -> None:
        self._turn_due = False
        if self._is_closed:
            return
        if error is not None:
            self._fatal(error)
            return
        hosted = self.hosted[self._queue.pop(0)]
        try:
            self._open(hosted)
        except (OSError, Fatal, CorruptLog) as failure:
            self._fatal(failure)
            return
        self._wake()

    def _open(self, hosted: Hosted) -> None:
        """Its place is durable. Raises OSError, CorruptLog, `Fatal`."""
        group, record = hosted.number, hosted.record
        folder = directory(group)
        if record.base_term:
            self._open_successor(hosted)
            return
        made = [name for name in self._disk.list(folder) if name.endswith(".seg")]
        hard_state = self._hard_states.state(group)
        if hard_state.term and not self._hard_states.is_coming(group):
            is_there = bool(made) or is_taking_over(self._disk, folder)
            if not is_there and self._node_id not in record.holders:
                # A removal was under way: nobody counts on it.
                hosted.move(Stage.FAILED)
                self._remove(hosted)
                return
            if not is_there:
                raise Fatal(
                    f"the files of {record.topic} {record.first}-{record.last} are gone from {folder}"
                )
            self._join(hosted, self._open_old(hosted))
            return
        # It never took part, or did and had left. What a start before this one made of it may be half of a file.
        delete_files(self._disk, folder)
        create_replica(
            self._disk,
            self._scheduler,
            partial(self._made, hosted),
            directory=folder,
            topic_id=record.id,
            first=record.first,
            last=record.last,
            segment_id=first_segment(group),
            created_ms=record.created_ms,
            members=record.members,
            hooks=self._hooks(hosted),
            config=self._log_config(record),
            cache=self.cache,
        )

    def _open_successor(self, hosted: Hosted) -> None:
        """Of other ranges. Its folder is whole or of no use. Raises OSError, CorruptLog, `Fatal`."""
        is_coming = self._hard_states.is_coming(hosted.number)
        if is_whole(self._disk, directory(hosted.number)) and not is_coming:
            self._join(hosted, self._open_old(hosted))
        elif hosted.number not in self._wanted or self._node_id not in hosted.record.holders:
            self._give_up(hosted)
        elif self._is_new(hosted) or is_coming:
            self._births.begin(hosted)
        else:
            raise Fatal(f"the files of range group {hosted.number} are gone from {directory(hosted.number)}")

    def _is_new(self, hosted: Hosted) -> bool:
        """Whether its group has promised nothing here."""
        return self._hard_states.state(hosted.number) == HardState(hosted.record.base_term, None)

    def _born(self, hosted: Hosted, error: OSError | None) -> None:
        if self._is_closed:
            return
        replica = None
        if error is None and hosted.number in self._wanted:
            try:
                replica = self._open_old(hosted)
            except (OSError, CorruptLog) as failure:
                self._fatal(failure)
                return
        self._made(hosted, replica, error)

    def _give_up(self, hosted: Hosted) -> None:
        """Nothing of it is here yet, and nothing is wanted. What it promised in a former stay is kept."""
        self._births.forget(hosted)
        hosted.move(Stage.FAILED)
        if self._is_new(hosted) or hosted.number not in self._wanted:
            self._remove(hosted)
        else:
            self._end(hosted)
            self._hard_states.leave(hosted.number, hosted.lsn)
            self._delete(hosted.number)

    def _open_old(self, hosted: Hosted) -> RangeReplica:
        """Raises OSError, CorruptLog."""
        record = hosted.record
        replica, report = open_replica(
            self._disk,
            self._scheduler,
            directory=directory(hosted.number),
            topic_id=record.id,
            first=record.first,
            last=record.last,
            hooks=self._hooks(hosted),
            config=self._log_config(record),
            cache=self.cache,
        )
        for tail in report.cuts:
            log.warning("%s: a torn tail of %d bytes was cut at %d", tail.path, tail.dropped, tail.position)
        return replica

    def _made(self, hosted: Hosted, replica: RangeReplica | None, error: OSError | None) -> None:
        if replica is None:
            if error is not None:
                log.error("%s cannot be made here: %s", directory(hosted.number), error)
            hosted.move(Stage.FAILED)
            if hosted.number not in self._wanted:
                self._remove(hosted)
            return
        if self._is_closed:
            replica.close()
            return
        if not self._hard_states.is_coming(hosted.number):
            self._join(hosted, replica)
            return

        def durable(error: Exception | None) -> None:
            if error is not None:
                self._fatal(error)
            elif self._is_closed:
                replica.close()
            else:
                self._join(hosted, replica)

        # From now on the folder is what it has promised.
        self._hard_states.came_back(hosted.number)
        self._hard_states.when_all_durable(durable)

    def _join(self, hosted: Hosted, replica: RangeReplica) -> None:
        group = hosted.number
        hosted.range = RangeGroup(
            self._node_id, replica, partial(self._restore, hosted), lambda: self._led(hosted)
        )
        self._care_for_files(hosted, replica)
        hosted.move(Stage.HERE)
        if group not in self._wanted:
            self._remove(hosted)
            return
        is_new = self._is_new(hosted)
        joined = hosted.range.join(
            self._host,
            group,
            self._hard_states.state(group),
            is_new=is_new,
            may_stand=self._may_stand(hosted),
        )
        self._on_open(group)
        self._births.look_soon()
        if is_new and hosted.record.replicas[0] == self._node_id:
            for delay_ms in STAND_AGAIN_MS:
                self._scheduler.call_later(delay_ms, self._stand, hosted)
        assert joined is hosted.range.group

    def _care_for_files(self, hosted: Hosted, replica: RangeReplica) -> None:
        if hosted.compaction is not None:
            hosted.compaction.close()
        hosted.front = ReplicaFront(self._disk, self._scheduler, replica)
        hosted.compaction = ReplicaCompaction(self._disk, self._scheduler, replica, hosted.front, self.cache)

    def _restore(self, hosted: Hosted, request: SnapshotRequest, done: Done) -> None:
        """What the replica needs next is gone at its leader."""
        assert hosted.range is not None
        assert hosted.front is not None

        def opened(replica: RangeReplica) -> None:
            self._care_for_files(hosted, replica)
            replica.reconfigure(self._log_config(hosted.record))
            self._on_open(hosted.number)
            self._births.look_soon()

        def failed(error: OSError) -> None:
            log.error("%s cannot be replaced: %s", directory(hosted.number), error)
            replica, group = hosted.replica, self._host.groups.get(hosted.number)
            if replica is not None:
                replica.fail(error)
            if hosted.stage is Stage.HERE:
                hosted.move(Stage.FAILED)
            if group is not None and group.failure is None:
                group.fail(error)

        one = Restorable(
            hosted.number, hosted.range, hosted.front, partial(self._open_old, hosted), opened, failed
        )
        self.restores.begin(one, request, done)

    def _led(self, hosted: Hosted) -> None:
        hosted.led_since_ms = self._scheduler.now_ms()
        hosted.led_since_monotonic_ms = self._scheduler.monotonic_ms()
        self._on_leader(hosted.number)

    def _stand(self, hosted: Hosted) -> None:
        group = hosted.range.group if hosted.range is not None else None
        if hosted.stage is Stage.HERE and group is not None and group.failure is None:
            group.stand()

    def _hooks(self, hosted: Hosted) -> RangeHooks:
        def allocate_segment_id() -> int:
            # One after the other: a roll that was truncated has left no file.
            replica = hosted.replica
            assert replica is not None
            return replica.active.segment_id + 1

        def publish(event: RollEvent, done: Callable[[OSError | None], None]) -> None:
            raise AssertionError("a replica rolls by entries")

        def failed(error: KafkaError) -> None:
            log.error("%s; this node takes no part in it any more", error.message)
            if hosted.stage is Stage.HERE:
                hosted.move(Stage.FAILED)

        return RangeHooks(
            allocate_segment_id,
            publish,
            on_progress=lambda partitions: self._on_progress(hosted.number, partitions),
            on_failed=failed,
            on_sealed=lambda segment_id, ends: self._births.look_soon(),
            on_rolled=lambda event: self._scheduler.call_soon(self._rolled, hosted),
            on_transactional=lambda batches: self._on_transactional(hosted.number, batches),
        )

    def _rolled(self, hosted: Hosted) -> None:
        if hosted.replica is not None and hosted.replica.is_retired:
            self._on_end(hosted.number)

    # Removing.

    def depart(self, group: int) -> None:
        """The group has this node no more, and the record does not name it. What was promised is kept."""
        hosted = self.hosted[group]
        assert self._node_id not in hosted.record.holders
        self._end(hosted)
        self._hard_states.leave(group, hosted.lsn)
        self._delete(group)
        self._on_gone(group)

    def _remove(self, hosted: Hosted) -> None:
        self._end(hosted)
        self._free(hosted.number)

    def _end(self, hosted: Hosted) -> None:
        hosted.move(Stage.REMOVING)
        group = hosted.number
        self.restores.forget(group)
        if group in self._host.groups:
            self._host.remove(group)
        hosted.leave_files()
        replica = hosted.replica
        if replica is not None:
            try:
                replica.close()
            except OSError as error:
                log.warning("%s: %s", replica.directory, error)

    def _free(self, group: int) -> None:
        self._hard_states.remove(group)
        self._delete(group)

    def _delete(self, group: int) -> None:
        """When it is durable that the files are of no use."""

        def durable(error: Exception | None) -> None:
            if error is not None:
                self._fatal(error)
                return
            self.hosted.pop(group, None)
            try:
                delete_files(self._disk, directory(group))
            except OSError as failure:
                log.warning("%s stays until the next start: %s", directory(group), failure)
            if group not in self._wanted and self._hard_states.has_left(group):
                self._free(group)  # deleted meanwhile

        self._hard_states.when_all_durable(durable)

    # The end.

    def here(self) -> list[Hosted]:
        """Those that take part."""
        return [hosted for hosted in self.hosted.values() if hosted.stage is Stage.HERE]

    def led(self) -> list[Hosted]:
        """Those of which this node is the leader."""
        return [hosted for hosted in self.hosted.values() if self.leads(hosted)]

    def leads(self, hosted: Hosted) -> bool:
        return hosted.stage is Stage.HERE and hosted.range is not None and hosted.range.leads

    def close(self) -> None:
        """Writes and flushes everything; blocks."""
        self._is_closed = True
        self.restores.close()
        self._births.close()
        for hosted in self.hosted.values():
            hosted.leave_files()
            replica = hosted.replica
            if replica is not None:
                try:
                    replica.close()
                except OSError as error:
                    log.error("not a clean stop: %s", error)


def _is_range(group: int) -> bool:
    return group >= FIRST_GROUP
