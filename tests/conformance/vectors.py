"""Plays the vectors of Mosquitto's suite against a server: `python -m tests.conformance.vectors FOLDER HOST:PORT`.

The folder is its `test/broker/data`; nothing of it is kept here. What is answered otherwise is printed; how the
standard judges it is in docs/mqtt-conformance.md. A payload is hexadecimal, or a sign with a number (`m1` two bytes,
`i1` one, `L1` four, `r1` and `v1` a variable length), or text in apostrophes. Reason strings, which every server words
for itself, are not compared.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from string import hexdigits
from typing import Any

from tests.conformance import wire
from tests.conformance.mqtt3.targets import ScriptClient, ServerTarget, Target

SIZES = {"i": 1, "s": 2, "m": 2, "k": 2, "H": 2, "L": 4}
CODE_AT = {wire.CONNACK: 3, wire.DISCONNECT: 2}
"""First byte of a packet that may end a connection -> where its reason code is."""
FAILURE_MIN = 0x80


@dataclass(frozen=True)
class Vector:
    """One sequence of packets: `ends` when the server has to close after them."""

    name: str
    level: int
    connects: bool
    ends: bool
    steps: list[dict[str, Any]]


def load(folder: Path) -> list[Vector]:
    """All vectors of the folder's files; a group has the defaults of its tests."""
    groups = [group for path in sorted(folder.glob("*.json")) for group in json.loads(path.read_text())]
    rows = [group | row for group in groups if not group.get("disable") for row in group["tests"]]
    return [
        Vector(
            f"{row['group']} {row['name']}",
            row.get("ver", 4),
            row.get("connect", True),
            row.get("expect_disconnect", True),
            row["msgs"],
        )
        for row in rows
    ]


def encoded(payload: str) -> bytes:
    """The bytes of a payload; hexadecimal may be cut by blanks anywhere."""
    tokens = re.findall(r"'[^']*'|\S+", payload)
    return bytes.fromhex("".join(token if token[0] in hexdigits else _token(token).hex() for token in tokens))


def _token(token: str) -> bytes:
    if token.startswith("'"):
        return token[1:-1].encode()
    if token[0] in "rv":
        return _variable(int(token[1:]))
    return int(token[1:]).to_bytes(SIZES[token[0]], "big")


def _variable(value: int) -> bytes:
    """As `wire.variable`, also longer than the standard allows: vectors try that."""
    low, high = value % 128, value // 128
    return bytes((low | 0x80,)) + _variable(high) if high else bytes((low,))


def play(target: Target, vector: Vector) -> str:
    """What came instead of the expected answer; empty when all is alike."""
    client = target.open()
    try:
        if vector.connects:
            client.send(_connect(vector.level, "vector"))
            client.next_packet()
        for step in vector.steps:
            if step["type"] == "send":
                client.send(encoded(step["payload"]))
            elif step["type"] == "publish":
                _publish(target, step)
            elif wrong := _compared(encoded(step["payload"]), _next(client)):
                return wrong
        if vector.ends:
            came = _next(client)
            return "" if came == b"" else f"{_shown(came)} instead of the end"
        client.send(wire.packet(wire.PINGREQ))
        return _compared(wire.packet(wire.PINGRESP), _next(client))
    finally:
        client.drop()


def _connect(level: int, client_id: str) -> bytes:
    properties = b"\0" if level == 5 else b""
    head = wire.string("MQTT") + bytes((level, 2)) + wire.number(60)
    return wire.packet(wire.CONNECT, head, properties, wire.string(client_id))


def _publish(target: Target, step: dict[str, Any]) -> None:
    """Another client sends the message, and completes its exchange."""
    helper, qos = target.open(), step["qos"]
    topic, packet_id = wire.string(step["topic"]), wire.number(1) if qos else b""
    helper.send(_connect(4, "helper"))
    helper.send(wire.packet(wire.PUBLISH | qos << 1, topic, packet_id, step["payload"].encode()))
    if qos == 2:
        helper.send(wire.packet(wire.PUBREL, packet_id))
    for _ in range(1 + qos):  # CONNACK, then PUBACK or PUBREC and PUBCOMP
        helper.next_packet()
    helper.drop()


def _next(client: ScriptClient) -> bytes | None:
    """The next packet, b"" at the end of the connection, None when nothing comes."""
    try:
        return client.next_packet()
    except (AssertionError, TimeoutError):
        return None


def _compared(expected: bytes, came: bytes | None) -> str:
    at = CODE_AT.get(expected[0], 0)
    if came == expected or (at and came and came[0] == expected[0] and came[at] == expected[at] >= FAILURE_MIN):
        return ""
    return f"{_shown(came)} instead of {_shown(expected)}"


def _shown(packet: bytes | None) -> str:
    return "nothing" if packet is None else packet.hex(" ") or "the end"


def main(folder: str, address: str) -> None:
    """Print what is answered otherwise, and how many vectors are alike."""
    host, _, port = address.rpartition(":")
    vectors = load(Path(folder))
    outcomes = [(vector.name, play(ServerTarget(host, int(port)), vector)) for vector in vectors]
    for name, wrong in outcomes:
        if wrong:
            print(f"{name}: {wrong}")
    print(f"{sum(not wrong for _, wrong in outcomes)} of {len(vectors)} alike")


if __name__ == "__main__":
    main(*sys.argv[1:])
