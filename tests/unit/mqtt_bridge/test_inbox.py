from __future__ import annotations

from mqtt_bridge.in_flight import Inbox


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
