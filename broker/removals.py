"""Files that nothing names any more go, off the loop, and are tried again where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from storage.clock import Scheduler, Timer
from storage.disk import Disk
from storage.files import delete_files
from storage.format import settled_path

log = logging.getLogger("sealog")

FIRST_RETRY_MS = 1_000
LAST_RETRY_MS = 300_000


def _nothing() -> None:
    pass


class Removals:
    """Only for names that will never be used again: a file that comes back under its name would be lost.

    What is left at a stop the next start removes, as a file that no layout names.
    """

    def __init__(self, disk: Disk, scheduler: Scheduler) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._retries: dict[str, Timer] = {}
        self._closed = False

    @property
    def waiting(self) -> list[str]:
        """The paths that could not be removed yet."""
        return list(self._retries)

    def close(self) -> None:
        self._closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()

    def remove_segment(self, path: str, removed: Callable[[], None]) -> None:
        """Remove a segment's file, its sidecar before it; `removed` when the segment's file is gone."""

        def go_on() -> None:
            self._try(path, FIRST_RETRY_MS, removed, _nothing)

        sidecar = settled_path(path)
        if self._disk.exists(sidecar):
            self._try(sidecar, FIRST_RETRY_MS, _nothing, go_on)
        else:
            go_on()

    def remove_folder(self, directory: str, error: OSError, retry_ms: int = FIRST_RETRY_MS) -> None:
        """Try again to remove a deleted topic's folder, of which something could not be removed."""
        if self._closed or directory in self._retries:
            return
        log.warning("%s cannot be removed, tried again in %d s: %s", directory, retry_ms // 1000, error)

        def retry() -> None:
            del self._retries[directory]
            try:
                delete_files(self._disk, directory)
            except OSError as again:
                self.remove_folder(directory, again, min(2 * retry_ms, LAST_RETRY_MS))
            else:
                log.warning("%s is removed at last", directory)

        self._retries[directory] = self._scheduler.call_later(retry_ms, retry)

    def _try(self, path: str, retry_ms: int, removed: Callable[[], None], tried: Callable[[], None]) -> None:
        """`tried` after this attempt, whatever came of it."""
        if self._closed:
            return
        self._retries.pop(path, None)

        def done(error: OSError | None) -> None:
            if self._closed:
                return
            if error is None or isinstance(error, FileNotFoundError):
                if retry_ms > FIRST_RETRY_MS:
                    log.warning("%s is removed at last", path)
                removed()
            else:
                log.warning("%s cannot be removed, tried again in %d s: %s", path, retry_ms // 1000, error)
                self._retries[path] = self._scheduler.call_later(
                    retry_ms, self._try, path, min(2 * retry_ms, LAST_RETRY_MS), removed, _nothing
                )
            tried()

        self._disk.start_remove(path, done)
