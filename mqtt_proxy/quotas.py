"""What one client, user or address may use: connections, filters, retained payloads, keep-alive, publish rates.

    socket opened   -> `opening(address)`            OPEN, OVER_RATE (its CONNECT is refused), CUT (closed at once)
    CONNECT, known  -> `join(user, client id)`       refused above `connections_per_user_max`; `leave` gives it back
    SUBSCRIBE       -> `filter_refused(filter)`
    PUBLISH         -> `rates`: what was read is always accepted; above a quota the result is how long to pause reading

Rates are token buckets: a bucket fills with `per_s` tokens a second up to `burst`. `take` is for what can be refused:
it succeeds when there are enough tokens. `charge` is for what has happened: it may leave a debt, and returns how long
paying it back takes.

Invariants: quotas decide, callers act: nothing here closes, pauses or drops anything. A quota of 0 costs and limits
nothing. A client id that reconnects while its old connection is still counted is not counted twice, so a take-over is
never refused. Over any time t no more than burst + per_s * t is taken, plus one overdraft of `charge` at a time; a debt
is at most `DEBT_S_MAX` seconds' worth. A clock that goes back adds and removes nothing.
Pure: time is passed in as `now_ms`. Loop rule: one owner per proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

from mqtt_proxy.config import QuotaConfig

DEBT_S_MAX = 10.0
"""Longest wait a debt can cause: a single message above so many seconds' worth passes after this time."""

BUCKETS_MAX = 65_536
"""Buckets of one table. Above it those that are full are forgotten (a new one is full too), then the oldest."""


class TokenBucket:
    """One quota of one party."""

    __slots__ = ("_burst", "_level", "_per_ms", "_seen_ms")

    def __init__(self, per_s: float, burst: float, now_ms: int) -> None:
        assert per_s > 0, per_s
        self._per_ms = per_s / 1_000
        self._burst = burst
        self._level = burst
        self._seen_ms = now_ms

    def level(self, now_ms: int) -> float:
        """Tokens left; negative for a debt."""
        passed_ms = now_ms - self._seen_ms
        if passed_ms > 0:
            self._seen_ms = now_ms
            self._level = min(self._burst, self._level + passed_ms * self._per_ms)
        return self._level

    def is_full(self, now_ms: int) -> bool:
        """Whether it equals a new one."""
        return self.level(now_ms) >= self._burst

    def take(self, amount: float, now_ms: int, floor: float = 0.0) -> bool:
        """Take `amount` if that leaves at least `floor`."""
        if self.level(now_ms) - amount < floor:
            return False
        self._level -= amount
        return True

    def charge(self, amount: float, now_ms: int) -> int:
        """Take `amount` in any case; milliseconds until the debt is paid, 0 without one."""
        level = max(self.level(now_ms) - amount, -DEBT_S_MAX * 1_000 * self._per_ms)
        self._level = level
        return self._paid_ms(level)

    def debt_ms(self, now_ms: int) -> int:
        """Milliseconds until the debt is paid, 0 without one."""
        return self._paid_ms(self.level(now_ms))

    def _paid_ms(self, level: float) -> int:
        return 0 if level >= 0 else int(-level / self._per_ms) + 1


class BucketTable:
    """Buckets of one kind by owner, bounded."""

    __slots__ = ("_buckets", "_burst", "_per_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[Hashable, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, party: Hashable, now_ms: int) -> TokenBucket:
        """The bucket of a party; look it up every time, because one that is full may have been forgotten."""
        bucket = self._buckets.get(party)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._prune(lambda one: one.is_full(now_ms))
            bucket = self._buckets[party] = TokenBucket(self._per_s, self._burst, now_ms)
        return bucket

    def known(self, party: Hashable) -> TokenBucket | None:
        """The bucket of a party that has one; None is as good as a full one."""
        return self._buckets.get(party)

    def _prune(self, needless: Callable[[TokenBucket], bool]) -> None:
        self._buckets = {party: bucket for party, bucket in self._buckets.items() if not needless(bucket)}
        while len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]


@dataclass(slots=True, frozen=True)
class RatedPublisher:
    """Whom a batch is charged to; without a user no user quota applies."""

    client_id: str
    user: str | None
    address: str


@dataclass(slots=True, frozen=True)
class Pause:
    """How long to pause reading, and which quota requires it: `client_messages`, `user_bytes`..."""

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
        """Whether there is any quota; without one no check is needed."""

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
    """The verdict on a new socket."""

    OPEN = "open"
    OVER_RATE = "over_rate"
    """Its address connects too fast: its CONNECT is refused."""
    CUT = "cut"
    """Its address connects far too fast: the socket is closed at once."""


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
        """Count a connection of a known user; refuse it above the limit."""
        joined = self._joined.setdefault(user, {})
        most = self._config.connections_per_user_max
        if most and client_id not in joined and len(joined) >= most:
            return False
        joined[client_id] = joined.get(client_id, 0) + 1
        return True

    def leave(self, user: str, client_id: str) -> None:
        """Remove a client that `join` counted."""
        joined = self._joined[user]
        joined[client_id] -= 1
        if not joined[client_id]:
            del joined[client_id]
            if not joined:
                del self._joined[user]

    def keep_alive_s(self, asked_s: int) -> int:
        """The keep-alive granted to a client that requested this one; 0 is none."""
        most = self._config.keep_alive_s_max
        return most if most and (asked_s == 0 or asked_s > most) else asked_s

    def retained_too_large(self, payload_bytes: int) -> bool:
        """Whether a payload is too large to be retained."""
        return 0 < self._config.retained_payload_bytes_max < payload_bytes

    def filter_refused(self, topic_filter: str) -> bool:
        """Whether this filter is refused to all clients; of a shared subscription the shared filter is checked."""
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
