"""What the scenarios run against: the session core with a small owner around it, or a server at an address.

A client of either target sends and receives raw bytes; b"" means that the server has closed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Protocol

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import (
    ConnectRequested,
    Event,
    Publish,
    PublishBatch,
    Received,
    Released,
    SubscribeRequested,
    UnsubscribeRequested,
)
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status
from remoting.protocol.records.topics import matches
from tests.conformance.wire import whole_packet

ANSWER_TIMEOUT_S = 10


class ScriptClient(Protocol):
    """One connection of a scenario."""

    def send(self, data: bytes) -> None: ...
    def next_packet(self) -> bytes: ...
    def drop(self) -> None: ...


class Target(Protocol):
    """Where connections come from."""

    def open(self) -> ScriptClient: ...
    def silence(self, seconds: float) -> None: ...


class CoreTarget:
    """The session core; its owner accepts all clients, confirms at once and delivers what matches, at the lower QoS."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.clients: list[CoreClient] = []

    def open(self) -> CoreClient:
        client = CoreClient(self)
        self.clients.append(client)
        return client

    def silence(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1_000)
        for client in list(self.clients):
            client.session.tick(self.now_ms)
            client.settle()

    def publish(self, publish: Publish) -> None:
        for client in self.clients:
            granted = [qos for name, qos in client.filters.items() if matches(name.encode(), publish.topic)]
            if granted and client.session.state.status is Status.CONNECTED:
                qos = min(publish.qos, max(granted))
                client.session.deliveries.deliver(
                    publish.topic, publish.payload, qos, False, False, None, getattr(publish, "properties", None)
                )
                client.settle()


class CoreClient:
    """A connection directly to a session."""

    def __init__(self, target: CoreTarget) -> None:
        self.target = target
        self.session = Session(SessionLimits(), assigned_client_id=lambda: "made-here", opened_ms=target.now_ms)
        self.filters: dict[str, int] = {}
        self.received = b""
        self.ended = False

    def send(self, data: bytes) -> None:
        for event in self.session.feed(data, self.target.now_ms):
            self.on_event(event)
        if self.session.input_held and self.session.state.status is Status.CONNECTED:
            for event in self.session.feed(b"", self.target.now_ms):
                self.on_event(event)
        self.settle()

    def on_event(self, event: Event) -> None:
        if isinstance(event, ConnectRequested):
            self.session.answers.accept(False)
        elif isinstance(event, PublishBatch):
            self.session.answers.acknowledge([publish.packet_id for publish in event.publishes if publish.qos])
            for publish in event.publishes:
                self.target.publish(publish)
        elif isinstance(event, SubscribeRequested):
            self.filters.update({request.filter: request.qos for request in event.filters})
            self.session.answers.grant(event.packet_id, [request.qos for request in event.filters])
        elif isinstance(event, Received):
            self.session.deliveries.release(event.packet_ids)
        elif isinstance(event, Released):
            self.session.answers.complete(event.packet_ids)
        elif isinstance(event, UnsubscribeRequested):
            codes = [0x11 if self.filters.pop(name, None) is None else 0 for name in event.filters]
            self.session.answers.unsubscribed(event.packet_id, codes)

    def settle(self) -> None:
        """Take the output; when the session has ended publish its will, once."""
        self.received += self.session.take_bytes()
        if self.session.state.status is Status.CLOSED and not self.ended:
            self.ended = True
            will = self.session.state.terms.will
            if self.session.state.will_due and will is not None:
                self.target.publish(Publish(will.topic, will.payload, will.qos, will.retain, False, 0))

    def next_packet(self) -> bytes:
        stop = whole_packet(self.received)
        assert stop or self.session.state.status is Status.CLOSED, "nothing has come and nothing is closed"
        packet, self.received = self.received[:stop], self.received[stop:]
        return packet

    def drop(self) -> None:
        self.session.close("peer_closed")
        self.settle()


class ServerTarget:
    """A server at host and port."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def open(self) -> ServerClient:
        return ServerClient(self.address)

    def silence(self, seconds: float) -> None:
        time.sleep(seconds + 1)  # a real server may need a moment; there is nothing to await here


class ServerClient:
    """A plain blocking socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        self.received = b""

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the server may have closed already: tests look for that
            self.socket.sendall(data)

    def next_packet(self) -> bytes:
        while True:
            stop = whole_packet(self.received)
            if stop:
                packet, self.received = self.received[:stop], self.received[stop:]
                return packet
            try:
                more = self.socket.recv(65_536)
            except ConnectionError:
                more = b""
            if not more:
                assert not self.received, f"closed in the middle of a packet: {self.received.hex(' ')}"
                return b""
            self.received += more

    def drop(self) -> None:
        self.socket.close()
