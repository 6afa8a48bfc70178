"""Handing a range over from a full segment to its child, while appends go on.

Guarantees: the child's file and its name are durable before the layout is asked to name it; nothing is
written to the child before the layout durably does; the parent gets its footer only when all its entries are
durable, and its trailer only when the rest of the footer is. A crash between any two steps leaves a layout
that opens: the parent alone (and an orphan file), or parent and child, the parent with or without a footer.

    IDLE -> HELD        the range is about to be split or merged: no roll begins, and the end is `adopt` or `release`
    IDLE -> CREATING    child file made, its flush and the folder's running
         -> PUBLISHING  the owner makes the new layout durable
         -> DRAINING    appends go to the child; the parent's last entries are being flushed
         -> ENDING      the parent's end mark is being flushed
         -> WRITING     its footer is written, a bounded piece per turn
         -> SEALING     footer, then trailer are being flushed
         -> IDLE

A replicated range rolls by an entry of its group, and comes here with `adopt` when that is committed: IDLE -> DRAINING.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, Literal, Protocol

from storage.clock import Scheduler
from storage.disk import Disk
from storage.format import checkpoint_name
from storage.layout import LogConfig, Publish, RollEvent
from storage.segment import Segment

State = Literal[
    "IDLE", "HELD", "CREATING", "PUBLISHING", "DRAINING", "ENDING", "WRITING", "SEALING", "STOPPED"
]

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "IDLE": frozenset({"HELD", "CREATING", "DRAINING", "STOPPED"}),
    "HELD": frozenset({"IDLE", "DRAINING", "STOPPED"}),
    "CREATING": frozenset({"IDLE", "PUBLISHING", "STOPPED"}),
    "PUBLISHING": frozenset({"DRAINING", "STOPPED"}),
    "DRAINING": frozenset({"ENDING", "IDLE", "STOPPED"}),
    "ENDING": frozenset({"WRITING", "STOPPED"}),
    "WRITING": frozenset({"IDLE", "SEALING", "STOPPED"}),
    "SEALING": frozenset({"IDLE", "STOPPED"}),
    "STOPPED": frozenset(),
}

RETRY_FRACTION: Final = 8
"""A roll that found no space is tried again after this fraction of a segment has been appended."""


class Rolled(Protocol):
    """What the roller needs of its range log."""

    config: LogConfig

    @property
    def directory(self) -> str: ...

    @property
    def active(self) -> Segment: ...

    def create_child(self) -> Segment:
        """Make the file of the next segment. Raises OSError."""
        ...

    def end_offsets(self) -> dict[int, int]: ...

    def switch_to(self, child: Segment) -> bytes:
        """Write out, then append to the child from now on. The producers' packed snapshot of that moment."""
        ...

    def retry_roll_later(self) -> None: ...

    def segment_sealed(self, segment: Segment) -> None: ...

    def roll_ended(self) -> None:
        """Whatever became of it, no roll is under way any more."""
        ...

    def fail(self, error: OSError) -> None: ...


class Roller:
    """One roll at a time."""

    def __init__(self, disk: Disk, scheduler: Scheduler, log: Rolled, publish: Publish) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._log = log
        self._publish = publish
        self._state: State = "IDLE"
        self._parent: Segment | None = None
        self._child: Segment | None = None
        self._awaited = 0
        self._failed: OSError | None = None
        self._producers = b""
        self._steps: Iterator[None] = iter(())

    @property
    def state(self) -> State:
        return self._state

    def _change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a roll that is {self._state} cannot become {state}")
        self._state = state

    def stop(self) -> None:
        """The range failed or is closed: leave everything as it is, recovery knows what to do with it."""
        self._change_state("STOPPED")
        if self._child is not None and self._child is not self._log.active:
            self._child.close()

    # Handing over to other ranges.

    def hold(self) -> bool:
        """Let no roll begin. False where one is under way: ask again when it has ended."""
        if self._state == "IDLE":
            self._change_state("HELD")
        return self._state == "HELD"

    def release(self) -> None:
        if self._state == "HELD":
            self._change_state("IDLE")

    def adopt(self, parent: Segment, producers: bytes) -> None:
        """The range was taken over by others: seal its last segment as a roll would, `producers` as it left them."""
        self._change_state("DRAINING")
        self._parent, self._producers = parent, producers
        self.proceed()

    # Creating the child.

    def start(self) -> None:
        """Begin a roll, unless one is under way."""
        if self._state != "IDLE":
            return
        try:
            child = self._log.create_child()
        except OSError:
            # A full disk: the parent goes on. Nothing is lost, the roll is tried again.
            self._log.retry_roll_later()
            return
        self._change_state("CREATING")
        self._parent, self._child = self._log.active, child
        self._awaited, self._failed = 2, None
        self._disk.start_flush(child.file(), self._created)
        self._disk.start_flush_dir(self._log.directory, self._created)

    def _created(self, error: OSError | None) -> None:
        if self._state != "CREATING":
            return
        assert self._child is not None
        assert self._parent is not None
        self._awaited -= 1
        self._failed = self._failed or error
        if self._awaited:
            return
        if self._failed is not None:
            # That file is lost for good, and nobody has been told of it. The next roll makes another.
            child, self._child, self._parent = self._child, None, None
            child.close()
            with contextlib.suppress(OSError):
                self._disk.remove(child.path)
            self._change_state("IDLE")
            self._log.retry_roll_later()
            self._log.roll_ended()
            return
        self._change_state("PUBLISHING")
        event = RollEvent(self._parent.segment_id, self._child.segment_id, self._log.end_offsets())
        self._publish(event, self._published)

    def _published(self, error: OSError | None) -> None:
        if self._state != "PUBLISHING":
            return
        if error is not None:
            # Whether the layout names the child is unknown from here on; a restart finds out.
            self._log.fail(error)
            return
        assert self._child is not None
        self._change_state("DRAINING")
        self._producers = self._log.switch_to(self._child)
        self.proceed()

    # Sealing the parent.

    def proceed(self) -> None:
        """Called after every flush of the range: go on as soon as the parent is durable to its end."""
        parent = self._parent
        if self._state != "DRAINING" or parent is None or parent.durable_end < parent.end:
            return
        try:
            parent.write_end_mark()
        except OSError:
            self._end()
            return
        self._change_state("ENDING")
        self._disk.start_flush(parent.file(), self._ended)

    def _ended(self, error: OSError | None) -> None:
        parent = self._parent
        if self._state != "ENDING" or parent is None:
            return
        if error is not None:
            self._log.fail(error)
            return
        self._change_state("WRITING")
        self._steps = parent.footer_steps(self._producers, self._log.config.footer_step_bytes)
        self._scheduler.call_soon(self._step)

    def _step(self) -> None:
        if self._state != "WRITING":
            return
        assert self._parent is not None
        try:
            next(self._steps)
        except StopIteration:
            self._change_state("SEALING")
            self._disk.start_flush(self._parent.file(), self._footer_flushed)
            return
        except OSError:
            # No space for a footer: the segment stays readable without one, and the next start writes it.
            self._end()
            return
        self._scheduler.call_soon(self._step)

    def _footer_flushed(self, error: OSError | None) -> None:
        if self._state != "SEALING":
            return
        assert self._parent is not None
        if error is not None:
            self._log.fail(error)
            return
        try:
            self._parent.write_trailer()
        except OSError:
            self._end()
            return
        self._disk.start_flush(self._parent.file(), self._sealed)

    def _sealed(self, error: OSError | None) -> None:
        if self._state != "SEALING":
            return
        parent = self._parent
        assert parent is not None
        if error is not None:
            self._log.fail(error)
            return
        parent.sealed()
        with contextlib.suppress(OSError):
            # What is left of it a restart removes.
            self._disk.remove(f"{self._log.directory}/{checkpoint_name(parent.segment_id)}")
        self._end(sealed=parent)

    def _end(self, *, sealed: Segment | None = None) -> None:
        self._parent = self._child = None
        self._producers = b""
        self._steps = iter(())
        self._change_state("IDLE")
        if sealed is not None:
            self._log.segment_sealed(sealed)
        self._log.roll_ended()
