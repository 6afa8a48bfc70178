"""`format("sealog_faulty")`: the sink, with a fault that is really made at a place that the test names.

Option `fault` is NAME or NAME:ARGUMENT, option `fault_file` a file that exists once the fault was made, once alone.
Nothing of the sink itself is changed: the faults happen before, between and behind its own steps.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_sealog.data_source import DefaultSource
from pyspark_sealog.sink_options import SinkOptions, sink_options
from pyspark_sealog.writers import BatchWriter, StreamWriter


class FaultySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "sealog_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "FaultyStreamWriter":
        fault, options = self._split()
        return FaultyStreamWriter(fault, sink_options(options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "FaultyBatchWriter":
        fault, options = self._split()
        return FaultyBatchWriter(fault, sink_options(options, streaming=False), schema)

    def _split(self) -> "tuple[Fault, dict[str, str]]":
        options = dict(self.options)
        return Fault(options.pop("fault", ""), Path(options.pop("fault_file"))), options


class Fault:
    """The fault that was ordered, and whether it was made already."""

    def __init__(self, order: str, file: Path) -> None:
        self.name, _, self.argument = order.partition(":")
        self.file = file

    def due(self, name: str) -> bool:
        """Whether this is the place, for the first time. Exactly one process is told so."""
        if self.name != name:
            return False
        try:
            self.file.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def in_task(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The task's rows in small batches, with the fault behind the first that holds any, so that some is written."""
        pieces = (batch.slice(start, 20) for batch in iterator for start in range(0, batch.num_rows, 20))
        for number, piece in enumerate(pieces):
            if number == 1:
                self._strike()
            yield piece

    def _strike(self) -> None:
        context = TaskContext.get()
        assert context is not None
        if self.due("raise"):
            raise RuntimeError("the task fails")
        if self.name == "always-raise":
            raise RuntimeError("the task fails every time")
        if self.due("kill-worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.due("kill-executor"):
            os.kill(executor_pid(), signal.SIGKILL)
        if self.due("twin"):
            # So slow that Spark starts a speculative twin, which wins; this one then writes on.
            wait_for(self.file.with_suffix(".committed"), 600.0)
            self.file.with_suffix(".writes-on").touch()


class FaultyStreamWriter(StreamWriter):
    def __init__(self, fault: Fault, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            return super().write(self.fault.in_task(iterator))
        except Exception as error:
            if self.fault.name == "twin":
                self.fault.file.with_suffix(f".refused{os.getpid()}").write_text(str(error))
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        fault = self.fault
        if fault.due("kill-driver-before-commit"):
            kill_and_wait(driver_pid())
        if fault.due("hold-commit"):
            wait_for(fault.file.with_suffix(".go"), 900.0)
        if fault.due("kill-broker-in-commit"):
            pid, delay_ms = map(float, fault.argument.split(","))
            Thread(target=lambda: (time.sleep(delay_ms / 1000), os.kill(int(pid), signal.SIGKILL))).start()
        super().commit(messages, batchId)
        fault.file.with_suffix(".committed").touch()
        if fault.due("raise-after-commit"):
            raise RuntimeError("the commit's answer is lost")
        if fault.due("kill-driver-after-commit"):
            kill_and_wait(driver_pid())


class FaultyBatchWriter(BatchWriter):
    def __init__(self, fault: Fault, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self.fault.in_task(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.fault.due("raise-before-commit"):
            raise RuntimeError("the job fails at its end")
        super().commit(messages)


def wait_for(file: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} did not come")
        time.sleep(0.02)


def executor_pid() -> int:
    """The Java process above this Python worker, which must not be the test's own."""
    return _java_above(os.getpid())


driver_pid = executor_pid


def _java_above(pid: int) -> int:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
    raise RuntimeError("no Java process above")


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)
