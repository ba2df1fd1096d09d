"""The way out: reads the log, publishes to the peer, and stores how far the peer has acknowledged.

The log is read only while the peer is there; while it is away the log keeps everything and the offset says where to go
on. A message is settled by the peer's PUBACK or PUBCOMP (QoS 0: when the socket has it). A refusal that may pass ends
the connection, so that the message is offered again after the pause, at most `refusals_max` times; one that will not
pass drops the message, counted and said. The connection begins clean: the peer remembers no packet ids of an earlier
one, which could make it take a new QoS 2 message for an old one.
Invariant: the stored offset never passes an unsettled message. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib

from paho.mqtt.packettypes import PacketTypes

from mqtt_bridge.config import OUT, ConnectionConfig
from mqtt_bridge.in_flight import Cursor, Key, Outbox
from mqtt_bridge.log_reader import LogReader
from mqtt_bridge.mapping import OutMapping, wrong_topic
from mqtt_bridge.message import EXPIRED, REASONS, OutgoingCopy, outgoing, place_of
from mqtt_bridge.metrics import BridgeMetrics, MessageCounts
from mqtt_bridge.paho_client import FAILURE, code_in_words
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Connection
from runtime.clock import Clock
from runtime.logs import get_logger

LOOK_WAIT_MS = 5_000
"""How long one request for news is held by our broker."""
LASTING = frozenset({0x87, 0x90, 0x95, 0x99})
"""Not authorized, topic name invalid, packet too large, payload format invalid: it would be refused again."""


class Sender:
    """The `out` rules of one connection."""

    def __init__(
        self, config: ConnectionConfig, installation: str, line: Connection, clock: Clock, metrics: BridgeMetrics
    ) -> None:
        self._config = config
        self._clock = clock
        self._place = place_of(installation, config)
        self._mapping = OutMapping(config.rules)
        self.outbox = Outbox(config.in_flight_max)
        self._reader = LogReader(line, config, self._mapping, self.outbox)
        self._refusals: dict[tuple[Cursor, int], int] = {}
        self._settled = asyncio.Event()
        self._peer: BridgeClient | None = None
        self._welcome: ConnectionAccepted | None = None
        self._begun = False
        self._stopping = False
        self._log = get_logger("bridge.out")
        self._counts = MessageCounts(metrics, config.name, OUT)
        metrics.lag.child(config.name, function=lambda: self._reader.lag)
        metrics.in_flight.child(config.name, function=lambda: self.outbox.in_flight)

    @property
    def begun(self) -> bool:
        """Whether the place in the log is stored: from then on nothing published is missed."""
        return self._begun

    async def prepare(self) -> None:
        """Find the place in the log, once; the peer is not needed for it. Raises what keeps our broker from it."""
        if not self._begun:
            await self._reader.begin()
            self._begun = True

    def listen(self, peer: BridgeClient) -> None:
        """A new connection."""
        self._peer = peer
        peer.on_settled = self._answered

    async def begin(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:  # noqa: ARG002  # the receiver needs it
        """Keep to what the peer can take."""
        self._welcome = welcome
        self.outbox.limit(welcome.receive_maximum)

    async def run(self, peer: BridgeClient) -> None:
        """Send until the peer is lost (PeerLostError) or our broker does not answer (LightMQError)."""
        ended = asyncio.ensure_future(peer.until_ended())
        work = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._commit())]
        try:
            await asyncio.wait((ended, *work), return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
            raise PeerLostError(await ended)
        finally:
            ended.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(ended, *work, return_exceptions=True)
            self._peer = None
            self._counts.repeated.value += self.outbox.in_flight
            self.outbox.rewind()

    async def poll(self) -> None:
        """Learn how far the log has got while nothing is sent, for the gauge of what waits."""
        await self._reader.refresh(0)

    async def settle(self, deadline_s: float) -> None:
        """Send no more, wait for acknowledgements on their way, store the offset: what a stop in order does."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self.outbox.in_flight:
                    self._settled.clear()
                    await self._settled.wait()
        if self._begun:
            await self._reader.commit()

    async def _send(self) -> None:
        while not self._stopping:
            await self._reader.refresh(LOOK_WAIT_MS)
            for key, cursor in self._reader.pending():
                await self._send_some(key, cursor)
        await asyncio.Event().wait()  # until this connection is closed

    async def _send_some(self, key: Key, cursor: Cursor) -> None:
        records, following, missing, count = await self._reader.read(key, cursor)
        if missing:
            self._counts.skip(missing, key[0], count)
        now_ms = self._clock.now_ms()
        for offset, record in records:
            await self._send_record(cursor, offset, record, now_ms)
        self.outbox.passed(cursor, following)

    async def _send_record(self, cursor: Cursor, offset: int, record: RecordView, now_ms: int) -> None:
        copies, reason = outgoing(record, self._mapping, self._place, now_ms)
        if reason:
            self._not_sent(reason, record)
        fitting = [copy for copy in copies if self._fits(copy)]
        if not fitting:
            return
        self.outbox.track(cursor, offset, len(fitting))
        for copy in fitting:
            while not self.outbox.free:
                self._settled.clear()
                await self._settled.wait()
            assert self._peer is not None
            self.outbox.sent(self._peer.publish(copy), cursor, offset)

    def _fits(self, copy: OutgoingCopy) -> bool:
        """Whether the peer can take the message, made fit to what it said it can do."""
        assert self._welcome is not None
        welcome, target = self._welcome, copy.target
        reason = "too_large" if 0 < welcome.packet_bytes_max < copy.size_bytes else ""
        if wrong_topic(target.topic):
            reason = "bad_topic"
        if reason:
            self._counts.drop(reason, target.topic)
            return False
        qos, retain = min(target.qos, welcome.qos_max), target.retain and welcome.retain
        if (qos, retain) != (target.qos, target.retain):
            copy.target = type(target)(target.topic, qos, retain)
        return True

    def _not_sent(self, reason: str, record: RecordView) -> None:
        if reason in REASONS:
            self._counts.keep_back(reason)
        elif reason == EXPIRED:
            self._counts.expire()
        self._log.debug("message_not_sent", connection=self._config.name, topic=record.mqtt_topic, reason=reason)

    def _answered(self, packet_id: int, code: int) -> None:
        """The peer's last word about a message."""
        place = self.outbox.place(packet_id)
        if place is None:
            return
        if code >= FAILURE:
            tries = self._refusals.get(place, 0) + 1
            if code not in LASTING and tries < self._config.refusals_max:
                self._refusals[place] = tries
                reason = code_in_words(PacketTypes.PUBACK, code)
                self._log.warning("message_refused", connection=self._config.name, reason=reason, tries=tries)
                assert self._peer is not None
                self._peer.give_up(f"the peer refused a message: {reason}")
                return
            self._counts.drop("peer_refused", place[0].queue_id, place[1], code_in_words(PacketTypes.PUBACK, code))
        else:
            self._counts.passed.value += 1
        self._refusals.pop(place, None)
        self.outbox.settled(packet_id)
        self._settled.set()

    async def _commit(self) -> None:
        while True:
            await asyncio.sleep(self._config.commit_interval_ms / 1000)
            await self._reader.commit()
