"""What MQTT promises, over `kill -9` of the master of a broker group: QoS 2, shared, wills, delayed, retained."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.processes.broker_group import BrokerGroup, until
from tests.processes.exact_client import ExactClient
from tests.processes.failovers import failover
from tests.processes.rig import ROOT, Client, Stream, no_traceback
from tests.processes.test_shared_subscriptions import TOPIC, member, until_all

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

FAILOVERS = 2
WILL_DELAY_S = 4
"""Longer than a failover takes, so that the next master is the one that has to know."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three brokers, of which two have every acknowledged message."""
    made = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        made.start()
        yield made
        no_traceback(made.proxy, *made.brokers, *made.controllers)
    finally:
        made.end()


def test_qos_2_is_delivered_once_and_in_order(group: BrokerGroup) -> None:
    """Both exchanges are in flight when the master dies: clients of raw packets repeat only what was not answered."""
    subscriber = ExactClient("subscriber", lambda: group.proxy.port, subscribe_to="exact/#").run()
    publisher = ExactClient("publisher", lambda: group.proxy.port, publish_to="exact/x")
    try:
        subscriber.until(lambda: subscriber.subscribed)
        publisher.run()
        for turn in range(1, FAILOVERS + 1):
            master = group.settle()
            subscriber.until(lambda turn=turn: len(subscriber.taken) >= 200 * turn)
            master.kill()
            publisher.until(lambda sent=publisher.completed: publisher.completed >= sent + 200)
            master.start()
        publisher.limit = 0
        publisher.until(lambda: publisher.completed == publisher.next_number)
        subscriber.until(lambda: len(subscriber.taken) >= publisher.next_number)
        assert subscriber.taken == list(range(publisher.next_number))
        assert not subscriber.lost_session
        assert not publisher.lost_session
    finally:
        publisher.stop()
        subscriber.stop()


def test_a_shared_group_continues_where_it_was(group: BrokerGroup) -> None:
    """Every acknowledged message reaches a member; only what was in flight comes again."""
    members = [member(group.proxy, f"m{index}", clean=index == 0) for index in range(3)]
    stream = Stream(group.proxy, TOPIC)
    for _ in range(FAILOVERS):
        failover(group, stream)
    count = stream.end()
    seen = until_all(members, count)
    assert sum(seen.values()) < 2 * count
    for client in members:
        client.close()


def test_wills_delayed_and_retained_messages_come_from_the_new_master(group: BrokerGroup) -> None:
    """All were accepted by a master that is dead when they are due: each comes once, and the newest one is retained."""
    watcher = Client(group.proxy, "watcher", clean=False)
    watcher.subscribe(("wills/#", 1), ("later/#", 1), ("marker", 1))
    sender = Client(group.proxy, "sender")
    for number in range(20):
        sender.publish(f"state/{number % 5}", b"%d" % number, 2, retain=True)
    sender.publish("state/gone", b"x", 1, retain=True)
    sender.publish("state/gone", b"", 1, retain=True)
    stays = Client(group.proxy, "stays", will=("wills/stays", b"gone", 1, True))
    hangs_on = Client(group.proxy, "hangs_on", will=("wills/hangs_on", b"gone", 1, False))
    leaves = Leaving(group.proxy.port)
    for number in range(5):
        sender.publish(f"$delayed/{WILL_DELAY_S}/later/{number}", b"due", 1)
    master = group.settle()
    leaves.close()
    hangs_on.client.loop_stop()
    master.kill()
    stays.vanish()
    until(group.master, "no new master")
    hangs_on.vanish()  # while the proxy reopens the sessions
    wanted = Counter([f"later/{number}" for number in range(5)] + ["wills/stays", "wills/hangs_on", "wills/leaves"])
    watcher.until_come(lambda: len(watcher.messages) >= wanted.total())
    sender.publish("marker", b"behind them all")
    watcher.until(lambda: "marker" in watcher.latest)
    assert Counter(one.topic for one in watcher.messages) == wanted + Counter(["marker"])
    fresh = Client(group.proxy, "fresh")
    fresh.subscribe(("state/#", 1), ("wills/#", 1))
    fresh.until(lambda: len(fresh.messages) >= 6)
    kept = {one.topic: one.payload for one in fresh.messages if one.retain}
    assert kept == {f"state/{number % 5}": b"%d" % number for number in range(15, 20)} | {"wills/stays": b"gone"}
    for client in (watcher, sender, fresh):
        client.close()


class Leaving:
    """A client of MQTT 5 whose will is due some time after it has left."""

    def __init__(self, port: int) -> None:
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "leaves", protocol=mqtt.MQTTv5)
        will = Properties(PacketTypes.WILLMESSAGE)
        will.WillDelayInterval = WILL_DELAY_S
        self.client.will_set("wills/leaves", b"gone", 1, False, properties=will)
        connect = Properties(PacketTypes.CONNECT)
        connect.SessionExpiryInterval = 3_600
        self.client.connect("127.0.0.1", port, properties=connect)
        self.client.loop_start()
        self.client.publish("nobody/hears", b"", 1).wait_for_publish(30)

    def close(self) -> None:
        """Leave without a DISCONNECT, which would drop the will."""
        reason = mqtt.ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message")
        self.client.disconnect(reasoncode=reason)
        self.client.loop_stop()


def test_a_tail_continues_at_the_new_master(group: BrokerGroup) -> None:
    """`lightmq tail --follow` prints every message once, in order, over a failover."""
    stream = Stream(group.proxy, TOPIC)
    stream.flowing()
    command = [sys.executable, "-m", "lightmq", "tail", TOPIC, "--follow", "--offset", "0", "--count", "2000"]
    tail = subprocess.Popen([*command, "--server", group.addresses], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert tail.stdout is not None
        first = tail.stdout.readline()
        failover(group, stream)
        while len(stream.sent) < 2_000:
            stream.flowing()
        offsets = [int(line.split()[0]) for line in (first, *tail.stdout)]
        assert tail.wait(60) == 0
        assert offsets == list(range(2_000))
    finally:
        tail.kill()
        stream.end()
