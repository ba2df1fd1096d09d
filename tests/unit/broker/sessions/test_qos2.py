"""QoS 2 ids of a session: every step leaves the records from which a restart knows the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.sessions.client_session import (
    LOG_POSITION_QUEUE,
    ClientSession,
    split_block_key,
    unpack_inflight,
    unpack_offset,
    unpack_received,
)
from broker.store.state import state_kinds
from remoting.protocol.bodies.session_body import PHASE_PUBLISH, PHASE_PUBREL, SessionFlow


def make() -> ClientSession:
    session = ClientSession("c", None, durable=True, expiry_s=5, epoch=1)
    session.offsets = {7: 3}
    return session


class Table:
    """The records as the store would keep them."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, bytes], bytes] = {}

    def apply(self, changes) -> None:
        for change in changes:
            if change.value is None:
                self.records.pop((change.kind, change.key), None)
            else:
                self.records[change.kind, change.key] = change.value

    def exact(self) -> dict[int, tuple[int, int, int]]:
        found = {}
        for (kind, _key), value in self.records.items():
            if kind == state_kinds.SESSION_INFLIGHT:
                found |= unpack_inflight(value)
        return found

    def received(self) -> dict[int, int]:
        return {
            split_block_key(key)[1]: unpack_received(value)
            for (kind, key), value in self.records.items()
            if kind == state_kinds.SESSION_RECEIVED
        }


def test_a_delivery_goes_through_its_phases_and_leaves_only_the_end() -> None:
    session, table = make(), Table()
    table.apply(session.advance(SessionFlow("c", 1, reserved=[(1, 7, 3), (2, 7, 4)])))
    assert table.exact() == session.exact == {1: (7, 3, PHASE_PUBLISH), 2: (7, 4, PHASE_PUBLISH)}
    table.apply(session.advance(SessionFlow("c", 1, received=[2])))
    assert table.exact()[2] == (7, 4, PHASE_PUBREL)
    table.apply(session.advance(SessionFlow("c", 1, completed=[1, 2])))
    assert session.exact is None
    ((kind, _key), value), *others = table.records.items()
    assert not others
    assert kind == state_kinds.SESSION_OFFSET
    assert unpack_offset(value) == (3, 5)
    assert session.exact_below == {7: 5}


def test_a_retained_delivery_and_one_of_a_dropped_subscription_raise_no_end() -> None:
    session = make()
    places = [(1, LOG_POSITION_QUEUE, 4096), (2, 99, 5)]
    changes = session.advance(SessionFlow("c", 1, reserved=places))
    assert {change.kind for change in changes} == {state_kinds.SESSION_INFLIGHT}
    assert session.exact_below is None


def test_an_id_used_again_names_its_new_message_and_comes_last() -> None:
    session = make()
    session.advance(SessionFlow("c", 1, reserved=[(1, 7, 3), (2, 7, 4)]))
    session.advance(SessionFlow("c", 1, completed=[1], reserved=[(1, 7, 9)]))
    assert list(session.exact.items()) == [(2, (7, 4, 0)), (1, (7, 9, 0))]


def test_a_pubrec_of_an_unknown_id_is_stored_so_that_its_pubrel_is_repeated() -> None:
    session = make()
    session.advance(SessionFlow("c", 1, received=[5]))
    assert session.exact == {5: (LOG_POSITION_QUEUE, 0, PHASE_PUBREL)}


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 65_535)), max_size=60))
def test_received_ids_are_a_set_and_the_records_agree(steps) -> None:
    session, table, model = make(), Table(), set()
    for taken, packet_id in steps:
        assert session.is_received(packet_id) == (packet_id in model)
        if taken:
            table.apply(session.receive([packet_id]))
            model.add(packet_id)
        else:
            table.apply(session.advance(SessionFlow("c", 1, released=[packet_id])))
            model.discard(packet_id)
    assert session.received_ids() == sorted(model)
    assert table.received() == (session.received or {})


def test_a_session_that_ends_deletes_all_its_blocks() -> None:
    session, table = make(), Table()
    table.apply(session.receive([1, 70, 65_535]))
    table.apply(session.advance(SessionFlow("c", 1, reserved=[(1, 8, 3), (40, 8, 4)])))
    table.apply(session.forget_packet_ids())
    assert not table.records


def test_a_hundred_thousand_handshakes_leave_nothing() -> None:
    session, table = make(), Table()
    for number in range(100_000):
        packet_id = number % 65_535 + 1
        table.apply(session.receive([packet_id]))
        table.apply(session.release([packet_id]))
        if number % 10 == 0:
            table.apply(session.advance(SessionFlow("c", 1, reserved=[(packet_id, 7, number)])))
            table.apply(session.advance(SessionFlow("c", 1, completed=[packet_id])))
    assert session.received is None
    assert session.exact is None
    assert len(table.records) == 1
