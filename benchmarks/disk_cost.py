"""What a message costs on disk, by part: the record in the log (and what its bytes are), queue index, key index.

A `lightmq up` for each kind of message takes `--messages` of them with bodies of 100 bytes and is stopped. Counted are
the records of its log by what their bytes are, index runs, key runs, and what is allocated in all: log files are zeroed
ahead, and the newest index entries are in a tail of fixed size. Kinds: a device's publish, a RocketMQ client's message
(key, tag, unique key and a property, as its Java client writes them), rows of a Spark sink at least once and exactly
once (the staged copy lies in the log until retention takes it), and a batch topic.
"""

from __future__ import annotations

import argparse
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from benchmarks.spark_read import check, lightmq_ports
from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.sink_body import CommitBatch, StageHandle, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from remoting.protocol.records.record import BATCH, DISPATCH_SIZE, HEADER_SIZE, MESSAGE
from remoting.protocol.records.rocketmq_form import BatchMessage, encode_batch
from spark_connector.writing.row_encoder import encode_batches

BODY = b"x" * 100
TOPIC = "disk"
DEVICES = 1_000
A_REQUEST = 1_024
BATCH_ROWS = 4_096
SINK = "disk-sink"
IN_FLIGHT_MAX = 4
PARTS = ("head", "queues", "names", "properties", "body", "padding", "state", "index", "keys", "allocated")
"""Columns; the last three are not in the log."""


def device(first: int, count: int) -> list[bytes]:
    """Publishes of devices with a topic of their own."""
    return [
        image.encode_mqtt_image(b"disk/%d/temp" % (number % DEVICES), BODY, 1, 0, b"disk")
        for number in range(first, first + count)
    ]


def publishes(messages: int) -> Iterable[Command]:
    """The same as a proxy sends them."""
    for first in range(0, messages, A_REQUEST):
        yield Command(RequestCode.APPEND_MANY, body=b"".join(device(first, A_REQUEST)))


def rocketmq(messages: int) -> Iterable[Command]:
    """Batches of a Java client."""
    fields = {"a": "disk", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "",
              "j": "0", "k": "false", "l": "0", "m": "true"}  # fmt: skip
    for first in range(0, messages, A_REQUEST):
        batch = [
            BatchMessage(BODY, [
                (b"KEYS", b"key-%d" % number), (b"UNIQ_KEY", b"7F00000100002A139A55%012X" % number),
                (b"WAIT", b"true"), (b"TAGS", b"tag"), (b"device", b"d%d" % (number % DEVICES)),
            ])
            for number in range(first, first + A_REQUEST)
        ]  # fmt: skip
        yield Command(RequestCode.SEND_BATCH_MESSAGE, fields=fields, body=encode_batch(batch))


def staged(messages: int) -> Iterable[Command]:
    """Rows of a Spark sink, exactly once: staged, then committed."""
    fields = {"sink": SINK, "batch": "0", "partition": "0", "attempt": "0"}
    for first in range(0, messages, A_REQUEST):
        entries = b"".join(device(first, A_REQUEST))
        yield Command(RequestCode.STAGE, fields=dict(fields), body=entries)
    commit = CommitBatch(SINK, 0, [StageHandle(0, 0, messages)])
    yield Command(RequestCode.COMMIT_BATCH, body=encode(commit))


def batches(messages: int) -> Iterable[Command]:
    """A batch topic: a compressed record for so many messages."""
    yield Command(
        RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields(TOPIC, 4, attributes={"queue.type": "BatchCQ"})
    )
    columns = {"body": pa.array([BODY] * BATCH_ROWS), "key": pa.array([f"d{n % DEVICES}" for n in range(BATCH_ROWS)])}
    raw = bytes(encode_batches(columns, TOPIC, "lz4", BATCH_ROWS, 0).data)
    for _ in range(max(1, messages // BATCH_ROWS)):
        yield Command(RequestCode.APPEND_MANY, body=b"".join([raw]))


KINDS: dict[str, Callable[[int], Iterable[Command]]] = {
    "device's publish": publishes,
    "RocketMQ client, with keys": rocketmq,
    "Spark sink, at least once": publishes,
    "Spark sink, exactly once": staged,
    "batch topic, lz4": batches,
}


def send(server: str, commands: Iterable[Command]) -> None:
    """Send all of them, a few in flight at once."""
    with BlockingConnection.dial(server, 60_000) as connection:
        for command in commands:
            while command.code == RequestCode.COMMIT_BATCH and connection.in_flight:
                check(connection.receive())
            connection.send(command)
            while connection.in_flight > IN_FLIGHT_MAX:
                check(connection.receive())
        while connection.in_flight:
            check(connection.receive())


def log_parts(data: Path) -> Counter[str]:
    """Bytes of all records in the log by what they are; records of durable state (control) in one sum."""
    parts: Counter[str] = Counter()
    for path in sorted((data / "broker" / "log").iterdir()):
        log, at = path.read_bytes(), 0
        while at + HEADER_SIZE <= len(log):
            total, magic = struct.unpack_from("<II", log, at)
            if not total:
                break
            body, queues, names, properties = _inside(log, at)
            if magic in {MESSAGE, BATCH}:
                parts.update(head=HEADER_SIZE, queues=queues, names=names, properties=properties, body=body)
                parts["padding"] += total - HEADER_SIZE - queues - names - properties - body
            else:
                parts["state"] += total
            at += total
    return parts


def _inside(log: bytes, at: int) -> tuple[int, int, int, int]:
    """(body, queues, names, properties) of the record there, in bytes."""
    (body,) = struct.unpack_from("<I", log, at + 40)
    n_dispatch, n_props, topic, keys, tags, properties = struct.unpack_from("<6H", log, at + 56)
    return body, DISPATCH_SIZE * n_dispatch, topic + keys + tags, 4 * n_props + properties


def sizes(data: Path) -> Counter[str]:
    """Bytes by part of a broker's directory."""
    found, broker = log_parts(data), data / "broker"
    found["index"] = sum(path.stat().st_size for path in (broker / "index").glob("run-*"))
    found["keys"] = sum(path.stat().st_size for path in (broker / "keys").glob("run-*"))
    found["allocated"] = sum(path.stat().st_blocks * 512 for path in data.rglob("*") if path.is_file())
    return found


def main() -> None:
    """Print one line per kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks disk", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=400_000)
    messages = parser.parse_args().messages // BATCH_ROWS * BATCH_ROWS
    print(f"{'bytes a message of 100 bytes':<30}{'log':>7}" + "".join(f"{part:>11}" for part in PARTS))
    for name, commands in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
            with lightmq_ports(Path(folder)) as (ports, _pid):
                send(f"127.0.0.1:{ports['remoting']}", commands(messages))
            found = sizes(Path(folder))
        log = sum(found[part] for part in PARTS[:-3])
        print(f"{name:<30}{log / messages:>7.1f}" + "".join(f"{found[part] / messages:>11.1f}" for part in PARTS))


if __name__ == "__main__":
    main()
