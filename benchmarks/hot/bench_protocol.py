"""CPU per call of the protocol's hot functions, 100-byte payload: `python -m benchmarks.hot.bench_protocol`.

Prints the best of several rounds in µs of process time, beside two yardsticks of the same machine (a dict look-up, a
CRC of 300 bytes), because only ratios travel between machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remoting.native.checksum import crc32c
from remoting.protocol.frames import frame
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image, names, record, topics

ROUNDS = 7
PAYLOAD = bytes(100)
TOPIC = b"plant/7/line/3/temp"
CLIENT = b"device-000123"
BATCH = 64


def cpu_us(run: Callable[[], object], calls: int, each: int = 1) -> float:
    """Return the best CPU time of one of `each` units of work of `run`, in µs."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            run()
        best = min(best, time.process_time() - start)
    return best / calls / each * 1e6


def _message() -> bytes:
    (found,) = image.image_views(image.encode_mqtt_image(TOPIC, PAYLOAD, 1, 1, CLIENT))
    return _record(found)


def _record(found: record.RecordView) -> bytes:
    return image.stamp(found, epoch=1, position=0, store_ms=2, dispatch=((1, 10), (2, 20), (3, 30)))


def rows() -> list[tuple[str, float]]:
    """Return (what, µs CPU per message) of every hot function."""
    one = image.encode_mqtt_image(TOPIC, PAYLOAD, 1, 1, CLIENT)
    fresh = iter([b"%d/temp" % number for number in range(2_000_000)])
    body = one * BATCH
    decoded = image.image_views(body)[0]
    raw = memoryview(_message() * BATCH)
    trie: topics.FilterTrie[int] = topics.FilterTrie()
    for number in range(1000):
        trie.add(f"plant/{number}/+/#", number)
    command = Command(9001, 7, fields={"broker": "a"}, body=body)
    framed = frame.encode_frame(command)
    head = frame.encode_header(command)
    table = {TOPIC: 1}
    return [
        ("yardstick: dict look-up", cpu_us(lambda: table[TOPIC], 50_000)),
        ("yardstick: crc32c of 300 bytes", cpu_us(lambda: crc32c(raw[:300]), 20_000)),
        (
            "encode_mqtt_image, topic seen",
            cpu_us(lambda: image.encode_mqtt_image(TOPIC, PAYLOAD, 1, 1, CLIENT), 20_000),
        ),
        (
            "encode_mqtt_image, topic new",
            cpu_us(lambda: image.encode_mqtt_image(next(fresh), PAYLOAD, 1, 1, CLIENT), 20_000),
        ),
        (f"image_views, {BATCH} a body", cpu_us(lambda: image.image_views(body), 500, BATCH)),
        (
            "image_views, 1 a body",
            cpu_us(lambda: image.image_views(one), 20_000),
        ),
        ("stamp, 3 queues", cpu_us(lambda: _record(decoded), 20_000)),
        ("check_record", cpu_us(lambda: record.check_record(raw, 0, 0), 20_000)),
        ("publish_fields", cpu_us(lambda: record.publish_fields(raw, 0), 20_000)),
        (f"iter_records, {BATCH} a blob", cpu_us(lambda: [None for _ in record.iter_records(raw)], 500, BATCH)),
        ("light_queue_name", cpu_us(lambda: names.light_queue_name(TOPIC), 20_000)),
        ("parent_topic", cpu_us(lambda: names.parent_topic(TOPIC), 20_000)),
        ("FilterTrie.match, 1,000 filters", cpu_us(lambda: trie.match(TOPIC), 20_000)),
        ("encode_header", cpu_us(lambda: frame.encode_header(command), 20_000)),
        ("decode_header", cpu_us(lambda: frame.decode_header(0, head), 20_000)),
        ("encode_frame, 16 KB body", cpu_us(lambda: frame.encode_frame(command), 10_000)),
        ("FrameDecoder.feed, 16 KB body", cpu_us(lambda: frame.FrameDecoder().feed(framed), 10_000)),
    ]


def main() -> None:
    """Print the table."""
    for what, us in rows():
        print(f"{what:40s} {us:8.3f} µs")


if __name__ == "__main__":
    main()
