"""Token buckets: how much of something may be used per second, and how long to wait when more was used.

A bucket fills with `per_s` tokens a second up to `burst`. `take` is for what can be refused: it takes when there is
enough. `charge` is for what has happened already: it may leave a debt, and says how long paying it back takes.

Invariants: over any time t no more than burst + per_s * t is taken, plus one overdraft of `charge` at a time; a debt is
at most `DEBT_S_MAX` seconds' worth, so nobody waits longer. Time that goes backwards gives nothing and takes nothing.
Pure: time comes in as `now_ms`. Loop rule: one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

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
        """Tokens there are; below zero is a debt."""
        passed_ms = now_ms - self._seen_ms
        if passed_ms > 0:
            self._seen_ms = now_ms
            self._level = min(self._burst, self._level + passed_ms * self._per_ms)
        return self._level

    def is_full(self, now_ms: int) -> bool:
        """Whether it is as a new one would be."""
        return self.level(now_ms) >= self._burst

    def take(self, amount: float, now_ms: int, floor: float = 0.0) -> bool:
        """Take `amount` if that leaves at least `floor`."""
        if self.level(now_ms) - amount < floor:
            return False
        self._level -= amount
        return True

    def charge(self, amount: float, now_ms: int) -> int:
        """Take `amount` whatever is there; milliseconds until the debt is paid, 0 without one."""
        level = max(self.level(now_ms) - amount, -DEBT_S_MAX * 1_000 * self._per_ms)
        self._level = level
        return 0 if level >= 0 else int(-level / self._per_ms) + 1


class BucketTable:
    """Buckets of one kind by who they belong to, bounded."""

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

    def _prune(self, needless: Callable[[TokenBucket], bool]) -> None:
        self._buckets = {party: bucket for party, bucket in self._buckets.items() if not needless(bucket)}
        while len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
