"""Whether anybody has subscribed to a message's topic, counted by queue."""

from __future__ import annotations

from broker.subscriptions.subscribers import NO_LOCAL, Subscribers
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView


def message(*queues: int, client_id: bytes = b"me", flags: int = FLAG_MQTT | 1) -> tuple[RecordView, tuple[int, ...]]:
    parts = [(MQTT_TOPIC_KEY, b"a/b"), (CLIENT_ID_KEY, client_id)]
    return RecordView(encode_image(flags=flags, born_ms=0, topic=b"a", properties=parts, body=b"")), queues


def test_a_message_is_wanted_while_one_of_its_queues_is() -> None:
    subscribers = Subscribers()
    assert not subscribers.want(*message(1, 2, 3))
    subscribers.add("a", 3, 0)
    subscribers.add("b", 3, 0)
    subscribers.remove("a", 3, 0)
    assert subscribers.want(*message(1, 2, 3))
    assert not subscribers.want(*message(1, 2))
    subscribers.remove("b", 3, 0)
    assert not subscribers.want(*message(1, 2, 3))


def test_no_local_does_not_want_what_its_own_client_publishes() -> None:
    subscribers = Subscribers()
    subscribers.add("me", 2, NO_LOCAL)
    subscribers.add("me", 3, NO_LOCAL)
    assert not subscribers.want(*message(1, 2, 3))
    assert subscribers.want(*message(1, 2, client_id=b"other"))
    subscribers.add("me", 4, 0)
    assert subscribers.want(*message(1, 2, 4))
    subscribers.add("other", 2, NO_LOCAL)
    assert subscribers.want(*message(1, 2))
    assert subscribers.want(*message(1, 2, client_id=b"other"))
    subscribers.remove("me", 2, NO_LOCAL)
    assert subscribers.want(*message(1, 2))
    assert not subscribers.want(*message(1, 2, client_id=b"other"))


def test_other_options_count_from_then_on() -> None:
    subscribers = Subscribers()
    subscribers.add("me", 2, 0)
    subscribers.change("me", 2, 0, NO_LOCAL)
    assert not subscribers.want(*message(1, 2))
    subscribers.change("me", 2, NO_LOCAL, NO_LOCAL | 2)
    assert not subscribers.want(*message(1, 2))
    subscribers.change("me", 2, NO_LOCAL | 2, 2)
    assert subscribers.want(*message(1, 2))
    subscribers.remove("me", 2, 2)
    assert not subscribers.want(*message(1, 2))


def test_what_nobody_can_know_counts_as_wanted() -> None:
    """A message that waits for its time, and one that is no MQTT message."""
    assert Subscribers().want(*message(1, flags=FLAG_STAGED))
    assert Subscribers().want(*message(1, flags=0))
