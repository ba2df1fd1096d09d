"""The chain of methods as configured.

Invariant: a method that was asked for and is not configured is an error, since what it was to keep out would get in
by the others. Libraries of methods that are not used are not loaded. With a client certificate the name that the
listener has verified is the user; a user name in the CONNECT must be the same, so that a certificate for one is no way
to be another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mqtt_proxy.access.auth import Method
from mqtt_proxy.access.methods.password_method import PasswordMethod
from mqtt_proxy.config import METHODS, ProxyConfig
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from remoting.protocol.errors import LocalMisuse
from runtime.clock import Clock
from runtime.files import WatchedFile


class CertificateMethod:
    """Names in verified client certificates."""

    name = "certificate"

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The answer of `at_hand`: a certificate needs no waiting."""
        return self.at_hand(shown)

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The user of the certificate; without one it is not for this method to say."""
        if not shown.certificate:
            return None
        if shown.username and shown.username != shown.certificate:
            return Unproven.DENIED
        return Identity(shown.certificate, anonymous=False, client_id=shown.client_id)

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None: the listener reads certificates."""
        return ()

    def refresh(self) -> None:
        """Nothing was read."""

    async def close(self) -> None:
        """Nothing to release."""


def make_methods(config: ProxyConfig, *, clock: Clock, counters: AccessCounters) -> list[Method]:
    """The methods, in order. Raises LightMQError when a file of theirs may not be used: do not start then."""
    access = config.access
    configured = configured_methods(config)
    for name in access.methods:
        if name not in configured:
            raise LocalMisuse(f"proxy.access.methods names {name}, which is not configured")
    chosen = access.methods or configured
    made: dict[str, Callable[[], Method]] = {
        "certificate": CertificateMethod,
        "jwt": lambda: _jwt(config, counters),
        "password": lambda: _password(config, clock, counters, last=chosen[-1] == "password"),
        "http": lambda: _http(config, clock),
    }
    return [made[name]() for name in chosen]


def configured_methods(config: ProxyConfig) -> tuple[str, ...]:
    """The methods there is something for."""
    there = {
        "certificate": config.listen.tls_client_ca is not None,
        "jwt": config.access.jwt_keys_file is not None,
        "password": config.password_file is not None,
        "http": bool(config.access.http_url),
    }
    return tuple(name for name in METHODS if there[name])


def _password(config: ProxyConfig, clock: Clock, counters: AccessCounters, *, last: bool) -> Method:
    assert config.password_file is not None
    return PasswordMethod(config.password_file, clock=clock, counters=counters, last=last)


def _jwt(config: ProxyConfig, counters: AccessCounters) -> Method:
    from mqtt_proxy.access.methods.jwt_method import JwtMethod

    return JwtMethod(config.access, counters=counters)


def _http(config: ProxyConfig, clock: Clock) -> Method:
    from mqtt_proxy.access.methods.http_method import HttpMethod

    return HttpMethod(config.access, clock=clock)
