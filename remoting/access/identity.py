"""Who a connection speaks for, and the words in which access is asked and answered.

Invariant: an identity is a value; whoever is not `anonymous` has proved its name. A client id is never proven, it is
only what the client calls itself. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remoting.access.rules import Rule


class Action:
    """What can be asked of `authorize`."""

    PUBLISH = "publish"
    WILL = "will"
    SUBSCRIBE = "subscribe"
    HISTORY = "history"
    DELIVER = "deliver"


@dataclass(slots=True, frozen=True)
class Identity:
    """Who a connection speaks for; `name` is empty for clients that gave none."""

    name: str
    anonymous: bool
    client_id: str = ""
    groups: tuple[str, ...] = ()
    """Groups that a token or hook has named."""
    rules: tuple[Rule, ...] = ()
    """Rules that a token or hook has brought along, beside those of the access list."""
    until_ms: int | None = None
    """When what proved it expires (wall clock); None: never."""
    bridge: bool = False
    """Whether it said at CONNECT that it is another broker's bridge."""


def always() -> bool:
    """Somebody who does not leave."""
    return True


@dataclass(slots=True, frozen=True, kw_only=True)
class Shown:
    """What a CONNECT shows to prove who it is."""

    client_id: str = ""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    loopback: bool = False
    address: str = ""
    """The peer's."""
    certificate: str | None = None
    """The name in the client certificate that the listener has verified."""
    wanted: Callable[[], bool] = always
    """Asked before work is begun; false means that the client has gone."""


class Unproven(StrEnum):
    """Why a CONNECT has no identity."""

    DENIED = "denied"
    BUSY = "busy"
    """Too many wait to be checked: nothing is said about the password, the client may try again."""
    UNAVAILABLE = "unavailable"
    """Whoever was to be asked gave no answer that can be used; the client may try again."""
    LEFT = "left"
    """The client was gone before its turn came."""


ANONYMOUS = Identity("", anonymous=True)
