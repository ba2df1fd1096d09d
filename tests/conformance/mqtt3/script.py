"""Reads scenario scripts and encodes their lines as packets.

The README beside this file has the language, `tests/conformance/wire.py` the encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import wire

HERE = Path(__file__).parent
ANY_ID = "?"
"""As a packet id: whichever comes."""
STEP_NAMES = {"connect", "send", "dribble", "expect", "ack", "quiet", "closed", "drop", "silence"}


@dataclass
class Scenario:
    """One script: the statements it shows and its steps."""

    statements: list[str]
    title: str
    needs_server: bool
    where: str
    steps: list[tuple[int, list[str]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name for the test report."""
        return f"{self.statements[0]}-{self.title.replace(' ', '_')}"


def load_scenarios(folder: Path = HERE) -> list[Scenario]:
    """Every scenario of the folder."""
    found: list[Scenario] = []
    for path in sorted((folder / "scenarios").glob("*.txt")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            text = line.partition("  #")[0].strip()
            if text.startswith("=="):
                head, _, title = text[2:].partition(":")
                words = head.split()
                statements = [word for word in words if word != "@server"]
                found.append(Scenario(statements, title.strip(), "@server" in words, path.name))
            elif text and not text.startswith("#"):
                found[-1].steps.append((number, text.split()))
    return found


def fields_of(words: list[str]) -> dict[str, list[str]]:
    """key=value words; a word without = is a flag; a key may be repeated."""
    fields: dict[str, list[str]] = {}
    for word in words:
        key, separator, value = word.partition("=")
        fields.setdefault(key, []).append(value if separator else "1")
    return fields


class Fields:
    """The fields of one packet, taken one by one; a field left over is a mistake in the script."""

    def __init__(self, words: list[str]) -> None:
        self.fields = fields_of(words)

    def text(self, key: str, default: str = "") -> str:
        """The value of a field."""
        return self.fields.pop(key, [default])[0]

    def optional(self, key: str) -> str | None:
        """The value of a field, None when it is not there."""
        return self.fields.pop(key)[0] if key in self.fields else None

    def number(self, key: str, default: int = 0) -> int:
        """A number; an arbitrary packet id is 0 until one has been received."""
        value = self.text(key, str(default))
        return 0 if value == ANY_ID else int(value, 0)

    def flag(self, key: str) -> bool:
        """Whether a field is 1."""
        return self.text(key, "0") == "1"

    def many(self, key: str) -> list[str]:
        """All values of a field that may be repeated."""
        return self.fields.pop(key, [])

    def packet_id(self) -> bytes:
        """The packet identifier in two bytes [2.3.1 / 2.2.1]."""
        return wire.number(self.number("id"))

    def codes(self) -> bytes:
        """The codes of a SUBACK or UNSUBACK, a byte each."""
        return bytes(int(code, 0) for code in self.text("codes").split(","))


def packet_of(words: list[str]) -> bytes:
    """The packet that a line describes."""
    fields = Fields(words[1:])
    encoded = MAKERS[words[0]](fields)
    assert not fields.fields, f"unknown fields {list(fields.fields)} of {words[0]}"
    return encoded


def connect_packet(
    fields: Fields, level: int, user_name: str, properties: bytes = b"", will_head: bytes = b""
) -> bytes:
    """CONNECT [3.1]: name and level of the protocol, flags, keep alive, then the fields that the flags announce."""
    will, user, password = fields.optional("will"), fields.optional(user_name), fields.optional("password")
    flags = 0x02 * (fields.text("clean", "1") == "1") | 0x80 * (user is not None) | 0x40 * (password is not None)
    payload = [wire.string(fields.text("id"))]
    if will is not None:
        flags |= 0x04 | fields.number("will_qos") << 3 | 0x20 * fields.flag("will_retain")
        payload += [will_head, wire.string(fields.text("will_topic")), wire.string(will)]
    payload += [wire.string(one) for one in (user, password) if one is not None]
    head = wire.string("MQTT") + bytes((level, flags)) + wire.number(fields.number("keepalive", 60))
    return wire.packet(wire.CONNECT, head, properties, *payload)


def publish_packet(fields: Fields, properties: bytes = b"") -> bytes:
    """PUBLISH [3.3]: DUP, QoS and RETAIN in the first byte, the packet id only above QoS 0."""
    qos = fields.number("qos")
    first = wire.PUBLISH | fields.flag("dup") << 3 | qos << 1 | fields.flag("retain")
    packet_id = fields.packet_id()
    topic, payload = wire.string(fields.text("topic")), fields.text("payload").encode() * fields.number("times", 1)
    return wire.packet(first, topic, packet_id if qos else b"", properties, payload)


def subscribe_packet(fields: Fields, properties: bytes = b"") -> bytes:
    """SUBSCRIBE [3.8]: each filter with its options, in 3.1.1 the QoS asked for."""
    filters = [word.rpartition(":") for word in fields.many("filter")]
    rows = [wire.string(name) + bytes((int(options, 0),)) for name, _, options in filters]
    return wire.packet(wire.SUBSCRIBE, fields.packet_id(), properties, *rows)


def unsubscribe_packet(fields: Fields, properties: bytes = b"") -> bytes:
    """UNSUBSCRIBE [3.10]: the filters."""
    return wire.packet(wire.UNSUBSCRIBE, fields.packet_id(), properties, *map(wire.string, fields.many("filter")))


def _acknowledgement(first: int) -> Callable[[Fields], bytes]:
    return lambda fields: wire.packet(first, fields.packet_id())


MAKERS: dict[str, Callable[[Fields], bytes]] = {
    "connect": lambda fields: connect_packet(fields, 4, "user"),
    "connack": lambda fields: wire.packet(wire.CONNACK, bytes((fields.flag("present"), fields.number("code")))),
    "publish": publish_packet,
    "puback": _acknowledgement(wire.PUBACK),
    "pubrec": _acknowledgement(wire.PUBREC),
    "pubrel": _acknowledgement(wire.PUBREL),
    "pubcomp": _acknowledgement(wire.PUBCOMP),
    "subscribe": subscribe_packet,
    "suback": lambda fields: wire.packet(wire.SUBACK, fields.packet_id(), fields.codes()),
    "unsubscribe": unsubscribe_packet,
    "unsuback": _acknowledgement(wire.UNSUBACK),
    "pingreq": lambda _: wire.packet(wire.PINGREQ),
    "pingresp": lambda _: wire.packet(wire.PINGRESP),
    "disconnect": lambda _: wire.packet(wire.DISCONNECT),
}
