"""``lightmq pub``: publish over MQTT and report the outcome of every message.

Exit status 0 means: with QoS 1 and 2 the server acknowledged each message with a code of success (so it is on its
disk), with QoS 0 all were sent. Refused messages are counted by reason; the others are still sent, and the status is 1.
With MQTT 5 a server may answer that the topic has no subscription: those messages are accepted, and counted apart.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lightmq.cli.messages.mqtt_client import IN_FLIGHT_MAX, NO_PROPERTIES, MqttLink, MqttTarget, PublishProperties
from lightmq.cli.outcome import CommandFailed, CommandMisused
from lightmq.cli.times import Seconds
from runtime.clock import SystemClock

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessageInfo
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

PAYLOAD_BYTES_MAX = 268_435_455
POLL_S = 0.05
"""How soon a lost connection is noticed while waiting."""
REASONS_MAX = 100
"""Different reasons that are counted apart; servers word them freely. Further ones count as `OTHER_REASONS`."""
OTHER_REASONS = "other reasons"
NO_MATCHING_SUBSCRIBERS = 0x10
"""Reason code of PUBACK and PUBREC: accepted, without a subscriber."""
HERE = MqttTarget()


@dataclass(slots=True)
class PublishCounts:
    """What became of the messages of one topic."""

    topic: str
    qos: int
    sent: int = 0
    settled: int = 0
    """Messages the server decided about; with QoS 0, those the socket has taken."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages refused, by reason; written on the network thread before a message counts as settled."""
    unwanted: int = 0
    """Accepted messages without a subscription to their topic; as `refused`."""
    unfinished: Counter[str] = field(default_factory=Counter)
    """QoS 2: messages the server had accepted when it failed to complete their exchange, by reason."""

    def refuse(self, reason: str, *, too_late: bool) -> None:
        """One message was refused, or accepted and then not completed; the first of each reason is reported at once."""
        counted = self.unfinished if too_late else self.refused
        if reason not in counted:
            if len(counted) >= REASONS_MAX:
                reason = OTHER_REASONS
            elif self.sent > 1:
                sys.stderr.write(f"{'accepted, but not completed' if too_late else 'refused'}: {reason}\n")
        counted[reason] += 1

    def report(self, error: str = "") -> dict[str, Any]:
        """As `--json` prints it."""
        refused = self.refused.total()
        found: dict[str, Any] = {"topic": self.topic, "qos": self.qos}
        found["acknowledged" if self.qos else "sent"] = self.settled - refused
        if self.qos:
            found["refused"] = refused
        if self.unwanted:
            found["no_matching_subscribers"] = self.unwanted
        if self.unfinished:
            found["unfinished"] = self.unfinished.total()
        if refused or self.unfinished:
            found["reasons"] = dict(self.refused + self.unfinished)
        if self.sent > self.settled:
            found["unanswered"] = self.sent - self.settled
        return {**found, "error": error} if error else found

    def remark(self) -> str:
        """The server's remarks on accepted messages; empty when there were none."""
        if not self.unwanted:
            return ""
        reason = f"there is no subscription to {self.topic}: no matching subscribers ({NO_MATCHING_SUBSCRIBERS:#04x})"
        if self.sent == 1:
            return f"the server accepted the message, but {reason}"
        return f"the server accepted {self.unwanted} messages, but {reason}"

    def verdict(self) -> str:
        """Why the command failed; empty when every message was accepted and its exchange completed."""
        refused = self._explain("refused {}", self.refused)
        unfinished = self._explain("accepted {} but did not complete the exchange", self.unfinished)
        return "; ".join(filter(None, (refused, unfinished)))

    def _explain(self, did: str, reasons: Counter[str]) -> str:
        if not reasons:
            return ""
        if self.settled == 1:
            return f"the server {did.format('the message')}: {next(iter(reasons))}"
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
        return f"the server {did.format(f'{reasons.total()} of {self.settled} messages')}: {listed}"


def publish(
    *,
    topic: Annotated[str, Parameter(name=["--topic", "-t"], help="Topic.")],
    message: Annotated[str | None, Parameter(name=["--message", "-m"], help="Payload.")] = None,
    stdin: Annotated[bool, Parameter(negative=(), help="One message per line of input.")] = False,
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="0, 1 or 2.")] = 1,
    retain: Annotated[
        bool, Parameter(name=["--retain", "-r"], negative=(), help="Keep it for later subscribers.")
    ] = False,
    count: Annotated[
        int, Parameter(help="Number of times to send --message; {n} is replaced by the message's number.")
    ] = 1,
    options: PublishProperties = NO_PROPERTIES,
    timeout: Annotated[Seconds, Parameter(help="How long to wait for the acknowledgement of a message.")] = 30.0,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print the result as JSON.")] = False,
    target: MqttTarget = HERE,
) -> None:
    """Publish over MQTT."""
    from lightmq.cli.options import check_qos, check_topic

    check_qos(qos)
    if count < 1:
        raise CommandMisused(f"--count must be at least 1, not {count}")
    check_topic(topic)
    if (message is None) == (not stdin):
        raise CommandMisused("give either --message TEXT or --stdin")
    properties = options.properties(is_v5=target.is_v5)
    link = MqttLink(target)
    link.open()
    outcome = PublishCounts(topic, qos)
    error = ""
    window = Window(link, outcome, retain=retain, properties=properties, timeout_s=timeout)
    try:
        window.send_all(payloads(message, count))
    except CommandFailed as failure:
        error = str(failure)
    finally:
        link.close()
    window.count_the_rest()
    error = "; ".join(filter(None, (outcome.verdict(), error)))
    if json_output:
        sys.stdout.write(json.dumps(outcome.report(error)) + "\n")
    else:
        if outcome.sent != 1:
            done = outcome.settled - outcome.refused.total()
            sys.stderr.write(f"{done} messages {'acknowledged' if qos else 'sent'}\n")
        if remark := outcome.remark():
            sys.stderr.write(f"{remark}\n")
    if error:
        raise CommandFailed(error)


def payloads(message: str | None, count: int) -> Iterator[bytes]:
    """What to send: the message ``count`` times, or the lines of standard input."""
    if message is None:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    for number in range(1, count + 1):
        yield message.replace("{n}", str(number)).encode()


def _is_published(info: MQTTMessageInfo) -> bool:
    """Whether it is decided about; paho raises an error for a message that found no connection."""
    return not info.rc and info.is_published()


class Window:
    """Publishes one topic's messages, so many of them unacknowledged at a time."""

    def __init__(
        self, link: MqttLink, outcome: PublishCounts, *, retain: bool, properties: Properties | None, timeout_s: float
    ) -> None:
        self._link = link
        self._outcome = outcome
        self._timeout_s = timeout_s
        self._send: Callable[[bytes], MQTTMessageInfo] = lambda payload: link.client.publish(
            outcome.topic, payload, qos=outcome.qos, retain=retain, properties=properties
        )
        link.client.on_publish = self._decided
        self._window: list[MQTTMessageInfo] = []

    def send_all(self, items: Iterator[bytes]) -> None:
        """Publish all; the outcome counts. Raises CommandFailed when not every message was decided about."""
        for payload in items:
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise CommandFailed(f"a payload of {len(payload)} bytes does not fit into an MQTT packet")
            self._outcome.sent += 1
            self._window.append(self._send(payload))
            if len(self._window) >= IN_FLIGHT_MAX:
                self._settle()
        self._settle()
        if not self._outcome.qos:
            self._link.await_reading(self._timeout_s)

    def count_the_rest(self) -> None:
        """After a failure and the end of the network thread: what was decided about all the same."""
        self._outcome.settled += sum(_is_published(info) for info in self._window)

    def _settle(self) -> None:
        """Wait until each message of the window is decided about (QoS 0: sent), and empty it. Raises CommandFailed."""
        clock = SystemClock()
        what = "acknowledged" if self._outcome.qos else "sent"
        before = self._outcome.sent - len(self._window)
        for number, info in enumerate(self._window, before + 1):
            deadline_ns = clock.monotonic_ns() + int(self._timeout_s * 1e9)
            while not _is_published(info):
                if self._link.lost.is_set():
                    raise CommandFailed(f"{self._link.why_lost}; message {number} and later ones are not {what}")
                if clock.monotonic_ns() >= deadline_ns:
                    raise CommandFailed(f"message {number} was not {what} within {self._timeout_s:g} s")
                if info.rc:  # there is no connection: its end is about to be reported
                    self._link.lost.wait(POLL_S)
                else:
                    info.wait_for_publish(POLL_S)
        self._outcome.settled += len(self._window)
        self._window.clear()

    def _decided(self, _client: Any, _data: Any, _mid: int, reason: ReasonCode, properties: Properties | None) -> None:
        """On the network thread, before paho marks the message as published."""
        if reason.is_failure:
            from mqtt_bridge.paho_client import comes_too_late, in_words

            self._outcome.refuse(in_words(reason, properties), too_late=comes_too_late(reason))
        elif reason.value == NO_MATCHING_SUBSCRIBERS:
            self._outcome.unwanted += 1
