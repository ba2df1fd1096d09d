"""Session records read back as written, whatever the client id."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.sessions.client_session import (
    ClientSession,
    Subscription,
    load_session,
    offset_key,
    pack_offset,
    split_offset_key,
    unpack_offset,
)

CLIENT_IDS = st.text(min_size=1, max_size=30).filter(lambda text: "\x00" not in text and text.isprintable())


@given(CLIENT_IDS, st.integers(0, 2**32 - 1), st.integers(0, 2**62))
def test_keys_and_offsets_round_trip(client_id: str, queue_id: int, offset: int) -> None:
    assert split_offset_key(offset_key(client_id, queue_id)) == (client_id, queue_id)
    assert unpack_offset(pack_offset(offset)) == (offset, 0)
    assert unpack_offset(pack_offset(offset, offset + 1)) == (offset, offset + 1)


def test_a_session_is_restored_as_closed_at_the_start_of_the_broker() -> None:
    session = ClientSession("c", "anna", durable=True, expiry_s=5, epoch=1)
    session.subscriptions["a/+"] = Subscription(1, 7)
    session.inflight = [(1, 7, 3)]
    loaded = load_session("c", session.record(), epoch=9, now_ms=123)
    assert (loaded.user, loaded.expiry_s, loaded.epoch, loaded.closed_ms) == ("anna", 5, 9, 123)
    assert loaded.subscriptions == session.subscriptions
    assert loaded.inflight == session.inflight
    session.closed_ms = 77
    assert load_session("c", session.record(), epoch=9, now_ms=123).closed_ms == 77
