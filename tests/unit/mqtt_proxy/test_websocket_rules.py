"""Rules: which pages may connect."""

from __future__ import annotations

import pytest

from mqtt_proxy.websocket import Rules


@pytest.mark.parametrize(
    ("origins", "origin", "expected"),
    [
        ((), "https://any.example", False),
        (("*",), "https://any.example", True),
        ((), None, True),
        (("https://plant.example",), None, True),
        (("https://plant.example",), "HTTPS://plant.example/", True),
        (("https://plant.example",), "http://plant.example", False),
        (("https://plant.example",), "https://plant.example.evil", False),
        (("https://plant.example",), "null", False),
    ],
)
def test_origins(origins: tuple[str, ...], origin: str | None, expected: bool) -> None:
    """Whole origins are compared; a client without one is no browser."""
    assert Rules(origins=origins).origin_allowed(origin) is expected


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://127.0.0.1:8083", "127.0.0.1:8083", True),
        ("http://localhost:8083", "localhost:8083", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8083", False),
        ("http://evil.example:8083", "evil.example:8083", False),  # a name that was made to point here
    ],
)
def test_pages_of_the_same_address(origin: str, host: str, expected: bool) -> None:
    """They need no list, but only under a safe name: anybody can point a name of theirs here."""
    assert Rules().origin_allowed(origin, host) is expected
