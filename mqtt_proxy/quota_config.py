"""Quotas of the MQTT proxy: what one client, one user, one address and the whole listener may use.

Invariant: every quota stands here with its unit and what happens when it is reached; 0 stands for "no quota" where the
string says so. Values only, no behaviour: `quotas` judges by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config.tables import setting


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """Quotas. Rates are held by reading later, never by loss; everything else is refused with its reason code."""

    connections_per_address_max: int = setting(0, minimum=0)
    """Open sockets of one address; a further one is closed at once. 0 = no quota."""
    connections_per_user_max: int = setting(0, minimum=0)
    """Client ids one authenticated user may have connected at a time; a further one gets CONNACK 0x97
    (3.1.1: code 3). 0 = no quota. Anonymous clients are nobody's and are not counted."""
    connects_per_address_per_s: float = setting(0.0, minimum=0)
    """Connections one address may open per second in the long run; what is above gets CONNACK 0x9F (3.1.1: code 3),
    and sockets beyond twice `connects_per_address_burst` are closed at once. 0 = no quota."""
    connects_per_address_burst: int = setting(100, minimum=1)
    """Connections one address may open at once before `connects_per_address_per_s` counts: a gateway coming back."""
    client_messages_per_s: float = setting(0.0, minimum=0)
    """Messages one client id may publish per second. Above it the client is read later. 0 = no quota."""
    client_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes of topics and payloads one client id may publish per second. Above it the client is read later. 0 = no
    quota."""
    user_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of one user may publish per second. Above it they are read later. 0 = no quota."""
    user_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of one user may publish per second. Above it they are read later. 0 = no quota."""
    address_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of one address may publish per second. Above it they are read later. 0 = no quota."""
    address_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of one address may publish per second. Above it they are read later. 0 = no quota."""
    listener_messages_per_s: float = setting(0.0, minimum=0)
    """Messages all clients of this proxy may publish per second. Above it they are read later. 0 = no quota."""
    listener_bytes_per_s: float = setting(0.0, minimum=0)
    """Bytes all clients of this proxy may publish per second. Above it they are read later. 0 = no quota."""
    keep_alive_s_max: int = setting(0, minimum=0, maximum=65_535)
    """Longest keep-alive. Clients of MQTT 5 that ask for more, or for none, are told this one; 3.1.1 clients cannot be
    told and are closed when they were silent for one and a half times this long. 0 = as long as the client wishes."""
    topic_bytes_max: int = setting(4_096, minimum=16, maximum=16_384)
    """Longest topic name or filter in UTF-8; a longer one closes the connection with 0x90 or 0x8F."""
    topic_levels_max: int = setting(128, minimum=1, maximum=128)
    """Most levels of a topic name or filter; more close the connection with 0x90 or
    0x8F."""
    user_properties_max: int = setting(64, minimum=0, maximum=1_024)
    """Most user properties of one message; more close the connection with 0x97. Any other packet may have 1,024."""
    receive_maximum: int = setting(1_024, minimum=1, maximum=65_535)
    """Publishes with QoS 1 or 2 of an MQTT 5 client that may wait for their acknowledgement; it is told in the CONNACK,
    and more close the connection with 0x93. A 3.1.1 client that has more is read later."""
    topic_alias_max: int = setting(64, minimum=0, maximum=65_535)
    """Topic aliases an MQTT 5 client may use; it is told in the CONNACK, and a higher one closes the connection with
    0x94. Each may hold a topic of `topic_bytes_max`."""
    retained_payload_bytes_max: int = setting(0, minimum=0)
    """Largest payload that may be retained; a larger one is refused with 0x97 (QoS 0: dropped and counted; 3.1.1: the
    connection is closed); of a will the CONNECT is. 0 = as large as a message may be."""
    delay_s_max: int = setting(3 * 86_400, minimum=0)
    """Longest delay a message may ask for, at most `broker.delay_s_max`; a longer one is refused with 0x97 (QoS 0 and
    3.1.1: the connection is closed)."""
    filters_refused: tuple[str, ...] = ()
    """Filters that are too wide: a SUBSCRIBE to one of them, or to one that matches all it matches, gets 0x8F (3.1.1:
    0x80). `["#"]` refuses `#` and `+/#` and nothing else."""
