"""Small real servers on loopback for the commands: an MQTT one with the bare minimum, and a log behind remoting."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from remoting.protocol.bodies.controller_body import WITH_REPLICAS_FIELD, BrokerData, ClusterInfo
from remoting.protocol.bodies.pull_body import (
    LightBounds,
    QueueBounds,
    QueueBoundsReply,
    QueueRecords,
    decode_bounds_request,
    decode_range_pull,
    encode_bounds_reply,
    encode_range_pull_reply,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, encode_stored
from remoting.server.router import Router
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Peer
from tests.support.records import make_mqtt_record
from tests.unit.lightmq.cli.fake_controller import FakeController


class MqttServer:
    """Answers one client after the other; its attributes control it."""

    def __init__(self) -> None:
        self.connack = 0
        self.session_present = 0
        self.connack_tail = b""
        self.acknowledge = True
        self.granted: int | bytes = 1
        self.puback_codes: dict[bytes, bytes] = {}
        """MQTT 5: payload -> what follows the packet id in PUBACK or PUBREC."""
        self.pubcomp_tail = b""
        """MQTT 5: what follows the packet id in PUBCOMP."""
        self.disconnect_with: bytes | None = None
        """MQTT 5: the body of a DISCONNECT that answers PUBLISH and SUBSCRIBE."""
        self.deliver: list[tuple[bytes, bytes, int]] = []
        self.close_after_publish = False
        self.received: list[tuple[int, bytes]] = []
        self.connects: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def payloads(self) -> list[bytes]:
        """Payloads of the PUBLISH packets received."""
        found = []
        for kind, body in self.received:
            if kind >> 4 == 3:
                topic_length = int.from_bytes(body[:2], "big")
                found.append(body[2 + topic_length + (2 if kind & 6 else 0) :])
        return found

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as stream:
                self._serve(client, stream)

    def _serve(self, client: socket.socket, stream: object) -> None:
        read = stream.read  # type: ignore[attr-defined]
        while head := read(1):
            length, shift = 0, 0
            while True:
                byte = read(1)[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            body = read(length)
            self.received.append((head[0], body))
            if not self._answer(client, head[0], body):
                return

    def _answer(self, client: socket.socket, kind: int, body: bytes) -> bool:
        match kind >> 4:
            case 1:
                self.connects.append(body)
                size = 2 + len(self.connack_tail)
                client.sendall(bytes((0x20, size, self.session_present, self.connack)) + self.connack_tail)
                return self.connack == 0
            case 3 | 8 if self.disconnect_with is not None:
                client.sendall(bytes((0xE0, len(self.disconnect_with))) + self.disconnect_with)
                return False
            case 3:
                client.sendall(self._acknowledgement(kind, body))
                return not self.close_after_publish
            case 6:
                client.sendall(bytes((0x70, 2 + len(self.pubcomp_tail))) + body[:2] + self.pubcomp_tail)
            case 10:
                client.sendall(b"\xb0\x02" + body[:2])
            case 8:
                granted = bytes((self.granted,)) if isinstance(self.granted, int) else self.granted
                client.sendall(bytes((0x90, 2 + len(granted))) + body[:2] + granted)
                for number, (topic, payload, qos) in enumerate(self.deliver, 1):
                    rest = len(topic).to_bytes(2, "big") + topic + (number.to_bytes(2, "big") if qos else b"") + payload
                    client.sendall(bytes((0x30 | qos << 1, len(rest))) + rest)
            case 14:
                return False
        return True

    def _acknowledgement(self, kind: int, body: bytes) -> bytes:
        if self.close_after_publish or not self.acknowledge or not kind & 6:
            return b""
        at = 2 + int.from_bytes(body[:2], "big")
        said = body[at : at + 2] + self.puback_codes.get(body[at + 3 :], b"")
        return bytes((0x50 if kind & 4 else 0x40, len(said))) + said


@pytest.fixture
def mqtt_server() -> Iterator[MqttServer]:
    server = MqttServer()
    yield server
    server.stop()


class LogServer:
    """A name server and a broker with records in memory: queue 0 (id 1) of topic plant, light queue 2 of plant/a."""

    def __init__(self) -> None:
        self.records: dict[int, list[bytes]] = {1: [], 2: []}
        self.lowest = {1: 0, 2: 0}
        self.on_bounds: Callable[[], None] = lambda: None
        self.topics_body = b"{}"
        self.stats_body = b"{}"
        self.groups_body = b"{}"
        self.tree_body = b"{}"
        self.session_answers: list[bytes] = []
        """Answers to SESSION_LIST in turn; without one there is no such session."""
        self.timer_answers: list[bytes] = []
        """Answers to TIMERS in turn."""
        self.clients_body = b"{}"
        self.with_broker = True
        self.denied = ""
        """Why the name server refuses everybody; empty: it does not."""
        self.replica = ""
        """Address of a replica of its group; empty without."""
        self.with_topic = True
        self.created: list[dict[str, str]] = []
        self.keyed: dict[str, list[StoredMessage]] = {}
        self.queries: list[dict[str, str]] = []
        self.topic_config = b"{}"
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def publish(self, topic: str, payload: bytes) -> None:
        """Append a message as the broker would store it; position = 1000 x its number."""
        number = len(self.records[1])
        record = make_mqtt_record(
            topic.encode(), payload, position=number * 1000, born_ms=number, store_ms=number, dispatch=[(1, number)]
        )
        self.records[1].append(record)
        if topic == "plant/a":
            self.records[2].append(record)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        handlers = {
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.QUEUE_BOUNDS: self._bounds,
            RequestCode.RANGE_PULL: self._pull,
            RequestCode.TOPIC_LIST: lambda _, command: command.reply(body=self.topics_body),
            RequestCode.GET_CONSUME_STATS: self._stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._stats,
            RequestCode.TOPIC_TREE: lambda _, command: command.reply(body=self.tree_body),
            RequestCode.GROUP_LIST: lambda _, command: command.reply(body=self.groups_body),
            RequestCode.SESSION_LIST: self._sessions,
            RequestCode.CLIENT_LIST: self._clients,
            RequestCode.TIMERS: self._timers,
            RequestCode.RECALL_MESSAGE: self._recall,
            RequestCode.RESCHEDULE_MESSAGE: self._recall,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.QUERY_MESSAGE: self._query,
            RequestCode.GET_TOPIC_CONFIG: lambda _, command: command.reply(body=self.topic_config),
        }
        self._server = RemotingServer(Router(handlers))
        self.port = self._loop.run_until_complete(self._server.start("127.0.0.1", 0))
        started.set()
        self._loop.run_forever()
        self._loop.close()

    def _cluster(self, _: Peer, command: Command) -> Command:
        if self.denied:
            raise Refused(ResponseCode.NO_PERMISSION, self.denied)
        import msgspec

        data = BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: self.address})
        if self.replica and WITH_REPLICAS_FIELD in command.fields:
            data.broker_addrs[2] = self.replica
        table = {"broker-a": data} if self.with_broker else {}
        return command.reply(body=msgspec.json.encode(ClusterInfo(broker_addr_table=table)))

    def _create(self, _: Peer, command: Command) -> Command:
        self.created.append(dict(command.fields))
        return command.reply()

    def _sessions(self, _: Peer, command: Command) -> Command:
        self.queries.append(dict(command.fields))
        if not self.session_answers:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "there is no such session")
        return command.reply(body=self.session_answers.pop(0))

    def _clients(self, _: Peer, command: Command) -> Command:
        return command.reply(body=self.clients_body)

    def _timers(self, _: Peer, command: Command) -> Command:
        self.queries.append(dict(command.fields))
        return command.reply(body=self.timer_answers.pop(0))

    def _recall(self, _: Peer, command: Command) -> Command:
        self.queries.append(dict(command.fields))
        moved = {"recallHandle": "bW92ZWQ="} if command.fields.get("delayMs", "0") != "0" else {}
        return command.reply(fields={"msgId": "7F00", **moved})

    def _query(self, _: Peer, command: Command) -> Command:
        self.queries.append(dict(command.fields))
        body = b"".join(map(encode_stored, self.keyed.get(command.fields["key"], [])))
        return command.reply(0 if body else ResponseCode.QUERY_NOT_FOUND, body=body)

    def _bounds(self, _: Peer, command: Command) -> Command:
        request = decode_bounds_request(command.body)
        if request.wait_ms:
            self.on_bounds()
        light = None
        if request.filter == "plant/a":
            light = LightBounds(id=2, min=self.lowest[2], max=len(self.records[2]))
        queue = QueueBounds(topic="plant", queue=0, id=1, min=self.lowest[1], max=len(self.records[1]))
        reply = QueueBoundsReply(
            broker="broker-a", epoch=1, confirm=0, queues=[queue] if self.with_topic else [], light=light
        )
        return command.reply(body=encode_bounds_reply(reply))

    def _stats(self, _: Peer, command: Command) -> Command:
        self.queries.append(command.fields)
        return command.reply(body=self.stats_body)

    def _pull(self, _: Peer, command: Command) -> Command:
        want = decode_range_pull(command.body)
        end = min(want.end_offset, want.offset + 3, len(self.records[want.queue_id]))
        records = self.records[want.queue_id][want.offset : end]
        result = QueueRecords(
            queue_id=want.queue_id,
            status=0,
            first_offset=want.offset,
            next_offset=end,
            min_offset=self.lowest[want.queue_id],
            max_offset=len(self.records[want.queue_id]),
            records=records,
        )
        return command.reply(body=encode_range_pull_reply(result))


@pytest.fixture
def log_server() -> Iterator[LogServer]:
    server = LogServer()
    yield server
    server.stop()


@pytest.fixture
def controller() -> Iterator[FakeController]:
    server = FakeController()
    yield server
    server.stop()
