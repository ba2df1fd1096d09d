"""What the pure implementation adds to its package: buffers in pieces. test_checksum.py compares all of them."""

from __future__ import annotations

import google_crc32c
import pytest

from remoting.native.reference import checksum as pure_checksum


@pytest.mark.parametrize("length", [0, 9, 10, 11, 20, 35])
def test_buffers_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Below, at and beyond the size of a piece; no copy is larger than one."""
    copied: list[int] = []

    def extend(value: int, piece: bytes) -> int:
        copied.append(len(piece))
        return int(google_crc32c.extend(value, piece))

    monkeypatch.setattr(pure_checksum, "PIECE_BYTES", 10)
    monkeypatch.setattr(pure_checksum, "extend", extend)
    data = bytes(range(length))
    assert pure_checksum.crc32c(bytearray(data), 77) == google_crc32c.extend(77, data)
    assert max(copied) <= 10
    assert sum(copied) == length
