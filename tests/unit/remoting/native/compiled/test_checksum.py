"""What the compiled implementation refuses. test_checksum.py compares all of them."""

from __future__ import annotations

import pytest

compiled = pytest.importorskip("remoting.native.compiled.checksum", reason="not compiled", exc_type=ImportError)


def test_what_has_no_contiguous_bytes_is_refused() -> None:
    """And the buffer is given back either way."""
    data = bytearray(64)
    for refused in (memoryview(data)[::2], "text", None, 5):
        with pytest.raises((BufferError, TypeError)):
            compiled.crc32c(refused)
    with pytest.raises((OverflowError, TypeError)):
        compiled.crc32c(data, 1 << 32)
    compiled.crc32c(data)
    data.append(1)
