"""`lightmq migrate rocketmq` as a process, a producer of numbered messages, a consumer that moves between clusters.

Requests are RocketMQ's, so a cluster may be LightMQ or RocketMQ. Thread rule: a consumer and a producer are one thread
each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.signature import Signer
from tests.processes.kill_rounds import Load
from tests.processes.rig import DEADLINE_S, ROOT

QUEUES = 4
TOPIC, GROUP = "orders", "billing"


def make_topic(address: str, queues: int = QUEUES) -> None:
    """The topic and the group, at a broker."""
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
              "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
              "attributes": "+message.type=NORMAL"}  # fmt: skip
    group = {"groupName": GROUP, "retryMaxTimes": 7, "retryQueueNums": 2, "consumeFromMinEnable": True}
    with BlockingConnection.dial(address) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        body = json.dumps(group).encode()
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))


def sending(number: int) -> Command:
    """A message with this number, with everything a producer can give."""
    properties = {b"UNIQ_KEY": b"%032d" % number, b"TAGS": b"t%d" % (number % 3), b"KEYS": b"k%d" % number,
                  b"own": b"v%d" % number}  # fmt: skip
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0",
              "g": str(1_000 + number), "h": str(number % 5), "i": encode_properties(properties.items()).decode(),
              "j": "0", "k": "false"}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)


def send(address: str, number: int, signer: Signer | None = None) -> Command:
    """Send one message; returns the answer."""
    with BlockingConnection.dial(address, signer=signer) as connection:
        return connection.request(sending(number))


class Producer(Load):
    """Sends numbered messages, each to the queue of its number, at a steady rate."""

    answered_min = 100

    def __init__(self, address: str, per_second: int = 0, first: int = 0) -> None:
        super().__init__(address)
        self.per_second = per_second
        self.first = first
        """The number of its first message."""
        self.began = 0.0

    def step(self, connection: BlockingConnection, number: int) -> None:
        self.began = self.began or time.monotonic() - (number / self.per_second if self.per_second else 0)
        if self.per_second:
            self.stopped.wait(max(0.0, self.began + number / self.per_second - time.monotonic()))
        checked(connection.request(sending(self.first + number)))
        self.count(self.first + number)


def pulling(queue: int, offset: int) -> Command:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
              "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
              "subscription": "*", "subVersion": "0", "expressionType": "TAG"}  # fmt: skip
    return Command(RequestCode.PULL_MESSAGE, fields=fields)


def pulled(connection: BlockingConnection, queue: int, offset: int) -> tuple[list[int], int]:
    """The numbers of the messages at an offset of a queue, and the offset behind them."""
    answer = connection.request(pulling(queue, offset))
    if answer.code != ResponseCode.SUCCESS:
        return [], int(answer.fields.get("nextBeginOffset", offset))
    found = [int(one.body) for one in iter_stored(answer.body)]
    return found, int(answer.fields["nextBeginOffset"])


def committed(connection: BlockingConnection, queue: int) -> int:
    """The offset from which the group continues."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "setZeroIfNotFound": "true"}
    answer = connection.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0


def all_of(address: str, queue: int, signer: Signer | None = None) -> list[int]:
    """The numbers of all messages of a queue."""
    found: list[int] = []
    with BlockingConnection.dial(address, signer=signer) as connection:
        offset = 0
        while True:
            more, following = pulled(connection, queue, offset)
            if not more and following == offset:
                return found
            found, offset = found + more, following


class Consumer(threading.Thread):
    """Consumes all queues of the topic from the committed offsets on, until it is stopped; commits after each pull."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.stopped = threading.Event()
        self.seen: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
        self._grew = threading.Condition()
        self.start()

    def run(self) -> None:
        with BlockingConnection.dial(self.address) as connection:
            offsets = {queue: committed(connection, queue) for queue in self.seen}
            while not self.stopped.is_set():
                found = 0
                for queue in self.seen:
                    numbers, following = pulled(connection, queue, offsets[queue])
                    if following != offsets[queue]:
                        offsets[queue] = following
                        self._commit(connection, queue, following)
                    found += len(numbers)
                    with self._grew:
                        self.seen[queue] += numbers
                        self._grew.notify_all()
                if not found:
                    self.stopped.wait(0.02)

    @staticmethod
    def _commit(connection: BlockingConnection, queue: int, offset: int) -> None:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "commitOffset": str(offset)}
        checked(connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)))

    @property
    def count(self) -> int:
        """How many messages it has consumed."""
        return sum(map(len, self.seen.values()))

    def until(self, wanted: int | set[int]) -> None:
        """Wait until it has consumed so many, or these numbers."""

        def reached() -> bool:
            if isinstance(wanted, int):
                return self.count >= wanted
            return wanted <= {number for numbers in self.seen.values() for number in numbers}

        with self._grew:
            assert self._grew.wait_for(reached, 90), (self.count, wanted if isinstance(wanted, int) else len(wanted))

    def stop(self) -> None:
        """End it; its offsets are committed."""
        self.stopped.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()


def judge(consumers: Iterable[Consumer], sent: set[int]) -> int:
    """All messages were consumed, and each consumer had those of a queue in order; returns how many came again."""
    seen = [consumer.seen[queue] for consumer in consumers for queue in range(QUEUES)]
    for numbers in seen:
        assert numbers == sorted(set(numbers)), "out of order"
    consumed = [number for numbers in seen for number in numbers]
    assert set(consumed) == sent, sorted(sent ^ set(consumed))[:20]
    return len(consumed) - len(sent)


class Migrator:
    """The command in a process of its own."""

    def __init__(self, source: str, target: str, log: Path) -> None:
        self._options = ["--from", source, "--server", target]
        self._log = log
        self.process: subprocess.Popen[str] | None = None

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "lightmq", "migrate", "rocketmq", *arguments, *self._options]

    def start(self) -> None:
        """Mirror from now on; returns when everything is being copied."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command("--follow"), stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("mirroring"), self._log.read_text()[-2_000:]

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed."""
        return self.process is not None

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def _done(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(action, *options), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip

    def refused(self, action: str, *options: str) -> str:
        """An action that fails; returns what it says."""
        done = self._done(action, *options)
        assert done.returncode == 1, done.stdout[-2_000:] + done.stderr[-2_000:]
        return done.stderr

    def run(self, action: str, *options: str) -> list[dict[str, Any]]:
        """Another action; returns the rows it prints."""
        done = self._done(action, *options)
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def until_offsets_agree(self, source: str = "") -> None:
        """Wait until the group has the same offsets at both brokers, whose queues began empty."""
        deadline = time.monotonic() + 60
        addresses = source or self._options[1], self._options[3]
        with BlockingConnection.dial(addresses[0]) as old, BlockingConnection.dial(addresses[1]) as new:
            while any(committed(old, queue) != committed(new, queue) for queue in range(QUEUES)):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def until_copied(self) -> list[dict[str, Any]]:
        """Wait until nothing is left to be copied; returns the rows of the status."""
        deadline = time.monotonic() + 60
        while True:
            rows = [row for row in self.run("status", "--json") if "lag" in row]
            if rows and not any(row["lag"] for row in rows):
                return rows
            assert time.monotonic() < deadline, rows
