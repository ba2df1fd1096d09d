"""Bodies about wills, as msgpack arrays: the will in a SESSION_OPEN, WILL_DUE, WILL_VERDICT.

A will lives with the broker, which says WILL_DUE to one proxy when its time has come; the proxy asks whether the client
may still publish it and answers WILL_VERDICT. A will is known by client id and the epoch of the connection that left
it, so a verdict that comes late meets nothing. Thread rule: plain values.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["WillDue", "WillSpec", "WillVerdict"]

U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Epoch = Annotated[int, Meta(ge=0)]
Qos = Annotated[int, Meta(ge=0, le=2)]


class WillSpec(msgspec.Struct, array_like=True):
    """A will as its client left it; `properties` are pairs as they stand in the record, behind topic and client id."""

    topic: bytes
    payload: bytes
    qos: Qos
    retain: bool
    delay_s: U32 = 0
    properties: list[tuple[bytes, bytes]] = []
    """Record properties of the message, in order."""
    author: bytes = b""
    """Who left it, in the proxies' own words; the broker gives them back with WILL_DUE."""


class WillDue(msgspec.Struct, array_like=True):
    """Broker to proxy: may `author` still publish there?"""

    client_id: str
    epoch: Epoch
    topic: bytes
    qos: Qos
    retain: bool
    author: bytes


class WillVerdict(msgspec.Struct, array_like=True):
    """Proxy to broker: publish it, or drop it for this reason. The reply comes when that is durable."""

    client_id: str
    epoch: Epoch
    allowed: bool
    reason: str = ""
