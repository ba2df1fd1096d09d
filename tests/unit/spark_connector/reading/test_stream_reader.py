"""The stream reader under a stand-in for Spark's engine: latest, limits, restarts, losses, progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector.errors import BrokerUnreachable, DataLost, OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading import stream_reader
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.offsets import from_json
from spark_connector.reading.selection import select
from spark_connector.reading.stream_reader import Replay, RocketMQStreamReader, commit_progress
from tests.unit.spark_connector.engine import ALL, Engine
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

Options = Callable[..., ReadOptions]
SCHEMA = StructType([StructField("body", BinaryType()), StructField("mqttTopic", StringType())])
EARLIEST = {"startingoffsets": "earliest", "longpollms": "0"}


class Run:
    """A query over the toy broker that can be restarted from its checkpoint."""

    def __init__(self, options: ReadOptions) -> None:
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self._options = options

    def start(self, options: ReadOptions | None = None) -> Engine:
        """Start or restart."""
        chosen = options or self._options
        return Engine(
            lambda: RocketMQStreamReader(StructType.fromJson(SCHEMA.jsonValue()), chosen), self.offsets, self.commits
        )


def bodies(engine: Engine) -> list[bytes]:
    """What the query has read, in a stable order."""
    return sorted(row["body"] for row in engine.rows)


def numbers(*spans: range) -> list[bytes]:
    """Bodies as published here."""
    return sorted(b"%04d" % n for span in spans for n in span)


def publish(broker: ToyBroker, topic: str, span: range) -> None:
    broker.publish(topic, [b"%04d" % n for n in span])


def test_earliest_then_new_rows_exactly_once(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(20))
    engine = Run(read_options(mqttFilter="plant/+", **EARLIEST)).start()
    assert engine.drain() == [20]
    publish(broker, "plant/2", range(20, 25))
    publish(broker, "other/2", range(100, 105))
    assert engine.drain() == [5]
    assert engine.drain() == []
    assert bodies(engine) == numbers(range(25))


def test_latest_whose_first_batch_fails_loses_nothing(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    run = Run(read_options(mqttFilter="plant/1", longpollms="0"))
    first = run.start()
    first.reader.initialOffset()
    publish(broker, "plant/1", range(5, 15))
    assert first.step(fail=True) == -1
    publish(broker, "plant/1", range(15, 20))
    second = run.start()
    second.drain()
    assert bodies(second) == numbers(range(5, 20)), "a new initialOffset after the crash must not skip rows 5 to 14"


def test_a_failed_batch_is_replayed_exactly(broker: ToyBroker, read_options: Options) -> None:
    run = Run(read_options(mqttFilter="plant/+", **EARLIEST))
    publish(broker, "plant/1", range(10))
    run.start().drain()
    publish(broker, "plant/1", range(10, 16))
    run.start().step(fail=True)
    publish(broker, "plant/1", range(16, 20))
    again = run.start()
    assert bodies(again) == numbers(range(10, 16))
    assert again.drain() == [4]


def test_limits_and_once(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(50))
    engine = Run(read_options(mqttFilter="plant/1", maxoffsetspertrigger="20", **EARLIEST)).start()
    assert engine.drain() == [20, 20, 10]
    publish(broker, "plant/1", range(50, 100))
    assert engine.step(limit=ALL) == 50, "Trigger.Once takes everything"


def test_bytes_limit_and_partition_size(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(40))
    size = len(broker.queue("%LMQ%plant%2F1", 0).records[0])
    options = read_options(
        mqttFilter="plant/1", maxbytespertrigger=str(10 * size), maxrecordsperpartition="4", **EARLIEST
    )
    engine = Run(options).start()
    assert engine.drain() == [10, 10, 10, 10]
    start = from_json({"v": 1, "q": {}})
    parts = engine.reader.partitions({"v": 1, "q": {}}, engine.reader.reportLatestOffset() or {})
    assert start.positions == {}
    assert len(parts) == 10


def test_available_now_ends_where_it_began(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(10))
    engine = Run(read_options(mqttFilter="plant/1,car/1", **EARLIEST)).start()
    engine.reader.prepareForTriggerAvailableNow()
    publish(broker, "plant/1", range(10, 20))
    publish(broker, "car/1", range(20, 30))
    engine.drain()
    assert bodies(engine) == numbers(range(10))


def test_a_new_topic_joins_from_its_beginning(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    engine = Run(read_options(mqttFilter="+/1", longpollms="0")).start()
    engine.drain()
    publish(broker, "car/1", range(5, 9))
    publish(broker, "car/2", range(9, 12))
    engine.drain()
    assert bodies(engine) == numbers(range(5, 9))


def test_given_offsets_and_times(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("t", [b"%04d" % n for n in range(10)], mqtt=False)
    named = Run(read_options(topic="t", startingoffsets='{"t":{"0":7}}', longpollms="0")).start()
    named.drain()
    assert bodies(named) == numbers(range(7, 10))
    timed = Run(read_options(topic="t", startingtimestamp="5", longpollms="0")).start()
    timed.drain()
    assert bodies(timed) == numbers(range(1, 10)), "the toy broker answers any time with its second offset"
    with pytest.raises(OptionError, match="t/9"):
        Run(read_options(topic="t", startingoffsets='{"t":{"9":7}}')).start().step()
    with pytest.raises(DataLost, match="beyond the log's end 10"):
        Run(read_options(topic="t", startingoffsets='{"t":{"0":70}}')).start().step()


def test_a_stream_has_no_end(read_options: Options) -> None:
    with pytest.raises(OptionError, match="has no end"):
        Run(read_options(topic="t", endingoffsets="latest")).start()


def test_losses(broker: ToyBroker, read_options: Options, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(read_options(mqttFilter="plant/1", **EARLIEST))
    publish(broker, "plant/1", range(10))
    run.start().drain()
    publish(broker, "plant/1", range(10, 30))
    broker.queue("%LMQ%plant%2F1", 0).drop_first(15)
    with pytest.raises(DataLost, match="offsets 10 to 14 are gone"):
        run.start().step()
    engine = run.start(read_options(mqttFilter="plant/1", failondataloss="false", **EARLIEST))
    assert engine.drain() == [15]
    assert (engine.reader.reportLatestOffset() or {})["lost"] == 5
    broker.queue("%LMQ%plant%2F1", 0).drop_first(3)
    engine.drain()
    assert (engine.reader.reportLatestOffset() or {})["lost"] == 5, "what was read before it expired is not lost"
    assert len([entry for entry in caplog.records if "are gone" in entry.message]) <= 2


def test_a_shorter_log_is_refused(broker: ToyBroker, read_options: Options) -> None:
    run = Run(read_options(mqttFilter="plant/1", **EARLIEST))
    publish(broker, "plant/1", range(10))
    run.start().drain()
    broker.queue("%LMQ%plant%2F1", 0).records.clear()
    with pytest.raises(DataLost, match="may be another log"):
        run.start().step()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_master_that_may_lack_what_was_read_is_no_loss(
    broker: ToyBroker, read_options: Options, restarts: bool
) -> None:
    """It is new and has not confirmed everything, or is cut off from its successor; the query waits for more."""
    run = Run(read_options(mqttFilter="plant/1", brokerwaitms="60000", **EARLIEST))
    publish(broker, "plant/1", range(10))
    engine = run.start()
    engine.drain()
    queue = broker.queue("%LMQ%plant%2F1", 0)
    read, broker.unproven = list(queue.records), 1
    del queue.records[5:]
    engine = run.start() if restarts else engine
    assert engine.step() == 0
    assert not broker.unproven
    queue.records[:] = read
    publish(broker, "plant/1", range(10, 11))
    assert engine.drain() == [1]


def test_a_batch_is_planned_when_the_master_has_what_was_planned(broker: ToyBroker, read_options: Options) -> None:
    run = Run(read_options(mqttFilter="plant/1", brokerwaitms="60000", **EARLIEST))
    publish(broker, "plant/1", range(10))
    assert run.start().step(fail=True) == -1
    queue = broker.queue("%LMQ%plant%2F1", 0)
    read, broker.unproven = list(queue.records), 1
    del queue.records[5:]

    def has_all_once_asked(command: Command) -> Command:
        answer = broker.answer(command)
        if command.code == RequestCode.MULTI_PULL:
            queue.records[:] = read
        return answer

    broker.faults = [has_all_once_asked] * 9
    assert bodies(run.start()) == numbers(range(10))
    assert not broker.unproven


def test_progress_reaches_the_consumer_group(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(10))
    engine = Run(read_options(mqttFilter="plant/1", consumergroup="g", **EARLIEST)).start()
    engine.drain()
    publish(broker, "plant/1", range(10, 12))
    engine.drain()
    assert broker.offsets == {("g", "%LMQ%plant%2F1", 0): 10}, "one batch behind, as Spark reports it"
    broker.faults = [lambda command: command.reply(1, "no")] * 3
    engine.reader.commit(engine.reader.reportLatestOffset() or {})


def test_stop_is_quiet_outside_a_broken_pipe(read_options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr("os._exit", ended.append)
    reader = Run(read_options(topic="t")).start().reader
    reader.stop()
    try:
        raise EOFError
    except EOFError:
        reader.stop()
    assert ended == [0]


def test_a_batch_waits_for_enough_rows(broker: ToyBroker, read_options: Options) -> None:
    options = {"minoffsetspertrigger": "10", "maxtriggerdelay": "1h", **EARLIEST}
    run = Run(read_options(mqttFilter="plant/1", **options))
    publish(broker, "plant/1", range(3))
    engine = run.start()
    assert engine.drain() == [3], "the first batch comes at once"
    publish(broker, "plant/1", range(3, 7))
    assert engine.drain() == []
    publish(broker, "plant/1", range(7, 15))
    assert engine.drain() == [12]
    publish(broker, "plant/1", range(15, 17))
    assert engine.step(limit=ALL) == 2, "Trigger.Once does not wait"
    publish(broker, "plant/1", range(17, 19))
    assert engine.drain() == []
    assert run.start().drain() == [2], "nor does the first batch after a restart"
    publish(broker, "plant/1", range(19, 21))
    hasty = run.start(read_options(mqttFilter="plant/1", **options | {"maxtriggerdelay": "0"}))
    assert hasty.drain() == [2]
    publish(broker, "plant/1", range(21, 24))
    assert hasty.drain() == [3], "the delay is over"
    bounded = run.start()
    publish(broker, "plant/1", range(24, 25))
    bounded.reader.prepareForTriggerAvailableNow()
    assert bounded.drain() == [1]


def test_a_pattern_reads_topics_that_appear_later(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "line-1/a", range(5))
    publish(broker, "other/a", range(50, 55))
    engine = Run(read_options(subscribepattern="line-.*", **EARLIEST)).start()
    assert engine.drain() == [5]
    publish(broker, "line-2/b", range(5, 8))
    assert engine.drain() == [3]
    assert bodies(engine) == numbers(range(8))


def test_an_absent_broker_is_waited_for(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    waiting = {"brokerwaitms": "1h", "fetchretries": "0", **EARLIEST}
    engine = Run(read_options(mqttFilter="plant/+", **waiting)).start()
    assert engine.drain() == [5]
    publish(broker, "plant/1", range(5, 9))
    broker.faults = [lambda command: None] * 2
    assert [engine.step(), engine.step()] == [0, 0]
    assert engine.drain() == [4]
    publish(broker, "plant/1", range(9, 12))
    engine.reader.latestOffset({"v": 1, "q": {}}, ALL)
    broker.faults = [broker.answer, lambda command: None, broker.answer, lambda command: None]
    assert engine.drain() == [3], "tasks wait as well"
    assert bodies(engine) == numbers(range(12))


def test_a_broker_that_stays_absent_ends_the_query(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    engine = Run(read_options(mqttFilter="plant/+", fetchretries="0", **EARLIEST)).start()
    engine.drain()
    broker.faults = [lambda command: None] * 9
    with pytest.raises(BrokerUnreachable, match="for longer than the option 'brokerWaitMs' = 0"):
        engine.step()


def test_an_unknown_group_is_absent_and_not_lost(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    run = Run(read_options(mqttFilter="plant/+", **EARLIEST))
    run.start().drain()
    (last,) = run.offsets.values()
    run.offsets[0] = last.replace('"broker-t": {', '"broker-u": {"0": 3}, "broker-t": {')
    with pytest.raises(BrokerUnreachable, match="no name server knows a master of broker-u"):
        run.start().step()
    allowed = run.start(read_options(mqttFilter="plant/+", failondataloss="false", **EARLIEST))
    publish(broker, "plant/1", range(5, 7))
    assert allowed.drain() == [2]


def test_a_replay_waits_for_its_broker(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    run = Run(read_options(mqttFilter="plant/+", brokerwaitms="1h", fetchretries="0", **EARLIEST))
    assert run.start().step(fail=True) == -1
    again = RocketMQStreamReader(SCHEMA, read_options(mqttFilter="plant/+", brokerwaitms="1h", fetchretries="0"))
    broker.faults = [lambda command: None] * 3
    assert sum(len(part.ranges) for part in again.partitions({}, json.loads(run.offsets[0]))) > 0


def test_a_missing_topic_is_refused_at_once(broker: ToyBroker, read_options: Options) -> None:
    publish(broker, "plant/1", range(5))
    with pytest.raises(OptionError, match="option 'topic': no broker has 'plants'"):
        Run(read_options(topic="plants")).start().step()
    with pytest.raises(OptionError, match="option 'assign' names the queue plant/9"):
        Run(read_options(assign='{"plant": [0, 9]}')).start().step()
    engine = Run(read_options(assign='{"plant": [0]}', **EARLIEST)).start()
    engine.drain()
    assert len(engine.rows) == broker.queue("plant", 0).max


def test_tags_are_judged_by_the_broker(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("t", [b"0000"], mqtt=False)
    publish(broker, "t/1", range(1, 4))
    engine = Run(read_options(topic="t", subexpression="t", **EARLIEST)).start()
    engine.drain()
    assert bodies(engine) == numbers(range(1))
    assert broker.requests.count(RequestCode.RANGE_PULL) == 0


def test_a_replay_delays_rows_until_they_are_due(broker: ToyBroker, read_options: Options) -> None:
    """The toy broker reports the second offset of each queue as due; the limit of rows does not widen that."""
    publish(broker, "plant/1", range(20))
    options = read_options(topic="plant", replayspeed="1.5", maxoffsetspertrigger="10", **EARLIEST)
    run = Run(options)
    engine = run.start()
    assert engine.step() == 0, "the first batch is empty"
    assert engine.drain() == [1]
    assert Run(read_options(topic="plant", **EARLIEST)).start().drain() == [20]
    assert run.start(read_options(topic="plant", **EARLIEST)).drain() == [19], "the same checkpoint without it"


@pytest.mark.parametrize(("others", "expected"), [(False, [200] * 5 + [600] * 2), (True, [200] * 7)])
def test_an_idle_query_polls_less_often(
    broker: ToyBroker,
    read_options: Options,
    monkeypatch: pytest.MonkeyPatch,
    others: bool,
    expected: list[int],
) -> None:
    """Not when another source keeps Spark busy, which would wait for this one; new messages end it."""
    monkeypatch.setattr(stream_reader, "ALONE_S", -1.0 if others else 3_600.0)
    asked: list[int] = []

    def wait(watch: BoundsWatch, wait_ms: int) -> Any:
        asked.append(wait_ms)
        return watch.read()

    monkeypatch.setattr(BoundsWatch, "wait", wait)
    publish(broker, "plant/1", range(3))
    reader = RocketMQStreamReader(SCHEMA, read_options(mqttFilter="plant/+", longpollms="200"))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    asked.clear()
    for _ in range(7):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert asked == expected
    publish(broker, "plant/1", range(3, 5))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end != start
    asked.clear()
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert asked == [200]
    hasty = RocketMQStreamReader(SCHEMA, read_options(mqttFilter="plant/+", longpollms="50", pulltimeoutms="400"))
    asked.clear()
    for _ in range(8):
        hasty.latestOffset(end, ReadAllAvailable())
    assert set(asked) == ({50} if others else {50, 200})


def test_every_queue_of_the_broker(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    broker.publish("t", [b"x"], mqtt=False)
    options = read_options(topic="t")
    watch = BoundsWatch(options, select(options))
    positions = {QueueKey("t", NAME, 0): 1, QueueKey("t", NAME, 1): 2, QueueKey("t", "elsewhere", 0): 3}
    commit_progress("g", positions, watch)
    assert broker.offsets == {("g", "t", 0): 1, ("g", "t", 1): 2}
    broker.close()
    with pytest.raises(BrokerUnreachable):
        commit_progress("g", positions, watch)


KEY = QueueKey("t", NAME, 0)


class Now:
    """A clock for a replay."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def __call__(self) -> int:
        return self.at_ms


@pytest.fixture
def options(read_options: Options) -> ReadOptions:
    return read_options(topic="t")


def watched(options: ReadOptions) -> tuple[BoundsWatch, dict[QueueKey, object]]:
    watch = BoundsWatch(options, select(options))
    return watch, watch.read()


def test_the_clock_runs_from_the_oldest_unread_message(
    broker: ToyBroker, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy broker stores one message a millisecond; it reports the second offset for any time."""
    broker.publish("t", [b"x"] * 50, mqtt=False)
    watch, bounds = watched(options)
    asked: list[int] = []
    real = watch.read
    monkeypatch.setattr(watch, "read", lambda *, at_ms: asked.append(at_ms) or real(at_ms=at_ms))
    now = Now(10_000)
    replay = Replay(2.5, now)
    assert replay.cap({KEY: 20}, bounds, watch) == {KEY: 20}, "the first batch is empty"
    assert asked == []
    assert replay.cap({KEY: 20}, bounds, watch) == {KEY: 1, QueueKey("t", NAME, 1): 0}
    now.at_ms += 10
    replay.cap({KEY: 30}, bounds, watch)
    assert asked == [20, 45], "it began at message 20 and runs 2.5 times as fast"
    assert not replay.is_live
    now.at_ms += 20_000
    assert replay.cap({KEY: 30}, bounds, watch) is None
    assert replay.is_live
    now.at_ms -= 20_000
    assert replay.cap({KEY: 0}, bounds, watch) is None, "live from now on"


def test_with_nothing_to_read_it_is_live_at_once(broker: ToyBroker, options: ReadOptions) -> None:
    broker.publish("t", [b"x"] * 5, mqtt=False)
    watch, bounds = watched(options)
    replay = Replay(1.0)
    replay.cap({KEY: 5}, bounds, watch)
    assert replay.cap({KEY: 5}, bounds, watch) is None
    assert replay.is_live


def test_a_broker_that_does_not_answer_keeps_the_stream_where_it_is(broker: ToyBroker, options: ReadOptions) -> None:
    broker.publish("t", [b"x"] * 5, mqtt=False)
    watch, bounds = watched(options)
    broker.close()
    replay = Replay(1.0)
    replay.cap({KEY: 2}, bounds, watch)
    assert replay.cap({KEY: 2}, bounds, watch) == {KEY: 2}
    assert not replay.is_live


def anew(broker: ToyBroker, topic: str, count: int) -> None:
    """Delete a topic and make it again, with other messages."""
    broker.delete(topic)
    broker.publish(topic, [b"new%d" % n for n in range(count)], mqtt=False)


@pytest.mark.parametrize("planned", [False, True])
def test_a_topic_that_was_made_again_is_refused_by_name_or_begun_anew(
    broker: ToyBroker, read_options: Options, planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With more messages than were read before, so that every offset still exists; also while a batch is planned."""
    broker.log = "log-1"
    run = Run(read_options(topic="t", **EARLIEST))
    broker.publish("t", [b"old"] * 5, mqtt=False)
    engine = run.start()
    engine.drain()
    if planned:
        broker.publish("t", [b"old"] * 2, mqtt=False)
        engine.step(fail=True)
    anew(broker, "t", 8)
    with pytest.raises(DataLost, match=rf"topic 't' was deleted at {NAME} and made again, and the offsets"):
        run.start().step()
    going_on = run.start(read_options(topic="t", failOnDataLoss="false", **EARLIEST))
    going_on.drain()
    assert bodies(going_on) == [b"new%d" % n for n in range(8)]
    assert caplog.text.count("made again") == 1
    report = going_on.reader.reportLatestOffset()
    assert report is not None
    assert from_json(report).anew == 2
    again = run.start()
    assert (again.drain(), again.rows) == ([], []), "the checkpoint is of the new life now"


def test_another_log_is_refused_by_name(broker: ToyBroker, read_options: Options) -> None:
    """The data directory was replaced: ids and offsets are as they were."""
    run = Run(read_options(mqttFilter="plant/1", **EARLIEST))
    broker.log = "log-1"
    publish(broker, "plant/1", range(5))
    run.start().drain()
    broker.log = "log-2"
    publish(broker, "plant/1", range(5, 9))
    with pytest.raises(DataLost, match=f"the log of {NAME} is another one than before"):
        run.start().step()
    going_on = run.start(read_options(mqttFilter="plant/1", failOnDataLoss="false", **EARLIEST))
    going_on.drain()
    assert bodies(going_on) == numbers(range(9))


def test_a_checkpoint_of_an_earlier_release_gets_its_identity_with_the_next_batch(
    broker: ToyBroker, read_options: Options
) -> None:
    """And a broker of an earlier release is read as before, by the ids of its queues."""
    run = Run(read_options(topic="t", **EARLIEST))
    broker.publish("t", [b"a"] * 3, mqtt=False)
    run.start().drain()
    assert from_json(json.loads(run.offsets[0])).lives.logs == {}
    plain = json.loads(run.offsets[0])
    del plain["ids"], plain["logs"]
    run.offsets[0] = json.dumps(plain)
    broker.log = "log-1"
    broker.publish("t", [b"b"], mqtt=False)
    engine = run.start()
    engine.drain()
    assert bodies(engine) == [b"b"]
    assert from_json(json.loads(run.offsets[1])).lives.logs == {NAME: "log-1"}


def test_a_wider_filter_under_a_checkpoint_is_refused_or_goes_on_by_rule(
    broker: ToyBroker, read_options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    """Older rows of what it covers now are behind the positions; also where a batch was planned before."""
    run = Run(read_options(mqttFilter="plant/+/temp", **EARLIEST))
    publish(broker, "plant/1/temp", range(3))
    publish(broker, "plant/1/other", range(3, 6))
    run.start().drain()
    narrow = dict(run.offsets)
    publish(broker, "plant/1/temp", range(6, 8))
    run.start().step(fail=True)
    wider = read_options(mqttFilter="plant/#", **EARLIEST)
    for offsets in (narrow, run.offsets):
        run.offsets = dict(offsets)
        with pytest.raises(DataLost, match=r"older rows of 'plant/#' .* are not read with this checkpoint"):
            run.start(wider).step()
    going_on = run.start(read_options(mqttFilter="plant/#", failOnDataLoss="false", **EARLIEST))
    publish(broker, "plant/1/other", range(8, 9))
    going_on.drain()
    assert caplog.text.count("are not read with this checkpoint") == 1
    assert b"0008" in bodies(going_on)
    assert b"0003" not in bodies(going_on)
    run.start(wider).drain()
