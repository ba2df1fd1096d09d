"""What a WebSocket listener accepts: its path and the web pages that may connect.

Invariant: values only.
"""

from __future__ import annotations

from dataclasses import dataclass

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""What MQTT calls itself there [MQTT-6.0.0-3]; the second is what 3.1 used and clients still offer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one listener."""

    path: str = "/mqtt"
    origins: tuple[str, ...] = ()
    """Pages that may connect; empty: any. Who sends no Origin is no browser and is not asked."""

    def origin_allowed(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect."""
        if origin is None or not self.origins:
            return True
        return origin.lower().rstrip("/") in (each.lower().rstrip("/") for each in self.origins)
