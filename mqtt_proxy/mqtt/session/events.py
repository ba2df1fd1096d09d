"""The events of a session: all that the MQTT core reports to its owner.

Invariant: events of one `Session.feed` come in the order the peer caused them, except that acknowledgements and pings
do not end a run of publishes: one read of N messages and M acknowledgements is one `PublishBatch` and one
`Acknowledged`; `Received` and `Released` come in runs too. After `Disconnected` or `Violated` a session produces no
further event.
"""

from __future__ import annotations

import msgspec

from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX, PACKET_SIZE_BYTES_MAX
from mqtt_proxy.mqtt.codec.packets import Publish, Will

__all__ = [
    "NEVER",
    "Acknowledged",
    "AuthReceived",
    "ConnectRequested",
    "Disconnected",
    "Event",
    "Publish",
    "PublishBatch",
    "PublishRefused",
    "Received",
    "Released",
    "SubscribeRequested",
    "SubscriptionRequest",
    "UnsubscribeRequested",
    "Violated",
    "Will",
]

NEVER = 0xFFFF_FFFF
"""Session expiry of a client that requests an unlimited session; the server's own maximum applies."""

Pairs = list[tuple[bytes, bytes]]
"""User properties, in order, keys as often as they came."""


class ConnectRequested(msgspec.Struct):
    """A valid CONNECT; answer with `Session.accept` or `Session.refuse`. Nothing else happens on the session until
    then.

    `client_id` is never empty: for an empty one the caller's factory made it and `server_made_id` is true.
    `session_expiry_s`: how long to keep the session after the connection; 0 = not at all. For 3.1.1 that follows from
    `clean`, for which MQTT 5 says "clean start": forget what there is.
    """

    client_id: str
    clean: bool
    keep_alive_s: int
    username: str | None
    password: bytes | None
    will: Will | None
    protocol_level: int
    server_made_id: bool
    session_expiry_s: int = 0
    receive_maximum: int = PACKET_ID_MAX
    packet_size_bytes_max: int = PACKET_SIZE_BYTES_MAX
    topic_alias_maximum: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    user: Pairs = []
    auth_method: str | None = None
    auth_data: bytes | None = None
    bridge: bool = False


class PublishBatch(msgspec.Struct):
    """Publishes in order of receipt, never empty.

    Those with QoS > 0 wait for `Session.acknowledge`; a QoS 2 message appears once however often it is sent.
    """

    publishes: list[Publish]


class PublishRefused(msgspec.Struct):
    """A publish the session itself has refused in its acknowledgement; `reason` as in `Violated`. No answer needed."""

    publish: Publish
    reason: str
    detail: str


class Acknowledged(msgspec.Struct):
    """Deliveries the client has acknowledged: the `token`s given to `Session.deliver`, in order of acknowledgement."""

    tokens: list[object]


class Received(msgspec.Struct):
    """QoS 2 deliveries the client has received (PUBREC): their tokens and packet ids; answer with `Session.release`."""

    tokens: list[object]
    packet_ids: list[int]


class Released(msgspec.Struct):
    """QoS 2 publishes whose PUBREL came: forget their ids, then `Session.complete`."""

    packet_ids: list[int]


class SubscriptionRequest(msgspec.Struct):
    """One filter of a SUBSCRIBE; at level 4 only `filter` and `qos`."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class SubscribeRequested(msgspec.Struct):
    """Valid filters; answer with `Session.grant`. `subscription_id` 0 = none."""

    packet_id: int
    filters: list[SubscriptionRequest]
    subscription_id: int = 0
    user: Pairs = []


class UnsubscribeRequested(msgspec.Struct):
    """Filters to remove; answer with `Session.unsubscribed`."""

    packet_id: int
    filters: list[str]
    user: Pairs = []


class AuthReceived(msgspec.Struct):
    """A step of an extended authentication: the answer to `Session.challenge`, or the beginning of another one
    (`reason` RE_AUTHENTICATE). Answer with `challenge`, `accept` or `refuse`; once accepted with `challenge`,
    `reauthenticated` or `disconnect`.
    """

    reason: int
    method: str
    data: bytes | None
    user: Pairs = []


class Disconnected(msgspec.Struct):
    """The client sent DISCONNECT: close. `session_expiry_s` replaces the value of CONNECT, None = unchanged."""

    reason: int = 0
    session_expiry_s: int | None = None
    will_due: bool = False


class Violated(msgspec.Struct):
    """The peer broke the protocol or a limit, or was silent: write `take_bytes()`, close; the will is published.

    `reason` is one of the stable names of `reason_codes.Reason` (a metric label), `detail` explains it in words.
    """

    reason: str
    detail: str


Event = (
    ConnectRequested
    | PublishBatch
    | PublishRefused
    | Acknowledged
    | Received
    | Released
    | SubscribeRequested
    | UnsubscribeRequested
    | AuthReceived
    | Disconnected
    | Violated
)
"""Anything `Session.feed` and `Session.tick` return."""
