"""Logs of groups, and the hard states of a node, in files: as thin as can be and honest about flushes."""

from __future__ import annotations

import zlib
from itertools import count
from struct import Struct

import msgpack

from raftish.entries import Entry, HardState, Kind
from raftish.membership import decode
from storage.flusher import GroupFlusher, tell_all

FRAME = Struct(">II")


class Journal:
    """A file of checked records; `load` reads what is whole and cuts the rest. One flush serves all who wait."""

    def __init__(self, disk, scheduler, path):
        self._disk = disk
        self._scheduler = scheduler
        new = not disk.exists(path)
        self._file = disk.open(path, create=new)
        if new:
            disk.flush_dir("")
        self.records = []
        self.end = self._load()
        self._flusher = GroupFlusher(scheduler, self, 20, self.end)

    def _load(self):
        data = self._file.pread(self._file.size(), 0)
        at = 0
        while at + FRAME.size <= len(data):
            size, crc = FRAME.unpack_from(data, at)
            payload = data[at + FRAME.size : at + FRAME.size + size]
            if not size or len(payload) < size or zlib.crc32(payload) != crc:
                break
            self.records.append(msgpack.unpackb(payload))
            at += FRAME.size + size
        self._file.truncate(at)
        self._file.flush()
        return at

    def append(self, record):
        payload = msgpack.packb(record)
        self.end += self._file.pwritev([FRAME.pack(len(payload), zlib.crc32(payload)), payload], self.end)
        self._flusher.wrote(self.end)

    def when_all_durable(self, callback):
        self._flusher.when_durable(self.end, callback)

    def start_round(self):
        self._disk.start_flush(self._file, self._flushed)

    def _flushed(self, error):
        if error is not None:
            tell_all(self._scheduler, self._flusher.stop(error), error)
            return
        tell_all(self._scheduler, self._flusher.round_done(), None)
        self._flusher.proceed()


class FileLog:
    """A `raftish.host.GroupLog`; its entries are in memory, too."""

    first_index = 1

    def __init__(self, disk, scheduler, path):
        self._all = []
        self._journal = Journal(disk, scheduler, path)
        for truncate_from, entries in self._journal.records:
            self._apply(truncate_from, [Entry(t, i, Kind(k), p) for t, i, k, p in entries])

    def _apply(self, truncate_from, entries):
        if truncate_from is not None:
            del self._all[truncate_from - 1 :]
        for entry, index in zip(entries, count(len(self._all) + 1), strict=False):
            assert entry.index == index
            self._all.append(entry)

    def write(self, truncate_from, entries):
        self._journal.append([truncate_from, [[e.term, e.index, int(e.kind), e.payload] for e in entries]])
        self._apply(truncate_from, entries)

    def when_all_durable(self, callback):
        self._journal.when_all_durable(callback)

    @property
    def last_index(self):
        return len(self._all)

    def term_at(self, index):
        if index == 0:
            return 0
        return self._all[index - 1].term if 0 < index <= len(self._all) else None

    def entries(self, first, last, max_bytes):
        found, size = [], 0
        for entry in self._all[first - 1 : last]:
            size += len(entry.payload)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def known_members(self, first):
        return [(0, first)] + [(e.index, decode(e.payload)) for e in self._all if e.kind is Kind.MEMBERSHIP]


class FileHardStates:
    """A `raftish.host.HardStates`: the groups of a node share the flush."""

    def __init__(self, disk, scheduler, path):
        self._journal = Journal(disk, scheduler, path)
        self.found = {group: HardState(term, vote) for group, term, vote in self._journal.records}

    def write(self, group, hard_state):
        self._journal.append([group, *hard_state])

    def when_all_durable(self, callback):
        self._journal.when_all_durable(callback)
