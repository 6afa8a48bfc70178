"""What consumer groups keep in the metadata store: where each record lies, and how a change gets there.

Guarantee: a change of a group is one atomic batch, and changes become durable in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.groups import GroupChange, GroupRecord, StoredGroup
from storage.clock import Scheduler
from txn import keys
from txn.metastore import Delete, LimitExceeded, MetaStore, Op, Put, StoreFailed
from wire.errors import ErrorCode, KafkaError


class GroupStore:
    """`stored` is called after each change's `done`, since what follows from that may have set a deadline."""

    def __init__(self, store: MetaStore, scheduler: Scheduler, stored: Callable[[], None]) -> None:
        self._store = store
        self._scheduler = scheduler
        self._stored = stored

    def load(self) -> dict[str, StoredGroup]:
        """All groups that ever stored anything but offsets."""
        found: dict[str, StoredGroup] = {}
        for key, record in self._store.scan(keys.GROUPS):
            group_id, rest = keys.parse_group(key)
            if rest.startswith(keys.OFFSET_PART):
                continue
            group = found.setdefault(group_id, StoredGroup())
            kind, member_id = keys.parse_group_member(rest)
            if kind == keys.MEMBER:
                group.members[member_id] = record.value
            elif kind == keys.ASSIGNMENT:
                group.assignments[member_id] = record.value
            else:
                group.state = record.value
        return found

    def change(self, group_id: str, change: GroupChange, done: Callable[[Exception | None], None]) -> None:
        """Write and delete what the change says; `done` when that is durable, or with the error."""
        state = change.state
        if state is not None and not state["members"]:
            state = {**state, "empty_since_ms": self._scheduler.now_ms()}
        ops = [_op(keys.group_state(group_id), state)]
        for kind, records in ((keys.MEMBER, change.members), (keys.ASSIGNMENT, change.assignments)):
            written = {keys.group_member(group_id, kind, who): record for who, record in records.items()}
            ops += [_op(key, record) for key, record in written.items()]
            if change.whole:
                there = self._store.scan(keys.group_members(group_id, kind))
                ops += [Delete(key) for key, _ in there if key not in written]
        try:
            lsn = self._store.apply(ops).lsn
        except StoreFailed as failure:
            done(failure)
            return
        except LimitExceeded as refused:
            done(KafkaError(ErrorCode.record_list_too_large, str(refused)))
            return

        def stored(error: Exception | None) -> None:
            done(error)
            self._stored()

        self._store.when_durable(lsn, stored)

    def empty_since_ms(self, group_id: str) -> int:
        """When the last member left, by the wall clock; 0 where that is not known."""
        record = self._store.get(keys.group_state(group_id))
        since_ms: int = record.value.get("empty_since_ms", 0) if record is not None else 0
        return since_ms


def _op(key: str, record: GroupRecord | None) -> Op:
    return Put(key, record) if record is not None else Delete(key)
