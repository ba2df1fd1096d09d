"""Texts of options become values."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options import option_table as values
from spark_connector.options.option_table import QueueName, StartingPoint, check_mqtt_topic, check_topic


def test_names_split_at_commas_unless_they_are_json() -> None:
    assert values.names("a/+, b/#,a/+") == ("a/+", "b/#")
    assert values.names('["a,b/#", "c"]') == ("a,b/#", "c")
    for wrong in ("", " , ", "[1]", "[oops"):
        with pytest.raises(ValueError, match=r"name|list"):
            values.names(wrong)


def test_starting_points() -> None:
    assert values.starting_point(" Latest ") == StartingPoint(values.LATEST, {})
    nested = values.starting_point('{"t": {"b": {"0": 5, "1": -1}, "3": 9}}')
    assert nested.default == values.EARLIEST
    assert nested.named == {QueueName("t", "b", 0): 5, QueueName("t", "b", 1): -1, QueueName("t", None, 3): 9}


@pytest.mark.parametrize(
    "wrong", ["[]", '{"t": 5}', '{"t": {"x": 5}}', '{"t": {"0": -3}}', '{"t": {"0": 1.5}}', "soon"]
)
def test_wrong_starting_points(wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        values.starting_point(wrong)


def test_addresses() -> None:
    assert values.addresses("h:1, [::1]:2") == (("h", 1), ("::1", 2))
    for wrong in ("", "h", "h:0", "h:99999", ":1"):
        with pytest.raises(ValueError, match="host:port"):
            values.addresses(wrong)


def test_time_spans() -> None:
    texts = ("0", "250", "500ms", " 30s", "15 M", "1h")
    assert [values.duration_ms(text) for text in texts] == [0, 250, 500, 30_000, 900_000, 3_600_000]
    for wrong in ("", "m", "1d", "-1s", "1.5s"):
        with pytest.raises(ValueError, match="30s"):
            values.duration_ms(wrong)


def test_patterns() -> None:
    assert values.pattern("a|b").fullmatch("b")
    with pytest.raises(ValueError, match="regular expression"):
        values.pattern("a(")


def test_a_wrong_word_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'false'"):
        values.flag("flase")
    with pytest.raises(ValueError, match="did you mean 'exactly-once'"):
        values.one_of("exactly-once", "at-least-once")("exactly_one")
    with pytest.raises(ValueError, match="did you mean 'earliest'"):
        values.starting_point("earlest")


def test_times_by_queue() -> None:
    assert values.time_point(" 5 ") == values.TimePoint(5, {})
    point = values.time_point('{"t": 1, "u": {"0": 2, "b": {"0": 3}}}')
    assert [point.of("t", "b", 9), point.of("u", "b", 0), point.of("u", "c", 0), point.of("u", "c", 1)] == [
        1,
        3,
        2,
        None,
    ]


@pytest.mark.parametrize("wrong", ["soon", "[]", '{"t": -1}', '{"t": {"x": 5}}', '{"t": {"0": true}}', '{"t": "1"}'])
def test_wrong_times(wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        values.time_point(wrong)


def test_assignments() -> None:
    assert values.assignment('{"t": [0, 2], "u": {"b": [1]}}') == {
        QueueName("t", None, 0),
        QueueName("t", None, 2),
        QueueName("u", "b", 1),
    }
    for wrong in ("t", "{}", "[]", '{"t": []}', '{"t": 1}', '{"t": ["x"]}', '{"t": {"b": 1}}', '{"t": [-1]}'):
        with pytest.raises(ValueError, match=r"JSON|list of queues|at least one|not a number"):
            values.assignment(wrong)


def test_expressions_are_checked() -> None:
    assert values.tag_expression("a || b") == ("a", "b")
    assert values.tag_expression("*") == ()
    assert values.sql_expression(" a > 1 ") == "a > 1"
    assert values.sql_expression(" ") == ""
    for parse, wrong in ((values.tag_expression, "a ||"), (values.sql_expression, "a >")):
        with pytest.raises(ValueError, match="expression"):
            parse(wrong)


def test_speeds() -> None:
    assert values.speed("2.5") == 2.5
    for wrong in ("0", "1", "-1", "inf", "nan", "fast"):
        with pytest.raises(ValueError, match="number"):
            values.speed(wrong)


@pytest.mark.parametrize("topic", ["%LMQ%a", "a/b", "a b", ""])
def test_what_no_broker_has_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="is not a RocketMQ topic"):
        check_topic(topic, "mqttFilter")


def test_an_mqtt_topic_is_sent_to_its_own_option() -> None:
    check_topic("orders", "mqttFilter")
    with pytest.raises(OptionError, match=r"option 'assign'.*go into the option 'mqttFilter'"):
        check_topic("plant/1", "mqttFilter", "assign")


def test_topics_that_rows_are_written_to() -> None:
    assert check_mqtt_topic("plant/1/temp") == ""
    assert "the server's own" in check_mqtt_topic(b"$SYS/x")
    assert check_mqtt_topic("plant/+") != ""
