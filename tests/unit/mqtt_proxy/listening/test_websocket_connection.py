"""MQTT over WebSocket on real sockets, with wsproto as the client: handshake, data both ways, pings, every way to
end."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from mqtt_proxy.listening.handshakes import ListenerSpec, TlsFiles
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.websocket import Rules
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.mqtt_proxy.listening.world import World, world

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")
DOOR = ListenerSpec(name="ws", websocket=Rules())
CONNECT = encode(packets.Connect("dev", True, 60))
CONNACK = b"\x20\x02\x00\x00"


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Every test runs on both loops."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class Browser:
    """A WebSocket client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.socket = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self.data = b""

    @classmethod
    async def open(cls, here: World, *, port: int = 0, tls: ssl.SSLContext | None = None, head: bytes = b"") -> Browser:
        made = cls(*await here.open_at(port or here.port, head, tls=tls))
        made.send(Request(host="localhost", target="/mqtt", subprotocols=["mqtt"]))
        accepted = await made.next()
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == "mqtt"
        return made

    def send(self, *events: Any) -> None:
        self.writer.write(b"".join(self.socket.send(event) for event in events))

    async def next(self) -> Event:
        while not self._events:
            data = await asyncio.wait_for(self._reader.read(65_536), 10)
            self.socket.receive_data(data or None)
            self._events += self.socket.events()
        return self._events.pop(0)

    async def answer(self, size: int) -> bytes:
        while len(self.data) < size:
            event = await self.next()
            assert isinstance(event, BytesMessage), event
            self.data += bytes(event.data)
        taken, self.data = self.data[:size], self.data[size:]
        return taken


async def test_connect_publish_and_deliver() -> None:
    """[MQTT-6.0.0-2] Packets cut into frames anywhere, one frame or several per packet, deliveries back."""
    async with world(door=DOOR) as here:
        browser = await Browser.open(here)
        publish = encode(packets.Publish(b"t", bytes(70_000), 1, False, False, 7))
        browser.send(BytesMessage(CONNECT[:3], message_finished=False), BytesMessage(CONNECT[3:] + publish[:1]))
        assert await browser.answer(4) == CONNACK
        browser.send(BytesMessage(publish[1:40_000]), Ping(b"here?"), BytesMessage(publish[40_000:]))
        pong = await browser.next()
        assert isinstance(pong, Pong)
        assert pong.payload == b"here?"
        assert await browser.answer(4) == b"\x40\x02\x00\x07"
        connection = here.handlers[0].connection
        assert (connection.peer.listener, connection.peer.address, connection.peer.loopback) == (
            "ws",
            "127.0.0.1",
            True,
        )
        connection.session.deliveries.deliver(b"out", bytes(70_000), 0, False, False, None)
        connection.flush()
        expected = encode(packets.Publish(b"out", bytes(70_000), 0, False, False, 0))
        assert await browser.answer(len(expected)) == expected
        browser.send(BytesMessage(encode(packets.Disconnect())))
        close = await browser.next()
        assert isinstance(close, CloseConnection)
        assert close.code == 1000
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("disconnect", False)
    assert len(here.listener.sockets) == 0


async def test_frames_right_behind_the_request() -> None:
    """A client that does not wait for the answer is served too."""
    async with world(door=DOOR) as here:
        browser = Browser(*await here.open())
        request = browser.socket.send(Request(host="localhost", target="/mqtt", subprotocols=["mqtt"]))
        browser.writer.write(request + b"\x82" + bytes([0x80 | len(CONNECT)]) + bytes(4) + CONNECT)
        assert isinstance(await browser.next(), AcceptConnection)
        assert await browser.answer(4) == CONNACK


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", CONNECT, b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_other_requests_are_refused_and_counted(sent: bytes) -> None:
    """A 400 that can be read, then the end."""
    async with world(door=DOOR) as here:
        reader, _ = await here.open(sent)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert here.counters.handshake_failures.child("websocket").value == 1
        assert not here.handlers
        await until(lambda: len(here.listener.sockets) == 0)


async def test_another_path_or_page() -> None:
    """404 and 403."""
    async with world(door=ListenerSpec(name="ws", websocket=Rules("/mqtt", ("https://plant.example",)))) as here:
        for target, origin, status in (
            ("/other", "https://plant.example", 404),
            ("/mqtt", "https://evil.example", 403),
        ):
            browser = Browser(*await here.open())
            origin_header = [(b"Origin", origin.encode())]
            browser.send(Request(host="localhost", target=target, subprotocols=["mqtt"], extra_headers=origin_header))
            refused = await browser.next()
            assert isinstance(refused, RejectConnection)
            assert refused.status_code == status


@pytest.mark.parametrize(
    ("sent", "code"),
    [(TextMessage("hello"), 1003), (BytesMessage(bytes(65_537)), 1009), (CloseConnection(1001, "tab closed"), 1001)],
)
async def test_before_connect(sent: Any, code: int) -> None:
    """[MQTT-6.0.0-1] Text, more than an unknown client may send, and a proper close: each is answered with its code."""
    async with world(door=DOOR) as here:
        browser = await Browser.open(here)
        browser.send(sent)
        close = await browser.next()
        assert isinstance(close, CloseConnection)
        assert close.code == code
        reason = "peer_closed" if code == 1001 else f"websocket_{code}"
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] == reason
        assert here.counters.violations.child(reason).value == (code != 1001)


async def test_a_connected_client_may_send_long_frames() -> None:
    """The limit for unknown clients ends with CONNACK; MQTT's own limit applies, with its code."""
    async with world(door=DOOR, limits=SessionLimits(packet_size_bytes_max=300_000)) as here:
        browser = await Browser.open(here)
        browser.send(BytesMessage(CONNECT))
        assert await browser.answer(4) == CONNACK
        browser.send(BytesMessage(encode(packets.Publish(b"t", bytes(200_000), 1, False, False, 1))))
        assert await browser.answer(4) == b"\x40\x02\x00\x01"
        browser.send(BytesMessage(encode(packets.Publish(b"t", bytes(300_001), 1, False, False, 2))[:1_000]))
        close = await browser.next()
        assert isinstance(close, CloseConnection)
        assert close.code == 1009


async def test_a_broken_frame_leaves_the_will() -> None:
    """As with any rule broken after CONNECT."""
    async with world(door=DOOR) as here:
        browser = await Browser.open(here)
        will = packets.Will(b"w", b"gone", 0, False)
        browser.send(BytesMessage(encode(packets.Connect("dev", True, 60, will=will))))
        assert await browser.answer(4) == CONNACK
        browser.writer.write(b"\x82\x01x")
        close = await browser.next()
        assert isinstance(close, CloseConnection)
        assert close.code == 1002
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("websocket_1002", True)


async def test_a_socket_that_ends_and_one_that_is_slow() -> None:
    """Before and after the handshake; nothing remains of them."""
    async with world(door=DOOR, limits=SessionLimits(connect_deadline_ms=3_000)) as here:
        _, writer = await here.open(b"GET /mq")
        await until(lambda: here.listener.entrances)
        writer.close()
        await until(lambda: here.counters.handshake_failures.child("websocket_left").value == 1)
        reader, _ = await here.open(b"GET /mq")
        await until(lambda: here.listener.entrances)
        here.clock.advance_ms(3_600)
        here.listener._expire()
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert here.counters.handshake_failures.child("websocket_timeout").value == 1
        browser = await Browser.open(here)
        browser.writer.close()
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] == "peer_closed"
    assert len(here.listener.sockets) == 0


async def test_stop_closes_with_going_away() -> None:
    """1001, then the end."""
    here = World()
    here.port = await here.door(DOOR)
    browser = await Browser.open(here)
    await here.listener.stop()
    close = await browser.next()
    assert isinstance(close, CloseConnection)
    assert close.code == 1001


async def test_pings_of_a_client_that_does_not_read_are_bounded() -> None:
    """The answers stop when the socket is full; the last one follows when the client reads again."""
    async with world(door=DOOR, output_bytes_max=4_096) as here:
        browser = await Browser.open(here)
        browser.send(BytesMessage(CONNECT))
        assert await browser.answer(4) == CONNACK
        connection = here.handlers[0].connection
        while connection.writable:
            connection.session.deliveries.deliver(b"t", bytes(3_000), 0, False, False, None)
            connection.flush()
            await asyncio.sleep(0)
        waiting = connection._transport.get_write_buffer_size()
        before = here.counters.bytes_in.value
        for n in range(1_000):
            browser.send(Ping(b"%d" % n))
        browser.send(BytesMessage(encode(packets.Publish(b"last", b"", 0, False, False, 0))))
        await until(lambda: here.counters.bytes_in.value > before)
        assert connection._transport.get_write_buffer_size() <= waiting
        event: Any = None
        while not isinstance(event, Pong):
            event = await browser.next()
        assert event.payload == b"999"


@pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
async def test_behind_a_balancer_and_tls(tmp_path: Path) -> None:
    """All three layers: both the name in the certificate and the path are used."""
    authority = Authority(tmp_path)
    identity = authority.issue()
    async with world() as here:
        files = TlsFiles(identity.certificate, identity.key, counters=here.counters, client_ca=authority.certificate)
        port = await here.door(ListenerSpec(name="wss", tls=files, websocket=Rules()))
        shown = authority.issue("device-7", "").context(authority.certificate)
        browser = await Browser.open(here, port=port, tls=shown)
        browser.send(BytesMessage(CONNECT))
        assert await browser.answer(4) == CONNACK
        connection = here.handlers[0].connection
        assert (connection.peer.listener, connection.peer.certificate_name) == ("wss", "device-7")
        local = (ipaddress.ip_network("127.0.0.0/8"),)
        port = await here.door(ListenerSpec(name="ws", websocket=Rules(), balancers=local))
        await Browser.open(here, port=port, head=b"PROXY TCP4 203.0.113.7 192.0.2.1 1 1\r\n")
        assert here.handlers[1].connection.peer.address == "203.0.113.7"
