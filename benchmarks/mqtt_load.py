"""CPU per MQTT message of a real `lightmq up` process, beside mosquitto (and amqtt) in the same run.

The load comes from `mqttload` (one C program, loopback only): on PATH, named by `--mqttload`, or built from the source
named by `--mqttload-source`. Every measurement starts and stops a server of its own; each round measures every server,
because ratios are valid only between measurements taken side by side. Prints the least and the median CPU per message
over the rounds, rates and latencies of the best round, and the ratio of the least figures. LightMQ runs with its log on
disk and `flush = "async"` unless the line has fdatasync.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import mqtt_servers
from benchmarks.mqtt_lines import LINES, Line

MESSAGE_BYTES = 100
PEER = "mosquitto"

Report = dict[str, Any]


def load_generator(options: argparse.Namespace, scratch: Path) -> str | None:
    """Path of mqttload, built if its source was named; None without one."""
    if options.mqttload_source:
        target = scratch / "mqttload"
        subprocess.run(["cc", "-O2", "-o", str(target), options.mqttload_source], check=True)
        return str(target)
    return options.mqttload or shutil.which("mqttload")


def measure(generator: str, server: mqtt_servers.Server, line: Line, seconds: float) -> Report | None:
    """Run one line against a fresh server and return what the generator reports; None when it could not finish."""
    with server(line.flush) as (port, pids):
        command = [generator, "-p", str(port), "-s", str(MESSAGE_BYTES), "-d", str(seconds)]
        command += ["--pid", ",".join(map(str, pids)), *line.arguments]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        print(f"  {finished.stderr.strip()}")
        return None
    report: Report = json.loads(finished.stdout)
    return report


def cost_us(line: Line, report: Report) -> float:
    """CPU per message, or per connection."""
    return float(report["broker"]["cpu_us_per_connect" if line.idle else "cpu_us_per_sent"])


def _latency(report: Report, name: str) -> str:
    values = report[name]
    return "-" if values is None else f"{values['p50'] / 1000:.2f}/{values['p99'] / 1000:.2f}"


def show(line: Line, name: str, reports: list[Report]) -> None:
    """Print one server's figures."""
    costs = [cost_us(line, report) for report in reports]
    best = min(reports, key=lambda report: cost_us(line, report))
    text = f"  {name:<14} CPU {min(costs):8.2f} best {statistics.median(costs):8.2f} median us"
    if line.idle:
        memory = min(report["broker"]["pss_bytes_per_connection"] for report in reports)
        text += f"  {memory:8.0f} B/connection  {best['connects_per_s']:8,} connects/s"
    else:
        text += f"  acked {best['acked_per_s']:>8,}/s  received {best['received_per_s']:>9,}/s"
        text += f"  e2e p50/p99 {_latency(best, 'e2e_us')} ms  ack {_latency(best, 'ack_us')} ms"
        text += f"  lost {best['lost']}  RSS {best['broker']['rss_kb'] / 1024:.0f} MB"
    print(text, flush=True)


def judge(line: Line, results: dict[str, list[Report]]) -> None:
    """Print our figures divided by those of the peers, beside the goal."""
    for ours in [name for name in results if name.startswith("lightmq") and results[name]]:
        own = [cost_us(line, report) for report in results[ours]]
        words = []
        for peer in [name for name in results if not name.startswith("lightmq") and results[name]]:
            costs = [cost_us(line, report) for report in results[peer]]
            ratio, middle = min(own) / min(costs), statistics.median(own) / statistics.median(costs)
            words.append(f"{ratio:.3f} of {peer} (medians {middle:.3f})")
        if line.goal is not None:
            words.append(f"goal {line.goal}")
        if line.p99_ms_max is not None:
            words.append(f"goal p99 {line.p99_ms_max} ms")
        if line.goal_us is not None and line.goal_bytes is not None:
            words.append(f"goal {line.goal_us:.0f} us, {line.goal_bytes:.0f} B")
        print(f"  {ours:<14} {'; '.join(words)}", flush=True)


def run_line(generator: str, servers: dict[str, mqtt_servers.Server], line: Line, options: argparse.Namespace) -> None:
    """Measure one line on every server, round by round."""
    print(f"{line.name}", flush=True)
    results: dict[str, list[Report]] = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, server in servers.items():
            report = measure(generator, server, line, options.seconds)
            if report is not None:
                results[name].append(report)
    for name, reports in results.items():
        if reports:
            show(line, name, reports)
    judge(line, results)


def chosen_servers(options: argparse.Namespace) -> dict[str, mqtt_servers.Server]:
    """The servers to measure, in the order of their turns."""
    servers: dict[str, mqtt_servers.Server] = {"lightmq": mqtt_servers.lightmq}
    if options.split:
        servers["lightmq-split"] = mqtt_servers.lightmq_split
    if not options.no_peers and mqtt_servers.has_mosquitto():
        servers[PEER] = mqtt_servers.mosquitto
    if options.amqtt_python:
        servers["amqtt"] = mqtt_servers.amqtt(options.amqtt_python)
    return servers


def main() -> int:
    """Run the chosen lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mqttload", help="the load generator; default: mqttload on PATH")
    parser.add_argument("--mqttload-source", help="its C source, built for this run")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="part of a line's name; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the lines' names and end")
    parser.add_argument("--split", action="store_true", help="also controller, broker and proxy as processes")
    parser.add_argument("--amqtt-python", help="interpreter that has amqtt: measured too")
    parser.add_argument("--no-peers", action="store_true", help="without mosquitto")
    options = parser.parse_args()
    lines = [line for line in LINES if not options.only or any(part in line.name for part in options.only)]
    if options.list:
        print("\n".join(line.name for line in lines))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        generator = load_generator(options, Path(scratch))
        if generator is None:
            print("mqttload is not on PATH; name it by --mqttload or its source by --mqttload-source")
            return 0
        for line in lines:
            run_line(generator, chosen_servers(options), line, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
