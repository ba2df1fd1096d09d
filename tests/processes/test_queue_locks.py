"""Queue locks through `kill -9` and a change of master: the owner keeps its queue and its token, others wait."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes


def send(connection: BlockingConnection) -> None:
    """A message that creates the topic `orders` with one queue."""
    fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    checked(connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x")))


def lock(connection: BlockingConnection, client_id: str, code: int = RequestCode.LOCK_BATCH_MQ) -> list[int]:
    """The fencing token of the queue, if it was locked."""
    queues = [{"topic": "orders", "brokerName": "b", "queueId": 0}]
    body = msgspec.json.encode({"consumerGroup": "g", "clientId": client_id, "mqSet": queues})
    reply = checked(connection.request(Command(code, body=body)))
    return [one["token"] for one in msgspec.json.decode(reply.body)["fencingTokens"]] if reply.body else []


def test_a_killed_broker_knows_the_owner_of_a_queue(tmp_path: Path) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        with BlockingConnection.dial(server.address) as connection:
            send(connection)
            (token,) = lock(connection, "a")
        server.kill()
        server.start()
        with BlockingConnection.dial(server.address) as connection:
            assert lock(connection, "b") == []
            assert lock(connection, "a") == [token]
            lock(connection, "a", RequestCode.UNLOCK_BATCH_MQ)
            assert lock(connection, "b") > [token]
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


@pytest.mark.timeout(400)
def test_a_new_master_knows_the_owner_of_a_queue(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        group.start()
        master = group.settle()
        with BlockingConnection.dial(f"127.0.0.1:{master.ports['remoting']}") as connection:
            send(connection)
            (token,) = lock(connection, "a")
        master.kill()
        successor = group.settle()
        with BlockingConnection.dial(f"127.0.0.1:{successor.ports['remoting']}") as connection:
            assert lock(connection, "b") == []
            assert lock(connection, "a") == [token]
            lock(connection, "a", RequestCode.UNLOCK_BATCH_MQ)
            assert lock(connection, "b") > [token]
        no_traceback(*group.brokers, *group.controllers)
    finally:
        group.end()
