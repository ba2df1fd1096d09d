"""Subscriptions of a session: queues, start offsets, options, and the reason codes of what is not granted."""

from __future__ import annotations

import pytest

from broker.sessions.client_session import ClientSession
from broker.sessions.subscriptions import NOT_SUPPORTED, NOT_VALID, QUOTA, SubscriptionBook
from broker.shared.groups import SharedGroups
from broker.store.state import state_kinds
from broker.subscriptions.filters import NO_LOCAL, Filters, Subscribers
from remoting.protocol.bodies.session_body import FilterRequest, HistoryStart
from remoting.protocol.records import names
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.record import RecordView
from tests.support.images import placed


@pytest.fixture
def filters(bench) -> Filters:
    return Filters(bench.store, expiry_ms=1_000, filters_max=1, per_user_max=1, now_ms=0)


@pytest.fixture
def book(bench, filters) -> SubscriptionBook:
    return SubscriptionBook(
        bench.store, filters, SharedGroups(bench.store), Subscribers(), subscriptions_max=2, filters_max=2
    )


def make() -> ClientSession:
    return ClientSession("c", None, durable=True, expiry_s=5, epoch=1)


def test_a_new_subscription_has_a_queue_and_a_start_to_write(book, bench) -> None:
    session, changes = make(), []
    result = book.subscribe(session, FilterRequest("a/b", 1, 0b0011, 9), changes)
    assert (result.code, result.offset, result.existed) == (1, 0, False)
    assert bench.store.queues.name(result.queue_id) == names.light_queue_name(b"a/b")
    assert [change.kind for change in changes] == [state_kinds.SESSION_OFFSET]
    stored = session.subscriptions["a/b"]
    assert (stored.qos, stored.options, stored.subscription_id) == (1, 0b0011, 9)


def test_subscribing_again_changes_options_but_not_the_offset(book) -> None:
    session = make()
    first = book.subscribe(session, FilterRequest("a/b", 1), [])
    session.offsets[first.queue_id] = 5
    changes = []
    again = book.subscribe(session, FilterRequest("a/b", 2, 0b0001, 3), changes)
    assert (again.code, again.queue_id, again.offset, again.existed) == (2, first.queue_id, 5, True)
    assert not changes
    stored = session.subscriptions["a/b"]
    assert (stored.qos, stored.options, stored.subscription_id) == (2, 0b0001, 3)


def test_every_subscription_counts_as_a_subscriber_of_its_queue(bench, filters) -> None:
    """Exact and wildcard, shared too, restored, repeated with other options; until it is given back."""
    book = SubscriptionBook(
        bench.store, filters, SharedGroups(bench.store), Subscribers(), subscriptions_max=5, filters_max=5
    )
    session = make()
    own = RecordView(encode_mqtt_image(b"a/b", b"", 0, 0, b"c"))
    for topic_filter in ("a/b", "a/+", "$share/g/a/b", "$share/g/a/+"):
        queues = (0, book.subscribe(session, FilterRequest(topic_filter, 1), []).queue_id)
        assert book.subscribers.want(own, queues)
        restored = SubscriptionBook(
            bench.store, filters, SharedGroups(bench.store), Subscribers(), subscriptions_max=5, filters_max=5
        )
        restored.restore(session)
        assert restored.subscribers.want(own, queues)
        if not topic_filter.startswith("$share"):
            book.subscribe(session, FilterRequest(topic_filter, 1, NO_LOCAL), [])
            assert not book.subscribers.want(own, queues)
        book.forget(session, topic_filter, session.subscriptions.pop(topic_filter), 0, [])
        assert not book.subscribers.want(own, queues)


def test_what_is_not_granted_has_a_reason_and_changes_nothing(book, filters) -> None:
    session = make()
    assert book.subscribe(session, FilterRequest("a/#/b", 1), []).code == NOT_VALID
    assert book.subscribe(session, FilterRequest("a/+", 1), []).code == 1
    assert book.subscribe(session, FilterRequest("b/+", 1), []).code == QUOTA  # filters_max
    assert book.subscribe(session, FilterRequest("a", 1), []).code == 1
    assert book.subscribe(session, FilterRequest("b", 1), []).code == QUOTA  # subscriptions_max
    assert set(session.subscriptions) == {"a/+", "a"}
    assert filters.holders(b"a/+") == 1


def test_a_restored_session_references_its_filters_and_gives_them_back(book, filters) -> None:
    session = make()
    result = book.subscribe(session, FilterRequest("a/+", 1), [])
    book.restore(session)
    assert filters.holders(b"a/+") == 2
    session.exact_below = {result.queue_id: 4}
    book.forget(session, "a/+", session.subscriptions.pop("a/+"), 0, [])
    assert filters.holders(b"a/+") == 1
    assert session.offsets == {}
    assert session.exact_below == {}


def test_a_shared_subscription_references_its_inner_queue_and_its_group(bench, filters) -> None:
    """Its offset is the group's: an ordinary subscription of the same filter keeps its own."""
    shared = SharedGroups(bench.store)
    book = SubscriptionBook(bench.store, filters, shared, Subscribers(), subscriptions_max=5, filters_max=5)
    session = make()
    plain = book.subscribe(session, FilterRequest("a/+", 1), [])
    changes = []
    result = book.subscribe(session, FilterRequest("$share/g/a/+", 1), changes)
    assert (result.code, result.queue_id, changes) == (1, plain.queue_id, [])
    assert book.subscribe(session, FilterRequest("$share/g/a/+", 0), []).existed
    assert filters.holders(b"a/+") == 2
    assert shared.holders("$share/g/a/+") == 1
    again = SharedGroups(bench.store)
    SubscriptionBook(bench.store, filters, again, Subscribers(), subscriptions_max=5, filters_max=5).restore(session)
    assert again.holders("$share/g/a/+") == 1
    assert filters.holders(b"a/+") == 4
    book.forget(session, "$share/g/a/+", session.subscriptions.pop("$share/g/a/+"), 0, [])
    assert shared.get("$share/g/a/+") is None
    assert session.offsets == {plain.queue_id: plain.offset}
    assert book.subscribe(session, FilterRequest("$share/+/a", 1), []).code == NOT_VALID


def test_history_starts_lower_in_the_queue_and_moves_an_existing_offset(bench, filters) -> None:
    """Repeated with a start the subscription goes back; a shared one has no history."""
    book = SubscriptionBook(
        bench.store, filters, SharedGroups(bench.store), Subscribers(), subscriptions_max=5, filters_max=5
    )
    session = make()
    queue_id = book.subscribe(session, FilterRequest("a/b", 1), []).queue_id
    bench.store.append(*([placed((queue_id,))] * 5))
    bench.settle()
    session.offsets[queue_id] = 4
    session.inflight = [(1, queue_id, 4), (2, 99, 1)]
    changes = []
    again = book.subscribe(session, FilterRequest("a/b", 1, history=HistoryStart(last=3)), changes)
    assert (again.offset, again.live, again.existed, len(changes)) == (2, 5, True, 1)
    assert session.offsets == {queue_id: 2}
    assert session.inflight == [(2, 99, 1)]
    other = make()
    fresh = book.subscribe(other, FilterRequest("a/b", 1, history=HistoryStart(from_offset=1)), changes)
    assert (fresh.offset, fresh.live, fresh.existed) == (1, 5, False)
    shared = FilterRequest("$share/g/a", 1, history=HistoryStart(last=1))
    assert book.subscribe(session, shared, []).code == NOT_SUPPORTED
