"""What the option `decode` costs per row in a task, by format, and what birth certificates cost at a real broker.

One batch of `--rows` bodies with four fields (device, celsius, n, ok), as JSON also with a few bodies that do not fit
and with a map; Sparkplug with 1 to 20 metrics by alias. Beside them `json.loads` per body, which a UDF cannot beat. CPU
of one core, best of five. Then `--nodes` Sparkplug nodes with a device each: the first contact and a later check.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2

from remoting.client.blocking import BlockingConnection
from remoting.protocol.addresses import split_address
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.brokers import masters_at
from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.avro import AvroDecoder, plan_avro
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json.bodies import JsonDecoder
from spark_connector.decode.protobuf import ProtobufDecoder, find_message, struct_of
from spark_connector.decode.sparkplug.bodies import SparkplugDecoder
from spark_connector.decode.sparkplug.payload import (
    Births,
    Certificate,
    Need,
    payload_class,
    plan_sparkplug,
    read_certificate,
)
from spark_connector.options.read_write import parse_read
from spark_connector.queues import QueueKey

ROUNDS = 5
KEY = QueueKey("t", "b", 0)
COLUMNS = "device string, celsius double, n bigint, ok boolean"
AVRO = json.dumps({
    "type": "record", "name": "Reading", "fields": [
        {"name": "device", "type": "string"}, {"name": "celsius", "type": "double"}, {"name": "n", "type": "long"},
        {"name": "ok", "type": "boolean"},
    ],
})  # fmt: skip


def value(n: int) -> dict[str, Any]:
    """One reading."""
    return {"device": f"sensor-{n % 10}", "celsius": n % 40 + 0.5, "n": n, "ok": True}


def best_us(run: Callable[[], object], rows: int) -> float:
    """CPU microseconds per row, the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        run()
        best = min(best, (time.process_time_ns() - begun) / rows / 1000)
    return best


def measure_json(rows: int) -> None:
    """Bodies that fit, that do not, and with a map."""
    bodies = [json.dumps(value(n)).encode() for n in range(rows)]
    decoder = JsonDecoder(arrow_schema(parse_columns(COLUMNS)))
    for name, every in (("all bodies fit", 0), ("1 in 100 does not", 100), ("1 in 10 does not", 10)):
        some = pa.array([b'{"celsius":"warm"}' if every and not n % every else b for n, b in enumerate(bodies)])
        show(f"json, {name}", best_us(partial(decoder.decode, some), rows))
    with_map = JsonDecoder(arrow_schema(parse_columns(COLUMNS + ", more map<string,string>")))
    show("json, a column is a map", best_us(lambda: with_map.decode(pa.array(bodies)), rows))
    show("(json.loads alone)", best_us(lambda: [json.loads(body) for body in bodies], rows))


def measure_avro(rows: int) -> None:
    """Bare records."""
    parsed = fastavro.parse_schema(json.loads(AVRO))
    bodies = []
    for n in range(rows):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, value(n))
        bodies.append(stream.getvalue())
    fields, text = plan_avro(AVRO)
    decoder = AvroDecoder(arrow_schema(fields), text)
    show("avro", best_us(lambda: decoder.decode(pa.array(bodies)), rows))


def measure_protobuf(rows: int) -> None:
    """The same four fields as a message."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="b", syntax="proto3")
    message = file.message_type.add(name="Reading")
    for number, (name, kind) in enumerate((("device", 9), ("celsius", 1), ("n", 3), ("ok", 8)), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    raw = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    reading = find_message(raw, "b.Reading")
    bodies = [reading(**value(n)).SerializeToString() for n in range(rows)]
    decoder = ProtobufDecoder(arrow_schema(struct_of(reading.DESCRIPTOR, ())), (raw, "b.Reading"))
    show("protobuf", best_us(lambda: decoder.decode(pa.array(bodies)), rows))


def sparkplug_body(metrics: int, *, is_birth: bool) -> bytes:
    """A birth or a data message by aliases."""
    made = payload_class()(timestamp=1_769_853_600_000, seq=0)
    for number in range(metrics):
        if is_birth:
            made.metrics.add(name=f"metric {number}", alias=number, datatype=10, double_value=0)
        else:
            made.metrics.add(alias=number, timestamp=1_769_853_600_000, double_value=1.5)
    found: bytes = made.SerializeToString()
    return found


class KnownBirths(Births):
    """A log whose births are known."""

    def __init__(self) -> None:
        self._birth = read_certificate(-1, sparkplug_body(20, is_birth=True))

    def prepare(self, *_: object) -> None:
        """There is no broker."""

    def at(self, *_: object) -> Certificate:
        """The one birth."""
        return self._birth


def measure_sparkplug(rows: int) -> None:
    """Metrics by alias, births known."""
    schema = arrow_schema(plan_sparkplug()[0])
    decoder = SparkplugDecoder(schema, KnownBirths())
    for metrics in (1, 5, 20):
        count = rows // metrics
        bodies = pa.array([sparkplug_body(metrics, is_birth=False)] * count)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(["spBv1.0/g/NDATA/n"] * count),
                pa.array(range(count)),
                pa.array([1000] * count, pa.timestamp("us", "UTC")),
            ],
            names=["mqttTopic", "_position", "storeTimestamp"],
        )
        cost = best_us(partial(decoder.decode, bodies, batch, KEY), count)
        show(f"sparkplug, {metrics} metrics by alias", cost, f"{cost / metrics:6.2f} a metric")


def measure_births(nodes: int) -> None:
    """First contact with the certificates of many nodes and devices, and a check for new ones, at `lightmq up`."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", data]
        command += ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            address = f"127.0.0.1:{json.loads(server.stdout.readline())['remoting']}"
            try:
                _ask_births(address, nodes)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(20)


def _ask_births(address: str, nodes: int) -> None:
    topics = [f"spBv1.0/g/{kind}" for n in range(nodes) for kind in (f"NBIRTH/n{n}", f"DBIRTH/n{n}/d")]
    body = sparkplug_body(20, is_birth=True)
    entries = [image.encode_mqtt_image(topic.encode(), body, 0, 0, b"x") for topic in topics]
    with BlockingConnection.dial(address) as connection:
        for begin in range(0, len(entries), 500):
            part = b"".join(entries[begin : begin + 500])
            assert connection.request(Command(RequestCode.APPEND_MANY, body=part)).code == 0
    options = parse_read({"mqttFilter": "#", "nameServer": address})
    births = Births(options, masters_at({"b": ("b", split_address(address))}, options))
    now_ms = time.time_ns() // 1_000_000
    for name, high in (("first contact", 1 << 40), ("a check for new ones", 1 << 41)):
        wall, begun = time.perf_counter(), time.process_time()
        births.prepare("b", {topic: Need(1 << 39, high, now_ms + 1000) for topic in topics})
        wall, cpu = time.perf_counter() - wall, time.process_time() - begun
        assert all(births.at("b", topic, high) for topic in topics)
        cost = f"{cpu / len(topics) * 1e6:6.1f} µs CPU each, {wall * 1000:.0f} ms in all"
        print(f"  {len(topics)} birth certificates, {name:<16} {cost}")


def show(name: str, cost_us: float, more: str = "") -> None:
    """One line."""
    print(f"  {name:<36} {cost_us:7.2f} µs a row   {more}")


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--nodes", type=int, default=1_000)
    arguments = parser.parse_args()
    for measure in (measure_json, measure_avro, measure_protobuf, measure_sparkplug):
        measure(arguments.rows)
    measure_births(arguments.nodes)


if __name__ == "__main__":
    main()
