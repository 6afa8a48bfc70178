"""What the C library does with memory that was given back.

By itself glibc hands every large block back to the system and takes it anew, page by page: a consumer who reads 200 MB
costs 20,000 page faults, twice the processor time of the reading itself. `keep_freed_memory` makes it keep some.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 64 << 20
"""So much free memory stays with the process."""
MAPPED_FROM_BYTES = 32 << 20
"""Blocks from this size on are mapped, and leave as soon as they are free (the largest that glibc takes)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Whether the C library knows of such settings; others are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
