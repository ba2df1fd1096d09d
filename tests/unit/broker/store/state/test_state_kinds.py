"""Kinds of durable state and the changes in a control record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.state import state_kinds
from broker.store.state.state_kinds import (
    RECORDS_VERSION,
    StateChange,
    decode_changes,
    encode_changes,
    split_batches,
)
from remoting.protocol.errors import CorruptRecord


def test_numbers_are_fixed() -> None:
    """One line per kind that any released store may contain."""
    assert state_kinds.NAMES == {
        1: "queue",
        2: "topic",
        3: "group_offset",
        4: "session",
        5: "session_offset",
        6: "retained",
        7: "filter",
        8: "ledger",
        9: "group",
        10: "will",
        11: "retention",
        12: "session_inflight",
        13: "session_received",
        14: "log_begin",
        20: "shared",
        21: "delayed",
        22: "transaction",
        23: "check_point",
        24: "request_mode",
        25: "queue_lock",
        26: "ordered_batch",
        27: "lite_batch",
        30: "access",
        31: "migration",
        32: "option",
        33: "migration_return",
        34: "audited",
        35: "master_epoch",
        36: "log_identity",
    }
    assert RECORDS_VERSION == 1, "it is raised with each new kind, so that no older release overlooks one"


CHANGES = st.lists(
    st.builds(StateChange, st.integers(0, 65535), st.binary(max_size=40), st.none() | st.binary(max_size=90)),
    max_size=20,
)


@given(CHANGES)
def test_round_trip(changes) -> None:
    """What goes in comes out."""
    assert list(decode_changes(encode_changes(changes))) == changes


@given(CHANGES, st.integers(1, 200))
def test_split_keeps_order_and_bound(changes, bytes_max: int) -> None:
    """Batches together are the input; only a single change may exceed the bound."""
    batches = list(split_batches(changes, bytes_max))
    assert [change for batch in batches for change in batch] == changes
    assert all(len(batch) == 1 or len(encode_changes(batch)) <= bytes_max + 4 for batch in batches)


@given(CHANGES.filter(bool), st.data())
def test_truncated_is_corrupt(changes, data) -> None:
    """No prefix counts as complete."""
    body = encode_changes(changes)
    with pytest.raises(CorruptRecord):
        list(decode_changes(body[: data.draw(st.integers(0, len(body) - 1))]))
    with pytest.raises(CorruptRecord):
        list(decode_changes(body + b"x"))
