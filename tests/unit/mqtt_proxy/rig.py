"""A proxy without sockets for the proxy's tests: real parts, a fake broker, clients of real packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mqtt_proxy.access.auth import Exchange, Exchanges
from mqtt_proxy.app import make_services
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.history_steps import StepsAtMaster
from mqtt_proxy.link import Link
from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.metrics import AccessCounters, FrontCounters, ProxyMetrics
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.properties import SUBSCRIPTION_ID
from mqtt_proxy.mqtt.codec.wire import fixed_header
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.quotas import Quotas
from mqtt_proxy.sessions.client import Client
from mqtt_proxy.traffic import Flow, Windows
from remoting.access.rules import ANONYMOUS, READ_ALL_MASK, WRITE_ALL_MASK, Identity, RuleSet, Shown, Unproven, Verdict
from remoting.client.uplink import Uplink
from remoting.tracing.spans import Tracer
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.mqtt_proxy.fake_broker import FakeBroker


async def settle(turns: int = 60) -> None:
    """Let everything under way on the loop finish."""
    for _ in range(turns):
        await asyncio.sleep(0)


class FakeAccess:
    """Admits everyone but those named `denied`; `forbidden` topics and filters are denied to all."""

    def __init__(self) -> None:
        self.forbidden: set[bytes] = set()
        self.exchanges = Exchanges(None, AccessCounters(Registry()))
        self.qos_max = 2
        self.asked: list[tuple[str, bytes]] = []
        self.at_once = True
        """Whether it knows everybody already."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The same, if the answer is known at once."""
        return self._whose(shown) if self.at_once else None

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """Anonymous, or a user with any password; a user may be named after the reason for its refusal."""
        return self._whose(shown)

    def _whose(self, shown: Shown) -> Identity | Unproven:
        username = shown.username
        if username in set(Unproven):
            return Unproven(username)
        return ANONYMOUS if username is None else Identity(username, anonymous=False)

    @property
    def rules(self) -> RuleSet:
        """None: everything is open."""
        return RuleSet(open=True)

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """None, unless a test provides other `exchanges`."""
        return self.exchanges.begin(method, shown)

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """Everything that is not forbidden."""
        raw = topic.encode() if isinstance(topic, str) else topic
        self.asked.append((action, raw))
        return Verdict(allowed=raw not in self.forbidden, qos_max=self.qos_max)

    def decide(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """As `authorize`, but the question is not kept."""
        verdict = self.authorize(identity, action, topic, qos=qos, retain=retain)
        self.asked.pop()
        return verdict

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """As `authorize`."""
        return 0 if topic in self.forbidden else WRITE_ALL_MASK

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """As `authorize`."""
        return 0 if topic in self.forbidden else READ_ALL_MASK


class Wire:
    """What the client's handler takes for a socket."""

    def __init__(self, rig: Rig) -> None:
        self.session = Session(rig.limits, assigned_client_id=lambda: "made")
        self.peer = RemoteAddress("test", True)
        self.reading = True
        self.closed: str | None = None
        self._out = b""
        self.written: list[int] = []
        """Bytes of each flush."""
        self.flow_in, self.flow_out = Flow(rig.windows), Flow(rig.windows)
        self.handler = Client(self, rig.services)

    def peer_left(self) -> bool:
        return self.closed is not None

    def flush(self) -> None:
        data = self.session.take_bytes()
        self.written.append(len(data))
        self._out += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason
            self.flush()
            will_due = self.session.state.will_due
            self.session.close(reason)
            self.handler.on_closed(reason, will_due)

    def send(self, *sent: Any) -> None:
        """What the client sends, in one read."""
        events = self.session.feed(b"".join(encode(one, self.session.state.terms.level) for one in sent), 0)
        if events:
            self.handler.on_events(events)

    def received(self) -> list[Any]:
        """The packets the client has received since the last call."""
        self.flush()
        data, self._out = self._out, b""
        found: list[Any] = []
        at = 0
        while at < len(data):
            header = fixed_header(data, at, len(data))
            assert header is not None
            body, length = header
            found.append(decode(data[at], data[body : body + length], self.session.state.terms.level))
            at = body + length
        return found

    def messages(self) -> list[tuple[str, bytes, int, bool, bool]]:
        """The publishes among them: (topic, payload, QoS, retain, dup)."""
        return [
            (one.topic.decode(), one.payload, one.qos, one.retain, one.dup)
            for one in self.received()
            if isinstance(one, packets.Publish)
        ]

    def lose(self) -> None:
        """The socket breaks."""
        self.close("peer_closed")


class Rig:
    """The parts of one proxy on one broker."""

    def __init__(self, broker: FakeBroker, tracer: Tracer | None = None, **settings: Any) -> None:
        self.broker = broker
        self.config = ProxyConfig(**settings)
        self.limits = SessionLimits(in_flight_max=self.config.in_flight_max)
        self.clock = ManualClock()
        self.windows = Windows(self.clock)
        self.registry = Registry()
        self.metrics = ProxyMetrics(self.registry)
        self.access = FakeAccess()
        self.link = Link(Uplink(broker.connect, pause_first_ms=1, pause_ms_max=20))
        self.front = FrontCounters(self.registry)
        self.services = services = make_services(
            self.config,
            link=self.link,
            history=StepsAtMaster(self.link),
            access=self.access,
            quotas=Quotas(self.config.quotas),
            clock=self.clock,
            metrics=self.metrics,
            counters=self.front,
            tracer=tracer,
        )
        self.tools = services.tools
        self.cache, self.offsets = services.tools.cache, services.tools.offsets
        self.sys_tree = services.sys_tree

    async def client(
        self,
        client_id: str,
        *,
        clean: bool = True,
        will: packets.Will | None = None,
        username: str | None = None,
        level: int = 4,
        properties: dict[int, Any] | None = None,
    ) -> Wire:
        """A client that has sent CONNECT and was answered."""
        wire = Wire(self)
        password = b"" if username else None
        wire.send(packets.Connect(client_id, clean, 0, username, password, will, level, properties))
        await settle()
        return wire

    async def subscriber(
        self,
        client_id: str,
        *filters: tuple[str, int],
        clean: bool = True,
        level: int = 4,
        properties: dict[int, Any] | None = None,
        subscription_id: int = 0,
    ) -> Wire:
        """A client that has subscribed and read its CONNACK and SUBACK."""
        wire = await self.client(client_id, clean=clean, level=level, properties=properties)
        wire.send(packets.Subscribe(1, list(filters), {SUBSCRIPTION_ID: subscription_id} if subscription_id else None))
        await settle()
        wire.received()
        return wire

    def count(self, name: str) -> float:
        """A counter's value: of one combination of labels, `name{value}`, or of all."""
        found = f"rocketmq_mqtt_{name}"
        return sum(n for each, n in self.registry.values().items() if found in (each, each.partition("{")[0]))


@asynccontextmanager
async def running(broker: FakeBroker | None = None, **settings: Any) -> AsyncIterator[Rig]:
    """A rig whose link is up."""
    rig = Rig(broker or FakeBroker(), **settings)
    await rig.link.start()
    await rig.link.wait_up()
    yield rig
    rig.sys_tree.stop()
    rig.offsets.stop()
    await rig.link.stop()


def publish(topic: str, payload: bytes, qos: int = 1, packet_id: int = 1, *, retain: bool = False) -> packets.Publish:
    """A PUBLISH of a client."""
    return packets.Publish(topic.encode(), payload, qos, retain, False, packet_id if qos else 0)
