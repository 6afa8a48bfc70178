"""Code that a measurement of coverage leaves alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """A measurement would make long simulations three to four times as long, and other tests cover what they run."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
