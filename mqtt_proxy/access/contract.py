"""What the rest of the proxy asks of access control; `gate.Gate` is what answers.

Invariant: a refusal of `authorize` is counted and logged by whoever answers, never by who asks. Pure declarations.
"""

from __future__ import annotations

from typing import Protocol

from mqtt_proxy.access.exchange import Exchange
from remoting.access.rules import Identity, Shown, Unproven, Verdict


class AccessControl(Protocol):
    """Authentication and authorization as sessions ask for them."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """What `authenticate` would answer, if that can be said without waiting; None when it cannot."""

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """Who this is, or why nobody knows."""

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """An enhanced authentication by this method; None when it is not offered."""

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """Whether it may do this with the topic or filter; a refusal is counted and logged."""

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages it may publish to the topic, as bits of `rules.write_bit`; nothing is counted."""

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """How messages of the topic may be read, as bits of `rules.READ_LIVE` and so on; nothing is counted."""
