"""The C library keeps freed memory: what would be a page fault per 4 KiB of every answer is none."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from broker.allocator import keep_freed_memory
kept = keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    # As answers are: some large blocks at once, and then none of them.
    blocks = [bytes(1 << 20) for _ in range(8)]
work()
before = faults()
for _ in range(20):
    work()
print(kept, faults() - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have allocators of their own"
)
def test_large_blocks_are_used_again_without_page_faults() -> None:
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.split()
    assert out[0] == "True"
    # 20 x 8 MiB would be 40,960 faults.
    assert int(out[1]) < 2_000
