"""The log starts of topics beside their segments (`storage.log_starts`), for readers of files alone.

Written a moment after a log start has moved, one topic after the other, each flush off the loop; nobody waits for
them. What is missing or old at a start is written after it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping

from broker import layouts
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Scheduler, Timer
from storage.disk import Disk, File
from storage.format import TEMPORARY_SUFFIX, CorruptLog
from storage.log_starts import begin_writing, encode_log_starts, log_starts_path, read_log_starts

log = logging.getLogger("sealog")

DELAY_MS = 10
FAILED_PAUSE_MS = 60_000
TOPICS_PER_LOOK = 16


class LogStartFiles:
    """Idle, without a timer, where every file says what is in force."""

    def __init__(
        self,
        topics: Topics,
        in_force: Callable[[Topic], Mapping[int, int]],
        disk: Disk,
        scheduler: Scheduler,
    ) -> None:
        """`in_force`: what of a topic was deleted, durably, by partition; empty where nothing was."""
        self._topics = topics
        self._in_force = in_force
        self._disk = disk
        self._scheduler = scheduler
        self._unread = [topic for topic in topics if in_force(topic)]
        """Topics that were there at the start: what their files say is not known yet."""
        self._waiting: dict[Topic, None] = {}
        self._file: File | None = None
        self._timer: Timer | None = None
        self._closed = False
        if self._unread:
            self._look_in(DELAY_MS)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            self._file.close()

    def moved(self, topic: Topic) -> None:
        """A log start of this topic has moved."""
        self._waiting[topic] = None
        self._look_in(DELAY_MS)

    def _look_in(self, delay_ms: int) -> None:
        if self._timer is None and self._file is None and not self._closed:
            self._timer = self._scheduler.call_later(delay_ms, self._look)

    def _look(self) -> None:
        self._timer = None
        for topic in self._unread[:TOPICS_PER_LOOK]:
            if self._topics.get(topic.name) is topic and not self._is_written(topic):
                self._waiting[topic] = None
        del self._unread[:TOPICS_PER_LOOK]
        while self._waiting:
            topic = next(iter(self._waiting))
            del self._waiting[topic]
            if self._topics.get(topic.name) is topic:
                self._write(topic)
                return
        if self._unread:
            self._look_in(0)

    def _is_written(self, topic: Topic) -> bool:
        try:
            found = read_log_starts(self._disk, layouts.directory(topic.name, topic.id))
        except (CorruptLog, OSError):
            return False
        return found is not None and found.offsets == dict(self._in_force(topic))

    def _write(self, topic: Topic) -> None:
        directory = layouts.directory(topic.name, topic.id)
        path = log_starts_path(directory)

        def flushed(error: OSError | None) -> None:
            if self._closed:
                return
            assert self._file is not None
            self._file.close()
            self._file = None
            if self._topics.get(topic.name) is not topic:
                with contextlib.suppress(OSError):
                    self._disk.remove(path + TEMPORARY_SUFFIX)
                self._look_in(0)
                return
            try:
                if error is not None:
                    raise error
                self._disk.rename(path + TEMPORARY_SUFFIX, path)
                self._disk.start_flush_dir(
                    directory, lambda _: None
                )  # lost with the power, a start writes it
            except OSError as failure:
                self._failed(topic, failure)
            else:
                self._look_in(0)

        try:
            data = encode_log_starts(topic.id, self._in_force(topic))
            self._file = begin_writing(self._disk, directory, data)
            self._disk.start_flush(self._file, flushed)
        except OSError as failure:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._failed(topic, failure)

    def _failed(self, topic: Topic, error: OSError) -> None:
        log.warning("the log starts of %s are not written beside its segments yet: %s", topic.name, error)
        self._waiting[topic] = None
        self._look_in(FAILED_PAUSE_MS)
