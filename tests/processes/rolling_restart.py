"""`python -m tests.processes.rolling_restart`: restart every controller and broker under load.

Three controllers, a group of three brokers and two proxies run as processes. A producer sends 500 messages a second to
one queue of a topic, and MQTT devices, half of them at either proxy, publish 500 a second with QoS 1. Each controller
and then each broker gets SIGTERM, ends by itself, is started again, and the next one follows when the group is whole,
as in an upgrade.
A failed send is an error that reaches the application: a future of the producer that fails, a publish that paho drops
or that is acknowledged with a refusal. What the clients repeat or hold back by themselves is counted apart: messages
stored twice, and publishes that paho keeps for lack of a connection and sends after the next one.

Invariant: what was acknowledged is in the log, in the order of its source, and all brokers have the same log.
Thread rule: each source is a thread; `pause_s` is asked from the one that restarts, while the sources go on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt

from remoting.client.admin import topic_fields
from remoting.client.batching import Message, Sent
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.threads import Producer
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.kill_rounds import published
from tests.processes.rig import Client, Process, Server, expect_all, no_traceback

TOPIC = "orders"
DEVICES = 10
GROUP = "broker-a"
TURN_S = 0.01
STEADY_S = 1.0
"""Load between two restarts, after the group is whole."""


class Source(threading.Thread):
    """Numbered messages at a steady rate, and when each was acknowledged."""

    def __init__(self, rate: float) -> None:
        super().__init__(daemon=True)
        self.rate = rate
        self.sent = 0
        self.failures: list[str] = []
        self._acknowledged_at: list[float] = []
        self._ended = threading.Event()

    def send(self, number: int) -> None:
        """Hand one message over; returns without its acknowledgement."""
        raise NotImplementedError

    @property
    def acknowledged(self) -> int:
        """Messages whose acknowledgement has come."""
        return len(self._acknowledged_at)

    def note(self) -> None:
        """One more message is acknowledged."""
        self._acknowledged_at.append(time.monotonic())

    def run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(TURN_S):
            due = int((time.monotonic() - began) * self.rate)
            while self.sent < due:
                self.send(self.sent)
                self.sent += 1

    def end(self) -> None:
        """Send nothing new and wait until everything is acknowledged or has failed."""
        self._ended.set()
        self.join()
        until(lambda: self.acknowledged + len(self.failures) >= self.sent, "a send was neither acknowledged nor failed")

    def pause_s(self, since: float, to: float) -> float:
        """The longest time without an acknowledgement between two moments."""
        moments = [since, *(each for each in self._acknowledged_at[:] if since < each < to), to]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))


class Orders(Source):
    """LightMQ's producer with its ordinary settings, on one queue."""

    def __init__(self, controllers: str, rate: float) -> None:
        super().__init__(rate)
        self.producer = Producer(controllers=controllers.split(","), broker_name=GROUP)

    def send(self, number: int) -> None:
        """One message; the future tells what became of it."""
        self.producer.send(Message(topic=TOPIC, body=b"%d" % number, queue=0)).add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        error = future.exception()
        if error is None:
            assert isinstance(future.result(), Sent)
            self.note()
        else:
            self.failures.append(repr(error))


class Devices(Source):
    """MQTT clients with sessions that stay, in turn; each publishes to a topic of its own."""

    def __init__(self, proxies: Sequence[Server], rate: float) -> None:
        super().__init__(rate)
        self.disconnections = self.held_back = 0
        self.counts = {f"line/{at}/x": 0 for at in range(DEVICES)}
        self._clients = [Client(proxies[at % len(proxies)], f"device-{at}", clean=False) for at in range(DEVICES)]
        for each in self._clients:
            each.client.on_publish = self._published
            each.client.on_disconnect = self._left

    def send(self, number: int) -> None:
        """The next device publishes."""
        at = number % DEVICES
        topic = f"line/{at}/x"
        info = self._clients[at].client.publish(topic, b"%d" % self.counts[topic], 1)
        self.counts[topic] += 1
        if info.rc == mqtt.MQTT_ERR_NO_CONN:  # paho has queued it and sends it once it is connected again
            self.held_back += 1
        elif info.rc != mqtt.MQTT_ERR_SUCCESS:
            self.failures.append(mqtt.error_string(info.rc))

    def _published(self, _client: Any, _data: Any, _mid: int, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self.failures.append(str(reason))
        else:
            self.note()

    def _left(self, *_: Any) -> None:
        self.disconnections += 1

    def close(self) -> None:
        """All devices leave."""
        for each in self._clients:
            each.client.on_disconnect = None
            each.close()


def create_topic(master: Server) -> None:
    """The producer's topic, with one queue."""
    with BlockingConnection.dial(f"127.0.0.1:{master.ports['remoting']}", 5_000) as link:
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields(TOPIC, 1))
        checked(link.request(command))


def restart(group: BrokerGroup, part: Process, sources: Sequence[Source]) -> dict[str, Any]:
    """Stop one process as an operator does and start it again; the pauses until the group was whole."""
    was_master = part is group.master()
    began = time.monotonic()
    status = part.end(signal.SIGTERM)
    stopped = time.monotonic()
    assert status == 0, (part.log, status)
    part.start()
    group.settle()
    until(lambda: all(is_ready(each) for each in group.controllers), "a controller is not ready")
    whole = time.monotonic()
    time.sleep(STEADY_S)
    return {
        "part": part.log.stem,
        "was_master": was_master,
        "stop_s": round(stopped - began, 2),
        "whole_s": round(whole - began, 2),
        "pauses_s": [round(each.pause_s(began, time.monotonic()), 3) for each in sources],
    }


def measure(
    directory: Path, *, controllers: int, brokers: int, rate: float, rounds: int = 1, mode: str = "controller"
) -> dict[str, Any]:
    """Restart everything `rounds` times; the figures. Raises AssertionError for what was lost or out of order.

    `rate`: messages per second, half of them MQTT. `mode`: who chooses the master, as in `BrokerGroup`.
    """
    group = BrokerGroup(directory, controllers=controllers, brokers=brokers, in_sync_min=2, mode=mode)
    second = Process(directory / "proxy-2", ["proxy", "--controllers", group.addresses], "mqtt")
    try:
        create_topic(_started(group, second))
        reader = Client(second, "reader", clean=False)
        reader.subscribe(("line/#", 1))
        devices, orders = Devices([group.proxy, second], rate / 2), Orders(group.addresses, rate / 2)
        sources = (orders, devices)
        for each in sources:
            each.start()
        time.sleep(STEADY_S)
        restarts = [
            restart(group, part, sources) for _ in range(rounds) for part in (*group.controllers, *group.brokers)
        ]
        for each in sources:
            each.end()
        orders.producer.close()
        devices.close()
        expect_all(reader, devices.counts)
        reader.close()
        kept = stored(group)
        assert list(dict.fromkeys(kept)) == list(range(orders.sent)), "the producer's messages are not all in order"
        group.wait_equal()
        assert len(set(group.logs())) == 1, "the brokers' logs differ"
        no_traceback(second, *group.all)
        return _figures(restarts, orders, devices, repeated=len(kept) - orders.sent)
    finally:
        second.kill_if_running()
        group.end()


def _started(group: BrokerGroup, proxy: Server) -> Server:
    group.start()
    proxy.start()
    return group.settle()


def is_ready(controller: Process) -> bool:
    """Whether it is a controller that votes and knows a leader, by its own page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{controller.ports['admin']}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def stored(group: BrokerGroup) -> list[int]:
    """The numbers in the producer's queue, as the master has them."""
    with BlockingConnection.dial(f"127.0.0.1:{group.settle().ports['remoting']}", 10_000) as link:
        return published(link, TOPIC)


def _figures(restarts: list[dict[str, Any]], orders: Orders, devices: Devices, *, repeated: int) -> dict[str, Any]:
    kinds = {
        "controller": [each for each in restarts if each["part"].startswith("controller")],
        "master": [each for each in restarts if each["was_master"]],
        "replica": [each for each in restarts if each["part"].startswith("broker") and not each["was_master"]],
    }
    pauses = {
        kind: {
            name: [round(statistics.median(found), 3), round(max(found), 3)]
            for at, name in enumerate(("producer", "mqtt"))
            if (found := [each["pauses_s"][at] for each in members])
        }
        for kind, members in kinds.items()
    }
    return {
        "restarts": restarts,
        "messages": {"producer": orders.sent, "mqtt": devices.sent},
        "failed": {"producer": len(orders.failures), "mqtt": len(devices.failures)},
        "failures": sorted({*orders.failures, *devices.failures})[:5],
        "repeated_by_producer": repeated,
        "held_back_by_mqtt": devices.held_back,
        "mqtt_disconnections": devices.disconnections,
        "longest_pause_s_p50_max": pauses,
        "whole_again_s_max": max(each["whole_s"] for each in restarts),
    }


def main() -> None:
    """Measure, print one JSON object per line, and fail when a send failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controllers", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages per second, half of them MQTT")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--mode", choices=("controller", "dledger"), default="controller", help="who chooses the master"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rolling-") as directory:
        found = measure(Path(directory), controllers=options.controllers, brokers=options.brokers,
                        rate=options.rate, rounds=options.rounds, mode=options.mode)  # fmt: skip
    for each in found.pop("restarts"):
        print(json.dumps(each))
    print(json.dumps(found))
    if sum(found["failed"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
