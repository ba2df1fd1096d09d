"""CPU per delayed message with a million pending over 24 hours: to schedule one, and to deliver one that is due.

    append      the same messages appended for their topic at once, in batches: what any message costs
    schedule    put among the waiting ones and appended; the difference to `append` is what waiting costs
    deliver     read, placed and appended again with the mark of its span, over the last spans of time

`loop` is the loop thread alone, `all` every thread. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import random

import structlog

from benchmarks.stores import MIB, Meter, StoreBench, best_and_median, store_bench
from broker.delayed.delayed import LATENESS_S, Delayed, DelayLimits
from broker.publishing.placement import Placement, QueueChoice
from broker.store.placed import Placed
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import RecordView
from runtime.metrics import Histogram

DAY_MS = 86_400_000
BATCH = 128
ROUND = 32_768
START_MS = 1_700_000_100_000
BODY = bytes(100)


class Timers:
    """The waiting messages of one store, in time that the benchmark sets."""

    def __init__(self, bench: StoreBench) -> None:
        self.bench = bench
        store = bench.store
        topics = Topics(store, topics_max=100)
        filters = Filters(store, expiry_ms=0, filters_max=100, now_ms=0)
        dispatcher = Dispatcher(store, topics, filters, cached_topics_max=100, queue_count=4)
        choice = QueueChoice(
            topics, dispatcher, queue_count=4, auto_create=True, message_size_bytes_max=4 * MIB,
            properties_bytes_max=32_767,
        )  # fmt: skip
        self.placement = Placement(choice)
        lateness = Histogram("rocketmq_lateness", "", LATENESS_S)
        limits = DelayLimits(2 * DAY_MS, 10_000_000, 0, 100)
        log = structlog.get_logger()
        self.delayed = Delayed(store, self.placement, set(), limits=limits, lateness=lateness, now_ms=START_MS, log=log)

    def append(self, images: list[bytes]) -> None:
        """Append messages for now, in batches."""
        for at in range(0, len(images), BATCH):
            self.bench.store.append(self.placement.placed(b"".join(images[at : at + BATCH]), now=True))
            self.bench.turn()

    def schedule(self, images: list[bytes], dues: list[int]) -> None:
        """Put messages among the waiting ones, in batches."""
        for at in range(0, len(images), BATCH):
            waiting, queues = [], []
            for image, due_ms in zip(images[at : at + BATCH], dues[at : at + BATCH], strict=True):
                put = self.delayed.put(RecordView(image), due_ms, START_MS)
                assert put is not None, "it is due later"
                waiting.append(put[0])
                queues.append(put[1])
            self.bench.store.append(Placed(b"".join(waiting), queues))
            self.bench.turn()

    def deliver(self, until_ms: int) -> int:
        """Deliver the messages due until then; their number."""
        before = self.delayed.counts.delivered
        while self.delayed.due(until_ms):
            self.bench.turn()
        return self.delayed.counts.delivered - before


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    draw = random.Random(1)
    image = encode_image(flags=0, born_ms=1, topic=b"orders", properties=[(b"UNIQ_KEY", b"7F" * 16)], body=BODY)
    images = [image] * ROUND
    meters = {name: Meter() for name in ("append", "schedule", "deliver")}
    with store_bench(0, segment_size_bytes=256 * MIB, flush="async") as bench:
        timers = Timers(bench)
        for first in range(0, options.pending, ROUND):
            count = min(ROUND, options.pending - first)
            timers.schedule(images[:count], [START_MS + draw.randrange(1, DAY_MS) for _ in range(count)])
        bench.settle()
        for _ in range(options.rounds):
            dues = [START_MS + draw.randrange(1, DAY_MS) for _ in range(ROUND)]
            meters["append"].start()
            timers.append(images)
            meters["append"].stop(ROUND)
            meters["schedule"].start()
            timers.schedule(images, dues)
            meters["schedule"].stop(ROUND)
        bench.settle()
        for number in range(options.rounds):
            meters["deliver"].start()
            count = timers.deliver(START_MS + (number + 1) * DAY_MS // 40)
            meters["deliver"].stop(count)
        print(f"{timers.delayed.waiting} wait; CPU us/message, best / median of {options.rounds} rounds")
    print(f"{'':10}{'loop':>16}{'all':>16}")
    for name, meter in meters.items():
        print(f"{name:10}{best_and_median(meter.loop_us):>16}{best_and_median(meter.process_us):>16}")


if __name__ == "__main__":
    main()
