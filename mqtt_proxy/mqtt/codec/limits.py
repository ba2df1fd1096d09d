"""Every bound of one MQTT session, by name and unit, with what happens at it.

Invariant: no memory of a session grows with what its peer does beyond these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.protocol.records.topics import TOPIC_LEVELS_MAX, TOPIC_SIZE_BYTES_MAX

PACKET_ID_MAX = 65_535
"""Packet ids are 1..65,535; 0 is never valid [MQTT-2.3.1-1]."""

REMAINING_LENGTH_MAX = 268_435_455
"""The largest value of the four length bytes of a fixed header; the standard's own limit for a packet."""

PACKET_SIZE_BYTES_MAX = REMAINING_LENGTH_MAX + 5
"""The largest packet there can be, fixed header included."""

PROPERTIES_BYTES_MAX = 16_384
"""Properties of this size fit into RocketMQ's 32,767 bytes also when each of them has to be escaped."""


@dataclass(slots=True)
class DelayLimit:
    """A limit that the broker names, and may change while sessions are connected."""

    s_max: int = 3 * 86_400
    """Until the broker has named it: what it is by default there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLimits:
    """The bounds of one session; shared by all sessions of a listener."""

    packet_size_bytes_max: int = 1_048_576
    """Largest packet a connected client may send, fixed header included; announced in CONNACK. A larger one closes the
    connection at its header.
    """

    unauthenticated_bytes_max: int = 65_536
    """Largest CONNECT, and the most that is kept of what follows it before it is accepted. More closes the
    connection.
    """

    connect_deadline_ms: int = 10_000
    """Time from the opening of the connection to an accepted CONNECT. Later closes the connection."""

    in_flight_max: int = 64
    """Deliveries with QoS > 0 that may wait for an acknowledgement. At the limit `window_free` is 0 and nothing is
    delivered.
    """

    client_id_bytes_max: int = 1_024
    """Longest client id in UTF-8. A longer one gets CONNACK code 2."""

    topic_bytes_max: int = 4_096
    """Longest topic name or filter in UTF-8, at most what `remoting.protocol.records.topics` takes. A longer one
    closes the connection."""

    topic_levels_max: int = TOPIC_LEVELS_MAX
    """Most levels of a topic name or filter, at most what `remoting.protocol.records.topics` takes. More close the
    connection."""

    receive_maximum: int = 1_024
    """Publishes with QoS > 0 of an MQTT 5 client that may wait for their acknowledgement; announced in CONNACK. More
    closes the connection with 0x93. MQTT 3.1.1 has no such promise: there reading stops instead."""

    topic_alias_maximum: int = 64
    """Topic aliases an MQTT 5 client may use; announced in CONNACK. A higher one closes the connection with 0x94. Each
    may hold a topic of `topic_bytes_max`."""

    properties_bytes_max: int = 16_384
    """Largest sum of the properties of one message: they must fit into a record. A larger one closes the connection
    with 0x95."""

    user_properties_max: int = 64
    """Most user properties of one message. More close the connection with 0x97."""

    delay: DelayLimit = field(default_factory=DelayLimit)
    """Longest delay a message may request. A longer one is refused with 0x97, or closes the connection where the
    publish has no answer that could carry it."""

    filters_per_packet_max: int = 4_096
    """Most filters in one SUBSCRIBE or UNSUBSCRIBE. More closes the connection."""

    def __post_init__(self) -> None:
        if not 0 < self.packet_size_bytes_max <= PACKET_SIZE_BYTES_MAX:
            raise ValueError(f"packet_size_bytes_max must be 1..{PACKET_SIZE_BYTES_MAX}: {self.packet_size_bytes_max}")
        if not 0 < self.in_flight_max < 65_535:
            raise ValueError(f"in_flight_max must be 1..65534: {self.in_flight_max}")
        if not 0 < self.topic_bytes_max <= TOPIC_SIZE_BYTES_MAX:
            raise ValueError(f"topic_bytes_max must be 1..{TOPIC_SIZE_BYTES_MAX}: {self.topic_bytes_max}")
        if not 0 < self.topic_levels_max <= TOPIC_LEVELS_MAX:
            raise ValueError(f"topic_levels_max must be 1..{TOPIC_LEVELS_MAX}: {self.topic_levels_max}")
        if self.unauthenticated_bytes_max < 64 or self.connect_deadline_ms <= 0:
            raise ValueError("unauthenticated_bytes_max must be at least 64 and connect_deadline_ms above 0")
        if not 0 < self.receive_maximum <= PACKET_ID_MAX or not 0 <= self.topic_alias_maximum <= 65_535:
            raise ValueError("receive_maximum must be 1..65535 and topic_alias_maximum 0..65535")
        if not 0 <= self.properties_bytes_max <= PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties_bytes_max must be 0..{PROPERTIES_BYTES_MAX}: {self.properties_bytes_max}")
        if self.user_properties_max < 0:
            raise ValueError("user_properties_max must not be negative")
        if self.client_id_bytes_max < 23:
            raise ValueError("client_id_bytes_max must be at least 23, which every server must allow [MQTT-3.1.3-5]")
