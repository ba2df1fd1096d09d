"""CPU per delayed message with a million pending over 24 hours: to schedule one, and to deliver one that is due.

    append      the same messages placed and appended for their topic at once, in batches: what any message costs
    schedule    placed among the waiting ones, for the time in their property, and appended; the difference to `append`
                is the timer's own part
    read        messages read from their queue and turned into bytes, in batches
    deliver     read, placed and appended again with the mark of its span; the difference to `append` and `read` is the
                timer's own part

The messages are as RocketMQ's producers send them, with a unique key and TIMER_DELIVER_MS. `loop` is the loop thread
alone, `all` every thread. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import random

import structlog

from benchmarks.stores import MIB, Meter, StoreBench, best_and_median, store_bench
from broker.delayed.delayed import GROUP_MAX, LATENESS_S, Delayed, DelayLimits
from broker.delayed.feature import Diversion
from broker.publishing.placement import Placement, QueueChoice
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics
from remoting.protocol.records.image import encode_image
from runtime.metrics import Histogram

DAY_MS = 86_400_000
BATCH = 128
ROUND = 32_768
START_MS = 1_700_000_100_000
BODY = bytes(100)


class BenchClock:
    """The time that the benchmark sets."""

    def __init__(self) -> None:
        self._now_ms = START_MS

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return 1_000_000 * self._now_ms

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment."""
        return 1_000_000 * self._now_ms


class Timers:
    """The waiting messages of one store, in time that the benchmark sets."""

    def __init__(self, bench: StoreBench) -> None:
        self.bench = bench
        self.store = store = bench.store
        topics = Topics(store, topics_max=100)
        filters = Filters(store, expiry_ms=0, filters_max=100, per_user_max=100, now_ms=0)
        dispatcher = Dispatcher(store, topics, filters, cached_topics_max=100, queue_count=4)
        choice = QueueChoice(
            topics, dispatcher, queue_count=4, auto_create=True, message_size_bytes_max=4 * MIB,
            properties_bytes_max=32_767,
        )  # fmt: skip
        lateness = Histogram("rocketmq_lateness", "", LATENESS_S)
        limits = DelayLimits(2 * DAY_MS, 10_000_000, 0, 100)
        self.delayed = Delayed(
            store, Placement(choice), set(), limits=limits, lateness=lateness, now_ms=START_MS,
            log=structlog.get_logger(),
        )  # fmt: skip
        self.placement = Placement(choice, Diversion(self.delayed, BenchClock()))
        self.queue = 0

    def append(self, batches: list[bytes], *, now: bool) -> None:
        """Append messages, for their topic at once or for the time they name."""
        for images in batches:
            placed = self.placement.placed(images, now)
            self.bench.store.append(placed)
            self.queue = placed.queues[0][0]
            self.bench.turn()

    def read(self, count: int) -> int:
        """Read so many messages in the order of their queue; their number."""
        reading, at = self.store.reading, 0
        while at < count:
            found = reading.read(self.queue, at, GROUP_MAX, MIB).records
            b"".join(found)
            at += len(found)
        return at

    def deliver(self, until_ms: int) -> int:
        """Deliver the messages due until then; their number."""
        before = self.delayed.counts.delivered
        while self.delayed.due(until_ms):
            self.bench.turn()
        return self.delayed.counts.delivered - before


def batches_of(dues: list[int]) -> list[bytes]:
    """Messages due at these times, in batches."""
    images = [
        encode_image(
            flags=0, born_ms=1, topic=b"orders", body=BODY,
            properties=[(b"UNIQ_KEY", b"7F" * 16), (b"TIMER_DELIVER_MS", b"%d" % due_ms)],
        )
        for due_ms in dues
    ]  # fmt: skip
    return [b"".join(images[at : at + BATCH]) for at in range(0, len(images), BATCH)]


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    draw = random.Random(1)
    meters = {name: Meter() for name in ("append", "schedule", "read", "deliver")}
    with store_bench(0, segment_size_bytes=256 * MIB, flush="async") as bench:
        timers = Timers(bench)
        for first in range(0, options.pending, ROUND):
            count = min(ROUND, options.pending - first)
            timers.append(batches_of([START_MS + draw.randrange(1, DAY_MS) for _ in range(count)]), now=False)
        bench.settle()
        for _ in range(options.rounds):
            batches = batches_of([START_MS + draw.randrange(1, DAY_MS) for _ in range(ROUND)])
            for name, now in (("schedule", False), ("append", True)):
                meters[name].start()
                timers.append(batches, now=now)
                meters[name].stop(ROUND)
        bench.settle()
        for number in range(options.rounds):
            meters["read"].start()
            meters["read"].stop(timers.read(ROUND // 4))
            meters["deliver"].start()
            count = timers.deliver(START_MS + (number + 1) * DAY_MS // 40)
            meters["deliver"].stop(count)
        print(f"{timers.delayed.waiting} wait; CPU us/message, best / median of {options.rounds} rounds")
    print(f"{'':10}{'loop':>16}{'all':>16}")
    for name, meter in meters.items():
        print(f"{name:10}{best_and_median(meter.loop_us):>16}{best_and_median(meter.process_us):>16}")


if __name__ == "__main__":
    main()
