"""A load over MQTT: publishers and subscribers as connections of paho-mqtt, each with its own network thread.

Thread rule: a publisher's answers and a subscriber's messages are counted on its network thread; the main thread sends,
and adds up when the threads have ended. Invariant: every connection opened here is closed at the end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from lightmq.cli.bench.meter import LoadReceiver, LoadSender, body
from lightmq.cli.bench.plan import TURN_S, Drain, LoadPlan, announce, ended_by_ctrl_c
from lightmq.cli.messages.mqtt_client import MqttLink, MqttTarget
from lightmq.cli.outcome import CommandFailed
from remoting import clock


class LoadPublisher:
    """One connection that publishes, and the times of what it waits for."""

    def __init__(self, link: MqttLink, topic: str, qos: int) -> None:
        self.link = link
        self.counted = LoadSender()
        self._topic, self._qos = topic, qos
        self._lock = threading.Lock()
        self._waiting: dict[int, int] = {}
        """Packet id -> ns at which it was sent."""
        self._early: dict[int, str] = {}
        """Packet id -> why refused, or empty, of what was answered before the sending was noted."""
        link.client.on_publish = self._decided

    def send(self, payload: bytes) -> None:
        """Publish one message. Raises CommandFailed when the connection is lost."""
        if self.link.lost.is_set():
            raise CommandFailed(f"a publisher lost its connection: {self.link.why_lost}")
        self.counted.sent += 1
        at_ns = clock.monotonic_ns()
        mid = self.link.client.publish(self._topic, payload, self._qos).mid  # not under the lock: paho holds its own
        with self._lock:
            if mid in self._early:
                self.counted.decided(at_ns, self._early.pop(mid))
            else:
                self._waiting[mid] = at_ns

    def _decided(self, _client: Any, _data: Any, mid: int, reason: Any, properties: Any) -> None:
        from mqtt_bridge.paho_client import in_words

        refusal = in_words(reason, properties) if reason.is_failure else ""
        with self._lock:
            if mid in self._waiting:
                self.counted.decided(self._waiting.pop(mid), refusal)
            else:
                self._early[mid] = refusal


def measure(target: MqttTarget, plan: LoadPlan, qos: int) -> tuple[list[LoadSender], list[LoadReceiver], float]:
    """Carry out the plan; the counts and the seconds of sending, which Ctrl-C ends early. Raises CommandFailed."""
    with contextlib.ExitStack() as stack:
        receivers = [_subscriber(stack, target, plan, qos) for _ in range(plan.subscribers)]
        publishers = [
            LoadPublisher(_connected(stack, target), f"{plan.topic}/{number}", qos) for number in range(plan.publishers)
        ]
        with ended_by_ctrl_c() as ended:
            announce(plan)
            begun_s = clock.monotonic_s()
            _send(publishers, plan, begun_s, ended)
        answered = Drain(lambda: sum(each.counted.open for each in publishers))
        while not answered.over():
            time.sleep(TURN_S)
        seconds = clock.monotonic_s() - begun_s
        wanted = sum(each.counted.acknowledged for each in publishers) * plan.subscribers
        arrived = Drain(lambda: wanted - sum(each.received for each in receivers))
        while not arrived.over():
            time.sleep(TURN_S)
    return [each.counted for each in publishers], receivers, seconds


def _send(publishers: list[LoadPublisher], plan: LoadPlan, begun_s: float, ended: threading.Event) -> None:
    for number in _numbers(publishers, plan, begun_s, ended):
        publishers[number % len(publishers)].send(body(plan.run, number, plan.size_bytes))


def _numbers(publishers: list[LoadPublisher], plan: LoadPlan, begun_s: float, ended: threading.Event) -> Iterator[int]:
    """Numbers of messages, each when it is due."""
    number, passed_s = 0, 0.0
    while passed_s < plan.seconds and not ended.is_set():
        passed_s = clock.monotonic_s() - begun_s
        upto = plan.upto(passed_s, number, sum(each.counted.open for each in publishers))
        yield from range(number, upto)
        number = max(number, upto)
        time.sleep(TURN_S)


def _connected(stack: contextlib.ExitStack, target: MqttTarget) -> MqttLink:
    link = MqttLink(target)
    link.open()
    stack.callback(link.close)
    return link


def _subscriber(stack: contextlib.ExitStack, target: MqttTarget, plan: LoadPlan, qos: int) -> LoadReceiver:
    """A connection that is subscribed to the whole run. Raises CommandFailed when it is refused."""
    from lightmq.cli.messages.subscribe import Granted, check_granted

    counted, link = LoadReceiver(plan.run), MqttLink(target)

    def take(client: Any, _data: Any, message: Any) -> None:
        counted.take(message.payload)
        client.ack(message.mid, message.qos)

    granted: queue.Queue[Granted | CommandFailed] = queue.Queue()
    link.client.on_message = take
    link.client.on_subscribe = lambda _client, _data, _mid, codes, properties: granted.put((codes, properties))
    link.on_lost = lambda: granted.put(CommandFailed(link.why_lost))
    link.open()
    stack.callback(link.close)
    topic_filter = f"{plan.topic}/#"
    link.client.subscribe([(topic_filter, qos)])
    check_granted([topic_filter], qos, granted, is_v5=target.is_v5)
    return counted
