"""Topics and filters become queues to request and rows to keep."""

from __future__ import annotations

from itertools import product

import pytest

from remoting.protocol.bodies.pull_body import LightBounds, QueueBounds, QueueBoundsReply, QueueBoundsRequest, RowFilter
from spark_connector.errors import OptionError
from spark_connector.options.option_table import QueueName, check_mqtt_topic
from spark_connector.options.read_write import parse_read
from spark_connector.queues import QueueKey
from spark_connector.reading.selection import (
    EXACT_MAX,
    Bounds,
    Selection,
    check_named_queues,
    check_present,
    light_key,
    row_filter,
    select,
)


def chosen(filters: str) -> Selection:
    return select(parse_read({"mqttFilter": filters}))


def test_kinds_of_filters() -> None:
    assert chosen("plant/7/temp") == Selection((), ("plant/7/temp",), (), ())
    assert chosen("plant/+/temp") == Selection(("plant",), (), (), ("plant/+/temp",))
    assert chosen("+/temp") == Selection((), (), ("+/temp",), ("+/temp",))
    assert select(parse_read({"topic": "a,b"})) == Selection(("a", "b"), (), (), ())


def test_no_message_is_read_twice() -> None:
    assert chosen("plant/+/temp,plant/7/temp").exact == ()
    beside = chosen("plant/+/temp,plant/7/hum,car/1")
    assert (beside.topics, beside.exact) == (("plant",), ("car/1",))
    assert set(beside.row_filters) == {"plant/+/temp", "plant/7/hum"}
    everywhere = chosen("+/temp,plant/7/hum,car/#")
    assert (everywhere.topics, everywhere.exact) == ((), ())
    assert set(everywhere.row_filters) == {"+/temp", "plant/7/hum", "car/#"}


@pytest.mark.parametrize(("options", "says"), [({"mqttFilter": "a/#/b"}, "'a/#/b'"), ({"topic": "a/b"}, "mqttFilter")])
def test_wrong_names(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        select(parse_read(options))


def test_many_exact_topics_are_read_from_their_parents() -> None:
    """One position per parent queue instead of one per topic."""
    few = [f"plant/{n}" for n in range(EXACT_MAX)]
    assert len(chosen(",".join(few)).exact) == EXACT_MAX
    many = chosen(",".join([*few, "car/1"]))
    assert (many.exact, many.topics) == ((), ("plant", "car"))
    assert set(many.row_filters) == {*few, "car/1"}


def test_requests_and_answers() -> None:
    one = chosen("a/b")
    (request,) = one.requests(at_ms=5)
    assert (request.filter, request.at_ms) == ("a/b", 5)
    reply = QueueBoundsReply("b1", 1, 0, [QueueBounds("a", 0, 4, 0, 9)], LightBounds(7, 1, 3))
    assert one.collect(request, reply) == {light_key("a/b", "b1"): Bounds(7, 1, 3)}
    reply.light = None
    assert one.collect(request, reply) == {}
    whole = chosen("a/+")
    assert whole.collect(whole.requests()[0], reply) == {QueueKey("a", "b1", 0): Bounds(4, 0, 9)}


def test_the_waiting_request_covers_everything() -> None:
    known = {"a": {"0": 3}}
    assert chosen("a/b").waiting_request(known, 5) == QueueBoundsRequest(filter="a/b", known=known, wait_ms=5)
    assert chosen("a/+").waiting_request(known, 5).topics == ["a"]
    assert chosen("+/a,#").waiting_request(known, 5).filter == "#"
    two = chosen("a/b,c/d")
    assert two.waiting_request(known, 5).topics == ["a", "c"]
    assert not two.is_answered_by(two.waiting_request(known, 5))
    assert chosen("a/+").is_answered_by(chosen("a/+").waiting_request(known, 5))


def test_missing_topics_and_queues() -> None:
    bounds = {QueueKey("a", "b1", 0): Bounds(1, 0, 5)}
    with pytest.raises(OptionError, match="option 'topic': no broker has 'z'"):
        check_present(select(parse_read({"topic": "a,z"})), bounds)
    check_present(chosen("z/#"), bounds)
    check_named_queues({QueueName("a", None, 0): 1, QueueName("a", "b1", 0): 1}, bounds)
    with pytest.raises(OptionError, match="a/b2/0"):
        check_named_queues({QueueName("a", "b2", 0): 1}, bounds)


def test_assigned_queues_only() -> None:
    found = select(parse_read({"assign": '{"a": [0], "c": {"b2": [1]}}'}))
    assert found.topics == ("a", "c")
    for broker, expected in (("b1", [("a", 0)]), ("b2", [("a", 0), ("c", 1)])):
        queues = [QueueBounds(topic, number, id_, 0, 9) for id_, (topic, number) in enumerate(product("ac", (0, 1)))]
        reply = QueueBoundsReply(broker, 1, 0, queues)
        assert [(key.topic, key.queue) for key in found.collect(found.requests()[0], reply)] == expected
    here = {QueueKey("a", "b1", 0): Bounds(1, 0, 5), QueueKey("c", "b2", 1): Bounds(1, 0, 5)}
    check_present(found, here)
    other = {QueueKey("a", "b1", 0): Bounds(1, 0, 5), QueueKey("c", "b2", 0): Bounds(1, 0, 5)}
    with pytest.raises(OptionError, match="option 'assign' names the queue c/b2/1"):
        check_present(found, other)
    with pytest.raises(OptionError, match="option 'assign' names the queue a/0"):
        check_present(found, {})
    with pytest.raises(OptionError, match="option 'assign': 'x/y' is not a RocketMQ topic"):
        select(parse_read({"assign": '{"x/y": [0]}'}))


def test_what_the_broker_is_to_leave_out() -> None:
    options = parse_read({"mqttFilter": "a/+", "subExpression": "x || y", "sql": "n > 1"})
    assert row_filter(select(options), options) == RowFilter(mqtt=("a/+",), tags=("x", "y"), sql="n > 1")
    options = parse_read({"mqttFilter": "a/b"})
    assert not row_filter(select(options), options)


def test_a_pattern_takes_whole_names_of_what_the_broker_reports() -> None:
    found = select(parse_read({"subscribePattern": "line-[0-9]|press"}))
    (request,) = found.requests()
    assert request.filter == "#"
    assert found.waiting_request({}, 5).filter == "#"
    names = ("line-1", "line-10", "press", "presses")
    queues = [QueueBounds(name, 0, at, 0, 9, None) for at, name in enumerate(names)]
    reply = QueueBoundsReply("b", 1, 0, queues, None)
    assert [key.topic for key in found.collect(request, reply)] == ["line-1", "press"]


@pytest.mark.parametrize(
    ("special", "says"),
    [
        ("$share/group/plant/#", "leave `.share/` and the group out"),
        ("$history/last=5/plant/#", "startingTimestamp"),
        ("$SYS/#", "over MQTT"),
        ("$delayed/5/x", "under its own topic"),
    ],
)
def test_filters_of_the_mqtt_server_are_refused_in_words(special: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        select(parse_read({"mqttFilter": f"plant/1,{special}"}))


def test_topics_rows_can_be_written_to() -> None:
    assert check_mqtt_topic("plant/1") == check_mqtt_topic(b"plant/1") == ""
    for topic in ("$SYS/x", b"$SYS/x", "$share/a/b"):
        assert "server's own" in check_mqtt_topic(topic)
    assert "wildcard" in check_mqtt_topic("plant/#")
