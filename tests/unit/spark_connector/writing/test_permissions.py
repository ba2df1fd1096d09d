"""Rights of a write, asked beforehand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.errors import BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.writer import check_allowed
from tests.unit.spark_connector.toy_broker import ToyBroker


def test_what_may_not_be_written_is_said_beforehand(
    broker: ToyBroker, write_options: Callable[..., WriteOptions]
) -> None:
    """Topic of an option and sink; no question without either; old brokers say nothing; nobody there is said too."""

    def judged(command: Command) -> Command:
        assert command.code == RequestCode.CHECK_PUBLISH
        code = ResponseCode.NO_PERMISSION if command.fields.get("topic") == "a/b" else 0
        return command.reply(code, f"no {sorted(command.fields)}")

    broker.faults = [broker.answer, judged]  # the first question is which brokers there are
    with pytest.raises(BrokerRefused, match=r"no .'sink', 'topic'"):
        check_allowed("etl", write_options(mqttTopic="a/b"))
    broker.faults = [broker.answer, judged]
    check_allowed("etl", write_options(mqttTopic="c/d"))
    asked = broker.requests.count(RequestCode.CHECK_PUBLISH)
    check_allowed(None, write_options(delivery="at-least-once"))
    assert broker.requests.count(RequestCode.CHECK_PUBLISH) == asked == 2
    check_allowed("etl", write_options(mqttTopic="a/b"))  # answered by a broker that does not know the question
    broker.close()
    with pytest.raises(BrokerUnreachable):
        check_allowed(None, write_options(fetchretries="0"))
