"""Plays one scenario of MQTT 5 against a target; the steps are those of 3.1.1, the packets are not."""

from __future__ import annotations

import re

from mqtt_proxy.mqtt import packets
from mqtt_proxy.mqtt.codec import decode, split
from mqtt_proxy.mqtt.encode import encode
from tests.conformance.mqtt3.runner import Run
from tests.conformance.mqtt3.script import ANY_ID, fields_of
from tests.conformance.mqtt5.script5 import ANY_EXPIRY, packet_of

LONG_ID_BYTES = 1_025
"""What `{long}` stands for: one byte more than a client id may have here."""


class Run5(Run):
    """The state of one scenario being played."""

    def connect(self, name: str, *words: str) -> None:
        """CONNECT, and the CONNACK that accepts it."""
        fields = [word for word in words if not word.startswith("present=")]
        present = fields_of(list(words)).get("present", ["0"])[0]
        if not any(word.startswith("id=") for word in fields):
            fields.append(f"id={self.unique}{name}")
        self.clients.pop(name, None)
        self.send(name, "connect", *fields)
        self.expect(name, "connack", f"present={present}", "code=0")

    @staticmethod
    def bytes_of(words: tuple[str, ...]) -> bytes:
        """The bytes of a packet given in words, or in hex with text in quotation marks."""
        if words[0] == "hex":
            words = tuple(
                word.replace("{long}", f"'{'a' * LONG_ID_BYTES}'").replace("{long1024}", "a" * 1_024) for word in words
            )
            return b"".join(
                word[1:-1].encode() if word.startswith("'") else bytes.fromhex(word) for word in _hex_words(words[1:])
            )
        return encode(packet_of(list(words)), 5)

    def expect(self, name: str, *words: str) -> None:
        """The next packet is this one."""
        raw = self.client(name).next_packet()
        assert raw, "the connection was closed instead"
        if words[0] == "hex":
            assert raw == self.bytes_of(words), f"came {raw.hex(' ')}"
            return
        came, expected = decode(*split(raw), 5), packet_of(list(words))
        assert type(came) is type(expected), f"came {came}"
        if isinstance(came, packets.Publish) and isinstance(expected, packets.Publish):
            self._expect_publish(name, came, expected)
            return
        wanted = dict(getattr(expected, "properties", None) or {})
        had = dict(getattr(came, "properties", None) or {})
        assert wanted.items() <= had.items(), f"came {came}"
        if wanted or had:
            came.properties = expected.properties = None  # type: ignore[union-attr]
        assert came == _plain(expected), f"came {came}"

    def _expect_publish(self, name: str, came: packets.Publish, expected: packets.Publish) -> None:
        if expected.packet_id == ANY_ID:
            self.last_id[name] = expected.packet_id = came.packet_id
        bound = expected.properties.expiry_s if expected.properties is not None else None
        if bound is not None and bound > ANY_EXPIRY:
            assert expected.properties is not None
            assert came.properties is not None, f"came {came}"
            left_s = came.properties.expiry_s or 0
            assert 0 < left_s <= bound - ANY_EXPIRY, f"came {came}"
            expected.properties.expiry_s = left_s
        assert sorted(came.subscription_ids) == sorted(expected.subscription_ids), f"came {came}"
        came.subscription_ids = expected.subscription_ids = ()
        assert came == expected, f"came {came}"


def _plain(packet: packets.Packet) -> packets.Packet:
    if getattr(packet, "properties", None) == {}:
        packet.properties = None  # type: ignore[union-attr]
    return packet


def _hex_words(words: tuple[str, ...]) -> list[str]:
    return [found for word in words for found in re.findall(r"'[^']*'|[0-9a-fA-F]+", word)]
