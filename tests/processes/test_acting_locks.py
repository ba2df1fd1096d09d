"""Locks in strict mode over real brokers: a replica that stands in grants them while more than half agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from tests.processes.acting_groups import acting
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.test_queue_locks import lock, send

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

OPTIONS = ("acting_master=true", "lock_in_strict_mode=true", "group_size=3")


def asked(broker: Broker, client_id: str) -> list[int]:
    with BlockingConnection.dial(f"127.0.0.1:{broker.ports['remoting']}") as connection:
        return lock(connection, client_id)


def test_a_lock_takes_a_majority_of_the_configured_brokers(tmp_path: Path) -> None:
    words = [word for option in OPTIONS for word in ("--set", f"broker.replication.{option}")]
    group = BrokerGroup(
        tmp_path, controllers=3, brokers=3, in_sync_min=2,
        arguments={"broker": words, "controller": ["--set", "controller.broker_lost_grace_ms=2500"]},
    )  # fmt: skip
    try:
        group.start()
        master = group.settle()
        with BlockingConnection.dial(f"127.0.0.1:{master.ports['remoting']}") as connection:
            send(connection)
        until(lambda: asked(master, "a"), "a new master gives nothing away for too long")
        (token,) = asked(master, "a")
        group.wait_equal()
        for each in group.controllers[1:]:
            each.kill()
        master.kill()
        left = [each for each in group.brokers if each is not master]
        until(lambda: acting(left), "nobody stands in")
        (replica,) = acting(left)
        assert asked(replica, "a") == [token]
        assert asked(replica, "b") == []

        (other,) = [each for each in left if each is not replica]
        other.kill()
        assert asked(replica, "a") == [], "one of three is no majority"
        other.start()
        until(lambda: asked(replica, "a") == [token], "the majority is there again")

        for each in (*group.controllers[1:], master):
            each.start()
        again = group.settle()
        assert asked(again, "b") == []
        assert asked(again, "a") == [token]
    finally:
        group.end()
