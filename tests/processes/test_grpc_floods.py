"""Abuse of HTTP/2 at a gRPC proxy of its own: it ends alone, has a counter, costs no memory, and others are served."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpc_proxy.http2.frames import PREFACE, Kind, head
from grpc_proxy.http2.grpc_form import framed
from grpc_proxy.http2.hpack import block
from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import until
from tests.processes.grpc_calls import GrpcCalls, message
from tests.processes.rig import Installation, Server, no_traceback
from tests.unit.grpc_proxy.http2.frames_of_client import HELLO, REQUEST_FIELDS, data, frame, headers, number

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]
IDENTITY = (*REQUEST_FIELDS, (b"x-mq-client-id", b"raw"))
SEND = [(name, text.replace(b"Heartbeat", b"SendMessage")) for name, text in IDENTITY]
FRAMES = 20_000
IDLE_CONNECTIONS = 1_000
GROWTH_KB_MAX = 64 * 1024
STALL_MS, HELD_BYTES = 3_000, 4 * 1024 * 1024
CALM = "enhance_your_calm"


class Flooded:
    """A broker, and a proxy of its own with small limits, which alone gets the abuse."""

    def __init__(self, folder: Path) -> None:
        self.server = Installation(folder / "data")
        self.proxy = Server(folder / "proxy")

    def start(self) -> None:
        self.server.start()
        with BlockingConnection.dial(self.server.address, 30_000) as connection:
            checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields("orders", 2))))
        limits = {"stall_ms_max": STALL_MS, "limits.held_bytes_max": HELD_BYTES, "limits.request_bytes_max": HELD_BYTES,
                  "limits.body_bytes_max": 1024 * 1024}  # fmt: skip
        settings = [part for name, value in limits.items() for part in ("--set", f"grpc.{name}={value}")]
        self.ports = self.proxy.launch(
            "grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--broker", self.server.address, *settings
        )

    def counted(self, of: str) -> dict[str, float]:
        """reason -> what has ended, `of` connections or calls."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['admin']}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        begin = f'rocketmq_grpc_{of}_ended_total{{reason="'
        pairs = (line.removeprefix(begin).split('"} ') for line in lines if line.startswith(begin))
        return {reason: float(value) for reason, value in pairs}

    def end(self) -> None:
        self.proxy.kill_if_running()
        self.server.kill_if_running()


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    made = Flooded(tmp_path_factory.mktemp("flooded"))
    try:
        made.start()
        with GrpcCalls(made.ports["grpc"]) as calls:
            calls.send(message(b"first"))
        yield made
        no_traceback(made.proxy, made.server)
    finally:
        made.end()


@contextlib.contextmanager
def raw(flooded: Flooded) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", flooded.ports["grpc"]), timeout=30) as sock:
        yield sock


def poured(flooded: Flooded, begin: bytes, each: Callable[[int], bytes]) -> None:
    """Send frames until they are all sent, or the proxy has ended the connection."""
    with raw(flooded) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(begin)
        for first in range(0, FRAMES, 100):
            sock.sendall(b"".join(each(at) for at in range(first, first + 100)))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65_536):
            pass


def rapid_reset(at: int) -> bytes:
    return headers(2 * at + 1, IDENTITY) + frame(Kind.RST_STREAM, 0, 2 * at + 1, number(8))


ENDLESS = frame(Kind.HEADERS, 0, 1, block(IDENTITY))
FLOODS = {
    "rapid reset": (HELLO, rapid_reset),
    "settings": (HELLO, lambda _at: head(Kind.SETTINGS, 0, 0, 0)),
    "ping": (HELLO, lambda _at: frame(Kind.PING, 0, 0, bytes(8))),
    "empty data": (HELLO + headers(1, IDENTITY), lambda _at: data(1, b"")),
    "continuation": (HELLO + ENDLESS, lambda _at: frame(Kind.CONTINUATION, 0, 1)),
    "endless headers": (HELLO + ENDLESS, lambda at: frame(Kind.CONTINUATION, 0, 1, block([(b"n%d" % at, b"v" * 900)]))),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_itself_alone(flooded: Flooded, name: str) -> None:
    begin, each = FLOODS[name]
    before, memory_kb = flooded.counted("connections").get(CALM, 0), flooded.proxy.rss_kb()
    with ThreadPoolExecutor(2) as pool, GrpcCalls(flooded.ports["grpc"]) as calls:
        floods = [pool.submit(poured, flooded, begin, each) for _ in range(2)]
        for number_ in range(10):
            calls.send(message(b"%d" % number_))
        for flood in floods:
            flood.result(60)
    assert flooded.counted("connections")[CALM] == before + 2
    assert flooded.proxy.rss_kb() - memory_kb < GROWTH_KB_MAX


def test_requests_that_never_end_are_bounded_together(flooded: Flooded) -> None:
    """Each is smaller than a request may be; together they are larger than all may be."""
    memory_kb, size = flooded.proxy.rss_kb(), 200_000
    start = b"\0" + number(size + 1)
    with contextlib.ExitStack() as stack:
        for _ in range(HELD_BYTES // size + 5):
            sock = stack.enter_context(raw(flooded))
            parts = [data(1, (start + bytes(size))[at : at + 16_000]) for at in range(0, size, 16_000)]
            sock.sendall(HELLO + headers(1, SEND) + b"".join(parts))
        with GrpcCalls(flooded.ports["grpc"]) as calls:
            until(lambda: flooded.counted("calls").get("held_bytes_max", 0) >= 1, "a call beyond held_bytes_max to end")
            calls.send(message(b"meanwhile"))
    assert flooded.counted("calls")["held_bytes_max"] >= 1
    assert flooded.proxy.rss_kb() - memory_kb < GROWTH_KB_MAX


def test_a_request_that_is_too_large_is_refused_before_it_is_read(flooded: Flooded) -> None:
    with raw(flooded) as sock:
        sock.sendall(HELLO + headers(1, SEND) + data(1, b"\0" + number(HELD_BYTES + 1)))
        kinds = []
        while Kind.HEADERS not in kinds:
            found = sock.recv(9, socket.MSG_WAITALL)
            kinds.append(found[3])
            sock.recv(int.from_bytes(found[:3], "big"), socket.MSG_WAITALL)
    assert flooded.counted("calls")["request_bytes_max"] == 1


def test_a_client_that_takes_no_answer_is_cut_off(flooded: Flooded) -> None:
    """Its window for answers is 0."""
    no_window = frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(0))
    with raw(flooded) as sock, GrpcCalls(flooded.ports["grpc"]) as calls:
        sock.sendall(PREFACE + no_window + headers(1, IDENTITY) + data(1, framed(b""), end=True))
        until(lambda: flooded.counted("connections").get("slow_reader") == 1, "the slow reader to be cut off")
        calls.send(message(b"meanwhile"))


def test_many_idle_connections_cost_little(flooded: Flooded) -> None:
    memory_kb = flooded.proxy.rss_kb()
    with contextlib.ExitStack() as stack, GrpcCalls(flooded.ports["grpc"]) as calls:
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(raw(flooded)).sendall(PREFACE + head(Kind.SETTINGS, 0, 0, 0))
        calls.send(message(b"meanwhile"))
        assert flooded.proxy.rss_kb() - memory_kb < GROWTH_KB_MAX
