"""The words of a scenario as packets of MQTT 5; the language is in the README beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqtt_proxy.mqtt import packets
from mqtt_proxy.mqtt import properties as props
from remoting.protocol.mqtt_properties import MessageProperties
from tests.conformance.mqtt3.script import ANY_ID, fields_of

HERE = Path(__file__).parent
ANY_EXPIRY = 0x1_0000_0000
"""Added to an expected expiry that is only an upper bound."""

_NUMBERS = {
    "session_expiry": props.SESSION_EXPIRY,
    "receive_max": props.RECEIVE_MAXIMUM,
    "max_packet": props.MAXIMUM_PACKET_SIZE,
    "alias_max": props.TOPIC_ALIAS_MAXIMUM,
    "want_response": props.REQUEST_RESPONSE_INFORMATION,
    "want_problem": props.REQUEST_PROBLEM_INFORMATION,
    "keep_alive_s": props.SERVER_KEEP_ALIVE,
}
_TEXTS = {
    "auth_method": props.AUTH_METHOD,
    "reason_string": props.REASON_STRING,
    "assigned_id": props.ASSIGNED_CLIENT_ID,
    "server_ref": props.SERVER_REFERENCE,
    "response_info": props.RESPONSE_INFORMATION,
}


class Words:
    """The words behind a packet's name, taken one by one; what is left over is a mistake of the script."""

    def __init__(self, words: list[str]) -> None:
        self.fields = fields_of(words)

    def one(self, key: str) -> str | None:
        found = self.fields.pop(key, None)
        return None if found is None else found[0]

    def text(self, key: str, default: str = "") -> str:
        found = self.one(key)
        return default if found is None else found

    def number(self, key: str, default: int = 0) -> int:
        found = self.one(key)
        return default if found is None else ANY_ID if found == "?" else int(found, 0)

    def many(self, key: str) -> list[str]:
        return self.fields.pop(key, [])

    def pairs(self, key: str) -> list[tuple[bytes, bytes]]:
        return [(one.partition(":")[0].encode(), one.partition(":")[2].encode()) for one in self.many(key)]

    def properties(self) -> dict[int, Any]:
        """Those that any packet may have."""
        found: dict[int, Any] = {}
        for name, identifier in _NUMBERS.items():
            value = self.one(name)
            if value is not None:
                found[identifier] = int(value, 0)
        for name, identifier in _TEXTS.items():
            value = self.one(name)
            if value is not None:
                found[identifier] = value.encode()
        data = self.one("auth_data")
        if data is not None:
            found[props.AUTH_DATA] = bytes.fromhex(data)
        user = self.pairs("user")
        if user:
            found[props.USER] = user
        return found

    def message(self, prefix: str = "") -> MessageProperties | None:
        """Those of a message."""
        expiry = self.one(prefix + "expiry")
        payload_format = self.one(prefix + "format")
        content_type = self.one(prefix + "content_type")
        response_topic = self.one(prefix + "response_topic")
        correlation = self.one(prefix + "correlation")
        found = MessageProperties(
            None if payload_format is None else int(payload_format),
            None if expiry is None else _expiry(expiry),
            None if content_type is None else content_type.encode(),
            None if response_topic is None else response_topic.encode(),
            None if correlation is None else bytes.fromhex(correlation),
            self.pairs(prefix + "user"),
        )
        return None if found == MessageProperties() else found


def _expiry(word: str) -> int:
    kind, separator, bound = word.partition(":")
    return int(bound) + ANY_EXPIRY if separator and kind == "max" else int(word)


def packet_of(words: list[str]) -> packets.Packet:
    """The packet a line describes."""
    fields = Words(words[1:])
    packet = _MAKERS[words[0]](fields)
    assert not fields.fields, f"unknown fields {list(fields.fields)} of {words[0]}"
    return packet


def _connect(words: Words) -> packets.Packet:
    will = None
    text = words.one("will")
    if text is not None:
        will = packets.Will(
            words.text("will_topic").encode(),
            text.encode(),
            words.number("will_qos"),
            words.number("will_retain") == 1,
            words.message("will_"),
            words.number("will_delay"),
        )
    password = words.one("password")
    return packets.Connect(
        words.text("id"),
        words.text("clean", "1") == "1",
        words.number("keepalive", 60),
        words.one("user_name"),
        None if password is None else password.encode(),
        will,
        5,
        words.properties(),
    )


def _publish(words: Words) -> packets.Packet:
    return packets.Publish(
        words.text("topic").encode(),
        words.text("payload").encode() * words.number("times", 1),
        words.number("qos"),
        words.number("retain") == 1,
        words.number("dup") == 1,
        words.number("id"),
        words.message(),
        words.number("alias"),
        tuple(int(one) for one in words.many("sub_id")),
    )


def _acknowledgement(make: Any) -> Any:
    return lambda words: make(words.number("id"), words.number("code"), words.properties())


def _subscribe(words: Words) -> packets.Packet:
    filters = [(word.rpartition(":")[0], int(word.rpartition(":")[2], 0)) for word in words.many("filter")]
    sub_id = words.one("sub_id")
    found = words.properties()
    if sub_id is not None:
        found[props.SUBSCRIPTION_ID] = int(sub_id)
    return packets.Subscribe(words.number("id"), filters, found)


def _codes(words: Words) -> list[int]:
    return [int(code, 0) for code in words.text("codes").split(",")]


_MAKERS: dict[str, Any] = {
    "connect": _connect,
    "connack": lambda words: packets.Connack(words.number("present") == 1, words.number("code"), words.properties()),
    "publish": _publish,
    "puback": _acknowledgement(packets.Puback),
    "pubrec": _acknowledgement(packets.Pubrec),
    "pubrel": _acknowledgement(packets.Pubrel),
    "pubcomp": _acknowledgement(packets.Pubcomp),
    "subscribe": _subscribe,
    "suback": lambda words: packets.Suback(words.number("id"), _codes(words), words.properties()),
    "unsubscribe": lambda words: packets.Unsubscribe(words.number("id"), words.many("filter"), words.properties()),
    "unsuback": lambda words: packets.Unsuback(words.number("id"), _codes(words), words.properties()),
    "pingreq": lambda _: packets.Pingreq(),
    "pingresp": lambda _: packets.Pingresp(),
    "disconnect": lambda words: packets.Disconnect(words.number("code"), words.properties()),
    "auth": lambda words: packets.Auth(words.number("code"), words.properties()),
}
