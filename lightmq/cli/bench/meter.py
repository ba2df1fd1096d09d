"""What a load came to: rates, latencies by percentile, losses and repeats.

Every message begins with a mark: the run's number, the message's number in it and the time it was sent, by the same
clock that takes the times of arrival. Invariant: a message is lost only if it was acknowledged and did not arrive, and
repeated if it arrived again. Counting is for one thread; meters of several threads are added up.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from remoting import clock

MARK = struct.Struct("<QQQ")
"""Number of the run, number of the message, ns of the monotonic clock."""
BODY_BYTES_MIN = MARK.size
STEPS = 32
"""Buckets of each power of two: a latency is known to about 3 %."""
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


class Latencies:
    """Times in µs in buckets of equal relative width, so that their number does not grow with the load."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """How many were taken."""
        return self._buckets.total()

    def add(self, ns: int) -> None:
        """Count a time in ns in its bucket."""
        us = max(1, ns // 1_000)
        shift = max(0, us.bit_length() - STEPS.bit_length())
        self._buckets[(shift << 8) | us >> shift] += 1

    def merge(self, other: Latencies) -> None:
        """Take those of another one."""
        self._buckets += other._buckets

    def percentiles(self) -> dict[str, float]:
        """Upper bounds in ms by name; empty without a time."""
        total, found, seen = self.count, dict[str, float](), 0
        wanted = list(PERCENTILES)
        for bucket in sorted(self._buckets, key=_us):
            seen += self._buckets[bucket]
            while wanted and seen >= max(1, wanted[0][1] * total):
                found[wanted.pop(0)[0]] = round(_us(bucket) / 1_000, 3)
        return found


def _us(bucket: int) -> int:
    return (bucket & 0xFF) << (bucket >> 8)


class LoadReceiver:
    """What one subscriber has got of a run."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._seen = bytearray()
        self.received = 0
        self.repeated = 0
        self.latencies = Latencies()

    def take(self, body: bytes) -> None:
        """Count a message; those of other runs are none of this one's."""
        now_ns = clock.monotonic_ns()
        if len(body) < MARK.size:
            return
        run, number, sent_ns = MARK.unpack_from(body)
        if run != self._run:
            return
        if number >= len(self._seen):
            self._seen.extend(bytes(number + 1 - len(self._seen) + 65_536))
        if self._seen[number]:
            self.repeated += 1
            return
        self._seen[number] = 1
        self.received += 1
        self.latencies.add(now_ns - sent_ns)


class LoadSender:
    """What became of one publisher's messages."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        self.latencies = Latencies()

    @property
    def open(self) -> int:
        """Messages the server has not decided about."""
        return self.sent - self.acknowledged - self.refused.total()

    def decided(self, sent_ns: int, refusal: str = "") -> None:
        """Count the server's answer to a message; `refusal`: why it did not take it."""
        if refusal:
            self.refused[refusal] += 1
            return
        self.acknowledged += 1
        self.latencies.add(clock.monotonic_ns() - sent_ns)


def body(run: int, number: int, size_bytes: int) -> bytes:
    """A message, marked with this moment."""
    return MARK.pack(run, number, clock.monotonic_ns()).ljust(size_bytes, b"\0")


def report(senders: list[LoadSender], receivers: list[LoadReceiver], seconds: float, size_bytes: int) -> dict[str, Any]:
    """The figures, as `--json` prints them; latencies in ms."""
    acknowledgement, arrival, refused = Latencies(), Latencies(), Counter[str]()
    for sender in senders:
        acknowledgement.merge(sender.latencies)
        refused += sender.refused
    for receiver in receivers:
        arrival.merge(receiver.latencies)
    acknowledged = sum(sender.acknowledged for sender in senders)
    received = sum(receiver.received for receiver in receivers)
    expected = acknowledged * len(receivers)
    return {
        "seconds": round(seconds, 3),
        "publishers": len(senders),
        "subscribers": len(receivers),
        "message_bytes": size_bytes,
        "sent": sum(sender.sent for sender in senders),
        "acknowledged": acknowledged,
        "refused": refused.total(),
        "reasons": dict(refused),
        "unanswered": sum(sender.open for sender in senders),
        "published_per_s": round(acknowledged / seconds, 1) if seconds else 0.0,
        "expected": expected,
        "received": received,
        "received_per_s": round(received / seconds, 1) if seconds else 0.0,
        "lost": max(0, expected - received),
        "repeated": sum(receiver.repeated for receiver in receivers),
        "acknowledged_ms": acknowledgement.percentiles(),
        "received_ms": arrival.percentiles(),
    }
