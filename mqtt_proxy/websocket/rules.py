"""What a WebSocket listener accepts: its path and the web pages that may connect.

Invariant: values only.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.protocol.web_host import is_safe_host, is_same_origin

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""What MQTT calls itself there [MQTT-6.0.0-3]; the second is what 3.1 used and clients still offer."""

ANY_ORIGIN = "*"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one listener."""

    path: str = "/mqtt"
    origins: tuple[str, ...] = ()
    """Pages that may connect beside those of this address; `*`: all. Who sends no Origin is no browser."""

    def origin_allowed(self, origin: str | None, host: str = "") -> bool:
        """Whether a page of this origin may connect that asked this host."""
        if origin is None or ANY_ORIGIN in self.origins:
            return True
        if origin.lower().rstrip("/") in (each.lower().rstrip("/") for each in self.origins):
            return True
        return is_safe_host(host) and is_same_origin(origin, host)
