"""What new subscriptions are sent of the retained messages: found in turns, whatever changes meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from broker.retained import search as module
from broker.retained.feature import Retained
from broker.retained.search import Found, RetainedSearches
from broker.store.placed import Placed
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY


def keep(store, topic: bytes, *queues: int, body: bytes = b"x") -> int:
    """Store a retained message; without a queue it is one that is only written again."""
    properties = [(MQTT_TOPIC_KEY, topic)]
    image = encode_image(flags=FLAG_MQTT | FLAG_RETAIN, born_ms=0, topic=b"t", properties=properties, body=body)
    return store.append(Placed(image, [queues])).first_position


async def until(reports: list[Found]) -> Found:
    async with asyncio.timeout(5):
        while not reports:
            await asyncio.sleep(0)
    (report,) = reports
    return report


@pytest.fixture
def few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_PER_TURN", 2)  # no topic in the first turn


async def test_little_is_reported_at_once(running) -> None:
    store, reports = running.store, []
    queue = store.queues.open(b"q")
    positions = [keep(store, topic, queue) for topic in (b"a/1", b"a/2", b"b")]
    RetainedSearches(Retained(store), store).begin([(0, b"a/+"), (4, b"none"), (5, b"#")], reports.append)
    assert reports == [[(0, positions[:2]), (5, positions)]]


async def test_much_is_found_in_turns_of_all_searches(running, few_nodes) -> None:
    store, ended = running.store, []
    queue = store.queues.open(b"q")
    positions = [keep(store, b"a/%d" % number, queue) for number in range(20)]
    searches = RetainedSearches(Retained(store), store)
    searches.begin([(0, b"#"), (1, b"a/7")], lambda found: ended.append(("wide", found)))
    searches.begin([(0, b"+/1")], lambda found: ended.append(("narrow", found)))
    assert ended == []
    async with asyncio.timeout(5):
        while len(ended) < 2:
            await asyncio.sleep(0)
    (first, narrow), (second, wide) = ended
    assert (first, narrow) == ("narrow", [(0, [positions[1]])])
    assert (second, [(number, sorted(found)) for number, found in wide]) == (
        "wide", [(0, positions), (1, [positions[7]])],
    )  # fmt: skip


async def test_what_was_replaced_meanwhile_comes_live_and_what_was_moved_does_not(running, few_nodes) -> None:
    """Replaced, cleared and new ones are left out; one that retention writes again is found where it is now."""
    store, reports = running.store, []
    queue = store.queues.open(b"q")
    positions = [keep(store, b"a/%d" % number, queue) for number in range(9)]
    RetainedSearches(Retained(store), store).begin([(0, b"#")], reports.append)
    keep(store, b"a/8", queue)
    keep(store, b"a/7", queue, body=b"")
    keep(store, b"a/new", queue)
    moved = keep(store, b"a/6")
    ((number, found),) = await until(reports)
    assert (number, sorted(found)) == (0, [*positions[:6], moved])


async def test_a_stop_ends_all(running, few_nodes) -> None:
    store, reports = running.store, []
    for number in range(9):
        keep(store, b"a/%d" % number, store.queues.open(b"q"))
    searches = RetainedSearches(Retained(store), store)
    searches.begin([(0, b"#")], reports.append)
    searches.stop()
    for _ in range(20):
        await asyncio.sleep(0)
    assert reports == []
