"""A broker in a process of its own, on a free port and a temporary folder, for the length of a benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_broker(data: Path | None = None, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The bootstrap address of a fresh broker; it is stopped, and its folder removed, at the end."""
    with tempfile.TemporaryDirectory(prefix="sealog-bench-", dir=data) as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "serve", "--data", folder, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "listens on" not in line:
                raise RuntimeError(f"the broker did not start: {line!r}")
            yield line.split("listens on ")[1].split(",")[0]
        finally:
            process.terminate()
            process.wait(timeout=30)
