"""Plays one scenario of MQTT 5 against a target; the steps are those of 3.1.1, the packets are not."""

from __future__ import annotations

import re

from tests.conformance.mqtt3.runner import Run
from tests.conformance.mqtt3.script import ANY_ID
from tests.conformance.mqtt5.script5 import packet_of
from tests.conformance.wire import PROPERTIES, PUBLISH, Parts, take_apart

EXPIRY, SUBSCRIPTION_ID = PROPERTIES["expiry"][0], PROPERTIES["sub_id"][0]
AT_MOST = re.compile(r"expiry=max:(\d+)")
REPEATED = re.compile(r"\{(\w)\*(\d+)\}")
"""In hex: `{a*4096}` is a text of that many letters."""


class Run5(Run):
    """The state of one scenario while it is played."""

    @staticmethod
    def bytes_of(words: tuple[str, ...]) -> bytes:
        """The bytes of a packet given in words, or in hex with text in quotation marks."""
        if words[0] == "hex":
            words = tuple(REPEATED.sub(lambda found: f"'{found[1] * int(found[2])}'", word) for word in words)
            return b"".join(
                word[1:-1].encode() if word.startswith("'") else bytes.fromhex(word) for word in _hex_words(words[1:])
            )
        return packet_of(list(words))

    def expect(self, name: str, *words: str) -> None:
        """The next packet is this one."""
        raw = self.client(name).next_packet()
        assert raw, "the connection was closed instead"
        if words[0] == "hex":
            assert raw == self.bytes_of(words), f"came {raw.hex(' ')}"
            return
        bounds = [match[1] for word in words if (match := AT_MOST.fullmatch(word))]
        came, expected = take_apart(raw), take_apart(packet_of([AT_MOST.sub(r"expiry=\1", word) for word in words]))
        if expected.first & 0xF0 == PUBLISH:
            left, right = self.compared(name, words, came, expected, bounds)
        else:
            asked = [one for one in came.properties if one in expected.properties]
            left, right = came._replace(properties=asked), expected._replace(properties=sorted(expected.properties))
            left.properties.sort()
        assert left == right, f"received {raw.hex(' ')}: {came} instead of {expected}"

    def compared(
        self, name: str, words: tuple[str, ...], came: Parts, expected: Parts, bounds: list[str]
    ) -> tuple[Parts, Parts]:
        """A PUBLISH and its expectation without what a server may choose.

        That is the packet id where any will do, the order of unlike properties and of subscription identifiers, and how
        much of a message's expiry has passed.
        """
        if f"id={ANY_ID}" in words:
            assert came.packet_id, f"a packet id of 0: {came}"
            self.last_id[name] = came.packet_id
            expected = expected._replace(packet_id=came.packet_id)
        found = dict(came.properties)
        for bound in bounds:
            left_s = int.from_bytes(found.get(EXPIRY, b""), "big")
            assert 0 < left_s <= int(bound), f"an expiry of {left_s} s: {came}"
            expected = expected._replace(
                properties=[(key, found[EXPIRY] if key == EXPIRY else value) for key, value in expected.properties]
            )
        return came._replace(properties=_in_order(came)), expected._replace(properties=_in_order(expected))


def _in_order(parts: Parts) -> list[tuple[int, bytes]]:
    """Properties by identifier; repeated ones keep their order, subscription identifiers apart [3.3.4]."""
    return sorted(parts.properties, key=lambda one: (one[0], one[1] if one[0] == SUBSCRIPTION_ID else b""))


def _hex_words(words: tuple[str, ...]) -> list[str]:
    return [found for word in words for found in re.findall(r"'[^']*'|[0-9a-fA-F]+", word)]
