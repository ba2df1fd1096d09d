"""Rules: which pages may connect."""

from __future__ import annotations

import pytest

from mqtt_proxy.websocket.rules import Rules


@pytest.mark.parametrize(
    ("origins", "origin", "expected"),
    [
        ((), "https://any.example", True),
        (("https://plant.example",), None, True),
        (("https://plant.example",), "HTTPS://plant.example/", True),
        (("https://plant.example",), "http://plant.example", False),
        (("https://plant.example",), "https://plant.example.evil", False),
        (("https://plant.example",), "null", False),
    ],
)
def test_origins(origins: tuple[str, ...], origin: str | None, expected: bool) -> None:
    """Whole origins are compared; who sends none is no browser."""
    assert Rules(origins=origins).origin_allowed(origin) is expected
