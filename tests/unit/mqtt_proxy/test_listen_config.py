"""Options of the listeners: off by default, contradictions refused when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_proxy.config import ListenConfig, ProxyConfig
from runtime.config import ConfigError, Flag, attribute_docs, load


def test_every_option_is_documented() -> None:
    """A sentence each."""
    docs = attribute_docs(ListenConfig)
    assert set(docs) == set(ListenConfig.__dataclass_fields__)
    assert all(len(text) > 15 for text in docs.values())


def test_nothing_but_the_plain_port_by_default() -> None:
    """No certificate, no further port, no PROXY header."""
    config = ListenConfig()
    assert (config.tls_port, config.ws_port, config.wss_port, config.proxy_protocol) == (None, None, None, ())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tls_port": 0}, "tls_port needs tls_certificate"),
        ({"wss_port": 0, "tls_certificate": Path("c")}, "wss_port needs"),
        ({"tls_client_required": True}, "needs tls_client_ca"),
        ({"ws_path": "mqtt"}, "must begin with /"),
        ({"proxy_protocol": ("mqtt", "tls")}, "not mqtt"),
        ({"proxy_protocol_from": ("10.0.0.1/8",)}, "host bits"),
    ],
)
def test_contradictions(values: dict[str, object], words: str) -> None:
    """Each has its message."""
    with pytest.raises(ValueError, match=words):
        ListenConfig(**values)  # type: ignore[arg-type]


def test_keys_are_part_of_the_proxy_section() -> None:
    """One section for the proxy, with one set of rules."""
    flags = [Flag("listen.ws_port", "--ws-port", 0), Flag("listen.proxy_protocol", "--set", "tls,wss")]
    value = load(ProxyConfig, flags=flags).value
    assert (value.listen.ws_port, value.listen.proxy_protocol) == (0, ("tls", "wss"))
    with pytest.raises(ConfigError, match="tls_certificate"):
        load(ProxyConfig, flags=[Flag("listen.tls_port", "--tls-port", 8883)])
