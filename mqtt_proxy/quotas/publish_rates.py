"""Publish rates: messages and bytes per second of a client, a user, an address and the whole listener.

What was read is accepted, always; when it was more than a quota allows, the answer is how long to read nothing. TCP
then slows the publisher down: flow control without loss. One second's worth may come at once.

Invariant: in the long run no party publishes more than its quota (plus what `token_bucket` says of single messages).
Pure: time comes in as `now_ms`. Loop rule: one owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqtt_proxy.quota_config import QuotaConfig
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
