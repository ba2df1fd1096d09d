"""The answer of a read."""

from __future__ import annotations

from broker.store.read_result import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, ReadResult


def test_statuses_are_those_on_the_wire() -> None:
    """The pull reply carries these numbers."""
    assert (OK, OFFSET_TOO_SMALL, NO_SUCH_QUEUE, OFFSET_TOO_LARGE) == (0, 1, 2, 3)
    assert ReadResult(OK, 1, 1, 0, 9).records == []
