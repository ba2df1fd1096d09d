"""Who a connection speaks for, and the words in which access is asked and answered.

Invariant: an identity is a value; whoever is not `anonymous` has proved its name. A client id is never proven, it is
only what the client calls itself. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


class Unproven(StrEnum):
    """Why a CONNECT has no identity."""

    DENIED = "denied"
    BUSY = "busy"
    """Too many wait to be checked: nothing is said about the password, the client may try again."""
    LEFT = "left"
    """The client was gone before its turn came."""


ANONYMOUS = Identity("", anonymous=True)
