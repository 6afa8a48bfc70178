"""Drives the groups of one node: time, persistence and messages of all of them, once per turn of the loop.

Guarantees: everything that came in one turn is handed out together, so proposals share appends, appends share flushes,
and the hard states of all groups share one; `Raft.persisted` is called in order, after both the hard state and the log
of an output are durable; a proposal is reported once: committed, lost for certain, or in doubt. A failed write or flush
is final: that group takes part no more. Clock, storage, network and randomness are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from raftish.config import Config
from raftish.core import NotLeader, Proposed, Raft
from raftish.datagram import Beat
from raftish.detector import Detector
from raftish.entries import Entry, HardState, Kind
from raftish.log import LogView
from raftish.membership import Change, Membership
from raftish.messages import Heartbeat, HeartbeatResponse, Message, SnapshotRequest
from raftish.outbox import Output

Done = Callable[[Exception | None], None]


class Scheduler(Protocol):
    """An event loop's deferred calls; `storage.clock.Scheduler` is one."""

    def monotonic_ms(self) -> int: ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None: ...

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Any: ...


class GroupLog(LogView, Protocol):
    """A group's log. Callbacks never come from within the call that handed them in."""

    def write(self, truncate_from: int | None, entries: Sequence[Entry]) -> None:
        """Cut off the end, then append. Raises OSError."""
        ...

    def when_all_durable(self, callback: Done) -> None:
        """When the device has everything written so far."""
        ...


class HardStates(Protocol):
    """Of all groups of a node, in one place."""

    def write(self, group: int, hard_state: HardState) -> None:
        """Raises OSError."""
        ...

    def when_all_durable(self, callback: Done) -> None: ...


class Network(Protocol):
    """Sends or drops, and never waits."""

    def send(self, peer: int, messages: Sequence[tuple[int, Message]]) -> None: ...

    def send_beats(self, peer: int, beats: Sequence[Beat]) -> None: ...


class Machine(Protocol):
    """What a group is for. Called from the host's turns; must not raise."""

    def committed(self, entries: Sequence[Entry]) -> None:
        """The next entries, in order, once each in a life of the process."""
        ...

    def led_by(self, leader: int | None, term: int) -> None:
        """Who leads, as of now; all entries that the log has are written."""
        ...

    def restore(self, request: SnapshotRequest, done: Done) -> None:
        """Replace the log and the state by those as of `request.index`, durably."""
        ...


class LogMachine(Protocol):
    """A machine whose state is its log: it needs no entry handed back that it has written. As `Machine` otherwise."""

    def committed_to(self, index: int) -> None:
        """Everything up to `index` is committed."""
        ...

    def led_by(self, leader: int | None, term: int) -> None: ...

    def restore(self, request: SnapshotRequest, done: Done) -> None:
        """Replace the log by one of committed entries that goes up to `request.index` or farther, durably."""
        ...

    def known_members(self) -> Iterable[tuple[int, Membership]]:
        """Of the log that was restored, as `Host.add` takes it."""
        ...


class Lost(Exception):
    """The proposal will never be committed."""


class InDoubt(Exception):
    """The proposal may have been committed: this node took a newer state, in which it cannot be told."""


class GroupFailed(Exception):
    """The group's storage failed; this node takes no part in it any more."""


class Group:
    """One group on this node; `Host.add` makes it."""

    def __init__(
        self, host: Host, number: int, raft: Raft, log: GroupLog, machine: Machine | LogMachine
    ) -> None:
        self.number = number
        self.raft = raft
        self.failure: Exception | None = None
        self._host = host
        self._log = log
        self._machine = machine
        self._committed: Callable[[Sequence[Entry]], None] | None = getattr(machine, "committed", None)
        self._committed_to: Callable[[int], None] | None = getattr(machine, "committed_to", None)
        self._applied = raft.commit
        self._proposals: deque[tuple[Proposed, Done]] = deque()
        self._writes: deque[list[int]] = deque()
        """[seq, flushes awaited], oldest first."""
        self._told: tuple[int | None, int] = (None, -1)
        self._applying_bytes = raft.config.max_message_bytes

    # Users.

    @property
    def leader(self) -> int | None:
        return self.raft.leader

    def propose(self, payloads: Sequence[bytes], done: Done, *, kind: Kind = Kind.NORMAL) -> Proposed:
        """`done(None)` when all of them are committed and applied here; `done(Lost())` when they cannot be any more.

        Whether they will be may stay open for as long as no leader is elected: who waits sets itself a limit. `kind` as
        `Raft.propose` takes it. Raises `NotLeader`, `NotNow`, `GroupFailed`.
        """
        self._check()
        proposed = self.raft.propose(payloads, self._host.now_ms(), kind=kind)
        self._proposals.append((proposed, done))
        self._host.wake(self)
        return proposed

    def change_members(self, change: Change, done: Done) -> Proposed:
        """As `propose`; raises `ChangeRefused` as well."""
        self._check()
        proposed = self.raft.change_members(change, self._host.now_ms())
        self._proposals.append((proposed, done))
        self._host.wake(self)
        return proposed

    def read(self, done: Done) -> None:
        """`done(None)` when this node may answer from what it has applied. `done(NotLeader)` otherwise."""
        self._check()
        self.raft.read(done, self._host.now_ms())
        self._host.wake(self)

    def transfer(self, target: int) -> None:
        self._check()
        self.raft.transfer(target, self._host.now_ms())
        self._host.wake(self)

    def stand(self) -> None:
        """Stand for election now, where no leader is known."""
        self._check()
        self.raft.stand(self._host.now_ms())
        self._host.wake(self)

    def _check(self) -> None:
        if self.failure is not None:
            raise GroupFailed(str(self.failure)) from self.failure

    # The host.

    def step(self, message: Message, now_ms: float) -> None:
        self.raft.step(message, now_ms)

    def turn(self) -> Output | None:
        """Hand out, write, apply; the messages are the host's to send."""
        if self.failure is not None:
            return None
        output = self.raft.take_output()
        if output.seq:
            self._persist(output)
        if output.restore is not None:
            self._machine.restore(output.restore, self._restored)
        self._apply(output.commit)
        for ready in output.reads:
            ready.context(None if ready.index is not None else NotLeader(self.raft.leader))
        told = (self.raft.leader, self.raft.term)
        if told != self._told:
            self._told = told
            self._machine.led_by(*told)
        return output

    def _persist(self, output: Output) -> None:
        write = [output.seq, 0]
        self._writes.append(write)

        def durable(error: Exception | None) -> None:
            if self.failure is not None:
                return
            if error is not None:
                self.fail(error)
                return
            write[1] -= 1
            seq = 0
            while self._writes and self._writes[0][1] == 0:
                seq = self._writes.popleft()[0]
            if seq:
                self.raft.persisted(seq, self._host.now_ms())
                self._host.wake(self)

        try:
            if output.truncate_from is not None or output.entries:
                if output.truncate_from is not None:
                    self._give_up(Lost, output.truncate_from)
                self._log.write(output.truncate_from, output.entries)
                write[1] += 1
                self._log.when_all_durable(durable)
            if output.hard_state is not None:
                self._host.hard_states.write(self.number, output.hard_state)
                write[1] += 1
                self._host.hard_states.when_all_durable(durable)
        except OSError as error:
            self.fail(error)

    def _give_up(self, error: type[Exception], first: int = 0) -> None:
        while self._proposals and self._proposals[-1][0].last >= first:
            _, done = self._proposals.pop()
            self._host.scheduler.call_soon(done, error())

    def _apply(self, commit: int) -> None:
        if self._committed_to is not None:
            if commit > self._applied:
                self._applied = commit
                self._committed_to(commit)
                while self._proposals and self._proposals[0][0].last <= commit:
                    proposed, done = self._proposals.popleft()
                    done(None if self.raft.log.term_at(proposed.last) == proposed.term else Lost())
            return
        while self._applied < commit:
            entries = self.raft.log.entries(self._applied + 1, commit, self._applying_bytes)
            assert self._committed is not None
            self._committed(entries)
            self._applied = entries[-1].index
            while self._proposals and self._proposals[0][0].last <= self._applied:
                proposed, done = self._proposals.popleft()
                kept = entries[proposed.last - entries[0].index].term == proposed.term
                done(None if kept else Lost())

    def _restored(self, error: Exception | None) -> None:
        if self.failure is not None:
            return
        now_ms = self._host.now_ms()
        if error is not None:
            self.raft.snapshot_failed(now_ms)
        else:
            self.raft.snapshot_installed(now_ms, self._members_of_log())
            self._give_up(InDoubt)
            self._applied = self.raft.commit
        self._host.wake(self)

    def _members_of_log(self) -> Iterable[tuple[int, Membership]] | None:
        known: Callable[[], Iterable[tuple[int, Membership]]] | None
        known = getattr(self._machine, "known_members", None) if self._committed_to is not None else None
        return known() if known is not None else None

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._give_up(GroupFailed)
        reads = self.raft.outbox.output.reads
        if self.raft.leadership is not None:
            reads += self.raft.leadership.reads.fail_all()
        for ready in reads:
            self._host.scheduler.call_soon(ready.context, GroupFailed(str(error)))
        self._machine.led_by(None, self.raft.term)


class Host:
    """`jitter` as `Raft` takes it; `tick_ms` a small part of the election timeout."""

    def __init__(
        self,
        node: int,
        config: Config,
        scheduler: Scheduler,
        hard_states: HardStates,
        network: Network,
        jitter: Callable[[], float],
        *,
        tick_ms: float = 50,
    ) -> None:
        self.node = node
        self.scheduler = scheduler
        self.hard_states = hard_states
        self.groups: dict[int, Group] = {}
        self._config = config
        self._network = network
        self._jitter = jitter
        self._tick_ms = tick_ms
        self._woken: dict[Group, None] = {}
        self._detectors: dict[int, Detector] = {}
        self._closed = False
        self._timer = scheduler.call_later(tick_ms, self._tick)

    def now_ms(self) -> float:
        return self.scheduler.monotonic_ms()

    def add(
        self,
        number: int,
        log: GroupLog,
        hard_state: HardState,
        known_members: Iterable[tuple[int, Membership]],
        machine: Machine | LogMachine,
        *,
        commit: int = 0,
        is_new: bool = False,
        may_stand: bool = True,
    ) -> Group:
        """`log` and `hard_state` are as a start found them, and flushed; `commit` is known to have been committed, and
        applied; `is_new` and `may_stand` as `Raft` takes them."""
        if number in self.groups:
            raise ValueError(f"group {number} is here already")
        raft = Raft(
            self.node,
            self._config,
            log,
            hard_state,
            known_members,
            self._jitter,
            self.now_ms(),
            commit=commit,
            is_new=is_new,
            may_stand=may_stand,
        )
        group = self.groups[number] = Group(self, number, raft, log, machine)
        self.wake(group)
        return group

    def remove(self, number: int) -> None:
        group = self.groups.pop(number)
        group.fail(GroupFailed("the group was removed from this node"))

    def close(self) -> None:
        self._closed = True
        self._timer.cancel()

    def suspects(self, peer: int) -> bool:
        """Whether no heartbeat of this node, for any group, came for unusually long."""
        detector = self._detectors.get(peer)
        return detector is None or detector.suspects(self.now_ms())

    # What comes in.

    def received(self, number: int, message: Message) -> None:
        group = self.groups.get(number)
        if group is not None and group.failure is None and message.target == self.node:
            group.step(message, self.now_ms())
            self.wake(group)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        detector = self._detectors.get(peer)
        if detector is None:
            detector = self._detectors[peer] = Detector(self._config.heartbeat_ms)
        detector.heard(self.now_ms())
        for number, beat in beats:
            self.received(number, beat)

    # Turns.

    def wake(self, group: Group) -> None:
        if not self._woken:
            self.scheduler.call_soon(self._turn)
        self._woken[group] = None

    def _tick(self) -> None:
        if self._closed:
            return
        self._timer = self.scheduler.call_later(self._tick_ms, self._tick)
        now_ms = self.now_ms()
        for group in self.groups.values():
            if group.failure is None and group.raft.tick(now_ms):
                self.wake(group)

    def _turn(self) -> None:
        if self._closed:
            return
        woken, self._woken = self._woken, {}
        messages: dict[int, list[tuple[int, Message]]] = {}
        beats: dict[int, list[Beat]] = {}
        for group in woken:
            output = group.turn()
            if output is None:
                continue
            for message in output.messages:
                if isinstance(message, Heartbeat | HeartbeatResponse):
                    beats.setdefault(message.target, []).append((group.number, message))
                else:
                    messages.setdefault(message.target, []).append((group.number, message))
        for peer, of_peer in messages.items():
            self._network.send(peer, of_peer)
        for peer, beats_of_peer in beats.items():
            self._network.send_beats(peer, beats_of_peer)
