"""Codes of CONNACK and SUBACK, the reason codes of MQTT 5, and the stable names for why a session ended.

Invariant: a `Reason` is a metric label and part of the operator's vocabulary: names are added, never changed.
"""

from __future__ import annotations

from enum import IntEnum

from remoting.protocol.errors import RemoteViolation


class ReasonCode(IntEnum):
    """The reason codes of MQTT 5, table 2-6. Owners of sessions use these; the session translates for 3.1.1."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


FAILURE_MIN = 0x80
"""Codes from here on are failures."""


class ConnectCode:
    """Return codes of CONNACK, MQTT 3.1.1 table 3.1."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_LEVEL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


SUBSCRIBE_FAILURE = 0x80
"""The SUBACK code of a filter that was not granted [MQTT-3.9.3-2]."""

CONNECT_CODES: dict[int, int] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectCode.UNACCEPTABLE_PROTOCOL_LEVEL,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectCode.NOT_AUTHORIZED,
    ReasonCode.BANNED: ConnectCode.NOT_AUTHORIZED,
    ReasonCode.BAD_AUTHENTICATION_METHOD: ConnectCode.NOT_AUTHORIZED,
    ReasonCode.TOPIC_NAME_INVALID: ConnectCode.NOT_AUTHORIZED,
}
"""Reason code of a refusal -> return code in the CONNACK of 3.1.1; every other one is SERVER_UNAVAILABLE there."""

_OF_PUBLISH = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_OF_RELEASE = frozenset({0x00, 0x92})
_OF_DISCONNECT = frozenset(
    {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)}
)
REASONS_OF_PACKETS: dict[int, frozenset[int]] = {
    2: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}),
    4: _OF_PUBLISH,
    5: _OF_PUBLISH,
    6: _OF_RELEASE,
    7: _OF_RELEASE,
    9: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    11: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    14: _OF_DISCONNECT,
    15: frozenset({0x00, 0x18, 0x19}),
}
"""Packet type -> the reason codes MQTT 5 allows in it, in either direction."""

DISCONNECT_REASONS_OF_CLIENTS = frozenset({0x00, 0x04, *range(0x80, 0x84), 0x90, *range(0x93, 0x9A)})
"""Codes that a client may send in DISCONNECT."""


class Reason:
    """Why a session ended, as `Violated.reason` and `Session.close_reason`."""

    MALFORMED = "malformed_packet"
    FLAGS = "reserved_flags"
    STRING = "malformed_string"
    LENGTH = "remaining_length"
    TOO_LARGE = "packet_too_large"
    UNEXPECTED = "unexpected_packet"
    PROTOCOL_NAME = "protocol_name"
    PROTOCOL_LEVEL = "protocol_level"
    CLIENT_ID = "client_id"
    PACKET_ID = "packet_id"
    QOS = "invalid_qos"
    TOPIC_NAME = "topic_name"
    TOPIC_FILTER = "topic_filter"
    UNACCEPTED_INPUT = "input_before_connack"
    CONNECT_TIMEOUT = "connect_timeout"
    KEEP_ALIVE = "keep_alive_timeout"
    REFUSED = "connect_refused"
    DISCONNECT = "disconnect"
    PROTOCOL = "protocol_error"
    RECEIVE_MAXIMUM = "receive_maximum"
    TOPIC_ALIAS = "topic_alias"
    ENDED = "ended_by_server"
    USER_PROPERTIES = "user_properties"
    DELAY = "delay"
    TOPIC_NAME_REFUSED = "topic_name_refused"
    TOPIC_FILTER_REFUSED = "topic_filter_refused"


VIOLATION_CODES: dict[str, ReasonCode] = {
    Reason.MALFORMED: ReasonCode.MALFORMED_PACKET,
    Reason.FLAGS: ReasonCode.MALFORMED_PACKET,
    Reason.STRING: ReasonCode.MALFORMED_PACKET,
    Reason.LENGTH: ReasonCode.MALFORMED_PACKET,
    Reason.QOS: ReasonCode.MALFORMED_PACKET,
    Reason.TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Reason.UNEXPECTED: ReasonCode.PROTOCOL_ERROR,
    Reason.PROTOCOL: ReasonCode.PROTOCOL_ERROR,
    Reason.PROTOCOL_LEVEL: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    Reason.CLIENT_ID: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.PACKET_ID: ReasonCode.PROTOCOL_ERROR,
    Reason.TOPIC_NAME: ReasonCode.MALFORMED_PACKET,
    Reason.TOPIC_FILTER: ReasonCode.MALFORMED_PACKET,
    # These two codes are for what is correctly formed and not accepted [3.14.2.1].
    Reason.TOPIC_NAME_REFUSED: ReasonCode.TOPIC_NAME_INVALID,
    Reason.TOPIC_FILTER_REFUSED: ReasonCode.TOPIC_FILTER_INVALID,
    Reason.KEEP_ALIVE: ReasonCode.KEEP_ALIVE_TIMEOUT,
    Reason.RECEIVE_MAXIMUM: ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
    Reason.TOPIC_ALIAS: ReasonCode.TOPIC_ALIAS_INVALID,
    Reason.USER_PROPERTIES: ReasonCode.QUOTA_EXCEEDED,
    Reason.DELAY: ReasonCode.QUOTA_EXCEEDED,
}
"""Why a session ended -> code in the DISCONNECT of MQTT 5; every other reason is an unspecified error."""


CLOSE_CODES: dict[str, ReasonCode] = {
    "taken_over": ReasonCode.SESSION_TAKEN_OVER,
    "server_stopping": ReasonCode.SERVER_SHUTTING_DOWN,
    "not_authorized": ReasonCode.NOT_AUTHORIZED,
    "credentials_expired": ReasonCode.NOT_AUTHORIZED,
    "broker_lost": ReasonCode.SERVER_BUSY,
    "broker_refused": ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    "quota_exceeded": ReasonCode.QUOTA_EXCEEDED,
    "queue_gone": ReasonCode.ADMINISTRATIVE_ACTION,
    "kicked": ReasonCode.ADMINISTRATIVE_ACTION,
    "internal_error": ReasonCode.UNSPECIFIED_ERROR,
}
"""First word of an owner's reason for closing -> code in the DISCONNECT of MQTT 5. Reasons that are missing here
concern connections that are closed already."""


def suback_code_of_3(code: int) -> int:
    """A SUBACK code in 3.1.1, which has one failure code."""
    return SUBSCRIBE_FAILURE if code >= FAILURE_MIN else code


class PacketViolation(RemoteViolation):
    """The peer sent what MQTT forbids: `reason` is a `Reason`, `detail` text for the operator. Never leaves
    `Session.feed`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"
