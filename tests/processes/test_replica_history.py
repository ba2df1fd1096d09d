"""History read from replicas while the master is dead, stands still, or is replaced: each message once, in order."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.rig import Client, Stream, no_traceback
from tests.processes.test_history import Client5

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

OLD = 3_000
"""Messages before the subscription, some fifty steps of a history."""
IN_FLIGHT = 64
FILTER = "old/+"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three brokers and a proxy that reads history from replicas, whose clients are given little at a time."""
    yield from started(tmp_path, "controller")


@pytest.fixture
def electing(tmp_path: Path) -> Iterator[BrokerGroup]:
    """The same with brokers that elect their master."""
    yield from started(tmp_path, "dledger")


def started(folder: Path, mode: str) -> Iterator[BrokerGroup]:
    """A group until the end of the test."""
    of_proxy = ["--set", "proxy.read_from=replica", "--set", f"proxy.in_flight_max={IN_FLIGHT}"]
    made = BrokerGroup(folder, brokers=3, in_sync_min=2, mode=mode, arguments={"proxy": of_proxy})
    try:
        made.start()
        yield made
        no_traceback(made.proxy, *made.brokers, *made.controllers)
    finally:
        made.end()


def served(broker: Broker) -> int:
    """Requests that a broker has answered as a replica."""
    found = re.search(rb"^rocketmq_replica_reads_total (\d+)", broker.page("/metrics"), re.MULTILINE)
    assert found
    return int(found[1])


def half_read(group: BrokerGroup) -> Client5:
    """A subscriber that has taken the first messages of a history, and no more until it acknowledges them."""
    writer = Client(group.proxy, "writer")
    writer.publish_many("old/a", 0, OLD)
    writer.close()
    master = group.settle()
    end = master.status()["confirmed"]
    until(lambda: all(each.status()["confirmed"] >= end for each in group.brokers), "a replica does not know the end")
    reader = Client5(group.proxy, "reader", expiry_s=600, manual_ack=True)
    assert reader.wish(("from-offset", "0"), name=FILTER) == [1]
    reader.until(lambda: len(reader.messages) >= IN_FLIGHT)
    return reader


def go_on(reader: Client5) -> None:
    """Acknowledge what was taken, and from now on everything at once."""
    taken = list(reader.messages)  # nothing more comes before they are acknowledged

    def received(client: mqtt.Client, data: object, message: mqtt.MQTTMessage) -> None:
        reader._received(client, data, message)
        client.ack(message.mid, message.qos)

    reader.client.on_message = received
    for message in taken:
        reader.client.ack(message.mid, message.qos)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_history_is_read_while_there_is_no_master(group: BrokerGroup, how: signal.Signals) -> None:
    """No controller either: nobody takes over. What was before the subscription comes, and the rest with the master."""
    reader = half_read(group)
    master = group.settle()
    replicas = [each for each in group.brokers if each is not master]
    before = sum(map(served, replicas))
    group.controllers[0].kill()
    assert master.process is not None
    master.process.send_signal(how)
    go_on(reader)
    reader.until(lambda: len(reader.messages) >= OLD)
    assert sum(map(served, replicas)) >= before + (OLD - 2 * IN_FLIGHT) // 64
    if how == signal.SIGKILL:
        master.process.wait()
        master.start()
    else:
        master.process.send_signal(signal.SIGCONT)
    group.controllers[0].start()
    group.settle()
    writer = Client(group.proxy, "writer")
    writer.until(lambda: writer.code == 0)  # it connects again while the proxy has no master yet
    writer.publish_many("old/a", OLD, 100)
    reader.until(lambda: reader.latest.get("old/a") == b"%d" % (OLD + 99))
    assert reader.numbers("old/a") == list(range(OLD + 100))
    writer.close()
    reader.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_history_does_not_go_back_over_a_failover(group: BrokerGroup, how: signal.Signals) -> None:
    """Others publish all the time: the reader gets each of their confirmed messages once, old ones first, in order."""
    over_a_failover(group, how)


def test_nor_where_brokers_elect_their_master(electing: BrokerGroup) -> None:
    """Whichever of them is elected."""
    over_a_failover(electing, signal.SIGKILL)


def test_replicas_of_electing_groups_serve_histories(electing: BrokerGroup) -> None:
    """They are known to the name servers, too: most of what is old comes from them."""
    reader = half_read(electing)
    before = sum(map(served, electing.brokers))
    go_on(reader)
    reader.until(lambda: len(reader.messages) >= OLD)
    assert sum(map(served, electing.brokers)) >= before + OLD // 64 // 2
    assert reader.numbers("old/a") == list(range(OLD))
    reader.close()


def over_a_failover(group: BrokerGroup, how: signal.Signals) -> None:
    """Read on while another broker becomes the master."""
    reader = half_read(group)
    stream = Stream(group.proxy, "old/b")
    stream.flowing()
    master = group.settle()
    assert master.process is not None
    master.process.send_signal(how)
    go_on(reader)
    until(lambda: group.master() not in (None, master), "no new master")
    stream.flowing()
    if how == signal.SIGSTOP:
        master.process.send_signal(signal.SIGCONT)
    count = stream.end()
    reader.until_come(lambda: reader.latest.get("old/b") == b"%d" % (count - 1))
    assert reader.numbers("old/a") == list(range(OLD))
    assert list(dict.fromkeys(reader.numbers("old/b"))) == list(range(count))
    assert [message.topic for message in reader.messages[:OLD]] == ["old/a"] * OLD
    reader.close()
