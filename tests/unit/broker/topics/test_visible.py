"""Queues that readers get no answer for look as if they did not exist."""

from __future__ import annotations

from broker.topics.queues import VisibleQueues


async def test_hidden_and_missing_queues_look_alike(running) -> None:
    topics = running.broker.topics.table
    topics.ensure("t", 1)
    (queue_id,) = topics.queue_ids("t")
    hidden: set[int] = set()
    queues = VisibleQueues(running.store, topics, hidden)
    assert (queues.hidden(queue_id), queues.end(queue_id), bool(queues.title(queue_id))) == (False, 0, True)
    hidden.add(queue_id)
    for one in (queue_id, 999_999):
        assert (queues.hidden(one), queues.end(one)) == (True, 0)
