"""A test's body in a process of its own: a client library that ends its process ends no more than that.

librdkafka 2.16 has assertions that a killed broker can reach. They say nothing about the broker: the body is run once
more then, and says so. Whatever else goes wrong in there is the test's failure.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ATTEMPTS = 3


def isolated(body: Callable[..., Any], root: Path, *args: Any) -> Any:
    """`body(folder, *args)` in a child process, its result handed back; `folder` is a fresh one below `root`."""
    context = multiprocessing.get_context("spawn")
    for attempt in range(ATTEMPTS):
        folder = root / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_run, args=(sender, body, folder, args))
        child.start()
        sender.close()
        try:
            failure, result = receiver.recv()
        except EOFError:
            failure, result = None, None
        child.join()
        if child.exitcode == 0:
            assert failure is None, failure
            return result
        _end_brokers(folder)
        assert child.exitcode == -signal.SIGABRT, f"the child ended with {child.exitcode}: {failure}"
        print(f"attempt {attempt + 1}: the client library ended its process by an assertion", flush=True)
    raise AssertionError(f"the client library ended its process {ATTEMPTS} times")


def _run(sender: Connection, body: Callable[..., Any], folder: Path, args: tuple[Any, ...]) -> None:
    try:
        message = (None, body(folder, *args))
    except BaseException:  # noqa: BLE001 - handed to the parent, which fails with it
        message = (traceback.format_exc(), None)
    sender.send(message)
    sender.close()


def _end_brokers(folder: Path) -> None:
    """What the child left behind: processes whose command names its folder, those too that were only just started."""
    name = os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
