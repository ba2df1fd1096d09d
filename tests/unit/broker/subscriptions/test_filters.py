"""Wildcard filters: queue, subscriptions, expiry, recovery; subscriptions by queue."""

from __future__ import annotations

import pytest

from broker.subscriptions import filters as module
from broker.subscriptions.filters import NO_LOCAL, Filters, Subscribers
from remoting.protocol.errors import Refused
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView


def make(store, now_ms: int = 0, most: int = 10) -> Filters:
    return Filters(store, expiry_ms=1_000, filters_max=most, per_user_max=most, now_ms=now_ms)


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
    filters.release(b"a/#", 0, lost=True)
    assert filters.expire(99_999) == 0
    filters.release(b"a/#", 5_000, lost=True)
    assert filters.expire(5_999) == 0
    assert filters.expire(6_000) == 1
    assert filters.match(b"a/b") == []
    assert filters.acquire(b"a/#") != queue_id


def test_what_was_given_up_ends_with_the_next_upkeep_a_bounded_number_at_once(bench, monkeypatch) -> None:
    """Only a proxy that was lost may come back for its filters."""
    monkeypatch.setattr(module, "EXPIRED_PER_STEP_MAX", 3)
    filters = make(bench.store)
    for number in range(4):
        filters.acquire(b"%d/#" % number)
        filters.release(b"%d/#" % number, 5, lost=False)
    filters.acquire(b"lost/#")
    filters.release(b"lost/#", 5, lost=True)
    filters.acquire(b"0/#")
    assert (filters.expire(5), filters.expire(5)) == (3, 0)
    assert (filters.match(b"0/a"), filters.match(b"1/a")) == ([filters.find(b"0/#")], [])
    assert len(filters.match(b"lost/a")) == 1


def test_filters_are_charged_to_the_user_who_made_them(bench) -> None:
    """Others may still make theirs; who subscribes to a filter that exists costs nothing."""
    filters = Filters(bench.store, expiry_ms=1_000, filters_max=10, per_user_max=2, now_ms=0)
    filters.acquire(b"a/#", "anna")
    filters.acquire(b"b/#", "anna")
    with pytest.raises(Refused, match="filters_per_user_max: anna"):
        filters.acquire(b"c/#", "anna")
    filters.acquire(b"c/#", "bob")
    filters.acquire(b"c/#", "anna")
    filters.acquire(b"d/#", None)
    filters.acquire(b"e/#", None)
    with pytest.raises(Refused, match="clients without a user"):
        filters.acquire(b"f/#", None)
    filters.release(b"a/#", 0, lost=False)
    assert filters.expire(0) == 1
    filters.acquire(b"g/#", "anna")


def test_after_a_restart_they_are_charged_to_who_subscribes_first(bench) -> None:
    make(bench.store).acquire(b"a/#", "anna")
    filters = Filters(bench.reopen(), expiry_ms=1_000, filters_max=10, per_user_max=1, now_ms=0)
    filters.acquire(b"a/#", "bob")
    with pytest.raises(Refused, match="bob"):
        filters.acquire(b"b/#", "bob")
    filters.acquire(b"b/#", "anna")


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
