"""What is done once in a Python process that Spark keeps for tasks."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


def leave_imports_alone() -> None:
    """Take what the process has imported out of the garbage collector's sight, in a process of Spark's tasks alone.

    Spark lets such a process collect all garbage after each task, before it takes the next one, which would look at all
    objects of pandas, Arrow and Spark again and again.
    """
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()
    gc.freeze()
