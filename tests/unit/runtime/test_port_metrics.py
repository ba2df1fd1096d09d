"""Counts of a remoting port are on the page; unknown requests are counted by code, and logged now and then."""

from __future__ import annotations

from typing import Any

from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.clock import ManualClock
from runtime.metrics import Registry
from runtime.port_metrics import LOG_INTERVAL_S, READ, UnsupportedRequests, declare_port_metrics


class Port:
    tls = (0, 0, 0, 0)

    def tls_counts(self) -> tuple[int, int, int, int]:
        return self.tls

    def read_counts(self) -> dict[str, int]:
        return {key: at for at, key in enumerate(READ, 1)}


def test_every_count_is_shown_as_it_is_now() -> None:
    """Read anew for each page."""
    registry, port = Registry(), Port()
    declare_port_metrics(registry, port)
    port.tls = (5, 2, 1, 3)
    values = registry.values()
    assert [values[name] for name in TLS_NAMES] == [5, 2, 1, 3]
    page = registry.page().decode()
    for at, (name, _) in enumerate(READ.values(), 1):
        assert f"\nrocketmq_remoting_read_{name} {at}" in page


TLS_NAMES = (
    "rocketmq_remoting_tls_handshakes_total",
    "rocketmq_remoting_tls_failures_total",
    "rocketmq_remoting_certificate_reloads_total",
    "rocketmq_remoting_certificate_failures_total",
)


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, _event: str, **fields: Any) -> None:
        self.lines.append(fields)


def test_known_numbers_have_a_label_and_all_others_share_one() -> None:
    registry, log = Registry(), Log()
    requests = UnsupportedRequests(registry, ManualClock(), log)
    for code in [RequestCode.POP_MESSAGE, RequestCode.POP_MESSAGE, *range(1_000_000, 1_003_000)]:
        requests.record("10.0.0.1:5", Command(code))
    page = registry.page().decode()
    assert 'rocketmq_unsupported_requests_total{code="200050"} 2.0' in page
    assert 'rocketmq_unsupported_requests_total{code="other"} 3000.0' in page
    assert page.count("rocketmq_unsupported_requests_total{") == 2
    assert len(log.lines) == 2


def test_a_line_names_the_client_and_comes_again_after_a_while() -> None:
    clock, log = ManualClock(), Log()
    requests = UnsupportedRequests(Registry(), clock, log)
    for _ in range(5):
        requests.record("10.0.0.1:5", Command(RequestCode.RECALL_MESSAGE, language="JAVA", version=485))
    clock.advance_ms(LOG_INTERVAL_S * 1_000)
    requests.record("10.0.0.2:5", Command(RequestCode.RECALL_MESSAGE, language="GO", version=317))
    first, second = log.lines
    assert first == {
        "code": 370, "name": "RECALL_MESSAGE", "client": "10.0.0.1:5", "language": "JAVA", "version": 485,
        "since_last": 1,
    }  # fmt: skip
    assert second["client"] == "10.0.0.2:5"
    assert second["since_last"] == 5
