"""One connection to the peer, from its CONNECT to its end: paho-mqtt in a thread behind callbacks on our loop.

A connection is made once and discarded when it ends: nothing in paho's queues survives, so that what is sent again
is decided in one place (the outbox, or the peer's session) and not in two.
Invariant: every callback runs on the loop's thread. Thread rule: paho's callbacks run on its network thread, append to
a queue and wake the loop; `Room` is the only object that both threads wait on.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqtt_bridge.config import ConnectionConfig
from mqtt_bridge.message import OutgoingCopy
from mqtt_bridge.paho_client import SUCCESS, CheckedClient, comes_too_late, in_words, to_paho, why_ended
from remoting.protocol.errors import LightMQError

CONNECT_TIMEOUT_S = 10.0
"""How long the answer to a CONNECT or SUBSCRIBE may take."""
DIAL_TIMEOUT_S = 5.0
"""How long the network connection may take: a packet that asks for one and is lost is sent again after 1 and 3 s, and
waiting for more would only delay the next attempt."""
RECEIVE_MAXIMUM_DEFAULT = 65_535
RETAIN_IF_NEW = 1
"""MQTT 5: send retained messages only when the subscription is a new one."""


class PeerLostError(LightMQError):
    """The connection cannot be made, or has ended; the text has the reason."""


class Room:
    """Bytes taken from the peer and not yet stored; the network thread waits here, and with it the peer."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size_bytes: int) -> None:
        """Wait until there is room; one message larger than all of it fits when it is alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._used or self._used + size_bytes <= self._bytes_max)
            self._used += size_bytes

    def give(self, size_bytes: int) -> None:
        """So many bytes are stored."""
        with self._changed:
            self._used -= size_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wake every waiting thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class ConnectionAccepted:
    """The contents of the peer's CONNACK."""

    session_present: bool
    receive_maximum: int
    packet_bytes_max: int
    """0: no limit."""
    qos_max: int
    retain: bool


class BridgeClient:
    """One connection in one direction. `connect` once, then `publish` or `subscribe`, then `close`."""

    def __init__(self, config: ConnectionConfig, client_id: str, *, persistent: bool, password: str | None) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[ConnectionAccepted] = self._loop.create_future()
        self._subscribed: asyncio.Future[list[int]] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._reason = ""
        self._events: deque[tuple[Any, ...]] = deque()
        self._awake = False
        self._lock = threading.Lock()
        self._persistent = persistent
        self.room = Room(config.unconfirmed_bytes_max)
        self.on_message: Callable[[MQTTMessage], None] = lambda _message: None
        self.on_settled: Callable[[int, int], None] = lambda _packet_id, _code: None
        self._client = self._make(client_id, password)

    @property
    def up(self) -> bool:
        """Whether the peer accepted the connection and it has not ended."""
        return self._welcome.done() and not self._ended.is_set()

    async def connect(self) -> ConnectionAccepted:
        """Connect and wait for the peer's answer. Raises PeerLostError."""
        where = f"{self._config.host}:{self._config.port}"
        try:
            await self._loop.run_in_executor(None, self._dial)
        except (OSError, ValueError, ssl.SSLError) as error:
            self._finish(f"cannot connect to {where}: {getattr(error, 'strerror', None) or error}")
            raise PeerLostError(self._reason) from error
        self._client.loop_start()
        await self._wait_for(self._welcome)
        if self._ended.is_set():
            raise PeerLostError(self._reason)
        if not self._welcome.done():
            raise PeerLostError(f"{where} did not answer CONNECT within {CONNECT_TIMEOUT_S:.0f} s")
        return self._welcome.result()

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[int]:
        """Subscribe and wait for the answer: a reason code per filter. Raises PeerLostError."""
        if self._config.is_v5:
            options = [
                (name, SubscribeOptions(qos, noLocal=True, retainAsPublished=True, retainHandling=RETAIN_IF_NEW))
                for name, qos in filters
            ]
            error, _ = self._client.subscribe(options)
        else:
            error, _ = self._client.subscribe(list(filters))
        if error != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise PeerLostError(f"SUBSCRIBE could not be sent: {error!r}")
        await self._wait_for(self._subscribed)
        if not self._subscribed.done():
            raise PeerLostError(self._reason or f"no answer to SUBSCRIBE within {CONNECT_TIMEOUT_S:.0f} s")
        return self._subscribed.result()

    async def _wait_for(self, answer: asyncio.Future[Any]) -> None:
        """Return when the answer is there or late, or the connection has ended."""
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((answer, ending), timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()

    def publish(self, message: OutgoingCopy) -> int:
        """Send one message; its packet id, which `on_settled` names when the peer has it. Raises PeerLostError."""
        target = message.target
        properties = None if message.properties is None else to_paho(message.properties)
        info = self._client.publish(target.topic.decode(), message.payload, target.qos, target.retain, properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise PeerLostError(f"PUBLISH could not be sent: {info.rc!r}")
        return info.mid

    def acknowledge(self, packet_id: int) -> None:
        """Acknowledge a stored QoS 1 message to the peer."""
        if not self._ended.is_set():
            self._client.ack(packet_id, 1)

    async def until_ended(self) -> str:
        """Wait for the end; why it came."""
        await self._ended.wait()
        return self._reason

    def give_up(self, reason: str) -> None:
        """End the connection because of what came over it."""
        self._finish(reason)
        self._client.disconnect()

    async def close(self) -> None:
        """DISCONNECT and wait for the network thread's end."""
        self.room.close()
        self._client.disconnect()
        await self._loop.run_in_executor(None, self._client.loop_stop)
        self._deliver()
        self._finish("closed by this side")

    def _make(self, client_id: str, password: str | None) -> CheckedClient:
        config = self._config
        client = CheckedClient(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if config.is_v5 else not self._persistent,
            protocol=MQTTProtocolVersion.MQTTv5 if config.is_v5 else MQTTProtocolVersion.MQTTv311,
            transport="websockets" if config.transport == "websockets" else "tcp",
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = DIAL_TIMEOUT_S
        client.max_inflight_messages_set(0)  # the outbox keeps the window
        client.max_queued_messages_set(0)
        if config.transport == "websockets":
            client.ws_set_options(path=config.websocket_path)
        if config.username:
            client.username_pw_set(config.username, password)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._received
        client.on_publish = lambda _c, _u, mid, code, _p: self._post(
            self._settle, mid, SUCCESS if comes_too_late(code) else code.value
        )
        client.on_subscribe = lambda _c, _u, _mid, codes, _p: self._post(
            self._answer, self._subscribed, [code.value for code in codes]
        )
        return client

    def _dial(self) -> None:
        """Blocking: TLS files, name look-up, TCP, TLS, CONNECT."""
        config, properties = self._config, None
        if config.tls:
            self._client.tls_set(
                ca_certs=None if config.ca_file is None else str(config.ca_file),
                certfile=None if config.certificate_file is None else str(config.certificate_file),
                keyfile=None if config.key_file is None else str(config.key_file),
            )
        if config.is_v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = config.in_flight_max
            properties.SessionExpiryInterval = config.session_expiry_s if self._persistent else 0
        clean_start = not self._persistent if config.is_v5 else MQTT_CLEAN_START_FIRST_ONLY
        self._client.connect(
            config.host, config.port, config.keep_alive_s, clean_start=clean_start, properties=properties
        )

    def _connected(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._post(self._finish, f"the peer refused the connection: {in_words(reason, properties)}")
            return
        welcome = ConnectionAccepted(
            bool(flags.session_present),
            getattr(properties, "ReceiveMaximum", RECEIVE_MAXIMUM_DEFAULT),
            getattr(properties, "MaximumPacketSize", 0),
            getattr(properties, "MaximumQoS", 2),
            bool(getattr(properties, "RetainAvailable", 1)),
        )
        self._post(self._answer, self._welcome, welcome)

    def _disconnected(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        why = why_ended(flags, reason, properties, is_v5=self._config.is_v5)
        self._post(self._finish, f"the connection ended: {why}")

    def _received(self, _client: Any, _data: Any, message: MQTTMessage) -> None:
        try:
            size_bytes = len(message.payload) + len(message.topic)
        except UnicodeDecodeError:
            self._post(self._finish, "the peer sent a topic that is not UTF-8")
            self._client.disconnect()
            return
        self.room.take(size_bytes)
        self._post(self._hand_over, message)

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:
        """From paho's thread: run it on the loop, many with one wake-up."""
        with self._lock:
            self._events.append((function, *arguments))
            if self._awake:
                return
            self._awake = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            events, self._events = self._events, deque()
            self._awake = False
        for function, *arguments in events:
            function(*arguments)

    @staticmethod
    def _answer(waiting: asyncio.Future[Any], content: Any) -> None:
        if not waiting.done():
            waiting.set_result(content)

    def _settle(self, packet_id: int, code: int) -> None:
        if not self._ended.is_set():
            self.on_settled(packet_id, code)

    def _hand_over(self, message: MQTTMessage) -> None:
        if not self._ended.is_set():
            self.on_message(message)

    def _finish(self, reason: str) -> None:
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()
            self.room.close()
