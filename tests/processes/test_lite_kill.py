"""Lite topics through `kill -9`: acknowledged messages never come again, all others do, each lite topic in order.

A consumer sends to eight lite topics, pops them and acknowledges four of five messages while the broker is killed
repeatedly, or while the master of a group is killed and stays down. At the end every unacknowledged message is popped.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes
PARENT, GROUP = "agents", "workers"
LITE_TOPICS = 8
INVISIBLE_MS = 1_000
ACKNOWLEDGED = 60
"""Acknowledgements that are answered between two kills."""


def creating() -> list[Command]:
    attributes = {"topic": PARENT, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
                  "attributes": "+message.type=LITE"}  # fmt: skip
    group = {"groupName": GROUP, "attributes": {"+lite.bind.topic": PARENT}}
    return [
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=attributes),
        Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()),
    ]


def subscribing() -> Command:
    entry = {"action": "COMPLETE_ADD", "clientId": "c", "group": GROUP, "topic": PARENT,
             "liteTopicSet": [f"t{number}" for number in range(LITE_TOPICS)]}  # fmt: skip
    return Command(RequestCode.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [entry]}).encode())


def sending(number: int) -> Command:
    fields = {
        "a": "p",
        "b": PARENT,
        "c": "TBW102",
        "d": "4",
        "e": "-1",
        "f": "0",
        "g": "5",
        "h": "0",
        "i": f"__LITE_TOPIC\x01t{number % LITE_TOPICS}\x02",
    }
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)


def popping(poll_ms: int) -> Command:
    fields = {"clientId": "c", "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": "8", "pollTime": str(poll_ms),
              "invisibleTime": str(INVISIBLE_MS), "bornTime": "0"}  # fmt: skip
    return Command(RequestCode.POP_LITE_MESSAGE, fields=fields)


def acknowledging(message: StoredMessage, answer: Command, broker: str) -> Command:
    lite_topic = dict(message.properties)[b"__LITE_TOPIC"].decode()
    fields = answer.fields
    handle = f"0 {fields['popTime']} {fields['invisibleTime']} 999 0 {broker} 0 {message.queue_offset}"
    named = {"consumerGroup": GROUP, "topic": PARENT, "queueId": "0", "offset": str(message.queue_offset),
             "extraInfo": handle, "liteTopic": lite_topic}  # fmt: skip
    return Command(RequestCode.ACK_MESSAGE, fields=named)


class Consumer(threading.Thread):
    """Sends, pops and acknowledges; leaves every fifth message at its first delivery."""

    def __init__(self, address: str, broker: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.broker = broker
        self.stopped = threading.Event()
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()
        """Numbers whose acknowledgement was answered."""
        self.unsure: set[int] = set()
        """Numbers whose acknowledgement was sent and not answered."""
        self.repeated: list[int] = []
        """Numbers that came again after their acknowledgement was answered."""
        self.unordered: list[int] = []
        """Numbers that first came after a later one of their lite topic."""
        self._newest = dict.fromkeys(range(LITE_TOPICS), -1)
        self._seen: set[int] = set()
        self._next = 0
        self._grew = threading.Condition()

    def run(self) -> None:
        connection: BlockingConnection | None = None
        while not self.stopped.is_set():
            try:
                if connection is None:
                    connection = BlockingConnection.dial(self.address, 5_000)
                    checked(connection.request(subscribing()))
                for _ in range(LITE_TOPICS):
                    number, self._next = self._next, self._next + 1
                    checked(connection.request(sending(number)))
                    self.sent.add(number)
                self.consume(connection, leave=True)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    def consume(self, connection: BlockingConnection, *, leave: bool, poll_ms: int = 200) -> int:
        """Pop once and acknowledge the messages; returns how many came."""
        answer = connection.request(popping(poll_ms))
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return 0
        messages = list(iter_stored(checked(answer).body))
        for message in messages:
            number = int(message.body)
            if self._is_new(number) and leave and number % 5 == 4:
                continue
            self.unsure.add(number)
            reply = connection.request(acknowledging(message, answer, self.broker))
            if reply.code == ResponseCode.NO_MESSAGE:
                self.unsure.discard(number)
                continue  # it was given again meanwhile
            checked(reply)
            self.unsure.discard(number)
            with self._grew:
                self.acknowledged.add(number)
                self._grew.notify_all()
        return len(messages)

    def _is_new(self, number: int) -> bool:
        """Note a message; whether this is its first delivery."""
        if number in self.acknowledged:
            self.repeated.append(number)
        if number in self._seen:
            return False
        self._seen.add(number)
        if number < self._newest[number % LITE_TOPICS]:
            self.unordered.append(number)
        self._newest[number % LITE_TOPICS] = number
        return True

    def flowing(self) -> None:
        """Return when this many more acknowledgements were answered."""
        with self._grew:
            wanted = len(self.acknowledged) + ACKNOWLEDGED
            assert self._grew.wait_for(lambda: len(self.acknowledged) >= wanted, 60)


def prepare(address: str) -> None:
    with BlockingConnection.dial(address, 10_000) as connection:
        for command in creating():
            checked(connection.request(command))


def judge(consumer: Consumer) -> None:
    """Let the consumer end and pop the rest: everything comes, nothing that was acknowledged comes again."""
    consumer.flowing()
    consumer.stopped.set()
    consumer.join()
    with BlockingConnection.dial(consumer.address, 10_000) as connection:
        checked(connection.request(subscribing()))
        while consumer.sent - consumer.acknowledged - consumer.unsure:
            assert consumer.consume(connection, leave=False, poll_ms=5 * INVISIBLE_MS), "something is lost"
        while consumer.consume(connection, leave=False, poll_ms=3 * INVISIBLE_MS):
            pass
    assert not consumer.repeated
    assert not consumer.unordered


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_acknowledgements_survive_kills_and_the_rest_is_delivered_again(tmp_path: Path, kills: int) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        prepare(server.address)
        consumer = Consumer(server.address, "broker-a")
        consumer.start()
        for _ in range(kills):
            consumer.flowing()
            server.kill()
            server.start()
        judge(consumer)
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


@pytest.mark.timeout(400)
def test_a_new_master_knows_what_is_in_flight_and_what_was_acknowledged(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        group.start()
        master = group.settle()
        prepare(f"127.0.0.1:{master.ports['remoting']}")
        consumer = Consumer(f"127.0.0.1:{master.ports['remoting']}", "broker-a")
        consumer.start()
        consumer.flowing()
        master.kill()
        successor = group.settle()
        consumer.address = f"127.0.0.1:{successor.ports['remoting']}"
        judge(consumer)
        no_traceback(*group.brokers, *group.controllers)
    finally:
        group.end()
