"""A broker group, a feeder that never stops, and a query that reads one topic of the group and writes another.

    feeder ──▶ topic `in` ──▶ streaming read ──▶ streaming write, exactly once ──▶ topic `out`

Invariant: `account` compares the topics on the new master: every row of `in` is in `out` once, and every message
acknowledged to the feeder is in `in` at the acknowledged place. Thread rule: one thread; the feeder has its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from remoting.client.admin import topic_fields
from remoting.client.batching import Message, ProducerSettings
from remoting.client.blocking import BlockingConnection
from remoting.client.threads import Producer
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from tests.processes.broker_group import BrokerGroup

QUEUES = 2
PAUSE_S = 0.02
LOOK_S = 0.1
DEADLINE_S = 150.0


class Feeder:
    """Sends numbered messages through our producer, which follows the master; records the place of each."""

    def __init__(self, controllers: list[str]) -> None:
        settings = ProducerSettings(attempts_max=100)
        self.producer = Producer(controllers=controllers, settings=settings)
        self.sent: list[Any] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            for _ in range(5):
                body = b"%d" % len(self.sent)
                self.sent.append(self.producer.send(Message(topic="in", body=body, queue=len(self.sent) % QUEUES)))

    def end(self) -> dict[int, tuple[int, int]]:
        """Stop; number -> (queue, offset) of every message."""
        self._ended.set()
        self._thread.join(10)
        self.producer.close()
        places = [future.result() for future in self.sent]
        return {number: (place.queue, place.offset) for number, place in enumerate(places)}


class SparkOnGroup:
    """Everything that runs."""

    def __init__(self, spark: Any, folder: Path, *, controllers: int = 1, read_from: str = "master") -> None:
        """`read_from`: the option `readFrom` of every read."""
        self.spark = spark
        self._read_from = read_from
        self._checkpoint = folder / "checkpoint"
        self.group = BrokerGroup(folder, controllers=controllers, brokers=3, in_sync_min=2)

    def start(self) -> None:
        """Start the group, make the topics, begin to feed and to query."""
        self.group.start()
        self.server = self.group.addresses.replace(",", ";")
        with BlockingConnection.dial(f"127.0.0.1:{self.group.settle().port}") as link:
            for topic in ("in", "out"):
                fields = topic_fields(topic, QUEUES)
                checked(link.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        self.feeder = Feeder(self.group.addresses.split(","))
        self.start_query()

    def start_query(self) -> None:
        """Start the query, or resume it from its checkpoint."""
        source = self.spark.readStream.format("rocketmq").options(
            nameServer=self.server, topic="in", startingOffsets="earliest", longPollMs="200", readFrom=self._read_from
        )
        rows = source.load().selectExpr("body", "concat(queueId, ':', queueOffset) AS key")
        writer = rows.writeStream.format("rocketmq").options(nameServer=self.server, topic="out")
        self.query = writer.option("checkpointLocation", str(self._checkpoint)).start()

    def flowing(self, batches: int = 2) -> None:
        """Return when the query has committed so many more batches with rows."""
        wanted = self._batch() + batches
        deadline = time.monotonic() + DEADLINE_S
        while self._batch() < wanted:
            assert self.query.exception() is None, self.query.exception()
            assert time.monotonic() < deadline, self.query.status
            time.sleep(LOOK_S)

    def _batch(self) -> int:
        last = self.query.lastProgress
        return -1 if last is None else int(last["batchId"])

    def account(self) -> int:
        """Let the stream catch up and compare; the number of rows."""
        places = self.feeder.end()
        self.query.processAllAvailable()
        self.query.stop()
        ins, outs = self._rows("in"), self._rows("out")
        at = {(row.queueId, row.queueOffset): int(bytes(row.body)) for row in ins}
        assert {number: at.get(place) for number, place in places.items()} == {number: number for number in places}
        copied = Counter((row.key, int(bytes(row.body))) for row in outs)
        assert copied == Counter((f"{queue}:{offset}", number) for (queue, offset), number in at.items())
        return len(at)

    def _rows(self, topic: str) -> list[Any]:
        """A batch read of the whole topic."""
        options = {"nameServer": self.server, "topic": topic, "readFrom": self._read_from}
        reader = self.spark.read.format("rocketmq").options(**options)
        return list(reader.load().select("body", "queueId", "queueOffset", "key").collect())

    def end(self) -> None:
        """End everything that still runs."""
        if hasattr(self, "query"):
            self.query.stop()
        self.group.end()
