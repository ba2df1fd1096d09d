"""Rows sent to a broker, over a failing connection too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.brokers import GroupMaster
from spark_connector.errors import BrokerRefused, BrokerUnreachable, OptionError
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing import sink
from spark_connector.writing.row_encoder import EncodedRows
from spark_connector.writing.sink import AttemptName, RowSender
from tests.support.spark_rows import send_rows
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., WriteOptions]
ATTEMPT = AttemptName("s", 3, 0, 99)


def encoded(count: int) -> EncodedRows:
    """Rows for the MQTT topic a/b."""
    raw = [image.encode_mqtt_image(b"a/b", b"%d" % n, 1, 0, b"") for n in range(count)]
    return EncodedRows(
        memoryview(b"".join(raw)), np.concatenate([[0], np.cumsum([len(one) for one in raw])]).astype(np.int64)
    )


def visible(broker: ToyBroker) -> int:
    """The visible messages."""
    return len(broker.queue("%LMQ%a%2Fb", 0).records)


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows per frame, so that a small test has many."""
    monkeypatch.setattr(sink, "FRAME_BYTES_MAX", 300)


@pytest.mark.parametrize("broken", range(1, 6))
def test_a_lost_connection_stages_nothing_twice(broker: ToyBroker, write_options: Options, broken: int) -> None:
    def lose_the_answer(command):  # type: ignore[no-untyped-def]
        broker.answer(command)

    broker.faults = [broker.answer] * broken + [lose_the_answer]
    assert send_rows(broker.address, [encoded(20)], ATTEMPT, write_options()) == 20
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"%d" % n for n in range(20)]


def test_a_broker_absent_for_longer_than_the_retries_is_waited_for(broker: ToyBroker, write_options: Options) -> None:
    """For the time of the option, not for the number of retries."""
    busy = [lambda command: command.reply(2, "busy")] * 20
    broker.faults = list(busy)
    with pytest.raises(BrokerUnreachable, match="longer than the option 'brokerWaitMs' = 0"):
        send_rows(broker.address, [encoded(3)], ATTEMPT, write_options(fetchretries="1"))
    broker.faults = list(busy)
    patient = write_options(fetchretries="1", brokerwaitms="60000")
    assert send_rows(broker.address, [encoded(3)], ATTEMPT, patient) == 3
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"0", b"1", b"2"]


def test_busy_is_retried_and_a_refusal_is_final(broker: ToyBroker, write_options: Options) -> None:
    broker.faults = [lambda command: command.reply(2, "busy")]
    assert send_rows(broker.address, [encoded(3)], ATTEMPT, write_options()) == 3
    broker.faults = [lambda command: command.reply(16, "not allowed")]
    with pytest.raises(BrokerRefused, match="not allowed"):
        send_rows(broker.address, [encoded(3)], ATTEMPT, write_options())
    broker.close()
    with pytest.raises(BrokerUnreachable):
        send_rows(broker.address, [encoded(3)], ATTEMPT, write_options(fetchretries="1"))


@pytest.mark.parametrize("failure", [OptionError("a wrong topic"), ConnectionResetError("the rows' own pipe")])
@pytest.mark.parametrize("good", [0, 20])
def test_rows_that_cannot_be_stored_fail_the_task(
    broker: ToyBroker, write_options: Options, good: int, failure: Exception
) -> None:
    def rows() -> Iterator[EncodedRows]:
        yield encoded(good)
        raise failure

    with pytest.raises(type(failure), match=str(failure)):
        send_rows(broker.address, rows(), ATTEMPT, write_options())


def test_rows_follow_a_master_that_moved(broker: ToyBroker, write_options: Options) -> None:
    """What was not answered goes to where the group is now."""
    gone = ToyBroker()
    gone.close()
    options = write_options(fetchretries="0", brokerwaitms="60000")
    with RowSender(GroupMaster("", gone.address, options), ATTEMPT, options) as sender:
        sender.add(encoded(9))
        assert sender.finish() == 9
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"%d" % n for n in range(9)]


def test_rows_without_an_attempt_are_visible_at_once(broker: ToyBroker, write_options: Options) -> None:
    """At least once, and nothing to commit."""
    assert send_rows(broker.address, [encoded(7), encoded(0)], None, write_options()) == 7
    assert visible(broker) == 7


def test_rows_follow_the_hint_of_a_former_master(broker: ToyBroker, write_options: Options) -> None:
    """No name server has to be asked."""
    former = ToyBroker()
    named = {"masterAddress": "{}:{}".format(*broker.address), "masterEpoch": "2"}

    def moved(command: Command) -> Command:
        reply = command.reply(ResponseCode.NOT_MASTER, "not the master")
        reply.fields = dict(named)
        return reply

    former.faults = [moved] * 3
    asked_before = broker.requests.count(RequestCode.GET_BROKER_CLUSTER_INFO)
    options = write_options()
    with RowSender(GroupMaster("", former.address, options), ATTEMPT, options) as sender:
        sender.add(encoded(9))
        assert sender.finish() == 9
    former.close()
    assert [entry.body for entry in broker.staged["s", 3, 0, 99]] == [b"%d" % n for n in range(9)]
    assert broker.requests.count(RequestCode.GET_BROKER_CLUSTER_INFO) == asked_before
