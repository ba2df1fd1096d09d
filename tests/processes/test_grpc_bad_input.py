"""What bad input gets at a gRPC proxy of real processes: the code of the table, one count, and nobody else waits."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest

from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from tests.processes.grpc_calls import METADATA, GrpcCalls, message
from tests.processes.rig import Installation, Server, no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]
Type = d.MessageType
ORDERS, GROUP = {"name": "orders"}, {"name": "billing"}
QUEUE, LARGE = {"topic": ORDERS, "id": -1}, {"topic": {"name": "large"}, "id": -1}
RECEIVE = {"group": GROUP, "message_queue": QUEUE, "batch_size": 1, "invisible_duration": {"seconds": 30},
           "long_polling_timeout": {"seconds": 0}}  # fmt: skip
HANDLE = {"group": GROUP, "topic": ORDERS, "receipt_handle": "1 2 3 0 0 broker-a 0 1 2", "message_id": "m"}
DIGEST = {"type": d.DigestType.MD5, "checksum": "00"}
TOPICS = ("orders", "empty", "held", "quiet", "large", "calm")
FIFO = {**topic_fields("fifo", 2), "attributes": "+message.type=FIFO"}
YEAR_S = 366 * 86_400
RETURNED = "rocketmq_grpc_returned_messages_total"
BODY_BYTES_MAX = 4 * 1024 * 1024


def sending(
    body: bytes | str = b"x", topic: str = "orders", *, properties: dict[str, str] | None = None, **system: Any
) -> Any:
    one = message(body, topic, **system)
    one.user_properties.update(properties or {})
    return {"messages": [one]}


def filtered(kind: int, expression: str) -> dict[str, Any]:
    return {**RECEIVE, "filter_expression": {"type": kind, "expression": expression}}


CASES: list[tuple[str, Any, str]] = [
    ("SendMessage", b"\xff\xff\xff", "BAD_REQUEST"),
    ("ReceiveMessage", b"\x0a\x7f", "BAD_REQUEST"),
    ("AckMessage", b"\x0a\x05ab", "BAD_REQUEST"),
    ("SendMessage", {"messages": []}, "BAD_REQUEST"),
    ("SendMessage", {"messages": [message(b"a"), message(b"b", "fifo")]}, "BAD_REQUEST"),
    ("SendMessage", sending(topic=""), "ILLEGAL_TOPIC"),
    ("SendMessage", sending(topic="a\0b"), "ILLEGAL_TOPIC"),
    ("SendMessage", sending(topic="a/#"), "ILLEGAL_TOPIC"),
    ("SendMessage", sending(topic="t" * 70_000), "ILLEGAL_TOPIC"),
    ("SendMessage", sending(topic="nothing"), "TOPIC_NOT_FOUND"),
    ("SendMessage", sending(message_id=""), "ILLEGAL_MESSAGE_ID"),
    ("SendMessage", sending(tag=" "), "ILLEGAL_MESSAGE_TAG"),
    ("SendMessage", sending(tag="a|b"), "ILLEGAL_MESSAGE_TAG"),
    ("SendMessage", sending(keys=["a", ""]), "ILLEGAL_MESSAGE_KEY"),
    ("SendMessage", sending(keys=["a\x01"]), "ILLEGAL_MESSAGE_KEY"),
    ("SendMessage", sending(message_group="", message_type=Type.FIFO), "ILLEGAL_MESSAGE_GROUP"),
    ("SendMessage", sending(message_group="g" * 65, message_type=Type.FIFO), "ILLEGAL_MESSAGE_GROUP"),
    ("SendMessage", sending(properties={"TAGS": "x"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    ("SendMessage", sending(properties={"": "x"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
    ("SendMessage", sending(properties={"a": "\x02"}), "BAD_REQUEST"),
    ("SendMessage", sending(properties={str(number): "" for number in range(129)}), "MESSAGE_PROPERTIES_TOO_LARGE"),
    ("SendMessage", sending(properties={"a": "x" * 16_384}), "MESSAGE_PROPERTIES_TOO_LARGE"),
    ("SendMessage", sending(bytes(BODY_BYTES_MAX + 1)), "MESSAGE_BODY_TOO_LARGE"),
    ("SendMessage", sending(body_digest=DIGEST), "MESSAGE_CORRUPTED"),
    ("SendMessage", sending(b"no gzip", body_encoding=d.Encoding.GZIP), "MESSAGE_CORRUPTED"),
    ("SendMessage", sending(delivery_timestamp={"seconds": -5}, message_type=Type.DELAY), "ILLEGAL_DELIVERY_TIME"),
    ("SendMessage", sending(delivery_timestamp={"seconds": int(time.time()) + 2 * YEAR_S}, message_type=Type.DELAY),
     "ILLEGAL_DELIVERY_TIME"),
    ("SendMessage", sending(message_type=Type.FIFO), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("SendMessage", sending(topic="fifo"), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("SendMessage", sending(lite_topic="s", message_type=Type.LITE), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("SendMessage", sending(priority=3, message_type=Type.PRIORITY), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ("RecallMessage", {"topic": ORDERS, "recall_handle": "forged"}, "BAD_REQUEST"),
    ("RecallMessage", {"topic": ORDERS}, "BAD_REQUEST"),
    ("EndTransaction", {"topic": ORDERS, "transaction_id": "x", "resolution": 1}, "INVALID_TRANSACTION_ID"),
    ("EndTransaction", {"topic": ORDERS, "transaction_id": "FF-FF-broker-a", "resolution": 0}, "BAD_REQUEST"),
    ("EndTransaction", {"topic": ORDERS, "transaction_id": "FF-FF-other", "resolution": 1}, "INVALID_TRANSACTION_ID"),
    ("QueryRoute", {"topic": ORDERS}, "ILLEGAL_ACCESS_POINT"),
    ("QueryAssignment", {"topic": ORDERS, "group": GROUP}, "ILLEGAL_ACCESS_POINT"),
    ("QueryAssignment", {"topic": ORDERS}, "ILLEGAL_CONSUMER_GROUP"),
    ("Heartbeat", {"client_type": d.ClientType.PUSH_CONSUMER}, "ILLEGAL_CONSUMER_GROUP"),
    ("ReceiveMessage", {**RECEIVE, "group": {"name": " "}}, "ILLEGAL_CONSUMER_GROUP"),
    ("ReceiveMessage", {**RECEIVE, "message_queue": {"topic": {"name": "nothing"}, "id": -1}}, "TOPIC_NOT_FOUND"),
    ("ReceiveMessage", {**RECEIVE, "invisible_duration": {"seconds": 1}}, "ILLEGAL_INVISIBLE_TIME"),
    ("ReceiveMessage", {**RECEIVE, "invisible_duration": {"seconds": 13 * 3_600}}, "ILLEGAL_INVISIBLE_TIME"),
    ("ReceiveMessage", {**RECEIVE, "invisible_duration": {"seconds": -1}}, "ILLEGAL_INVISIBLE_TIME"),
    ("ReceiveMessage", {**RECEIVE, "long_polling_timeout": {"seconds": -1}}, "ILLEGAL_POLLING_TIME"),
    ("ReceiveMessage", filtered(9, "a"), "ILLEGAL_FILTER_EXPRESSION"),
    ("ReceiveMessage", filtered(d.FilterType.SQL, "((("), "ILLEGAL_FILTER_EXPRESSION"),
    ("ReceiveMessage", {**RECEIVE, "message_queue": {"topic": {"name": "empty"}, "id": -1}}, "MESSAGE_NOT_FOUND"),
    ("ChangeInvisibleDuration", {**HANDLE, "invisible_duration": {"seconds": 5}}, "INVALID_RECEIPT_HANDLE"),
    ("ChangeInvisibleDuration", {**HANDLE, "invisible_duration": {"seconds": -5}}, "ILLEGAL_INVISIBLE_TIME"),
    ("ChangeInvisibleDuration", {**HANDLE, "invisible_duration": {"seconds": 10**9}}, "ILLEGAL_INVISIBLE_TIME"),
    ("ForwardMessageToDeadLetterQueue", HANDLE, "INVALID_RECEIPT_HANDLE"),
    ("ForwardMessageToDeadLetterQueue", {**HANDLE, "receipt_handle": ""}, "INVALID_RECEIPT_HANDLE"),
    ("AckMessage", {"group": GROUP, "topic": ORDERS}, "BAD_REQUEST"),
    ("PullMessage", {"group": GROUP, "message_queue": QUEUE}, "BAD_REQUEST"),
    ("PullMessage", {"group": {"name": "puller"}, "message_queue": {**QUEUE, "id": 0}, "offset": 99}, "ILLEGAL_OFFSET"),
    ("PullMessage", {"group": {"name": "puller"}, "message_queue": {**QUEUE, "id": 0},
                     "long_polling_timeout": {"seconds": -1}}, "ILLEGAL_POLLING_TIME"),
    ("UpdateOffset", {"group": GROUP, "message_queue": {**QUEUE, "id": 0}, "offset": -1}, "ILLEGAL_OFFSET"),
    ("GetOffset", {"group": {"name": "puller"}, "message_queue": {**QUEUE, "id": 0}}, "OFFSET_NOT_FOUND"),
    ("SyncLiteSubscription", {"topic": ORDERS, "group": GROUP, "lite_topic_set": ["s/#"]}, "ILLEGAL_LITE_TOPIC"),
    ("SyncLiteSubscription", {"topic": ORDERS, "group": GROUP, "lite_topic_set": ["s"]}, "BAD_REQUEST"),
]  # fmt: skip


class Served:
    """`lightmq up` and a proxy of its own with small limits, which alone gets the bad input."""

    def __init__(self, folder: Any) -> None:
        self.server = Installation(folder / "data")
        self.proxy = Server(folder / "proxy")
        self.folder = folder

    def start(self) -> None:
        self.server.start()
        with BlockingConnection.dial(self.server.address, 30_000) as connection:
            for fields in (*(topic_fields(name, 2) for name in TOPICS), FIFO):
                checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=dict(fields))))
        self.ports = self.proxy.launch(
            "grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--broker", self.server.address,
            "--set", "grpc.limits.commands_max=10", "--set", "grpc.limits.batch_max=32",
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['admin']}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _space, value in pairs}

    def refused(self) -> dict[str, float]:
        start = 'rocketmq_grpc_refused_total{reason="'
        return {name[len(start) : -2]: value for name, value in self.metrics().items() if name.startswith(start)}

    def end(self) -> None:
        self.proxy.kill_if_running()
        self.server.kill_if_running()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    try:
        made.start()
        yield made
        no_traceback(made.proxy, made.server)
    finally:
        made.end()


@pytest.fixture
def calls(served: Served) -> Iterator[GrpcCalls]:
    with GrpcCalls(served.ports["grpc"]) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "request_", "code"), CASES, ids=[f"{n}-{c}-{i}" for i, (n, _r, c) in enumerate(CASES)]
)
def test_each_fault_has_its_code_and_one_count(
    served: Served, calls: GrpcCalls, name: str, request_: Any, code: str
) -> None:
    before = served.refused()
    assert calls.code(name, request_) == code
    counted = {reason: value - before.get(reason, 0) for reason, value in served.refused().items()}
    expected = (
        {} if code == "MESSAGE_NOT_FOUND" or (name, code) == ("PullMessage", "ILLEGAL_OFFSET") else {code.lower(): 1}
    )
    assert {reason: value for reason, value in counted.items() if value} == expected


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((), "CLIENT_ID_REQUIRED"),
        ((("x-mq-client-id", "c" * 600),), "CLIENT_ID_REQUIRED"),
        ((*METADATA, ("authorization", "Basic abc")), "UNAUTHORIZED"),
    ],
)
def test_who_does_not_say_who_it_is_gets_nothing(served: Served, metadata: Any, code: str) -> None:
    with GrpcCalls(served.ports["grpc"], metadata) as stranger:
        for name, request in (
            ("SendMessage", sending()),
            ("ReceiveMessage", RECEIVE),
            ("Heartbeat", {"client_type": 1}),
        ):
            assert stranger.code(name, request) == code


def test_a_handle_is_good_once_and_in_time_and_for_its_group(served: Served, calls: GrpcCalls) -> None:
    calls.send(message(b"held", "held"))
    (one,) = calls.receive("held", "holders", wait_s=5)
    assert calls.acknowledge("held", "others", [one]) == ["INVALID_RECEIPT_HANDLE"]
    assert calls.acknowledge("fifo", "holders", [one]) == ["INVALID_RECEIPT_HANDLE"]
    handle = {
        "group": {"name": "holders"},
        "topic": {"name": "held"},
        "receipt_handle": one.system_properties.receipt_handle,
    }
    changed = calls.call("ChangeInvisibleDuration", {**handle, "invisible_duration": {"seconds": 0}})
    assert changed.status.code == d.Code.OK
    assert calls.acknowledge("held", "holders", [one]) == ["INVALID_RECEIPT_HANDLE"], "its time is over"
    (again,) = calls.receive("held", "holders", wait_s=10)
    assert (again.body, again.system_properties.delivery_attempt) == (b"held", 2)
    assert calls.acknowledge("held", "holders", [again, again]) in (["OK", "INVALID_RECEIPT_HANDLE"], ["OK", "OK"])
    assert calls.acknowledge("held", "holders", [again]) == ["INVALID_RECEIPT_HANDLE"]


def test_a_deadline_before_the_answer_is_refused(calls: GrpcCalls) -> None:
    """A message that came then could not reach the client; any longer wait ends in time."""
    asked = {
        **RECEIVE,
        "message_queue": {"topic": {"name": "quiet"}, "id": -1},
        "long_polling_timeout": {"seconds": 900},
    }
    assert calls.code("ReceiveMessage", asked, timeout_s=0.4) == "ILLEGAL_POLLING_TIME"
    begun = time.monotonic()
    assert calls.code("ReceiveMessage", asked, timeout_s=2) == "MESSAGE_NOT_FOUND"
    assert 1 < time.monotonic() - begun < 2


def test_oversized_requests_end_alone(calls: GrpcCalls) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        calls.call("SendMessage", sending(bytes(9 * 1024 * 1024)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as caught:
        calls.channel.unary_unary(f"/{NAME}/Heartbeat")(b"", metadata=(*METADATA, ("x-long", "y" * 20_000)), timeout=10)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError) as caught:
        calls.channel.unary_unary(f"/{NAME}/NoSuchCall")(b"", metadata=METADATA, timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert calls.send(message(b"after"))


class Bystander:
    """Sends and receives all the time; keeps the longest time of one round."""

    def __init__(self, port: int) -> None:
        self.calls = GrpcCalls(port, (("x-mq-client-id", "bystander"),))
        self.ended = threading.Event()
        self.slowest_s = 0.0
        self.rounds = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join(30)
        self.calls.channel.close()

    def _run(self) -> None:
        while not self.ended.is_set():
            begun = time.monotonic()
            self.calls.send(message(b"by", "calm"))
            self.calls.take("calm", "bystanders", 1)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            self.rounds += 1


def test_streams_that_are_not_read_or_never_used_hold_up_nobody(served: Served, calls: GrpcCalls) -> None:
    """Telemetry without settings, telemetry and receives that are not read, garbage: memory stays bounded."""
    for number in range(24):
        calls.send(message(bytes(1_000_000) + b"%d" % number, "large", message_id=f"{number:032X}"))
    before_kb, begun = served.proxy.rss_kb(), served.metrics()
    settings = s.TelemetryCommand(settings={"client_type": d.ClientType.PRODUCER, "publishing": {"topics": [ORDERS]}})
    silent = threading.Event()
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]

    def never() -> Iterator[bytes]:
        silent.wait(60)
        yield from ()

    def flood() -> Iterator[bytes]:
        while not silent.is_set():
            yield settings.SerializeToString()

    with Bystander(served.ports["grpc"]) as bystander, GrpcCalls(served.ports["grpc"], options=options) as lazy:
        telemetry = lazy.channel.stream_stream(f"/{NAME}/Telemetry")
        idle = [telemetry(never(), metadata=(("x-mq-client-id", f"idle-{number}"),)) for number in range(50)]
        flooding = telemetry(flood(), metadata=(("x-mq-client-id", "flood"),))
        receive = lazy.channel.unary_stream(f"/{NAME}/ReceiveMessage")
        asked = s.ReceiveMessageRequest(**{**RECEIVE, "message_queue": LARGE, "batch_size": 24}).SerializeToString()
        unread = [receive(asked, metadata=METADATA, timeout=60) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            garbage = list(pool.map(lambda number: calls.code("SendMessage", b"\xff" * number), range(1, 400)))
        assert set(garbage) == {"BAD_REQUEST"}
        deadline = time.monotonic() + 20
        while bystander.rounds < 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        grown_kb = served.proxy.rss_kb() - before_kb
        for call in (*idle, flooding, *unread):
            call.cancel()
        silent.set()
    assert bystander.slowest_s < 5
    assert grown_kb < 200_000
    with GrpcCalls(served.ports["grpc"]) as reader:
        came = reader.take("large", "billing", 24, wait_s=10)
    assert len({one.body for one in came}) == 24, "what was not read was given back"
    assert served.metrics()[RETURNED] > begun[RETURNED]
    assert "internal_server_error" not in served.refused()
