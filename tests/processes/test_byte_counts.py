"""Bytes in the metrics compared with what a raw socket really sent and received."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.processes.rig import Server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

CONNECT = bytes.fromhex("10 10 0004 4d515454 05 02 0000 03 21 0040 0000")
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"
DISCONNECT = b"\xe0\0"


def publishes() -> list[bytes]:
    """Plain, with an id, repeated, long, with properties, by an alias, refused: [MQTT-3.3]."""
    plain = [b"\x30\x07\0\x01t\0abc"] * 100
    with_id = [b"\x32\x09\0\x01t" + bytes((0, number)) + b"\0abc" for number in range(1, 51)]
    long = [b"\x30\xcc\x08\0\x01t\0" + bytes(1_096)]
    content_type = b"\x30\x0d\0\x01t\x06\x03\0\x03a/b" + b"ab" + b"c"
    alias = [b"\x30\x0a\0\x01t\x03\x23\0\x01abc", b"\x30\x09\0\0\x03\x23\0\x01abc"]
    refused = [b"\x32\x0b\0\x03$/x\0\x63\0abc"]
    return plain + with_id + long + [content_type] + alias + refused


def metric(server: Server, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics") as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(float(found[1]))


def test_bytes_match_the_sockets(tmp_path: Path) -> None:
    """PUBLISH packets as they were sent, whatever the server does with them; and all bytes of the socket."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            sock.settimeout(20)
            sent = publishes()
            for packet in sent:
                assert len(packet) == 2 + packet[1] or len(packet) == 3 + (packet[1] & 0x7F | packet[2] << 7)
            sock.sendall(CONNECT)
            received = len(sock.recv(65_536))
            sock.sendall(b"".join(sent) + PINGREQ)
            wanted, found = 51, b""
            while found.count(PINGRESP) < 1 or found.count(b"\x40") < wanted:
                piece = sock.recv(65_536)
                assert piece, found
                found += piece
            received += len(found)
            assert metric(server, "rocketmq_mqtt_bytes_in_total") == sum(map(len, sent))
            assert metric(server, "rocketmq_mqtt_socket_bytes_in_total") == sum(map(len, [CONNECT, *sent, PINGREQ]))
            assert metric(server, "rocketmq_mqtt_socket_bytes_out_total") == received
            sock.sendall(DISCONNECT)
    finally:
        server.kill_if_running()
