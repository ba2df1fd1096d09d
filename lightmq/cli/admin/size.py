"""``lightmq size``: cores, memory and disk for a number of devices, from measured costs (`lightmq.sizing`)."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.outcome import CommandMisused
from lightmq.sizing import SPARE, Load, Needs, size

UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def size_command(
    *,
    devices: Annotated[int, Parameter(help="Devices, each with a connection, a session and a topic.")],
    rate: Annotated[float, Parameter(help="Messages a second of each device.")] = 1.0,
    total_rate: Annotated[float | None, Parameter(help="Messages a second of all devices, instead of --rate.")] = None,
    payload: Annotated[int, Parameter(help="Bytes of a message's payload.")] = 100,
    days: Annotated[float, Parameter(help="How long messages are kept.")] = 7.0,
    subscribers: Annotated[int, Parameter(help="MQTT subscribers that receive each message.")] = 1,
    queries: Annotated[int, Parameter(help="Spark queries that read each message.")] = 1,
    replicas: Annotated[int, Parameter(help="Replicas beside the master.")] = 0,
    tls: Annotated[bool, Parameter(negative=(), help="Devices connect by TLS.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object.")] = False,
) -> None:
    """Estimate the cores, memory and disk of an installation; the formulas are in docs/sizing.md.

    The costs were measured on two cores of one machine: measure your own load with lightmq bench before you buy.
    """
    rate_per_s = devices * rate if total_rate is None else total_rate
    whole = {"--devices": devices, "--payload": payload, "--subscribers": subscribers, "--queries": queries}
    wrong = [name for name, value in (whole | {"--replicas": replicas}).items() if value < 0]
    if wrong or rate_per_s <= 0 or days <= 0:
        raise CommandMisused(f"{wrong[0]} must be at least 0" if wrong else "rate and --days must be above 0")
    load = Load(
        devices=devices, rate_per_s=rate_per_s, payload_bytes=payload, days=days, subscribers=subscribers,
        queries=queries, replicas=replicas, tls=tls,
    )  # fmt: skip
    needs = size(load)
    sys.stdout.write(json.dumps(asdict(needs)) + "\n" if json_output else report(load, needs))


def report(load: Load, needs: Needs) -> str:
    """For people: a line for each of messages, cores, memory, disk, replicas and notes."""
    lines = [
        f"messages  {needs.messages_per_s:,.0f}/s, {amount(needs.message_bytes)} each on disk with their queue entries",
        f"cores     {needs.cores}: {needs.cores_busy:.2f} busy in the mean, {SPARE:g} times that provided for",
        f"memory    {amount(needs.memory_bytes)} for broker and proxy; what the machine has beyond it caches the log",
        f"disk      {amount(needs.disk_bytes)} for {load.days:g} days, {amount(needs.disk_bytes_per_s)}/s written",
    ]
    if load.replicas:
        others = f"{load.replicas} more {'disk' if load.replicas == 1 else 'disks'} of the same size"
        lines.append(f"replicas  {others}; {needs.replica_cores_busy:.2f} cores busy at each")
    return "".join(f"{line}\n" for line in [*lines, *(f"note      {note}" for note in needs.notes)])


def amount(count: float) -> str:
    """Bytes in the unit that fits, two digits at least."""
    unit, factor = next(((unit, factor) for unit, factor in UNITS if count >= factor), ("bytes", 1.0))
    value = count / factor
    return f"{value:,.0f} {unit}" if value >= 10 or factor == 1.0 else f"{value:.1f} {unit}"
