"""Who looks: the person or program behind a request, and what the console may do in their name.

    admin     acts and views; the administrator token, or an access key with `role admin`
    monitor   views everything but secrets, acts on nothing; message bodies as its own rules allow
    client    an access key without such a role: sees and does what its own rules allow

Invariant: an access key is judged by the broker under its own name, a token has no name at the broker. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ADMIN, MONITOR, CLIENT = ROLES = ("admin", "monitor", "client")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who has signed in, or proved a key with this request."""

    user: str
    """The name that the audit shows."""
    role: str
    host: str
    """The address of the peer, without its port."""
    key: str | None = None
    """The access key that was proved; None for a token."""


class Identities(Protocol):
    """The access keys of this process, and their roles."""

    def digest(self, key: str) -> bytes | None:
        """Return what changes when the key's secret does; None when there is no such key."""
        ...

    def knows_secret(self, key: str, secret: str) -> bool:
        """Whether this is the secret of a known key; takes the same time for an unknown key."""
        ...

    def permits(self, key: str, action: str) -> bool:
        """Whether a key may do this in the whole installation."""
        ...


def role_of(identities: Identities, key: str) -> str:
    """Return the role of a proved access key."""
    if identities.permits(key, "admin"):
        return ADMIN
    return MONITOR if identities.permits(key, "monitor") else CLIENT
