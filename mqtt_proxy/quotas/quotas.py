"""Quotas at the door: how many connections and how fast, which filters, how long a keep-alive.

    socket opened   -> `opening(address)`            OPEN, OVER_RATE (its CONNECT is refused), CUT (closed at once)
    CONNECT, known  -> `join(user, client id)`       refused above `connections_per_user_max`; `leave` gives it back
    SUBSCRIBE       -> `filter_refused(filter)`
    PUBLISH         -> `rates`: what was read is accepted, always; above a quota the answer is how long to read nothing

Invariants: a quota of 0 costs nothing and forbids nothing; a client id that comes again while its old connection is
still counted does not count twice, so that a take-over is never refused. In the long run no party publishes more than
its quota (plus what `token_bucket` says of single messages): TCP slows the publisher down, without loss.
Pure: time comes in as `now_ms`. Loop rule:
one owner per proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.quotas.token_bucket import BucketTable


@dataclass(slots=True, frozen=True)
class RatedPublisher:
    """Whom a batch is charged to; without a user nothing is charged to one."""

    client_id: str
    user: str | None
    address: str


@dataclass(slots=True, frozen=True)
class Pause:
    """How long to read nothing, and whose quota of what says so: `client_messages`, `user_bytes`..."""

    ms: int
    quota: str


class PublishRates:
    """The rates of one proxy."""

    def __init__(self, config: QuotaConfig) -> None:
        self._tables: list[tuple[str, str, bool, BucketTable]] = []
        """(quota, scope, whether it counts bytes, buckets), only those that are set."""
        for scope in ("client", "user", "address", "listener"):
            for unit in ("messages", "bytes"):
                per_s: float = getattr(config, f"{scope}_{unit}_per_s")
                if per_s:
                    burst = max(per_s, 1.0)
                    self._tables.append((f"{scope}_{unit}", scope, unit == "bytes", BucketTable(per_s, burst)))
        self.active = bool(self._tables)
        """Whether there is any quota; without one nobody need ask."""

    def charge(self, who: RatedPublisher, messages: int, size_bytes: int, now_ms: int) -> Pause | None:
        """Charge what was published to every quota it falls under; the longest pause, None when there is none."""
        longest = None
        parties = {"client": who.client_id, "user": who.user, "address": who.address, "listener": ""}
        for quota, scope, counts_bytes, table in self._tables:
            party = parties[scope]
            if party is None:
                continue
            wait_ms = table.of(party, now_ms).charge(size_bytes if counts_bytes else messages, now_ms)
            if wait_ms and (longest is None or wait_ms > longest.ms):
                longest = Pause(wait_ms, quota)
        return longest


SHARED_PREFIX = "$share/"


class SocketOpening(Enum):
    """What becomes of a new socket."""

    OPEN = "open"
    OVER_RATE = "over_rate"
    """Its address connects too fast: its CONNECT is answered with a refusal."""
    CUT = "cut"
    """Far too fast: not even that."""


class Quotas:
    """The quotas of one proxy."""

    def __init__(self, config: QuotaConfig) -> None:
        self._config = config
        self.rates = PublishRates(config)
        self._connects: BucketTable | None = None
        if config.connects_per_address_per_s:
            burst = float(config.connects_per_address_burst)
            self._connects = BucketTable(config.connects_per_address_per_s, burst)
        self._joined: dict[str, dict[str, int]] = {}
        """User -> client id -> connections of it, those being taken over included."""

    def opening(self, address: str, now_ms: int) -> SocketOpening:
        """A socket of this address was opened."""
        if self._connects is None:
            return SocketOpening.OPEN
        bucket = self._connects.of(address, now_ms)
        if not bucket.take(1, now_ms, -float(self._config.connects_per_address_burst)):
            return SocketOpening.CUT
        return SocketOpening.OPEN if bucket.level(now_ms) >= 0 else SocketOpening.OVER_RATE

    def join(self, user: str, client_id: str) -> bool:
        """Count a connection of a known user in, unless that is one too many."""
        joined = self._joined.setdefault(user, {})
        most = self._config.connections_per_user_max
        if most and client_id not in joined and len(joined) >= most:
            return False
        joined[client_id] = joined.get(client_id, 0) + 1
        return True

    def leave(self, user: str, client_id: str) -> None:
        """Count a client out that had joined."""
        joined = self._joined[user]
        joined[client_id] -= 1
        if not joined[client_id]:
            del joined[client_id]
            if not joined:
                del self._joined[user]

    def keep_alive_s(self, asked_s: int) -> int:
        """The keep-alive that holds for a client that asked for this one; 0 is none."""
        most = self._config.keep_alive_s_max
        return most if most and (asked_s == 0 or asked_s > most) else asked_s

    def retained_too_large(self, payload_bytes: int) -> bool:
        """Whether a payload is too large to be retained."""
        return 0 < self._config.retained_payload_bytes_max < payload_bytes

    def filter_refused(self, topic_filter: str) -> bool:
        """Whether nobody may subscribe to this filter; of a shared subscription what it shares is judged."""
        return any(as_wide_as(plain_filter(topic_filter), refused) for refused in self._config.filters_refused)


def plain_filter(topic_filter: str) -> str:
    """The filter of a subscription without `$share/group/`."""
    if not topic_filter.startswith(SHARED_PREFIX):
        return topic_filter
    return topic_filter.removeprefix(SHARED_PREFIX).partition("/")[2]


def as_wide_as(wide: str, narrow: str) -> bool:
    """Whether `wide` matches all that `narrow` matches; `#` and `+/#` are the same."""
    outer, inner = _levels(wide), _levels(narrow)
    if outer[0] == "+" and inner[0].startswith("$"):
        return False
    for index, level in enumerate(outer):
        if level == "#":
            return True  # the rest, or the end: `a/#` matches `a`
        if index >= len(inner) or inner[index] == "#" or level not in ("+", inner[index]):
            return False
    return len(outer) == len(inner)


def _levels(topic_filter: str) -> list[str]:
    return ["+", "#"] if topic_filter == "#" else topic_filter.split("/")
