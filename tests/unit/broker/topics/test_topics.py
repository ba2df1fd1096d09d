"""Topics, their attributes and their queues, and which queues a reader may see."""

from __future__ import annotations

import pytest

from broker.topics.topics import (
    ClientQueues,
    Topics,
    TopicSettings,
    VisibleQueues,
    changed,
    is_batch,
    is_light,
    parse_changes,
)
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode


def test_changes_are_added_and_removed() -> None:
    kept = changed({}, "+queue.type=BatchCQ,+message.type=NORMAL", created=True)
    assert kept == {"queue.type": "BatchCQ", "message.type": "NORMAL"}
    assert is_batch(kept)
    assert changed({}, "+retention.ms=1,+retention.bytes=0", created=False) == {
        "retention.ms": "1", "retention.bytes": "0"
    }  # fmt: skip
    assert changed(kept, "-message.type", created=False) == {"queue.type": "BatchCQ"}
    assert changed(kept, "", created=False) == kept
    assert changed(kept, "+queue.type=BatchCQ", created=False) == kept, "the same change again changes nothing"
    assert not is_batch({})
    assert not is_batch({"queue.type": "SimpleCQ"})


def test_spaces_and_empty_pieces_do_not_matter() -> None:
    assert parse_changes(" +message.type=FIFO , ,-queue.type") == {"message.type": "FIFO", "queue.type": None}


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("queue.type=BatchCQ", "neither"),
        ("+queue.type", "neither"),
        ("+queue.type=", "neither"),
        ("-queue.type=BatchCQ", "neither"),
        ("+=BatchCQ", "neither"),
        ("+", "neither"),
        ("+message.type=FIFO,-message.type", "twice"),
        ("+queue.type=RocksCQ", "SimpleCQ or BatchCQ"),
        ("+colour=red", "not supported"),
        ("+retention.ms=7d", "milliseconds"),
        ("+retention.bytes=-1", "bytes"),
    ],
)
def test_mistakes_are_named(text: str, remark: str) -> None:
    with pytest.raises(Refused, match=remark) as refused:
        changed({}, text, created=True)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("kept", "text"), [({"queue.type": "BatchCQ"}, "+queue.type=SimpleCQ"),
                                            ({"queue.type": "BatchCQ"}, "-queue.type"),
                                            ({}, "+queue.type=BatchCQ")])  # fmt: skip
def test_the_queue_type_is_fixed_at_creation(kept: dict[str, str], text: str) -> None:
    with pytest.raises(Refused, match="fixed"):
        changed(kept, text, created=False)


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


async def test_parent_and_light_queues(running) -> None:
    broker = running.broker
    queues = ClientQueues(running.store, broker.topics.table)
    broker.topics.table.put(TopicSettings(name="t", permission=2))
    assert queues.find("t", 3) == broker.topics.table.queue_ids("t")[3]
    assert is_light("%LMQ%x")
    assert queues.find("%LMQ%x", 0) is None
    queue_id = running.store.queues.open(b"%LMQ%x")
    assert queues.find("%LMQ%x", 0) == queue_id
    queues.require_readable("%LMQ%x")
    for call, code in (
        (lambda: queues.find("t", 4), ResponseCode.INVALID_PARAMETER),
        (lambda: queues.find("none", 0), ResponseCode.TOPIC_NOT_EXIST),
        (lambda: queues.require_readable("t"), ResponseCode.NO_PERMISSION),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code


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
