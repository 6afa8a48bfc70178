"""Runs compactions in another process (`storage.compaction_worker`), one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

import msgspec

from storage.compaction_job import Job, JobDone, Outcome

log = logging.getLogger("sealog")


class CompactionProcess:
    """The workers of one data folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._task: asyncio.Task[None] | None = None

    def run(self, job: Job, done: JobDone) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(job, done))

    async def close(self) -> None:
        """Kill the worker; what it wrote the next start removes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, job: Job, done: JobDone) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "storage.compaction_worker",
            self._root,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            answer, said = await process.communicate(msgspec.msgpack.encode(job))
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        outcome = None
        if process.returncode == 0:
            outcome = msgspec.msgpack.decode(answer, type=Outcome)
        else:
            log.error(
                "compaction in %s failed: %s", job.directory, said.decode(errors="replace").strip()[-2000:]
            )
        done(outcome)
