"""Which rows go to which broker group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pytest

from remoting.protocol.bodies.controller_body import QueueData, TopicRoute, encode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from remoting.protocol.records.names import queue_of
from spark_connector import brokers as brokers_module
from spark_connector.brokers import Address, GroupMaster, KnownGroups
from spark_connector.errors import BrokerUnreachable, OptionError
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing import partitioner
from spark_connector.writing.partitioner import Partitioner
from tests.support.spark_rows import named_masters

BROKERS = {"a": ("h", 1), "b": ("h", 2), "c": ("h", 3)}
ROUTES = {
    "both": (("b", 6), ("c", 6), ("gone", 6)),
    "closed": (("a", 4), ("c", 6)),
    "read-only": (("b", 4),),
    "plant": (("b", 6), ("c", 6)),
    "wide": (("c", 6), ("b", 6)),
}
MADE_QUEUES = 5
"""What a broker gives a topic that a write creates."""


def patch_ask(monkeypatch: pytest.MonkeyPatch, ask: Callable[..., Command]) -> None:
    """Have `ask` answer for name servers and for masters."""
    monkeypatch.setattr(brokers_module, "ask", ask)
    monkeypatch.setattr(GroupMaster, "ask", lambda self, command, **how: ask(self.address, command, None, **how))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A name server that knows ROUTES; returns what was asked of it."""
    questions: list[str] = []

    def ask(server: object, command: Command, options: object, *, refusal_is_error: bool = False) -> Command:
        assert not refusal_is_error
        topic = command.fields["topic"]
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            assert (server, command.fields["forWrite"]) == (BROKERS["a"], "true")
            return command.reply(body=b'{"topicName": "new", "writeQueueNums": %d, "perm": 6}' % MADE_QUEUES)
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        questions.append(topic)
        if topic not in ROUTES:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return command.reply(
            body=encode_body(TopicRoute(queue_datas=[QueueData(name, 4, 4, perm) for name, perm in ROUTES[topic]]))
        )

    patch_ask(monkeypatch, ask)
    return questions


def groups_of(addresses: Mapping[str, Address], options: WriteOptions, **more: object) -> KnownGroups:
    """The groups that have masters at these addresses."""
    return KnownGroups(named_masters(addresses, options), **more)  # type: ignore[arg-type]


def split(turn: int, options: WriteOptions, *, brokers=BROKERS, home: str = "a", **columns: list[str | None]):  # type: ignore[no-untyped-def]
    """(group, bodies) of one batch whose bodies are the row numbers."""
    rows = len(next(iter(columns.values())))
    arrays = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    arrays["body"] = pa.array([b"%d" % row for row in range(rows)], pa.binary())
    found = []
    for group, own, count in Partitioner(groups_of(brokers, options), home, turn, options).split(arrays, rows):
        assert set(own) == set(arrays)
        bodies = [int(body) for body in own["body"].to_pylist()]
        assert len(bodies) == count
        found.append((group, bodies))
    return found


def test_with_one_group_nothing_is_requested(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """The usual case costs nothing."""
    alone = {"x": ("h", 1)}
    assert split(0, write_options(), brokers=alone, home="x", topic=["both", "new"]) == [("x", [0, 1])]
    assert asked == []


def test_the_groups_of_a_topic_take_turns(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """Whole batches, so that nothing is cut for it; absent or read-only groups are left out."""
    options = write_options()
    spread = Partitioner(groups_of(BROKERS, options), "a", 0, options)
    batch = {"topic": pa.array(["both"] * 3)}
    groups = [group for _ in range(4) for group, _columns, _rows in spread.split(batch, 3)]
    assert sorted(groups) == ["b", "b", "c", "c"]
    assert groups[0] != groups[1]
    assert asked == ["both"]
    assert split(0, write_options(), topic=["closed", "read-only"]) == [("b", [1]), ("c", [0])]


def test_mqtt_rows_of_a_parent_go_to_one_group(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """The order of an MQTT topic is that of one log; a new topic is created at the sink's home."""
    for turn in range(3):
        found = split(
            turn, write_options(), mqttTopic=["plant/1", "new/x", "plant/2", None], topic=["both", None, "both", None]
        )
        assert found == [("a", [1, 3]), ("b", [0, 2])]
    assert set(asked) == {"both", "plant", "new"}


def test_mqtt_rows_go_to_the_group_that_has_mqtt(
    asked: list[str], write_options: Callable[..., WriteOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the controllers hold it, whatever groups have the parent topic; while it is away they wait and fail."""
    options = write_options()
    batch = {"mqttTopic": pa.array(["plant/1", "new/x"])}
    held = groups_of(BROKERS, options, mqtt="c")
    assert [group for group, _columns, _rows in Partitioner(held, "a", 0, options).split(batch, 2)] == ["c"]
    away = groups_of({"a": ("h", 1)}, options, absent=("c",), mqtt="c")
    monkeypatch.setattr(partitioner, "find_groups", lambda _options: away)
    with pytest.raises(BrokerUnreachable, match=r"broker group 'c' has no master .*its topic 'plant/1'"):
        list(Partitioner(away, "a", 0, options).split(batch, 2))
    assert asked == []


def test_a_name_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, write_options: Callable[..., WriteOptions]
) -> None:
    """This is reported, not taken for a missing topic."""

    def ask(*_: object, **__: object) -> Command:
        raise BrokerUnreachable("nobody at h:1")

    patch_ask(monkeypatch, ask)
    with pytest.raises(BrokerUnreachable, match="nobody at"):
        split(0, write_options(), topic=["both"])


def placed(options: WriteOptions, *, brokers=BROKERS, turn: int = 0, **columns: pa.Array):  # type: ignore[no-untyped-def]
    """(group, queue) of each row."""
    rows = len(next(iter(columns.values())))
    columns["row"] = pa.array(range(rows))
    found: list[tuple[str, int]] = [("", -1)] * rows
    home = next(iter(brokers))
    for group, own, _count in Partitioner(
        groups_of(brokers, options), home, turn, options, queue_column="partition"
    ).split(columns, rows):
        for row, queue in zip(own["row"].to_pylist(), own["queue"].to_pylist(), strict=True):
            found[row] = (group, queue)
    return found


def topic_of(name: str, rows: int) -> pa.Array:
    return pa.array([name] * rows)


def test_a_key_has_one_queue_of_one_group(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    """As with RocketMQ's Java producer, which counts the queues of the groups in the order of their names."""
    keys = [f"device-{n % 50}" for n in range(200)]
    runs = [placed(write_options(), turn=turn, topic=topic_of("wide", 200), key=pa.array(keys)) for turn in (0, 1)]
    assert runs[0] == runs[1]
    for key, place in zip(keys, runs[0], strict=True):
        index = queue_of(key.encode(), 8)
        assert place == ("bc"[index // 4], index % 4)
    assert len(set(runs[0])) == 8
    assert set(asked) == {"wide"}


def test_one_group_with_keys_asks_once(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    keys = pa.array(["k1", None, "", "k2"])
    found = placed(write_options(), brokers={"b": ("h", 1)}, topic=topic_of("read-only", 4), key=keys)
    any_queue = image.QUEUE_INDEX_ANY
    assert found == [("b", queue_of(b"k1", 4)), ("b", any_queue), ("b", any_queue), ("b", queue_of(b"k2", 4))]
    assert asked == ["read-only"]


def test_a_new_topic_has_as_many_queues_as_its_home_gives(
    asked: list[str], write_options: Callable[..., WriteOptions]
) -> None:
    keys = [b"k%d" % number for number in range(40)]
    found = placed(write_options(), topic=topic_of("new", 40), key=pa.array(keys))
    assert found == [("a", queue_of(key, MADE_QUEUES)) for key in keys]


@pytest.mark.parametrize("columns", [{}, {"key": pa.array(["k"])}], ids=["no key", "key"])
def test_rows_wait_for_the_groups_that_have_their_topic(
    asked: list[str],
    write_options: Callable[..., WriteOptions],
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, pa.Array],
) -> None:
    """They never go to another one, which would make the topic anew; without the group they fail by its name."""
    monkeypatch.setitem(ROUTES, "there", (("gone", 6),))
    options = write_options()
    monkeypatch.setattr(partitioner, "find_groups", lambda _options: groups_of({"c": ("h", 3)}, options))
    alone = groups_of({"c": ("h", 3)}, options, absent=("gone",))
    batch = {"topic": topic_of("there", 1), **columns}
    with pytest.raises(BrokerUnreachable, match=r"broker group 'gone' has no master .*rows are for its topic 'there'"):
        list(Partitioner(alone, "c", 0, options).split(batch, 1))
    answers = [{"c": ("h", 3)}, {"c": ("h", 3), "gone": ("h", 9)}]
    monkeypatch.setattr(partitioner, "find_groups", lambda _options: groups_of(answers.pop(0), options))
    patient = write_options(brokerwaitms="30000")
    waiting = Partitioner(alone, "c", 0, patient)
    assert [group for group, _columns, _rows in waiting.split(batch, 1)] == ["gone"]
    assert waiting.masters["gone"].address == ("h", 9)
    assert answers == []


def test_a_key_waits_for_the_group_it_belongs_to(
    asked: list[str], write_options: Callable[..., WriteOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other groups have a master, and queues of the topic: the key would change its queue."""
    options = write_options()
    monkeypatch.setattr(partitioner, "find_groups", lambda _options: groups_of(BROKERS, options))
    keys = pa.array([f"k{number}" for number in range(50)])
    with pytest.raises(BrokerUnreachable, match="broker group 'gone' has no master"):
        placed(options, topic=topic_of("both", 50), key=keys)


def test_a_topic_that_may_be_at_a_group_whose_topics_are_unknown_is_not_new(
    asked: list[str], write_options: Callable[..., WriteOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_options()
    unheard = groups_of({"c": ("h", 3)}, options, absent=("d",), topics_unknown=frozenset({"d"}))
    monkeypatch.setattr(partitioner, "find_groups", lambda _options: unheard)
    with pytest.raises(BrokerUnreachable, match=r"broker group 'd' has no master .*may have the topic 'new'"):
        list(Partitioner(unheard, "c", 0, options).split({"topic": topic_of("new", 1)}, 1))
    assert [
        name for name, _columns, _rows in Partitioner(unheard, "c", 0, options).split({"topic": topic_of("wide", 1)}, 1)
    ] == ["c"]


def test_a_queue_number_takes_precedence_over_the_key(
    asked: list[str], write_options: Callable[..., WriteOptions]
) -> None:
    numbers, keys = pa.array([0, 7, None], pa.int64()), pa.array(["k", "k", "k"])
    found = placed(write_options(), topic=topic_of("wide", 3), key=keys, queueId=numbers)
    index = queue_of(b"k", 8)
    assert found == [("b", 0), ("c", 3), ("bc"[index // 4], index % 4)]
    named = placed(write_options(), topic=topic_of("wide", 2), queueId=pa.array([1, 6]), broker=pa.array(["c", None]))
    assert named == [("c", 1), ("c", 2)]


@pytest.mark.parametrize(
    ("number", "group", "says"),
    [
        (8, None, "column 'partition' holds 8, which is no queue of the topic 'wide': it has the queues 0 to 7."),
        (-1, None, "holds -1, which is no queue"),
        (-(2**63), None, "holds -9223372036854775807, which is no queue"),
        (image.QUEUE_INDEX_ANY, None, "holds 65535, which is no queue"),
        (4, "b", "at the broker 'b' of column 'broker': it has the queues 0 to 3."),
        (0, "x", "at the broker 'x' of column 'broker': it has no queues."),
    ],
)
def test_a_wrong_queue_number_is_refused(
    asked: list[str], write_options: Callable[..., WriteOptions], number: int, group: str | None, says: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        placed(
            write_options(),
            topic=topic_of("wide", 2),
            queueId=pa.array([0, number]),
            broker=pa.array([None, group], pa.string()),
        )


def test_a_queue_number_is_not_for_mqtt_rows(asked: list[str], write_options: Callable[..., WriteOptions]) -> None:
    mqtt = pa.array(["plant/1", None])
    topics = pa.array([None, "wide"])
    found = placed(write_options(), mqttTopic=mqtt, topic=topics, queueId=pa.array([None, 5]), key=pa.array(["k", "k"]))
    assert found == [("b", image.QUEUE_INDEX_ANY), ("c", 1)]
    with pytest.raises(
        OptionError, match="column 'partition' chooses a queue of a RocketMQ topic; the queue of an MQTT"
    ):
        placed(write_options(), mqttTopic=mqtt, topic=topics, queueId=pa.array([0, 5]))


def test_a_broker_addressed_directly_reports_its_queues(
    monkeypatch: pytest.MonkeyPatch, write_options: Callable[..., WriteOptions]
) -> None:
    def ask(address: object, command: Command, options: object, *, refusal_is_error: bool = False) -> Command:
        assert (address, command.code) == (("h", 1), RequestCode.GET_TOPIC_CONFIG)
        if command.fields["topic"] != "t":
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return command.reply(body=b'{"topicName": "t", "writeQueueNums": 3, "perm": 6}')

    patch_ask(monkeypatch, ask)
    alone = {"": ("h", 1)}
    assert placed(write_options(), brokers=alone, topic=topic_of("t", 1), key=pa.array(["k"])) == [
        ("", queue_of(b"k", 3))
    ]
    with pytest.raises(OptionError, match="create the topic first"):
        placed(write_options(), brokers=alone, topic=topic_of("new", 1), key=pa.array(["k"]))
