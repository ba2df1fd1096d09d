"""Topics of a replica: what the log has of them, and nothing that only looks like one."""

from __future__ import annotations

import pytest

from broker.topics.replica import ReplicaTopics
from broker.topics.topics import PERMISSION_WRITE, TopicSettings
from remoting.protocol.errors import Refused


async def test_topics_are_those_of_the_log(running) -> None:
    table, topics = running.broker.topics.table, ReplicaTopics(running.store)
    table.ensure("plant", 3)
    assert topics.queue_ids("plant") == [*table.queue_ids("plant")]
    assert topics.queue_ids("none") == []
    assert topics.find("plant", 2) == table.queue_ids("plant")[2]
    assert (topics.find("plant", 3), topics.find("none", 0)) == (None, None)
    assert topics.get("none") is None
    assert "plant" in {settings.name for settings in topics}


async def test_a_topic_that_may_not_be_read_is_refused(running) -> None:
    topics = ReplicaTopics(running.store)
    running.broker.topics.table.put(TopicSettings(name="closed", permission=PERMISSION_WRITE))
    topics.require_readable("unknown")
    with pytest.raises(Refused):
        topics.require_readable("closed")


async def test_hidden_queues_are_no_topics(running) -> None:
    """A name that would be that of a hidden queue with its number names none."""
    running.broker.topics.table.ensure("plant", 1)
    running.store.queues.open(b"\x01stage\x00sink\x001")
    topics = ReplicaTopics(running.store)
    assert topics.find("\x01stage\x00sink", 1) is None
    queue = topics.find("plant", 0)
    assert queue is not None
    assert topics.owner(queue) == ("plant", 0)
