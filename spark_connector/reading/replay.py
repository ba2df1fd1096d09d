"""Replay of history at a multiple of its own speed, all queues in step, then live: the option `replaySpeed`.

A stream that begins in the past would take everything there is with its first batch, or with a limit one queue's hours
beside another one's minutes, and event-time windows would throw away what seems late. Here a clock runs through the
log's store times, `speed` times as fast as ours, and no batch reads beyond it; when it has caught up the stream is live
and stays so.

Invariants: only how far a batch goes is limited, so what is read and where the checkpoint goes on is as without it;
the clock begins at the oldest message not read yet, also after a restart. Thread rule: the driver-side process of the
query.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_connector.clock import Clock, wall_ms
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.lag import waiting_ms
from spark_connector.reading.offsets import Positions, total_behind
from spark_connector.reading.selection import Bounds

PAUSE_S = 0.05
"""Pause before the next look when no message is due; Spark itself would look 90 times a second."""


class Replay:
    """The clock of one query's run; `is_live` once there is nothing to hold back any more."""

    def __init__(self, speed: float, now_ms: Clock = wall_ms) -> None:
        self._speed = speed
        self._now_ms = now_ms
        self._began: tuple[int, int] | None = None
        """Our time and the log's when the replay began."""
        self._is_asked = False
        self.is_live = False

    def cap(
        self, begin: Positions, bounds: Mapping[QueueKey, Bounds], watch: BoundsWatch, options: ReadOptions
    ) -> Positions | None:
        """Return how far the next batch may go in every queue; None when live. Raises BrokerUnreachable.

        The first call lets nothing pass: Spark's first batch takes seconds to start, and the clock must not run by
        then.
        """
        if self.is_live:
            return None
        if not self._is_asked:
            self._is_asked = True
            return begin
        now_ms = self._now_ms()
        if self._began is None and not self._begin(begin, bounds, watch, options, now_ms):
            return None if self.is_live else begin
        reached_ms = self._reached_ms(now_ms)
        if reached_ms >= now_ms:
            self.is_live = True
            return None
        return {
            key: queue.max if queue.at is None else min(queue.at, queue.max)
            for key, queue in watch.read(at_ms=reached_ms).items()
        }

    def _begin(
        self,
        begin: Positions,
        bounds: Mapping[QueueKey, Bounds],
        watch: BoundsWatch,
        options: ReadOptions,
        now_ms: int,
    ) -> bool:
        """Start the clock at the oldest message not read; False when there is none, or no broker told its time."""
        waits = waiting_ms(begin, bounds, watch.addresses, options, now_ms)
        if waits:
            self._began = (now_ms, now_ms - max(waits.values()))
            return True
        self.is_live = not total_behind(begin, {key: queue.max for key, queue in bounds.items()}, bounds)
        return False

    def _reached_ms(self, now_ms: int) -> int:
        assert self._began is not None, "asked only once the clock runs"
        ours, theirs = self._began
        return theirs + int((now_ms - ours) * self._speed)
