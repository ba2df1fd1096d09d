"""How a client may ask for history, and what is refused."""

from __future__ import annotations

import pytest

from mqtt_proxy.history import NotUnderstood, plain_filter, start_of_filter, start_of_user
from remoting.protocol.bodies.session_body import HistoryStart

NOON_MS = 1_767_268_800_000


@pytest.mark.parametrize(
    ("name", "value", "wish"),
    [
        ("from-time", "1767268800000", HistoryStart(from_ms=NOON_MS)),
        ("from-time", "2026-01-01T12:00:00Z", HistoryStart(from_ms=NOON_MS)),
        ("from-time", "2026-01-01T12:00:00", HistoryStart(from_ms=NOON_MS)),
        ("from-time", "2026-01-01T12:00:00.250Z", HistoryStart(from_ms=NOON_MS + 250)),
        ("from-time", "2026-01-01", HistoryStart(from_ms=NOON_MS - 12 * 3_600_000)),
        ("from-time", "1900-01-01", HistoryStart(from_ms=0)),
        ("from-offset", "0", HistoryStart(from_offset=0)),
        ("last", "10", HistoryStart(last=10)),
    ],
)
def test_understood(name: str, value: str, wish: HistoryStart) -> None:
    """The same by user property and by filter."""
    assert start_of_user([(b"other", b"x"), (name.encode(), value.encode())]) == wish
    assert start_of_filter(f"$history/{name}={value}/plant/+/#") == wish


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("from-time", "yesterday"),
        ("from-time", ""),
        ("from-time", "9" * 19),
        ("from-offset", "-1"),
        ("last", "1e3"),
        ("last", "²"),
        ("last", ""),
    ],
)
def test_refused(name: str, value: str) -> None:
    """Neither guessed nor ignored."""
    with pytest.raises(NotUnderstood):
        start_of_user([(name.encode(), value.encode())])
    with pytest.raises(NotUnderstood):
        start_of_filter(f"$history/{name}={value}/a")


def test_forms_of_the_request() -> None:
    """One at most; a reserved name without one is refused; everything else is not a request."""
    assert start_of_user([(b"a", b"b")]) is None
    assert start_of_filter("history/last=1/a") is None
    with pytest.raises(NotUnderstood):
        start_of_user([(b"last", b"1"), (b"last", b"2")])
    for name in ("$history/", "$history/last=1", "$history/last=1/", "$history/a/b", "$history/first=1/a"):
        with pytest.raises(NotUnderstood):
            start_of_filter(name)
    assert plain_filter("$history/last=1/a/#") == "a/#"
    assert plain_filter("a/$history/b") == "a/$history/b"
