"""``lightmq pub``: publish over MQTT and say whether every message was acknowledged.

Exit status 0 means: with QoS 1 the server acknowledged each message (so it is on its disk), with QoS 0 all were sent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lightmq.cli.message_properties import NOTHING_SAID, Said
from lightmq.cli.mqtt_client import IN_FLIGHT_MAX, MqttLink, MqttTarget
from lightmq.cli.outcome import CommandFailed
from runtime.clock import SystemClock

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessageInfo
    from paho.mqtt.properties import Properties

PAYLOAD_BYTES_MAX = 268_435_455
POLL_S = 0.05
"""How soon a lost connection is noticed while waiting."""
HERE = MqttTarget()


def publish(
    *,
    topic: Annotated[str, Parameter(name=["--topic", "-t"], help="Topic.")],
    message: Annotated[str | None, Parameter(name=["--message", "-m"], help="Payload.")] = None,
    stdin: Annotated[bool, Parameter(negative=(), help="One message per line of input.")] = False,
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="0, 1 or 2.")] = 1,
    retain: Annotated[bool, Parameter(name=["--retain", "-r"], negative=(), help="The topic keeps it.")] = False,
    count: Annotated[int, Parameter(help="How often to send --message; {n} in it is its number.")] = 1,
    said: Said = NOTHING_SAID,
    timeout: Annotated[float, Parameter(help="Seconds to wait for the acknowledgement of a message.")] = 30.0,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print what was done as JSON.")] = False,
    target: MqttTarget = HERE,
) -> None:
    """Publish over MQTT."""
    from lightmq.cli.checks import check_qos, check_topic

    check_qos(qos)
    if count < 1:
        raise CommandFailed(f"--count must be at least 1, not {count}")
    check_topic(topic)
    if (message is None) == (not stdin):
        raise CommandFailed("give either --message TEXT or --stdin")
    properties = said.properties(is_v5=target.is_v5)
    link = MqttLink(target)
    link.open()
    try:
        window = Window(link, topic, qos, retain=retain, properties=properties, timeout_s=timeout)
        done = window.send_all(payloads(message, count))
    finally:
        link.close()
    if json_output:
        sys.stdout.write(json.dumps({"topic": topic, "acknowledged" if qos else "sent": done, "qos": qos}) + "\n")
    elif done != 1:
        sys.stderr.write(f"{done} messages {'acknowledged' if qos else 'sent'}\n")


def payloads(message: str | None, count: int) -> Iterator[bytes]:
    """What to send: the message ``count`` times, or the lines of standard input."""
    if message is None:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    for number in range(1, count + 1):
        yield message.replace("{n}", str(number)).encode()


class Window:
    """Publishes one topic's messages, so many of them unacknowledged at a time."""

    def __init__(
        self, link: MqttLink, topic: str, qos: int, *, retain: bool, properties: Properties | None, timeout_s: float
    ) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._send: Callable[[bytes], MQTTMessageInfo] = lambda payload: link.client.publish(
            topic, payload, qos=qos, retain=retain, properties=properties
        )

    def send_all(self, items: Iterator[bytes]) -> int:
        """Publish all; the answer is how many. Raises CommandFailed."""
        done = 0
        window: list[MQTTMessageInfo] = []
        for payload in items:
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise CommandFailed(f"a payload of {len(payload)} bytes does not fit into an MQTT packet")
            window.append(self._send(payload))
            if len(window) >= IN_FLIGHT_MAX:
                done += settle(self._link, window, self._timeout_s, done)
        return done + settle(self._link, window, self._timeout_s, done)


def settle(link: MqttLink, window: list[MQTTMessageInfo], timeout_s: float, before: int) -> int:
    """Wait until each message of the window is acknowledged (QoS 0: sent), and empty it. Raises CommandFailed."""
    clock = SystemClock()
    for number, info in enumerate(window, before + 1):
        deadline_ns = clock.monotonic_ns() + int(timeout_s * 1e9)
        while not info.is_published():
            if link.lost.is_set():
                raise CommandFailed(f"the connection was lost; message {number} and later ones are not acknowledged")
            if clock.monotonic_ns() >= deadline_ns:
                raise CommandFailed(f"message {number} was not acknowledged within {timeout_s:g} s")
            info.wait_for_publish(POLL_S)
    count = len(window)
    window.clear()
    return count
