"""Rows per second of turning pulled records into Arrow: the connector's decode, all columns, on both twins.

Bodies of 100 B and 1 KB, one pull of `--rows` records as a broker sends them; the properties map is a column like the
others. The compiled twin is measured with and without its checksum pass. CPU of one core, best of five.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import pyarrow as pa

from remoting.protocol.bodies import pull_body
from remoting.protocol.records.record import FLAG_MQTT, MESSAGE, encode_record
from spark_connector.columns import arrow, layout
from spark_connector.queues import QueueKey

TEXT = pa.string()
SCHEMA = pa.schema([
    ("topic", TEXT), ("mqttTopic", TEXT), ("queueId", pa.int32()), ("queueOffset", pa.int64()), ("broker", TEXT),
    ("key", TEXT), ("tag", TEXT), ("body", pa.binary()), ("bornTimestamp", pa.timestamp("us", tz="UTC")),
    ("storeTimestamp", pa.timestamp("us", tz="UTC")), ("clientId", TEXT), ("qos", pa.int32()), ("retained", pa.bool_()),
    ("contentType", TEXT), ("properties", pa.map_(TEXT, TEXT)), ("traceparent", TEXT),
])  # fmt: skip
EIGHT = pa.schema([
    SCHEMA.field(name) for name in (
        "topic", "queueOffset", "bornTimestamp", "storeTimestamp", "body", "key", "tag", "properties",
    )
])  # fmt: skip
KEY = QueueKey("plant", "broker-a", 0)
ROUNDS = 5


def pulled(rows: int, body: int) -> pull_body.PulledRange:
    """One pull of MQTT records in three queues each."""
    records, position = [], 0
    for n in range(rows):
        topic = b"plant/line/%d/machine" % (n % 64)
        props = b"originMqttTopic" + topic + b"clientIddevice"
        lengths = b"".join(size.to_bytes(2, "little") for size in (15, len(topic), 8, 6))
        records.append(
            encode_record(
                magic_type=MESSAGE, epoch=1, position=position, born_ms=n, store_ms=n, flags=FLAG_MQTT | 1, count=1,
                dispatch=[(0, n), (4 + n % 100, n), (200 + n, n)], counts=(2, 5, 0, 0, len(props)), tag_hash=0,
                producer_seq=0, meta=lengths + b"plant" + props, body=bytes(body),
            )
        )  # fmt: skip
        position += len(records[-1])
    result = pull_body.QueueRecords(0, 0, 0, rows, 0, rows, records)
    return pull_body.decode_range_pull_reply(pull_body.encode_range_pull_reply(result))


def best_ns(run: Callable[[], object], rows: int) -> float:
    """CPU nanoseconds per row, the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        run()
        best = min(best, (time.process_time_ns() - begun) / rows)
    return best


def variants(rows: pull_body.PulledRange, schema: pa.Schema) -> dict[str, float]:
    """CPU ns per row of each twin."""
    core, found = layout.core, {}

    def run() -> None:
        for _ in arrow.decode(rows, KEY, schema):
            pass

    if core is not None:
        found["compiled, CRC"] = best_ns(run, rows.count)
        sound = layout.are_sound
        layout.are_sound = lambda records: core.first_bad(records.data, records.starts, False) < 0
        found["compiled, no CRC"] = best_ns(run, rows.count)
        layout.are_sound = sound
    layout.core = None
    found["pure, CRC"] = best_ns(run, rows.count)
    layout.core = core
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65_536)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    print("body  columns  twin               ns/row   M rows/s   GB/s of bodies")
    for body in (100, 1024):
        rows = pulled(options.rows, body)
        for name, schema in (("16", SCHEMA), ("8", EIGHT)):
            for twin, cost in variants(rows, schema).items():
                print(
                    f"{body:>4}  {name:>7}  {twin:<17}{cost:>8.0f}{1e3 / cost:>11.2f}{body / cost:>17.2f}", flush=True
                )


if __name__ == "__main__":
    main()
