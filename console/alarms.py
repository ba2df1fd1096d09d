"""What needs attention: rules over the figures, each with the time since when it holds.

Critical: messages are refused, or may be lost. Warning: something is slower, fuller or less redundant than it should
be. What ended is kept in memory, the last `PAST_MAX`. Invariant: an alarm has one id as long as it lasts, and its text
says what to do or where to look; it begins when its cause began where that can be told, else when it was first seen.
Pure; times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from runtime.reasons import refusal

CRITICAL, WARNING = "critical", "warning"
DISK_FREE_SHARE_MIN = 0.1
LAG_S_MAX = 300
CONFIRM_LAG_BYTES_MAX = 64 * 1_048_576
REFUSALS_RATE_MAX = 1.0
PAST_MAX = 200
Found = tuple[str, str, str, str, float]
"""id, severity, text, target, for how many seconds it is known to hold already"""


def rules(brokers: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str], overview: Mapping[str, Any],
          worst_group: str, refused: Mapping[str, tuple[float, float]]) -> Iterator[Found]:  # fmt: skip
    """Yield what holds now; `brokers` are the answers to METRICS by group, `refused` what `rates.refusals` found."""
    for name, reason in missing.items():
        yield f"missing:{name}", CRITICAL, f"{name} does not answer: {reason}", name, 0.0
    for name, found in brokers.items():
        yield from _of_broker(name, found)
    if overview["lag_max_s"] > LAG_S_MAX:
        text = f"group {worst_group} is {overview['lag_max_s']:.0f} s behind; is one of its consumers running?"
        yield f"lag:{worst_group}", WARNING, text, worst_group, overview["lag_max_s"] - LAG_S_MAX
    if overview["refusals_rate"] > REFUSALS_RATE_MAX:
        what, reason = refusal(max(refused, key=lambda name: refused[name][1], default=""))
        most = ", ".join(filter(None, (what, reason)))
        text = f"{overview['refusals_rate']:.0f} refusals a second, most of them: {most}; see refusals by reason"
        yield "refusals", WARNING, text, "", 0.0


def _of_broker(name: str, found: Mapping[str, Any]) -> Iterator[Found]:
    metrics, status = found["metrics"], found["status"]
    store = status["store"]
    if store.get("failed"):
        yield (
            f"log_failed:{name}",
            CRITICAL,
            f"{name} cannot write its log; see its log lines, then start it again",
            name,
            0.0,
        )
    if store.get("disk_full"):
        yield f"disk_full:{name}", CRITICAL, f"the disk of {name} is full: messages are refused; free space", name, 0.0
    total, free = found.get("disk_total_bytes", 0), store.get("disk_free_bytes", 0)
    if total and free < DISK_FREE_SHARE_MIN * total and not store.get("disk_full"):
        yield f"disk_low:{name}", WARNING, f"{free * 100 // total} % of the disk of {name} are free", name, 0.0
    if status.get("quarantined"):
        text = f"the log of {name} is damaged in places; run lightmq store verify, see docs/howto/damaged-store.md"
        yield f"damaged:{name}", WARNING, text, name, 0.0
    if metrics.get("rocketmq_confirm_lag_bytes", 0) > CONFIRM_LAG_BYTES_MAX:
        yield f"confirm_lag:{name}", WARNING, f"acknowledgements of {name} wait for its disk or replicas", name, 0.0
    if metrics.get("rocketmq_controller_groups_without_master", 0) > 0:
        yield "no_master", CRITICAL, "a broker group has no master; see the cluster page", "", 0.0


class Alarms:
    """The alarms that hold, with their beginning, and those that have ended, with both."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self.items: list[dict[str, Any]] = []
        """The worst first, then the oldest."""
        self._past: deque[dict[str, Any]] = deque(maxlen=PAST_MAX)

    @property
    def past(self) -> list[dict[str, Any]]:
        """Those that have ended since the start, the latest end first, each with `ended_ms`."""
        return list(self._past)

    def judge(self, found: Iterator[Found], now_ms: int) -> bool:
        """Take over what holds now; true when that is something else than before."""
        before = {item["id"] for item in self.items}
        held = {one[0]: one for one in found}
        self._past.extendleft({**item, "ended_ms": now_ms} for item in self.items if item["id"] not in held)
        self._since = {name: self._since.get(name, max(0, now_ms - int(one[4] * 1_000))) for name, one in held.items()}
        self.items = [
            {"id": name, "severity": severity, "text": text, "since_ms": self._since[name], "target": target}
            for name, severity, text, target, _held_s in held.values()
        ]
        self.items.sort(key=lambda item: (item["severity"] != CRITICAL, item["since_ms"], item["id"]))
        return before != held.keys()
