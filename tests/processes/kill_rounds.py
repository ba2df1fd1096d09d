"""Messages sent while the broker is killed repeatedly, or while the master of a group is killed and stays down.

Shared by the tests of transactions and of recalls: a `Load` sends, and a function of the test judges what is left.
Thread rule: a load is one thread; `flowing` may be called from any other one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Installation, no_traceback


class Load(threading.Thread):
    """Calls `step` until stopped; reconnects after failures."""

    answered_min: int
    """Requests answered between two kills."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.stopped = threading.Event()
        self.answered: set[int] = set()
        self._grew = threading.Condition()

    def step(self, connection: BlockingConnection, number: int) -> None:
        """Send the message with this number and the requests about older ones."""
        raise NotImplementedError

    def run(self) -> None:
        connection: BlockingConnection | None = None
        number = -1
        while not self.stopped.is_set():
            try:
                connection = connection or BlockingConnection.dial(self.address, 5_000)
                number += 1
                self.step(connection, number)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    def count(self, number: int) -> None:
        """Record that the request about this message was answered."""
        with self._grew:
            self.answered.add(number)
            self._grew.notify_all()

    def flowing(self) -> None:
        """Return when `answered_min` more requests have been answered."""
        with self._grew:
            wanted = len(self.answered) + self.answered_min
            assert self._grew.wait_for(lambda: len(self.answered) >= wanted, 60)

    def finish(self) -> None:
        """Wait until requests are answered again, then end the thread."""
        self.flowing()
        self.stopped.set()
        self.join()


L = TypeVar("L", bound=Load)


def published(connection: BlockingConnection, topic: str) -> list[int]:
    """The numbers of the messages in the topic."""
    listed = json.loads(checked(connection.request(Command(RequestCode.TOPIC_LIST))).body)["topics"]
    found: list[int] = []
    for queue in next(each for each in listed if each["topic"] == topic)["queues"]:
        offset = 0
        while offset < queue["max"]:
            want = encode_range_pull(queue["id"], offset, queue["max"], 1 << 20)
            reply = checked(connection.request(Command(RequestCode.RANGE_PULL, body=want)))
            records = list(iter_records(decode_range_pull_reply(reply.body).blob))
            found += [int(bytes(record.body)) for record in records]
            offset += len(records)
    return found


def judge_after_kills(directory: Path, load_type: Callable[[str], L], judge: Callable[[L], None], kills: int) -> None:
    """Kill and restart a broker under load so many times, then judge."""
    server = Installation(directory / "data")
    server.start()
    try:
        load = load_type(server.address)
        load.start()
        for _ in range(kills):
            load.flowing()
            server.kill()
            server.start()
        judge(load)
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


def judge_on_new_master(directory: Path, load_type: Callable[[str], L], judge: Callable[[L], None]) -> None:
    """Kill the master of a group of three under load, then judge on its successor."""
    group = BrokerGroup(directory, brokers=3, in_sync_min=2)
    try:
        group.start()
        master = group.settle()
        load = load_type(f"127.0.0.1:{master.ports['remoting']}")
        load.start()
        load.flowing()
        master.kill()
        successor = group.settle()
        load.address = f"127.0.0.1:{successor.ports['remoting']}"
        judge(load)
        no_traceback(*group.brokers, *group.controllers)
    finally:
        group.end()
