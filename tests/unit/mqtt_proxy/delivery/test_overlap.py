"""Which of several matching subscriptions delivers, with which QoS, and when another one has to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.delivery.outbound import PASSED, WAIT, decide, gather
from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.source import Source


def sources(*described: tuple[int, int, int]) -> dict[int, Source]:
    """(queue id, QoS, cursor) in order of age."""
    return {
        queue_id: Source(str(queue_id), Feed(queue_id), qos, cursor, serial)
        for serial, (queue_id, qos, cursor) in enumerate(described)
    }


def test_the_oldest_delivers_with_the_highest_qos() -> None:
    """Of those that were there when the message was stored."""
    by_queue = sources((1, 0, 0), (2, 1, 0), (3, 1, 7))
    assert decide([(1, 0), (2, 0)], by_queue[1], by_queue, 0) == 1
    assert decide([(1, 0), (3, 6)], by_queue[1], by_queue, 0) == 0
    assert decide([(1, 0), (99, 3)], by_queue[1], by_queue, 0) == 0


def test_a_younger_one_waits_and_then_passes() -> None:
    """It never runs ahead of the one that delivers."""
    by_queue = sources((1, 1, 4), (2, 1, 0))
    assert decide([(1, 4), (2, 0)], by_queue[2], by_queue, 0) == WAIT
    by_queue[1].cursor = 5
    assert decide([(1, 4), (2, 0)], by_queue[2], by_queue, 0) == PASSED


@given(st.data())
def test_every_message_goes_out_exactly_once(data: st.DataObject) -> None:
    """Any sources, any matches, any order of turns: one copy of each, highest QoS, and nobody waits for ever."""
    count = data.draw(st.integers(1, 4))
    matches = data.draw(
        st.lists(st.sets(st.integers(0, count - 1), min_size=1), max_size=12).map(lambda one: [sorted(m) for m in one])
    )
    qos = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    by_queue = sources(*[(queue_id, qos[queue_id], 0) for queue_id in range(count)])
    queues: dict[int, list[int]] = {queue_id: [] for queue_id in range(count)}
    dispatch = []
    for message, matched in enumerate(matches):
        dispatch.append([(queue_id, len(queues[queue_id])) for queue_id in matched])
        for queue_id in matched:
            queues[queue_id].append(message)
    sent: list[tuple[int, int]] = []
    while any(by_queue[queue_id].cursor < len(queues[queue_id]) for queue_id in queues):
        moved = False
        for queue_id in data.draw(st.permutations(range(count))):
            one = by_queue[queue_id]
            if one.cursor < len(queues[queue_id]):
                message = queues[queue_id][one.cursor]
                verdict = decide(dispatch[message], one, by_queue, one.cursor)
                if verdict != WAIT:
                    moved = True
                    if verdict != PASSED:
                        sent.append((message, verdict))
                        one.unacked[one.cursor] = None
                    one.cursor += 1
        assert moved
    assert sorted(sent) == [(message, max(qos[q] for q in matched)) for message, matched in enumerate(matches)]


def test_own_messages_pass_by_subscriptions_with_no_local() -> None:
    """They neither deliver nor hold back nor lend their QoS and identifier."""
    by_queue = sources((1, 2, 0), (2, 1, 0), (3, 2, 0))
    for queue_id, options in ((1, 1), (2, 2), (3, 1)):
        by_queue[queue_id].choose(options, queue_id)
    everywhere = [(1, 0), (2, 0), (3, 0)]
    assert decide(everywhere, by_queue[1], by_queue, 0, own=True) == PASSED
    assert decide(everywhere, by_queue[2], by_queue, 0, own=True) == 1
    assert decide(everywhere, by_queue[2], by_queue, 0) == WAIT
    assert gather(everywhere, by_queue[2], by_queue, own=True) == ([2], True)
    assert gather(everywhere, by_queue[1], by_queue) == ([1, 2, 3], True)


def test_a_subscription_made_later_lends_nothing() -> None:
    """Its identifier is not on a message from before it."""
    by_queue = sources((1, 1, 0), (2, 1, 5))
    by_queue[2].choose(0, 9)
    assert gather([(1, 0), (2, 4)], by_queue[1], by_queue) == ([], False)
    assert gather([(1, 0), (2, 5)], by_queue[1], by_queue) == ([9], False)
