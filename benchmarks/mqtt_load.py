"""MQTT throughput and CPU per message of a real `lightmq up` process, beside mosquitto in the same run if it is there.

The load comes from `mqttload` (one C program, loopback only): on PATH, named by `--mqttload`, or built from its source
named by `--mqttload-source`. Every scenario runs against a server of its own, started for it and stopped after it.
LightMQ runs as shipped: a PUBACK follows fdatasync. mosquitto runs as it starts without a file: nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCENARIOS: dict[str, list[str]] = {
    "ingest QoS 1, 100 publishers": ["-P", "100", "-S", "0", "-q", "1"],
    "ingest QoS 1, 100 publishers, window 1": ["-P", "100", "-S", "0", "-q", "1", "-w", "1"],
    "100 publishers to one # subscriber, QoS 1": ["-P", "100", "-S", "1", "-q", "1", "-f", "#"],
    "10 to 10 pairs, QoS 1": ["-P", "10", "-S", "10", "-q", "1", "-f", "dev/%d/state"],
    "open loop 2,000/s, 20 pairs, QoS 1": ["-P", "20", "-S", "20", "-q", "1", "-f", "dev/%d/state", "-r", "2000"],
}
PEER_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
READY_TIMEOUT_S = 20.0


@contextmanager
def lightmq_server() -> Iterator[tuple[int, int]]:
    """Run `lightmq up` on free ports with data in a scratch folder; yields (port, process id)."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", folder]
        for port in ("--mqtt-port", "--remoting-port", "--admin-port"):
            command += [port, "0"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["mqtt"], child.pid
        finally:
            child.terminate()
            child.wait(20)


@contextmanager
def mosquitto_server() -> Iterator[tuple[int, int]]:
    """Run mosquitto on a free port; yields (port, process id)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    executable = shutil.which("mosquitto", path=PEER_PATH)
    assert executable is not None
    child = subprocess.Popen([executable, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port, child.pid
    finally:
        child.terminate()
        child.wait(10)


def load_generator(options: argparse.Namespace, scratch: Path) -> str | None:
    """Path of mqttload, built if its source was named; None without one."""
    if options.mqttload_source:
        target = scratch / "mqttload"
        subprocess.run(["cc", "-O2", "-o", str(target), options.mqttload_source], check=True)
        return str(target)
    return options.mqttload or shutil.which("mqttload")


def measure(generator: str, port: int, pid: int, arguments: list[str], seconds: float) -> dict[str, Any]:
    """Run one scenario and return what the generator reports."""
    common = ["-p", str(port), "-s", "100", "-d", str(seconds), "--pid", str(pid)]
    finished = subprocess.run([generator, *common, *arguments], capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(finished.stdout)
    return report


def show(name: str, report: dict[str, Any]) -> None:
    """Print one line of the table."""
    broker = report["broker"]
    latency = (report["e2e_us"] or {}).get("p99")
    print(
        f"  {name:<11} acked {report['acked_per_s']:>9,}/s  received {report['received_per_s']:>9,}/s  "
        f"CPU {broker['cpu_us_per_sent']:6.2f} us/msg  RSS {broker['rss_kb'] / 1024:6.1f} MB  "
        f"p99 {'-' if latency is None else f'{latency / 1000:.1f} ms':>9}  lost {report['lost']}",
        flush=True,
    )


def main() -> int:
    """Run every scenario against each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mqttload", help="the load generator; default: mqttload on PATH")
    parser.add_argument("--mqttload-source", help="its C source, built for this run")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="", help="part of a scenario's name")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        generator = load_generator(options, Path(scratch))
        if generator is None:
            print("mqttload is not on PATH; name it by --mqttload or its source by --mqttload-source")
            return 0
        servers = {"LightMQ": lightmq_server}
        if not options.no_peers and shutil.which("mosquitto", path=PEER_PATH):
            servers["mosquitto"] = mosquitto_server
        for title, arguments in SCENARIOS.items():
            if options.only not in title:
                continue
            print(title)
            for name, server in servers.items():
                with server() as (port, pid):
                    show(name, measure(generator, port, pid, arguments, options.seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
