"""Does everything add up? Sent = stored = written by Spark, each once; decided = stored = delivered, each once.

Invariant: each figure comes from where the thing itself lies: acknowledgements from the device, stored counts from the
broker's queues, rows from the files that Spark committed, deliveries from the device; the commands that should exist
are computed again from the rows with the same rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightmq.demo.rule import SensorState, step
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

PARENT_TOPIC = "machines"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One reading as Spark saw it."""

    id: str
    sensor: str
    value: float
    queue_id: int
    queue_offset: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Line:
    """One equation of the accounting: figures by name, all of which must be equal."""

    title: str
    figures: dict[str, int]

    @property
    def text(self) -> str:
        """The equation in one line, and whether it holds."""
        figures = " = ".join(f"{name} {value:,}" for name, value in self.figures.items())
        return f"{self.title}: {figures}  {'holds' if self.holds else 'DOES NOT HOLD'}"

    @property
    def holds(self) -> bool:
        """Whether all figures are equal."""
        return len(set(self.figures.values())) == 1


@dataclass(frozen=True, slots=True)
class Accounting:
    """The equations of one run."""

    lines: tuple[Line, ...]

    @property
    def holds(self) -> bool:
        """Whether every equation holds."""
        return all(line.holds for line in self.lines)


def committed_files(folder: Path) -> list[Path]:
    """Files that Spark's file sink committed; others in the folder are left-overs of failed attempts."""
    log = folder / "_spark_metadata"
    entries = [path for path in log.glob("*") if path.name.split(".")[0].isdigit()] if log.is_dir() else []
    compacted = [int(path.name.split(".")[0]) for path in entries if path.name.endswith(".compact")]
    newest = max(compacted, default=-1)
    files: list[Path] = []
    for path in sorted(entries, key=lambda entry: int(entry.name.split(".")[0])):
        number = int(path.name.split(".")[0])
        if number < newest or (number == newest and not path.name.endswith(".compact")):
            continue
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            if entry.get("action", "add") == "add":
                files.append(folder / Path(entry["path"]).name)
    return files


def read_ledger(folder: Path) -> list[LedgerRow]:
    """Rows of the ledger query's output."""
    import pyarrow.parquet as parquet

    names = ["id", "sensor", "value", "queueId", "queueOffset", "time_ms"]
    rows: list[LedgerRow] = []
    for path in committed_files(folder):
        table = parquet.read_table(path, columns=names)
        rows += [LedgerRow(*values) for values in zip(*(table[name].to_pylist() for name in names), strict=True)]
    return rows


def decide_again(rows: Iterable[LedgerRow]) -> set[str]:
    """Commands that follow from the rule, computed from the rows in the order of their queues."""
    states: dict[str, SensorState] = {}
    decided = set()
    for row in sorted(rows, key=lambda reading: (reading.queue_id, reading.queue_offset)):
        states[row.sensor], deviation = step(states.get(row.sensor, SensorState()), row.sensor, row.value)
        if deviation is not None:
            decided.add(f"cmd-{row.id}")
    return decided


def broker_addresses(nameserver: BlockingConnection) -> list[str]:
    """Addresses of the masters that the name server knows."""
    answer = checked(nameserver.request(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)))
    table = json.loads(answer.body)["brokerAddrTable"]
    return [data["brokerAddrs"]["0"] for data in table.values() if "0" in data["brokerAddrs"]]


def stored_counts(port: int, host: str) -> tuple[int, int]:
    """Messages stored below `machines/`, and commands among them, over all brokers."""
    messages = commands = 0
    nameserver = BlockingConnection("127.0.0.1", port)
    try:
        addresses = broker_addresses(nameserver)
    finally:
        nameserver.close()
    for address in addresses:
        broker_host, _, broker_port = address.rpartition(":")
        broker = BlockingConnection(broker_host, int(broker_port))
        try:
            messages += sum(
                queue["max"] - queue["min"] for queue in bounds(broker, {"topics": [PARENT_TOPIC]})["queues"]
            )
            light = bounds(broker, {"topics": [], "filter": f"{PARENT_TOPIC}/{host}/commands"}).get("light")
            commands += light["max"] - light["min"] if light else 0
        finally:
            broker.close()
    return messages, commands


def bounds(broker: BlockingConnection, question: Mapping[str, object]) -> dict[str, Any]:
    """Ask one broker for the confirmed ends of queues."""
    body = json.dumps(
        {"topics": [], "filter": None, "at_ms": None, "known": {}, "wait_ms": 0} | dict(question)
    ).encode()
    answer = checked(broker.request(Command(code=RequestCode.QUEUE_BOUNDS, body=body)))
    parsed: dict[str, Any] = json.loads(answer.body)
    return parsed


def settle(
    *, acknowledged: int, stored: tuple[int, int], rows: list[LedgerRow], deliveries: Mapping[str, int]
) -> Accounting:
    """Put the figures of one run beside each other."""
    messages, commands = stored
    readings = Line(
        "readings",
        {
            "sent": acknowledged,
            "stored": messages - commands,
            "written by Spark": len(rows),
            "distinct": len({row.id for row in rows}),
        },
    )
    decided = decide_again(rows)
    orders = Line(
        "commands",
        {
            "decided": len(decided),
            "sent": commands,
            "delivered": sum(deliveries.values()),
            "each once": len(decided & set(deliveries)),
        },
    )
    return Accounting((readings, orders))
