"""Wildcard filters: queue, subscriptions, expiry, recovery; subscriptions by queue."""

from __future__ import annotations

import pytest

from broker.subscriptions.filters import NO_LOCAL, Filters, Subscribers
from remoting.protocol.errors import Refused
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView


def make(store, now_ms: int = 0, most: int = 10) -> Filters:
    return Filters(store, expiry_ms=1_000, filters_max=most, now_ms=now_ms)


def test_a_filter_has_one_queue_for_all_its_subscriptions(bench) -> None:
    filters = make(bench.store)
    changed = []
    filters.on_change(changed.append)
    queue_id = filters.acquire(b"plant/+/t")
    assert filters.acquire(b"plant/+/t") == queue_id
    assert filters.match(b"plant/7/t") == [queue_id]
    assert filters.match(b"plant/7/u") == []
    assert changed == [b"plant/+/t"]
    assert filters.holders(b"plant/+/t") == 2


def test_the_queue_expires_only_after_the_last_subscription_and_is_created_anew(bench) -> None:
    filters = make(bench.store)
    queue_id = filters.acquire(b"a/#")
    filters.acquire(b"a/#")
    filters.release(b"a/#", 0)
    assert filters.expire(99_999) == 0
    filters.release(b"a/#", 5_000)
    assert filters.expire(5_999) == 0
    assert filters.expire(6_000) == 1
    assert filters.match(b"a/b") == []
    assert filters.acquire(b"a/#") != queue_id


def test_a_filter_survives_a_restart_and_expires_without_subscribers(bench) -> None:
    queue_id = make(bench.store).acquire(b"a/+")
    filters = make(bench.reopen(), now_ms=10_000)
    assert filters.match(b"a/b") == [queue_id]
    assert filters.expire(10_500) == 0
    assert filters.expire(11_000) == 1
    assert len(make(bench.reopen())) == 0


def test_one_more_than_the_limit_is_refused(bench) -> None:
    filters = make(bench.store, most=1)
    filters.acquire(b"+")
    with pytest.raises(Refused, match="filters_max"):
        filters.acquire(b"#")
    assert filters.holders(b"#") == 0


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


def test_what_cannot_be_known_counts_as_wanted() -> None:
    """A message that waits for its time, and one that is not an MQTT message."""
    assert Subscribers().want(*message(1, flags=FLAG_STAGED))
    assert Subscribers().want(*message(1, flags=0))
