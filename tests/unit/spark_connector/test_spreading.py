"""Which rows go to which broker group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.route_body import QueueData, TopicRoute, encode_body
from spark_connector import spreading
from spark_connector.errors import BrokerUnreachable
from spark_connector.options import WriteOptions
from spark_connector.spreading import Spreading

BROKERS = {"a": ("h", 1), "b": ("h", 2), "c": ("h", 3)}
ROUTES = {
    "both": (("b", 6), ("c", 6), ("gone", 6)),
    "closed": (("a", 4), ("c", 6)),
    "read-only": (("b", 4),),
    "plant": (("b", 6), ("c", 6)),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A name server that knows ROUTES; what it was asked for."""
    questions: list[str] = []

    def ask(server: object, command: Command, options: object, *, refusal_is_error: bool) -> Command:
        assert (command.code, refusal_is_error) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, False)
        topic = command.fields["topic"]
        questions.append(topic)
        if topic not in ROUTES:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return command.reply(
            body=encode_body(TopicRoute(queue_datas=[QueueData(name, 4, 4, perm) for name, perm in ROUTES[topic]]))
        )

    monkeypatch.setattr(spreading, "ask", ask)
    return questions


def split(turn: int, options: WriteOptions, *, brokers=BROKERS, home: str = "a", **columns: list[str | None]):  # type: ignore[no-untyped-def]
    """(group, bodies) of one batch whose bodies are the row numbers."""
    rows = len(next(iter(columns.values())))
    arrays = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    arrays["body"] = pa.array([b"%d" % row for row in range(rows)], pa.binary())
    found = []
    for group, own, count in Spreading(brokers, home, turn, options).split(arrays, rows):
        assert set(own) == set(arrays)
        bodies = [int(body) for body in own["body"].to_pylist()]
        assert len(bodies) == count
        found.append((group, bodies))
    return found


def test_one_group_is_asked_nothing(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """The usual case costs nothing."""
    alone = {"x": ("h", 1)}
    assert split(0, write_options(), brokers=alone, home="x", topic=["both", "new"]) == [("x", [0, 1])]
    assert asked == []


def test_a_topic_of_several_groups_takes_them_in_turn(
    asked: list[str], write_options: Callable[..., WriteOptions]
) -> None:
    """Whole batches, so that nothing is cut for it; groups that are not there or not writable are left out."""
    spread = Spreading(BROKERS, "a", 0, write_options())
    batch = {"topic": pa.array(["both"] * 3)}
    groups = [group for _ in range(4) for group, _columns, _rows in spread.split(batch, 3)]
    assert sorted(groups) == ["b", "b", "c", "c"]
    assert groups[0] != groups[1]
    assert asked == ["both"]
    assert split(0, write_options(), topic=["closed", "read-only"]) == [("b", [1]), ("c", [0])]


def test_mqtt_rows_of_a_parent_go_to_one_group(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """The order of an MQTT topic is that of one log; a topic that nobody has is made at the sink's home."""
    for turn in range(3):
        found = split(
            turn, write_options(), mqttTopic=["plant/1", "new/x", "plant/2", None], topic=["both", None, "both", None]
        )
        assert found == [("a", [1, 3]), ("b", [0, 2])]
    assert set(asked) == {"both", "plant", "new"}


def test_a_name_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, write_options: Callable[..., WriteOptions]
) -> None:
    """Is said, not taken for a topic that does not exist."""

    def ask(*_: object, **__: object) -> Command:
        raise BrokerUnreachable("nobody at h:1")

    monkeypatch.setattr(spreading, "ask", ask)
    with pytest.raises(BrokerUnreachable, match="nobody at"):
        split(0, write_options(), topic=["both"])
