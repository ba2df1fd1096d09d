"""Recall and change of time of delayed messages through `kill -9` and a change of master.

What was recalled never comes, the rest waits and comes once. A producer sends delayed messages and recalls the odd ones
while the broker is killed again and again, or the master of a group is killed for good. A recall that was not answered
is repeated at the end.
"""

from __future__ import annotations

import json
import threading
import time
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
TOPIC = "alarms"
ANSWERED = 40
"""Recalls that are answered between two kills."""
FAR_MS = 3_600_000
LAST_MS = 2_000
"""The delay of the last messages, which are seen delivered."""


class Producer(threading.Thread):
    """Sends messages that are due in an hour; later it recalls the odd ones and changes the time of the others."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.stopped = threading.Event()
        self.handles: dict[int, str] = {}
        self.recalled: set[int] = set()
        self._sent = 0
        self._grew = threading.Condition()

    def send(self, connection: BlockingConnection, number: int, due_ms: int) -> str:
        """The handle of a message with this number."""
        properties = {b"UNIQ_KEY": b"%032d" % number, b"TIMER_DELIVER_MS": b"%d" % due_ms}
        fields = {"a": "g", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "5", "h": "0",
                  "i": encode_properties(properties.items()).decode()}  # fmt: skip
        command = Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)
        return checked(connection.request(command)).fields["recallHandle"]

    def recall(self, connection: BlockingConnection, number: int) -> None:
        """Recall a message that was acknowledged; doing so twice has the effect of once."""
        fields = {"producerGroup": "g", "topic": TOPIC, "recallHandle": self.handles[number]}
        reply = checked(connection.request(Command(RequestCode.RECALL_MESSAGE, fields=fields)))
        assert reply.fields["msgId"] == f"{number:032d}"
        with self._grew:
            self.recalled.add(number)
            self._grew.notify_all()

    def reschedule(self, connection: BlockingConnection, number: int, delay_ms: int) -> None:
        """Change the time of a message; if that was not answered its handle may be void."""
        fields = {"topic": TOPIC, "recallHandle": self.handles[number], "delayMs": str(delay_ms)}
        reply = checked(connection.request(Command(RequestCode.RESCHEDULE_MESSAGE, fields=fields)))
        self.handles[number] = reply.fields["recallHandle"]

    def run(self) -> None:
        connection: BlockingConnection | None = None
        while not self.stopped.is_set():
            try:
                connection = connection or BlockingConnection.dial(self.address, 5_000)
                number, self._sent = self._sent, self._sent + 1
                self.handles[number] = self.send(connection, number, self.due_ms)
                if number % 2 and number - 6 in self.handles:  # odd as well
                    self.recall(connection, number - 6)
                elif not number % 2 and number - 6 in self.handles:
                    self.reschedule(connection, number - 6, FAR_MS)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    @property
    def due_ms(self) -> int:
        """The time at which messages sent now are due."""
        return time.time_ns() // 1_000_000 + FAR_MS

    def flowing(self) -> None:
        """Return when this many more recalls were answered."""
        with self._grew:
            wanted = len(self.recalled) + ANSWERED
            assert self._grew.wait_for(lambda: len(self.recalled) >= wanted, 60)


def timers(connection: BlockingConnection) -> list[str]:
    """The unique keys of all waiting messages."""
    found: list[str] = []
    after = "0/0"
    while True:
        fields = {"limit": "1000", "after": after}
        page = json.loads(checked(connection.request(Command(RequestCode.TIMERS, fields=fields))).body)
        found += [one["id"] for one in page["timers"]]
        if not page["more"]:
            return found
        after = page["next"]


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
    """Recall the rest of the odd numbers: the even ones wait; of some due soon the recalled one is not delivered."""
    producer.flowing()
    producer.stopped.set()
    producer.join()
    first = max(producer.handles) + 1
    with BlockingConnection.dial(producer.address) as connection:
        assert not set(timers(connection)) & {f"{number:032d}" for number in producer.recalled}
        for number in [number for number in producer.handles if number % 2]:
            producer.recall(connection, number)
        waiting = timers(connection)
        even = {f"{number:032d}" for number in producer.handles if not number % 2}
        assert even <= set(waiting)
        assert len(waiting) == len(set(waiting))
        assert not set(waiting) & {f"{number:032d}" for number in producer.handles if number % 2}
        last_even = max(number for number in producer.handles if not number % 2)
        producer.reschedule(connection, last_even, LAST_MS)
        soon_ms = producer.due_ms - FAR_MS + LAST_MS
        for number in range(first, first + 10):
            producer.handles[number] = producer.send(connection, number, soon_ms + number - first)
        producer.recall(connection, first + 3)
        wanted = [last_even, *(number for number in range(first, first + 10) if number != first + 3)]
        deadline = time.monotonic() + 30
        while sorted(published(connection)) != wanted:
            assert time.monotonic() < deadline, sorted(published(connection))
            time.sleep(0.05)


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_recalled_messages_are_not_delivered_after_kills(tmp_path: Path, kills: int) -> None:
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
def test_a_new_master_knows_what_was_recalled(tmp_path: Path) -> None:
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
