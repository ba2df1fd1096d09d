"""Batch records: what the producer, the store and the Spark connector pay for a message of one, on one core.

JSON telemetry of about 131 bytes with a key, a tag and the time, 1024 messages to a batch. `encode`: columns to a body;
`append`: `LogStore.append` of ready bodies with dispatch into two queues, one record per call, all threads counted;
`read`: a range read of the store, checksum, unpacking, full validation and the columns of the connector's schema, all
16 of them and the 6 that the messages have. The best of the rounds; B/msg is what the log grew by.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from benchmarks.gather_read import SCHEMA
from benchmarks.stores import MIB, Meter, StoreBench, store_bench
from broker.store.placed import Placed
from remoting.batches import BatchRow, body
from remoting.protocol.bodies.pull_body import PulledRange
from remoting.protocol.records.image import encode_batch_image
from spark_connector.columns.batches import decode_range
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.writing.row_encoder import CODECS

SIX = pa.schema([SCHEMA.field(name) for name in ("topic", "queueOffset", "key", "tag", "body", "bornTimestamp")])
KEY = QueueKey("metrics", "broker-a", 0)
TOPIC = b"metrics"
ROUNDS = 7
BODIES = 64
PULL_BYTES = 8 * MIB


def rows(count: int, seed: int) -> list[BatchRow]:
    """Telemetry of a thousand sensors."""
    chance = random.Random(seed)
    found = []
    for n in range(count):
        reading = {
            "device": f"sensor-{chance.randrange(1_000):04d}", "ts": 1_760_000_000_000 + n * 10, "state": "running",
            "celsius": round(chance.gauss(21, 3), 2), "rpm": chance.randrange(800, 3_000),
            "vibration": round(chance.random(), 4), "line": chance.randrange(8),
        }  # fmt: skip
        key = str(reading["device"]).encode()
        found.append(BatchRow(json.dumps(reading).encode(), 1_760_000_000_000 + n * 10, key, b"telemetry"))
    return found


def best_ns(run: Callable[[], object], count: int) -> float:
    """CPU nanoseconds per message, the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        run()
        best = min(best, (time.process_time_ns() - begun) / count)
    return best


def encode_ns(batches: list[pa.RecordBatch], codec: int) -> float:
    """CPU nanoseconds per message of making bodies."""
    return best_ns(lambda: [body.encode(one, codec) for one in batches], sum(one.num_rows for one in batches))


def append_ns(bench: StoreBench, bodies: list[bytes], codec: int, count: int, records: int) -> float:
    """CPU nanoseconds per message of appending ready bodies, all threads."""
    meter = Meter()
    for _ in range(ROUNDS):
        groups = [
            [
                Placed(
                    encode_batch_image(
                        topic=TOPIC, queue_index=0, born_ms=n, body=bodies[n % BODIES], count=count, codec=codec
                    ),
                    [(0, 1)],
                    count,
                )
            ]
            for n in range(records)
        ]
        meter.start()
        for group in groups:
            bench.store.append(*group)
            bench.turn()
        meter.stop(records * count)
        bench.settle()
    return min(meter.process_us) * 1_000


def read_all(bench: StoreBench, end: int, schema: pa.Schema) -> int:
    """Read the queue from its beginning, as a task does, and return the rows."""
    at = found = 0
    wanted = QueueRange(KEY, 0, 0, end)
    while at < end:
        answer = bench.store.reading.read_range(0, at, 1_000_000, PULL_BYTES, end)
        pulled = PulledRange(
            answer.status, answer.first_offset, answer.next_offset, answer.min_offset, answer.max_offset,
            len(answer.starts), answer.starts.data.cast("B"), memoryview(answer.blob),
        )  # fmt: skip
        found += sum(batch.num_rows for batch in decode_range(pulled, wanted, schema, None))
        at = answer.next_offset
    assert found == end, (found, end)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[128, 1_024, 8_192], help="messages in a batch")
    parser.add_argument("--messages", type=int, default=524_288, help="per round")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    print("rows/batch codec  encode ns  append ns  append M/s  read6 ns  read6 M/s  read16 ns  read16 M/s  B/msg")
    for count in options.rows:
        made = [body.from_rows(rows(count, seed)) for seed in range(BODIES)]
        records = max(1, options.messages // count)
        for name, codec in CODECS.items():
            bodies = [body.encode(one, codec) for one in made]
            encode = encode_ns(made, codec)
            with store_bench(2, segment_size_bytes=512 * MIB) as bench:
                begin = bench.store.end_position
                append = append_ns(bench, bodies, codec, count, records)
                size = (bench.store.end_position - begin) / (ROUNDS * records * count)
                end = records * count
                six = best_ns(partial(read_all, bench, end, SIX), end)
                full = best_ns(partial(read_all, bench, end, SCHEMA), end)
            print(
                f"{count:>10} {name:<5}{encode:>11.0f}{append:>11.1f}{1e3 / append:>12.1f}"
                f"{six:>10.0f}{1e3 / six:>11.1f}{full:>11.0f}{1e3 / full:>12.1f}{size:>7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
