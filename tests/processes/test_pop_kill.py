"""POP through `kill -9`: acknowledged messages are never delivered again, all others until they are acknowledged.

A consumer pops and acknowledges four of five messages while the broker is killed repeatedly, or while the master of a
group is killed and stays down. At the end every unacknowledged message is popped. A consumer in order finds in each
answer the lowest numbers of a queue that are not acknowledged.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.processes.broker_group import BrokerGroup
from tests.processes.pop_restarts import lost_by_kill_of_all, run
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes
TOPIC, GROUP = "jobs", "workers"
INVISIBLE_MS = 1_000
ACKNOWLEDGED = 60
"""Acknowledgements that are answered between two kills."""


def sending(number: int) -> Command:
    fields = {
        "a": "p",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": str(number % 4),
        "f": "0",
        "g": "5",
        "h": "0",
        "i": "",
    }
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)


def popping(poll_ms: int = 200, attempt: str = "") -> Command:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "8", "pollTime": str(poll_ms),
              "invisibleTime": str(INVISIBLE_MS), "bornTime": "0", "initMode": "0"}  # fmt: skip
    fields |= {"order": "true", "attemptId": attempt} if attempt else {}
    return Command(RequestCode.POP_MESSAGE, fields=fields)


def acknowledging(message: StoredMessage, answer: Command, broker: str) -> Command:
    topic = message.topic.decode()
    mark = "2" if topic.startswith("%RETRY%") else "0"
    handle = (
        f"{message.queue_offset} {answer.fields['popTime']} {answer.fields['invisibleTime']} 0 {mark} {broker} "
        f"{message.queue_id} {message.queue_offset}"
    )
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": str(message.queue_id),
              "offset": str(message.queue_offset), "extraInfo": handle}  # fmt: skip
    return Command(RequestCode.ACK_MESSAGE, fields=fields)


class Consumer(threading.Thread):
    """Sends, pops and acknowledges all but every fifth message; in order, these at their second delivery."""

    def __init__(self, address: str, broker: str, *, ordered: bool = False) -> None:
        super().__init__(daemon=True)
        self.ordered = ordered
        self.attempt = ""
        """In order: the attempt that has not been answered yet, or none."""
        self.misplaced: list[tuple[int, list[int], list[int]]] = []
        """In order: (queue, numbers in an answer, numbers that were to be consumed)."""
        self.address = address
        self.broker = broker
        self.stopped = threading.Event()
        self.left: set[int] = set()
        """In order: numbers that were not acknowledged at their first delivery."""
        self.sent: set[int] = set()
        """Numbers whose message was answered; those of others may be missing."""
        self.acknowledged: set[int] = set()
        """Numbers whose acknowledgement was answered."""
        self.unsure: set[int] = set()
        """Numbers whose acknowledgement was sent and not answered."""
        self.repeated: list[int] = []
        """Numbers that came again after their acknowledgement was answered."""
        self._next = 0
        self._grew = threading.Condition()

    def run(self) -> None:
        connection: BlockingConnection | None = None
        while not self.stopped.is_set():
            try:
                connection = connection or BlockingConnection.dial(self.address, 5_000)
                for _ in range(8):
                    number, self._next = self._next, self._next + 1
                    checked(connection.request(sending(number)))
                    self.sent.add(number)
                self.consume(connection, leave=True)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    def consume(self, connection: BlockingConnection, *, leave: bool, poll_ms: int = 200) -> int:
        """Pop once and acknowledge the messages; returns how many came."""
        self.attempt = self.attempt or (uuid.uuid4().hex if self.ordered else "")
        answer = connection.request(popping(poll_ms, self.attempt))
        self.attempt = ""
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return 0
        messages = list(iter_stored(checked(answer).body))
        if self.ordered:
            self.check_order(messages)
        for message in messages:
            number = int(message.body)
            if number in self.acknowledged:
                self.repeated.append(number)
            if leave and number % 5 == 4 and number not in self.left:
                if self.ordered:  # one that is left for ever closes its queue for ever
                    self.left.add(number)
                continue
            self.unsure.add(number)
            reply = connection.request(acknowledging(message, answer, self.broker))
            if reply.code == ResponseCode.NO_MESSAGE:
                self.unsure.discard(number)
                continue  # its time ended in transit: it comes again
            checked(reply)
            self.unsure.discard(number)
            with self._grew:
                self.acknowledged.add(number)
                self._grew.notify_all()
        return len(messages)

    def check_order(self, messages: list[StoredMessage]) -> None:
        """Each queue gives its lowest numbers that are not acknowledged, where that is certain."""
        for queue in {message.queue_id for message in messages}:
            found = [int(message.body) for message in messages if message.queue_id == queue]
            below = range(queue, found[-1] + 1, 4)
            wanted = [at for at in below if at in found or at in self.sent - self.acknowledged - self.unsure]
            if found != wanted or any(message.topic.startswith(b"%RETRY%") for message in messages):
                self.misplaced.append((queue, found, wanted))

    def flowing(self) -> None:
        """Return when this many more acknowledgements were answered."""
        with self._grew:
            wanted = len(self.acknowledged) + ACKNOWLEDGED
            assert self._grew.wait_for(lambda: len(self.acknowledged) >= wanted, 60)


def judge(consumer: Consumer) -> None:
    """Let the consumer end and pop the rest: everything comes, nothing that was acknowledged comes again."""
    consumer.flowing()
    consumer.stopped.set()
    consumer.join()
    with BlockingConnection.dial(consumer.address, 10_000) as connection:
        while consumer.sent - consumer.acknowledged - consumer.unsure:
            assert consumer.consume(connection, leave=False, poll_ms=5 * INVISIBLE_MS), "something is lost"
        while consumer.consume(connection, leave=False, poll_ms=3 * INVISIBLE_MS):
            pass
    assert not consumer.repeated
    assert not consumer.misplaced


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_acknowledgements_survive_kills_and_the_rest_is_delivered_again(
    tmp_path: Path, kills: int, ordered: bool
) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        consumer = Consumer(server.address, "broker-a", ordered=ordered)
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
@pytest.mark.parametrize("ordered", [False, True])
def test_masters_know_what_is_in_flight_and_what_was_acknowledged(tmp_path: Path, ordered: bool) -> None:
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        group.start()
        master = group.settle()
        consumer = Consumer(f"127.0.0.1:{master.ports['remoting']}", "broker-a", ordered=ordered)
        consumer.start()
        consumer.flowing()
        master.kill()
        successor = group.settle()
        consumer.address = f"127.0.0.1:{successor.ports['remoting']}"
        judge(consumer)
        master.start()
        assert not lost_by_kill_of_all(group, 0)
        no_traceback(*group.brokers, *group.controllers)
    finally:
        group.end()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_nothing_that_was_given_is_lost_when_all_brokers_die(tmp_path: Path, mode: str) -> None:
    assert run(tmp_path, rounds=10, mode=mode)["lost"] == []
