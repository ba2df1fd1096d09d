"""Configuration of how clients prove who they are, besides the password file.

Invariant: what would let somebody in by mistake (no algorithm, a hook over an open network) is refused when it is read.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from runtime.config.tables import setting

METHODS = ("certificate", "jwt", "password", "http")
"""Ways to prove who one is, in the order that holds when none is given."""

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256")
USER_NAMES = ("match", "any")


@dataclass(frozen=True, kw_only=True)
class AccessConfig:
    """Certificates, tokens and a hook, beside the users of `proxy.password_file`; and how far the access list goes."""

    partly_readable_filters: str = setting("thin", choices=("thin", "refuse"))
    """What becomes of a subscription to a filter of which the access list allows only some topics: it is granted and
    what may not be read is not delivered (`thin`), or it is refused."""
    methods: tuple[str, ...] = ()
    """Which of certificate, jwt, password and http are asked, in order; the first that knows the client decides. Empty:
    those that are configured, in this order."""
    jwt_keys_file: Path | None = None
    """Keys (a JWKS document) that sign tokens; a client sends its token as password. Read again when it changes."""
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Signature algorithms that are believed; a key is used for its own algorithm only."""
    jwt_audience: str = ""
    """What `aud` must name; empty: tokens with an `aud` are refused, since they were made for somebody else."""
    jwt_issuer: str = ""
    """What `iss` must be; empty: anything."""
    jwt_leeway_s: int = setting(30, minimum=0, maximum=600)
    """How far the clocks of issuer and proxy may differ."""
    jwt_user_claim: str = "sub"
    """The claim that is the user name."""
    jwt_client_claim: str = ""
    """The claim that must be the client id; empty: none must."""
    jwt_groups_claim: str = "groups"
    """The claim that lists groups of the access list."""
    jwt_acl_claim: str = "acl"
    """The claim that lists rules as behind `pattern` in the access list; they hold beside those of the list."""
    jwt_username: str = setting("match", choices=USER_NAMES)
    """Whether a user name in the CONNECT must be that of the token (`match`) or means nothing (`any`)."""
    http_url: str = ""
    """Where a CONNECT is asked about by POST; https, or http on this machine. Empty: nowhere."""
    http_secret_file: Path | None = None
    """Sent as `Authorization: Bearer …`, so that the hook can authenticate the proxy."""
    http_timeout_ms: int = setting(2_000, minimum=10, maximum=60_000)
    """Longest wait for an answer; without one the client is not let in and hears that it may try again."""
    http_concurrent_max: int = setting(16, minimum=1, maximum=1_024)
    """Most questions under way; further ones wait."""
    http_waiting_max: int = setting(256, minimum=0, maximum=65_536)
    """Most questions that wait; further clients are told that they may try again."""
    http_cache_ms: int = setting(60_000, minimum=0)
    """How long an accepted client is accepted again without asking."""

    @property
    def thins(self) -> bool:
        """Whether filters are granted of which only some topics may be read."""
        return self.partly_readable_filters == "thin"

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS or self.methods.count(name) > 1:
                raise ValueError(f"methods are {', '.join(METHODS)}, each once, not {name!r}")
        if self.jwt_keys_file is not None and not self.jwt_algorithms:
            raise ValueError("jwt_algorithms is empty: no token could be believed")
        for name in self.jwt_algorithms:
            if name not in JWT_ALGORITHMS:
                raise ValueError(f"jwt_algorithms knows {', '.join(JWT_ALGORITHMS)}, not {name!r}")
        if self.http_url:
            check_url(self.http_url)


def check_url(url: str) -> None:
    """Passwords go there: ValueError unless nobody on the way can read them."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("http_url must be https://host/path or http://127.0.0.1/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("http_url must hold no password; use http_secret_file")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname):
        raise ValueError("http_url must be https: passwords would cross the network in the clear")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
