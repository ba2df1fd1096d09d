"""`/overview`, `/refusals`, `/alarms`: the figures of the whole installation, what is refused, what needs attention."""

from __future__ import annotations

from typing import Any

import msgspec

from console.api.operations import PAGE, ApiCall, Operation
from console.api.pages import Page, slice_page
from console.figures import OverviewFigures
from runtime.reasons import refusal

TAG = "Overview"


class Disk(msgspec.Struct):
    """Space of the data directory, in bytes; of several brokers the least."""

    free: int
    total: int
    log: int
    """Bytes of the logs of all brokers."""


class Alarm(msgspec.Struct):
    """Something that needs attention."""

    id: str
    severity: str
    text: str
    since_ms: int
    target: str = ""


class PastAlarm(msgspec.Struct):
    """Something that needed attention."""

    id: str
    severity: str
    text: str
    since_ms: int
    target: str = ""
    ended_ms: int = 0


class Overview(msgspec.Struct):
    """The figures of the whole installation; rates are per second, null until counters were seen twice."""

    version: str
    mode: str
    node: str
    time_ms: int
    uptime_s: int
    messages_in_rate: float | None
    messages_out_rate: float | None
    bytes_in_rate: float | None
    clients: int
    sessions: int
    topics: int
    queues: int
    retained: int
    delayed: int
    groups: int
    lag_max: int
    lag_max_s: float
    disk: Disk
    flush_behind_bytes: int
    flush_mode: str
    confirm_lag_bytes: int
    refusals_rate: float
    alarms: list[Alarm]


class RefusalRow(msgspec.Struct):
    """A counter of what was refused or dropped."""

    counter: str
    reason: str
    """The values of its labels."""
    what: str
    """What it counts, in words."""
    text: str
    """The reason in words."""
    total: float
    rate: float


def overview_of(figures: OverviewFigures) -> dict[str, Any]:
    """Return the figures of the last sample, with the alarms."""
    return {**figures.sample.overview, "alarms": figures.alarms}


async def get_overview(call: ApiCall) -> Any:
    """Return figures that are no older than a second or two."""
    await call.figures.fresh()
    return overview_of(call.figures)


async def list_refusals(call: ApiCall) -> Any:
    """Return what was refused, the most frequent first."""
    sample = await call.figures.fresh()
    rows: list[dict[str, Any]] = []
    for name, (total, rate) in sample.refusals.items():
        counter, _, labels = name.partition("{")
        what, text = refusal(name)
        rows.append({
            "counter": counter, "reason": labels.rstrip("}"), "what": what, "text": text, "total": total,
            "rate": round(rate, 3),
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["rate"], -row["total"], row["counter"], row["reason"]))
    return slice_page(call, rows, sample.missing)


async def list_alarms(call: ApiCall) -> Any:
    """Return what needs attention, the worst first."""
    sample = await call.figures.fresh()
    return slice_page(call, call.figures.alarms, sample.missing)


async def list_past_alarms(call: ApiCall) -> Any:
    """Return what needed attention and no longer does, the latest end first."""
    return slice_page(call, call.figures.past_alarms)


OPERATIONS = (
    Operation(
        name="get_overview", method="GET", path="/overview", summary="Show the figures of the installation", tag=TAG,
        call=get_overview, answer=Overview,
    ),
    Operation(
        name="list_refusals", method="GET", path="/refusals", summary="List what was refused, by reason", tag=TAG,
        call=list_refusals, query=PAGE, answer=Page[RefusalRow],
    ),
    Operation(
        name="list_alarms", method="GET", path="/alarms", summary="List what needs attention", tag=TAG,
        call=list_alarms, query=PAGE, answer=Page[Alarm],
    ),
    Operation(
        name="list_past_alarms", method="GET", path="/alarms/past", tag=TAG,
        summary="List the last 200 alarms that have ended since the console was started",
        call=list_past_alarms, query=PAGE, answer=Page[PastAlarm],
    ),
)  # fmt: skip
