"""A code without a declared right cannot be served."""

from __future__ import annotations

import pytest

from remoting.access.rights import RIGHTS, of_group, of_record, of_sink, of_topic, with_rights
from remoting.access.rules import contains, split
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.names import light_queue_name, parent_topic
from remoting.protocol.records.record import RecordView
from tests.support.records import make_mqtt_record, make_record


def test_a_table_with_rights_is_served() -> None:
    assert with_rights({RequestCode.REGISTER_BROKER: "handler"}) == {103: "handler"}
    assert RIGHTS[103].action == "register"


def test_a_code_without_a_right_is_not() -> None:
    with pytest.raises(LightMQError, match="CODE_4711"):
        with_rights({103: "handler", 4711: "other"})


@pytest.mark.parametrize(
    ("topic", "resource"),
    [
        ("orders", "orders/#"),
        (parent_topic("gruß 7/x".encode()).decode(), "gruß 7/#"),
        (light_queue_name(b"plant/+/temp").decode(), "plant/+/temp"),
        ("%2B", "%2B/#"),
        ("%23", "%23/#"),
        ("%zz", "%zz/#"),
        ("%RETRY%g", "%RETRY%g/#"),
    ],
)
def test_topics(topic: str, resource: str) -> None:
    assert of_topic(topic) == resource


def test_reading_a_parent_topic_takes_all_below_it() -> None:
    """Its queues hold every topic with that first level."""
    wanted = split(of_topic("plant"))
    assert contains(split("plant/#"), wanted)
    assert not contains(split("plant"), wanted)
    assert not contains(split("plant/7/#"), wanted)


def test_groups_and_sinks_are_one_level_of_their_own() -> None:
    assert of_group("billing") == "$group/billing"
    assert of_sink("etl") == "$sink/etl"
    assert len(split(of_group("a/b"))) == 2
    for name in ("+", "#", "a/+"):
        assert not set(split(of_sink(name))) & {b"+", b"#"}
    assert not contains(split("#"), split(of_group("billing")))


def test_a_message_is_its_own_topic() -> None:
    assert of_record(RecordView(make_mqtt_record(b"plant/7", b"x"))) == "plant/7"
    assert of_record(RecordView(make_record(topic=b"orders"))) == "orders/#"
