"""Messages in flight in both directions, until they are acknowledged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_bridge.receiver import Inbox
from mqtt_bridge.sender import Cursor, Outbox


def outbox(window: int = 4) -> tuple[Outbox, Cursor]:
    box = Outbox(window)
    cursor = box.cursors["t", 0] = Cursor(7, 10, None)
    return box, cursor


def test_low_is_the_lowest_unsettled_whatever_the_order_of_answers() -> None:
    box, cursor = outbox()
    for offset in (10, 12, 13):
        box.track(cursor, offset, 1)
        box.sent(offset, cursor, offset)
    box.passed(cursor, 20)
    assert (cursor.low, cursor.position, box.in_flight, box.free) == (10, 20, 3, 1)
    assert box.due() == [(("t", 0), 10)]
    assert box.place(12) == (cursor, 12)
    assert box.settled(12)
    assert cursor.low == 10
    assert box.settled(10)
    assert cursor.low == 13
    assert box.settled(13)
    assert not box.settled(13)
    assert cursor.low == 20
    cursor.committed = 20
    assert box.due() == []


def test_a_record_with_two_copies_is_settled_with_the_second() -> None:
    box, cursor = outbox()
    box.track(cursor, 10, 2)
    box.sent(1, cursor, 10)
    box.sent(2, cursor, 10)
    box.settled(2)
    assert cursor.low == 10
    box.settled(1)
    assert cursor.low == 11


def test_a_lost_connection_starts_over_at_the_lowest() -> None:
    box, cursor = outbox()
    box.limit(2)
    box.track(cursor, 11, 1)
    box.sent(1, cursor, 11)
    box.passed(cursor, 15)
    assert box.free == 1
    box.rewind()
    assert (cursor.position, cursor.low, box.in_flight, box.free) == (11, 11, 0, 4)
    assert not box.settled(1)  # an answer that comes too late


@given(st.lists(st.sampled_from(["send", "answer", "lose", "commit"]), max_size=60), st.randoms())
def test_what_is_below_the_committed_offset_was_acknowledged(steps: list[str], random: object) -> None:
    """Every offset below a commit has an answer of the peer; none is skipped."""
    box, cursor = outbox(5)
    acknowledged: set[int] = set()
    flying: dict[int, int] = {}
    packet_id = 0
    for step in steps:
        if step == "send" and box.free:
            packet_id += 1
            flying[packet_id] = cursor.position
            box.track(cursor, cursor.position, 1)
            box.sent(packet_id, cursor, flying[packet_id])
        elif step == "answer" and flying:
            chosen = random.choice(sorted(flying))  # type: ignore[attr-defined]
            acknowledged.add(flying.pop(chosen))
            assert box.settled(chosen)
        elif step == "lose":
            flying.clear()
            box.rewind()
        elif step == "commit":
            for _key, offset in box.due():
                cursor.committed = offset
        assert set(range(10, cursor.committed or 10)) <= acknowledged


def test_acknowledgements_keep_the_order_of_arrival() -> None:
    inbox = Inbox()
    first, second, zero, last = (inbox.arrive(number, 10) for number in (5, 6, 0, 2))
    assert inbox.unconfirmed_bytes == 40
    assert inbox.done(second) == []
    assert inbox.done(zero) == []
    assert inbox.done(first) == [5, 6]
    assert (len(inbox), inbox.unconfirmed_bytes) == (1, 10)
    assert inbox.done(last) == [2]
    assert len(inbox) == 0
