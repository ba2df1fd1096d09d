"""The inbound direction: subscribes at the peer, appends what arrives to our log, acknowledges what is confirmed.

Appends go through a window of one frame (`remoting.client.in_flight`). The session at the peer is persistent: while the
bridge is away the peer keeps QoS 1 messages for it. A message is acknowledged when it is durable here; if our broker
does not answer, the connection to the peer is closed, and the peer sends again what was not acknowledged. A message
that our broker will never accept is dropped, counted, logged and acknowledged, because it would block all others.
`Inbox` has the peer's messages from their arrival to our acknowledgement. Invariant: a message is acknowledged to the
peer only when it and everything that arrived before it was stored, or was dropped with a log event, as MQTT demands;
nothing is acknowledged on another connection than the one it arrived by: a new connection has a new inbox. Loop rule:
all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from mqtt_bridge.config import IN, ConnectionConfig
from mqtt_bridge.message import (
    BridgeMetrics,
    InMapping,
    MessageCounts,
    client_id,
    place_of,
    to_image,
    why_not_in,
    wrong_topic,
)
from mqtt_bridge.paho_client import FAILURE, code_in_words, from_paho
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from remoting.client.in_flight import InFlight, WindowLimits
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked
from runtime.clock import Clock
from runtime.logs import get_logger

APPEND_BYTES_MAX = 1024 * 1024
"""Bytes of one append request; a single message may exceed it."""
APPEND_COUNT_MAX = 65_536
"""Messages of one append request; bytes limit it long before."""
APPENDS = WindowLimits(frame_items_max=APPEND_COUNT_MAX, frame_bytes_max=APPEND_BYTES_MAX)
"""One append is in flight, so messages are stored in the order of their arrival. One that fails is not repeated: it
ends the connection, and the peer sends again."""
FAULTS_OF_A_MESSAGE = frozenset(
    {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER}
)
"""Refusals that concern the message and would come again."""


@dataclass(slots=True, eq=False)
class Arrived:
    """One message of the peer; `packet_id` is 0 with QoS 0."""

    packet_id: int
    size_bytes: int
    done: bool = False


class Inbox:
    """Messages that arrived by one connection and are not acknowledged."""

    def __init__(self) -> None:
        self._waiting: deque[Arrived] = deque()
        self.unconfirmed_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, packet_id: int, size_bytes: int) -> Arrived:
        """Note a message that came; acknowledge it when the returned entry is settled."""
        arrived = Arrived(packet_id, size_bytes)
        self._waiting.append(arrived)
        self.unconfirmed_bytes += size_bytes
        return arrived

    def done(self, arrived: Arrived) -> list[int]:
        """It is stored, or was dropped: the packet ids to acknowledge now, in order."""
        arrived.done = True
        due = []
        while self._waiting and self._waiting[0].done:
            first = self._waiting.popleft()
            self.unconfirmed_bytes -= first.size_bytes
            if first.packet_id:
                due.append(first.packet_id)
        return due


class PeerReceiver:
    """The `in` rules of one connection."""

    def __init__(
        self, config: ConnectionConfig, installation: str, line: Connection, clock: Clock, metrics: BridgeMetrics
    ) -> None:
        self._config = config
        self._line = line
        self._clock = clock
        self._place = place_of(installation, config)
        self._client = client_id(installation, config, IN).encode()
        self._mapping = InMapping(config.rules)
        self._inbox = Inbox()
        self._window: InFlight[tuple[Arrived, bytes]] = InFlight(APPENDS)
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._has_subscribed = False
        self._storing: asyncio.Task[None] | None = None
        self._log = get_logger("bridge.in")
        self._counts = MessageCounts(metrics, config.name, IN)
        metrics.unconfirmed_bytes.child(config.name, function=lambda: self._inbox.unconfirmed_bytes)

    async def run(self, peer: BridgeClient) -> None:
        """Receive until the peer is lost (PeerLostError) or our broker does not answer (LightMQError)."""
        storing = self._storing
        assert storing is not None, "begin comes before run"
        ended = asyncio.ensure_future(peer.until_ended())
        try:
            await asyncio.wait((ended, storing), return_when=asyncio.FIRST_COMPLETED)
            if storing.done():
                storing.result()
            raise PeerLostError(await ended)
        finally:
            ended.cancel()
            storing.cancel()
            await asyncio.gather(ended, storing, return_exceptions=True)

    async def prepare(self) -> None:
        """Nothing is needed before the peer is connected."""

    async def poll(self) -> None:
        """Nothing waits here: the peer keeps the messages."""

    def listen(self, peer: BridgeClient) -> None:
        """A new connection: what arrived by the old one and was not stored is sent again in the peer's session."""
        self._inbox = Inbox()
        self._window = InFlight(APPENDS)
        peer.on_message = lambda message: self._take(peer, message)

    async def settle(self, deadline_s: float) -> None:
        """Wait until what arrived is stored and acknowledged; part of an orderly stop."""
        try:
            async with asyncio.timeout(deadline_s):
                while len(self._inbox):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            self._log.warning("stop_deadline_missed", connection=self._config.name, unacknowledged=len(self._inbox))

    async def begin(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:
        """Subscribe; what the session kept arrives at once and is stored meanwhile."""
        self._storing = asyncio.ensure_future(self._store(peer))
        try:
            await self._subscribe(peer, welcome)
        except BaseException:
            self._storing.cancel()
            raise

    async def _subscribe(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:
        """With 3.1.1 a second SUBSCRIBE would bring all retained messages again: only the first one is made."""
        if self._has_subscribed and welcome.session_present and not self._config.is_v5:
            return
        wanted = [(rule.remote_filter, rule.qos) for rule in self._mapping.rules]
        codes = await peer.subscribe(wanted)
        for (name, qos), code in zip(wanted, codes, strict=False):
            if code >= FAILURE:
                reason = code_in_words(PacketTypes.SUBACK, code)
                raise PeerLostError(f"the peer refused the subscription to {name!r}: {reason}")
            if code < qos:
                self._log.warning("subscription_weaker", connection=self._config.name, filter=name, granted=code)
        self._has_subscribed = True

    def _take(self, peer: BridgeClient, message: MQTTMessage) -> None:
        size_bytes = len(message.payload) + len(message.topic)
        arrived = self._inbox.arrive(message.mid if message.qos else 0, size_bytes)
        made = self._image(message)
        if made is None:
            self._done(peer, arrived)
        else:
            self._window.add((arrived, made), len(made))
            self._window.press()
            self._arrived.set()

    def _image(self, message: MQTTMessage) -> bytes | None:
        """The record image of a message; None when it is not to be stored, which is counted and logged."""
        topic = message.topic.encode()
        properties = from_paho(getattr(message, "properties", None))
        reason = why_not_in(self._place, properties.user) if properties is not None else ""
        if reason:
            self._counts.keep_back(reason)
            self._log.debug("message_not_stored", connection=self._config.name, topic=message.topic, reason=reason)
            return None
        target = self._mapping.target(topic, message.qos, retain=message.retain)
        if target is None:
            self._counts.drop("no_rule", message.topic)
            return None
        wrong = wrong_topic(target.topic)
        if wrong:
            self._counts.drop("bad_topic", message.topic, wrong)
            return None
        try:
            now_ms = self._clock.now_ms()
            return to_image(target, bytes(message.payload), properties, self._place, client=self._client, now_ms=now_ms)
        except LocalMisuse as error:
            self._counts.drop("too_large", message.topic, str(error))
            return None

    async def _store(self, peer: BridgeClient) -> None:
        while True:
            frame = self._window.take()
            if frame is None:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._append(peer, frame.items)
            self._window.stored(frame)

    async def _append(self, peer: BridgeClient, batch: Sequence[tuple[Arrived, bytes]]) -> None:
        body = b"".join([made for _, made in batch])
        try:
            checked(await self._line.request(Command(RequestCode.APPEND_MANY, body=body), REQUEST_TIMEOUT_MS))
        except Refused as error:
            if error.code not in FAULTS_OF_A_MESSAGE:
                raise
            if len(batch) == 1:
                self._counts.drop("refused", error.remark)
                self._done(peer, batch[0][0])
                return
            for one in batch:
                await self._append(peer, [one])
            return
        self._counts.passed.value += len(batch)
        for arrived, _ in batch:
            self._done(peer, arrived)

    def _done(self, peer: BridgeClient, arrived: Arrived) -> None:
        peer.room.give(arrived.size_bytes)
        for packet_id in self._inbox.done(arrived):
            peer.acknowledge(packet_id)
        self._idle.set()
