"""Latency of a Spark query at one message per millisecond: publish → row in a sink, publish → Spark → device; idle CPU.

A real `lightmq up`, a device that publishes over MQTT (QoS 1) from this process, a driver process per configuration:
`tuned` is `lightmq.spark.session()`, `stock` a default session of PySpark. Ages are measured in the sink's task
(`sink`), or where a subscriber gets the answer that the connector's own sink wrote (`reply`). The first seconds
(workers start, the JVM warms up) are discarded. CPU is that of the driver's whole tree, read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.spark_read import lightmq_ports

SINKS = {"exactly-once": {}, "at-least-once": {"delivery": "at-least-once"}}


class Device:
    """Publishes its clock, and records the age of each answer."""

    def __init__(self, port: int) -> None:
        self.ages_ms: list[float] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, "latency")
        self._client.max_inflight_messages_set(1000)
        self._client.on_message = self._received
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe("reply/+", 1)
        assert subscribed.wait(10)

    def _received(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.ages_ms.append((time.time_ns() - int(message.payload[:19])) / 1e6)

    def publish(self, seconds: float, rate: int) -> None:
        """Publish evenly for a while; after a pause of the machine, catch up at once."""
        begun, sent = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < seconds:
            while sent < passed * rate:
                self._client.publish(f"bench/{sent % 16}", b"%019d" % time.time_ns() + b"x" * 81, 1)
                sent += 1
            time.sleep(0.0005)

    def close(self) -> None:
        """DISCONNECT."""
        self._client.disconnect()
        self._client.loop_stop()


class Driver:
    """One run of `spark_latency_query`."""

    def __init__(self, configuration: str, kind: str, server: str, folder: Path, sink: dict[str, str]) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.spark_latency_query", configuration, kind, server, str(folder)]
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [*command, json.dumps(sink)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.receive()

    def receive(self) -> dict[str, Any]:
        """Its next line of output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the driver ended, see {self._log.name}: {Path(self._log.name).read_text()[-3000:]}")
        output: dict[str, Any] = json.loads(line)
        return output

    def progress(self) -> dict[str, Any]:
        """Medians of the batches' parts so far, in ms."""
        assert self._process.stdin is not None
        self._process.stdin.write("progress\n")
        self._process.stdin.flush()
        return self.receive()

    def cpu_s(self) -> dict[int, float]:
        """CPU of the driver, its JVM and its workers so far, by process id."""
        root, used = psutil.Process(self._process.pid), {}
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
        return used

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def quantile(ages: list[float], share: float) -> float:
    """The age that this share of the rows is below."""
    return sorted(ages)[min(len(ages) - 1, int(len(ages) * share))] if ages else float("nan")


def measure(
    ports: dict[str, int], configuration: str, kind: str, delivery: str, options: argparse.Namespace, scratch: Path
) -> str:
    """One configuration; a line of the table."""
    name = f"{configuration}-{kind}-{delivery}"
    server = f"127.0.0.1:{ports['remoting']}"
    driver = Driver(configuration, kind, server, scratch / name, SINKS[delivery])
    device = Device(ports["mqtt"])
    device.publish(options.warm_up, options.rate)
    ages = scratch / name / "ages"
    skip = len(device.ages_ms) if kind == "reply" else len(ages.read_text().splitlines())
    device.publish(options.seconds, options.rate)
    time.sleep(2)
    found = device.ages_ms if kind == "reply" else [float(line) for line in ages.read_text().splitlines()]
    found = found[skip:]
    progress = driver.progress()
    idle = "-"
    if options.idle:
        before, begun = driver.cpu_s(), time.monotonic()
        time.sleep(options.idle)
        after = driver.cpu_s()
        used = sum(seconds - before.get(process, 0.0) for process, seconds in after.items())
        idle = f"{used / (time.monotonic() - begun):.3f}"
    device.close()
    driver.stop()
    cells = " ".join(f"{quantile(found, share):>7.0f}" for share in (0.5, 0.9, 0.99, 1.0))
    shown = {key: value for key, value in progress.items() if key not in ("event", "batches")}
    return f"{name:<30} {len(found):>8,} {cells} {idle:>7}  {shown}"


def main() -> int:
    """Measure what was asked for and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark_latency")
    parser.add_argument("--configurations", default="tuned,stock")
    parser.add_argument("--kinds", default="sink,reply")
    parser.add_argument("--deliveries", default="exactly-once,at-least-once", help="of reply")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--warm-up", type=float, default=15)
    parser.add_argument("--idle", type=float, default=10)
    parser.add_argument("--rate", type=int, default=1000)
    options = parser.parse_args()
    lines = []
    with lightmq_ports() as (ports, _), tempfile.TemporaryDirectory() as scratch:
        for configuration in options.configurations.split(","):
            for kind in options.kinds.split(","):
                for delivery in options.deliveries.split(",") if kind == "reply" else ["exactly-once"]:
                    lines.append(measure(ports, configuration, kind, delivery, options, Path(scratch)))
                    print(lines[-1], flush=True)
    heads = " ".join(f"{name:>7}" for name in ("p50", "p90", "p99", "max", "idle"))
    print(f"\n{'age in ms':<30} {'rows':>8} {heads}  median ms of a batch's parts")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
