"""Every message goes to its parent queue, its exact light queue and every wildcard queue, at every moment."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.subscriptions import filters as module
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics, TopicSettings
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names


def make(store, **options) -> tuple[Topics, Filters, Dispatcher]:
    topics = Topics(store, topics_max=100)
    filters = Filters(store, expiry_ms=0, filters_max=100, per_user_max=100, now_ms=0)
    defaults = {"cached_topics_max": 100, "queue_count": 4}
    return topics, filters, Dispatcher(store, topics, filters, **(defaults | options))


def test_parent_exact_and_wildcard_queues_in_this_order(bench) -> None:
    topics, filters, dispatcher = make(bench.store)
    wildcard = filters.acquire(b"plant/+/t")
    queues = dispatcher.mqtt(b"plant/7/t")
    index = names.queue_index(b"plant/7/t", 4)
    assert queues == (
        topics.queue_ids("plant")[index],
        bench.store.queues.find(names.light_queue_name(b"plant/7/t")),
        wildcard,
    )


def test_exact_semantics_of_names_that_other_gateways_confuse(bench) -> None:
    """A trailing slash, a percent sign and a comma make different topics with queues of their own."""
    _topics, _filters, dispatcher = make(bench.store)
    exact = {topic: dispatcher.mqtt(topic)[1] for topic in (b"a/b", b"a/b/", b"a%b", b"a,b", b"a%2Fb", b"/a/b")}
    assert len(set(exact.values())) == len(exact)


def test_only_the_topics_a_new_filter_matches_are_forgotten(bench) -> None:
    _topics, filters, dispatcher = make(bench.store)
    for topic in (b"a/1", b"a/2", b"b/1"):
        dispatcher.mqtt(topic)
    misses = dispatcher.misses
    queue_id = filters.acquire(b"a/+")
    assert dispatcher.invalidations == 2
    assert dispatcher.mqtt(b"a/1")[2:] == (queue_id,)
    assert dispatcher.mqtt(b"b/1")[2:] == ()
    assert dispatcher.misses == misses + 1
    filters.release(b"a/+", 0, lost=True)
    filters.expire(1)
    assert dispatcher.mqtt(b"a/1")[2:] == ()


def test_where_very_many_are_matched_all_are_forgotten_at_once(bench, monkeypatch) -> None:
    """Taken out one by one, 200,000 topics would hold everybody up for a second."""
    monkeypatch.setattr(module, "DROPPED_MAX", 1)
    topics, filters, dispatcher = make(bench.store)
    for topic in (b"a/1", b"a/2", b"a/3", b"b/1"):
        dispatcher.mqtt(topic)
    filters.acquire(b"a/1/#")
    assert (dispatcher.invalidations, len(dispatcher.cached)) == (1, 3)
    queue_id = filters.acquire(b"a/+")
    assert (dispatcher.invalidations, len(dispatcher.cached)) == (4, 0)
    assert dispatcher.mqtt(b"a/2")[2:] == (queue_id,)
    assert dispatcher.mqtt(b"b/1")[2:] == ()
    for topic in (b"a/3", b"c/1"):
        dispatcher.mqtt(topic)
    topics.put(TopicSettings(name="c", read_queue_count=16, write_queue_count=16))
    assert len(dispatcher.cached) == 0
    filters.release(b"a/+", 0, lost=True)
    filters.expire(1)
    assert dispatcher.mqtt(b"a/2")[2:] == ()


def test_a_changed_queue_count_is_seen(bench) -> None:
    topics, _filters, dispatcher = make(bench.store)
    dispatcher.mqtt(b"a/1")
    topics.put(TopicSettings(name="a", read_queue_count=16, write_queue_count=16))
    index = names.queue_index(b"a/1", 16)
    assert dispatcher.mqtt(b"a/1")[0] == topics.queue_ids("a")[index]


def test_rocketmq_senders_name_light_queues(bench) -> None:
    topics, _filters, dispatcher = make(bench.store)
    topics.ensure("orders", 2)
    queues = dispatcher.queue("orders", 1, b"%LMQ%x,%LMQ%y,%LMQ%x")
    assert queues == (
        topics.queue_ids("orders")[1],
        bench.store.queues.find(b"%LMQ%x"),
        bench.store.queues.find(b"%LMQ%y"),
    )
    with pytest.raises(Refused, match="LMQ"):
        dispatcher.queue("orders", 1, b"orders")


def test_invalid_topics_and_forbidden_creation_are_refused(bench) -> None:
    _topics, _filters, dispatcher = make(bench.store, auto_create=False)
    with pytest.raises(Refused) as wildcard:
        dispatcher.mqtt(b"a/+")
    assert wildcard.value.code == ResponseCode.MESSAGE_ILLEGAL
    with pytest.raises(Refused) as unknown:
        dispatcher.mqtt(b"a/b")
    assert unknown.value.code == ResponseCode.TOPIC_NOT_EXIST


LEVELS = st.lists(st.sampled_from([b"a", b"b", b""]), min_size=1, max_size=3).map(b"/".join).filter(bool)
FILTERS = st.sampled_from([b"+", b"#", b"a/+", b"+/b", b"a/#", b"a/+/b", b"+/+"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.tuples(st.just("publish"), LEVELS), st.tuples(st.just("toggle"), FILTERS)), max_size=20))
def test_the_cache_never_differs_from_a_fresh_answer(bench, steps) -> None:
    _topics, filters, dispatcher = make(bench.store, cached_topics_max=4)
    held: set[bytes] = set()
    for what, name in steps:
        if what == "publish":
            assert list(dispatcher.mqtt(name)[2:]) == filters.match(name)
        elif name in held:
            held.remove(name)
            filters.release(name, 0, lost=True)
            filters.expire(1)
        else:
            held.add(name)
            filters.acquire(name)


@pytest.mark.parametrize("topic", [b"$SYS", b"$SYS/broker/uptime"])
def test_clients_cannot_publish_in_the_servers_name(bench, topic: bytes) -> None:
    """Neither by an MQTT topic nor by naming its light queue; names that only look alike are ordinary."""
    topics, _filters, dispatcher = make(bench.store)
    topics.ensure("orders", 2)
    with pytest.raises(Refused) as refused:
        dispatcher.mqtt(topic)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    with pytest.raises(Refused) as refused:
        dispatcher.queue("orders", 1, names.light_queue_name(topic))
    assert refused.value.code == ResponseCode.NO_PERMISSION
    dispatcher.mqtt(b"$SYSTEM/x")
    dispatcher.mqtt(b"$SYS/broker/connection/plant-7/state")  # a bridge's own state
    dispatcher.mqtt(b"a/$SYS")
    dispatcher.queue("orders", 1, names.light_queue_name(b"$SYSTEM"))
