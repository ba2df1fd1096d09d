"""Codes of CONNACK and SUBACK, and the stable names for why a session ended.

Invariant: a `Reason` is a metric label and part of the operator's vocabulary: names are added, never changed.
"""

from __future__ import annotations

from remoting.protocol.errors import RemoteViolation


class ConnectCode:
    """Return codes of CONNACK, MQTT 3.1.1 table 3.1."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_LEVEL = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


CONNECT_CODE_NAMES = {
    ConnectCode.ACCEPTED: "accepted",
    ConnectCode.UNACCEPTABLE_PROTOCOL_LEVEL: "unacceptable protocol level",
    ConnectCode.IDENTIFIER_REJECTED: "identifier rejected",
    ConnectCode.SERVER_UNAVAILABLE: "server unavailable",
    ConnectCode.BAD_USER_NAME_OR_PASSWORD: "bad user name or password",
    ConnectCode.NOT_AUTHORIZED: "not authorized",
}

SUBSCRIBE_FAILURE = 0x80
"""The SUBACK code of a filter that was not granted [MQTT-3.9.3-2]."""

LEVEL_5_UNSUPPORTED = 0x84
"""MQTT 5 reason code "Unsupported Protocol Version": the only thing said in the layout of level 5."""

QOS_GRANTED_MAX = 1
"""The highest QoS this server grants to a subscription; a request for more is lowered [MQTT-3.8.4-6]."""


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


class PacketViolation(RemoteViolation):
    """The peer sent what MQTT forbids: `reason` is a `Reason`, `detail` words for its operator. Never leaves
    `Session.feed`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"
