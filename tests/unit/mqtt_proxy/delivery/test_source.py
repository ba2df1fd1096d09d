"""The lowest unacknowledged offset, whatever the order of acknowledgements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.source import Source, settle
from mqtt_proxy.mqtt.session.place import DeliveryOrigin


def source(queue_id: int, cursor: int, serial: int = 1) -> Source:
    """A source at `cursor`."""
    return Source("f", Feed(queue_id), 1, cursor, serial)


@given(st.permutations(range(10, 20)), st.integers(0, 10))
def test_lowest_is_the_first_hole(order: list[int], count: int) -> None:
    """Compared with the definition."""
    one = source(1, 10)
    for offset in range(10, 20):
        one.unacked[offset] = None
    one.cursor = 20
    for offset in order[:count]:
        one.acknowledge(offset)
    assert one.lowest() == min(set(range(10, 21)) - set(order[:count]))
    one.acknowledge(99)
    DeliveryOrigin(7).acknowledge(1)


def test_a_copy_left_to_another_source_is_unacknowledged_until_that_one_is() -> None:
    """So that neither offset passes the message."""
    older, younger = source(1, 5, 1), source(2, 8, 2)
    older.unacked[5] = None
    older.cursor = 6
    younger.leave_to(older, 8, 5)
    younger.cursor = 9
    assert (older.lowest(), younger.lowest()) == (5, 8)
    older.acknowledge(5)
    assert (older.lowest(), younger.lowest()) == (6, 9)
    younger.leave_to(older, 9, 5)
    assert younger.unacked == {}


def test_what_a_client_wants_of_a_subscription() -> None:
    """Retain handling is the broker's affair; the rest takes the source off the hot path."""
    one = source(1, 0)
    assert one.is_plain
    for options, identifier, plain in ((0x0C, 0, True), (1, 0, False), (2, 0, False), (0, 5, False)):
        one.choose(options, identifier)
        assert (one.no_local, one.retain_as_published) == (options == 1, options == 2)
        assert one.is_plain == plain


def test_what_was_sent_with_qos_2_before_is_passed_and_holds_the_offset_while_it_is_in_flight() -> None:
    """After a crash the cursor is back at the committed offset."""
    one = source(1, 10)
    one.exact_from, one.exact_below = 11, 14
    one.sent_before(9)
    one.sent_before(12)
    one.sent_before(13)
    assert one.lowest() == 9
    one.acknowledge(9)
    one.acknowledge(13)
    assert one.lowest() == 10
    assert [one.is_exact(offset) for offset in range(10, 15)] == [False, True, True, True, False]
    one.cursor = 15
    assert one.lowest() == 12
    one.acknowledge(12)
    assert one.lowest() == 15


def test_an_acknowledgement_ahead_of_the_cursor_is_not_forgotten() -> None:
    """However acknowledgements are settled."""
    one = source(1, 10)
    one.exact_below = 12
    one.sent_before(11)
    assert settle([(one, 11)]) == 1
    assert one.is_exact(10)
    assert one.is_exact(11)
    one.cursor = 12
    assert one.lowest() == 12


def subscription(queue_id: int, *unacked: int) -> Source:
    made = Source("t", Feed(queue_id), 1, 0, queue_id)
    made.unacked = dict.fromkeys(unacked)
    return made


def test_settle() -> None:
    one, two = subscription(1, 4, 5, 6), subscription(2, 4, 5)
    assert settle([]) == 0
    assert settle([(one, 5), (two, 4), (one, 4), (DeliveryOrigin(9), 1), (one, 99)]) == 5
    assert (list(one.unacked), list(two.unacked)) == ([6], [5])


def test_settle_takes_copies_in_younger_sources_along() -> None:
    one, two = subscription(1, 4), subscription(2)
    two.leave_to(one, 8, 4)
    assert list(two.unacked) == [8]
    assert settle([(one, 4)]) == 1
    assert not one.unacked
    assert not two.unacked
