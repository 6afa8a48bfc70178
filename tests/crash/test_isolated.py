"""A body in a process of its own, which a client library ends: it runs again, and nothing of the first is left."""

import os
import subprocess
import sys
from pathlib import Path

from tests.crash.isolated import isolated


def aborts_the_first_time(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", str(folder / "data")], start_new_session=True
    )
    if folder.name == "attempt-0":
        os.abort()
    process.kill()
    process.wait()
    return process.pid


def test_what_a_child_left_behind_has_ended(tmp_path):
    assert isolated(aborts_the_first_time, tmp_path) > 0
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # A killed one may not have been collected yet: then its command is empty.
        if os.fsencode(tmp_path) in command:
            running.append(command)
    assert not running
