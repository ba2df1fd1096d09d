"""Topic aliases: usable after they were defined, refused when invalid."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from mqtt_proxy.mqtt.session.topic_names import IncomingAliases, OutgoingAliases


def test_an_alias_of_the_client() -> None:
    """Defined, used, redefined."""
    aliases = IncomingAliases(2)
    assert aliases.resolve(2, b"a") == b"a"
    assert aliases.resolve(2, b"") == b"a"
    assert aliases.resolve(2, b"b") == b"b"
    assert aliases.resolve(2, b"") == b"b"
    assert aliases.resolve(0, b"c") == b"c"


@pytest.mark.parametrize(("alias", "topic", "reason"), [(3, b"a", "topic_alias"), (1, b"", "protocol"), (0, b"", "p")])
def test_invalid_aliases(alias: int, topic: bytes, reason: str) -> None:
    """Above the maximum, never defined, and without any topic."""
    with pytest.raises(PacketViolation, match=reason):
        IncomingAliases(2).resolve(alias, topic)


def test_aliases_of_the_server() -> None:
    """As many as the client allows; only what was sent counts as defined; a short topic needs none."""
    aliases = OutgoingAliases(2)
    assert aliases.look_up(b"t/long") == (1, False)
    assert aliases.look_up(b"t/long") == (1, False)
    aliases.given(b"t/long", 1)
    assert aliases.look_up(b"t/long") == (1, True)
    assert aliases.look_up(b"abc") == (0, False)
    aliases.given(b"other", aliases.look_up(b"other")[0])
    assert aliases.look_up(b"third/topic") == (0, False)
