"""The proxy's options: safe defaults, documented, checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_proxy.config import ListenConfig, ProxyConfig
from runtime.config import ConfigError, Flag, attribute_docs, load


def test_every_option_is_documented() -> None:
    """A sentence each."""
    docs = attribute_docs(ProxyConfig)
    assert set(docs) == set(ProxyConfig.__dataclass_fields__)
    assert all(len(text) > 15 for text in docs.values())


def test_values_are_checked() -> None:
    """A window of zero would deliver nothing."""
    assert load(ProxyConfig, flags=[Flag("in_flight_max", "--in-flight", "5")]).value.in_flight_max == 5
    with pytest.raises(ConfigError, match="in_flight_max"):
        load(ProxyConfig, flags=[Flag("in_flight_max", "--in-flight", "0")])


def test_replicas_are_found_by_controllers() -> None:
    """A fixed broker has none."""
    assert ProxyConfig(read_from="replica").read_from == "replica"
    with pytest.raises(ValueError, match="leave broker empty"):
        ProxyConfig(read_from="nearest", broker="127.0.0.1:10911")


def test_a_stop_may_take_as_long_as_its_parts() -> None:
    """The supervisor of the parts must not cut a drain short."""
    config = ProxyConfig(stop_deadline_ms=2_000, listen=ListenConfig(drain_interval_ms=30_000))
    assert config.stop_s_max == 35.0


def test_one_message_fits_the_frames() -> None:
    """The largest packet fits an append, and the append a frame of 16 MiB."""
    config = ProxyConfig()
    assert config.packet_size_bytes_max <= config.append_bytes_max
    assert config.append_bytes_max < 16 * 1024 * 1024


def test_only_loopback_is_open_before_users_are_declared() -> None:
    """Loopback by default; every interface with a password file; an address that was set is used as it is."""
    assert ProxyConfig().listen_host == "127.0.0.1"
    assert ProxyConfig(password_file=Path("users")).listen_host == "0.0.0.0"
    assert ProxyConfig(host="10.0.0.7").listen_host == "10.0.0.7"
    assert ProxyConfig(host="::1", password_file=Path("users")).listen_host == "::1"


def test_a_listener_that_is_not_configured_is_not_there() -> None:
    """Without any there is a plain one on loopback; TLS alone opens no plain one beside it."""
    files = {"tls_certificate": Path("c"), "tls_key": Path("k")}
    assert (ProxyConfig().plain_port, ProxyConfig().plain_host) == (1883, "127.0.0.1")
    assert ProxyConfig(listen=ListenConfig(tls_port=8883, **files)).plain_port is None
    assert ProxyConfig(listen=ListenConfig(ws_port=9001)).plain_port is None
    assert ProxyConfig(port=1884, listen=ListenConfig(tls_port=8883, **files)).plain_port == 1884


def test_passwords_in_the_clear_need_an_address_that_was_set() -> None:
    """A password file alone opens no plain listener to other machines."""
    users = Path("users")
    assert ProxyConfig(password_file=users).plain_host == "127.0.0.1"
    assert not ProxyConfig(password_file=users).takes_passwords_in_the_clear
    assert ProxyConfig(password_file=users, host="0.0.0.0").takes_passwords_in_the_clear
    assert ProxyConfig(
        password_file=users, host="10.0.0.7", listen=ListenConfig(ws_port=1)
    ).takes_passwords_in_the_clear
    encrypted = ListenConfig(tls_port=8883, tls_certificate=Path("c"), tls_key=Path("k"))
    assert not ProxyConfig(password_file=users, host="0.0.0.0", listen=encrypted).takes_passwords_in_the_clear
    assert not ProxyConfig(host="0.0.0.0").takes_passwords_in_the_clear
