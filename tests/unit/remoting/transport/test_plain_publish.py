"""What a session hands to a broker of its process."""

from __future__ import annotations

import pytest

from remoting.transport.plain_publish import PlainPublish


def test_it_holds_what_it_was_made_of() -> None:
    """Every field can be read back, and changed as an alias or a refusal demands."""
    one = PlainPublish(b"a/b", b"payload", 1, True, 7)
    assert (one.topic, one.payload, one.qos, bool(one.retain), one.packet_id) == (b"a/b", b"payload", 1, True, 7)
    one.topic = b"c"
    assert one.topic == b"c"


def test_it_has_no_room_for_anything_else() -> None:
    """Nobody hangs a field on it that the compiled class has not."""
    with pytest.raises(AttributeError):
        PlainPublish(b"a", b"", 0, False, 0).note = 1  # type: ignore[attr-defined]
