"""What a session tells its owner: the whole vocabulary between the MQTT core and the bridge.

Invariant: events of one `Session.feed` come in the order the peer caused them, except that acknowledgements and pings
do not end a run of publishes: one read of N messages and M acknowledgements is one `PublishBatch` and one
`Acknowledged`. After `Disconnected` or `Violated` a session produces no further event.
"""

from __future__ import annotations

import msgspec

from mqtt_proxy.mqtt.packets import Publish, Will

__all__ = [
    "Acknowledged",
    "ConnectRequested",
    "Disconnected",
    "Event",
    "Publish",
    "PublishBatch",
    "SubscribeRequested",
    "UnsubscribeRequested",
    "Violated",
    "Will",
]


class ConnectRequested(msgspec.Struct):
    """A valid CONNECT; answer with `Session.accept` or `Session.refuse`. Nothing else happens on the session until
    then.

    `client_id` is never empty: for an empty one with `clean` the caller's factory made it and `server_made_id` is true.
    """

    client_id: str
    clean: bool
    keep_alive_s: int
    username: str | None
    password: bytes | None
    will: Will | None
    protocol_level: int
    server_made_id: bool


class PublishBatch(msgspec.Struct):
    """Publishes in order of receipt, never empty.

    Those with QoS > 0 wait for `Session.acknowledge`; a QoS 2 message appears once however often it is sent.
    """

    publishes: list[Publish]


class Acknowledged(msgspec.Struct):
    """Deliveries the client has acknowledged: the `token`s given to `Session.deliver`, in order of acknowledgement."""

    tokens: list[object]


class SubscribeRequested(msgspec.Struct):
    """Valid filters with the QoS to grant (already lowered to what this server grants); answer with `Session.grant`."""

    packet_id: int
    filters: list[tuple[str, int]]


class UnsubscribeRequested(msgspec.Struct):
    """Filters to give up; answer with `Session.unsubscribed`."""

    packet_id: int
    filters: list[str]


class Disconnected(msgspec.Struct):
    """The client said DISCONNECT: drop its will, close."""

    clean: bool = True


class Violated(msgspec.Struct):
    """The peer broke the protocol or a limit, or went silent: write `take_bytes()`, close; the will goes out.

    `reason` is one of the stable names of `reason_codes.Reason` (a metric label), `detail` says what was wrong, in
    words.
    """

    reason: str
    detail: str


Event = (
    ConnectRequested | PublishBatch | Acknowledged | SubscribeRequested | UnsubscribeRequested | Disconnected | Violated
)
"""Anything `Session.feed` and `Session.tick` return."""
