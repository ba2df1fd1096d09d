"""Recall and change of time of delayed messages through `kill -9` and a change of master.

A recalled message is never delivered; each of the others waits and is delivered once. A producer sends delayed messages
and recalls the odd ones while the broker is killed repeatedly, or while the master of a group is killed and stays down.
Unanswered recalls are repeated at the end.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from tests.processes.kill_rounds import Load, judge_after_kills, judge_on_new_master, published

pytestmark = pytest.mark.processes
TOPIC = "alarms"
FAR_MS = 3_600_000
LAST_MS = 2_000
"""Delay of the last messages, whose delivery is checked."""


class Producer(Load):
    """Sends messages that are due in an hour; later it recalls the odd ones and changes the time of the others."""

    answered_min = 40

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.handles: dict[int, str] = {}

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
        self.count(number)

    def reschedule(self, connection: BlockingConnection, number: int, delay_ms: int) -> None:
        """Change the time of a message; if the request is not answered, its handle may no longer be valid."""
        fields = {"topic": TOPIC, "recallHandle": self.handles[number], "delayMs": str(delay_ms)}
        reply = checked(connection.request(Command(RequestCode.RESCHEDULE_MESSAGE, fields=fields)))
        self.handles[number] = reply.fields["recallHandle"]

    def step(self, connection: BlockingConnection, number: int) -> None:
        self.handles[number] = self.send(connection, number, self.due_ms)
        if number % 2 and number - 6 in self.handles:  # odd as well
            self.recall(connection, number - 6)
        elif not number % 2 and number - 6 in self.handles:
            self.reschedule(connection, number - 6, FAR_MS)

    @property
    def due_ms(self) -> int:
        """The time at which messages sent now are due."""
        return time.time_ns() // 1_000_000 + FAR_MS


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


def judge(producer: Producer) -> None:
    """Recall the rest of the odd numbers: the even ones wait; of some due soon the recalled one is not delivered."""
    producer.finish()
    first = max(producer.handles) + 1
    with BlockingConnection.dial(producer.address) as connection:
        assert not set(timers(connection)) & {f"{number:032d}" for number in producer.answered}
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
        while sorted(published(connection, TOPIC)) != wanted:
            assert time.monotonic() < deadline, sorted(published(connection, TOPIC))
            time.sleep(0.05)


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_recalled_messages_are_not_delivered_after_kills(tmp_path: Path, kills: int) -> None:
    judge_after_kills(tmp_path, Producer, judge, kills)


@pytest.mark.timeout(400)
def test_a_new_master_knows_what_was_recalled(tmp_path: Path) -> None:
    judge_on_new_master(tmp_path, Producer, judge)
