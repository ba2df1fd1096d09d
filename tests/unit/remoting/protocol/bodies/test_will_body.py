"""Will bodies: every declared message round-trips, and values out of their range are violations."""

from __future__ import annotations

import msgspec
import pytest

from remoting.protocol.bodies import session_body as wb
from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.errors import RemoteViolation

MESSAGES = [
    wb.WillSpec(b"a/b", b"gone", 2, retain=True, delay_s=9, properties=[(b"k", b"v"), (b"k", b"w")], author=b"anna"),
    wb.WillDue("dev-1", 3, b"a/b", 2, True, b"anna"),
    wb.WillVerdict("dev-1", 3, allowed=False, reason="rules"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message) -> None:
    assert decode(type(message), encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (wb.WillSpec, [b"t", b"p", 3, False]),
        (wb.WillSpec, [b"t", b"p", 1, False, 2**32]),
        (wb.WillDue, ["c", -1, b"t", 1, False, b""]),
        (wb.WillVerdict, ["c", 1]),
    ],
)
def test_values_out_of_range_are_violations(kind, values) -> None:
    with pytest.raises(RemoteViolation, match=f"malformed {kind.__name__}"):
        decode(kind, msgspec.msgpack.encode(values))
