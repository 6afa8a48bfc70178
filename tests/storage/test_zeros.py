from __future__ import annotations

import pytest

from storage.zeros import used_bytes

BLOCK = 64 << 10


@pytest.mark.parametrize("size", [0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_it_is_the_length_without_the_zeros_at_the_end(size: int) -> None:
    assert used_bytes(bytes(size)) == 0
    for at in {0, 1, 99, BLOCK - 1, BLOCK, 2 * BLOCK, size - 2, size - 1}:
        if 0 <= at < size:
            data = bytearray(size)
            data[at] = 1
            assert used_bytes(bytes(data)) == len(bytes(data).rstrip(b"\0")) == at + 1
            data[0] = 7
            assert used_bytes(bytes(data)) == at + 1
