"""Moving between two clusters over RocketMQ's protocol while messages are sent and the migration is killed.

Every message is there once, in the order of its queue; consumers switch in the middle and switch back, and get every
message; what producers send after their switch is mirrored back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import checked
from tests.processes.broker_group import BrokerGroup
from tests.processes.migrations import (
    GROUP,
    QUEUES,
    TOPIC,
    Consumer,
    Migrator,
    Producer,
    all_of,
    judge,
    make_topic,
    send,
)
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Installation, Installation]]:
    pair = Installation(tmp_path / "old"), Installation(tmp_path / "new")
    try:
        for one in pair:
            one.start()
        yield pair
        no_traceback(*pair)
    finally:
        for one in pair:
            one.kill_if_running()


@pytest.mark.timeout(240)
def test_consumers_switch_and_switch_back_while_the_migration_is_killed(
    clusters: tuple[Installation, Installation], tmp_path: Path
) -> None:
    old, new = clusters
    make_topic(old.address)
    producer = Producer(old.address)
    producer.start()
    producer.flowing()
    migrator = Migrator(old.address, new.address, tmp_path / "migrate.log")
    consumers = [Consumer(old.address)]
    try:
        for _ in range(3):
            migrator.start()
            producer.flowing()
            migrator.kill()
            producer.flowing()
        migrator.start()
        for address in (new.address, old.address):  # there, and back
            consumers[-1].until(100)
            consumers[-1].stop()
            migrator.until_offsets_agree()
            consumers.append(Consumer(address))
        producer.finish()
        sent = set(producer.answered)
        consumers[-1].until(sent - {number for one in consumers for seen in one.seen.values() for number in seen})
        consumers[-1].stop()
        rows = migrator.until_copied()
        assert {row["topic"] for row in rows} >= {TOPIC, f"%RETRY%{GROUP}"}
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
    finally:
        producer.stopped.set()
        migrator.kill()
    assert judge(consumers, sent) == 0
    for queue in range(QUEUES):
        assert all_of(new.address, queue) == [number for number in sorted(sent) if number % QUEUES == queue]


@pytest.mark.timeout(240)
def test_what_is_sent_here_is_mirrored_back_while_the_migration_is_killed(
    clusters: tuple[Installation, Installation], tmp_path: Path
) -> None:
    old, new = clusters
    make_topic(old.address)
    migrator = Migrator(old.address, new.address, tmp_path / "migrate.log")
    for number in range(8):
        checked(send(old.address, number))
    migrator.run("switch", "--topic", TOPIC, "--settle", "0")
    make_topic(old.address)  # writable, as at RocketMQ, whose brokers take messages whatever the topic's permission
    producer = Producer(new.address, first=8)
    consumers = [Consumer(old.address)]
    try:
        migrator.start()
        producer.start()
        consumers[-1].until(100)
        migrator.kill()
        producer.flowing()
        migrator.start()
        producer.finish()
        consumers[-1].stop()
        migrator.until_offsets_agree()
        consumers.append(Consumer(new.address))
        migrator.run("switch-back", "--topic", TOPIC)
        sent = {*range(8), *producer.answered}
        consumers[-1].until(sent - {number for seen in consumers[0].seen.values() for number in seen})
        consumers[-1].stop()
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
    finally:
        producer.stopped.set()
        migrator.kill()
    assert judge(consumers, sent) == 0
    for queue in range(QUEUES):
        wanted = [number for number in sorted(sent) if number % QUEUES == queue]
        assert all_of(old.address, queue) == all_of(new.address, queue) == wanted


@pytest.mark.timeout(240)
def test_a_source_that_is_away_for_a_while_is_followed_again(
    clusters: tuple[Installation, Installation], tmp_path: Path
) -> None:
    old, new = clusters
    make_topic(old.address)
    migrator = Migrator(old.address, new.address, tmp_path / "migrate.log")
    producer = Producer(old.address)
    producer.start()
    producer.flowing()
    try:
        migrator.start()
        producer.flowing()
        old.kill()
        assert "answers" in migrator.refused("status")
        assert "answers" in migrator.refused("copy", "--follow")  # one that begins meanwhile says so and ends
        old.start()
        producer.flowing()
        producer.finish()
        migrator.until_copied()
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
    finally:
        producer.stopped.set()
        migrator.kill()
    for queue in range(QUEUES):
        assert all_of(new.address, queue) == all_of(old.address, queue)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_new_master_of_the_target_continues_the_copies(tmp_path: Path) -> None:
    """The master of the group that messages are copied to dies: nothing is copied twice and nothing is left out."""
    old = Installation(tmp_path / "old")
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    migrator = None
    try:
        old.start()
        group.start()
        master = group.settle()
        make_topic(old.address)
        producer = Producer(old.address)
        producer.start()
        producer.flowing()
        migrator = Migrator(old.address, group.addresses, tmp_path / "migrate.log")
        migrator.start()
        producer.flowing()
        master.kill()
        producer.flowing()
        successor = group.settle()
        producer.finish()
        migrator.until_copied()
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
        address = f"127.0.0.1:{successor.ports['remoting']}"
        for queue in range(QUEUES):
            assert all_of(address, queue) == [one for one in sorted(producer.answered) if one % QUEUES == queue]
        no_traceback(old, *group.brokers, *group.controllers)
    finally:
        if migrator is not None:
            migrator.kill()
        group.end()
        old.kill_if_running()
