"""Contradictions in the TLS tables are refused when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.tls_config import MODES, DialTlsConfig, ListenTlsConfig

FILE = Path("some.pem")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": "enforcing"}, "certificate"),
        ({"certificate": FILE}, "together"),
        ({"key": FILE}, "together"),
        ({"certificate": FILE, "key": FILE, "client_required": True}, "client_ca"),
    ],
)
def test_a_port_that_could_not_serve(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ListenTlsConfig(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ca": FILE}, "enabled"),
        ({"certificate": FILE}, "enabled"),
        ({"enabled": True, "key": FILE}, "needs dial_tls.certificate"),
    ],
)
def test_a_dial_that_would_ignore_its_settings(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DialTlsConfig(**values)


def test_the_defaults() -> None:
    """No TLS, and once it is on everything is checked."""
    assert ListenTlsConfig().mode in MODES
    assert not DialTlsConfig().enabled
    assert DialTlsConfig(enabled=True, certificate=FILE).verify
