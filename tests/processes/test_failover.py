"""A broker group as processes: the master dies or is paused, controllers die; clients notice a pause at most."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.batching import AsyncProducer, Message, ProducerSettings
from remoting.client.connection import dial
from remoting.client.uplink import Uplink
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.failovers import TOPIC, failover
from tests.processes.rig import Client, Process, Stream, expect_all, no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.fixture(params=[1, 3])
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerGroup]:
    """Three brokers, of which two have every acknowledged message; one controller, or three."""
    made = BrokerGroup(tmp_path, controllers=request.param, brokers=3, in_sync_min=2)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_the_master_is_killed_and_nothing_is_lost(group: BrokerGroup) -> None:
    """Sessions online and away, retained messages, order, the log of the broker that returned."""
    online = Client(group.proxy, "online", clean=False)
    online.subscribe(("line/#", 1))
    away = Client(group.proxy, "away", clean=False)
    away.subscribe(("line/#", 1))
    away.close()
    keeper = Client(group.proxy, "keeper")
    keeper.publish("state/x", b"kept", retain=True)
    keeper.close()
    stream = Stream(group.proxy, TOPIC)
    for _ in range(2):
        failover(group, stream)
    counts = {TOPIC: stream.end()}
    expect_all(online, counts)
    fresh = Client(group.proxy, "fresh")
    fresh.subscribe(("state/#", 1))
    fresh.until(lambda: bool(fresh.messages))
    assert [(message.payload, message.retain) for message in fresh.messages] == [(b"kept", True)]
    away = Client(group.proxy, "away", clean=False)
    assert away.present
    expect_all(away, counts)
    for client in (online, away, fresh):
        client.close()
    group.wait_equal()
    equal_logs(group)
    no_traceback(group.proxy, *group.brokers, *group.controllers)


def equal_logs(group: BrokerGroup) -> None:
    """Byte for byte, up to the end of the shorter one: files are longer than their content.

    Sessions that have just ended still commit their offsets, so it may take a moment until nothing is written.
    """

    def same() -> bool:
        first, *others = [log.rstrip(b"\0") for log in group.logs()]
        return bool(first) and all(other == first for other in others)

    until(same, "the logs differ")


def test_a_paused_master_is_replaced_and_acknowledges_nothing_afterwards(tmp_path: Path) -> None:
    """When it continues it is a replica; its log is truncated to what the others have."""
    group = BrokerGroup(tmp_path, brokers=3)
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        master = group.settle()
        stream.flowing()
        assert master.process is not None
        master.process.send_signal(signal.SIGSTOP)
        stream.flowing()
        master.process.send_signal(signal.SIGCONT)
        until(lambda: master.status().get("role") == "replica", "it does not follow")
        assert group.settle() is not master
        expect_all(reader, {TOPIC: stream.end()})
        reader.close()
        group.wait_equal()
        equal_logs(group)
    finally:
        group.end()


def test_without_any_controller_messages_are_accepted_as_before(group: BrokerGroup) -> None:
    """No connection ends and nothing is refused; with the controllers back a master can be lost again."""
    stream = Stream(group.proxy, TOPIC)
    stream.flowing()
    for controller in group.controllers:
        controller.kill()
    for _ in range(5):
        stream.flowing()
    log = group.proxy.log.read_text()
    assert "broker_lost" not in log
    assert "connection_ended" not in log
    for controller in group.controllers:
        controller.start()
    group.settle()
    failover(group, stream)
    stream.end()


def test_the_producer_moves_to_the_new_master(tmp_path: Path) -> None:
    """Every message has its offset, in the order it was sent, however often the master dies."""
    group = BrokerGroup(tmp_path, brokers=3)
    try:
        group.start()
        asyncio.run(produce(group))
    finally:
        group.end()


async def produce(group: BrokerGroup) -> None:
    """Send while the master is killed, and check the offsets."""
    uplink = Uplink.configured(dial, "", group.addresses.split(","), "")
    uplink.start()
    seed = Client(group.proxy, "seed")
    seed.publish("made/x", b"by its first message")
    seed.close()
    producer = AsyncProducer(uplink.connection, ProducerSettings(attempts_max=50, timeout_ms=5_000))
    futures = []
    for number in range(2_000):
        futures.append(await producer.send(Message(topic="made", body=b"%d" % number, queue=0)))
        if number == 1_000:
            master = await asyncio.to_thread(group.settle)
            await asyncio.to_thread(master.kill)
        await asyncio.sleep(0.001)
    places = [sent.offset for sent in await asyncio.gather(*futures)]
    assert places == sorted(set(places))
    await producer.close()
    await uplink.close()


def test_a_flipped_bit_of_a_replica_is_repaired_from_the_master(tmp_path: Path) -> None:
    """In the log file of a broker that was stopped: all logs are equal again, and it reports the repair."""
    group = BrokerGroup(tmp_path, controllers=1, brokers=3, in_sync_min=2)
    try:
        group.start()
        stream = Stream(group.proxy, TOPIC)
        stream.flowing(500)
        stream.end()
        group.wait_equal()
        replica = next(each for each in group.brokers if each is not group.master())
        number = group.brokers.index(replica) + 1
        replica.end(signal.SIGTERM)
        flip_bit(tmp_path / f"broker-{number}-data" / "log")
        replica.start()
        until(lambda: "damaged_log_given_up" in replica.log.read_text(), "the damage was not found")
        group.settle()
        group.wait_equal()
        equal_logs(group)
        assert "log_damage" in replica.log.read_text()
        assert page_value(replica, "rocketmq_replica_damaged_bytes_total") > 0
        assert page_value(replica, "rocketmq_replica_cut_bytes_total") == 0
        no_traceback(group.proxy, *group.brokers, *group.controllers)
    finally:
        group.end()


def flip_bit(log: Path) -> None:
    """Change one bit in the middle of the first file's content."""
    path = min(each for each in log.iterdir() if each.name.isdigit())
    middle = len(path.read_bytes().rstrip(b"\0")) // 2
    with path.open("r+b") as file:
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 16]))


def page_value(broker: Process, name: str) -> float:
    """A metric of a broker."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['admin']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))
