"""A batching producer through `kill -9` of the broker: acknowledged messages are at their offsets.

Both kinds of topic are written at once by one producer; the log is then read with the private pulls and unpacked, and
every queue is dense.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from itertools import count
from pathlib import Path

import pytest

from remoting.batches.unpack import Unpacker
from remoting.client.admin import topic_fields
from remoting.client.batching import Message, ProducerSettings, Sent
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.threads import Producer
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import check_record, iter_records
from tests.processes.rig import Installation, Server, no_traceback

pytestmark = pytest.mark.processes
QUEUES = 3
KEYS = 7
TOPICS = ("batches", "plain")


class Load(threading.Thread):
    """Sends numbered messages to both topics until it is stopped; keeps the result of each."""

    def __init__(self, source: Producer) -> None:
        super().__init__(daemon=True)
        self.sent: list[tuple[Message, Future[Sent]]] = []
        self.stopped = threading.Event()
        self._source = source
        self._grew = threading.Condition()

    def run(self) -> None:
        for number in count():
            if self.stopped.is_set():
                return
            message = Message(
                topic=TOPICS[number % 2],
                body=b"%d " % number + bytes(100),
                key=f"key-{number % KEYS}",
                tag="even" if number % 2 == 0 else "",
                properties={"number": str(number)},
            )
            sent = (message, self._source.send(message))
            with self._grew:
                self.sent.append(sent)
                self._grew.notify_all()

    def flowing(self, more: int = 2_000) -> None:
        """Return when this many more messages have their offset."""
        wanted = len(self.sent) + more
        with self._grew:
            assert self._grew.wait_for(lambda: len(self.sent) > wanted, 60)
        self.sent[wanted][1].result(60)


def stored(connection: BlockingConnection) -> dict[tuple[str, int], list[bytes]]:
    """Every message of every queue by offset; the records' checksums and the density are checked on the way."""
    listed = json.loads(checked(connection.request(Command(RequestCode.TOPIC_LIST))).body)["topics"]
    found = {}
    for topic in listed:
        for queue in topic["queues"]:
            bodies: list[bytes] = []
            while len(bodies) < queue["max"]:
                want = encode_range_pull(queue["id"], len(bodies), queue["max"], 1 << 20)
                pulled = decode_range_pull_reply(
                    checked(connection.request(Command(RequestCode.RANGE_PULL, body=want))).body
                )
                records = list(iter_records(pulled.blob))
                for record in records:
                    check_record(record.raw, 0, None)
                for offset, message in Unpacker().messages(records, queue["id"], len(bodies), queue["max"]):
                    assert offset == len(bodies)
                    bodies.append(bytes(message.body))
            found[topic["topic"], queue["queue"]] = bodies
    return found


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_acknowledged_messages_are_at_their_offsets(tmp_path: Path, kills: int) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        with BlockingConnection.dial(server.address) as connection:
            for topic, attributes in zip(TOPICS, ({"queue.type": "BatchCQ"}, None), strict=True):
                fields = topic_fields(topic, QUEUES, attributes=attributes)
                checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        settings = ProducerSettings(
            linger_ms=1, batch_count_max=300, memory_bytes_max=1 << 20, attempts_max=200, timeout_ms=30_000
        )
        with Producer(server.address, settings) as source:
            load = Load(source)
            load.start()
            for _ in range(kills):
                load.flowing()
                server.kill()
                server.start()
            load.flowing()
            load.stopped.set()
            load.join()
        with BlockingConnection.dial(server.address) as connection:
            queues = stored(connection)
        _check(load, queues)
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


def _check(load: Load, queues: dict[tuple[str, int], list[bytes]]) -> None:
    last: dict[tuple[str, str], int] = {}
    for message, future in load.sent:
        place = future.result(0)
        assert queues[place.topic, place.queue][place.offset] == message.body
        assert place.offset > last.get((message.topic, message.key), -1), "a key's messages are stored in their order"
        last[message.topic, message.key] = place.offset
    # What was stored and not acknowledged may be there twice; nothing else is there.
    sent = {(message.topic, message.body) for message, _ in load.sent}
    assert {(topic, body) for (topic, _), bodies in queues.items() for body in bodies} == sent


@pytest.mark.parametrize("creates", [True, False])
def test_a_missing_topic(tmp_path: Path, creates: bool) -> None:
    """It is created by the first message, complete, with each key in its queue; or the error names the command."""
    server = Server(tmp_path / "data", "--set", f"broker.auto_create_topics={str(creates).lower()}")
    server.start()
    try:
        with Producer(f"127.0.0.1:{server.ports['remoting']}") as source:
            places = [
                source.send(Message(topic="fresh", body=b"%d" % number, key=f"k{number % KEYS}"))
                for number in range(70)
            ]
            if not creates:
                with pytest.raises(Refused, match=r"not exist.*lightmq topics create fresh$"):
                    places[0].result(30)
                return
            found = [place.result(30) for place in places]
        queues = {f"k{number % KEYS}": place.queue for number, place in enumerate(found)}
        assert all(place.queue == queues[f"k{number % KEYS}"] for number, place in enumerate(found))
        assert len(set(queues.values())) > 1
    finally:
        server.kill_if_running()
