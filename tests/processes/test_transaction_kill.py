"""Transactions through `kill -9`: what was committed is published once, what was rolled back or left open never.

A producer prepares and decides while the broker is killed again and again, or the master of a group is killed for good.
Decisions that were not answered are repeated at the end; one that was carried out already must not publish twice.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.record import iter_records
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes
TOPIC, GROUP = "payments", "payers"
COMMIT, ROLL_BACK = 8, 12
DECIDED = 60
"""Decisions that are answered between two kills."""


def half(number: int) -> Command:
    """A half message with this number."""
    properties = {b"TRAN_MSG": b"true", b"PGROUP": GROUP.encode(), b"UNIQ_KEY": b"%032d" % number}
    fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "4", "g": "5", "h": "0",
              "i": encode_properties(properties.items()).decode()}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)


class Producer(threading.Thread):
    """Prepares messages and decides them a little later: of five two are committed, two rolled back, one is left."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.prepared: dict[int, Command] = {}
        self.answered: set[int] = set()
        self.address = address
        self._sent = 0
        self._grew = threading.Condition()

    def decision(self, number: int) -> Command | None:
        """The producer's decision on an acknowledged half message; None for one it leaves open."""
        if number % 5 == 4:
            return None
        sent = self.prepared[number].fields
        fields = {
            "topic": TOPIC, "producerGroup": GROUP, "tranStateTableOffset": sent["queueOffset"],
            "commitLogOffset": str(int(sent["msgId"][16:], 16)),
            "commitOrRollback": str(COMMIT if number % 5 < 2 else ROLL_BACK),
        }  # fmt: skip
        return Command(RequestCode.END_TRANSACTION, fields=fields)

    def run(self) -> None:
        connection: BlockingConnection | None = None
        while not self.stopped.is_set():
            try:
                connection = connection or BlockingConnection.dial(self.address, 5_000)
                number, self._sent = self._sent, self._sent + 1
                self.prepared[number] = checked(connection.request(half(number)))
                self.decide(connection, number - 7)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    def decide(self, connection: BlockingConnection, number: int) -> None:
        """Decide it, if it is there and not left open."""
        command = self.decision(number) if number in self.prepared else None
        if command is not None:
            checked(connection.request(command))
            with self._grew:
                self.answered.add(number)
                self._grew.notify_all()

    def flowing(self) -> None:
        """Return when this many more decisions were answered."""
        with self._grew:
            wanted = len(self.answered) + DECIDED
            assert self._grew.wait_for(lambda: len(self.answered) >= wanted, 60)


def published(connection: BlockingConnection) -> list[int]:
    """The numbers in the topic."""
    listed = json.loads(checked(connection.request(Command(RequestCode.TOPIC_LIST))).body)["topics"]
    found: list[int] = []
    for queue in next(topic for topic in listed if topic["topic"] == TOPIC)["queues"]:
        offset = 0
        while offset < queue["max"]:
            want = encode_range_pull(queue["id"], offset, queue["max"], 1 << 20)
            reply = checked(connection.request(Command(RequestCode.RANGE_PULL, body=want)))
            records = list(iter_records(decode_range_pull_reply(reply.body).blob))
            found += [int(bytes(record.body)) for record in records]
            offset += len(records)
    return found


def judge(producer: Producer) -> None:
    """Let the producer end, and decide the rest: each committed number is there once, and no other."""
    producer.flowing()
    producer.stopped.set()
    producer.join()
    with BlockingConnection.dial(producer.address) as connection:
        assert {number for number in producer.answered if number % 5 < 2} <= set(published(connection))
        for number in sorted(set(producer.prepared) - producer.answered):
            producer.decide(connection, number)
        for number in sorted(producer.answered)[-20:]:
            producer.decide(connection, number)
        numbers = published(connection)
    assert sorted(numbers) == [number for number in sorted(producer.prepared) if number % 5 < 2]


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_commits_are_published_once_and_nothing_else_over_kills(tmp_path: Path, kills: int) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        producer = Producer(server.address)
        producer.start()
        for _ in range(kills):
            producer.flowing()
            server.kill()
            server.start()
        judge(producer)
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


@pytest.mark.timeout(400)
def test_a_new_master_knows_what_is_open_and_what_was_decided(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        group.start()
        master = group.settle()
        producer = Producer(f"127.0.0.1:{master.ports['remoting']}")
        producer.start()
        producer.flowing()
        master.kill()
        successor = group.settle()
        producer.address = f"127.0.0.1:{successor.ports['remoting']}"
        judge(producer)
        no_traceback(*group.brokers, *group.controllers)
    finally:
        group.end()
