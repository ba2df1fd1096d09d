"""An outage is borne for a while, and fails the query with both sentences after it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_connector.brokers.outage import Outage, patiently
from spark_connector.errors import BrokerUnreachable
from spark_connector.options.read_write import parse_read, parse_write


def test_an_outage_ends_or_fails(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    outage = Outage(parse_read({"topic": "t", "brokerWait": "5s", "fetchRetryIntervalMs": "1"}))
    for now[0] in (0.0, 4.9):
        outage.bear(BrokerUnreachable("gone"))
    outage.end()
    outage.end()
    assert [record.getMessage() for record in caplog.records] == [
        "waiting up to 5000 ms for a broker: gone",
        "the broker is back after 4900 ms",
    ]
    now[0] = 100.0
    outage.bear(BrokerUnreachable("gone"))
    now[0] = 105.0
    with pytest.raises(BrokerUnreachable, match="gone, for longer than the option 'brokerWaitMs' = 5000"):
        outage.bear(BrokerUnreachable("gone"))


def test_what_may_be_repeated_is_repeated_until_it_is_answered() -> None:
    answers: list[Any] = [BrokerUnreachable("gone"), BrokerUnreachable("gone"), "here"]

    def work() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    options = parse_write({"fetchRetryIntervalMs": "1"})
    assert patiently(work, options) == "here"
    answers[:] = [BrokerUnreachable("gone")]
    with pytest.raises(BrokerUnreachable, match="gone"):
        patiently(work, parse_write({"brokerWaitMs": "0"}))
