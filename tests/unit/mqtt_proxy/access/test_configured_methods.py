"""The chain is what the configuration says, or nothing starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from mqtt_proxy.access.auth import Method
from mqtt_proxy.access.gate import CertificateMethod, configured_methods, make_methods
from mqtt_proxy.config import EVERY_INTERFACE, LOOPBACK, AccessConfig, ListenConfig, ProxyConfig
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from remoting.protocol.errors import LightMQError, LocalMisuse
from runtime.clock import SystemClock
from runtime.metrics import Registry

KEY = {"kty": "oct", "alg": "HS256", "k": "c2VjcmV0IG9mIHRoaXJ0eS10d28gYnl0ZXMsIG9yIG5vdA", "kid": "s"}


def full(tmp_path: Path, *methods: str) -> ProxyConfig:
    """Each configured method is in the chain, or the proxy does not start."""
    users, keys = tmp_path / "users", tmp_path / "keys"
    users.write_text("")
    users.chmod(0o600)
    keys.write_text(json.dumps({"keys": [KEY]}))
    return ProxyConfig(
        password_file=users,
        access=AccessConfig(methods=methods, jwt_keys_file=keys, http_url="http://127.0.0.1:1/"),
        listen=ListenConfig(tls_client_ca=tmp_path / "ca"),
    )


def made(config: ProxyConfig) -> list[Method]:
    """A configuration with every method."""
    link = cast("Link", None)  # The chain of methods.
    return make_methods(config, clock=SystemClock(), counters=AccessCounters(Registry()), link=link)


def names(config: ProxyConfig) -> list[str]:
    return [one.name for one in made(config)]


async def test_what_is_configured_in_its_order(tmp_path: Path) -> None:
    """nothing is asked of the broker"""
    assert names(ProxyConfig()) == []
    assert names(full(tmp_path)) == ["certificate", "jwt", "password", "http"]
    assert names(full(tmp_path, "password", "certificate")) == ["password", "certificate"]


def test_configured_methods_in_their_order() -> None:
    """Or in the order given by the option."""
    for name in ("certificate", "jwt", "password", "http"):
        with pytest.raises(LocalMisuse, match=name):
            names(ProxyConfig(access=AccessConfig(methods=(name,))))


def test_a_method_that_is_not_configured_cannot_be_listed(tmp_path: Path) -> None:
    """Otherwise the remaining methods would admit those it was to keep out."""
    for wrong in (
        ProxyConfig(password_file=tmp_path / "none"),
        ProxyConfig(access=AccessConfig(jwt_keys_file=tmp_path / "none")),
        ProxyConfig(access=AccessConfig(http_url="http://127.0.0.1/", http_secret_file=tmp_path / "none")),
    ):
        with pytest.raises(LightMQError):
            names(wrong)


async def test_unusable_files_stop_the_start(tmp_path: Path) -> None:
    """Each method has its own."""
    for methods, answer in ((("password",), Unproven.DENIED), (("password", "certificate"), None)):
        chain = made(full(tmp_path, *methods))
        got = await chain[0].check(Shown(username="bob", password=b"x"))
        assert got is answer
        assert not isinstance(got, Identity)
        for one in chain:
            await one.close()


def test_users_missing_in_the_file_go_on_to_the_next_method(tmp_path: Path) -> None:
    """If the password file is last there is no next one, and unknown names look like known ones."""
    everything = full(tmp_path)
    assert ProxyConfig().listen_host == LOOPBACK
    for config in (
        ProxyConfig(password_file=everything.password_file),
        ProxyConfig(access=AccessConfig(jwt_keys_file=tmp_path / "keys")),
        ProxyConfig(access=AccessConfig(http_url="http://127.0.0.1/")),
        ProxyConfig(listen=ListenConfig(tls_client_ca=tmp_path / "ca")),
    ):
        assert config.listen_host == EVERY_INTERFACE
        assert len(configured_methods(config)) == 1


async def test_any_method_opens_the_listener_to_other_machines() -> None:
    """Each authenticates clients; with none only this machine is served."""
    method = CertificateMethod()
    press = Identity("press", False, "c")
    assert await method.check(Shown(client_id="c", certificate="press")) == press
    assert await method.check(Shown(client_id="c", certificate="press", username="press")) == press
    assert (
        await method.check(Shown(client_id="c", certificate="press", username="admin", password=b"x"))
        is Unproven.DENIED
    )
    assert await method.check(Shown(client_id="c", username="press")) is None
    assert await method.check(Shown(client_id="c", certificate="")) is None
    method.refresh()
    assert method.files() == ()
    await method.close()


def test_the_user_named_by_a_certificate(tmp_path: Path) -> None:
    """The CONNECT may have the same user name or none; another one is refused, whatever the password."""
    access = AccessConfig(broker_users=True)
    with pytest.raises(LocalMisuse, match="acl_file"):
        names(ProxyConfig(access=access))
    assert names(ProxyConfig(access=access, acl_file=tmp_path / "acl")) == ["broker"]
