"""SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.session.events import SubscribeRequested, SubscriptionRequest, UnsubscribeRequested
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5, send5


def test_requests_and_answers() -> None:
    """Filters in order, answers with the packet's id."""
    session = connected(filters_per_packet_max=3)
    subscribe = packets.Subscribe(5, [("a/#", 2), ("a/#", 0), ("b", 1)])
    assert session.feed(encode(subscribe), 0) == [
        SubscribeRequested(
            5, [SubscriptionRequest("a/#", 2), SubscriptionRequest("a/#", 0), SubscriptionRequest("b", 1)]
        )
    ]
    session.answers.grant(5, [1, 0, 0x87])
    assert session.feed(encode(packets.Unsubscribe(6, ["b", "c"])), 0) == [UnsubscribeRequested(6, ["b", "c"])]
    session.answers.unsubscribed(6)
    assert session.take_bytes() == b"\x90\x05\0\x05\x01\x00\x80" + b"\xb0\x02\0\x06"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (packets.Subscribe(5, [("a", 0), ("a#", 0)]), "topic_filter"),
        (packets.Subscribe(5, [("a", 0)] * 4), "packet_too_large"),
        (packets.Unsubscribe(5, ["", "a"]), "topic_filter"),
        (packets.Unsubscribe(5, ["a"] * 4), "packet_too_large"),
    ],
)
def test_one_bad_filter_ends_the_session(sent: packets.Packet, reason: str) -> None:
    """None of the packet's filters takes effect."""
    events = connected(filters_per_packet_max=3).feed(encode(sent), 0)
    assert [event.reason for event in events] == [reason]  # type: ignore[union-attr]


def test_no_local_on_a_shared_subscription_is_a_protocol_error() -> None:
    """[MQTT-3.8.3-4] DISCONNECT 0x82; without the option the filter is for the owner to judge."""
    session = connected5()
    (event,) = send5(session, packets.Subscribe(5, [("$share/g/a", 1)], {}))
    assert event.filters[0].filter == "$share/g/a"
    (violated,) = send5(session, packets.Subscribe(6, [("a", 1), ("$share/g/a", 0x04 | 1)], {}))
    assert violated.reason == "protocol_error"
    (goodbye,) = answers5(session)
    assert isinstance(goodbye, packets.Disconnect)
    assert goodbye.reason == 0x82


@pytest.mark.parametrize(("level", "wanted"), [(4, True), (5, False)])
def test_a_bridge_gets_no_local_and_retain_as_published(level: int, wanted: bool) -> None:
    """3.1.1 cannot ask for them, MQTT 5 can; a shared subscription has no no-local."""
    session = connected() if level == 4 else connected5()
    session.state.terms.bridge = True
    (event,) = session.feed(encode(packets.Subscribe(5, [("a", 1), ("$share/g/a", 1)]), level), 0)
    assert event.filters == [
        SubscriptionRequest("a", 1, wanted, wanted),
        SubscriptionRequest("$share/g/a", 1, False, wanted),
    ]
