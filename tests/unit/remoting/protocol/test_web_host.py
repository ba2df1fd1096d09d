"""Names that an attacker can point here are not safe; numeric addresses and localhost are."""

from __future__ import annotations

import pytest

from remoting.protocol.web_host import is_safe_host, is_same_origin, split_host


@pytest.mark.parametrize(
    ("header", "safe"),
    [
        ("127.0.0.1:8080", True), ("localhost", True), ("LocalHost:80", True), ("[::1]:8080", True), ("10.1.2.3", True),
        ("localhost.:8080", True), ("evil.example:8080", False), ("localhost.evil.example", False), ("", False),
        ("127.0.0.1.evil.example", False), ("[evil]", False), ("plant.example:443", False), ("2130706433", False),
    ],
)  # fmt: skip
def test_hosts(header: str, safe: bool) -> None:
    assert is_safe_host(header) is safe


def test_names_may_be_listed() -> None:
    assert is_safe_host("Plant.Example:8080", ("plant.example",))
    assert not is_safe_host("other.example", ("plant.example",))


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:8083", "127.0.0.1:8083", True), ("https://plant.example", "plant.example", True),
        ("https://plant.example", "plant.example:443", True), ("http://[::1]:81", "[::1]:81", True),
        ("http://127.0.0.1:9000", "127.0.0.1:8083", False), ("http://evil.example:8083", "127.0.0.1:8083", False),
        ("null", "127.0.0.1:8083", False), ("file://", "", False), ("http://", "", False), ("", "", False),
    ],
)  # fmt: skip
def test_origins(origin: str, host: str, same: bool) -> None:
    assert is_same_origin(origin, host) is same


def test_parts() -> None:
    assert split_host("[::1]:80") == ("::1", "80")
    assert split_host("A.b") == ("a.b", "")
