"""``lightmq bench``: a load of publishers and subscribers, and what came of it in rates, latencies and losses.

The messages are real and stay in the log, in a topic of their own. Exit status 1: a message was lost or refused.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.bench.meter import BODY_BYTES_MIN, LoadReceiver, LoadSender, report
from lightmq.cli.bench.plan import LoadPlan
from lightmq.cli.connections import ServerTarget
from lightmq.cli.examples import epilogue
from lightmq.cli.messages.mqtt_client import MqttTarget
from lightmq.cli.options import check_qos, check_topic
from lightmq.cli.outcome import CommandFailed, CommandMisused, columns
from lightmq.cli.times import Seconds, amount, size_bytes

bench = App(
    name="bench",
    help="Put a load on a server: rates, latencies, losses.",
    help_format="plaintext",
    help_epilogue=epilogue("bench"),
)
MQTT_HERE, HERE = MqttTarget(), ServerTarget()
TOPIC = "lightmq-bench"
CLIENTS_MAX = 1_000
"""Publishers and subscribers, each."""
SIZE_BYTES_MAX = 4 << 20
HEADINGS = ("MILLISECONDS", "P50", "P90", "P99", "MAX")

Publishers = Annotated[int, Parameter(name=["--publishers"], help="Number of publishers.")]
Subscribers = Annotated[int, Parameter(name=["--subscribers"], help="Subscribers; each gets every message.")]
Rate = Annotated[float, Parameter(name=["--rate", "-r"], help="Messages a second in all; 0: as fast as possible.")]
Duration = Annotated[Seconds, Parameter(name=["--duration", "-d"], help="How long to send: 10s, 2m.")]
Size = Annotated[str, Parameter(help=f"Size of a message, from {BODY_BYTES_MIN} bytes: 100, 4kB.")]
Topic = Annotated[str, Parameter(name=["--topic", "-t"], help="Topic for the messages, which stay in the log.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")]


@bench.command
def mqtt(
    *,
    publishers: Publishers = 1,
    subscribers: Subscribers = 1,
    rate: Rate = 1_000.0,
    duration: Duration = 10.0,
    size: Size = "100",
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="0, 1 or 2.")] = 1,
    topic: Topic = TOPIC,
    json_output: Json = False,
    target: MqttTarget = MQTT_HERE,
) -> None:
    """Publish and subscribe over MQTT for some seconds; Ctrl-C ends early and shows the figures so far."""
    from lightmq.cli.bench.over_mqtt import measure

    check_qos(qos)
    check_topic(topic)
    plan = _plan(publishers, subscribers, rate, duration, size, topic)
    _show(plan, measure(target, plan, qos), json_output=json_output)


@bench.command
def rocketmq(
    *,
    publishers: Publishers = 1,
    subscribers: Subscribers = 1,
    rate: Rate = 1_000.0,
    duration: Duration = 10.0,
    size: Size = "100",
    topic: Topic = TOPIC,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Send and pull over RocketMQ's protocol for some seconds; Ctrl-C ends early and shows the figures so far."""
    from lightmq.cli.bench.over_rocketmq import measure

    plan = _plan(publishers, subscribers, rate, duration, size, topic)
    _show(plan, measure(target, plan), json_output=json_output)


def _plan(publishers: int, subscribers: int, rate: float, seconds: float, size: str, topic: str) -> LoadPlan:
    """The load that was asked for. Raises CommandFailed."""
    bytes_each = size_bytes(size)
    if not 1 <= publishers <= CLIENTS_MAX or not 0 <= subscribers <= CLIENTS_MAX:
        raise CommandMisused(f"--publishers must be 1 to {CLIENTS_MAX}, --subscribers 0 to {CLIENTS_MAX}")
    if rate < 0 or seconds <= 0:
        raise CommandMisused("--rate must not be negative, and --duration more than 0")
    if not BODY_BYTES_MIN <= bytes_each <= SIZE_BYTES_MAX:
        raise CommandMisused(f"--size must be {BODY_BYTES_MIN} to {SIZE_BYTES_MAX} bytes, not {bytes_each}")
    return LoadPlan(publishers, subscribers, rate, seconds, bytes_each, topic)


def _show(plan: LoadPlan, counted: tuple[list[LoadSender], list[LoadReceiver], float], *, json_output: bool) -> None:
    """Print the figures. Raises CommandFailed when something was lost or refused."""
    found = report(*counted, plan.size_bytes)
    sys.stdout.write(json.dumps(found) + "\n" if json_output else text(found))
    wrong = [f"{found[name]:,} {name}" for name in ("refused", "unanswered", "lost") if found[name]]
    if wrong:
        reasons = "; ".join(found["reasons"])
        raise CommandFailed(", ".join(wrong) + (f": {reasons}" if reasons else ""))


def text(found: dict[str, Any]) -> str:
    """The figures for people."""
    rate = f"{found['published_per_s']:,.0f}/s, {amount(found['published_per_s'] * found['message_bytes'])}/s"
    sent = f"{found['acknowledged']:,} messages of {found['message_bytes']} bytes"
    lines = [f"published  {sent} in {found['seconds']:.1f} s: {rate}"]
    if found["subscribers"]:
        lines.append(
            f"received   {found['received']:,} of {found['expected']:,}: {found['received_per_s']:,.0f}/s; "
            f"lost {found['lost']:,}, repeated {found['repeated']:,}"
        )
    kinds = (("until acknowledged", "acknowledged_ms"), ("until received", "received_ms"))
    rows = [(name, *(f"{each:,.2f}" for each in found[key].values())) for name, key in kinds if found[key]]
    return "\n".join(lines) + "\n" + (columns(HEADINGS, rows) if rows else "")
