"""Writers without Spark: what tasks leave, what the driver does with it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from remoting.protocol.bodies.controller_body import QueueData
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import image_views
from spark_connector.brokers import KnownGroups, masters_at
from spark_connector.errors import BrokerRefused, BrokerUnreachable, OptionError
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing import partitioner, sink, writer
from spark_connector.writing.columns import sink_columns
from spark_connector.writing.writer import (
    LargestRow,
    RocketMQBatchWriter,
    RocketMQStreamWriter,
    StagedRows,
    check_allowed,
)
from tests.support.spark_rows import tell_groups
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., WriteOptions]
BOTH = tuple(QueueData(group, 2, 2, 6) for group in "ab")
SCHEMA = StructType([StructField("body", BinaryType())])


class Context:
    """The context that Spark gives a task."""

    properties: ClassVar[dict[str, str]] = {writer.QUERY_ID_PROPERTY: "query-1", writer.BATCH_ID_PROPERTY: "4"}

    @classmethod
    def get(cls) -> Context:
        return cls()

    def partitionId(self) -> int:  # noqa: N802
        return 2

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "TaskContext", Context)


def batches(*sizes: int) -> Any:
    return iter([pa.record_batch({"body": pa.array([b"x"] * size, pa.binary())}) for size in sizes])


def visible(broker: ToyBroker) -> int:
    return len(broker.queue("%LMQ%a%2Fb", 0).records)


def test_a_stream_commits_once_however_often_it_is_replayed(broker: ToyBroker, write_options: Options) -> None:
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b"), overwrite=False)
    left = pickle.loads(pickle.dumps(stream.write(batches(3, 0, 4))))
    lost_attempt = stream.write(batches(3))
    assert isinstance(left, StagedRows)
    assert (left.sink, left.batch, left.partition, left.count) == ("query-1", 4, 2, 7)
    assert left.attempt != lost_attempt.attempt
    assert visible(broker) == 0
    for _ in range(2):
        stream.commit([left, None], 4)
        assert visible(broker) == 7
    replayed = [stream.write(batches(2)), stream.write(batches(5))]
    assert [one.count for one in replayed] == [0, 0]
    stream.commit(replayed, 4)
    assert visible(broker) == 7


def test_a_committed_number_with_other_rows_is_refused(broker: ToyBroker, write_options: Options) -> None:
    """The checkpoint was restored, and Spark has planned the batch anew; nothing of it is passed over in silence."""
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b"), overwrite=False)
    stream.commit([stream.write(batches(7))], 4)
    anew = [stream.write(batches(7)), stream.write(batches(2))]
    assert [one.is_replay for one in anew] == [True, True]
    with pytest.raises(OptionError, match=r"batch 4 with 7 rows, and this query writes 9 other ones"):
        stream.commit(anew, 4)
    skipping = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b", replayMismatch="skip"), overwrite=False)
    passed = skipping.write(batches(9))
    assert (passed.is_replay, passed.digest) == (True, None)
    skipping.commit([passed], 4)
    assert visible(broker) == 7


def test_what_an_earlier_release_committed_is_judged_by_its_number(broker: ToyBroker, write_options: Options) -> None:
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b"), overwrite=False)
    broker.ledger["query-1"] = 4
    replayed = stream.write(batches(9))
    assert (replayed.is_replay, replayed.digest) == (True, None)
    stream.commit([replayed], 4)
    assert visible(broker) == 0


def test_tasks_that_staged_and_tasks_that_came_after_the_commit_make_one_batch(
    broker: ToyBroker, write_options: Options
) -> None:
    """The driver died in the commit: of its successor's tasks some had begun before."""
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b"), overwrite=False)
    dying, begun = stream.write(batches(3, 4)), stream.write(batches(3))
    stream.commit([dying], 4)
    stream.commit([begun, stream.write(batches(4))], 4)
    assert visible(broker) == 7


def test_another_checkpoint_under_the_same_name_is_refused(broker: ToyBroker, write_options: Options) -> None:
    """Its batches begin at 0 again; skipping them would lose them silently."""
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b", sinkId="mine"), overwrite=False)
    broker.ledger["mine"] = 7
    with pytest.raises(OptionError, match="batch 7 and this query writes batch 4"):
        stream.write(batches(3))


def test_a_commit_finds_the_new_master(
    broker: ToyBroker, write_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of its group."""
    options = write_options(mqttTopic="a/b", fetchRetries="0", brokerwaitms="60000")
    stream = RocketMQStreamWriter(SCHEMA, options, overwrite=False)
    left = stream.write(batches(3))
    gone = ToyBroker()
    gone.close()
    places = [{"": ("", each.address)} for each in (gone, broker)]
    monkeypatch.setattr(sink, "find_groups", lambda options: KnownGroups(masters_at(places.pop(0), options)))
    stream.commit([left], 4)
    assert visible(broker) == 3


@pytest.fixture
def two_groups(broker: ToyBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyBroker]:
    """A second group `b` beside `a`; the topic both/x alternates between them."""
    other = ToyBroker()
    tell_groups(monkeypatch, {"a": broker.address, "b": other.address})
    monkeypatch.setattr(partitioner.Partitioner, "_routed", lambda _self, topic: BOTH if topic == b"both" else ())
    yield other
    other.close()


def test_rows_are_staged_at_the_groups_of_their_topic_and_committed_once(
    broker: ToyBroker, two_groups: ToyBroker, write_options: Options
) -> None:
    """A replay after any death of the driver sends nothing that was decided, and completes it."""
    stream = RocketMQStreamWriter(SCHEMA, write_options(topic="both", sinkId="mine"), overwrite=False)
    left = pickle.loads(pickle.dumps(stream.write(batches(3, 4, 5, 6))))
    assert sorted(left.counts) == ["a", "b"]
    assert left.count == 18

    def shown(toy: ToyBroker) -> int:
        return sum(len(toy.queue("both", number).records) for number in range(2))

    two_groups.faults = [two_groups.answer] * 2 + [lambda _command: None] * 9  # requested and prepared, then absent
    with pytest.raises(BrokerUnreachable):
        stream.commit([left], 4)
    assert (shown(broker), shown(two_groups)) == (left.counts["a"], 0)
    two_groups.faults = []
    replayed = stream.write(batches(18))
    assert (replayed.count, replayed.is_replay) == (0, True)
    stream.commit([replayed], 4)
    assert (shown(broker), shown(two_groups)) == (left.counts["a"], left.counts["b"])
    stream.commit([left], 4)
    assert shown(broker) + shown(two_groups) == 18


def test_a_nameless_job_of_two_groups_leaves_no_name(
    broker: ToyBroker, two_groups: ToyBroker, write_options: Options
) -> None:
    """At neither of them; an abort drops what is staged at both."""
    job = RocketMQBatchWriter(SCHEMA, write_options(topic="both"), overwrite=False)
    job.commit([job.write(batches(3, 4))])
    assert (broker.ledger, two_groups.ledger) == ({}, {})
    again = RocketMQBatchWriter(SCHEMA, write_options(topic="both"), overwrite=False)
    again.abort([again.write(batches(3, 4))])
    again.commit([])
    assert not any(key[0] != job._sink for toy in (broker, two_groups) for key in toy.staged)


def test_an_absent_broker_is_reported_while_the_write_is_planned(broker: ToyBroker, write_options: Options) -> None:
    """With the address; once a broker has answered, a task waits instead."""
    broker.close()
    with pytest.raises(BrokerUnreachable, match=str(broker.address[1])):
        RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b", fetchRetries="0"), overwrite=False)


def test_abort_drops_what_was_staged(broker: ToyBroker, write_options: Options) -> None:
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b", sinkId="mine"), overwrite=False)
    stream.write(batches(3))
    stream.abort([None], 4)
    assert broker.staged == {}
    broker.close()
    stream.abort([None], 4)


def test_at_least_once_is_visible_at_once(broker: ToyBroker, write_options: Options) -> None:
    stream = RocketMQStreamWriter(SCHEMA, write_options(mqttTopic="a/b", delivery="at-least-once"), overwrite=False)
    left = stream.write(batches(3))
    assert visible(broker) == 3
    stream.commit([left], 4)
    stream.abort([None], 4)
    assert visible(broker) == 3


def test_batch_versions(broker: ToyBroker, write_options: Options) -> None:
    for version, expected in (("1", 5), ("1", 5), ("2", 10)):
        job = RocketMQBatchWriter(
            SCHEMA, write_options(mqttTopic="a/b", txnAppId="app", txnVersion=version), overwrite=False
        )
        left = job.write(batches(5))
        job.commit([left])
        assert visible(broker) == expected
    unnamed = RocketMQBatchWriter(SCHEMA, write_options(mqttTopic="a/b"), overwrite=False)
    unnamed.write(batches(5))
    unnamed.abort([None])
    assert broker.staged == {key: rows for key, rows in broker.staged.items() if key[0] == "app"}


def test_a_job_without_a_name_leaves_none_at_the_broker(broker: ToyBroker, write_options: Options) -> None:
    """Also when its last request is lost."""
    for faults in ([], [lambda _command: None] * 9):
        job = RocketMQBatchWriter(SCHEMA, write_options(mqttTopic="a/b", fetchRetries="0"), overwrite=False)
        left = job.write(batches(5))
        broker.faults = [broker.answer] * 2 + faults if faults else []
        job.commit([left])
        broker.faults = []
    assert visible(broker) == 10
    assert len(broker.ledger) == 1
    named = RocketMQBatchWriter(SCHEMA, write_options(mqttTopic="a/b", txnAppId="x", txnVersion="1"), overwrite=False)
    named.commit([named.write(batches(1))])
    assert broker.ledger["x"] == 1


def test_rows_are_born_when_their_batch_is_encoded(write_options: Options) -> None:
    options, ticks = write_options(mqttTopic="a/b"), iter((1_000, 2_000))
    columns = sink_columns([("body", "binary")], options)
    rows = [
        writer.encoded_rows(columns.pick(batch), batch.num_rows, options, lambda: next(ticks))
        for batch in batches(2, 1)
    ]
    born = [
        [image_views(b"".join([bytes(one.data[a:b])]))[0].born_ms for a, b in pairwise(one.edges.tolist())]
        for one in rows
    ]
    assert born == [[1_000, 1_000], [2_000]]


def test_what_is_refused(write_options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="append"):
        RocketMQBatchWriter(SCHEMA, write_options(topic="t"), overwrite=True)
    RocketMQStreamWriter(SCHEMA, write_options(topic="t"), overwrite=True)
    with pytest.raises(OptionError, match="batch writes"):
        RocketMQStreamWriter(SCHEMA, write_options(topic="t", txnAppId="a", txnVersion="1"), overwrite=False)
    with pytest.raises(OptionError, match="'body' is int"):
        RocketMQBatchWriter(StructType([StructField("body", IntegerType())]), write_options(topic="t"), overwrite=False)
    monkeypatch.setattr(Context, "properties", {})
    with pytest.raises(OptionError, match=r"4\.2"):
        RocketMQStreamWriter(SCHEMA, write_options(topic="t"), overwrite=False).write(batches(1))


def test_batches_of_rows_become_records_of_many(write_options: Options) -> None:
    options = write_options(topic="t", batchCodec="lz4", batchRows="4")
    columns = sink_columns([("body", "binary")], options)
    found = [writer.encoded_rows(columns.pick(batch), batch.num_rows, options, lambda: 7) for batch in batches(3, 9)]
    assert [[each.rows(n, n + 1) for n in range(len(each))] for each in found] == [[3], [4, 4, 1]]


BODY = "refused: code 13: the message body of 9 bytes exceeds 8"
PROPERTIES = "refused: code 13: 40001 bytes of properties exceed 32767"
MAP = pa.map_(pa.string(), pa.string())


def largest_of_two_batches(columns: dict[str, str]) -> LargestRow:
    """Of three rows and a later one; the second has no body, the third the most properties."""
    largest = LargestRow(columns)
    properties = pa.array([[("a", "1")], None, [("ab", "123"), ("b", None)], [("a", "22")]], MAP)
    keys = pa.array(["k0", "k1", "k2", "k3"])
    first = {"body": pa.array([b"123456789", None, b"1"]), "key": keys[:3], "properties": properties[:3]}
    largest.note(first)
    largest.note({"body": pa.array(["12"]), "key": keys[3:], "properties": properties[3:]})
    return largest


@pytest.mark.parametrize(
    ("refusal", "columns", "says"),
    [
        (BODY, {"body": "value"}, f"column 'value' holds 9 bytes in the row with key 'k0': {BODY}"),
        (PROPERTIES, {"body": "body"}, f"column 'properties' holds 6 bytes in the row with key 'k2': {PROPERTIES}"),
        (PROPERTIES, {"body": "body", "headers": "headers"}, "column 'headers' holds 6 bytes in the row with key 'k2'"),
    ],
)
def test_column_and_key_are_named(refusal: str, columns: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)), largest_of_two_batches(columns).named():
        raise BrokerRefused(refusal, ResponseCode.MESSAGE_ILLEGAL)


@pytest.mark.parametrize(
    "other", [BrokerRefused("no permission", ResponseCode.NO_PERMISSION), BrokerRefused("odd", 13)], ids=str
)
def test_other_refusals_are_left_alone(other: BrokerRefused) -> None:
    with pytest.raises(BrokerRefused) as raised, LargestRow({"body": "body"}).named():
        raise other
    assert raised.value is other


def test_refused_writes_are_reported_in_advance(broker: ToyBroker, write_options: Callable[..., WriteOptions]) -> None:
    """Topic of an option and sink; no request without either; old brokers do not answer; an absent one is reported."""

    def judged(command: Command) -> Command:
        assert command.code == RequestCode.CHECK_PUBLISH
        code = ResponseCode.NO_PERMISSION if command.fields.get("topic") == "a/b" else 0
        return command.reply(code, f"no {sorted(command.fields)}")

    broker.faults = [broker.answer, judged]  # the first request is for the brokers
    with pytest.raises(BrokerRefused, match=r"no .'sink', 'topic'"):
        check_allowed("etl", write_options(mqttTopic="a/b"))
    broker.faults = [broker.answer, judged]
    check_allowed("etl", write_options(mqttTopic="c/d"))
    asked = broker.requests.count(RequestCode.CHECK_PUBLISH)
    check_allowed(None, write_options(delivery="at-least-once"))
    assert broker.requests.count(RequestCode.CHECK_PUBLISH) == asked == 2
    check_allowed("etl", write_options(mqttTopic="a/b"))  # answered by a broker that does not know the request
    broker.close()
    with pytest.raises(BrokerUnreachable):
        check_allowed(None, write_options(fetchretries="0"))
