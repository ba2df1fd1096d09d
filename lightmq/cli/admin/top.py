"""``lightmq top``: what an installation does now: rates, clients, lag, disk and refusals, drawn anew every interval.

On a terminal the picture replaces itself on the alternate screen, which is left as it was, also on Ctrl-C; elsewhere
every sample is a block of lines, and with `--json` an object. Rates are differences of the brokers' counters between
two samples. Invariant: a broker that does not answer is a line that says so, never a zero.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from console.rates import CounterRates, refusals
from lightmq.cli.admin.clients import PAGE, pages
from lightmq.cli.admin.groups import summed
from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.outcome import CommandMisused, columns, json_object, printable
from lightmq.cli.times import Seconds, amount, moment, span
from remoting import clock
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from runtime.reasons import refusal

if TYPE_CHECKING:
    from rich.console import RenderableType

HERE = ServerTarget()
HEADINGS = ("BROKER", "IN/S", "OUT/S", "BYTES IN/S", "CLIENTS", "SESSIONS", "TOPICS", "LOG", "DISK FREE")
GROUP_HEADINGS = ("GROUP", "LAG", "OLDEST")
REFUSAL_HEADINGS = ("REFUSED OR DROPPED", "PER SECOND", "TOTAL")
INTERVAL_S_MIN = 0.2
LAG_EVERY_S = 5.0
"""Lag is dearer to ask for than the other figures."""
LINES_MAX = 8
"""Groups and reasons shown, those with the largest figures."""


class Samples:
    """Figures of all brokers, sample by sample."""

    def __init__(self, found: list[Broker]) -> None:
        self._brokers = found
        self._rates = CounterRates()
        self._lag: list[dict[str, Any]] = []
        self._lag_due_s = 0.0

    def take(self) -> dict[str, Any]:
        """One sample, as `--json` prints it."""
        now_s = clock.monotonic_s()
        answers: dict[str, dict[str, Any]] = {}
        rows = []
        for broker in self._brokers:
            try:
                answer = json_object(broker.ask_again(RequestCode.METRICS, b"").body, "to METRICS")
            except LightMQError as error:
                rows.append({"broker": broker.name, "error": str(error)})
                continue
            answers[broker.name] = answer
            self._rates.take(broker.name, int(answer["started_ms"]), answer["metrics"], answer["status"], now_s)
            rows.append(self._row(broker.name, answer))
        if now_s >= self._lag_due_s:
            self._lag_due_s = now_s + LAG_EVERY_S
            self._lag = self._lags()
        refused: list[dict[str, Any]] = [
            {"reason": name, "total": total, "per_s": round(rate, 2)}
            for name, (total, rate) in refusals(self._rates, answers).items()
        ]
        refused.sort(key=lambda one: (-one["per_s"], -one["total"]))
        time_ms = max((int(answer["time_ms"]) for answer in answers.values()), default=0)
        return {"time_ms": time_ms, "brokers": rows, "groups": self._lag, "refused": refused}

    def _row(self, name: str, answer: dict[str, Any]) -> dict[str, Any]:
        status, store = answer["status"], answer["status"]["store"]
        figures = ("messages_in", "messages_out", "bytes_in")
        return {
            "broker": name,
            **{f"{figure}_per_s": round(self._rates.rate(name, figure), 1) for figure in figures},
            "clients": status.get("clients_connected", 0),
            "sessions": status.get("sessions", 0),
            "topics": status.get("topics", 0),
            "log_bytes": int(answer["metrics"].get("rocketmq_storage_bytes", 0)),
            "disk_free_bytes": store["disk_free_bytes"],
            "disk_total_bytes": answer["disk_total_bytes"],
        }

    def _lags(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for broker in self._brokers:
            try:
                rows += pages(broker, RequestCode.GROUP_LIST, "groups", {"order": "lag"}, PAGE)
            except LightMQError:
                continue  # its line says that it does not answer
        found = [{name: one[name] for name in ("group", "messages", "seconds")} for one in summed(rows)]
        return sorted(found, key=lambda one: (-one["messages"], one["group"]))


def top(
    *,
    interval: Annotated[Seconds, Parameter(name=["--interval", "-i"], help="Time between two samples.")] = 1.0,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="Exit after this many samples; 0: never.")] = 0,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per sample.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show what an installation does now, until Ctrl-C: rates, clients, lag of groups, disk, refusals by reason.

    Without a terminal every sample is printed below the last one.
    """
    if interval < INTERVAL_S_MIN or count < 0:
        raise CommandMisused(f"--interval is at least {INTERVAL_S_MIN:g} s, and --count not negative")
    with brokers(target) as found:
        samples = _paced(Samples(found), interval, count)
        if json_output:
            for sample in samples:
                _write(json.dumps(sample) + "\n")
        elif sys.stdout.isatty():
            _draw(samples)
        else:
            for sample in samples:
                _write(text(sample) + "\n")


def _paced(samples: Samples, interval_s: float, count: int) -> Iterator[dict[str, Any]]:
    """Samples with their rates: of the first one there are none, so it is only the base of the next."""
    samples.take()
    taken = 0
    while not count or taken < count:
        Event().wait(interval_s)
        yield samples.take()
        taken += 1


def _write(shown: str) -> None:
    sys.stdout.write(shown)
    sys.stdout.flush()


def _draw(samples: Iterator[dict[str, Any]]) -> None:
    """On the alternate screen; the last picture stays on the terminal when it is left."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    last = ""
    console = Console(highlight=False)

    def picture() -> RenderableType:
        return Text(f"{last}\nCtrl-C ends", no_wrap=True, overflow="crop")

    try:
        with Live(
            console=console, screen=console.is_terminal and not console.is_dumb_terminal, auto_refresh=False
        ) as live:
            for sample in samples:
                last = text(sample)
                live.update(picture(), refresh=True)
    finally:
        _write(f"{last}\n" if last else "")


def text(sample: dict[str, Any]) -> str:
    """A sample for people."""
    live = [row for row in sample["brokers"] if "error" not in row]
    parts = [f"{moment(sample['time_ms'])}\n", columns(HEADINGS, [_cells(row) for row in live]) if live else ""]
    parts += [
        f"{row['broker']} does not answer: {printable(row['error'])}\n" for row in sample["brokers"] if "error" in row
    ]
    behind = [(printable(one["group"]), f"{one['messages']:,}", span(one["seconds"])) for one in sample["groups"]]
    if behind:
        parts.append("\n" + columns(GROUP_HEADINGS, behind[:LINES_MAX]) + _more(behind, "groups"))
    refused = [(_in_words(one["reason"]), f"{one['per_s']:,.1f}", f"{one['total']:,.0f}") for one in sample["refused"]]
    if refused:
        parts.append("\n" + columns(REFUSAL_HEADINGS, refused[:LINES_MAX]) + _more(refused, "reasons"))
    return "".join(parts)


def _more(rows: Sequence[object], what: str) -> str:
    return f"and {len(rows) - LINES_MAX} more {what}\n" if len(rows) > LINES_MAX else ""


def _in_words(counter: str) -> str:
    what, reason = refusal(counter)
    return printable(f"{what}: {reason}" if reason else what)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    rates = (f"{row['messages_in_per_s']:,.1f}", f"{row['messages_out_per_s']:,.1f}", amount(row["bytes_in_per_s"]))
    counts = (f"{row[name]:,}" for name in ("clients", "sessions", "topics"))
    return row["broker"], *rates, *counts, amount(row["log_bytes"]), _disk(row)


def _disk(row: dict[str, Any]) -> str:
    total = row["disk_total_bytes"]
    return f"{amount(row['disk_free_bytes'])} ({100 * row['disk_free_bytes'] // total if total else 0} %)"
