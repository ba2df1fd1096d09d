"""Host and Origin headers of browsers: protection against DNS rebinding.

A page whose host name an attacker points to 127.0.0.1 sends that name as Host, and as Origin. IP addresses and
`localhost` cannot be redirected, so they are safe; every other name must be listed.
Invariant: an unreadable header is not safe. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

DEFAULT_PORTS = {"http": "80", "https": "443"}


def split_host(header: str) -> tuple[str, str]:
    """Return host and port of a Host header, in lower case; the port is empty when absent."""
    host = header.strip().lower()
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name.rstrip("."), port


def is_safe_host(header: str, names: Collection[str] = ()) -> bool:
    """Whether the host is `localhost`, an IP address, or one of `names`."""
    host, _ = split_host(header)
    if host == "localhost" or host in {name.lower().rstrip(".") for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, host_header: str) -> bool:
    """Whether the page of this Origin was loaded from the host and port of this request."""
    scheme, separator, rest = origin.strip().lower().rstrip("/").partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        return False
    host, port = split_host(rest)
    asked, asked_port = split_host(host_header)
    default = DEFAULT_PORTS[scheme]
    return bool(host) and (host, port or default) == (asked, asked_port or default)
