"""The files of one node, as of the entries that it has applied, and the checkpoints from which a start goes on.

    files/<number>     the content of a file
    checkpoint         CRC, then (index, term, next number, {path: number}, [folder], members), the last of which are
                       (index of their entry, [voter], [learner], {node: where the others reach it})

Guarantee: from the checkpoint on, applying the entries behind it once more gives the state as of the last of them,
whatever of them the files have seen already (`ops`). A write that fails is final: `Fatal`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgpack
import msgspec
from crc32c import crc32c

from broker.config import NotNegative
from broker.replication.folder import make_dir_durable
from broker.replication.ops import Change, Code
from broker.replication.tree import Tree
from raftish.membership import Membership
from storage.disk import Disk, File

FILES: Final = "files"
CHECKPOINT: Final = "checkpoint"
FETCHING: Final = "fetching"
MAX_OPEN: Final = 256


class Fatal(Exception):
    """This node's disk has failed it: it cannot go on as a part of the cluster."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A state's names, as of an index."""

    index: int
    packed: bytes


class _Names(msgspec.Struct, array_like=True, frozen=True):
    """A capture as it is packed."""

    index: NotNegative
    term: NotNegative
    next_number: NotNegative
    files: dict[str, NotNegative]
    folders: list[str]
    members: tuple[NotNegative, list[int], list[int], dict[int, str]] | None = None


class Store:
    def __init__(self, disk: Disk) -> None:
        """Raises OSError, `Fatal`."""
        self.disk = disk
        self.tree = Tree()
        self.index = 0
        """Of the last entry that was applied, and its term."""
        self.term = 0
        self.members: tuple[int, Membership] | None = None
        """(index of their entry, who they are), as of what was applied. None: this node knows of no group yet."""
        self.peers: dict[int, str] = {}
        """Where nodes that came later, and those that were there then, are reached by the others: HOST:PORT."""
        self.checkpointed_index = 0
        self.applied_bytes = 0
        """Since the last checkpoint was begun."""
        self._open: OrderedDict[int, File] = OrderedDict()
        self._dirty: set[int] = set()
        make_dir_durable(disk, FILES)
        self.must_fetch = disk.exists(FETCHING)
        """The files are of no use: the leader's state has to be fetched before this node takes part."""
        if disk.exists(CHECKPOINT):
            self._load()
        if self.must_fetch:
            # Who the members are is worth knowing all the same: one of them has the state.
            self.tree = Tree()
            self.index = self.term = self.checkpointed_index = 0
            return
        known = {str(number) for number in self.tree.numbers()}
        for name in disk.list(FILES):
            if name not in known:
                # Made behind the checkpoint: the entries that made it come again.
                disk.remove(f"{FILES}/{name}")

    @staticmethod
    def path(number: int) -> str:
        return f"{FILES}/{number}"

    # Applying.

    def apply(self, index: int, term: int, changes: Sequence[Change]) -> None:
        """Raises `Fatal`."""
        try:
            for change in changes:
                self._apply(change)
        except OSError as error:
            raise Fatal(f"entry {index} cannot be applied: {error}") from error
        self.index, self.term = index, term

    def _apply(self, change: Change) -> None:
        code, *rest = change
        if code is Code.WRITE:
            number, position, data = rest
            self._file(number).pwritev([data], position)
            self.applied_bytes += len(data)
        elif code is Code.ALLOCATE:
            self._file(rest[0]).allocate(rest[1], rest[2])
        elif code is Code.TRUNCATE:
            self._file(rest[0]).truncate(rest[1])
        elif code is Code.CREATE:
            self.tree.create(*rest)
            self._file(rest[1])
        elif code is Code.REMOVE:
            self._discard(self.tree.remove(rest[0]))
        elif code is Code.RENAME:
            replaced = self.tree.rename(*rest)
            if replaced is not None:
                self._discard(replaced)
        elif code is Code.MAKE_DIR:
            self.tree.make_dir(rest[0])
        elif code is Code.PEER:
            self.peers[rest[0]] = rest[1]
        else:
            self.tree.remove_dir(rest[0])

    def _file(self, number: int) -> File:
        """To be changed. Where the file went already, and its removal comes again later, it is made anew."""
        self._dirty.add(number)
        file = self._open.get(number)
        if file is not None:
            self._open.move_to_end(number)
            return file
        path = self.path(number)
        file = self._open[number] = self.disk.open(path, create=not self.disk.exists(path))
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)[1].close()
        return file

    def _discard(self, number: int) -> None:
        self._dirty.discard(number)
        file = self._open.pop(number, None)
        if file is not None:
            file.close()
        if self.disk.exists(self.path(number)):
            self.disk.remove(self.path(number))

    # Checkpoints.

    def capture(self) -> Capture:
        members = None
        if self.members is not None:
            index, membership = self.members
            members = (index, sorted(membership.voters), sorted(membership.learners), self.peers)
        packed: bytes = msgpack.packb((self.index, self.term, *self.tree.dump(), members))
        return Capture(self.index, packed)

    def found(self, membership: Membership) -> None:
        """These are the first members of a new group; blocks until that is durable. Raises OSError."""
        self.members = (0, membership)
        self.write_now()

    def write_now(self) -> None:
        """A checkpoint of an open store whose files are all flushed; blocks until it is durable. Raises OSError."""
        capture = self.capture()
        file = self._begin_checkpoint(capture)
        file.flush()
        file.close()
        self.disk.rename(CHECKPOINT + ".new", CHECKPOINT)
        self.disk.flush_dir("")
        self.checkpointed_index = capture.index

    def _begin_checkpoint(self, capture: Capture) -> File:
        new = CHECKPOINT + ".new"
        if self.disk.exists(new):
            self.disk.remove(new)
        file = self.disk.open(new, create=True)
        file.pwritev([crc32c(capture.packed).to_bytes(4, "big"), capture.packed], 0)
        return file

    def checkpoint(self, capture: Capture, done: Callable[[OSError | None], None]) -> None:
        """Flush what has changed, off the loop, then write the capture; `done` once."""
        numbers, self._dirty = self._dirty, set()
        self.applied_bytes = 0
        awaited = 1
        failed: OSError | None = None

        def flushed(error: OSError | None) -> None:
            nonlocal awaited, failed
            awaited -= 1
            failed = failed or error
            if awaited:
                return
            if failed is not None:
                done(failed)
                return
            self._write_checkpoint(capture, done)

        for number in numbers:
            if not self.disk.exists(self.path(number)):
                continue
            file = self._open.get(number)
            awaited += 1
            if file is not None:
                self.disk.start_flush(file, flushed)
            else:
                opened = self.disk.open(self.path(number))
                self.disk.start_flush(opened, flushed)
                opened.close()
        self.disk.start_flush_dir(FILES, flushed)

    def _write_checkpoint(self, capture: Capture, done: Callable[[OSError | None], None]) -> None:
        try:
            file = self._begin_checkpoint(capture)
        except OSError as error:
            done(error)
            return

        def named(error: OSError | None) -> None:
            if error is None:
                self.checkpointed_index = capture.index
            done(error)

        def written(error: OSError | None) -> None:
            file.close()
            if error is not None:
                done(error)
                return
            try:
                self.disk.rename(CHECKPOINT + ".new", CHECKPOINT)
            except OSError as failure:
                done(failure)
                return
            self.disk.start_flush_dir("", named)

        self.disk.start_flush(file, written)

    def _load(self) -> None:
        file = self.disk.open_readonly(CHECKPOINT)
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        # Nothing at all has the checksum of nothing.
        if len(data) <= 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            raise Fatal(f"{CHECKPOINT} is damaged: give this node an empty folder, it fetches the state")
        self.take(data[4:])

    def take(self, packed: bytes) -> None:
        """Be as this capture is, of another store or of this one. Raises `Fatal`: it is none of this version."""
        try:
            names = msgspec.msgpack.decode(packed, type=_Names)
            tree = Tree.load(names.next_number, names.files, names.folders)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
            raise Fatal(f"{CHECKPOINT} cannot be read: {error}") from error
        self.index, self.term, self.tree = names.index, names.term, tree
        # Earlier ones have no members: those were in `--peers` then.
        if names.members is not None:
            index, voters, learners, self.peers = names.members
            self.members = (index, Membership(frozenset(voters), frozenset(learners)))
        self.checkpointed_index = self.index

    def begin_to_fetch(self) -> None:
        """Blocks until it is durable that the files are of no use."""
        self.must_fetch = True
        self.close()
        if not self.disk.exists(FETCHING):
            self.disk.open(FETCHING, create=True).close()
        self.disk.flush_dir("")

    def is_whole_again(self) -> None:
        self.disk.remove(FETCHING)
        self.disk.flush_dir("")
        self.must_fetch = False

    def replace(self, number: int) -> File:
        """An empty file in place of the one with this number, to be filled from another node."""
        file = self._open.pop(number, None)
        if file is not None:
            file.close()
        self._dirty.add(number)
        path = self.path(number)
        file = self.disk.open(path, create=not self.disk.exists(path))
        file.truncate(0)
        return file

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
