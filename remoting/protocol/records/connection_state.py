"""The one topic below `$SYS` that clients write: where a bridge says whether it is connected.

    $SYS/broker/connection/<id>/state      retained; b"1" connected, b"0" not (its will), b"" forgets it

Mosquitto's bridges publish there by default, with their client id as `<id>`, and end the connection when they may not.
Who may is `authority`'s to say. Invariant: nothing else below `$SYS` has an owner. Pure.
"""

from __future__ import annotations

_PREFIX, _SUFFIX = b"$SYS/broker/connection/", b"/state"

STATES = frozenset({b"", b"0", b"1"})
"""All a message there may say."""


def owner_of(topic: bytes) -> bytes | None:
    """The client whose connection the topic speaks of; None for every other topic."""
    if not (topic.startswith(_PREFIX) and topic.endswith(_SUFFIX)):
        return None
    owner = topic[len(_PREFIX) : -len(_SUFFIX)]
    return owner if owner and b"/" not in owner else None


def says_something_else(topic: bytes, payload: bytes | memoryview) -> bool:
    """Whether this is a topic of a connection's state, and the payload is no such state."""
    return topic.startswith(b"$") and bytes(payload[:2]) not in STATES
