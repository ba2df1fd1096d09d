"""Which log this is: written once, kept by the log, not at the price of a start."""

from __future__ import annotations

import pytest

from broker.reading.log_identity import LogIdentity
from broker.store.errors import StoreFull


def fixed(number: int):
    return lambda count: bytes([number]) * count


def test_a_log_has_one_identity_for_ever(bench) -> None:
    identity = LogIdentity(bench.store, fixed(7))
    assert identity.known() == ("", 0)
    identity.ensure()
    bench.settle()
    known = identity.known()
    assert known[0] == "07" * 16
    assert 0 < known[1] <= bench.store.end_position
    end = bench.store.end_position
    bench.reopen()
    again = LogIdentity(bench.store, fixed(8))
    again.ensure()
    assert again.known()[0] == known[0]
    assert bench.store.end_position == end, "nothing is written a second time"


def test_a_full_disk_is_told_and_leaves_it_for_later(bench, monkeypatch) -> None:
    def full(_changes):
        raise StoreFull("no room")

    monkeypatch.setattr(bench.store, "append_state", full)
    identity = LogIdentity(bench.store, fixed(7))
    with pytest.raises(StoreFull):
        identity.ensure()
    assert identity.known() == ("", 0)
    monkeypatch.undo()
    identity.ensure()
    assert identity.known()[0] == "07" * 16
