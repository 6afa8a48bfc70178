"""What a leader knows of one follower, and how much it may send to it.

PROBE      where the logs part is not known: one append at a time
REPLICATE  appends go out without waiting, within the limits on what is in flight
SNAPSHOT   what it needs next is gone from the log; it is to fetch files
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from raftish.config import Config


class Stage(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    def __init__(self, config: Config, next_index: int, now_ms: float) -> None:
        self._config = config
        self.stage = Stage.PROBE
        self.match = 0
        """Durable at the follower up to here."""
        self.next = next_index
        self.heard_ms = now_ms
        self.acked_round = 0
        self.acked_sent_ms = float("-inf")
        """When the last heartbeat that it answered was sent."""
        self.sent_commit = 0
        self.waits = False
        """In PROBE: for an answer."""
        self._moved_ms = now_ms
        self._probe: tuple[int, int] | None = None
        self._inflight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each append."""
        self.inflight_bytes = 0

    @property
    def inflight_messages(self) -> int:
        return len(self._inflight)

    @property
    def may_send(self) -> bool:
        if self.stage is Stage.REPLICATE:
            return (
                len(self._inflight) < self._config.max_inflight_messages
                and self.inflight_bytes < self._config.max_inflight_bytes
            )
        return self.stage is Stage.PROBE and not self.waits

    def sent(self, last_index: int, size_bytes: int, now_ms: float) -> None:
        """Entries up to `last_index` went out."""
        if self.stage is Stage.PROBE:
            self.waits = True
            self._probe = (last_index, size_bytes)
            self._moved_ms = now_ms
            return
        if not self._inflight:
            self._moved_ms = now_ms
        self.next = last_index + 1
        self._inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes

    def acknowledged(self, index: int, now_ms: float) -> bool:
        """It has everything up to `index`; whether that is new."""
        while self._inflight and self._inflight[0][0] <= index:
            self.inflight_bytes -= self._inflight.popleft()[1]
            self._moved_ms = now_ms
        advanced = index > self.match
        if advanced:
            self.match = index
            self._moved_ms = now_ms
        if self.stage is Stage.PROBE or (self.stage is Stage.SNAPSHOT and advanced):
            # What the probe carried is on its way to the device there, if what it followed was confirmed.
            probe = self._probe if index >= self.next - 1 else None
            self._enter(Stage.REPLICATE, self.match + 1, now_ms)
            if probe is not None and probe[0] > self.match:
                self.sent(*probe, now_ms)
        self.next = max(self.next, self.match + 1)
        return advanced

    def refused(self, prev_index: int, next_index: int, now_ms: float) -> bool:
        """It does not have the entry at `prev_index`; whether this is an answer to what was asked last."""
        if self.stage is Stage.SNAPSHOT or prev_index <= self.match:
            return False
        if self.stage is Stage.PROBE and prev_index != self.next - 1:
            return False
        self._enter(Stage.PROBE, max(self.match + 1, min(next_index, prev_index)), now_ms)
        return True

    def needs_snapshot(self, now_ms: float) -> None:
        self._enter(Stage.SNAPSHOT, self.next, now_ms)

    def tick(self, now_ms: float) -> bool:
        """Begin anew where nothing moved for too long, as messages may have been lost; whether that is so."""
        if now_ms - self._moved_ms < self._config.retry_ms:
            return False
        if self._inflight:
            self._enter(Stage.PROBE, self.match + 1, now_ms)
        elif self.waits or self.stage is Stage.SNAPSHOT:
            # Not from the last match: in a new term that is none yet, and silence says nothing about the log.
            self._enter(Stage.PROBE, self.next, now_ms)
        else:
            return False
        return True

    def _enter(self, stage: Stage, next_index: int, now_ms: float) -> None:
        self.stage = stage
        self.next = next_index
        self.waits = False
        self._probe = None
        self._moved_ms = now_ms
        self._inflight.clear()
        self.inflight_bytes = 0
