"""The topic table survives restarts, never loses a queue, and refuses what RocketMQ refuses."""

from __future__ import annotations

import pytest

from broker.topics.topics import Topics, TopicSettings
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode


def test_a_created_topic_has_its_queues_and_is_the_same_after_a_restart(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    created = []
    topics.on_change(lambda name, new: created.append((name, new)))
    assert topics.ensure("plant", 4) is topics.ensure("plant", 9)
    ids = topics.queue_ids("plant")
    assert len(set(ids)) == 4
    assert created == [("plant", True)]
    again = Topics(bench.reopen(), topics_max=10)
    assert again.queue_ids("plant") == ids
    assert again.get("plant") == topics.get("plant")
    assert again.owner(ids[2]) == ("plant", 2)


def test_more_queues_keep_the_old_ids_and_fewer_keep_all_for_readers(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    ids = topics.queue_ids(topics.ensure("plant", 2).name)
    topics.put(TopicSettings(name="plant", read_queue_count=3, write_queue_count=3))
    assert topics.queue_ids("plant")[:2] == ids
    assert len(topics.queue_ids("plant")) == 3
    topics.put(TopicSettings(name="plant", read_queue_count=1, write_queue_count=1))
    assert len(topics.queue_ids("plant")) == 3


def test_a_topic_is_deleted_as_a_whole_on_a_full_disk_too(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    topics.ensure("plant", 2)
    ids = topics.queue_ids("plant")
    bench.store.disk._set_full()
    topics.delete("plant")
    store = bench.reopen()
    assert Topics(store, topics_max=10).get("plant") is None
    for queue_id in ids:
        with pytest.raises(LocalMisuse, match="does not exist"):
            store.reading.bounds(queue_id)


def test_a_deleted_topic_comes_back_with_new_ids(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    topics.ensure("plant", 2)
    ids = topics.queue_ids("plant")
    topics.delete("plant")
    assert topics.queue_ids("plant") == ()
    assert topics.owner(ids[0]) is None
    topics.ensure("plant", 2)
    assert not set(ids) & set(topics.queue_ids("plant"))


def test_limits_and_names_are_refused_with_their_code(bench) -> None:
    topics = Topics(bench.store, topics_max=1)
    topics.ensure("one", 1)
    with pytest.raises(Refused, match="topics_max"):
        topics.ensure("two", 1)
    with pytest.raises(Refused) as refused:
        topics.put(TopicSettings(name="no/slash"))
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(Refused) as missing:
        topics.require("three")
    assert missing.value.code == ResponseCode.TOPIC_NOT_EXIST
