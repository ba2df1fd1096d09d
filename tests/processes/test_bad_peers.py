"""Peers that break the rules of MQTT and of the remoting protocol: a clear end for them, no effect on others."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator

import pytest

from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from tests.processes import wire
from tests.processes.rig import Client, Server, no_traceback

pytestmark = pytest.mark.processes

ACCEPTED = b"\x20\x02\x00\x00"
TOPIC_BYTES = 40_000

BEFORE_CONNECT = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "a TLS hello": (bytes.fromhex("16030100a5010000a10303") + bytes(64), b""),
    "publish first": (wire.publish("a"), b""),
    "protocol name": (wire.connect("x", name="MQTX"), b""),
    "version 3.1": (wire.connect("x", name="MQIsdp", level=3), b"\x20\x02\x00\x01"),
    "version 6": (wire.connect("x", level=6), b"\x20\x03\x00\x84\x00"),
    "no id, but a session": (wire.connect("", flags=0), b"\x20\x02\x00\x02"),
    "reserved flag": (wire.connect("x", flags=3), b""),
    "will with QoS 3": (wire.connect("x", flags=0x1E, rest=wire.text("w") + wire.text("m")), b""),
    "will with a wildcard": (wire.connect("x", flags=6, rest=wire.text("w/#") + wire.text("m")), b""),
    "will to the server's topics": (
        wire.connect("x", flags=6, rest=wire.text("$SYS/x") + wire.text("m")),
        b"\x20\x02\x00\x05",
    ),
    "password without user": (wire.connect("x", flags=0x42, rest=wire.text("secret")), b""),
    "zero in the id": (wire.connect(b"a\0b"), b""),
    "id that is not UTF-8": (wire.connect(b"a\xff"), b""),
    "256 MB announced": (b"\x10\xff\xff\xff\x7f", b""),
    "five bytes of length": (b"\x10\xff\xff\xff\xff\x01", b""),
    "cut short": (wire.packet(0x10, b"\0\4MQ"), b""),
}

AFTER_CONNECT = {
    "second connect": wire.connect("x"),
    "empty topic": wire.publish(""),
    "wildcard topic": wire.publish("a/#", qos=1),
    "zero in a topic": wire.publish(b"a\0b"),
    "surrogate in a topic": wire.publish(b"a\xed\xa0\x80"),
    "long topic": wire.publish(b"a" * TOPIC_BYTES, qos=1),
    "topic longer than the packet": wire.packet(0x30, b"\xff\xffab"),
    "QoS 3": wire.packet(0x36, wire.text("a") + b"\0\1x"),
    "packet id 0": wire.publish("a", qos=1, packet_id=0),
    "oversized": b"\x32\xff\xff\xff\x7f",
    "subscribe without filter": wire.packet(0x82, b"\0\1"),
    "filter that is not valid": wire.subscribe(("ok", 1), ("a/#/b", 1)),
    "empty filter": wire.subscribe(("", 1)),
    "subscribe with QoS 3": wire.subscribe(("a", 3)),
    "flags of unsubscribe": wire.packet(0xA0, b"\0\1" + wire.text("a")),
    "a server's packet": wire.packet(0x90, b"\0\1\0"),
    "reserved type": wire.packet(0xF0),
    "PUBACK cut short": wire.packet(0x40, b"\0"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all of them: it must survive."""
    started = Server(tmp_path_factory.mktemp("bad-peers") / "data", "--log-level", "info")
    started.start()
    yield started
    assert started.end(signal.SIGTERM) == 0
    no_traceback(started)


@pytest.mark.parametrize("name", BEFORE_CONNECT)
def test_before_connect(server: Server, name: str) -> None:
    """The answer that the protocol has, if any, and the end."""
    sent, answer = BEFORE_CONNECT[name]
    peer = wire.Peer(server.port)
    peer.send(sent)
    assert peer.until_closed() == answer
    peer.close()


@pytest.mark.parametrize("name", AFTER_CONNECT)
def test_after_connect(server: Server, name: str) -> None:
    """The end, with an event that names client and rule; what was accepted before is kept."""
    client_id = name.replace(" ", "-")
    watcher = Client(server, "watcher")
    watcher.subscribe((f"kept/{client_id}", 1))
    peer = wire.Peer(server.port)
    peer.send(wire.connect(client_id))
    assert peer.receive(4) == ACCEPTED
    peer.send(wire.publish(f"kept/{client_id}", qos=1, packet_id=7))
    assert peer.receive(4) == b"\x40\x02\x00\x07"
    peer.send(AFTER_CONNECT[name])
    assert peer.until_closed() == b""
    peer.close()
    watcher.until(lambda: bool(watcher.messages))
    watcher.close()
    events = [line for line in server.log.read_text().splitlines() if f"client_id={client_id} " in line]
    assert any(" violation " in line and "reason=" in line and "detail=" in line for line in events), events


def test_a_topic_of_the_server(server: Server) -> None:
    """No client publishes below `$`; the event names the topic."""
    peer = wire.Peer(server.port)
    peer.send(wire.connect("intruder"))
    assert peer.receive(4) == ACCEPTED
    peer.send(wire.publish("$SYS/broker/uptime", qos=1))
    assert peer.until_closed() == b""
    peer.close()
    assert "not_authorized: publish to '$SYS/broker/uptime'" in server.log.read_text()


def framed(header: bytes, *, kind: int = 0) -> bytes:
    """A remoting frame with this header."""
    return struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header


BAD_FRAMES = {
    "oversized": struct.pack(">II", 1 << 30, 16) + bytes(64),
    "header beyond the frame": struct.pack(">II", 10, 100) + bytes(6),
    "empty": bytes(8),
    "no JSON": framed(b"{nope"),
    "JSON of another shape": framed(b"[1]"),
    "nested without end": framed(b"[" * 100_000),
    "unknown serialisation": framed(b'{"code":1}', kind=9),
    "binary header cut short": framed(b"\0\1", kind=1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "MQTT": wire.connect("x") + bytes(64),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_malformed_frames(server: Server, name: str) -> None:
    """The connection ends and the event has the reason."""
    peer = wire.Peer(server.ports["remoting"])
    port = peer.socket.getsockname()[1]
    peer.send(BAD_FRAMES[name])
    assert peer.until_closed() == b""
    peer.close()
    assert f"connection with 127.0.0.1:{port} closed: " in server.log.read_text()


def test_requests_that_cannot_be_carried_out(server: Server) -> None:
    """An unknown code, a missing field, a malformed body: an answer each, on the same connection."""
    peer = wire.Peer(server.ports["remoting"])
    requests = [
        (Command(7_777, 1), 3, "request type 7777 not supported"),
        (Command(11, 2), 29, "the field topic is missing"),
        (Command(9_001, 3, body=b"\xff" * 64), 29, "image 0 is cut short or its sizes contradict each other"),
        (Command(105, 4, fields={"topic": "nobody-made-it"}), 17, "nobody-made-it"),
    ]
    decoder = FrameDecoder()
    for request, code, remark in requests:
        peer.send(encode_frame(request))
        replies: list[Command] = []
        while not replies:
            replies = decoder.feed(peer.socket.recv(65_536))
        assert (replies[0].code, replies[0].opaque) == (code, request.opaque)
        assert remark in (replies[0].remark or "")
    peer.close()


def test_qos_2_over_a_broken_connection(server: Server) -> None:
    """The connection is lost in mid-handshake; the message is stored once."""
    watcher = Client(server, "watcher-2")
    watcher.subscribe(("twice", 1))
    message = wire.publish("twice", qos=2, packet_id=5)
    first = wire.Peer(server.port)
    first.send(wire.connect("handshake", flags=0) + message)
    assert first.receive(8) == ACCEPTED + b"\x50\x02\x00\x05"
    first.close()
    second = wire.Peer(server.port)
    second.send(wire.connect("handshake", flags=0))
    assert second.receive(4) == b"\x20\x02\x01\x00"
    second.send(bytes([message[0] | 8]) + message[1:] + wire.packet(0x62, b"\0\5"))
    assert second.receive(8) == b"\x50\x02\x00\x05" + b"\x70\x02\x00\x05"
    second.send(wire.publish("twice", b"last", qos=2, packet_id=5))
    watcher.until(lambda: watcher.latest.get("twice") == b"last")
    assert [one.payload for one in watcher.messages] == [b"x", b"last"]
    second.close()
    watcher.close()
