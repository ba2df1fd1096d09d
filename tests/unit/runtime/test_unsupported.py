"""Unknown requests are counted by code within bounds, and logged now and then with who sent them."""

from __future__ import annotations

from typing import Any

from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.clock import ManualClock
from runtime.metrics import Registry
from runtime.unsupported import LOG_INTERVAL_S, UnsupportedRequests


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, _event: str, **fields: Any) -> None:
        self.lines.append(fields)


def test_known_numbers_have_a_label_and_all_others_share_one() -> None:
    registry, log = Registry(), Log()
    requests = UnsupportedRequests(registry, ManualClock(), log)
    for code in [RequestCode.POP_MESSAGE, RequestCode.POP_MESSAGE, *range(1_000_000, 1_003_000)]:
        requests.heard("10.0.0.1:5", Command(code))
    page = registry.page().decode()
    assert 'rocketmq_unsupported_requests_total{code="200050"} 2.0' in page
    assert 'rocketmq_unsupported_requests_total{code="other"} 3000.0' in page
    assert page.count("rocketmq_unsupported_requests_total{") == 2
    assert len(log.lines) == 2


def test_a_line_names_the_client_and_comes_again_after_a_while() -> None:
    clock, log = ManualClock(), Log()
    requests = UnsupportedRequests(Registry(), clock, log)
    for _ in range(5):
        requests.heard("10.0.0.1:5", Command(RequestCode.RECALL_MESSAGE, language="JAVA", version=485))
    clock.advance_ms(LOG_INTERVAL_S * 1_000)
    requests.heard("10.0.0.2:5", Command(RequestCode.RECALL_MESSAGE, language="GO", version=317))
    first, second = log.lines
    assert first == {
        "code": 370, "name": "RECALL_MESSAGE", "client": "10.0.0.1:5", "language": "JAVA", "version": 485,
        "since_last": 1,
    }  # fmt: skip
    assert second["client"] == "10.0.0.2:5"
    assert second["since_last"] == 5
