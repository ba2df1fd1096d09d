"""MQTT packets of both versions made from a seed, valid and invalid; written without the server's own encoder.

A session is a list of packets that begins with CONNECT and follows a small model of what a client may do: ids in use,
QoS 2 messages to release, aliases. `CRIMES` are single packets that no accepted client may send.
"""

from __future__ import annotations

import random
import struct

from tests.processes.wire import packet, text

LEVELS = (4, 5)
RECEIVE_MAX = 40
"""Most QoS 2 messages a session leaves unreleased; servers announce more."""
TOPICS = ("fuzz/a", "fuzz/b", "fuzz/a/b", "fuzz//", "fuzz/ü", "fuzz/" + "x" * 130)
FILTERS = ("fuzz/#", "fuzz/+", "fuzz/a", "+/a", "#", "fuzz/ü", "$share/g/fuzz/#", "$share/g/fuzz/a")
USER = bytes([38]) + text("k") + text("v")


def number(value: int) -> bytes:
    """A variable byte integer of one to four bytes."""
    encoded = b""
    while True:
        value, digit = divmod(value, 128)
        encoded += bytes([digit | (128 if value else 0)])
        if not value:
            return encoded


def properties(level: int, *pairs: bytes) -> bytes:
    """The properties of a packet: nothing before MQTT 5."""
    body = b"".join(pairs)
    return number(len(body)) + body if level == 5 else b""


def some(rng: random.Random, level: int, *pairs: bytes) -> bytes:
    """Some of these properties, in any order."""
    chosen = [pair for pair in pairs if rng.random() < 0.4]
    rng.shuffle(chosen)
    return properties(level, *chosen, *[USER] * rng.choice((0, 0, 1, 3)))


def message_properties(rng: random.Random, level: int) -> bytes:
    """Those of a message, without an alias."""
    return some(rng, level, *MESSAGE)


MESSAGE = (
    b"\x01\x01",
    b"\x02" + struct.pack(">I", 3),
    b"\x03" + text("text/plain"),
    b"\x08" + text("fuzz/answer"),
    b"\x09" + text(b"\x00\xff"),
)


def connect(rng: random.Random, level: int, client_id: str) -> bytes:
    """CONNECT, with and without a will, with a clean session or a kept one."""
    flags, will = rng.choice((0, 2)), b""
    if rng.random() < 0.3:
        flags |= 4 | rng.randrange(3) << 3 | rng.randrange(2) << 5
        delayed = some(rng, level, b"\x18" + struct.pack(">I", 1), *MESSAGE)
        will = delayed + text("fuzz/will") + text("gone")
    found = some(
        rng,
        level,
        b"\x11" + struct.pack(">I", rng.choice((0, 5, 60))),
        b"\x21" + struct.pack(">H", rng.choice((1, 20, 65_535))),
        b"\x27" + struct.pack(">I", rng.choice((100, 100_000))),
        b"\x22" + struct.pack(">H", rng.choice((0, 3, 65_535))),
        b"\x19" + bytes([rng.randrange(2)]),
        b"\x17" + bytes([rng.randrange(2)]),
    )
    keep_alive = struct.pack(">H", rng.choice((0, 60, 65_535)))
    return packet(0x10, text("MQTT") + bytes([level, flags]) + keep_alive + found + text(client_id) + will)


class Model:
    """What one client may send next."""

    def __init__(self, rng: random.Random, level: int) -> None:
        self.rng = rng
        self.level = level
        self.last_id = 0
        self.unreleased: list[int] = []
        self.aliases: set[int] = set()

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def id_bytes(self) -> bytes:
        return struct.pack(">H", self.next_id())

    def publish(self) -> bytes:
        """Any QoS; with MQTT 5 now and then by alias."""
        rng, qos, topic = self.rng, self.rng.randrange(3), self.rng.choice(TOPICS)
        if qos == 2 and len(self.unreleased) >= RECEIVE_MAX:
            qos = 0
        alias = b""
        if self.level == 5 and rng.random() < 0.3:
            which = rng.randint(1, 4)
            topic = "" if which in self.aliases and rng.random() < 0.7 else topic
            self.aliases.add(which)
            alias = b"\x23" + struct.pack(">H", which)
        found = properties(self.level, alias, *[one for one in MESSAGE if rng.random() < 0.2])
        head = text(topic) + (self.id_bytes() if qos else b"") + found
        if qos == 2:
            self.unreleased.append(self.last_id)
        payload = bytes(rng.choice((0, 1, 30, 127, 300)))
        return packet(0x30 | qos << 1 | (rng.random() < 0.1), head + payload)

    def release(self) -> bytes:
        """PUBREL of an open one, or a PINGREQ."""
        if not self.unreleased:
            return packet(0xC0)
        return packet(0x62, struct.pack(">H", self.unreleased.pop(0)))

    def subscribe(self) -> bytes:
        """One to three filters; options with MQTT 5."""
        rng, level = self.rng, self.level
        found = some(rng, level, b"\x0b" + number(rng.choice((1, 200, 268_435_455))))
        entries = b""
        for topic_filter in rng.sample(FILTERS, rng.randint(1, 3)):
            shared = topic_filter.startswith("$share")
            options = rng.randrange(3) | (0 if level == 4 else rng.randrange(3) << 4 | rng.randrange(2) << 3)
            options |= 4 if level == 5 and not shared and rng.random() < 0.3 else 0
            entries += text(topic_filter) + bytes([options])
        return packet(0x82, self.id_bytes() + found + entries)

    def unsubscribe(self) -> bytes:
        """Filters that may be subscribed."""
        entries = b"".join(text(one) for one in self.rng.sample(FILTERS, self.rng.randint(1, 2)))
        return packet(0xA2, self.id_bytes() + some(self.rng, self.level) + entries)

    def stray(self) -> bytes:
        """An acknowledgement of nothing: allowed, and ignored or answered."""
        kind, body = self.rng.choice((0x40, 0x50, 0x70)), struct.pack(">H", 60_000 + self.rng.randrange(9))
        if self.level == 5 and self.rng.random() < 0.5:
            body += b"\x00" + some(self.rng, 5, b"\x1f" + text("why"))
        return packet(kind, body)

    def step(self) -> bytes:
        """One packet."""
        makers = (self.publish, self.release, self.subscribe, self.unsubscribe, self.stray, lambda: packet(0xC0))
        return self.rng.choices(makers, (6, 2, 2, 1, 1, 1))[0]()


def session(rng: random.Random, level: int, client_id: str) -> list[bytes]:
    """CONNECT and up to twelve packets after it, without an end."""
    model = Model(rng, level)
    return [connect(rng, level, client_id), *[model.step() for _ in range(rng.randint(1, 12))]]


def farewell(rng: random.Random, level: int) -> bytes:
    """DISCONNECT."""
    if level == 5 and rng.random() < 0.5:
        return packet(0xE0, bytes([rng.choice((0, 4))]) + some(rng, 5, b"\x1f" + text("bye")))
    return packet(0xE0)


BAD_TEXTS = (b"a\0b", b"a\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"a/#", b"+", b"")
"""Nul, no UTF-8, surrogate, overlong, beyond Unicode, cut short, wildcards, empty: no topic of a message."""
BAD_FILTERS = (b"", b"a/#/b", b"a+", b"#a", b"a\0b", b"\xed\xa0\x80", b"a\xff")


def crimes(level: int) -> dict[str, bytes]:
    """Packets that no accepted client may send: each must end the connection by the server's own decision."""
    none = properties(level)
    one = struct.pack(">H", 1)
    found = {
        "second CONNECT": packet(0x10, text("MQTT") + bytes([level, 2]) + b"\0\0" + none + text("x")),
        "QoS 3": packet(0x36, text("fuzz/a") + one + none),
        "id 0 of PUBLISH": packet(0x32, text("fuzz/a") + b"\0\0" + none),
        "id 0 of SUBSCRIBE": packet(0x82, b"\0\0" + none + text("fuzz/a") + b"\0"),
        "id 0 of UNSUBSCRIBE": packet(0xA2, b"\0\0" + none + text("fuzz/a")),
        "id 0 of PUBREL": packet(0x62, b"\0\0"),
        "no filter": packet(0x82, one + none),
        "nothing to unsubscribe": packet(0xA2, one + none),
        "options of SUBSCRIBE": packet(0x82, one + none + text("fuzz/a") + b"\xc0"),
        "QoS 3 of SUBSCRIBE": packet(0x82, one + none + text("fuzz/a") + b"\x03"),
        "too long": bytes([0x30]) + b"\xff\xff\xff\x7f",
        "five bytes of length": bytes([0x30]) + b"\xff\xff\xff\xff\x01",
        "topic longer than the packet": packet(0x30, b"\xff\xffab"),
        "DUP of QoS 0": packet(0x38, text("fuzz/a") + none),
        "deep topic": packet(0x30, text("/" * 4_000) + none),
    }
    for kind, name in ((0x20, "CONNACK"), (0x90, "SUBACK"), (0xB0, "UNSUBACK"), (0xD0, "PINGRESP"), (0x00, "type 0")):
        found[f"{name} of a client"] = packet(kind, b"" if kind == 0xD0 else b"\0\1" + none + b"\0")
    for first in (0x41, 0x52, 0x60, 0x7F, 0x80, 0xA0, 0xC1, 0xE1):
        found[f"flags {first:#x}"] = packet(first, b"" if first >= 0xC0 else one + none + text("fuzz/a") + b"\0")
    for bad in BAD_TEXTS:
        found[f"topic {bad!r}"] = packet(0x30, text(bad) + none)
    for bad in BAD_FILTERS:
        found[f"filter {bad!r}"] = packet(0x82, one + none + text(bad) + b"\0")
    return found | (crimes_5() if level == 5 else {"type 15": packet(0xF0)})


def crimes_5() -> dict[str, bytes]:
    """What MQTT 5 forbids besides."""
    topic = text("fuzz/a")

    def publish(*pairs: bytes, to: bytes = topic) -> bytes:
        return packet(0x30, to + properties(5, *pairs))

    def subscribe(*pairs: bytes, options: int = 0, topic_filter: bytes = topic) -> bytes:
        return packet(0x82, b"\0\1" + properties(5, *pairs) + topic_filter + bytes([options]))

    return {
        "alias 0": publish(b"\x23\0\0"),
        "alias too high": publish(b"\x23\xff\xff"),
        "alias nobody set": publish(b"\x23\0\x09", to=text("")),
        "unknown property": publish(b"\x7e\0"),
        "property id of two bytes": publish(b"\x81\x00\x01"),
        "property of another packet": publish(b"\x11\0\0\0\1"),
        "property twice": publish(b"\x01\x01", b"\x01\x01"),
        "property cut short": packet(0x30, topic + b"\x03\x02\0\0"),
        "properties longer than the packet": packet(0x30, topic + b"\x7f\x01\x01"),
        "length of properties too long": packet(0x30, topic + b"\xff\xff\xff\xff\x01"),
        "payload format 2": publish(b"\x01\x02"),
        "response topic with a wildcard": publish(b"\x08" + text("a/#")),
        "subscription id of a client": publish(b"\x0b\x01"),
        "key that is no text": publish(b"\x26" + text(b"\xff") + text("v")),
        "too many user properties": publish(*[USER] * 500),
        "subscription id 0": subscribe(b"\x0b\x00"),
        "subscription id twice": subscribe(b"\x0b\x01", b"\x0b\x02"),
        "retain handling 3": subscribe(options=0x30),
        "no local and shared": subscribe(options=4, topic_filter=text("$share/g/a")),
        "AUTH without a method": packet(0xF0, b"\x18\x00"),
        "reason of PUBACK": packet(0x40, b"\0\1\x01\x00"),
        "DISCONNECT with an unknown reason": packet(0xE0, b"\x8b\x00"),
    }
