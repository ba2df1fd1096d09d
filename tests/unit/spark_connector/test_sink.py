"""Staging, committing and repeating over a broken line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from remoting.protocol import append_body
from remoting.protocol.sink_body import StageHandle
from spark_connector import sink
from spark_connector.entries import EncodedRows
from spark_connector.errors import BrokerRefused, BrokerUnreachable, OptionError
from spark_connector.options import WriteOptions
from spark_connector.sink import AttemptName
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., WriteOptions]
ATTEMPT = AttemptName("s", 3, 0, 99)


def encoded(count: int) -> EncodedRows:
    """Rows for the MQTT topic a/b."""
    raw = [append_body.encode_mqtt_entry(b"a/b", b"%d" % n, 1, 0, b"") for n in range(count)]
    return EncodedRows(
        memoryview(b"".join(raw)), np.concatenate([[0], np.cumsum([len(one) for one in raw])]).astype(np.int64)
    )


def visible(broker: ToyBroker) -> int:
    """Messages anybody can read."""
    return len(broker.queue("%LMQ%a%2Fb", 0).records)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows per frame, so that a small test has many."""
    monkeypatch.setattr(sink, "FRAME_BYTES_MAX", 300)


def test_nothing_shows_before_the_commit_and_a_repeat_changes_nothing(
    broker: ToyBroker, write_options: Options
) -> None:
    options = write_options()
    assert sink.last_batch(broker.address, "s", options) == -1
    assert sink.send_rows(broker.address, [encoded(10), encoded(0), encoded(5)], ATTEMPT, options) == 15
    assert visible(broker) == 0
    handles = [StageHandle(0, 99, 15)]
    assert sink.commit_batch(broker.address, "s", 3, handles, options) == 15
    assert sink.commit_batch(broker.address, "s", 3, handles, options) == 0
    assert visible(broker) == 15
    assert sink.last_batch(broker.address, "s", options) == 3


@pytest.mark.parametrize("broken", range(1, 6))
def test_a_lost_connection_stages_nothing_twice(broker: ToyBroker, write_options: Options, broken: int) -> None:
    def lose_the_answer(command):  # type: ignore[no-untyped-def]
        broker.answer(command)

    broker.faults = [broker.answer] * broken + [lose_the_answer]
    assert sink.send_rows(broker.address, [encoded(20)], ATTEMPT, write_options()) == 20
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"%d" % n for n in range(20)]


def test_a_broker_that_is_away_longer_than_the_retries_is_waited_for(broker: ToyBroker, write_options: Options) -> None:
    """As long as the option says, not as often."""
    busy = [lambda command: command.reply(2, "busy")] * 20
    broker.faults = list(busy)
    with pytest.raises(BrokerUnreachable, match="longer than the option 'brokerWaitMs' = 0"):
        sink.send_rows(broker.address, [encoded(3)], ATTEMPT, write_options(fetchretries="1"))
    broker.faults = list(busy)
    patient = write_options(fetchretries="1", brokerwaitms="60000")
    assert sink.send_rows(broker.address, [encoded(3)], ATTEMPT, patient) == 3
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"0", b"1", b"2"]


def test_busy_means_again_and_no_means_no(broker: ToyBroker, write_options: Options) -> None:
    broker.faults = [lambda command: command.reply(2, "busy")]
    assert sink.send_rows(broker.address, [encoded(3)], ATTEMPT, write_options()) == 3
    broker.faults = [lambda command: command.reply(16, "not allowed")]
    with pytest.raises(BrokerRefused, match="not allowed"):
        sink.send_rows(broker.address, [encoded(3)], ATTEMPT, write_options())
    broker.close()
    with pytest.raises(BrokerUnreachable):
        sink.send_rows(broker.address, [encoded(3)], ATTEMPT, write_options(fetchretries="1"))


@pytest.mark.parametrize("failure", [OptionError("a wrong topic"), ConnectionResetError("the rows' own pipe")])
@pytest.mark.parametrize("good", [0, 20])
def test_rows_that_cannot_be_had_fail_the_task(
    broker: ToyBroker, write_options: Options, good: int, failure: Exception
) -> None:
    def rows() -> Iterator[EncodedRows]:
        yield encoded(good)
        raise failure

    with pytest.raises(type(failure), match=str(failure)):
        sink.send_rows(broker.address, rows(), ATTEMPT, write_options())


def test_direct_and_abort(broker: ToyBroker, write_options: Options) -> None:
    options = write_options()
    assert sink.send_rows(broker.address, [encoded(7)], None, options) == 7
    assert visible(broker) == 7
    sink.send_rows(broker.address, [encoded(7)], ATTEMPT, options)
    sink.abort_batch(broker.address, "s", 3, options)
    assert broker.staged == {}
    assert sink.first_broker(options) == broker.address


def test_a_sink_stays_where_it_committed_before(
    broker: ToyBroker, write_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker group that joins with an earlier name gets new sinks, not this one."""
    options, other = write_options(), ToyBroker()
    monkeypatch.setattr(sink, "find_brokers", lambda _options: {"a": other.address, "b": broker.address})
    assert sink.sink_home("s", options) == sink.SinkHome(other.address, -1)
    broker.ledger["s"] = 4
    assert sink.sink_home("s", options) == sink.SinkHome(broker.address, 4)
    other.close()
    with pytest.raises(BrokerUnreachable):
        sink.sink_home("s", options)
