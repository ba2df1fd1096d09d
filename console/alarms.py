"""What needs attention: rules over the figures, each with the time since when it holds.

Critical: messages are refused, or may be lost. Warning: something is slower, fuller or less redundant than it should
be. Invariant: an alarm has one id as long as it lasts, and its text says what to do or where to look. Pure; times are
passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CRITICAL, WARNING = "critical", "warning"
DISK_FREE_SHARE_MIN = 0.1
LAG_S_MAX = 300
CONFIRM_LAG_BYTES_MAX = 64 * 1_048_576
REFUSALS_RATE_MAX = 1.0
Found = tuple[str, str, str, str]
"""id, severity, text, target"""


def rules(brokers: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str], overview: Mapping[str, Any],
          worst_group: str) -> Iterator[Found]:  # fmt: skip
    """Yield what holds now; `brokers` are the answers to METRICS by group."""
    for name, reason in missing.items():
        yield f"missing:{name}", CRITICAL, f"{name} does not answer: {reason}", name
    for name, found in brokers.items():
        yield from _of_broker(name, found)
    if overview["lag_max_s"] > LAG_S_MAX:
        text = f"group {worst_group} is {overview['lag_max_s']:.0f} s behind; is one of its consumers running?"
        yield f"lag:{worst_group}", WARNING, text, worst_group
    if overview["refusals_rate"] > REFUSALS_RATE_MAX:
        text = f"{overview['refusals_rate']:.0f} requests a second are refused; see refusals by reason"
        yield "refusals", WARNING, text, ""


def _of_broker(name: str, found: Mapping[str, Any]) -> Iterator[Found]:
    metrics, status = found["metrics"], found["status"]
    store = status["store"]
    if store.get("failed"):
        yield (
            f"log_failed:{name}",
            CRITICAL,
            f"{name} cannot write its log; see its log lines, then start it again",
            name,
        )
    if store.get("disk_full"):
        yield f"disk_full:{name}", CRITICAL, f"the disk of {name} is full: messages are refused; free space", name
    total, free = found.get("disk_total_bytes", 0), store.get("disk_free_bytes", 0)
    if total and free < DISK_FREE_SHARE_MIN * total and not store.get("disk_full"):
        yield f"disk_low:{name}", WARNING, f"{free * 100 // total} % of the disk of {name} are free", name
    if status.get("quarantined"):
        text = f"the log of {name} is damaged in places; run lightmq store verify, see docs/howto/damaged-store.md"
        yield f"damaged:{name}", WARNING, text, name
    if metrics.get("rocketmq_confirm_lag_bytes", 0) > CONFIRM_LAG_BYTES_MAX:
        yield f"confirm_lag:{name}", WARNING, f"acknowledgements of {name} wait for its disk or replicas", name
    if metrics.get("rocketmq_controller_groups_without_master", 0) > 0:
        yield "no_master", CRITICAL, "a broker group has no master; see the cluster page", ""


class Alarms:
    """The alarms that hold, with their beginning."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self.items: list[dict[str, Any]] = []
        """The worst first, then the oldest."""

    def judge(self, found: Iterator[Found], now_ms: int) -> bool:
        """Take over what holds now; true when that is something else than before."""
        before = {item["id"] for item in self.items}
        held = {one[0]: one for one in found}
        self._since = {name: self._since.get(name, now_ms) for name in held}
        self.items = [
            {"id": name, "severity": severity, "text": text, "since_ms": self._since[name], "target": target}
            for name, severity, text, target in held.values()
        ]
        self.items.sort(key=lambda item: (item["severity"] != CRITICAL, item["since_ms"], item["id"]))
        return before != held.keys()
