"""Host and Origin headers of browsers: which hosts a page can have reached without lending this server its own name.

A page whose name an attacker lets point to 127.0.0.1 (DNS rebinding) sends that name as Host, and as Origin. An address
in figures and `localhost` cannot be lent, so they are safe, and every other name must be listed.
Invariant: whatever cannot be read is not safe. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

DEFAULT_PORTS = {"http": "80", "https": "443"}


def split_host(header: str) -> tuple[str, str]:
    """Host and port of a Host header, in lower case; an empty port where there is none."""
    host = header.strip().lower()
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name.rstrip("."), port


def is_safe_host(header: str, names: Collection[str] = ()) -> bool:
    """Whether the host is `localhost`, an address in figures, or one of `names`."""
    host, _ = split_host(header)
    if host == "localhost" or host in {name.lower().rstrip(".") for name in names}:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_same_origin(origin: str, host_header: str) -> bool:
    """Whether the page of this Origin came from the host and port that are asked now."""
    scheme, separator, rest = origin.strip().lower().rstrip("/").partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        return False
    host, port = split_host(rest)
    asked, asked_port = split_host(host_header)
    default = DEFAULT_PORTS[scheme]
    return bool(host) and (host, port or default) == (asked, asked_port or default)
