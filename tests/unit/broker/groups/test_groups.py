"""A group exists with its retry topic and survives a restart."""

from __future__ import annotations

import pytest

from broker.groups.groups import GroupConfig, Groups, dead_letter_topic, retry_topic
from broker.store.errors import StoreFull
from broker.topics.topics import Topics
from remoting.protocol.errors import Refused


def test_a_new_group_gets_its_retry_topic(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    groups = Groups(bench.store, topics)
    assert groups.ensure("readers") is groups.ensure("readers")
    assert topics.get(retry_topic("readers")).read_queue_count == 1
    assert dead_letter_topic("readers") == "%DLQ%readers"
    groups.put(GroupConfig(group_name="readers", retry_max_times=3))
    store = bench.reopen()
    assert Groups(store, Topics(store, topics_max=10)).get("readers").retry_max_times == 3


def test_an_invalid_name_is_refused(bench) -> None:
    with pytest.raises(Refused, match="not valid"):
        Groups(bench.store, Topics(bench.store, topics_max=10)).ensure("no spaces")


def test_a_full_disk_keeps_nobody_from_reading(bench) -> None:
    groups = Groups(bench.store, Topics(bench.store, topics_max=10))
    bench.store.disk._set_full()
    with pytest.raises(StoreFull):
        groups.ensure("readers")
    assert groups.ensure_if_room("readers") == GroupConfig(group_name="readers")
    assert groups.get("readers") is None
    bench.store.disk.full = False
    assert groups.ensure_if_room("readers") is groups.get("readers") is not None
