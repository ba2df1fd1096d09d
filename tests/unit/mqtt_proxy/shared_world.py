"""A hub whose link records requests, sessions reduced to a window, and messages as the broker sends them."""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqtt_proxy.grants import grant_of
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.session.in_flight import Outgoing
from mqtt_proxy.shared import Memberships, SharedHub, SharedSource, SubscriberSession
from remoting.protocol.bodies.session_body import (
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    encode,
    encode_given,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import FLAG_MQTT, MESSAGE, RecordView, encode_record
from runtime.metrics import Registry


class FakeLink:
    """Records requests; the test makes pushes and losses."""

    def __init__(self) -> None:
        self.up = True
        self.takes: list[SharedTake] = []
        self.settles: list[SharedSettled] = []
        self.frames = 0
        self.joins = True
        self.error: Exception | None = None

    def on_push(self, code: int, callback: Callable[[Command], None]) -> None:
        assert code == RequestCode.SHARED_GIVEN
        self._push = callback

    def on_down(self, callback: Callable[[str], None]) -> None:
        self._down = callback

    def call(self, code: int, body: bytes, done: Callable[[bytes, Exception | None], None]) -> None:
        assert code == RequestCode.SHARED_TAKE
        self.takes.append(decode(SharedTake, body))
        done(encode(SharedTaken([self.joins] * len(self.takes[-1].members))), self.error)

    def oneway(self, code: int, body: bytes) -> None:
        assert code == RequestCode.SHARED_SETTLE
        self.frames += 1
        self.settles += decode(SharedSettle, body).members

    def give(self, *given: tuple[int, int]) -> None:
        self._push(Command(RequestCode.SHARED_GIVEN, body=encode_given([(*one, b"record") for one in given])))

    def lose(self) -> None:
        self.up = False
        self._down("gone")

    def said(self) -> list[SharedSettled]:
        said, self.settles = self.settles, []
        return said


class FakeOutbound:
    """Records what is sent; a message with a QoS takes an entry of the window."""

    def __init__(self, window: Outgoing) -> None:
        self._window = window
        self.budget_bytes = 100
        self.sent: list[tuple[bytes, int, tuple[int, ...]]] = []
        self.retained: list[bool] = []
        self.refuses = False

    def send(self, _record, topic, _payload, qos, retain, token, identifiers) -> bool:
        assert isinstance(token[0], SharedSource)
        if self.refuses:
            return False
        self.sent.append((topic, qos, identifiers))
        self.retained.append(retain)
        if qos:
            self._window.assign(token)
        return True


def message(flags: int, topic: bytes = b"a") -> memoryview:
    """A record as the broker sends it."""
    pairs = [(b"originMqttTopic", topic)] if topic else []
    lengths = b"".join(struct.pack("<HH", len(key), len(value)) for key, value in pairs)
    parent = topic[:1]
    meta = lengths + parent + b"".join(key + value for key, value in pairs)
    counts = (len(pairs), len(parent), 0, 0, len(meta) - len(lengths) - len(parent))
    record = encode_record(
        magic_type=MESSAGE, epoch=1, position=64, born_ms=0, store_ms=0, flags=flags | FLAG_MQTT, count=1,
        dispatch=[(7, 1)], counts=counts, tag_hash=0, producer_seq=0, meta=meta, body=b"pay",
    )  # fmt: skip
    return memoryview(record)


class World:
    """A hub with members whose sessions count how often they are woken."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.metrics = ProxyMetrics(Registry())
        self.hub = SharedHub(self.link, self.metrics)
        self.wakes = 0

    def session(self, window: Outgoing) -> Memberships:
        return Memberships(self.hub, SubscriberSession("c", 1, window, self._wake))

    def member(self, free: int = 10, qos: int = 1) -> tuple[SharedSource, Memberships]:
        """The only member of a session whose window has so much room, and what the session does with it."""
        session = self.session(Outgoing(free))
        return session.add("$share/g/a", 7, grant_of(qos), 1), session

    def _wake(self) -> None:
        self.wakes += 1


def send_all(source: SharedSource, qos: int = 1) -> list[int]:
    """What a delivery does with the waiting messages."""
    outbound, sent = FakeOutbound(source.session.outgoing), [offset for offset, _ in source.waiting]
    for offset in sent:
        assert source.send(outbound, offset, RecordView(message(qos)), qos) == 1
    return sent
