"""A row says what it does not have by being empty."""

from __future__ import annotations

from remoting.batches.row import BatchRow


def test_a_row_needs_only_its_body() -> None:
    assert BatchRow(b"x") == BatchRow(b"x", 0, b"", b"", ())
    assert BatchRow(b"x", key=b"k") != BatchRow(b"x")
